//! Address space from the system: reserved at once, filled with memory as it is touched.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::Range,
    ptr::{self, NonNull},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap},
    process::{Resource, getrlimit},
};

use super::{check_range, shared::Segment};
use crate::{
    ALIGN, Error, Result,
    limits::{self, Limits},
};

/// Huge pages are this large; the mapping starts at a multiple of it.
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// Limits are looked at again when so much has been taken. A look took 0.15 ms where this was written, nearly as long
/// as the touch of a huge page.
const LOOK_EVERY_BYTES: u64 = 64 << 20;
/// Or when this part of what was left has been taken, as others take too.
const LOOK_EVERY_SHARE: u64 = 16;

/// Address space, and which pieces of it are handed out.
///
/// Its pages are never given back while they are registered with a kernel or a device, which would go on to use the old
/// ones: those of private memory not at all while it lives, those of shared memory not as long as somebody counts as
/// keeping them registered.
pub(crate) struct Mapping {
    name: String,
    reserved: NonNull<u8>,
    reserved_bytes: usize,
    start: NonNull<u8>,
    bytes: usize,
    table: Mutex<Table>,
    /// How many of its owners only keep it because its memory is registered with the kernel.
    registrations: AtomicUsize,
    /// So much may be taken before limits are looked at again.
    allowance_bytes: Mutex<u64>,
    /// Where shared memory comes from. Locked while it grows or shrinks; before the table, where both are.
    segment: Option<Mutex<Segment>>,
    /// The length of a chunk of shared memory; 0 if it is private.
    chunk_bytes: u64,
}

/// Which bytes of a mapping are in use, and which can be.
#[derive(Default)]
pub(super) struct Table {
    /// Start to end of every slot that exists.
    pub(super) slots: BTreeMap<u64, u64>,
    /// For each chunk of address space, the chunk of the segment that lies there; empty if the memory is private.
    chunks: Vec<Option<u32>>,
}

