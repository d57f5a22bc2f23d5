//! Decides what moves where and when.
//!
//! The [`Planner`] is a state machine. [`handle`](Planner::handle) tells it what happened,
//! [`poll`](Planner::poll) returns what to do next, and [`poll_timeout`](Planner::poll_timeout)
//! returns when to call it again if nothing happens. It has no I/O, clock or threads. So every
//! decision can be tested in microseconds, replayed from a log, and simulated.
//!
//! One rule decides everything: *what is read soonest belongs at the top*. Snapshots sink, and are
//! evicted, farthest next read first. They come back up nearest next read first. In a reverse pass
//! the oldest sink and the newest come up; in a forward pass it is the opposite; an explicit
//! schedule needs no rule of its own.
//!
//! Layer 0 is the *front*: device or host memory, where saves enter and from which reads are handed
//! over. There a snapshot lies in one piece. On the layers below it may lie in several, so every
//! free byte is usable there.

#![forbid(unsafe_code)]

mod decide;
mod estimate;
mod event;
mod interval;
mod memory;
mod merge;
mod order;
mod packed;
mod planner;
mod preference;
mod rates;
mod retention;
mod sets;
mod snapshot;
mod space;

pub use estimate::{Reason, Strategy};
pub use event::{Action, Event, Extents, Fault, LayerIndex, Purpose, Refusal, Site, SnapshotId, Timestamp};
pub use interval::{Interval, Rule};
pub use memory::{MemoryRates, MemorySettings, MemoryState, Pinning, Touching};
pub use merge::merge;
pub use order::Order;
pub use packed::Packed;
pub use planner::{Counters, LAYERS_MAX, LayerSettings, Planner, Preference, Settings};
pub use preference::Preferred;
pub use rates::Busy;
pub use retention::Retention;
