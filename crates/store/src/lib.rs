//! Checkpoints that survive: named, numbered versions that are complete or absent, written in the
//! background.
//!
//! A [`Store`] has host memory and directories. A [`Session`] is one series of versions in it. A
//! save copies what has changed into host memory and returns. The rest happens in the background:
//! - the *packer* (`pack`) hashes, deduplicates and compresses blocks and closes packs,
//! - the *engine* takes packs to every directory, the oldest first,
//! - the *committer* (`commit`) makes a version visible on a layer when everything that it needs
//!   has arrived there, drops versions that are not kept, and removes files that nobody needs any
//!   more.

#![forbid(unsafe_code)]

mod builder;
mod chain;
mod commit;
mod error;
mod exchange;
mod gather;
mod host;
mod merge;
mod pack;
mod parity;
mod places;
mod recover;
mod restore;
mod session;
mod state;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64, mpsc::Sender},
    thread::JoinHandle,
    time::Instant,
};

pub use builder::StoreBuilder;
use outcrop_catalog::Catalog;
use outcrop_engine::{Handle, Stats};
pub use outcrop_error::{Error, ErrorKind, Result};
use outcrop_format::Due;
use outcrop_layers::{Layer as _, Shelf};
pub use outcrop_parity::Code;
use outcrop_plan::{Interval, Timestamp};
pub use outcrop_ranks::{Alone, Ranks, SharedDirectory};
pub use outcrop_settings::{Compression, Dedup, Size};
pub use places::catalog_at;
pub use restore::{Restored, SavedRegion, Skipped};
pub use session::{RegionOptions, Session, Watch};
pub use state::Reached;

use builder::Settings;
use exchange::decode_all;

/// A store for checkpoints. A clone is another handle to the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) core: Arc<StoreCore>,
}

/// An open store. It is closed when its last handle is dropped.
pub(crate) struct StoreCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Mutex<Handle>,
    pub(crate) packer: Sender<pack::Job>,
    pub(crate) committer: Sender<commit::Note>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What the program, the packer and the committer share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) shelves: Vec<Arc<Shelf>>,
    pub(crate) ranks: Arc<dyn Ranks>,
    /// Who keeps what of lost nodes. Its layer is the last of the shelves.
    pub(crate) parity: Option<parity::Parity>,
    /// The largest size of a pack, chosen so that several fit into host memory at once.
    pub(crate) pack_bytes_max: u64,
    /// The engine's key for the next pack.
    pub(crate) next_key: AtomicU64,
    interval: Mutex<Option<Interval>>,
    start: Instant,
}

impl Store {
    /// Describes a new store: host memory, and directories, fastest first.
    pub fn builder() -> StoreBuilder {
        StoreBuilder::default()
    }

    /// Opens the session called `name`. With several ranks, all of them call it, in the same order.
    pub fn session(&self, name: &str) -> Result<Session> {
        Session::open(&self.core, name)
    }

    /// The names of the sessions in its directories.
    pub fn names(&self) -> Result<BTreeSet<String>> {
        let catalogs = self.core.shared.shelves.iter().map(|shelf| Catalog::new(Arc::clone(shelf.files())));
        let mut names = BTreeSet::new();
        for catalog in catalogs {
            names.extend(catalog.sessions()?);
        }
        Ok(names)
    }

    /// Whether it is time to save, by the rule of [interval](StoreBuilder::interval) and the cost
    /// of saves so far. Without a rule it never is. With several ranks, all of them call it, and
    /// all get the answer of rank 0.
    pub fn due(&self) -> Result<bool> {
        let is_due =
            self.core.shared.interval().as_ref().is_some_and(|interval| interval.due(self.core.shared.now()).is_some());
        let answers = self.core.shared.ranks.gather("due", &Due(is_due).encode())?;
        Ok(decode_all(&answers, Due::decode)?.first().is_some_and(|Due(is_due)| *is_due))
    }

    /// The best time between two saves, as far as is known now, for each directory. `None` without
    /// an interval.
    pub fn interval_seconds(&self) -> Vec<Option<f64>> {
        let interval = self.core.shared.interval();
        let of_layer = |layer| interval.as_ref()?.interval_ns(layer).map(|ns| ns as f64 / 1e9);
        (0..self.core.shared.shelves.len()).map(of_layer).collect()
    }

    /// Statistics of the engine so far. Its snapshots are packs here.
    pub fn stats(&self) -> Stats {
        self.core.handle().stats()
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directories = self.core.shared.shelves.iter().map(|shelf| shelf.name());
        f.debug_struct("Store").field("directories", &directories.collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl StoreCore {
    /// Locks the store's handle to the engine.
    pub(crate) fn handle(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    pub(crate) fn interval(&self) -> MutexGuard<'_, Option<Interval>> {
        self.interval.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Drop for StoreCore {
    fn drop(&mut self) {
        // This fails if the thread has ended already.
        let _ = self.packer.send(pack::Job::Close);
        let _ = self.committer.send(commit::Note::Close);
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The last handle may be dropped by one of these threads itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread of a store has panicked");
            }
        }
    }
}
