//! Memory from the system.
//!
//! A [`Mapping`] is a piece of address space with one of several [`Backing`]s: anonymous memory,
//! chunks of a shared buffer, a memfd, a file, or a file on persistent memory (DAX). It hands out
//! raw addresses; its users decide who may write where. [`Private`] is the simple case: memory with
//! one owner, as a slice. [`Overlay`] is such memory that shows parts of a file, copy-on-write.
//! [`Maps`] describes the mappings of this process, [`limits`] how much memory it may still take,
//! [`pinned_by_others`] how much of it hardware may write to. [`Copier`] copies. [`Before`] is what
//! memory held before it was overwritten.

mod before;
mod copy;
mod error;
pub mod limits;
mod lines;
mod mapping;
mod maps;
mod overlay;
mod pinned;
mod private;

pub use before::{Before, Befores};
pub use copy::{Copier, SHARE_BYTES, SUMMED_BYTES, Share, copy_and_see, copy_and_sum};
pub use error::{Error, Result};
pub use limits::memory_left;
pub use mapping::{Backing, HUGE_PAGE, Kept, Mapping, Pages};
pub use maps::{Maps, Piece};
pub use overlay::Overlay;
pub use pinned::{Pinned, pinned_by_others};
pub use private::Private;

/// The access that a mapping, or a piece of this process's memory, allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
}

/// The page size of this system.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}
