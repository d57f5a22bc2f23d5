//! Dirty tracking, block hashes, and copy-on-write images of live memory.
//!
//! A [`Tracker`] watches named regions of the program's memory, and reports which bytes may have
//! changed since the last call. A [`Hasher`] hashes memory block by block: a written block whose
//! hash is the same has not changed. [`freeze`] makes an image of memory as it is now
//! (copy-on-write), while the program continues to write.

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
mod received;
mod tracker;
mod userfault;

pub use error::{Error, Result};
pub use freeze::{FreezeOptions, FreezeWay, Frozen, freeze, image_bytes};
pub use hash::{ChosenHasher, CpuHasher, HashRate, Hasher, hasher_on};
pub use outcrop_format::{Hash, HashKind};
pub use tracker::{Changes, TrackOptions, TrackStats, Tracker, Way};
