//! How much memory is touched and given back, how fast drains are, and when the daemon leaves.

use std::time::{Duration, Instant};

use outcrop_grants::{Event, Grants};

use super::Daemon;
use crate::serve::ServeOptions;

/// What is touched before anybody has asked for memory.
const FIRST_BYTES: u64 = 4 << 20;
/// What is touched when somebody has.
const AHEAD_BYTES: u64 = 64 << 20;
/// How often to look whether the machine runs short, while much memory is touched.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Memory that nobody has used for this long is given back.
const KEEP_UNUSED: Duration = Duration::from_secs(10);
/// How long a new daemon waits for its first client, at least: whoever has started it may be slow.
const FIRST_CLIENT: Duration = Duration::from_secs(10);
/// How often to look whether to leave.
const LEAVE_EVERY: Duration = Duration::from_millis(10);

pub(crate) struct Health {
    looked: Instant,
    /// Since when nothing is cached.
    unused_since: Instant,
    /// Since when there are no clients. `None` if there was none yet.
    idle_since: Option<Instant>,
    started: Instant,
    is_refused: bool,
    /// The highest that was in use since memory was given back.
    used_most: u64,
    limit_wanted: u64,
    rate: f64,
    drained_before: u64,
}

impl Health {
    pub(crate) fn new(options: &ServeOptions, grants: &Grants) -> Self {
        let now = Instant::now();
        let used_most = if options.touch_all { u64::MAX / 4 } else { 0 };
        Self {
            looked: now,
            unused_since: now,
            idle_since: None,
            started: now,
            is_refused: false,
            used_most,
            limit_wanted: grants.limit_bytes(),
            rate: 0.0,
            drained_before: 0,
        }
    }

    pub(crate) fn touched(&mut self, is_refused: bool) {
        self.is_refused = is_refused;
    }

    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    pub(crate) fn limit(&mut self, bytes: u64) {
        self.limit_wanted = bytes;
    }

    /// When to look again; `None` if nothing can have changed by itself.
    pub(crate) fn due(&self, daemon: &Daemon) -> Option<Duration> {
        let is_active = daemon.grants.touched_bytes() > FIRST_BYTES || !daemon.grants.is_empty();
        let look = is_active.then(|| LOOK_EVERY.saturating_sub(self.looked.elapsed()));
        let leave = daemon.options.idle.filter(|_| daemon.connections.is_empty());
        // Not at once if something is cached: the end of a drain wakes the daemon.
        let leave = leave.filter(|_| daemon.grants.is_empty());
        let leave = leave.map(|idle| self.until_leaving(idle).max(LEAVE_EVERY));
        look.into_iter().chain(leave).min()
    }

    /// How long a daemon stays that leaves after this time without clients.
    fn until_leaving(&self, idle: Duration) -> Duration {
        match self.idle_since {
            Some(since) => idle.saturating_sub(since.elapsed()),
            None => idle.max(FIRST_CLIENT).saturating_sub(self.started.elapsed()),
        }
    }
}

impl Daemon {
    /// Has memory touched ahead of its use.
    pub(super) fn touch(&mut self) {
        self.health.used_most = self.health.used_most.max(self.grants.used_bytes());
        // Clients that do nothing hold some memory too.
        let is_used = self.health.used_most > FIRST_BYTES / 4;
        let ahead = self.health.used_most.saturating_mul(2).saturating_add(AHEAD_BYTES);
        let wanted = if is_used { ahead } else { FIRST_BYTES };
        if !self.health.is_refused {
            self.workers.touch(wanted.min(self.grants.limit_bytes()).min(self.reserve.bytes()));
        }
    }

    pub(super) fn check_health(&mut self) -> std::io::Result<()> {
        if !self.connections.is_empty() {
            self.health.idle_since = Some(Instant::now());
        }
        let may_leave = self.options.idle.is_some_and(|idle| self.health.until_leaving(idle).is_zero());
        if (may_leave || self.is_leaving) && self.grants.is_idle() {
            self.is_over = true;
        }
        if !self.grants.is_empty() {
            self.health.unused_since = Instant::now();
        }
        if self.health.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        let passed = self.health.looked.elapsed();
        self.health.looked = Instant::now();
        let drained = self.grants.figures().drained_total_bytes;
        self.health.rate = (drained - self.health.drained_before) as f64 / passed.as_secs_f64();
        self.health.drained_before = drained;
        let is_unused = self.health.unused_since.elapsed() >= KEEP_UNUSED && !self.options.touch_all;
        if is_unused && self.grants.touched_bytes() > FIRST_BYTES {
            self.health.used_most = 0;
            self.health.is_refused = false;
            self.tell(Event::Short)?;
        }
        // What is left includes a margin, so none left means that the machine runs short.
        match outcrop_memory::memory_left() {
            Ok(0) => {
                self.health.is_refused = true;
                self.health.used_most = 0;
                self.tell(Event::Limit { bytes: self.grants.used_bytes() })
            }
            Ok(left) if self.grants.limit_bytes() < self.health.limit_wanted && left > AHEAD_BYTES => {
                self.health.is_refused = false;
                self.tell(Event::Limit { bytes: self.health.limit_wanted })
            }
            _ => Ok(()),
        }
    }
}
