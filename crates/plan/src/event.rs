//! The planner's input (events) and output (actions).

use std::ops::Range;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Nanoseconds since a start that the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

/// Identifies one snapshot. The caller chooses it, and never uses it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct SnapshotId(pub u64);

/// A layer of the stack: 0 is the front, larger is deeper.
pub type LayerIndex = usize;

/// Where a snapshot lies on a layer: in one piece if there was room for that, otherwise in several.
pub type Extents = SmallVec<[Range<u64>; 1]>;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The program waits for room in the front for a new snapshot.
    RoomWanted {
        /// The new snapshot.
        id: SnapshotId,
        /// The program's name for it.
        key: u64,
        /// Its size in the front, rounded up to the alignment of the layers.
        bytes: u64,
        /// Whether the program only copies into the slot, and waits until that is done.
        is_copy: bool,
        /// Whether it yields: it is refused instead of waiting while others wait.
        #[serde(default)]
        yields: bool,
    },
    /// A lent slot will be filled with fewer bytes than it has: the rest becomes free.
    Shortened {
        /// Which.
        id: SnapshotId,
        /// Its new size, rounded up to the alignment of the layers.
        bytes: u64,
    },
    /// A lent slot has been filled: the snapshot exists from now on.
    Sealed {
        /// Which.
        id: SnapshotId,
        /// Whether the program continues to read the slot, until `Released`.
        keep: bool,
    },
    /// A lent slot was given back unfilled: the snapshot does not exist.
    Abandoned(SnapshotId),
    /// The program waits to read a snapshot.
    Wanted {
        /// Which.
        id: SnapshotId,
        /// Whether this is the last read of it.
        consume: bool,
    },
    /// Who waited for room for a snapshot, or wanted it, does not any more; nothing answers this.
    Withdrawn {
        /// Which.
        id: SnapshotId,
        /// What the `Wanted` had said; false for room.
        consume: bool,
    },
    /// The program has given back a snapshot that was handed over.
    Released(SnapshotId),
    /// The program will not read this snapshot any more.
    Discarded(SnapshotId),
    /// A move has succeeded.
    Moved {
        /// Which snapshot.
        id: SnapshotId,
        /// Where it was read.
        from: LayerIndex,
        /// Where it was written.
        to: LayerIndex,
    },
    /// A move has failed; the copy at `to` is invalid.
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
    /// Touching has ended.
    Touched {
        /// Where.
        layer: LayerIndex,
        /// Whether the memory is touched now. If not, the system has no more.
        is_done: bool,
    },
    /// The system has no more memory for a layer that can be used before it is touched: the
    /// untouched part must not be used.
    Exhausted {
        /// Where.
        layer: LayerIndex,
    },
    /// Pinning has ended.
    Pinned {
        /// Where.
        layer: LayerIndex,
        /// Whether the memory is pinned now. If not, the system has refused it.
        is_done: bool,
    },
    /// How many bytes on a layer that keeps bytes belong to no snapshot that the plan knows: the
    /// plan has forgotten the snapshot, or the bytes were there before. They count against the
    /// limit until their owner removes them.
    Kept {
        /// Where.
        layer: LayerIndex,
        /// The new total.
        bytes: u64,
    },
    /// How many handles the program has. Each of them waits for at most one thing at a time.
    Handles(u32),
    /// Time has passed: see `poll_timeout`.
    Tick,
}

/// Why a move failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The target has no space left, although its limit is not reached: it gets no new extents.
    TargetFull,
    /// The target cannot be written: no more moves go there.
    TargetBroken,
    /// The source cannot be read.
    SourceUnreadable,
    /// The source returned other bytes than were written.
    SourceDamaged,
}

/// What to do. Carry actions out, or begin them, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Lend the front's bytes from `at` to the save that waits for room. Answered by `Sealed` or
    /// `Abandoned`.
    Lend {
        /// The new snapshot.
        id: SnapshotId,
        /// Where it starts.
        at: u64,
    },
    /// Copy a snapshot from one layer to another. Answered by `Moved` or `Failed`.
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
    /// Forget the copy on this layer, immediately.
    Evict {
        /// Which snapshot.
        id: SnapshotId,
        /// Where.
        layer: LayerIndex,
    },
    /// Tell the program that a snapshot that had to reach a layer does not fit within that layer's
    /// limit, and will not be there.
    LeaveOut {
        /// Which.
        id: SnapshotId,
        /// Where.
        layer: LayerIndex,
    },
    /// Move a snapshot inside the front down to `to`, immediately. The old and the new place may
    /// overlap.
    Slide {
        /// Which.
        id: SnapshotId,
        /// Where it is.
        from: u64,
        /// Where it goes.
        to: u64,
    },
    /// Let the program read the snapshot in the front. Answered by `Released`.
    Hand {
        /// Which.
        id: SnapshotId,
        /// What the `Wanted` had said: several reads may wait for one snapshot.
        consume: bool,
    },
    /// Tell the program that a save or read that waits has failed.
    Refuse {
        /// The snapshot that it waits for.
        id: SnapshotId,
        /// What the `Wanted` had said; false for room.
        consume: bool,
        /// The reason.
        why: Refusal,
    },
    /// Touch (pre-fault) this piece of a layer's memory. Answered by `Touched`.
    Touch {
        /// Where.
        layer: LayerIndex,
        /// Which bytes.
        range: Range<u64>,
    },
    /// Give this unused piece of a layer's memory back to the other processes that share it,
    /// immediately. It may be touched again later.
    Release {
        /// Where.
        layer: LayerIndex,
        /// Which bytes.
        range: Range<u64>,
    },
    /// Pin all of a layer's memory, when it is this process's turn. Answered by `Pinned`.
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
    /// Up, because it will be read soon.
    Prefetch,
    /// Up, because the program waits for it.
    Fetch,
}

/// Why a save or read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It is larger than the front.
    TooLarge,
    /// All layers are full, and no move and no held slot could make room.
    Full,
    /// Slots that the program holds fill the front, and it has not given them back in time.
    Held,
    /// It yields, and would have to wait for others.
    GaveWay,
    /// The snapshot was discarded while the program waited for it.
    Gone,
    /// The only copy, on this layer, cannot be read.
    Unreadable(LayerIndex),
    /// The only copy, on this layer, is corrupt.
    Damaged(LayerIndex),
}
