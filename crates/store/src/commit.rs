//! The committer: carries out what the commit protocol decides, for all sessions of a store.
//!
//! An [`outcrop_commit::Ledger`] decides everything. This thread passes on to it what the packer,
//! the engine, the program and other ranks report, and carries out its actions: file operations,
//! messages, reports.

mod files;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

pub(crate) use files::{failure, now_unix_ns, rank_dir};
use outcrop_commit::{Action, Draft, Event, Ledger, Report, SaveId};
use outcrop_engine::{Arrival, Handle};
use outcrop_format::{ManifestPack, News, RunId};
use outcrop_layers::files::FileLock;

use super::{Shared, pack::Job, state::SessionCore};
use crate::{Error, ErrorKind, Result};

/// The pause between two looks for messages while this rank waits for others. It doubles up
/// to `LISTEN_MAX`, and begins anew when this rank has something to say: so the number of looks for
/// a version hardly grows with that of the ranks, whose messages come one by one.
const LISTEN: Duration = Duration::from_millis(5);
const LISTEN_MAX: Duration = Duration::from_millis(80);

/// The pause while this rank waits for nobody. Others may wait for messages that only this rank
/// passes on, and a rank that is gone should be noticed soon.
const LISTEN_IDLE: Duration = Duration::from_millis(500);

/// A message to the committer.
pub(crate) enum Note {
    /// A session has been opened.
    Opened(Arc<SessionCore>, Box<Ledger>),
    /// The engine is about to be given a pack under this key.
    Pack(Arc<SessionCore>, u64, ManifestPack),
    /// A version is packed, and whether its chain has become longer than it should be.
    Drafted(Arc<SessionCore>, Box<Draft>, bool),
    /// Something else has happened to a session.
    Event(Arc<SessionCore>, Event),
    /// A pack has reached a layer, or failed to.
    Arrived(Arrival),
    /// Forget versions. The answer comes when that is durable.
    Forget(Arc<SessionCore>, Forgotten, Sender<Result<()>>),
    /// The program is about to read files. The sender is dropped when no file is removed any more.
    Reading(Arc<SessionCore>, Sender<()>),
    /// The sender is dropped when all notes before this one are handled.
    Flush(Sender<()>),
    /// A session has ended. When nothing more is written for it, its locks are released and the
    /// sender is dropped.
    Closed(Arc<SessionCore>, Vec<FileLock>, Sender<()>),
    /// The store ends.
    Close,
}

/// Which versions are to be forgotten.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Forgotten {
    /// All above this version, or all if `None`.
    Above(Option<u64>),
    /// Those that were found when the session was opened and that not all ranks have.
    Incomplete,
}

/// A session that is open.
struct Open {
    session: Arc<SessionCore>,
    ledger: Ledger,
    /// What is being forgotten, and where to send the answer.
    forgetting: Option<(Forgotten, Sender<Result<()>>)>,
    /// What is released when the session has ended.
    closing: Option<(Vec<FileLock>, Sender<()>)>,
}

