//! The interface of all layers: a range of bytes that is read and written at aligned offsets.

use std::{io, ops::Range};

use smallvec::SmallVec;

use crate::{Error, Front, Result, Sealed, Slot, host::check_range};

/// Offsets and lengths on a layer are multiples of this, so that every transfer can use O_DIRECT.
pub const ALIGN: u64 = 4096;

/// `bytes` rounded up to the alignment of layers. Even 0 bytes take one unit, so that they have a
/// place.
pub fn aligned(bytes: u64) -> u64 {
    bytes.clamp(1, u64::MAX - ALIGN + 1).div_ceil(ALIGN) * ALIGN
}

/// Where a snapshot lies on a layer: in one piece if there was room for that, otherwise in several.
pub type Extents = SmallVec<[Range<u64>; 1]>;

/// Something that holds bytes.
///
/// A layer does not know what is stored in it. Its user makes sure that no two transfers overlap,
/// and that offsets and lengths are multiples of [`ALIGN`].
pub trait Layer: Send + Sync {
    /// A short name for messages and statistics, such as `host` or `dir scratch`.
    fn name(&self) -> &str;

    /// How many bytes it may hold; `None` without a limit. A transfer beyond that fails and changes
    /// nothing.
    fn capacity(&self) -> Option<u64>;

    /// If bytes stay on it after `forget`: how many bytes belong to no known snapshot. They count
    /// against the capacity, and the layer's user makes sure that it is not exceeded.
    fn kept_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes `bytes` at `at`. They may be reused when this returns.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Fills `bytes` with what was last written at `at`.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Carries out all transfers of `feed`, and returns when it has no more.
    ///
    /// A layer that is faster with several transfers in flight asks for the next one before the
    /// last has ended.
    fn run(&self, feed: &mut dyn Feed) {
        run_in_turn(self, feed);
    }

    /// Snapshot `key` is about to be written to these extents. Called before its first transfer.
    fn begin(&self, _key: u64, _extents: &Extents) -> Result<()> {
        Ok(())
    }

    /// All of snapshot `key` has been written. A layer that survives the program makes the snapshot
    /// durable here.
    fn complete(&self, _key: u64) -> Result<()> {
        Ok(())
    }

    /// The copy of snapshot `key` is not needed any more, or is incomplete.
    fn forget(&self, _key: u64) {}

    /// This layer as a possible front, if it is memory.
    fn front(&self) -> Option<&dyn Front> {
        None
    }
}

/// A source of transfers for a layer, which also receives their results.
pub trait Feed {
    /// The next transfer, or `None` if there is none at present.
    fn next(&mut self) -> Option<Transfer>;

    /// Returns a transfer. Called exactly once for each, in any order.
    fn done(&mut self, transfer: Transfer, result: Result<()>);
}

/// A transfer between memory and a layer.
#[derive(Debug)]
pub struct Transfer {
    /// Chosen by the feed, to recognise it.
    pub tag: u64,
    /// Where on the layer. Their total length is that of the memory.
    pub extents: Extents,
    /// The memory, and the direction.
    pub memory: Memory,
}

/// The memory of a transfer. The transfer owns it, so that nobody else can access it meanwhile.
#[derive(Debug)]
pub enum Memory {
    /// To be written to the layer.
    Write(Sealed),
    /// To be filled from the layer.
    Read(Slot),
}

impl Transfer {
    /// Returns an error for `layer` unless all extents are aligned parts of `capacity` bytes, and
    /// their total length is that of the memory. A layer checks this before it moves the first
    /// byte.
    pub fn check(&self, layer: &str, capacity: u64) -> Result<()> {
        let mut total: u64 = 0;
        for extent in &self.extents {
            check_range(layer, extent, capacity)?;
            total += extent.end - extent.start;
        }
        let bytes = self.memory.bytes();
        if total == bytes {
            return Ok(());
        }
        let reason = format!("the extents are {total} bytes long and the memory {bytes}");
        Err(Error::transfer(layer, "transfer", io::Error::new(io::ErrorKind::InvalidInput, reason)))
    }
}

impl Memory {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Write(sealed) => sealed.len() as u64,
            Self::Read(slot) => slot.len() as u64,
        }
    }
}

/// Carries out one transfer after the other through `read` and `write`. The default of `run`.
pub(crate) fn run_in_turn<L: Layer + ?Sized>(layer: &L, feed: &mut dyn Feed) {
    while let Some(mut transfer) = feed.next() {
        let result = carry_out(layer, &mut transfer);
        feed.done(transfer, result);
    }
}

pub(crate) fn carry_out<L: Layer + ?Sized>(layer: &L, transfer: &mut Transfer) -> Result<()> {
    transfer.check(layer.name(), layer.capacity().unwrap_or(u64::MAX))?;
    let mut from = 0;
    for extent in &transfer.extents {
        let piece = from..from + (extent.end - extent.start) as usize;
        match &mut transfer.memory {
            Memory::Write(sealed) => layer.write(extent.start, &sealed[piece.clone()])?,
            Memory::Read(slot) => layer.read(extent.start, &mut slot[piece.clone()])?,
        }
        from = piece.end;
    }
    Ok(())
}
