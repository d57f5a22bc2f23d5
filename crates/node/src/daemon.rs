//! The daemon: one thread that receives messages, asks `outcrop_grants`, and has workers do what
//! takes long.

mod clients;
mod files;
mod health;

pub(crate) use files::Files;

use std::{
    collections::BTreeMap,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::{Duration, Instant},
};

use outcrop_format::{NodeReply, NodeReplyKind};
use outcrop_grants::{Action, Answer, ClientId, Event, Grants, Timestamp};
use outcrop_local::Alive;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::SendFlags,
};

use crate::{
    daemon::{clients::Connection, health::Health},
    journal::Journal,
    place::Place,
    reserve::{Reserve, reopened},
    serve::ServeOptions,
    timeline::Timeline,
    wire,
    workers::{Outcome, Work, Workers},
};

const LISTENER: u64 = 0;
const WAKE: u64 = 1;
const SIGNAL: u64 = 2;
const FIRST_TOKEN: u64 = 3;

/// See the module's documentation.
pub(crate) struct Daemon {
    options: ServeOptions,
    place: Place,
    started: Instant,
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Readable when the daemon was asked to end (SIGTERM, SIGINT).
    signals: UnixStream,
    workers: Workers,
    reserve: Arc<Reserve>,
    journal: Journal,
    /// The journal as clients get it: they may not write to it.
    journal_to_read: OwnedFd,
    generation: u64,
    grants: Grants,
    connections: BTreeMap<u64, Connection>,
    /// By line: the token of its connection.
    lines: BTreeMap<ClientId, u64>,
    /// Processes of absent clients, by token.
    absent: BTreeMap<u64, (OwnedFd, ClientId)>,
    next_token: u64,
    /// Connections that end after the present event.
    doomed: Vec<u64>,
    files: Files,
    /// By process: the files that it uses, and how often it has opened each.
    groups: BTreeMap<u64, BTreeMap<u64, u64>>,
    health: Health,
    timeline: Timeline,
    is_over: bool,
    /// It ends as soon as everything is drained.
    is_leaving: bool,
    /// Whether the journal contains all that the present event has changed.
    is_covered: bool,
    /// Dropped last: then another daemon may serve.
    _alive: Alive,
}

