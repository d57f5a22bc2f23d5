//! What is open of a regular file, and where its bytes go.
//!
//! At any time all descriptors of a file take one way: either the kernel passes their reads and
//! writes to the real file, or they all come here and see the cache. The kernel cannot mix the two.

use std::{fs::File, sync::Arc, time::SystemTime};

use fuser::BackingId;
use outcrop_node::Cached;

/// What is open of a regular file.
#[derive(Default)]
pub(super) struct Content {
    /// Open descriptors of programs, and those of them that can write.
    pub(super) handles: u32,
    pub(super) writers: u32,
    pub(super) bytes: Bytes,
    /// Something was written since the cache last said that it holds nothing. Asking it costs a
    /// message to the daemon.
    pub(super) is_dirty: bool,
    /// The times that `stat` shows while bytes are cached.
    pub(super) times: Times,
}

/// Where reads and writes go.
#[derive(Default)]
pub(super) enum Bytes {
    /// Nothing is open and nothing is cached.
    #[default]
    Idle,
    /// To the cache.
    Cached(Arc<dyn Cached>),
    /// To the file.
    Real(Real),
}

/// A file whose bytes are not cached.
#[derive(Clone, Default)]
pub(super) struct Real {
    /// The kernel passes reads and writes on by itself.
    pub(super) backing: Option<Arc<BackingId>>,
    /// Opened when a request needs it.
    pub(super) file: Option<Arc<File>>,
}

/// Times that the real file will have once it is drained.
#[derive(Default, Clone, Copy)]
pub(super) struct Times {
    pub(super) accessed: Option<SystemTime>,
    pub(super) modified: Option<SystemTime>,
    /// The cache was not told of the time of the last write.
    pub(super) is_news: bool,
}

impl Content {
    /// The cache of the file, if it has one.
    pub(super) fn cached(&self) -> Option<Arc<dyn Cached>> {
        match &self.bytes {
            Bytes::Cached(cached) => Some(cached.clone()),
            _ => None,
        }
    }

    /// The cache of the file, if it may hold bytes that the file does not have.
    pub(super) fn dirty(&self) -> Option<Arc<dyn Cached>> {
        self.cached().filter(|_| self.is_dirty)
    }

    /// The cache of the file, if it holds bytes that the file does not have.
    pub(super) fn undrained(&mut self) -> Option<Arc<dyn Cached>> {
        self.is_dirty = self.dirty().is_some_and(|cached| !cached.is_clean());
        self.dirty()
    }

    /// Lets go of a cache that nobody uses and that holds nothing. Returns whether nothing is open
    /// and nothing cached.
    pub(super) fn settle(&mut self) -> bool {
        if self.handles == 0 && self.undrained().is_none() {
            self.bytes = Bytes::Idle;
            self.times = Times::default();
        }
        matches!(self.bytes, Bytes::Idle)
    }
}
