//! Decides what moves where and when.
//!
//! The [`Planner`] is a state machine: [`handle`](Planner::handle) tells it what happened,
//! [`poll`](Planner::poll) gives what to do next, [`poll_timeout`](Planner::poll_timeout) when it
//! wants to be told that time has passed. It does no I/O, has no clock and no threads, so that
//! every decision can be tested in microseconds, replayed from a log, and simulated.
//!
//! One rule decides everything: *what is read soonest belongs at the top*. Snapshots sink, and are
//! evicted, farthest next read first; they come back up nearest next read first. For a reverse pass
//! that is the oldest down and the newest up, for a forward pass the opposite, and an explicit
//! schedule needs no rule of its own.
//!
//! Layer 0 is the *front*: host memory, where saves enter and from which reads are handed over.
//! There a snapshot lies in one piece; on the layers below it may lie in several, so that free
//! bytes are never useless there.

#![forbid(unsafe_code)]

mod decide;
mod estimate;
mod event;
mod interval;
mod memory;
mod merge;
mod order;
mod planner;
mod preference;
mod rates;
mod retention;
mod snapshot;
mod space;

pub use estimate::{Reason, Strategy};
pub use event::{Action, Event, Extents, Fault, LayerIndex, Purpose, Refusal, Site, SnapshotId, Timestamp};
pub use interval::{Interval, Rule};
pub use memory::{MemoryRates, MemorySettings, MemoryState, Pinning, Touching};
pub use merge::merge;
pub use order::Order;
pub use planner::{Counters, LAYERS_MAX, LayerSettings, Planner, Preference, Settings};
pub use preference::Preferred;
pub use rates::Busy;
pub use retention::Retention;
