//! What changed in live memory, and what it held.
//!
//! A [`Tracker`] watches named regions of the program's memory and says which bytes may have
//! changed since the last look. A [`Hasher`] hashes memory block by block, so that bytes that were
//! written with equal values can be told from those that changed. [`freeze`] keeps an image of
//! memory as it is at one moment, while the program goes on writing to it.

mod control;
mod error;
mod estimate;
mod freeze;
mod hash;
mod overlaps;
mod pagemap;
mod pages;
mod process;
mod protection;
mod ranges;
mod tracker;
mod userfault;

pub use error::{Error, Result};
pub use freeze::{FreezeOptions, FreezeWay, Frozen, freeze, image_bytes};
pub use hash::{CpuHasher, Hasher};
pub use outcrop_format::{Hash, HashKind};
pub use tracker::{Changes, TrackOptions, TrackStats, Tracker, Way};
