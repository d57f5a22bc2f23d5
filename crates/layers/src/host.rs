//! Host memory, handed out as slots.
//!
//! One mapping is reserved at once and costs nothing until it is touched. A [`Slot`] is the right to a piece of it and a
//! [`Sealed`] the shared right to read it; no two slots ever overlap, whatever the caller asks for, so that everything
//! above this file is safe code.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::{Deref, DerefMut, Range},
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap},
    process::{Resource, getrlimit},
};

use crate::{Error, Layer, Result, layer};

/// Huge pages are this large; the mapping starts at a multiple of it.
const HUGE_PAGE: usize = 2 << 20;

/// Memory of this process, usable at once, untouched.
#[derive(Debug, Clone)]
pub struct Host {
    mapping: Arc<Mapping>,
}

impl Host {
    /// Reserves `bytes`, rounded up to whole units.
    pub fn new(bytes: u64) -> Result<Self> {
        Ok(Self { mapping: Arc::new(Mapping::new(layer::aligned(bytes))?) })
    }

    /// Hands out `bytes` at `at` for writing.
    pub fn slot(&self, at: u64, bytes: u64) -> Result<Slot> {
        let range = at..at.saturating_add(bytes);
        let (mut claims, _) = self.unclaimed(&range)?;
        claims.insert(range.start, range.end);
        Ok(Slot { mapping: Arc::clone(&self.mapping), range })
    }

    /// The address of bytes that no slot overlaps, and the lock that keeps it so. Copies are made under the lock: where
    /// a host layer is used by reading and writing it has no slots, so that nobody but other copies waits.
    fn unclaimed(&self, range: &Range<u64>) -> Result<(MutexGuard<'_, BTreeMap<u64, u64>>, *mut u8)> {
        check_range(self.name(), range, self.capacity())?;
        let claims = self.mapping.claims();
        if !is_free(&claims, range) {
            return Err(Error::InUse { layer: self.name().to_owned(), range: range.clone() });
        }
        Ok((claims, self.mapping.address(range.start)))
    }

    /// Moves a slot that nobody else reads to `to`, where it may overlap the place that it leaves.
    pub fn slide(&self, sealed: Sealed, to: u64) -> Result<Sealed> {
        let in_use = |range| Error::InUse { layer: self.name().to_owned(), range };
        let mut slot = Arc::into_inner(sealed.0).ok_or_else(|| in_use(to..to))?;
        let range = to..to.saturating_add(slot.len() as u64);
        check_range(self.name(), &range, self.capacity())?;
        let mut claims = self.mapping.claims();
        claims.remove(&slot.range.start);
        if !is_free(&claims, &range) {
            claims.insert(slot.range.start, slot.range.end);
            return Err(in_use(range));
        }
        // SAFETY: both ranges lie inside the mapping; the old one is this slot's alone, as it was unshared, and the new
        // one overlaps no other slot. `copy` allows the two to overlap each other.
        unsafe { ptr::copy(slot.as_ptr(), self.mapping.address(range.start), slot.len()) };
        claims.insert(range.start, range.end);
        slot.range = range;
        drop(claims);
        Ok(slot.seal())
    }

    /// Has the system provide the memory of `range` now, so that writing to it later is fast.
    pub fn touch(&self, range: Range<u64>) -> Result<()> {
        check_range(self.name(), &range, self.capacity())?;
        let bytes = (range.end - range.start) as usize;
        // SAFETY: the range lies inside the mapping, and populating pages changes no byte of it.
        unsafe { madvise(self.mapping.address(range.start).cast(), bytes, Advice::LinuxPopulateWrite) }
            .map_err(|errno| Error::transfer(self.name(), "touch memory", errno.into()))
    }

    /// Has the system keep all of it in memory, in one piece, until the last slot is gone. What is not touched yet is
    /// touched by it.
    pub fn pin(&self) -> Result<()> {
        let bytes = self.capacity();
        // SAFETY: the range is the whole mapping, and locking pages changes no byte of it.
        let outcome = unsafe { mlock(self.mapping.address(0).cast(), bytes as usize) };
        outcome.map_err(|errno| match (errno, getrlimit(Resource::Memlock).current) {
            // The same numbers can mean other things, but with no limit they do.
            (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit_bytes)) => {
                Error::PinLimit { bytes, limit_bytes, source: errno.into() }
            }
            _ => Error::transfer(self.name(), "pin memory", errno.into()),
        })
    }
}

