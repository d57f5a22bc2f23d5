//! Layers that consist of files: turns transfers of the layer into transfers of files.

use std::{io, ops::Range, ptr::NonNull, sync::Arc};

use outcrop_io::{Carrier, CarrierOptions, Direction, Pieces, SetupError};
use outcrop_memory::Mapping;

use crate::{Error, Feed, Layer, Memory, Result, Transfer, host::check_range};

/// Without O_DIRECT, so many bytes are brought to the medium at once. A flush (fdatasync) for each
/// transfer would take longer than the transfers.
const SETTLE_BYTES: u64 = 16 << 20;

/// Maps the bytes of a layer to places in files.
pub(crate) trait Places: Layer {
    /// Adds the places in files for `range` of the layer, in order.
    ///
    /// For reading, all of it must have been written. For writing, this allocates space if
    /// necessary. From then until `settle`, the range cannot be read, because it has neither the
    /// old nor the new bytes.
    fn find(&self, range: &Range<u64>, direction: Direction, pieces: &mut Pieces) -> Result<()>;

    /// Records that these ranges have been moved.
    fn settle(&self, _ranges: &[Range<u64>], _direction: Direction) -> io::Result<()> {
        Ok(())
    }
}

/// The carrier for transfers of the layer in `path`.
pub(crate) fn carrier(path: &std::path::Path, options: &CarrierOptions) -> Result<Carrier> {
    Carrier::new(options).map_err(|error| {
        let (attempt, remedy, source) = match error {
            SetupError::NoUring(source) => (
                "set up io_uring",
                "let this program use io_uring (sysctl kernel.io_uring_disabled, seccomp), or set OUTCROP_IO=blocking",
                source,
            ),
            SetupError::UnknownMethod(value) => (
                "read the environment variable OUTCROP_IO",
                "set OUTCROP_IO to uring or blocking, or unset it",
                io::Error::new(io::ErrorKind::InvalidInput, format!("{value:?} is neither")),
            ),
        };
        Error::Directory { path: path.to_owned(), attempt, remedy, source }
    })
}

/// Carries out all transfers of `feed`.
pub(crate) fn run<P: Places>(places: &P, carrier: &Carrier, feed: &mut dyn Feed) {
    carrier.run(&mut InFiles { places, feed, in_flight: 0, unsettled: Vec::new(), unsettled_bytes: 0 });
}

/// Writes `bytes` at `at` of the layer.
pub(crate) fn write<P: Places>(places: &P, carrier: &Carrier, at: u64, bytes: &[u8]) -> Result<()> {
    let (direction, mut rest) = (Direction::Write, bytes);
    move_range(places, direction, at, bytes.len(), |piece| {
        let (part, later) = rest.split_at(piece.bytes as usize);
        rest = later;
        carrier.write(&piece.file, piece.offset, part)
    })
}

/// Fills `bytes` from `at` of the layer.
pub(crate) fn read<P: Places>(places: &P, carrier: &Carrier, at: u64, bytes: &mut [u8]) -> Result<()> {
    let (direction, length, mut rest) = (Direction::Read, bytes.len(), bytes);
    move_range(places, direction, at, length, |piece| {
        let part = rest.split_off_mut(..piece.bytes as usize).unwrap_or_default();
        carrier.read(&piece.file, piece.offset, part)
    })
}

fn move_range<P: Places>(
    places: &P,
    direction: Direction,
    at: u64,
    bytes: usize,
    move_piece: impl FnMut(&outcrop_io::Piece) -> io::Result<()>,
) -> Result<()> {
    let range = at..at.saturating_add(bytes as u64);
    check_range(places.name(), &range, places.capacity().unwrap_or(u64::MAX))?;
    let mut pieces = Pieces::new();
    places.find(&range, direction, &mut pieces)?;
    let moved = pieces.iter().try_for_each(move_piece).and_then(|()| places.settle(&[range], direction));
    moved.map_err(|source| failure(places, direction, source))
}

