//! Host memory, handed out as slots.
//!
//! All address space is reserved at once, and takes no memory until it is touched; `space.rs`
//! manages it. Memory that several processes share is in a `Segment`. A [`Slot`] is exclusive
//! access to a piece of it, and a [`Sealed`] is shared read access. Slots never overlap, whatever
//! the caller asks for, so all code above this file is safe.

mod space;

use std::{
    fmt,
    ops::{Deref, DerefMut, Range},
    path::Path,
    ptr,
    sync::Arc,
};

use outcrop_local::{Meeting, Segment};
use outcrop_memory::Mapping;
use space::Space;

use crate::{Error, Front, Layer, Result, layer};

/// Host memory. Private memory is usable at once, and untouched at first. Shared memory must be
/// touched piece by piece before use.
#[derive(Debug, Clone)]
pub struct Host {
    space: Arc<Space>,
}

impl Host {
    /// Reserves `bytes` of private memory, rounded up to the alignment. Less, with a warning, if
    /// that much is not free at present: see `capacity`.
    pub fn new(bytes: u64) -> Result<Self> {
        Ok(Self { space: Arc::new(Space::private(layer::aligned(bytes))?) })
    }

    /// Reserves up to `bytes_mine` of a shared buffer of `bytes_total`. All processes that use the
    /// same name, belong to the same user and run on this machine share it. They must use the same
    /// total.
    ///
    /// Memory is taken in whole chunks of a 64th of the total, but at least 2 MiB and at most 16
    /// MiB. What is left of the total after the last whole chunk is not used. A process whose share
    /// is not a multiple of a chunk keeps the rest of its last chunk from others.
    ///
    /// Memory must be touched before it is used, and can be touched only if the buffer has a free
    /// chunk: see [`needs_touch`](Self::needs_touch) and [`release`](Self::release).
    pub fn shared(name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        Self::shared_in(&Meeting::usual_directory(), name, bytes_total, bytes_mine)
    }

    /// As `shared`, among the processes that meet in `directory`.
    pub fn shared_in(directory: &Path, name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        let segment = Segment::join(directory, name, bytes_total, bytes_mine)?;
        let bytes = layer::aligned(bytes_mine).min(segment.bytes());
        Ok(Self { space: Arc::new(Space::shared(name, bytes, segment)?) })
    }

    /// Its size in bytes.
    pub fn capacity(&self) -> u64 {
        self.space.bytes()
    }

    /// Whether memory must be touched before it can be used.
    pub fn needs_touch(&self) -> bool {
        self.space.needs_touch()
    }

    /// The best unit for touching.
    pub fn piece_bytes(&self) -> u64 {
        self.space.piece_bytes()
    }

    /// About how many bytes its list of slots takes, beside the memory that it hands out.
    pub fn bookkeeping_bytes(&self) -> u64 {
        // Nodes of the list are at least half full, and each slot is an allocation.
        const OF_SLOT: usize = 2 * size_of::<(u64, u64)>() + size_of::<Slot>() + 24;
        (self.space.table().slots.len() * OF_SLOT) as u64
    }

    /// A slot of `bytes` at `at`, for writing.
    pub fn slot(&self, at: u64, bytes: u64) -> Result<Slot> {
        let range = at..at.saturating_add(bytes);
        let mut table = self.space.unclaimed(&range)?;
        table.slots.insert(range.start, range.end);
        drop(table);
        Ok(Slot { space: Arc::clone(&self.space), range })
    }

    /// Runs `forking`, which forks, without giving the child a copy of this memory. The child must
    /// not use it.
    pub fn apart_from_children<T>(&self, forking: impl FnOnce() -> T) -> T {
        self.space.mapping().keep_from_children(true);
        let result = forking();
        self.space.mapping().keep_from_children(false);
        result
    }