impl Layer for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn capacity(&self) -> u64 {
        self.mapping.bytes as u64
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let (_claims, place) = self.unclaimed(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: the place lies inside the mapping, no slot overlaps it, and none can be made while the lock is held;
        // `bytes` cannot overlap it either, as only a slot gives out references to the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let (_claims, place) = self.unclaimed(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn touch(&self, range: Range<u64>) -> Result<()> {
        Self::touch(self, range)
    }

    fn pin(&self) -> Result<()> {
        Self::pin(self)
    }

    fn host(&self) -> Option<&Host> {
        Some(self)
    }
}

/// The exclusive right to a piece of host memory. The bytes are what was there before; dropping it gives the piece back.
pub struct Slot {
    mapping: Arc<Mapping>,
    range: Range<u64>,
}

impl Slot {
    /// Ends writing: from here on the bytes can be shared and do not change.
    pub fn seal(self) -> Sealed {
        Sealed(Arc::new(self))
    }

    /// Where it lies in its host layer.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The whole mapping that this slot is a piece of, for registering it with the kernel.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside the mapping, which lives as long as the slot; its bytes are initialised, as the
        // system maps zeroes; and no other slot overlaps it, so that only this one, by `&mut`, can change them.
        unsafe { std::slice::from_raw_parts(self.mapping.address(self.range.start), self.length()) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.address(self.range.start), self.length()) }
    }
}

impl Slot {
    fn length(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.mapping.claims().remove(&self.range.start);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({:?})", self.range)
    }
}

/// The shared right to read a piece of host memory. The piece is given back when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Sealed(Arc<Slot>);

impl Sealed {
    /// The slot behind it.
    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Address space from the system, and which pieces of it are handed out.
///
/// Its pages must never be given back to the system while it lives: a kernel with which they are registered would go on
/// to use the old ones.
pub(crate) struct Mapping {
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
    /// Start to end of every slot that exists.
    claims: Mutex<BTreeMap<u64, u64>>,
    /// How many of its owners only keep it because its memory is registered with the kernel.
    registrations: AtomicUsize,
}

// SAFETY: the pointers are to memory that belongs to this value alone; who reads or writes it is ruled by slots.
unsafe impl Send for Mapping {}
// SAFETY: as above; the table of claims is behind a mutex.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: u64) -> Result<Self> {
        let no_memory = |errno: Errno| Error::NoMemory { bytes, source: errno.into() };
        // The system would promise more than it has, and end the program when it comes to keeping the promise.
        let system = rustix::system::sysinfo();
        let there_are = system.totalram.saturating_mul(u64::from(system.mem_unit));
        if bytes > there_are {
            let source = io::Error::new(io::ErrorKind::OutOfMemory, format!("this machine has {there_are} bytes"));
            return Err(Error::NoMemory { bytes, source });
        }
        let length = usize::try_from(bytes).map_err(|_| no_memory(Errno::NOMEM))?;
        let reserved_bytes = length.checked_add(HUGE_PAGE).ok_or_else(|| no_memory(Errno::NOMEM))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of anyone else.
        let address = unsafe {
            mmap_anonymous(ptr::null_mut(), reserved_bytes, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
        .map_err(no_memory)?;
        let reserved = NonNull::new(address.cast::<u8>()).ok_or_else(|| no_memory(Errno::NOMEM))?;
        let shift = reserved.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `shift` is less than a huge page, and one more huge page was reserved than is used.
        let start = unsafe { reserved.add(shift) };
        // SAFETY: the range was mapped above. Huge pages are a wish: a refusal costs speed only.
        let wish = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxHugepage) };
        if let Err(errno) = wish {
            tracing::debug!(%errno, "no huge pages for host memory");
        }
        Ok(Self {
            reserved,
            reserved_bytes,
            start,
            bytes: length,
            claims: Mutex::default(),
            registrations: AtomicUsize::new(0),
        })
    }

    /// The address of byte `at`, which must not lie beyond the end.
    pub(crate) fn address(&self, at: u64) -> *mut u8 {
        debug_assert!(at <= self.bytes as u64);
        // SAFETY: every caller has checked that `at` lies inside the mapping or at its end.
        unsafe { self.start.as_ptr().add(at as usize) }
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts an owner that only keeps it registered; `release_registered` is the way back.
    pub(crate) fn keep_registered(self: &Arc<Self>) -> Arc<Self> {
        self.registrations.fetch_add(1, Relaxed);
        Arc::clone(self)
    }

    /// Ends what `keep_registered` began.
    pub(crate) fn release_registered(self: Arc<Self>) {
        self.registrations.fetch_sub(1, Relaxed);
    }

    /// Whether nobody uses it any more and it only lives because it is registered. Stays true once it is.
    pub(crate) fn is_orphan(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) <= self.registrations.load(Relaxed)
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // The table is changed by single calls that cannot panic half-way, so it is whole also after a panic elsewhere.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of what was mapped, and every slot has its own share of ownership, so none is left.
        if let Err(errno) = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) } {
            tracing::warn!(%errno, "cannot give host memory back");
        }
    }
}

