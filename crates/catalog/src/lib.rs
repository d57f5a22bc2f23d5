//! Reads what directories that survive hold.
//!
//! A [`Catalog`] lists the sessions and versions of a directory. A [`Reader`] puts a version of one
//! rank together and lets no byte pass that is not what was saved. [`verify`] looks at every byte
//! of everything, [`diff`] tells what changed between two versions, and a [`Removal`] takes out
//! versions and what nobody needs any more. Nothing else in here writes.

#![forbid(unsafe_code)]

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
mod verify;

pub use catalog::{Catalog, Holding, Sessions, Usage, Version};
pub use copies::Copies;
pub use diff::{Change, RegionDiff, diff};
pub use error::{Error, Result};
pub use reader::Reader;
pub use removal::{Removal, lock_session};
pub use verify::{Finding, FindingKind, Harm, Verified, verify};