/// The thread that commits.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    handle: Handle,
    packer: Sender<Job>,
    open: HashMap<RunId, Open>,
    /// The session and number of each pack that the engine has.
    keys: HashMap<u64, (RunId, u64)>,
    /// Messages about sessions that this rank has not opened yet.
    early: Vec<(u32, News)>,
    /// Sessions that have ended. Later messages about them are ignored.
    ended: Vec<RunId>,
    /// The pause before the next look for messages.
    pause: Duration,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, handle: Handle, packer: Sender<Job>) -> Self {
        let (open, keys, early, ended) = (HashMap::new(), HashMap::new(), Vec::new(), Vec::new());
        Self { shared, handle, packer, open, keys, early, ended, pause: LISTEN }
    }

    pub(crate) fn run(mut self, notes: &Receiver<Note>) {
        loop {
            let is_waiting = self.open.values().any(|open| open.ledger.is_waiting_for_others());
            let has_others = self.shared.ranks.count() > 1 && !self.open.is_empty();
            let has_garbage = self.open.values().any(|open| open.ledger.has_garbage());
            let note = match (is_waiting, has_garbage) {
                (_, true) => notes.recv_timeout(Duration::ZERO),
                (true, false) => notes.recv_timeout(self.pause),
                (false, false) if has_others => notes.recv_timeout(LISTEN_IDLE),
                (false, false) => notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let is_idle = matches!(note, Err(RecvTimeoutError::Timeout));
            match note {
                Ok(Note::Close) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(note) => self.take(note),
                Err(RecvTimeoutError::Timeout) => self.tidy(),
            }
            if is_waiting || (has_others && is_idle) {
                self.listen(is_waiting);
            }
            if !is_waiting {
                self.pause = LISTEN;
            } else if is_idle {
                self.pause = (self.pause * 2).min(LISTEN_MAX);
            }
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Opened(session, ledger) => {
                let run = session.run;
                let open = Open { session, ledger: *ledger, forgetting: None, closing: None };
                self.open.insert(run, open);
                // Files that an earlier run has left behind may be removed from now on.
                self.tell(run, Event::Reading(false));
                std::mem::take(&mut self.early).into_iter().for_each(|(rank, news)| self.hear(rank, news));
            }
            Note::Pack(session, key, pack) => {
                self.keys.insert(key, (session.run, pack.id.number));
                self.tell(session.run, Event::Expected { key, pack });
            }
            Note::Drafted(session, draft, is_long) => {
                self.tell(session.run, Event::Drafted(*draft));
                if is_long {
                    // If the packer has ended, nothing is merged.
                    let _ = self.packer.send(Job::Merge(session));
                }
            }
            Note::Event(session, event) => self.tell(session.run, event),
            Note::Arrived(Arrival { key, layer, failure }) => {
                if let Some((run, number)) = self.keys.get(&key).copied() {
                    self.tell(run, Event::Arrived { number, layer: layer - 1, failure });
                }
            }
            Note::Forget(session, what, answer) => {
                if let Some(open) = self.open.get_mut(&session.run) {
                    open.forgetting = Some((what, answer));
                    let event = match what {
                        Forgotten::Above(version) => Event::Rewind(version),
                        Forgotten::Incomplete => Event::ForgetIncomplete,
                    };
                    self.tell(session.run, event);
                }
            }
            Note::Reading(session, ready) => {
                self.tell(session.run, Event::Reading(true));
                drop(ready);
            }
            Note::Flush(end) => drop(end),
            Note::Closed(session, locks, end) => {
                if let Some(open) = self.open.get_mut(&session.run) {
                    open.closing = Some((locks, end));
                    self.tell(session.run, Event::Closed);
                }
            }
            Note::Close => {}
        }
    }

    /// Passes an event to the ledger of a session, and carries out its actions.
    fn tell(&mut self, run: RunId, event: Event) {
        if let Some(open) = self.open.get_mut(&run) {
            open.ledger.handle(now_unix_ns(), event);
            self.obey(run);
        }
    }

    /// Removes a file that nobody needs, when there is nothing else to do.
    fn tidy(&mut self) {
        let idle = self.open.iter_mut().find_map(|(run, open)| Some((*run, open.ledger.poll_idle()?)));
        if let Some((run, action)) = idle {
            self.carry_out(run, action);
            self.obey(run);
        }
    }

    fn obey(&mut self, run: RunId) {
        while let Some(action) = self.open.get_mut(&run).and_then(|open| open.ledger.poll()) {
            self.carry_out(run, action);
        }
    }

    fn carry_out(&mut self, run: RunId, action: Action) {
        let Some(open) = self.open.get_mut(&run) else { return };
        match action {
            Action::Do { layer, step } => {
                let outcome = files::perform(&self.shared.shelves[layer], &open.session, layer, step);
                open.ledger.handle(now_unix_ns(), Event::Done { layer, outcome });
            }
            Action::Announce(news) => {
                self.pause = LISTEN;
                if let Err(error) = self.shared.ranks.announce(&news.encode()) {
                    tracing::warn!(session = open.session.name, %error, "cannot tell the other ranks about a version");
                    open.ledger.handle(now_unix_ns(), Event::Unsaid { news, reason: error.to_string() });
                }
            }
            Action::Report(report) => open.hear(report),
            Action::Lose => open.session.content().lose(),
            Action::Reset => open.session.content().reset(),
            Action::Release { key } => self.discard(key),
            Action::End => {
                let of_session = self.keys.iter().filter(|(_, (of, _))| *of == run).map(|(key, _)| *key);
                of_session.collect::<Vec<_>>().into_iter().for_each(|key| self.discard(key));
                self.open.remove(&run);
                self.ended.push(run);
            }
        }
    }

    fn discard(&mut self, key: u64) {
        self.keys.remove(&key);
        // It fails if the engine never got the pack.
        let _ = self.handle.discard(key);
    }

    /// Receives messages of other ranks. That a rank is gone is an error only while this one waits:
    /// it may have ended in good order after its last version.
    fn listen(&mut self, is_waiting: bool) {
        match self.shared.ranks.heard() {
            Ok(messages) => {
                for (rank, message) in messages {
                    match News::decode(&message) {
                        Ok(news) => self.hear(rank, news),
                        Err(error) => tracing::warn!(rank, %error, "a message of another rank cannot be decoded"),
                    }
                }
            }
            Err(_) if !is_waiting => {}
            Err(error) => {
                // Tell all sessions, even those that do not wait now: no further version will
                // become complete.
                let runs: Vec<RunId> = self.open.keys().copied().collect();
                runs.into_iter().for_each(|run| self.tell(run, Event::Alone { reason: error.to_string() }));
            }
        }
    }

    fn hear(&mut self, rank: u32, news: News) {
        if self.open.contains_key(&news.run) {
            self.tell(news.run, Event::Heard { rank, news });
        } else if !self.ended.contains(&news.run) {
            self.early.push((rank, news));
        }
    }
}

