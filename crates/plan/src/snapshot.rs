//! The planner's record of one snapshot.

use std::ops::Range;

use smallvec::SmallVec;

use crate::{LayerIndex, Refusal, Timestamp, memory::Begun, order::Position};

/// One saved state and its copies. There may be millions: what only some of them need at a time is
/// kept elsewhere.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) key: u64,
    pub(crate) bytes: u64,
    pub(crate) position: Position,
    pub(crate) phase: Phase,
    pub(crate) copies: SmallVec<[Copy; 1]>,
    /// Layers that it has to reach, even if nothing else needs the room in the front. One bit per
    /// layer.
    pub(crate) persists_on: u16,
    /// How many times the program holds it.
    pub(crate) holders: u32,
    /// How many reads wait for it.
    pub(crate) wants: u32,
    /// A waiting read will consume it, so no other read may.
    pub(crate) is_claimed: bool,
    /// Consecutive failed reads of the only copy.
    pub(crate) read_faults: u8,
    /// Why it cannot be read, once its last copy has been given up.
    pub(crate) lost: Option<Loss>,
}

/// The stages of a snapshot's life.
#[derive(Debug, Clone, std::marker::Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The program waits for room, or is filling the slot.
    Lent {
        /// It copies into the slot, and waits until that is done.
        is_copy: bool,
        /// The save yields: it does not wait for room while others wait.
        yields: bool,
    },
    /// Saved, and not consumed.
    Live,
    /// Consumed or discarded: only those that still hold it need the bytes.
    Consumed,
}

/// Why a snapshot cannot be read, and the layer of the copy that was given up.
#[derive(Debug, Clone, std::marker::Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Unreadable(u8),
    Damaged(u8),
}

impl From<Loss> for Refusal {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Unreadable(layer) => Self::Unreadable(layer.into()),
            Loss::Damaged(layer) => Self::Damaged(layer.into()),
        }
    }
}

/// The copy of a snapshot on one layer.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    /// Where it begins. It is as long as the snapshot, unless it is in pieces.
    pub(crate) start: u64,
    layer: u8,
    /// It lies in several pieces: see `Planner::pieces`.
    pub(crate) is_split: bool,
    /// The move to this layer has not ended.
    pub(crate) is_arriving: bool,
    /// Moves that read this copy.
    pub(crate) readers: u8,
}

/// What is known of a copy that is being written.
#[derive(Debug, Clone, std::marker::Copy)]
pub(crate) struct Filling {
    /// When the program or a move began to write it.
    pub(crate) since: Timestamp,
    /// The state of the layer's memory at that time, if it is memory.
    pub(crate) begun: Begun,
}

impl Copy {
    pub(crate) fn new(layer: LayerIndex, start: u64, is_split: bool, is_arriving: bool) -> Self {
        let layer = u8::try_from(layer).expect("a stack has few layers");
        Self { start, layer, is_split, is_arriving, readers: 0 }
    }

    pub(crate) fn layer(&self) -> LayerIndex {
        self.layer.into()
    }
}

/// The sets that a snapshot belongs to, derived from its state. Masks have one bit per layer.
#[derive(Debug, Clone, std::marker::Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Layers with a copy, where no deeper layer has one: it may be drained from there.
    pub(crate) dirty: u16,
    /// Layers with an idle copy, where a deeper layer has one too: it may be evicted there.
    pub(crate) clean: u16,
    /// The topmost layer that has it or will have it, if it may be read from there.
    pub(crate) top: Option<LayerIndex>,
    /// The program can ask for it, although it has been lost.
    pub(crate) is_lost: bool,
    /// It is in the front, and leaving it would need room on another layer.
    pub(crate) is_stuck: bool,
    /// It is only below the front.
    pub(crate) is_below: bool,
    /// Layers that it has to reach, and to which no move has begun.
    pub(crate) missing: u16,
}

impl Standing {
    /// Without the sets that nobody looks for it in, on a stack whose last layer is `last`.
    pub(crate) fn in_sets(mut self, last: LayerIndex) -> Self {
        // Nothing sinks from the last layer.
        self.dirty &= !(1 << last);
        self.top = self.top.filter(|&top| top > 0 || (self.dirty | self.clean) & 1 == 0);
        self
    }
}

impl Snapshot {
    pub(crate) fn new(key: u64, bytes: u64, is_copy: bool, yields: bool, persists_on: u16) -> Self {
        Self {
            key,
            bytes,
            position: 0,
            phase: Phase::Lent { is_copy, yields },
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
        self.copies.iter().find(|copy| copy.layer() == layer)
    }

    pub(crate) fn copy_mut(&mut self, layer: LayerIndex) -> Option<&mut Copy> {
        self.copies.iter_mut().find(|copy| copy.layer() == layer)
    }

    /// Whether the program can ask for it.
    pub(crate) fn is_live(&self) -> bool {
        self.phase == Phase::Live && !self.is_claimed
    }

    /// Whether it is a save that does not wait for room while others wait.
    pub(crate) fn yields(&self) -> bool {
        matches!(self.phase, Phase::Lent { yields: true, .. })
    }

    /// Where it lies in the front, if it does.
    pub(crate) fn range_in_front(&self) -> Option<Range<u64>> {
        self.copy(0).map(|copy| copy.start..copy.start + self.bytes)
    }

    pub(crate) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        let in_front = self.copy(0);
        let deepest_complete = self.copies.iter().filter(|copy| !copy.is_arriving).map(Copy::layer).max();
        standing.is_stuck = in_front.is_some_and(|copy| !copy.is_arriving) && deepest_complete == Some(0);
        if self.phase != Phase::Live {
            return standing;
        }
        let copies = self.copies.iter().fold(0, |mask, copy| mask | 1 << copy.layer());
        standing.missing = if self.lost.is_none() { self.persists_on & !copies } else { 0 };
        standing.is_below = in_front.is_none();
        let deepest = self.copies.iter().map(Copy::layer).max();
        for copy in self.copies.iter().filter(|copy| !copy.is_arriving) {
            let layer = copy.layer();
            let is_used = copy.readers > 0 || (layer == 0 && (self.holders > 0 || self.wants > 0));
            if deepest == Some(layer) && self.lost.is_none() {
                standing.dirty |= 1 << layer;
            } else if deepest_complete > Some(layer) && !is_used {
                standing.clean |= 1 << layer;
            }
        }
        if self.is_live() {
            standing.is_lost = self.lost.is_some();
            standing.top = self.copies.iter().map(Copy::layer).min().filter(|_| !standing.is_lost);
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_takes_little_memory() {
        assert!(size_of::<Snapshot>() <= 64, "{} bytes", size_of::<Snapshot>());
    }
}
