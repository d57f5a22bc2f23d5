//! A client: what it holds, and what it waits for.

use std::ops::Range;

use crate::event::{PieceId, Request};

/// A request that has no answer yet.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    /// Pieces with this number and higher ones came after it.
    pub(crate) mark: PieceId,
    /// What is asked of the system for it is under way.
    pub(crate) is_running: bool,
    /// Its key among those that wait for memory.
    pub(crate) tag: Option<(u64, u64)>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    pub(crate) process: u32,
    /// False if it was connected to a daemon that is dead, and has not come back yet.
    pub(crate) is_present: bool,
    pub(crate) granted: Vec<Range<u64>>,
    pub(crate) pinned: Vec<PieceId>,
    pub(crate) pending: Option<Pending>,
    /// Up to which virtual time it has been served.
    pub(crate) served_to: u64,
    /// Of its pieces that still have memory.
    pub(crate) filled_bytes: u64,
    pub(crate) granted_total_bytes: u64,
    pub(crate) filled_total_bytes: u64,
    pub(crate) drained_total_bytes: u64,
}

impl Client {
    /// Whether it waits for memory.
    pub(crate) fn is_asking(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.tag.is_some())
    }

    pub(crate) fn granted_bytes(&self) -> u64 {
        self.granted.iter().map(|range| range.end - range.start).sum()
    }

    /// Which of its grants contains `range`.
    pub(crate) fn find(&self, range: &Range<u64>) -> Option<usize> {
        self.granted.iter().position(|granted| granted.start <= range.start && range.end <= granted.end)
    }
}