fn failure<P: Places>(places: &P, direction: Direction, source: io::Error) -> Error {
    let attempt = match direction {
        Direction::Write => "write",
        Direction::Read => "read",
    };
    Error::transfer(places.name(), attempt, source)
}

/// The transfers of a layer, as transfers of files.
struct InFiles<'run, P> {
    places: &'run P,
    feed: &'run mut dyn Feed,
    in_flight: usize,
    /// What has been written into the page cache, and is not on the medium yet.
    unsettled: Vec<Transfer>,
    unsettled_bytes: u64,
}

impl<P: Places> InFiles<'_, P> {
    fn pieces(&self, transfer: &Transfer) -> Result<Pieces> {
        transfer.check(self.places.name(), self.places.capacity().unwrap_or(u64::MAX))?;
        let mut pieces = Pieces::new();
        for extent in &transfer.extents {
            self.places.find(extent, transfer.memory.direction(), &mut pieces)?;
        }
        Ok(pieces)
    }

    /// Ends all that was written into the page cache.
    fn settle(&mut self) {
        let ranges: Vec<_> = self.unsettled.iter().flat_map(|transfer| transfer.extents.iter().cloned()).collect();
        let settled = self.places.settle(&ranges, Direction::Write);
        self.unsettled_bytes = 0;
        for transfer in self.unsettled.drain(..) {
            let again =
                |source: &io::Error| source.raw_os_error().map_or(source.kind().into(), io::Error::from_raw_os_error);
            let result = settled.as_ref().map_err(|source| failure(self.places, Direction::Write, again(source)));
            self.feed.done(transfer, result.copied());
        }
    }
}

impl<P: Places> outcrop_io::Feed<Transfer> for InFiles<'_, P> {
    fn next(&mut self) -> Option<outcrop_io::Transfer<Transfer>> {
        loop {
            if self.unsettled_bytes >= SETTLE_BYTES {
                self.settle();
            }
            let Some(transfer) = self.feed.next() else {
                if self.in_flight > 0 || self.unsettled.is_empty() {
                    return None;
                }
                self.settle();
                continue;
            };
            let direction = transfer.memory.direction();
            match self.pieces(&transfer) {
                Ok(pieces) => {
                    self.in_flight += 1;
                    return Some(outcrop_io::Transfer { memory: transfer, direction, pieces });
                }
                Err(error) => self.feed.done(transfer, Err(error)),
            }
        }
    }

    fn done(&mut self, ended: outcrop_io::Transfer<Transfer>, result: io::Result<()>) {
        self.in_flight -= 1;
        let is_cached = ended.direction == Direction::Write && ended.pieces.iter().any(|piece| !piece.file.is_direct());
        let (transfer, direction) = (ended.memory, ended.direction);
        if is_cached && result.is_ok() {
            self.unsettled_bytes += transfer.memory.bytes();
            self.unsettled.push(transfer);
            return;
        }
        let result = result.and_then(|()| self.places.settle(&transfer.extents, direction));
        self.feed.done(transfer, result.map_err(|source| failure(self.places, direction, source)));
    }
}

impl Memory {
    fn direction(&self) -> Direction {
        match self {
            Self::Write(_) => Direction::Write,
            Self::Read(_) => Direction::Read,
        }
    }
}

// SAFETY: a slot keeps its memory in place until it is dropped; no other slot overlaps it, and
// sealed bytes do not change.
unsafe impl outcrop_io::Memory for Transfer {
    fn bytes(&mut self) -> NonNull<[u8]> {
        match &mut self.memory {
            Memory::Write(sealed) => NonNull::from(&**sealed),
            Memory::Read(slot) => NonNull::from(&mut **slot),
        }
    }

    fn is_exclusive(&self) -> bool {
        matches!(self.memory, Memory::Read(_))
    }

    fn mapping(&self) -> Option<(&Arc<Mapping>, u64)> {
        let slot = match &self.memory {
            Memory::Write(sealed) => sealed.slot(),
            Memory::Read(slot) => slot,
        };
        Some((slot.mapping(), slot.range().start))
    }
}
