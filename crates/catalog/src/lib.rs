//! Reads stores.
//!
//! A [`Catalog`] lists the sessions and versions of a directory. A [`Reader`] reads a version of
//! one rank, and verifies every byte. [`verify`] checks everything in a store, [`diff`] compares
//! two versions, and a [`Removal`] removes versions and files that nobody needs any more. Nothing
//! else in this crate writes.

#![forbid(unsafe_code)]

mod boxes;
mod buffer;
mod catalog;
mod copies;
mod diff;
mod error;
mod fetch;
mod listing;
mod open;
mod pack;
mod reader;
mod removal;
mod shards;
mod verify;

pub use boxes::Scattered;
pub use catalog::{Catalog, Holding, Sessions, Usage, Version};
pub use copies::Copies;
pub use diff::{Change, RegionDiff, diff};
pub use error::{Error, Result};
pub use reader::{BEFORE_BYTES_MAX, Reader};
pub use removal::{Removal, lock_session};
pub use verify::{Finding, FindingKind, Harm, Verified, verify};
