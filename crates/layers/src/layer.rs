//! The contract that all layers share: a range of bytes that is read and written at aligned places.

use std::{io, ops::Range};

use smallvec::SmallVec;

use crate::{Error, Front, Result, Sealed, Slot, host::check_range};

/// Places and lengths on a layer are multiples of this, so that every transfer can bypass the page
/// cache.
pub const ALIGN: u64 = 4096;

/// `bytes` rounded up to the unit in which layers hold them; even nothing takes one unit, so that
/// it has a place.
pub fn aligned(bytes: u64) -> u64 {
    bytes.clamp(1, u64::MAX - ALIGN + 1).div_ceil(ALIGN) * ALIGN
}

/// Where a snapshot lies on a layer: one piece where there was room for one, else several.
pub type Extents = SmallVec<[Range<u64>; 1]>;

/// A place that holds bytes.
///
/// A layer does not know what is stored in it. Who uses it sees to it that no two transfers
/// overlap, and that places and lengths are multiples of [`ALIGN`].
pub trait Layer: Send + Sync {
    /// A short name for messages and statistics, such as `host` or `dir scratch`.
    fn name(&self) -> &str;

    /// The bytes that it may hold; none if it has no limit. A transfer beyond them fails and
    /// changes nothing.
    fn capacity(&self) -> Option<u64>;

    /// The bytes on it that belong to no snapshot which it was told of and has not been told to
    /// forget, if bytes stay on it after that. They count against its capacity, and whoever uses
    /// the layer sees to it that it is not exceeded.
    fn kept_bytes(&self) -> Option<u64> {
        None
    }

    /// Writes `bytes` at `at`. When it returns, the layer needs them no more.
    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Fills `bytes` with what was last written at `at`.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()>;

    /// Carries out every transfer that `feed` has, and returns when it has no more.
    ///
    /// A layer that is faster with several transfers under way asks for the next one before the
    /// last has ended.
    fn run(&self, feed: &mut dyn Feed) {
        run_in_turn(self, feed);
    }

    /// Snapshot `key` is about to be written to these places. Called before its first transfer.
    fn begin(&self, _key: u64, _extents: &Extents) -> Result<()> {
        Ok(())
    }

    /// All of snapshot `key` has been written. A layer that survives the program sees to it that
    /// this does as well.
    fn complete(&self, _key: u64) -> Result<()> {
        Ok(())
    }

    /// What lies here of snapshot `key` is not wanted any more, or has not been written whole.
    fn forget(&self, _key: u64) {}

    /// This layer as memory in which a stack can begin, if it is memory.
    fn front(&self) -> Option<&dyn Front> {
        None
    }
}

/// What a layer is to transfer next, and who is told when it has been.
pub trait Feed {
    /// The next transfer, or nothing for the moment.
    fn next(&mut self) -> Option<Transfer>;

    /// Takes a transfer back. Called exactly once for each, in any order.
    fn done(&mut self, transfer: Transfer, result: Result<()>);
}

/// Bytes on their way between memory and a layer.
#[derive(Debug)]
pub struct Transfer {
    /// Chosen by the feed, to know it again.
    pub tag: u64,
    /// Where on the layer; as long, together, as the memory.
    pub extents: Extents,
    /// Where in memory, and in which direction.
    pub memory: Memory,
}

/// The memory side of a transfer. It travels with the transfer, so that nobody can touch it
/// meanwhile.
#[derive(Debug)]
pub enum Memory {
    /// To be written to the layer.
    Write(Sealed),
    /// To be filled from the layer.
    Read(Slot),
}

impl Transfer {
    /// Whether all extents are aligned parts of `capacity` bytes, and together as long as the
    /// memory; an error for `layer` if not. A layer checks this before it moves the first byte.
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

/// One transfer after the other through `read` and `write`: what `run` does where it is not
/// overridden.
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
