//! Draining waits for a moment after a burst has begun, so that programs and drains do not take the
//! processor and the memory from each other. It waits only as long as nothing presses.

use crate::{event::Timestamp, grants::Grants};

/// When draining begins although nothing presses.
#[derive(Debug, Clone, Copy)]
pub struct HoldSettings {
    /// This long after the last write.
    pub quiet_ns: u64,
    /// This long after the first write that is not drained.
    pub most_ns: u64,
    /// When so many bytes wait.
    pub bytes: u64,
}

impl HoldSettings {
    /// Draining begins at once.
    pub const NONE: Self = Self { quiet_ns: 0, most_ns: 0, bytes: 0 };
}

impl Default for HoldSettings {
    fn default() -> Self {
        Self { quiet_ns: 4_000_000, most_ns: 50_000_000, bytes: 64 << 20 }
    }
}

/// Whether draining waits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Hold {
    /// It does not, until everything is drained.
    #[default]
    Over,
    /// It waits until then, unless something presses.
    Until {
        /// It does not wait for longer, however much is written.
        most: Timestamp,
        quiet: Timestamp,
    },
}

impl Grants {
    /// Something was written.
    pub(crate) fn hold(&mut self) {
        let HoldSettings { quiet_ns, most_ns, .. } = self.settings.hold;
        let quiet = self.now.plus(quiet_ns);
        self.hold = match self.hold {
            Hold::Until { most, .. } => Hold::Until { most, quiet },
            // Everything from before is drained.
            Hold::Over if self.queue.is_empty() && self.jobs.is_empty() => {
                Hold::Until { most: self.now.plus(most_ns), quiet }
            }
            Hold::Over => Hold::Over,
        };
    }

    /// Somebody waits for something: draining begins now. Returns whether it did not go on already.
    pub(crate) fn press(&mut self) -> bool {
        matches!(std::mem::replace(&mut self.hold, Hold::Over), Hold::Until { .. })
    }

    /// Whether drains may start.
    pub(crate) fn is_released(&mut self) -> bool {
        let Hold::Until { most, quiet } = self.hold else { return true };
        let waiting_bytes = self.space.used_bytes() - self.granted_bytes.min(self.space.used_bytes());
        let presses = !self.stalled.is_empty()
            || !self.draining_all.is_empty()
            || waiting_bytes > self.settings.hold.bytes.min(self.limit_bytes / 2);
        if presses || self.now >= most.min(quiet) {
            self.hold = Hold::Over;
            return true;
        }
        false
    }

    /// When draining begins.
    pub(crate) fn held_until(&self) -> Option<Timestamp> {
        match self.hold {
            Hold::Until { most, quiet } => Some(most.min(quiet)),
            Hold::Over => None,
        }
    }
}
