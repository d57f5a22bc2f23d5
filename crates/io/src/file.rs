//! A file that transfers go to and come from.

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

/// Past the page cache (O_DIRECT), memory, offset and length of a transfer are multiples of this.
/// Some media would do with less, and none that is common needs more.
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

    /// Whether it bypasses the page cache, so that transfers must be aligned to [`ALIGN`].
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Puts all that was written on the medium.
    pub fn sync(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| fdatasync(&self.descriptor))?)
    }

    /// Lets the page cache drop a part of the file that is on the medium. It is advice.
    pub fn forget_cached(&self, range: &Range<u64>) {
        if let Some(bytes) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
            // Advice that is not taken costs memory for a while, nothing else.
            let _ = fadvise(&self.descriptor, range.start, Some(bytes), Advice::DontNeed);
        }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
