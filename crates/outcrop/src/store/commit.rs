//! The committer: makes versions visible, layer by layer, and removes what nobody needs any more.
//!
//! A version is visible on a layer when its manifest has its name there, and that happens only when every pack that it lists is
//! durable there. What is removed goes in the opposite order: first the manifest, durably, then packs that no manifest lists.

mod ledger;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender},
    },
    time::Duration,
};

use ledger::News;
pub(crate) use ledger::{Draft, LayerLedger, Ledger, failure, now_unix_ns, rank_dir};
use outcrop_engine::{Arrival, Handle};
use outcrop_format::ManifestPack;
use outcrop_layers::files::FileLock;

use super::{Shared, pack::Job, state::SessionCore};
use crate::Result;

/// While other ranks have not said that they have a version, they are listened to so often.
const LISTEN: Duration = Duration::from_millis(5);

/// What the committer is told.
pub(crate) enum Note {
    /// A session has been opened.
    Opened(Box<Ledger>),
    /// The engine is about to be given a pack under this key.
    Pack(Arc<SessionCore>, u64, ManifestPack),
    /// A version is packed.
    Draft(Box<Draft>),
    /// A version could not be saved or packed.
    Failed(Arc<SessionCore>, u64, String),
    /// Packs have become others: the numbers of the old ones, and the new ones, newest first.
    Merged(Arc<SessionCore>, Vec<u64>, Vec<ManifestPack>),
    /// A pack has reached a layer, or could not.
    Arrived(Arrival),
    /// Versions above this one are to be forgotten; answered when that is durable.
    Rewind(Arc<SessionCore>, Option<u64>, Sender<Result<()>>),
    /// The program has read files of a session, and what nobody needs can go.
    Read(Arc<SessionCore>),
    /// A session has ended: its locks are given up, and the sender is dropped, when nothing more is written for it.
    Closed(String, Vec<FileLock>, Sender<()>),
    /// The store ends.
    Close,
}

