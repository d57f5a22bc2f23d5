//! Memory with one owner in which parts of a file can be seen: they are read when they are used,
//! and a page that is written becomes the owner's own (copy-on-write).

use std::{
    fmt,
    ops::{Deref, DerefMut, Range},
    os::fd::BorrowedFd,
    ptr::NonNull,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{Error, Result, page_bytes};

/// The system allows some 65,000 mappings in a process; an overlay takes at most so many.
const PIECES_MAX: usize = 8_000;

/// Zeroed memory of a fixed length, of which ranges can show a file.
///
/// It takes memory only for pages that were written or [owned](Self::own).
pub struct Overlay {
    start: NonNull<u8>,
    bytes: usize,
    /// How many ranges were shown.
    pieces: usize,
}

// SAFETY: the address space belongs to this value alone; access follows the borrows of it.
unsafe impl Send for Overlay {}
// SAFETY: as above; nothing changes through a shared borrow.
unsafe impl Sync for Overlay {}

impl Overlay {
    /// At least `bytes`, rounded up to whole pages, and at least one page.
    pub fn new(bytes: usize) -> Result<Self> {
        let no_memory = |source: std::io::Error| Error::NoMemory { bytes: bytes as u64, source };
        let too_many = || no_memory(std::io::ErrorKind::OutOfMemory.into());
        let bytes = bytes.max(1).checked_next_multiple_of(page_bytes()).ok_or_else(too_many)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new address space, chosen by the system.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let start = NonNull::new(start.map_err(|errno| no_memory(errno.into()))?.cast()).ok_or_else(too_many)?;
        Ok(Self { start, bytes, pieces: 0 })
    }

    /// Shows the bytes of `file` at `at` in `range`, in place of what was there. Both are whole
    /// pages. `false` if the overlay has too many pieces already: then nothing has changed.
    ///
    /// # Safety
    ///
    /// Until the range is owned, shows something else, or the overlay is dropped, nobody changes
    /// these bytes of the file or makes it shorter.
    pub unsafe fn show(&mut self, range: Range<usize>, file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        let page = page_bytes();
        let is_fit = range.start.is_multiple_of(page) && range.end.is_multiple_of(page) && range.end <= self.bytes;
        if !is_fit || !at.is_multiple_of(page as u64) {
            let range = range.start as u64..range.end as u64;
            return Err(Error::OutOfRange { range, bytes: self.bytes as u64 });
        }
        if self.pieces >= PIECES_MAX {
            return Ok(false);
        }
        if !range.is_empty() {
            self.pieces += 1;
            // SAFETY: the range lies inside this address space, of which no slice is borrowed.
            unsafe {
                let address = self.start.as_ptr().add(range.start).cast();
                let access = ProtFlags::READ | ProtFlags::WRITE;
                mmap(address, range.len(), access, MapFlags::PRIVATE | MapFlags::FIXED, file, at)
                    .map_err(Error::failed("show a file in memory"))?;
            }
        }
        Ok(true)
    }

    /// Makes all pages of a range independent of the file that they show.
    pub fn own(&mut self, range: Range<usize>) {
        for page in self[range].chunks_mut(page_bytes()) {
            // A write of the same byte, which the compiler must not leave out: the system copies
            // the page.
            // SAFETY: the byte is part of a slice that this has borrowed.
            unsafe { std::ptr::write_volatile(&mut page[0], std::ptr::read_volatile(&page[0])) };
        }
    }
}

impl Deref for Overlay {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all of it is mapped and readable for as long as this lives; whoever shows a file
        // promises that it does not change.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Overlay {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and borrowed from its only owner.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // SAFETY: nobody has a slice of it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({} bytes, {} pieces)", self.bytes, self.pieces)
    }
}
