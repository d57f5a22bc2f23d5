//! What the planner knows of one snapshot.

use smallvec::SmallVec;

use crate::{Extents, LayerIndex, Refusal, Timestamp, memory::Begun, order::Position};

/// One saved state and its copies.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    pub(crate) position: Position,
    pub(crate) phase: Phase,
    /// The program waits while it is filled.
    pub(crate) is_copy: bool,
    /// While it waits for room, it gives way to others.
    pub(crate) yields: bool,
    pub(crate) copies: SmallVec<[Copy; 2]>,
    /// Layers that it has to reach, whether there is a reason to leave the front or not. One bit
    /// per layer.
    pub(crate) persists_on: u32,
    /// Hand-overs that the program has not given back.
    pub(crate) holders: u32,
    /// Reads that wait for it.
    pub(crate) wants: u32,
    /// The program has asked to consume it, so that nobody else can.
    pub(crate) is_claimed: bool,
    /// Reads of the only copy that failed in a row.
    pub(crate) read_faults: u32,
    /// Why it cannot be read, once that is certain.
    pub(crate) lost: Option<Refusal>,
}

/// Where a snapshot is in its life.
#[derive(Debug, Clone, std::marker::Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The program waits for room or fills its slot.
    Lent,
    /// Saved, and not consumed.
    Live,
    /// Its bytes are needed only by who holds them.
    Consumed,
}

/// The bytes of a snapshot on one layer.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) layer: LayerIndex,
    pub(crate) extents: Extents,
    /// Still on its way here.
    pub(crate) is_arriving: bool,
    /// Moves that read this copy.
    pub(crate) readers: u32,
    /// When it began to be written.
    pub(crate) since: Timestamp,
    /// How, if the layer is memory.
    pub(crate) begun: Begun,
}

/// What follows from a snapshot's state: the sets that it belongs to. One bit per layer in the
/// masks.
#[derive(Debug, Clone, std::marker::Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The program can ask for it.
    pub(crate) is_live: bool,
    /// Layers where it is, with no copy deeper down: it may be drained from there.
    pub(crate) dirty: u32,
    /// Layers where it is, idle, with a copy deeper down: it may be evicted there.
    pub(crate) clean: u32,
    /// The topmost layer where it is or will be, if it may be prefetched from there.
    pub(crate) top: Option<LayerIndex>,
    /// It lies in the front, and could not leave it without room elsewhere.
    pub(crate) is_stuck: bool,
    /// It lies below the front only.
    pub(crate) is_below: bool,
    /// Layers that it has to reach and is not even on its way to.
    pub(crate) missing: u32,
}

impl Snapshot {
    pub(crate) fn new(key: u64, bytes: u64, is_copy: bool, yields: bool, persists_on: u32) -> Self {
        Self {
            key,
            bytes,
            position: 0,
            phase: Phase::Lent,
            is_copy,
            yields,
            copies: SmallVec::new(),
            persists_on,
            holders: 0,
            wants: 0,
            is_claimed: false,
            read_faults: 0,
            lost: None,
        }
    }

    pub(crate) fn copy(&self, layer: LayerIndex) -> Option<&Copy> {
        self.copies.iter().find(|copy| copy.layer == layer)
    }

    pub(crate) fn copy_mut(&mut self, layer: LayerIndex) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|copy| copy.layer == layer)
    }

    pub(crate) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        let in_front = self.copy(0);
        let deepest_complete = self.copies.iter().filter(|copy| !copy.is_arriving).map(|copy| copy.layer).max();
        standing.is_stuck = in_front.is_some_and(|copy| !copy.is_arriving) && deepest_complete == Some(0);
        if self.phase != Phase::Live {
            return standing;
        }
        standing.is_live = !self.is_claimed;
        let copies = self.copies.iter().fold(0, |mask, copy| mask | 1 << copy.layer);
        standing.missing = if self.lost.is_none() { self.persists_on & !copies } else { 0 };
        standing.is_below = in_front.is_none();
        let deepest = self.copies.iter().map(|copy| copy.layer).max();
        for copy in self.copies.iter().filter(|copy| !copy.is_arriving) {
            let is_used = copy.readers > 0 || (copy.layer == 0 && (self.holders > 0 || self.wants > 0));
            if deepest == Some(copy.layer) && self.lost.is_none() {
                standing.dirty |= 1 << copy.layer;
            } else if deepest_complete > Some(copy.layer) && !is_used {
                standing.clean |= 1 << copy.layer;
            }
        }
        if self.lost.is_none() && !self.is_claimed {
            standing.top = self.copies.iter().map(|copy| copy.layer).min();
        }
        standing
    }
}