impl Open {
    /// Passes a report of the ledger to the program.
    fn hear(&mut self, report: Report) {
        let session = &self.session;
        match report {
            Report::Here { save, layer } => session.here(save, layer),
            Report::Reached { save, layer } => session.reached(save, layer),
            Report::Failed { save, layer, reason } => session.failed(save, layer, &reason),
            Report::Dropped { version, layer } => session.dropped(version, layer),
            Report::Over { reason } => session.end(&reason),
            Report::Stays { layer, reason } => {
                tracing::warn!(
                    session = session.name,
                    layer = session.layers[layer],
                    reason,
                    "old files could not be removed"
                );
            }
            Report::Forgotten(result) => {
                let Some((what, answer)) = self.forgetting.take() else { return };
                match what {
                    _ if result.is_err() => {}
                    Forgotten::Above(version) => session.went_back(version),
                    Forgotten::Incomplete => session.expect(Vec::new()),
                }
                // This fails if the program has stopped waiting.
                let _ = answer.send(result.map_err(|reason| Error::new(ErrorKind::Storage, reason)));
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Release the locks first: whoever waits for the end may open the session again.
        if let Some((locks, end)) = self.closing.take() {
            drop(locks);
            drop(end);
        }
        // If the committer panics, this wakes the program, which would otherwise wait for ever.
        self.session.end("the store has been closed");
    }
}

/// The event of a version that could not be saved or packed.
pub(crate) fn failed(session: &Arc<SessionCore>, save: SaveId, reason: &impl ToString) -> Note {
    Note::Event(Arc::clone(session), Event::Failed { save, reason: reason.to_string() })
}
