//! Host memory, handed out as slots.
//!
//! All its address space is reserved at once and costs nothing until it is touched; `space.rs` has
//! it. Memory that several processes share lies in a `Segment`. A [`Slot`] is the right to a piece
//! of it and a [`Sealed`] the shared right to read it. No two slots ever overlap, whatever the
//! caller asks for, so that everything above this file is safe code.

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

/// Host memory, usable at once and untouched; or, if it is shared, usable piece by piece.
#[derive(Debug, Clone)]
pub struct Host {
    space: Arc<Space>,
}

impl Host {
    /// Reserves `bytes` of memory of this process alone, rounded up to whole units. Less, with a
    /// warning, if so much is not free at the moment: see `capacity`.
    pub fn new(bytes: u64) -> Result<Self> {
        Ok(Self { space: Arc::new(Space::private(layer::aligned(bytes))?) })
    }

    /// Reserves up to `bytes_mine` out of `bytes_total` that all processes share which name the
    /// same buffer, belong to the same user, and run on this machine. They must be told the same
    /// total.
    ///
    /// It is taken in whole pieces of at least 2 MiB, at most 16 MiB, and else a 64th of the total:
    /// what is left of the total after the last whole piece is used by nobody, and a process whose
    /// share is not a multiple of a piece keeps the rest of its last piece from others.
    ///
    /// Nothing can be used before it has been touched, and what is touched must be free in the
    /// buffer: see
    /// [`needs_touch`](Self::needs_touch) and [`release`](Self::release).
    pub fn shared(name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        Self::shared_in(&Meeting::usual_directory(), name, bytes_total, bytes_mine)
    }

    /// As `shared`, among processes that meet in `directory`.
    pub fn shared_in(directory: &Path, name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        let segment = Segment::join(directory, name, bytes_total, bytes_mine)?;
        let bytes = layer::aligned(bytes_mine).min(segment.bytes());
        Ok(Self { space: Arc::new(Space::shared(name, bytes, segment)?) })
    }

    /// The bytes that it has.
    pub fn capacity(&self) -> u64 {
        self.space.bytes()
    }

    /// Whether its memory cannot be used before it has been touched.
    pub fn needs_touch(&self) -> bool {
        self.space.needs_touch()
    }

    /// It is best touched in multiples of this.
    pub fn piece_bytes(&self) -> u64 {
        self.space.piece_bytes()
    }

    /// Hands out `bytes` at `at` for writing.
    pub fn slot(&self, at: u64, bytes: u64) -> Result<Slot> {
        let range = at..at.saturating_add(bytes);
        let mut table = self.space.unclaimed(&range)?;
        table.slots.insert(range.start, range.end);
        drop(table);
        Ok(Slot { space: Arc::clone(&self.space), range })
    }

    /// Does something that forks, without a copy of this memory for the child, which must not use
    /// it.
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

    /// Moves a slot that nobody else reads to `to`, where it may overlap the place that it leaves.
    pub fn slide(&self, sealed: Sealed, to: u64) -> Result<Sealed> {
        let in_use = |range| Error::InUse { layer: self.name().to_owned(), range };
        let mut slot = Arc::into_inner(sealed.0).ok_or_else(|| in_use(to..to))?;
        let range = to..to.saturating_add(slot.len() as u64);
        check_range(self.name(), &range, self.capacity())?;
        let mut table = self.space.table();
        table.slots.remove(&slot.range.start);
        if let Err(error) = self.space.check_unclaimed(&table, &range) {
            table.slots.insert(slot.range.start, slot.range.end);
            return Err(error);
        }
        // SAFETY: both ranges lie inside the mapping; the old one is this slot's alone, as it was
        // unshared, and the new one overlaps no other slot. `copy` allows the two to overlap each
        // other.
        unsafe { ptr::copy(slot.as_ptr(), self.space.address(range.start), slot.len()) };
        table.slots.insert(range.start, range.end);
        slot.range = range;
        drop(table);
        Ok(slot.seal())
    }

    /// Has the system provide the memory of `range` now, so that writing to it later is fast.
    /// Shared memory is taken from the others for it. [`Error::Exhausted`] if there is no more,
    /// before the system would end a program for it.
    pub fn touch(&self, range: Range<u64>) -> Result<()> {
        self.touch_beside(range, 0)
    }

    /// As `touch`, while others are about to use `promised_bytes` that they have asked for with
    /// [`may_grow`](Self::may_grow).
    pub fn touch_beside(&self, range: Range<u64>, promised_bytes: u64) -> Result<()> {
        self.space.touch(&range, promised_bytes)
    }

    /// Asks for leave to write to `bytes` that have never been touched: [`Error::Exhausted`] if the
    /// system would end a program for it. Whoever has it is expected to do so.
    pub fn may_grow(&self, bytes: u64) -> Result<()> {
        self.space.may_take(bytes)
    }

    /// Gives the whole pieces of shared memory in `range` to the others; they cannot be used until
    /// they are touched again, and what was in them is lost. Returns the bytes that other processes
    /// still wait for. Private memory stays.
    pub fn release(&self, range: Range<u64>) -> Result<u64> {
        self.space.release(&range)
    }

    /// Bytes of shared memory that other processes could not have because there were no more.
    pub fn wanted_by_others(&self) -> u64 {
        self.space.wanted_by_others()
    }

    /// Has the system keep all of it in memory, in one piece, until the last slot is gone. What is
    /// not touched yet is touched by it.
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
        // Copied under the lock: where a host layer is used by reading and writing it has no slots,
        // so that nobody but other copies waits.
        let _table = self.space.unclaimed(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: the place lies inside the mapping, there is memory behind it, no slot overlaps
        // it, and none can be made while the lock is held; `bytes` cannot overlap it either, as
        // only a slot gives out references to the mapping.
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

/// The exclusive right to a piece of host memory. The bytes are what was there before; dropping it
/// gives the piece back.
pub struct Slot {
    space: Arc<Space>,
    range: Range<u64>,
}

impl Slot {
    /// Ends writing: from here on the bytes can be shared and do not change.
    pub fn seal(self) -> Sealed {
        Sealed(Arc::new(self))
    }

    /// Gives back all but the first `bytes`, rounded up to the unit of layers.
    pub fn shorten(&mut self, bytes: u64) {
        let end = self.range.start + layer::aligned(bytes);
        if end < self.range.end {
            self.range.end = end;
            self.space.table().slots.insert(self.range.start, end);
        }
    }

    /// Where it lies in its host layer.
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
        // SAFETY: the range lies inside the mapping, which lives as long as the slot; there is
        // memory behind it, which is not given back while there is a slot; its bytes are
        // initialised, as the system maps zeroes; and no other slot overlaps it, so that only this
        // one, by `&mut`, can change them.
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

/// The shared right to read a piece of host memory. The piece is given back when the last one is
/// dropped.
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

/// Whether `range` is an aligned part of `capacity` bytes; an error for `layer` if not.
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