impl Daemon {
    pub(crate) fn new(
        options: ServeOptions,
        place: Place,
        alive: Alive,
        reserve: Arc<Reserve>,
        journal: Journal,
        grants: Grants,
    ) -> io::Result<Self> {
        // Whoever made it is dead: this process holds the lock.
        let _ = std::fs::remove_file(place.socket());
        let listener = wire::listen_on(&place.socket())?;
        let timeline = Timeline::open(&options, journal.generation()?)?;
        let workers = Workers::start(&options, Arc::clone(&reserve), timeline.of_threads())?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, workers.wake(), epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let (signals, signalled) = UnixStream::pair()?;
        for signal in [libc::SIGTERM, libc::SIGINT] {
            signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
        }
        epoll::add(&epoll, &signals, epoll::EventData::new_u64(SIGNAL), epoll::EventFlags::IN)?;
        let journal_to_read = reopened(journal.file().as_fd(), false, 0)?.into();
        let mut daemon = Self {
            health: Health::new(&options, &grants),
            options,
            place,
            started: Instant::now(),
            epoll,
            listener,
            signals,
            workers,
            reserve,
            generation: journal.generation()?,
            journal,
            journal_to_read,
            grants,
            connections: BTreeMap::new(),
            lines: BTreeMap::new(),
            absent: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            doomed: Vec::new(),
            files: Files::default(),
            groups: BTreeMap::new(),
            timeline,
            is_over: false,
            is_leaving: false,
            is_covered: false,
            _alive: alive,
        };
        daemon.find_files()?;
        daemon.watch_absent()?;
        daemon.touch();
        Ok(daemon)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.started.elapsed().as_nanos() as u64)
    }

    /// Serves until it is over.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events: [MaybeUninit<epoll::Event>; 256] = [const { MaybeUninit::uninit() }; 256];
        while !self.is_over {
            let timeout = self.timeout();
            let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Err(Errno::INTR) => continue,
                waited => waited?.0,
            };
            let tokens: Vec<(u64, epoll::EventFlags)> = ready.iter().map(|it| (it.data.u64(), it.flags)).collect();
            for (token, flags) in tokens {
                match token {
                    LISTENER => self.accept(),
                    WAKE => self.hear_workers()?,
                    SIGNAL => {
                        epoll::delete(&self.epoll, &self.signals)?;
                        self.is_leaving = true;
                    }
                    _ if self.absent.contains_key(&token) => self.absent_died(token)?,
                    _ => self.hear(token, flags)?,
                }
            }
            self.look_after()?;
        }
        self.end()
    }

    /// Tells the state machine, and does what it says.
    pub(crate) fn tell(&mut self, event: Event) -> io::Result<()> {
        let now = self.now();
        self.is_covered = false;
        let failures = self.grants.failures();
        self.grants.handle(now, event);
        if self.grants.failures() != failures {
            self.journal.publish_failures(self.grants.failures())?;
        }
        while let Some(action) = self.grants.poll() {
            self.carry_out(action)?;
        }
        self.journal.flush()
    }

    fn carry_out(&mut self, action: Action) -> io::Result<()> {
        if !matches!(action, Action::Journal(_)) {
            // Nothing is done or answered before the journal says why.
            self.journal.flush()?;
        }
        match action {
            Action::Reply { client, failure, answer } => {
                self.timeline.replied(client, failure, &answer);
                let kind = reply_kind(answer);
                if let Some(&token) = self.lines.get(&client) {
                    self.reply(token, &NodeReply { failure, kind }, &[]);
                }
            }
            Action::Drop { client, reason } => {
                tracing::warn!(client, reason, "a client broke the rules and is dropped");
                if let Some(&token) = self.lines.get(&client) {
                    self.reply(token, &NodeReply::plain(NodeReplyKind::Refused { reason }), &[]);
                    self.doom(token);
                }
            }
            Action::Journal(record) => {
                // A half that was begun during this event already says what follows from it.
                if !self.is_covered {
                    let Self { journal, grants, .. } = self;
                    self.is_covered = journal.append(&record, || grants.records())?;
                }
            }
            Action::Drain { job, file, parts, pieces } => {
                self.files.keep_draining(self.options.keep_sums, job, file, &parts, &pieces);
                self.give(file, Work::Drain { job, parts, pieces });
            }
            Action::Truncate { file, bytes } => {
                self.files.forget_sums(file, bytes);
                self.give(file, Work::Truncate { file, bytes });
            }
            Action::Sync { file, client } => self.give(file, Work::Sync { client }),
            Action::Mark { file } => {
                self.files.target(file).into_iter().for_each(|target| target.want_mark(true));
                self.give(file, Work::Mark);
            }
            Action::Settle { file, accessed_ns, modified_ns, is_marked } => {
                self.files.target(file).into_iter().for_each(|target| target.want_mark(false));
                self.give(file, Work::Settle { file, accessed_ns, modified_ns, is_marked });
            }
            Action::Forget { file } => self.files.forget(file),
            Action::GiveBack { range } => {
                self.workers.untouched_from(self.grants.touched_bytes());
                if let Err(error) = self.reserve.give_back(&range) {
                    tracing::warn!(%error, "memory cannot be given back");
                }
            }
        }
        Ok(())
    }

    fn give(&mut self, file: u64, work: Work) {
        match self.files.target(file) {
            Some(target) => self.workers.push(target, work),
            None => tracing::error!(file, "the state machine knows a file that is not open"),
        }
    }

    fn hear_workers(&mut self) -> io::Result<()> {
        for outcome in self.workers.outcomes() {
            match outcome {
                Outcome::Event(event) => {
                    if let Event::Drained { job, outcome } = &event {
                        self.files.drained(*job, outcome.is_ok());
                    }
                    self.tell(event)?;
                }
                Outcome::Verified { client, outcome } => {
                    let kind = match outcome {
                        Ok(bytes) => NodeReplyKind::Verified { bytes },
                        Err(errno) => {
                            NodeReplyKind::Failed { errno, reason: "the file differs from what was drained".to_owned() }
                        }
                    };
                    if let Some(&token) = self.lines.get(&client) {
                        self.connections.get_mut(&token).into_iter().for_each(|it| it.is_verifying = false);
                        self.reply(token, &NodeReply::plain(kind), &[]);
                    }
                }
                Outcome::Touched { to, is_refused } => {
                    self.health.touched(is_refused);
                    self.tell(Event::Touched { to })?;
                    if is_refused {
                        let bytes = to.max(self.grants.used_bytes()).min(self.grants.limit_bytes());
                        self.tell(Event::Limit { bytes })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// How long to sleep.
    fn timeout(&self) -> Option<Timespec> {
        let due = self.grants.poll_timeout().map(|at| Duration::from_nanos(at.0.saturating_sub(self.now().0)));
        let due = due.into_iter().chain(self.health.due(self)).chain(self.timeline.due()).min();
        let due = if self.options.poll && !self.connections.is_empty() { Some(Duration::ZERO) } else { due };
        due.map(|due| Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() })
    }

    /// What time brings, and the end.
    fn look_after(&mut self) -> io::Result<()> {
        if self.grants.poll_timeout().is_some_and(|at| at <= self.now()) {
            self.tell(Event::Tick)?;
        }
        self.drop_doomed()?;
        self.check_health()?;
        self.timeline.look_after();
        self.touch();
        Ok(())
    }

    /// The end: nothing is cached, so nobody needs the reserve.
    fn end(self) -> io::Result<()> {
        if self.grants.is_idle() {
            let _ = std::fs::remove_file(self.place.nonce());
            if let Some(path) = &self.options.reserve {
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(crate::serve::journal_path(path));
            }
        }
        let _ = std::fs::remove_file(self.place.socket());
        Ok(())
    }

    pub(crate) fn reply(&mut self, token: u64, reply: &NodeReply, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        let Some(connection) = self.connections.get(&token) else { return };
        let sent = reply
            .encode()
            .map_err(io::Error::other)
            .and_then(|bytes| wire::send(&connection.socket, &bytes, descriptors, SendFlags::DONTWAIT));
        if let Err(error) = sent {
            // It never reads, or is gone.
            tracing::debug!(%error, "a client does not take its answer");
            self.doom(token);
        }
    }
}

fn reply_kind(answer: Answer) -> NodeReplyKind {
    match answer {
        Answer::Granted(range) => NodeReplyKind::Granted { at: range.start, bytes: range.end - range.start },
        Answer::Cached { end, known_to, parts } => NodeReplyKind::Cached { end, known_to, parts },
        Answer::Length { end, is_clean } => NodeReplyKind::Length { end, is_clean },
        Answer::Done => NodeReplyKind::Done,
        Answer::Failed(errno) => NodeReplyKind::Failed { errno, reason: "the file could not be drained".to_owned() },
    }
}
