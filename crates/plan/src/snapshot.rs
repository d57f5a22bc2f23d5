//! The planner's record of one snapshot.

use smallvec::SmallVec;

use crate::{Extents, LayerIndex, Refusal, Timestamp, memory::Begun, order::Position};

/// One saved state and its copies.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    pub(crate) position: Position,
    pub(crate) phase: Phase,
    /// The program copies into the slot, and waits until that is done.
    pub(crate) is_copy: bool,
    /// The save yields: it does not wait for room while others wait.
    pub(crate) yields: bool,
    pub(crate) copies: SmallVec<[Copy; 2]>,
    /// Layers that it has to reach, even if nothing else needs the room in the front. One bit per
    /// layer.
    pub(crate) persists_on: u32,
    /// How many times the program holds it.
    pub(crate) holders: u32,
    /// How many reads wait for it.
    pub(crate) wants: u32,
    /// A waiting read will consume it, so no other read may.
    pub(crate) is_claimed: bool,
    /// Consecutive failed reads of the only copy.
    pub(crate) read_faults: u32,
    /// Why it cannot be read, once its last copy has been given up.
    pub(crate) lost: Option<Refusal>,
}

/// The stages of a snapshot's life.
#[derive(Debug, Clone, std::marker::Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The program waits for room, or is filling the slot.
    Lent,
    /// Saved, and not consumed.
    Live,
    /// Consumed or discarded: only those that still hold it need the bytes.
    Consumed,
}

/// The copy of a snapshot on one layer.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) layer: LayerIndex,
    pub(crate) extents: Extents,
    /// The move to this layer has not ended.
    pub(crate) is_arriving: bool,
    /// Moves that read this copy.
    pub(crate) readers: u32,
    /// When the program or a move began to write it.
    pub(crate) since: Timestamp,
    /// The state of the layer's memory at that time, if it is memory.
    pub(crate) begun: Begun,
}

/// The sets that a snapshot belongs to, derived from its state. Masks have one bit per layer.
#[derive(Debug, Clone, std::marker::Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The program can read it.
    pub(crate) is_live: bool,
    /// Layers with a copy, where no deeper layer has one: it may be drained from there.
    pub(crate) dirty: u32,
    /// Layers with an idle copy, where a deeper layer has one too: it may be evicted there.
    pub(crate) clean: u32,
    /// The topmost layer that has it or will have it, if it may be prefetched from there.
    pub(crate) top: Option<LayerIndex>,
    /// It is in the front, and leaving it would need room on another layer.
    pub(crate) is_stuck: bool,
    /// It is only below the front.
    pub(crate) is_below: bool,
    /// Layers that it has to reach, and to which no move has begun.
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
