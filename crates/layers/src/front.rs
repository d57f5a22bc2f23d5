//! Memory that can be the front of a stack: saves enter it, and reads are handed over from it.
//!
//! The engine asks a [`Front`] what it can do, and never which kind of memory it is. Host memory is
//! addressable: a [`Room`] is a slot that the program fills, and a [`Kept`] snapshot is read in
//! place. Device memory is not: there a room is only a range of addresses, and the front copies in
//! and out.

use std::{
    io,
    ops::{Deref, DerefMut, Range},
};

use outcrop_memory::Copier;

use crate::{Buffer, DeviceLayer, Error, Host, Layer, Result, Sealed, Slot};

/// What a front can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// The program and other layers can read and write its memory in place.
    pub is_addressable: bool,
    /// It can copy from and to the program's buffers on its device.
    pub takes_buffers: bool,
    /// Its memory must be touched before it can be used.
    pub needs_touch: bool,
    /// Other processes share the memory: unused memory should be released, and exhausted memory may
    /// become available again.
    pub is_shared: bool,
    /// The best unit for touching.
    pub piece_bytes: u64,
}

/// Memory that can be the front of a stack.
///
/// The default methods are those of addressable memory. A front without a [`host`](Self::host)
/// implements `fill`, `copy_out` and `slide` itself.
pub trait Front: Layer {
    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Its host memory, if it is addressable.
    fn host(&self) -> Option<&Host> {
        None
    }

    /// Lends `range`, which must be free, to a new snapshot.
    fn lend(&self, range: Range<u64>) -> Result<Room> {
        let slot = self.host().map(|host| host.slot(range.start, range.end.saturating_sub(range.start))).transpose()?;
        Ok(Room { range, slot })
    }

    /// Copies `bytes` of the program to offset `at` of a room.
    fn fill(&self, room: &mut Room, at: usize, bytes: &[u8], copier: &Copier) -> Result<()> {
        let slot = room.slot.as_mut().ok_or_else(|| unable(self, "fill a room"))?;
        copier.copy(&mut slot[at..at + bytes.len()], bytes);
        Ok(())
    }

    /// Copies the first bytes of a snapshot to the program.
    fn copy_out(&self, kept: &Kept, bytes: &mut [u8], copier: &Copier) -> Result<()> {
        let sealed = kept.sealed.as_ref().ok_or_else(|| unable(self, "copy a snapshot out"))?;
        copier.copy(bytes, &sealed[..bytes.len()]);
        Ok(())
    }

    /// Moves a snapshot that nobody reads to `to`. The old and the new range may overlap.
    fn slide(&self, kept: Kept, to: u64) -> Result<Kept> {
        match (self.host(), kept.sealed) {
            (Some(host), Some(sealed)) => {
                let range = to..to + (kept.range.end - kept.range.start);
                Ok(Kept { range, sealed: Some(host.slide(sealed, to)?) })
            }
            _ => Err(unable(self, "slide a snapshot")),
        }
    }

    /// Returns an error if a buffer of the program does not belong to this front's device.
    fn check_buffer(&self, _buffer: &Buffer) -> Result<()> {
        Err(unable(self, "use a buffer"))
    }

    /// Fills the first `bytes` of a room from offset `offset` of a buffer.
    fn store(&self, _room: &mut Room, _buffer: &Buffer, _offset: u64, _bytes: u64) -> Result<()> {
        Err(unable(self, "copy from a buffer"))
    }

    /// Copies the first `bytes` of a snapshot to offset `offset` of a buffer.
    fn load(&self, _kept: &Kept, _buffer: &mut Buffer, _offset: u64, _bytes: u64) -> Result<()> {
        Err(unable(self, "copy to a buffer"))
    }

    /// Touches (pre-faults) the memory of `range`, while `promised_bytes` have been granted by
    /// [`may_grow`](Self::may_grow) and are not filled yet.
    fn touch(&self, range: Range<u64>, promised_bytes: u64) -> Result<()>;

