//! What the planner is told, and what it answers.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Nanoseconds since some start that the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// One snapshot, for as long as the planner lives; chosen by the caller, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SnapshotId(pub u64);

/// A layer of the stack: 0 is the front, larger is deeper.
pub type LayerIndex = usize;

/// Where a snapshot lies on a layer: one piece where there was room for one, else several.
pub type Extents = SmallVec<[Range<u64>; 1]>;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The program waits for room in the front for a new snapshot. `bytes` are as many as it will
    /// take there.
    RoomWanted {
        /// The new snapshot.
        id: SnapshotId,
        /// The program's name for it.
        key: u64,
        /// Its size, already rounded to the unit of the layers.
        bytes: u64,
        /// Whether the program waits while the slot is filled, and does nothing else meanwhile.
        is_copy: bool,
        /// Whether it gives way: it waits neither while others wait, nor for them.
        #[serde(default)]
        yields: bool,
    },
    /// A lent slot will be filled with fewer bytes than it has: the rest of it is free.
    Shortened {
        /// Which.
        id: SnapshotId,
        /// Its size, rounded to the unit of the layers.
        bytes: u64,
    },
    /// A lent slot has been filled: the snapshot exists from here on.
    Sealed {
        /// Which.
        id: SnapshotId,
        /// Whether the program goes on reading the slot, until `Released`.
        keep: bool,
    },
    /// A lent slot came back unfilled: there is no such snapshot.
    Abandoned(SnapshotId),
    /// The program waits to read a snapshot, and if `consume`, for the last time.
    Wanted {
        /// Which.
        id: SnapshotId,
        /// Whether the program will never ask for it again.
        consume: bool,
    },
    /// The program has given back what was handed to it.
    Released(SnapshotId),
    /// The program will not read this snapshot any more.
    Discarded(SnapshotId),
    /// A move has ended well.
    Moved {
        /// Which snapshot.
        id: SnapshotId,
        /// Where it was read.
        from: LayerIndex,
        /// Where it was written.
        to: LayerIndex,
    },
    /// A move has ended badly; the copy at `to` is void.
    Failed {
        /// Which snapshot.
        id: SnapshotId,
        /// Where it was read.
        from: LayerIndex,
        /// Where it was to be written.
        to: LayerIndex,
        /// What went wrong.
        fault: Fault,
    },
    /// The memory that was to be touched has been, or else there is no more.
    Touched {
        /// Where.
        layer: LayerIndex,
        /// Whether it is there now.
        is_done: bool,
    },
    /// The system has no more memory for a layer that can be used before it is touched: what is
    /// untouched must stay so.
    Exhausted {
        /// Where.
        layer: LayerIndex,
    },
    /// The memory that was to be pinned has been, or else it cannot be.
    Pinned {
        /// Where.
        layer: LayerIndex,
        /// Whether it is pinned now.
        is_done: bool,
    },
    /// So many bytes on a layer that keeps bytes do not belong to snapshots that the plan knows: it
    /// has forgotten them, or they were there before. They count against the limit until somebody
    /// removes them.
    Kept {
        /// Where.
        layer: LayerIndex,
        /// How many in all.
        bytes: u64,
    },
    /// So many handles of the program can ask for something; each waits for one thing at a time.
    Handles(u32),
    /// Time has passed.
    Tick,
}

/// What went wrong with a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The target's medium is full before its limit is reached: it gets no new places any more.
    TargetFull,
    /// The target cannot be written: nothing more is sent there.
    TargetBroken,
    /// The source cannot be read.
    SourceUnreadable,
    /// The source gave other bytes than were written.
    SourceDamaged,
}

/// What to do. Actions are to be carried out, or begun, in the order in which they come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Give the front's bytes from `at` to the program that wants room; answered by `Sealed` or
    /// `Abandoned`.
    Lend {
        /// Who gets it.
        id: SnapshotId,
        /// Where it starts.
        at: u64,
    },
    /// Copy a snapshot from one layer to another; answered by `Moved` or `Failed`.
    Move {
        /// Which.
        id: SnapshotId,
        /// Where it is.
        from: Site,
        /// Where it goes.
        to: Site,
        /// Why.
        purpose: Purpose,
    },
    /// Forget the copy on this layer, at once.
    Evict {
        /// Which snapshot.
        id: SnapshotId,
        /// Where.
        layer: LayerIndex,
    },
    /// Tell the program that a snapshot which had to reach a layer does not fit within that layer's
    /// limit, and is left out there.
    LeaveOut {
        /// Which.
        id: SnapshotId,
        /// Where.
        layer: LayerIndex,
    },
    /// Shift a snapshot inside the front down to `to`, at once; old and new place may overlap.
    Slide {
        /// Which.
        id: SnapshotId,
        /// Where it is.
        from: u64,
        /// Where it goes.
        to: u64,
    },
    /// Let the program read the snapshot in the front; answered by `Released`.
    Hand(SnapshotId),
    /// Tell the program that what it waits for cannot be had.
    Refuse {
        /// Which snapshot it waits for.
        id: SnapshotId,
        /// The reason.
        why: Refusal,
    },
    /// Have the system provide this piece of a layer's memory; answered by `Touched`.
    Touch {
        /// Where.
        layer: LayerIndex,
        /// Which bytes.
        range: Range<u64>,
    },
    /// Give this piece of a layer's memory, which is not in use, to others, at once; it may be
    /// touched again later.
    Release {
        /// Where.
        layer: LayerIndex,
        /// Which bytes.
        range: Range<u64>,
    },
    /// Pin all of a layer's memory, when it is this process's turn; answered by `Pinned`.
    Pin {
        /// Where.
        layer: LayerIndex,
    },
}

/// A snapshot's place on a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The layer.
    pub layer: LayerIndex,
    /// Where on it.
    pub extents: Extents,
}

/// Why something moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Down, to make room.
    Drain,
    /// Up, because it will be read.
    Prefetch,
    /// Up, because the program waits for it.
    Fetch,
}

/// Why something cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It is larger than the front.
    TooLarge,
    /// All layers are full, and nothing is under way or held that could make room.
    Full,
    /// What the program itself holds fills the front, and it does not give it back.
    Held,
    /// It gives way to others that wait, or would have to wait for them.
    GaveWay,
    /// It was discarded while the program waited for it.
    Gone,
    /// The only copy, on this layer, cannot be read.
    Unreadable(LayerIndex),
    /// The only copy, on this layer, has changed.
    Damaged(LayerIndex),
}
