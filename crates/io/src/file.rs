//! A file for transfers.

use std::{
    io,
    num::NonZeroU64,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Advice, OFlags, fadvise, fcntl_getfl, fdatasync},
    io::retry_on_intr,
};

/// With O_DIRECT, the address, offset and length of a transfer must be multiples of this. Some
/// media need less, and no common medium needs more.
pub const ALIGN: u64 = 4096;

/// An open file.
#[derive(Debug)]
pub struct File {
    descriptor: OwnedFd,
    is_direct: bool,
}

impl File {
    /// The file behind an open descriptor.
    pub fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let is_direct = fcntl_getfl(&descriptor)?.contains(OFlags::DIRECT);
        Ok(Self { descriptor, is_direct })
    }

    /// Whether it bypasses the page cache (O_DIRECT), so that transfers must be aligned to
    /// [`ALIGN`].
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Makes all that was written durable on the medium.
    pub fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| fdatasync(&self.descriptor))?)
    }

    /// Advises the system to drop a range that is on the medium from the page cache.
    pub fn forget_cached(&self, range: &Range<u64>) {
        if let Some(bytes) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
            // If the system ignores it, that only costs memory for a while.
            let _ = fadvise(&self.descriptor, range.start, Some(bytes), Advice::DontNeed);
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
