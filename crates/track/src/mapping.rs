//! Memory of our own, straight from the system: apart from the allocator's, and not there until it is written to.

use std::{
    io,
    ops::{Deref, DerefMut},
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Zeroed memory of whole pages.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that nobody else knows of.
unsafe impl Send for Mapping {}

impl Mapping {
    /// At least `bytes`, and at least a page.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(crate::ranges::page_bytes());
        let (rights, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, of which nobody else knows.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, kind) }?;
        Ok(Self { start: start.cast(), bytes })
    }

    /// Never to be given back.
    pub(crate) fn leak(self) -> &'static mut [u8] {
        let kept = std::mem::ManuallyDrop::new(self);
        // SAFETY: as in `deref_mut`, and its owner is gone.
        unsafe { std::slice::from_raw_parts_mut(kept.start, kept.bytes) }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped, readable, and zeroed at first.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and borrowed from its owner.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
