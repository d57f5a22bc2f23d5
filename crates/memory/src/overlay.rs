//! Memory with one owner in which parts of a file can be seen: they are read when they are used,
//! and a page that is written becomes the owner's own (copy-on-write).

use std::{
    collections::BTreeMap,
    fmt,
    ops::{Deref, DerefMut, Range},
    os::{fd::BorrowedFd, unix::fs::FileExt},
    ptr::NonNull,
};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::{Error, Result, page_bytes};

/// The system allows some 65,000 mappings in a process; an overlay takes at most so many.
const PIECES_MAX: usize = 8_000;

/// So many entries of the page table are read at once.
const ENTRIES: usize = 8_192;

/// Zeroed memory of a fixed length, of which ranges can show a file.
///
/// It takes memory only for pages that were written or [owned](Self::own).
pub struct Overlay {
    start: NonNull<u8>,
    bytes: usize,
    /// What it consists of: by where a piece begins, the place in the file that it shows, if any.
    /// The next one begins where it ends.
    pieces: BTreeMap<usize, Option<u64>>,
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
        Ok(Self { start, bytes, pieces: BTreeMap::from([(0, None)]) })
    }

    /// Shows the bytes of `file` at `at` in `range`, in place of what was there. Both are whole
    /// pages. `false` if the overlay has too many pieces already: then nothing has changed.
    ///
    /// # Safety
    ///
    /// Until the range is owned, shows something else, or the overlay is dropped, nobody changes
    /// these bytes of the file or makes it shorter.
    pub unsafe fn show(&mut self, range: Range<usize>, file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        self.check(&range)?;
        if !at.is_multiple_of(page_bytes() as u64) {
            let range = range.start as u64..range.end as u64;
            return Err(Error::OutOfRange { range, bytes: self.bytes as u64 });
        }
        if self.pieces.len() > PIECES_MAX {
            return Ok(false);
        }
        if !range.is_empty() {
            // SAFETY: the range lies inside this address space, of which no slice is borrowed.
            unsafe {
                let address = self.start.as_ptr().add(range.start).cast();
                let access = ProtFlags::READ | ProtFlags::WRITE;
                mmap(address, range.len(), access, MapFlags::PRIVATE | MapFlags::FIXED, file, at)
                    .map_err(Error::failed("show a file in memory"))?;
            }
            self.replace(range, Some(at));
        }
        Ok(true)
    }

    /// Has a range of whole pages be zeros, which take no memory. Nothing of a file is seen there
    /// any more.
    pub fn clear(&mut self, range: Range<usize>) {
        let is_room = self.pieces.len() <= PIECES_MAX && self.check(&range).is_ok();
        let pages = &mut self[range.clone()];
        if pages.is_empty() {
            return;
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the pages belong to this address space, and this has borrowed them.
        let is_new =
            is_room && unsafe { mmap_anonymous(pages.as_mut_ptr().cast(), pages.len(), access, flags) }.is_ok();
        match is_new {
            true => self.replace(range, None),
            // The system may allow no more mappings.
            false => pages.fill(0),
        }
    }

    /// That a range is whole pages, and lies inside.
    fn check(&self, range: &Range<usize>) -> Result<()> {
        let page = page_bytes();
        let is_fit = range.start.is_multiple_of(page) && range.end.is_multiple_of(page) && range.end <= self.bytes;
        match is_fit && range.start <= range.end {
            true => Ok(()),
            false => {
                let range = range.start as u64..range.end as u64;
                Err(Error::OutOfRange { range, bytes: self.bytes as u64 })
            }
        }
    }

    /// Notes what a range is from now on.
    fn replace(&mut self, range: Range<usize>, shows: Option<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        while let Some((&start, _)) = self.pieces.range(range.clone()).next() {
            self.pieces.remove(&start);
        }
        self.pieces.insert(range.start, shows);
        self.join(range.start);
        self.join(range.end);
    }

    /// Has a piece begin here.
    fn cut(&mut self, at: usize) {
        if at < self.bytes
            && let Some((&start, &shows)) = self.pieces.range(..at).next_back()
        {
            self.pieces.entry(at).or_insert_with(|| shows.map(|file| file + (at - start) as u64));
        }
    }

    /// Has no piece begin here if it continues the one before, as the system does it.
    fn join(&mut self, at: usize) {
        let Some(&shows) = self.pieces.get(&at) else { return };
        if let Some((&start, &before)) = self.pieces.range(..at).next_back()
            && before.map(|file| file + (at - start) as u64) == shows
        {
            self.pieces.remove(&at);
        }
    }

    /// Visits ranges of pages that may have been written since they were shown or cleared, also
    /// through a pointer: those of which this process has a page of its own.
    pub fn written(&self, mut visit: impl FnMut(Range<usize>)) -> std::io::Result<()> {
        // What the entry of a page says of it.
        const OF_FILE: u64 = 1 << 61;
        const IN_SWAP: u64 = 1 << 62;
        const IN_MEMORY: u64 = 1 << 63;
        let table = std::fs::File::open("/proc/self/pagemap")?;
        let page = page_bytes();
        let is_own = |entry: &[u8; 8]| {
            let entry = u64::from_ne_bytes(*entry);
            entry & IN_SWAP != 0 || entry & (IN_MEMORY | OF_FILE) == IN_MEMORY
        };
        let mut entries = vec![0; (self.bytes / page).min(ENTRIES) * 8];
        for first in (0..self.bytes / page).step_by(ENTRIES) {
            let count = (self.bytes / page - first).min(ENTRIES);
            let entries = &mut entries[..count * 8];
            table.read_exact_at(entries, (self.start.addr().get() / page + first) as u64 * 8)?;
            let mut at = first;
            for alike in entries.as_chunks().0.chunk_by(|one, other| is_own(one) == is_own(other)) {
                if is_own(&alike[0]) {
                    visit(at * page..(at + alike.len()) * page);
                }
                at += alike.len();
            }
        }
        Ok(())
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

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: all of it is mapped and readable for as long as this lives; whoever shows a file
        // promises that it does not change.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Overlay {
    #[inline]
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
        write!(f, "Overlay({} bytes, {} pieces)", self.bytes, self.pieces.len())
    }
}
