//! Reserves address space, and maps what backs it.
//!
//! All of the address space is reserved at once, and addresses never change. `file.rs` maps and
//! flushes what has a descriptor. `provide.rs` has the system provide memory ahead of its use.

mod file;
mod provide;

use std::{
    fmt,
    ops::{Deref, Range},
    os::fd::{AsFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed},
    },
};

use rustix::{
    io::Errno,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};

use crate::{Access, Error, Result, limits::Allowance, page_bytes};

/// The size of a huge page. Every mapping starts at a multiple of it, except those of small pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// The page size of anonymous memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages of the processor: 4 KiB on x86-64.
    Small,
    /// Huge pages, as far as the system has any.
    Huge,
}

/// What a mapping is backed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backing {
    /// Memory of this process alone.
    Anonymous(Pages),
    /// Chunks of a file that processes share, each mapped when it is needed.
    Chunks {
        /// The length of each chunk.
        bytes: u64,
    },
    /// Memory with a descriptor, which other processes can map as well.
    Memfd,
    /// A file, through the page cache.
    File,
    /// A file on persistent memory, without a page cache (DAX).
    Dax,
}

/// A piece of address space.
///
/// It hands out addresses, and slices only to callers that promise to follow Rust's rules: several
/// owners may have parts of one mapping, and other processes can change some of its backings.
/// [`Private`](crate::Private) is a mapping with one owner, as a slice.
///
/// | backing | usable | grows | touching takes memory | flush |
/// |---|---|---|---|---|
/// | anonymous | at once | no | yes | nothing to do |
/// | chunks | once put there | no | yes | nothing to do |
/// | memfd | at once | no, it is sealed | yes | nothing to do |
/// | file | at once | yes | no, it fills the page cache | msync |
/// | DAX | at once | yes | no | cache lines and a fence |
///
/// Its pages must not be released while they are registered with the kernel or a device, which
/// would continue to use the old ones: see [`keep_registered`](Self::keep_registered).
pub struct Mapping {
    backing: Backing,
    access: Access,
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    start: NonNull<u8>,
    /// The usable bytes. They only increase.
    bytes: AtomicU64,
    bytes_max: u64,
    /// How many of its owners keep it only because its memory is registered.
    registrations: AtomicUsize,
    allowance: Allowance,
    descriptor: Option<OwnedFd>,
    /// Held while it grows.
    growing: Mutex<()>,
    /// Whether a flush has failed.
    is_distrusted: AtomicBool,
    /// Dropped after the address space is given back.
    _keep: Option<Box<dyn Send + Sync>>,
}