/// The thread that commits.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    handle: Handle,
    packer: Sender<Job>,
    ledgers: HashMap<String, Ledger>,
    /// The session and number of each pack that the engine has.
    keys: HashMap<u64, (String, u64)>,
    /// What was heard of sessions that this rank has not opened yet.
    early: Vec<(u32, Vec<u8>)>,
    /// How often sessions that have ended were opened or went back.
    eras: HashMap<String, u64>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, handle: Handle, packer: Sender<Job>) -> Self {
        let (ledgers, keys, eras) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { shared, handle, packer, ledgers, keys, early: Vec::new(), eras }
    }

    pub(crate) fn run(mut self, notes: &Receiver<Note>) {
        loop {
            let is_waiting = self.ledgers.values().any(Ledger::is_waiting_for_others);
            let has_garbage = self.ledgers.values().any(Ledger::has_garbage);
            let note = match (is_waiting, has_garbage) {
                (_, true) => notes.recv_timeout(Duration::ZERO),
                (true, false) => notes.recv_timeout(LISTEN),
                (false, false) => notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match note {
                Ok(Note::Close) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(note) => self.take(note),
                Err(RecvTimeoutError::Timeout) => self.tidy(),
            }
            if is_waiting {
                self.listen();
            }
            self.let_go();
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Opened(mut ledger) => {
                ledger.era = self.eras.get(&ledger.session.name).map_or(0, |era| era + 1);
                self.ledgers.insert(ledger.session.name.clone(), *ledger);
                let early = std::mem::take(&mut self.early);
                self.hear(early);
            }
            Note::Pack(session, key, pack) => {
                self.keys.insert(key, (session.name.clone(), pack.id.number));
                self.with(&session.name, |ledger, _| ledger.expect(key, &pack));
            }
            Note::Draft(draft) => {
                let session = Arc::clone(&draft.session);
                let is_long = draft.is_long;
                self.with(&session.name, |ledger, shared| ledger.add(shared, *draft));
                if is_long {
                    // A packer that has ended merges nothing more.
                    let _ = self.packer.send(Job::Merge(session));
                }
            }
            Note::Failed(session, version, reason) => {
                let layers = 0..session.layers.len();
                self.with(&session.name, |ledger, shared| {
                    layers.for_each(|layer| ledger.fail(shared, layer, version, &reason));
                });
            }
            Note::Merged(session, old, new) => {
                self.with(&session.name, |ledger, shared| ledger.merged(shared, old, new));
            }
            Note::Arrived(Arrival { key, layer, failure }) => {
                if let Some((name, number)) = self.keys.get(&key).cloned() {
                    self.with(&name, |ledger, shared| ledger.arrived(shared, number, layer - 1, failure));
                }
            }
            Note::Rewind(session, version, answer) => {
                let result = match self.ledgers.get_mut(&session.name) {
                    Some(ledger) => ledger.rewind(&self.shared, version),
                    None => Ok(()),
                };
                // Who asked and does not wait for the answer does not need it.
                let _ = answer.send(result);
            }
            Note::Read(session) => self.with(&session.name, Ledger::collect_all),
            Note::Closed(name, locks, end) => {
                if let Some(ledger) = self.ledgers.get_mut(&name) {
                    ledger.close(&self.shared, locks, end);
                }
            }
            Note::Close => {}
        }
    }

    /// Does something to the ledger of a session, then lets go of the packs that it does not need in host memory.
    fn with(&mut self, name: &str, action: impl FnOnce(&mut Ledger, &Shared)) {
        let Some(ledger) = self.ledgers.get_mut(name) else { return };
        action(ledger, &self.shared);
        let gone = ledger.dispensable();
        self.discard(gone);
    }

    /// Removes something that nobody needs, as there is nothing else to do.
    fn tidy(&mut self) {
        let Some(ledger) = self.ledgers.values_mut().find(|ledger| ledger.has_garbage()) else { return };
        if let Err(error) = ledger.remove_one(&self.shared) {
            tracing::warn!(session = ledger.session.name, %error, "an old pack stays");
        }
    }

    /// Ends sessions that are closed and have nothing on its way any more.
    fn let_go(&mut self) {
        let over = self.ledgers.iter().filter(|(_, ledger)| ledger.is_over()).map(|(name, _)| name.clone());
        for name in over.collect::<Vec<_>>() {
            let of_session = self.keys.iter().filter(|(_, (session, _))| *session == name);
            let gone: Vec<u64> = of_session.map(|(key, _)| *key).collect();
            self.discard(gone);
            if let Some(ledger) = self.ledgers.remove(&name) {
                self.eras.insert(name, ledger.era);
            }
        }
    }

    fn discard(&mut self, keys: Vec<u64>) {
        for key in keys {
            self.keys.remove(&key);
            // It may never have come to be.
            let _ = self.handle.discard(key);
        }
    }

    /// Hears what other ranks have.
    fn listen(&mut self) {
        match self.shared.ranks.heard() {
            Ok(messages) => self.hear(messages),
            Err(error) => {
                // Also those that wait for nothing just now: no further version will be complete.
                for ledger in self.ledgers.values_mut() {
                    ledger.session.end(&error.to_string());
                    ledger.give_up();
                }
            }
        }
    }

    fn hear(&mut self, messages: Vec<(u32, Vec<u8>)>) {
        for (rank, message) in messages {
            let Some(news) = News::decode(&message) else { continue };
            let era = self.ledgers.get(&news.session).map(|ledger| ledger.era);
            let next = era.or_else(|| self.eras.get(&news.session).copied()).map_or(0, |era| era + 1);
            if era == Some(news.era) {
                self.with(&news.session, |ledger, shared| ledger.heard(shared, rank, &news));
            } else if news.era >= next {
                self.early.push((rank, message));
            }
        }
    }
}

/// Tells the program when the committer panics, which would otherwise wait for ever.
impl Drop for Committer {
    fn drop(&mut self) {
        for ledger in self.ledgers.values() {
            ledger.session.end("the store has been closed");
        }
    }
}
