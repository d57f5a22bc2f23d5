//! Memory from the system.
//!
//! A [`Mapping`] is a piece of address space with one of several [`Backing`]s behind it: anonymous
//! memory, chunks of a shared buffer, a memfd, a file, or a file on persistent memory (DAX). It
//! hands out raw addresses; who uses it decides who may write where. [`Private`] is the simple
//! case, memory with one owner, as a slice. [`Maps`] tells what lies where in this process,
//! [`limits`] how much memory it may still take, [`pinned_by_others`] how much of it hardware may
//! write to, and [`Copier`] copies.

mod copy;
mod error;
pub mod limits;
mod lines;
mod mapping;
mod maps;
mod pinned;
mod private;

pub use copy::Copier;
pub use error::{Error, Result};
pub use limits::memory_left;
pub use mapping::{Backing, HUGE_PAGE, Kept, Mapping, Pages};
pub use maps::{Maps, Piece};
pub use pinned::{Pinned, pinned_by_others};
pub use private::Private;

/// What a mapping, or a piece of this process's memory, may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only for reading.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// The length of a page of this system.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}