// SAFETY: the pointers are to memory that belongs to this value alone; who reads or writes it is ruled by slots.
unsafe impl Send for Mapping {}
// SAFETY: as above; what changes is behind mutexes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of this process alone: all of it can be used at once.
    pub(super) fn private(bytes: u64) -> Result<Self> {
        let bytes = granted(bytes)?;
        let mapping = Self::reserve("host".to_owned(), bytes, ProtFlags::READ | ProtFlags::WRITE, None)?;
        mapping.wish_for_huge_pages(0..bytes);
        Ok(mapping)
    }

    /// A part of `bytes` of a segment: nothing of it can be used before it has been touched.
    pub(super) fn shared(name: &str, bytes: u64, segment: Segment) -> Result<Self> {
        Self::reserve(format!("shared host {name}"), bytes, ProtFlags::empty(), Some(segment))
    }

    fn reserve(name: String, bytes: u64, protection: ProtFlags, segment: Option<Segment>) -> Result<Self> {
        let chunk_bytes = segment.as_ref().map_or(0, Segment::chunk_bytes);
        let no_memory = |errno: Errno| Error::NoMemory { bytes, source: errno.into() };
        let length = usize::try_from(bytes).map_err(|_| no_memory(Errno::NOMEM))?;
        // The last chunk is mapped whole, and then the start may be shifted by up to a huge page.
        let whole = length.checked_next_multiple_of((chunk_bytes as usize).max(1));
        let reserved_bytes = whole.and_then(|whole| whole.checked_add(HUGE_PAGE)).ok_or(no_memory(Errno::NOMEM))?;
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no memory of anyone else.
        let address = unsafe {
            mmap_anonymous(ptr::null_mut(), reserved_bytes, protection, MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let address = address.map_err(no_memory)?;
        let reserved = NonNull::new(address.cast::<u8>()).ok_or_else(|| no_memory(Errno::NOMEM))?;
        let shift = reserved.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `shift` is less than a huge page, and one more huge page was reserved than is used.
        let start = unsafe { reserved.add(shift) };
        let chunks = if segment.is_some() { vec![None; bytes.div_ceil(chunk_bytes) as usize] } else { Vec::new() };
        Ok(Self {
            name,
            reserved,
            reserved_bytes,
            start,
            bytes: length,
            table: Mutex::new(Table { slots: BTreeMap::new(), chunks }),
            registrations: AtomicUsize::new(0),
            allowance_bytes: Mutex::new(0),
            segment: segment.map(Mutex::new),
            chunk_bytes,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
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

    /// The length of a chunk, if it is shared.
    pub(crate) fn chunk_bytes(&self) -> Option<u64> {
        self.segment.is_some().then_some(self.chunk_bytes)
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

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        // The table is changed by single calls that cannot panic half-way, so it is whole also after a panic elsewhere.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table, if no slot overlaps `range` and there is memory behind all of it.
    pub(super) fn unclaimed(&self, range: &Range<u64>) -> Result<MutexGuard<'_, Table>> {
        check_range(&self.name, range, self.bytes as u64)?;
        let table = self.table();
        self.check_unclaimed(&table, range)?;
        Ok(table)
    }

    pub(super) fn check_unclaimed(&self, table: &Table, range: &Range<u64>) -> Result<()> {
        if table.slots.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start) {
            return Err(Error::InUse { layer: self.name.clone(), range: range.clone() });
        }
        if self.segment.is_some() && table.chunks[self.chunks_of(range)].contains(&None) {
            return Err(Error::Untouched { layer: self.name.clone(), range: range.clone() });
        }
        Ok(())
    }

    /// Has the system provide the memory of `range` now.
    pub(super) fn touch(&self, range: &Range<u64>, promised_bytes: u64) -> Result<()> {
        check_range(&self.name, range, self.bytes as u64)?;
        let Some(segment) = &self.segment else {
            let starts = (range.start..range.end).step_by(LOOK_EVERY_BYTES as usize);
            return starts.into_iter().try_for_each(|start| {
                let piece = start..range.end.min(start + LOOK_EVERY_BYTES);
                self.check_memory_left(&piece, promised_bytes)?;
                self.populate(&piece)
            });
        };
        let mut segment = segment.lock().unwrap_or_else(PoisonError::into_inner);
        let missing: Vec<usize> = {
            let table = self.table();
            self.chunks_of(range).filter(|&index| table.chunks[index].is_none()).collect()
        };
        for (done, &index) in missing.iter().enumerate() {
            self.fill_chunk(&mut segment, index, missing.len() - done)?;
        }
        Ok(())
    }

    /// Puts a chunk of the segment behind chunk `index` of the address space; `wanted` chunks are still to come.
    fn fill_chunk(&self, segment: &mut Segment, index: usize, wanted: usize) -> Result<()> {
        let chunk = segment.take(&self.name, wanted)?;
        let start = index as u64 * self.chunk_bytes;
        let range = start..start + self.chunk_bytes;
        let result = self.map_chunk(segment, &range, chunk);
        if let Err(error) = result {
            self.unmap_chunk(&range);
            segment.give(&[chunk]);
            return Err(error);
        }
        self.table().chunks[index] = Some(chunk);
        Ok(())
    }

    fn map_chunk(&self, segment: &Segment, range: &Range<u64>, chunk: u32) -> Result<()> {
        let fail = |attempt, errno: Errno| Error::transfer(&self.name, attempt, errno.into());
        let (file, offset) = segment.place(chunk);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range is a whole chunk of the reserved address space, behind which there is no memory yet: nobody
        // has a reference to it.
        let mapped = unsafe {
            let address = self.start.as_ptr().add(range.start as usize);
            mmap(
                address.cast(),
                self.chunk_bytes as usize,
                protection,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                offset,
            )
        };
        mapped.map_err(|errno| fail("map a chunk of shared memory", errno))?;
        self.wish_for_huge_pages(range.clone());
        self.check_memory_left(range, 0)?;
        // A file system in memory that is full would end the program at the first access.
        segment.reserve(&self.name, chunk)?;
        self.populate(range)
    }

    /// Puts reserved address space where a chunk was.
    fn unmap_chunk(&self, range: &Range<u64>) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is a whole chunk of the reserved address space, and the caller has seen to it that no slot
        // can overlap it: nobody has a reference to it.
        let unmapped = unsafe {
            let address = self.start.as_ptr().add(range.start as usize);
            mmap_anonymous(address.cast(), (range.end - range.start) as usize, ProtFlags::empty(), flags)
        };
        if let Err(errno) = unmapped {
            tracing::warn!(%errno, "a chunk of shared memory that was given back is still mapped");
        }
    }

    /// Gives the chunks that lie inside `range` back; nothing happens if a slot overlaps any of them.
    pub(super) fn release(&self, range: &Range<u64>) -> Result<u64> {
        check_range(&self.name, range, self.bytes as u64)?;
        let Some(segment) = &self.segment else { return Ok(0) };
        let mut segment = segment.lock().unwrap_or_else(PoisonError::into_inner);
        if self.registrations.load(Relaxed) > 0 {
            return Err(Error::InUse { layer: self.name.clone(), range: range.clone() });
        }
        let inside = range.start.div_ceil(self.chunk_bytes) as usize..(range.end / self.chunk_bytes) as usize;
        // The last chunk may be longer than what is left of the limit.
        let end = if range.end == self.bytes as u64 { self.table().chunks.len() } else { inside.end };
        let mut given = Vec::new();
        {
            let mut table = self.table();
            let bytes = inside.start as u64 * self.chunk_bytes..(end as u64 * self.chunk_bytes).min(self.bytes as u64);
            if table.slots.range(..bytes.end).next_back().is_some_and(|(_, &end)| end > bytes.start) {
                return Err(Error::InUse { layer: self.name.clone(), range: bytes });
            }
            for index in inside.start..end {
                given.extend(table.chunks[index].take().map(|chunk| (index, chunk)));
            }
        }
        for (index, _) in &given {
            let start = *index as u64 * self.chunk_bytes;
            self.unmap_chunk(&(start..start + self.chunk_bytes));
        }
        segment.give(&given.iter().map(|(_, chunk)| *chunk).collect::<Vec<_>>());
        Ok(segment.wanted_by_others())
    }

    /// Bytes of shared memory that other processes have asked for in vain.
    pub(super) fn wanted_by_others(&self) -> u64 {
        let segment = self.segment.as_ref();
        segment.map_or(0, |segment| segment.lock().unwrap_or_else(PoisonError::into_inner).wanted_by_others())
    }

    /// Has the system keep all of it in memory.
    pub(super) fn pin(&self) -> Result<()> {
        let range = 0..self.bytes as u64;
        if self.segment.is_some() && self.table().chunks.contains(&None) {
            return Err(Error::Untouched { layer: self.name.clone(), range });
        }
        self.check_memory_left(&range, 0)?;
        // SAFETY: the range is the whole mapping, and locking pages changes no byte of it.
        let outcome = unsafe { mlock(self.address(0).cast(), self.bytes) };
        let Err(errno) = outcome else { return Ok(()) };
        let bytes = range.end + limits::locked_bytes();
        match getrlimit(Resource::Memlock).current {
            // The same numbers also mean other things.
            Some(limit_bytes) if bytes > limit_bytes && matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN) => {
                Err(Error::PinLimit { bytes, limit_bytes, source: errno.into() })
            }
            _ => Err(Error::transfer(&self.name, "pin memory", errno.into())),
        }
    }

    fn wish_for_huge_pages(&self, range: Range<u64>) {
        // SAFETY: the range lies inside the reserved address space. Huge pages are a wish: a refusal costs speed only.
        let wish = unsafe {
            let address = self.start.as_ptr().add(range.start as usize);
            madvise(address.cast(), (range.end - range.start) as usize, Advice::LinuxHugepage)
        };
        if let Err(errno) = wish {
            tracing::debug!(%errno, "no huge pages for host memory");
        }
    }

    /// Says whether a process that is forked gets a copy of this memory. One that the kernel would share, until somebody writes to it,
    /// it copies at once if the memory is registered for transfers.
    pub(super) fn keep_from_children(&self, is_kept: bool) {
        let advice = if is_kept { Advice::LinuxDontFork } else { Advice::LinuxDoFork };
        // SAFETY: the whole of the address space that this value has reserved; this process sees no difference.
        let advised = unsafe { madvise(self.start.as_ptr().cast(), self.bytes(), advice) };
        if let Err(errno) = advised {
            tracing::debug!(%errno, "a fork will take longer");
        }
    }

    fn populate(&self, range: &Range<u64>) -> Result<()> {
        // SAFETY: the range lies inside the reserved address space, and populating pages changes no byte of it.
        let populated = unsafe {
            let address = self.start.as_ptr().add(range.start as usize);
            madvise(address.cast(), (range.end - range.start) as usize, Advice::LinuxPopulateWrite)
        };
        match populated {
            Ok(()) => Ok(()),
            // A kernel before 5.14.
            Err(Errno::INVAL) => {
                self.populate_by_hand(range);
                Ok(())
            }
            Err(errno @ Errno::NOMEM) => {
                Err(self.exhausted(range.end - range.start, io::Error::from(errno).to_string()))
            }
            Err(errno) => Err(Error::transfer(&self.name, "touch memory", errno.into())),
        }
    }

    /// Writes to every page of `range` the byte that it has. What is handed out is left out: who fills it touches it.
    fn populate_by_hand(&self, range: &Range<u64>) {
        for start in (range.start..range.end).step_by(HUGE_PAGE) {
            let end = range.end.min(start + HUGE_PAGE as u64);
            // No slot is made while the table is locked, so it is locked for a huge page at a time.
            let table = self.table();
            if table.slots.range(..end).next_back().is_some_and(|(_, &slot_end)| slot_end > start) {
                continue;
            }
            for at in (start..end).step_by(rustix::param::page_size()) {
                // SAFETY: the byte lies inside the reserved address space, there is memory behind it, and no slot has
                // it.
                unsafe {
                    let byte = self.start.as_ptr().add(at as usize);
                    byte.write_volatile(byte.read_volatile());
                }
            }
        }
    }

    /// An error if the system would rather end this program than give it what is missing of `range`, and what was promised.
    fn check_memory_left(&self, range: &Range<u64>, promised_bytes: u64) -> Result<()> {
        self.take_allowance(range.end - range.start, || self.missing_bytes(range) + promised_bytes)
    }

    /// An error if the system would rather end this program than give it `bytes` more; of which so many are `missing`, where
    /// that has to be looked at.
    pub(super) fn take_allowance(&self, bytes: u64, missing: impl FnOnce() -> u64) -> Result<()> {
        let mut allowance_bytes = self.allowance_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if *allowance_bytes < bytes {
            let missing_bytes = missing();
            // Where nothing is known of limits, none can be respected.
            let Ok(Limits { left, .. }) = Limits::read() else { return Ok(()) };
            if missing_bytes > left.bytes {
                return Err(self.exhausted(missing_bytes, left.to_string()));
            }
            *allowance_bytes = ((left.bytes - missing_bytes) / LOOK_EVERY_SHARE).min(LOOK_EVERY_BYTES);
        } else {
            *allowance_bytes -= bytes;
        }
        Ok(())
    }

    fn exhausted(&self, bytes: u64, limit: String) -> Error {
        Error::Exhausted { layer: self.name.clone(), bytes, limit }
    }

    /// How much of `range` the system has not provided yet.
    fn missing_bytes(&self, range: &Range<u64>) -> u64 {
        let bytes = (range.end - range.start) as usize;
        let page_bytes = rustix::param::page_size();
        let mut pages = vec![0_u8; bytes.div_ceil(page_bytes)];
        // SAFETY: the range lies inside the reserved address space and starts at a page, and there is a byte for each
        // page.
        let outcome = unsafe {
            let address = self.start.as_ptr().add(range.start as usize);
            libc::mincore(address.cast(), bytes, pages.as_mut_ptr())
        };
        if outcome != 0 {
            return bytes as u64;
        }
        pages.iter().filter(|&&page| page & 1 == 0).count() as u64 * page_bytes as u64
    }

    /// The chunks of the address space that `range` touches.
    fn chunks_of(&self, range: &Range<u64>) -> Range<usize> {
        (range.start / self.chunk_bytes) as usize..range.end.div_ceil(self.chunk_bytes) as usize
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}, {} bytes)", self.name, self.bytes)
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

/// How much of `bytes` this process can have: less if the rest is in use, and none if there never was as much.
fn granted(bytes: u64) -> Result<u64> {
    let Ok(Limits { most, left }) = Limits::read() else { return Ok(bytes) };
    let refusal = |limit: limits::Limit| Error::NoMemory {
        bytes,
        source: io::Error::new(io::ErrorKind::OutOfMemory, limit.to_string()),
    };
    if bytes > most.bytes {
        return Err(refusal(most));
    }
    if bytes <= left.bytes {
        return Ok(bytes);
    }
    let granted = left.bytes / ALIGN * ALIGN;
    if granted == 0 {
        return Err(refusal(left));
    }
    tracing::warn!(asked_bytes = bytes, granted_bytes = granted, "less host memory than asked for: {left}");
    Ok(granted)
}

#[cfg(test)]
mod tests {
    use super::super::Host;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_can_be_touched_by_hand() {
        let host = Host::new(16 * MIB).unwrap();
        let mut slot = host.slot(5 * MIB, 4096).unwrap();
        slot.fill(7);
        let mapping = host.mapping();
        mapping.populate_by_hand(&(MIB..12 * MIB));
        let is_there = |range| mapping.missing_bytes(&range) == 0;
        assert!(is_there(MIB..4 * MIB) && is_there(6 * MIB + MIB..12 * MIB), "all but what is near a slot");
        assert!(!is_there(12 * MIB..16 * MIB), "and nothing else");
        assert!(slot.iter().all(|&byte| byte == 7));
        drop(slot);
        mapping.populate_by_hand(&(0..16 * MIB));
        assert!(is_there(0..16 * MIB));
        assert!(host.slot(5 * MIB, 4096).unwrap().iter().all(|&byte| byte == 7), "no byte is another");
    }
}