    /// The whole mapping, for registering it with a device.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.space.mapping()
    }

    /// Moves a slot of this memory that nobody else reads to `to`. The old and the new range may
    /// overlap.
    pub fn slide(&self, sealed: Sealed, to: u64) -> Result<Sealed> {
        let in_use = |range| Error::InUse { layer: self.name().to_owned(), range };
        if !Arc::ptr_eq(&sealed.0.space, &self.space) {
            // Its range says nothing about this memory.
            return Err(in_use(sealed.0.range()));
        }
        let mut slot = Arc::into_inner(sealed.0).ok_or_else(|| in_use(to..to))?;
        let range = to..to.saturating_add(slot.len() as u64);
        check_range(self.name(), &range, self.capacity())?;
        let mut table = self.space.table();
        table.slots.remove(&slot.range.start);
        if let Err(error) = self.space.check_unclaimed(&table, &range) {
            table.slots.insert(slot.range.start, slot.range.end);
            return Err(error);
        }
        // SAFETY: both ranges lie inside this mapping. The old one belongs to this slot alone,
        // because it is not shared, and the new one overlaps no other slot. `copy` allows the two
        // to overlap.
        unsafe { ptr::copy(slot.as_ptr(), self.space.address(range.start), slot.len()) };
        table.slots.insert(range.start, range.end);
        slot.range = range;
        drop(table);
        Ok(slot.seal())
    }

    /// Has the system provide the memory of `range` now, so that later writes are fast. Shared
    /// memory is taken from the common buffer. Returns [`Error::Exhausted`] if there is no more,
    /// before the system would kill a program because of it.
    pub fn touch(&self, range: Range<u64>) -> Result<()> {
        self.touch_beside(range, 0)
    }

    /// As `touch`, while others still have to fill `promised_bytes` that
    /// [`may_grow`](Self::may_grow) has granted.
    pub fn touch_beside(&self, range: Range<u64>, promised_bytes: u64) -> Result<()> {
        self.space.touch(&range, promised_bytes)
    }

    /// Asks for permission to write to `bytes` that were never touched. Returns
    /// [`Error::Exhausted`] if the system could kill a program because of that. The caller is
    /// expected to use the permission.
    pub fn may_grow(&self, bytes: u64) -> Result<()> {
        self.space.may_take(bytes)
    }

    /// Gives the whole chunks of shared memory in `range` back to the buffer. They must be touched
    /// again before use, and their contents are lost. Returns the bytes that other processes still
    /// wait for. Does nothing for private memory.
    pub fn release(&self, range: Range<u64>) -> Result<u64> {
        self.space.release(&range)
    }

    /// The bytes of shared memory that other processes wait for.
    pub fn wanted_by_others(&self) -> u64 {
        self.space.wanted_by_others()
    }

    /// Locks all of it in memory, in one piece, until the last slot is dropped. This also touches
    /// what is untouched.
    pub fn pin(&self) -> Result<()> {
        self.space.pin()
    }
}

impl Layer for Host {
    fn name(&self) -> &str {
        self.space.name()
    }

    fn capacity(&self) -> Option<u64> {
        Some(Self::capacity(self))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.space.provide(&(at..at.saturating_add(bytes.len() as u64)))?;
        // Copy under the lock. A host layer that is used through `read` and `write` has no slots,
        // so only other copies wait.
        let _table = self.space.unclaimed(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: the range lies inside the mapping and has memory. No slot overlaps it, and none
        // can be created while the lock is held. `bytes` cannot overlap it, because only slots hand
        // out references to the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.space.address(at), bytes.len()) };
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let _table = self.space.unclaimed(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: as in `write`.
        unsafe { ptr::copy_nonoverlapping(self.space.address(at), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn front(&self) -> Option<&dyn Front> {
        Some(self)
    }
}

/// Exclusive access to a piece of host memory. It contains what was there before. Dropping it frees
/// the piece.
pub struct Slot {
    space: Arc<Space>,
    range: Range<u64>,
}

impl Slot {
    /// Ends writing: from now on the bytes can be shared and do not change.
    pub fn seal(self) -> Sealed {
        Sealed(Arc::new(self))
    }

    /// Frees all but the first `bytes`, rounded up to the alignment of layers.
    pub fn shorten(&mut self, bytes: u64) {
        let end = self.range.start + layer::aligned(bytes);
        if end < self.range.end {
            self.range.end = end;
            self.space.table().slots.insert(self.range.start, end);
        }
    }

    /// Its range in the host layer.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The whole mapping that this slot is a piece of, for registering it with the kernel.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        self.space.mapping()
    }
}

impl Deref for Slot {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies inside the mapping, which lives as long as the slot. It has
        // memory, which is not released while there is a slot. Its bytes are initialised, because
        // the system maps zeroes. No other slot overlaps it, so only this one can change them,
        // through `&mut`.
        unsafe { std::slice::from_raw_parts(self.space.address(self.range.start), self.length()) }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.space.address(self.range.start), self.length()) }
    }
}

impl Slot {
    fn length(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.space.table().slots.remove(&self.range.start);
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({:?})", self.range)
    }
}

/// Shared read access to a piece of host memory. Dropping the last one frees the piece.
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

/// Returns an error for `layer` unless `range` is an aligned part of `capacity` bytes.
pub(crate) fn check_range(layer: &str, range: &Range<u64>, capacity: u64) -> Result<()> {
    let is_aligned = range.start.is_multiple_of(layer::ALIGN) && range.end.is_multiple_of(layer::ALIGN);
    if is_aligned && range.start < range.end && range.end <= capacity {
        return Ok(());
    }
    Err(Error::OutOfRange { layer: layer.to_owned(), range: range.clone(), capacity })
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
    fn a_slot_of_another_host_does_not_slide_and_frees_nothing_here() {
        let (host, other) = (Host::new(64 << 10).unwrap(), Host::new(64 << 10).unwrap());
        let _mine = host.slot(8192, 4096).unwrap();
        let theirs = other.slot(8192, 4096).unwrap().seal();
        assert!(host.slide(theirs, 0).is_err());
        assert!(host.slot(8192, 4096).is_err(), "it still belongs to the first slot");
        assert!(other.slot(8192, 4096).is_ok(), "the slot was given up with the call");
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