// SAFETY: the pointers are to address space that belongs to this value alone as long as it lives;
// the users of the addresses decide who may access the memory.
unsafe impl Send for Mapping {}
// SAFETY: as above; what changes is atomic or behind mutexes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone. It takes no memory until it is written or touched.
    pub fn anonymous(bytes: u64, pages: Pages) -> Result<Self> {
        let mapping = Self::reserve(Backing::Anonymous(pages), Access::ReadWrite, bytes)?;
        mapping.advise_pages(&(0..bytes), pages);
        Ok(mapping)
    }

    /// Address space for chunks of `chunk_bytes`, a multiple of [`HUGE_PAGE`]. The last chunk may
    /// extend beyond `bytes`. Nothing of it can be used before [`put_chunk`].
    ///
    /// `keep` is dropped after the address space has been released.
    ///
    /// [`put_chunk`]: Self::put_chunk
    pub fn chunks(bytes: u64, chunk_bytes: u64, keep: impl Send + Sync + 'static) -> Result<Self> {
        assert!(chunk_bytes > 0 && chunk_bytes.is_multiple_of(HUGE_PAGE as u64), "chunks of whole huge pages");
        let mut mapping = Self::reserve(Backing::Chunks { bytes: chunk_bytes }, Access::ReadWrite, bytes)?;
        mapping._keep = Some(Box::new(keep));
        Ok(mapping)
    }

    /// Reserves address space for `bytes_max`, all of which counts as usable.
    fn reserve(backing: Backing, access: Access, bytes_max: u64) -> Result<Self> {
        let no_memory = |errno: Errno| Error::NoMemory { bytes: bytes_max, source: errno.into() };
        let (protection, chunk, align) = match backing {
            Backing::Anonymous(Pages::Small) => (ProtFlags::READ | ProtFlags::WRITE, 1, page_bytes()),
            Backing::Anonymous(Pages::Huge) => (ProtFlags::READ | ProtFlags::WRITE, 1, HUGE_PAGE),
            Backing::Chunks { bytes } => (ProtFlags::empty(), bytes as usize, HUGE_PAGE),
            Backing::Memfd | Backing::File | Backing::Dax => (ProtFlags::empty(), 1, HUGE_PAGE),
        };
        let length = usize::try_from(bytes_max).ok().and_then(|bytes| bytes.max(1).checked_next_multiple_of(chunk));
        // Aligning the start may shift it by less than the alignment.
        let shifted = length.and_then(|length| length.checked_next_multiple_of(page_bytes()));
        let reserved_bytes =
            shifted.and_then(|length| length.checked_add(align - page_bytes())).ok_or(no_memory(Errno::NOMEM))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses affects no other memory.
        let address = unsafe { mmap_anonymous(ptr::null_mut(), reserved_bytes, protection, flags) };
        let reserved = NonNull::new(address.map_err(no_memory)?.cast::<u8>()).ok_or(no_memory(Errno::NOMEM))?;
        let shift = reserved.as_ptr().align_offset(align);
        // SAFETY: the shift is less than the alignment, and the reservation is larger than what is
        // used by that.
        let start = unsafe { reserved.add(shift) };
        Ok(Self {
            backing,
            access,
            reserved,
            reserved_bytes,
            start,
            bytes: AtomicU64::new(bytes_max),
            bytes_max,
            registrations: AtomicUsize::new(0),
            allowance: Allowance::default(),
            descriptor: None,
            growing: Mutex::default(),
            is_distrusted: AtomicBool::new(false),
            _keep: None,
        })
    }

    /// What it is backed by.
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// The access that it allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its length. It never shrinks.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// The length to which it can grow.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The address of byte `at`, which never changes. Panics beyond the end.
    ///
    /// Whoever uses it must guarantee: the mapping is alive; in a mapping of chunks, a chunk has
    /// been put there; nobody writes if it is read-only; no process shrinks the file, which would
    /// kill the program at the next access; and only one writer at a time, in this process and all
    /// others.
    pub fn address(&self, at: u64) -> *mut u8 {
        assert!(at <= self.bytes(), "byte {at} is beyond the end of a mapping of {} bytes", self.bytes());
        self.pointer(at)
    }

    /// The bytes of `range`.
    ///
    /// # Safety
    /// The rules of [`address`](Self::address) hold for as long as the slice lives, and nobody
    /// writes to the bytes meanwhile.
    pub unsafe fn slice(&self, range: Range<u64>) -> Result<&[u8]> {
        self.check(&range)?;
        // SAFETY: the range lies inside the mapping; the rest is the duty of the caller.
        Ok(unsafe { slice::from_raw_parts(self.pointer(range.start), (range.end - range.start) as usize) })
    }

    /// The bytes of `range`, for writing.
    ///
    /// # Safety
    /// The rules of [`address`](Self::address) hold for as long as the slice lives, and nobody else
    /// uses the bytes meanwhile.
    #[expect(clippy::mut_from_ref, reason = "several owners have parts of one mapping; see above")]
    pub unsafe fn slice_mut(&self, range: Range<u64>) -> Result<&mut [u8]> {
        self.check(&range)?;
        if self.access == Access::Read {
            return Err(Error::ReadOnly);
        }
        // SAFETY: the range lies inside the mapping; the rest is the duty of the caller.
        Ok(unsafe { slice::from_raw_parts_mut(self.pointer(range.start), (range.end - range.start) as usize) })
    }

    /// Returns an error unless `range` lies inside the mapping.
    pub fn check(&self, range: &Range<u64>) -> Result<()> {
        let bytes = self.bytes();
        if range.start <= range.end && range.end <= bytes {
            return Ok(());
        }
        Err(Error::OutOfRange { range: range.clone(), bytes })
    }

    /// Maps a chunk of `file`, which begins at `offset`, as chunk `index` of the address space.
    ///
    /// # Safety
    /// Nobody may use the memory of this chunk at the time, or rely on its contents.
    pub unsafe fn put_chunk(&self, index: u64, file: impl AsFd, offset: u64) -> Result<()> {
        let (address, bytes) = self.chunk(index)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: the range is a whole chunk of the reserved address space, and the caller
        // guarantees that nobody uses it.
        let mapped = unsafe { mmap(address.cast(), bytes, protection, flags, file, offset) };
        mapped.map_err(Error::failed("map a chunk of shared memory"))?;
        self.advise_pages(&(index * bytes as u64..(index + 1) * bytes as u64), Pages::Huge);
        Ok(())
    }

    /// Unmaps chunk `index`, if it is mapped.
    ///
    /// # Safety
    /// As for [`put_chunk`](Self::put_chunk).
    pub unsafe fn remove_chunk(&self, index: u64) -> Result<()> {
        let (address, bytes) = self.chunk(index)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `put_chunk`.
        let unmapped = unsafe { mmap_anonymous(address.cast(), bytes, ProtFlags::empty(), flags) };
        unmapped.map(drop).map_err(Error::failed("unmap a chunk of shared memory"))
    }

    /// The address and length of a chunk.
    fn chunk(&self, index: u64) -> Result<(*mut u8, usize)> {
        let Backing::Chunks { bytes } = self.backing else {
            let range = 0..0;
            return Err(Error::OutOfRange { range, bytes: self.bytes() });
        };
        let start = index.saturating_mul(bytes);
        if start >= self.bytes() {
            return Err(Error::OutOfRange { range: start..start.saturating_add(bytes), bytes: self.bytes() });
        }
        Ok((self.pointer(start), bytes as usize))
    }

    /// Keeps the mapping alive because its memory is registered with the kernel or a device.
    pub fn keep_registered(self: &Arc<Self>) -> Kept {
        self.registrations.fetch_add(1, Relaxed);
        Kept(Arc::clone(self))
    }

    /// Whether its memory is registered.
    pub fn is_registered(&self) -> bool {
        self.registrations.load(Relaxed) > 0
    }

    /// Whether it is alive only because it is registered, and nobody else uses it. Once true, it
    /// stays true.
    pub fn is_orphan(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= self.registrations.load(Relaxed)
    }

    /// The address of byte `at`, which lies inside the reserved address space.
    fn pointer(&self, at: u64) -> *mut u8 {
        // SAFETY: every caller has checked that `at` lies inside the mapping or at its end.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    /// The whole pages that contain `range`: address and length.
    fn pages_of(&self, range: &Range<u64>) -> (*mut u8, usize) {
        let page = page_bytes() as u64;
        let start = range.start / page * page;
        (self.pointer(start), (range.end.next_multiple_of(page) - start) as usize)
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?}, {} bytes)", self.backing, self.bytes())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole reservation, and this is its last owner.
        if let Err(errno) = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) } {
            tracing::warn!(%errno, "cannot unmap host memory");
        }
    }
}

/// An owner of a mapping that keeps it only because it is registered.
#[derive(Debug)]
pub struct Kept(Arc<Mapping>);

impl Deref for Kept {
    type Target = Arc<Mapping>;

    fn deref(&self) -> &Arc<Mapping> {
        &self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.registrations.fetch_sub(1, Relaxed);
    }
}