    /// Asks for permission to write to `bytes` that were never touched. Returns
    /// [`Error::Exhausted`] if the system could kill the program because of that.
    fn may_grow(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// Gives unused memory to the other processes that share it.
    fn release(&self, _range: Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Pins all its memory, so that devices can access it directly.
    fn pin(&self) -> Result<()> {
        Ok(())
    }

    /// Pins the memory of a layer below in the way that suits transfers between it and this front
    /// best.
    fn pin_below(&self, below: &dyn Front) -> Result<()> {
        below.pin()
    }
}

/// A front's room for one snapshot, while it is being filled. Its bytes are empty if the front is
/// not addressable.
#[derive(Debug)]
pub struct Room {
    range: Range<u64>,
    slot: Option<Slot>,
}

impl Room {
    /// Room in a front that is not addressable.
    pub fn at(range: Range<u64>) -> Self {
        Self { range, slot: None }
    }

    /// Its range in the front.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Gives back all but the first `bytes`, rounded up to the alignment of layers, if the front is
    /// addressable. Returns whether it did.
    pub fn shorten(&mut self, bytes: u64) -> bool {
        let Some(slot) = &mut self.slot else { return false };
        slot.shorten(bytes);
        self.range = slot.range();
        true
    }

    /// Ends filling: from now on the bytes do not change.
    pub fn seal(self) -> Kept {
        Kept { range: self.range, sealed: self.slot.map(Slot::seal) }
    }
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slot.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.as_deref_mut().unwrap_or_default()
    }
}

/// A snapshot in a front. Its bytes are empty if the front is not addressable.
#[derive(Debug, Clone)]
pub struct Kept {
    range: Range<u64>,
    sealed: Option<Sealed>,
}

impl Kept {
    /// A snapshot at `range` of a front; `sealed` if the front is addressable.
    pub fn new(range: Range<u64>, sealed: Option<Sealed>) -> Self {
        Self { range, sealed }
    }

    /// Its range in the front.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The memory itself, if the front is addressable.
    pub fn into_sealed(self) -> Option<Sealed> {
        self.sealed
    }

    /// Whether the program can read it in place.
    pub fn is_addressable(&self) -> bool {
        self.sealed.is_some()
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.sealed.as_deref().unwrap_or_default()
    }
}

impl Front for Host {
    fn abilities(&self) -> Abilities {
        let is_shared = self.needs_touch();
        let piece_bytes = self.piece_bytes();
        Abilities { is_addressable: true, takes_buffers: false, needs_touch: is_shared, is_shared, piece_bytes }
    }

    fn host(&self) -> Option<&Host> {
        Some(self)
    }

    fn touch(&self, range: Range<u64>, promised_bytes: u64) -> Result<()> {
        self.touch_beside(range, promised_bytes)
    }

    fn may_grow(&self, bytes: u64) -> Result<()> {
        Self::may_grow(self, bytes)
    }

    fn release(&self, range: Range<u64>) -> Result<()> {
        Self::release(self, range).map(drop)
    }

    fn pin(&self) -> Result<()> {
        Self::pin(self)
    }
}

impl Front for DeviceLayer {
    fn abilities(&self) -> Abilities {
        let piece_bytes = self.chunk_bytes();
        Abilities { is_addressable: false, takes_buffers: true, needs_touch: true, is_shared: false, piece_bytes }
    }

    fn fill(&self, room: &mut Room, at: usize, bytes: &[u8], _copier: &Copier) -> Result<()> {
        self.copy_in(room.range.start + at as u64, bytes)
    }

    fn copy_out(&self, kept: &Kept, bytes: &mut [u8], _copier: &Copier) -> Result<()> {
        Self::copy_out(self, kept.range.start, bytes)
    }

    fn slide(&self, kept: Kept, to: u64) -> Result<Kept> {
        let range = to..to + (kept.range.end - kept.range.start);
        Self::slide(self, kept.range, to)?;
        Ok(Kept { range, sealed: None })
    }

    fn check_buffer(&self, buffer: &Buffer) -> Result<()> {
        Self::check_buffer(self, buffer)
    }

    fn store(&self, room: &mut Room, buffer: &Buffer, offset: u64, bytes: u64) -> Result<()> {
        Self::store(self, room.range.start, buffer, offset, bytes)
    }

    fn load(&self, kept: &Kept, buffer: &mut Buffer, offset: u64, bytes: u64) -> Result<()> {
        Self::load(self, kept.range.start, buffer, offset, bytes)
    }

    fn touch(&self, range: Range<u64>, _promised_bytes: u64) -> Result<()> {
        Self::touch(self, range)
    }

    fn pin_below(&self, below: &dyn Front) -> Result<()> {
        below.host().map_or_else(|| below.pin(), |host| self.register(host))
    }
}

fn unable<F: Front + ?Sized>(front: &F, attempt: &'static str) -> Error {
    Error::transfer(front.name(), attempt, io::Error::from(io::ErrorKind::Unsupported))
}
