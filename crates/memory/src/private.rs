//! Anonymous memory with one owner, as a slice, outside of the allocator's memory.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
};

use crate::{Mapping, Pages, Result};

/// Zeroed memory that nobody else can access. The system provides it when it is written or touched.
pub struct Private(Mapping);

impl Private {
    /// At least `bytes`, rounded up to whole pages, and at least one page.
    pub fn new(bytes: usize, pages: Pages) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(crate::page_bytes());
        Ok(Self(Mapping::anonymous(bytes as u64, pages)?))
    }

    /// The mapping behind it, for touching (pre-faulting) and pinning. While the slice is in use,
    /// nobody may write through the mapping's addresses.
    pub fn mapping(&self) -> &Mapping {
        &self.0
    }

    /// Keeps the memory until the process ends.
    pub fn leak(self) -> &'static mut [u8] {
        let kept = ManuallyDrop::new(self);
        // SAFETY: as in `deref_mut`; the owner is gone, and the memory is never unmapped.
        unsafe { std::slice::from_raw_parts_mut(kept.0.address(0), kept.0.bytes() as usize) }
    }
}

impl Deref for Private {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all of it is mapped and readable for as long as it lives, zeroed at first, and
        // only changed through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.address(0), self.0.bytes() as usize) }
    }
}

impl DerefMut for Private {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and borrowed from its only owner.
        unsafe { std::slice::from_raw_parts_mut(self.0.address(0), self.0.bytes() as usize) }
    }
}

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Private({} bytes)", self.len())
    }
}
