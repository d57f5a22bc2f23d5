//! A file of which bytes are cached, and the pieces that hold them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use outcrop_format::{NodeFailure, NodePart};

use crate::event::{ClientId, JobId, PieceId, Timestamp};

/// A range of a file whose newest bytes a piece holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) end: u64,
    pub(crate) piece: PieceId,
    /// The drain that writes it.
    pub(crate) job: Option<JobId>,
}

/// What was filled at once, at most [`PIECE_BYTES_MAX`](outcrop_format::PIECE_BYTES_MAX) of it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) file: u64,
    pub(crate) client: ClientId,
    pub(crate) part: NodePart,
    pub(crate) sum: u64,
    /// The number of the oldest piece that it has replaced before that was drained, or its own: who
    /// waits for that one waits for this one.
    pub(crate) since: PieceId,
    /// How many extents of the view it has, and how many of them no drain writes.
    pub(crate) extents: u32,
    pub(crate) idle: u32,
    /// How many drains and readers use it.
    pub(crate) jobs: u32,
    pub(crate) pins: u32,
}

impl Piece {
    pub(crate) fn memory(&self) -> Range<u64> {
        self.part.at..self.part.at + self.part.bytes
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.extents > 0 || self.jobs > 0 || self.pins > 0
    }
}

/// A drain under way.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) file: u64,
    pub(crate) range: Range<u64>,
    /// Pieces with this number and higher ones are not part of it.
    pub(crate) before: PieceId,
    /// The oldest that it writes.
    pub(crate) since: PieceId,
    pub(crate) pieces: Vec<PieceId>,
}

/// The file is to be cut off or extended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) bytes: u64,
    pub(crate) is_running: bool,
}

/// Draining fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failing {
    pub(crate) errno: u32,
    pub(crate) retry_at: Timestamp,
    pub(crate) pause_ns: u64,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct File {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) path: Vec<u8>,
    /// Whether the journal knows it.
    pub(crate) is_journaled: bool,
    /// Whether it is open in this daemon.
    pub(crate) is_reached: bool,
    /// How many processes use it.
    pub(crate) users: u32,
    pub(crate) view: BTreeMap<u64, Extent>,
    /// Pieces with something to drain that no drain writes, oldest first.
    pub(crate) dirty: BTreeSet<(PieceId, PieceId)>,
    pub(crate) jobs: Vec<JobId>,
    pub(crate) cut: Option<Cut>,
    pub(crate) accessed_ns: Option<i64>,
    pub(crate) modified_ns: Option<i64>,
    /// The times that are being set.
    pub(crate) settling: Option<(Option<i64>, Option<i64>)>,
    pub(crate) is_marked: bool,
    pub(crate) mark_at: Option<Timestamp>,
    pub(crate) failing: Option<Failing>,
    pub(crate) failure: NodeFailure,
    /// Clients whose requests wait for this file, in the order of arrival.
    pub(crate) waiting: Vec<ClientId>,
    /// Its key in the queue of files to drain.
    pub(crate) queued: Option<PieceId>,
}

impl File {
    /// Nothing is cached, and nothing is being written.
    pub(crate) fn is_clean(&self) -> bool {
        self.view.is_empty() && self.jobs.is_empty()
    }

    /// Everything is as it shall be on the file system.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_clean() && self.cut.is_none() && self.settling.is_none() && !self.needs_settling()
    }

    pub(crate) fn needs_settling(&self) -> bool {
        self.accessed_ns.is_some() || self.modified_ns.is_some() || self.is_marked
    }

    /// Whether a drain may start.
    pub(crate) fn may_drain(&self) -> bool {
        self.is_reached
            && self.failing.is_none()
            && self.cut.is_none()
            && self.settling.is_none()
            && !self.dirty.is_empty()
    }

    /// The end of what is cached.
    pub(crate) fn end(&self) -> u64 {
        self.view.last_key_value().map_or(0, |(_, extent)| extent.end)
    }

    /// The extents that overlap `range`, in ascending order.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Vec<(u64, Extent)> {
        let before = self.view.range(..range.start).next_back().filter(|(_, extent)| extent.end > range.start);
        let inside = self.view.range(range.start..range.end.max(range.start));
        before.into_iter().chain(inside).map(|(start, extent)| (*start, *extent)).collect()
    }
}