/// Whether `range` is an aligned part of `capacity` bytes; an error for `layer` if not.
pub(crate) fn check_range(layer: &str, range: &Range<u64>, capacity: u64) -> Result<()> {
    let is_aligned = range.start.is_multiple_of(layer::ALIGN) && range.end.is_multiple_of(layer::ALIGN);
    if is_aligned && range.start < range.end && range.end <= capacity {
        return Ok(());
    }
    Err(Error::OutOfRange { layer: layer.to_owned(), range: range.clone(), capacity })
}

/// Whether no claim overlaps `range`.
fn is_free(claims: &BTreeMap<u64, u64>, range: &Range<u64>) -> bool {
    claims.range(..range.end).next_back().is_none_or(|(_, &end)| end <= range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_never_overlap() {
        let host = Host::new(64 << 10).unwrap();
        let first = host.slot(4096, 8192).unwrap();
        for (at, bytes) in [(4096, 4096), (0, 8192), (8192, 8192), (0, 65536)] {
            assert!(matches!(host.slot(at, bytes), Err(Error::InUse { .. })), "{at} {bytes}");
        }
        let before = host.slot(0, 4096).unwrap();
        let after = host.slot(12288, 4096).unwrap();
        let sealed = first.seal();
        let shared = sealed.clone();
        drop(sealed);
        assert!(host.slot(4096, 4096).is_err(), "one reader is left");
        drop((shared, before, after));
        assert!(host.slot(0, 65536).is_ok());
    }

    #[test]
    fn slots_outside_or_askew_are_refused() {
        let host = Host::new(64 << 10).unwrap();
        for (at, bytes) in [(0, 65537), (65536, 4096), (1, 4096), (0, 100), (0, 0), (u64::MAX - 4095, 4096)] {
            assert!(matches!(host.slot(at, bytes), Err(Error::OutOfRange { .. })), "{at} {bytes}");
        }
    }

    #[test]
    fn sliding_keeps_the_bytes_even_when_old_and_new_place_overlap() {
        let host = Host::new(64 << 10).unwrap();
        let mut slot = host.slot(8192, 16384).unwrap();
        for (index, byte) in slot.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        let sealed = host.slide(slot.seal(), 4096).unwrap();
        assert_eq!(sealed.slot().range(), 4096..20480);
        assert!(sealed.iter().enumerate().all(|(index, &byte)| byte == (index % 251) as u8));
        let reader = sealed.clone();
        assert!(host.slide(sealed, 0).is_err(), "a slot that is being read stays");
        drop(reader);
        assert!(host.slot(0, 65536).is_ok());
    }

    #[test]
    fn a_slot_outlives_its_host() {
        let host = Host::new(1 << 20).unwrap();
        let mut slot = host.slot(0, 4096).unwrap();
        drop(host);
        slot.fill(7);
        assert!(slot.seal().iter().all(|&byte| byte == 7));
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        for bytes in [1 << 45, u64::MAX / 2] {
            assert!(matches!(Host::new(bytes), Err(Error::NoMemory { .. })), "{bytes}");
        }
    }
}
