//! Hashes of blocks, computed by a device: of host memory, which is copied to it piece by piece,
//! and of memory that is on the device already.
//!
//! Several streams take turns. While one copies a piece to the device, another hashes, and a third
//! copies hashes back. The kernels are in `kernels/hash.c`.

use std::{
    collections::VecDeque,
    ffi::CStr,
    fmt,
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_memory::{Pages, Private};

use super::{Buffer, Device, DeviceLayer, Event, Place, Registration, Stream};
use crate::{Error, Result};

/// The number of streams: one for each thing that goes on at the same time.
const STREAMS: usize = 3;

/// How much is copied to the device at a time, unless a single block is longer. Long enough that
/// the start of a kernel does not matter, and that a device has many blocks to hash at once.
const PIECE_BYTES: usize = 8 << 20;

/// The largest number of blocks that are hashed at a time.
const PIECE_BLOCKS_MAX: usize = 1 << 16;

/// The length of a hash.
const HASH_BYTES: usize = 16;

/// The number of threads in a group of the kernels.
pub(super) const GROUP_THREADS: usize = 64;

/// A hash that devices can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceHash {
    /// XXH3 with 128 bits, the most significant byte first.
    Xxh3,
    /// MD5.
    Md5,
}

impl DeviceHash {
    /// The name of its kernel.
    pub(super) fn function(self) -> &'static CStr {
        match self {
            Self::Xxh3 => c"outcrop_hash_xxh3",
            Self::Md5 => c"outcrop_hash_md5",
        }
    }

    /// How many threads hash so many blocks, in whole groups.
    pub(super) fn threads(self, blocks: usize) -> usize {
        let threads_per_block = match self {
            Self::Xxh3 => 8,
            Self::Md5 => 1,
        };
        (blocks * threads_per_block).next_multiple_of(GROUP_THREADS)
    }
}

/// Consecutive blocks on a device, and where their hashes go.
#[derive(Debug, Clone, Copy)]
pub struct HashBlocks {
    /// The first byte of the first block.
    pub at: Place,
    /// The length of all blocks together.
    pub bytes: usize,
    /// The length of each block except the last one, which may be shorter.
    pub block_bytes: usize,
    /// Room for 16 bytes per block, at the start of a buffer.
    pub hashes: Place,
}

/// Hashes blocks on a device.
///
/// It takes memory when it is first used: three times 8 MiB of the device, or three blocks if those
/// are longer; the same of host memory if the device needs registered memory; and room for hashes.
/// One call is served at a time.
pub struct DeviceHasher {
    device: Arc<dyn Device>,
    kind: DeviceHash,
    /// Made when they are first needed, and again after an error.
    stagings: Mutex<Vec<Staging>>,
}

/// A stream, with the memory that it works in.
struct Staging {
    /// Dropped first, because that waits for everything that uses the memory.
    stream: Box<dyn Stream>,
    blocks: Option<Buffer>,
    hashes: Buffer,
    /// Where blocks are copied from, if that must be registered memory.
    blocks_on_host: Option<HostMemory>,
    hashes_on_host: HostMemory,
}

/// Host memory that the device may use while the program goes on.
struct HostMemory {
    /// Before the memory, because fields are dropped in this order.
    _registration: Option<Registration>,
    memory: Private,
}

/// A part of a piece.
#[derive(Clone, Copy)]
enum Source<'bytes> {
    Host(&'bytes [u8]),
    Device(Place, usize),
}

/// Pieces that a device hashes at present. Dropping it waits for all of them, so that the program's
/// memory is not used any more, not even after an error or a panic.
struct Flight<'call> {
    hasher: &'call DeviceHasher,
    stagings: MutexGuard<'call, Vec<Staging>>,
    block_bytes: usize,
    /// Where the hashes of all further pieces go.
    rest: &'call mut [[u8; HASH_BYTES]],
    under_way: VecDeque<Piece<'call>>,
    begun: usize,
}

/// A piece under way.
struct Piece<'call> {
    staging: usize,
    end: Box<dyn Event>,
    hashes: &'call mut [[u8; HASH_BYTES]],
}

impl DeviceHasher {
    /// A hasher on this device.
    pub fn new(device: Arc<dyn Device>, kind: DeviceHash) -> Self {
        Self { device, kind, stagings: Mutex::default() }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The hash.
    pub fn kind(&self) -> DeviceHash {
        self.kind
    }

    /// Hashes the consecutive blocks of each of `stretches` of host memory into `hashes`. All
    /// blocks have `block_bytes`, except the last one of a stretch. After an error, the hashes
    /// mean nothing.
    ///
    /// # Panics
    ///
    /// If `block_bytes` is 0 or `hashes` does not have exactly one element for each block.
    pub fn hash(&self, stretches: &[&[u8]], block_bytes: usize, hashes: &mut [[u8; HASH_BYTES]]) -> Result<()> {
        let lengths = stretches.iter().map(|stretch| stretch.len() as u64);
        check_room(lengths, block_bytes, hashes.len());
        self.fly(block_bytes, hashes, |flight| {
            let room = (PIECE_BYTES / block_bytes).clamp(1, PIECE_BLOCKS_MAX) * block_bytes;
            let (mut piece, mut bytes) = (Vec::new(), 0);
            for mut stretch in stretches.iter().copied() {
                while !stretch.is_empty() {
                    let (part, others) = stretch.split_at(stretch.len().min(room - bytes));
                    stretch = others;
                    piece.push(Source::Host(part));
                    bytes += part.len();
                    // A short block can only be the last one of a piece.
                    if bytes == room || !bytes.is_multiple_of(block_bytes) {
                        flight.begin(&piece, bytes)?;
                        (piece, bytes) = (Vec::new(), 0);
                    }
                }
            }
            flight.begin(&piece, bytes)
        })
    }

    /// Hashes the blocks of a part of a buffer on this device, without moving it to the host. The
    /// program must have waited for everything that changes the buffer.
    ///
    /// # Panics
    ///
    /// As [`hash`](Self::hash).
    pub fn hash_buffer(
        &self,
        buffer: &Buffer,
        offset: u64,
        bytes: u64,
        block_bytes: usize,
        hashes: &mut [[u8; HASH_BYTES]],
    ) -> Result<()> {
        check_room([bytes], block_bytes, hashes.len());
        let place = buffer.place(&*self.device, offset, bytes)?;
        self.fly(block_bytes, hashes, |flight| flight.begin_in_place([(place, bytes as usize)]))
    }

    /// Hashes the blocks of a range of a layer on this device, without moving it to the host. Only
    /// a block that lies in two chunks is copied, within the device.
    ///
    /// # Panics
    ///
    /// As [`hash`](Self::hash).
    pub fn hash_layer(
        &self,
        layer: &DeviceLayer,
        at: u64,
        bytes: u64,
        block_bytes: usize,
        hashes: &mut [[u8; HASH_BYTES]],
    ) -> Result<()> {
        check_room([bytes], block_bytes, hashes.len());
        if layer.device().identity() != self.device.identity() {
            let (device, other) = (self.device.name().to_owned(), layer.device().name().to_owned());
            return Err(Error::OtherDevice { device, other });
        }
        let pieces = layer.pieces(at..at.saturating_add(bytes))?;
        let places = pieces.iter().map(|piece| (piece.place, piece.bytes));
        self.fly(block_bytes, hashes, |flight| flight.begin_in_place(places))
    }

    /// Begins pieces as `begin` says, and waits for all of them.
    fn fly<'call>(
        &'call self,
        block_bytes: usize,
        hashes: &'call mut [[u8; HASH_BYTES]],
        begin: impl FnOnce(&mut Flight<'call>) -> Result<()>,
    ) -> Result<()> {
        let stagings = self.stagings.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = VecDeque::with_capacity(STREAMS);
        let mut flight = Flight { hasher: self, stagings, block_bytes, rest: hashes, under_way, begun: 0 };
        let outcome = begin(&mut flight).and_then(|()| flight.finish_all());
        if outcome.is_err() {
            flight.settle();
            // A stream that has failed is not used again.
            flight.stagings.clear();
        }
        outcome
    }
}

/// # Panics
///
/// If there is not exactly one hash for each block.
fn check_room(stretches: impl IntoIterator<Item = u64>, block_bytes: usize, hashes: usize) {
    assert!(block_bytes > 0, "a block has at least one byte");
    let blocks: u64 = stretches.into_iter().map(|bytes| bytes.div_ceil(block_bytes as u64)).sum();
    assert_eq!(blocks, hashes as u64, "one hash for each block");
}

impl<'call> Flight<'call> {
    /// Begins to hash the blocks of consecutive places where they are. A block that lies in several
    /// places is put together first.
    fn begin_in_place(&mut self, places: impl IntoIterator<Item = (Place, usize)>) -> Result<()> {
        let block_bytes = self.block_bytes;
        let (mut parted, mut parted_bytes) = (Vec::new(), 0);
        for (place, bytes) in places {
            let part = |at: usize, length| Source::Device(Place { offset: place.offset + at as u64, ..place }, length);
            let mut at = 0;
            if parted_bytes > 0 {
                at = bytes.min(block_bytes - parted_bytes);
                parted.push(part(0, at));
                parted_bytes += at;
                if parted_bytes < block_bytes {
                    continue;
                }
                self.begin(&std::mem::take(&mut parted), std::mem::take(&mut parted_bytes))?;
            }
            while bytes - at >= block_bytes {
                let length = ((bytes - at) / block_bytes).min(PIECE_BLOCKS_MAX) * block_bytes;
                self.begin(&[part(at, length)], length)?;
                at += length;
            }
            if at < bytes {
                parted.push(part(at, bytes - at));
                parted_bytes = bytes - at;
            }
        }
        self.begin(&parted, parted_bytes)
    }

    /// Begins to hash one piece: where it is, if that is one place on the device, or copied there.
    fn begin(&mut self, piece: &[Source<'_>], bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        if self.under_way.len() == STREAMS {
            self.finish_oldest()?;
        }
        let index = self.begun % STREAMS;
        if index == self.stagings.len() {
            self.stagings.push(Staging::new(&*self.hasher.device)?);
        }
        let blocks = bytes.div_ceil(self.block_bytes);
        let staging = &mut self.stagings[index];
        let at = match *piece {
            [Source::Device(place, _)] => place,
            _ => {
                let room = staging.room(&*self.hasher.device, self.block_bytes)?;
                // SAFETY: the sources are live until the flight has waited for the stream, and
                // there is room for a piece.
                unsafe { staging.begin_copies(piece, bytes, room) }?;
                room
            }
        };
        let hashes = Place { handle: staging.hashes.handle(), offset: 0 };
        let blocks_there = HashBlocks { at, bytes, block_bytes: self.block_bytes, hashes };
        let stream = &mut staging.stream;
        // SAFETY: the place is part of a live buffer, and there is room for this many hashes, on
        // the device and in host memory, which is registered if it must be. The flight waits for
        // the stream before anybody reads the hashes or frees the memory.
        let end = unsafe {
            stream.begin_hash(self.hasher.kind, blocks_there)?;
            stream.begin_copy_out(hashes, staging.hashes_on_host.memory.as_mut_ptr(), blocks * HASH_BYTES)?;
            stream.record()?
        };
        let (hashes, rest) = std::mem::take(&mut self.rest).split_at_mut(blocks);
        self.rest = rest;
        self.under_way.push_back(Piece { staging: index, end, hashes });
        self.begun += 1;
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        // It stays in the queue until it has ended, for the case that waiting panics.
        let Some(oldest) = self.under_way.front() else { return Ok(()) };
        oldest.end.wait()?;
        if let Some(piece) = self.under_way.pop_front() {
            let found = &self.stagings[piece.staging].hashes_on_host.memory;
            piece.hashes.copy_from_slice(&found.as_chunks().0[..piece.hashes.len()]);
        }
        Ok(())
    }

    fn finish_all(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// Waits until the device uses no memory of this call.
    fn settle(&mut self) {
        for staging in &mut *self.stagings {
            // If waiting fails, the device does nothing any more.
            if let Err(error) = staging.stream.wait() {
                tracing::debug!(device = self.hasher.device.name(), %error, "a stream failed");
            }
        }
        self.under_way.clear();
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.under_way.is_empty() || std::thread::panicking() {
            self.settle();
        }
    }
}

impl Staging {
    fn new(device: &dyn Device) -> Result<Self> {
        let hashes_bytes = PIECE_BLOCKS_MAX * HASH_BYTES;
        Ok(Self {
            stream: device.stream()?,
            blocks: None,
            hashes: device.buffer(hashes_bytes as u64)?,
            blocks_on_host: None,
            hashes_on_host: HostMemory::new(device, hashes_bytes)?,
        })
    }

    /// Room on the device for a piece of blocks.
    fn room(&mut self, device: &dyn Device, block_bytes: usize) -> Result<Place> {
        let bytes = PIECE_BYTES.max(block_bytes);
        let blocks = match self.blocks.take() {
            Some(blocks) if blocks.bytes() >= bytes as u64 => blocks,
            old => {
                // Nothing is under way in this stream. The old memory is freed before the new is
                // taken.
                drop(old);
                self.blocks_on_host = None;
                if device.needs_registration() {
                    self.blocks_on_host = Some(HostMemory::new(device, bytes)?);
                }
                device.buffer(bytes as u64)?
            }
        };
        Ok(Place { handle: self.blocks.insert(blocks).handle(), offset: 0 })
    }

    /// Begins to copy a piece to its room on the device.
    ///
    /// # Safety
    ///
    /// The sources must be live, and host memory unchanged, until the stream has been waited for.
    /// The piece must not be longer than the room.
    unsafe fn begin_copies(&mut self, piece: &[Source<'_>], bytes: usize, room: Place) -> Result<()> {
        let mut at = 0;
        for source in piece {
            let to = Place { offset: at as u64, ..room };
            at += match (*source, &mut self.blocks_on_host) {
                (Source::Host(part), Some(host)) => {
                    host.memory[at..at + part.len()].copy_from_slice(part);
                    part.len()
                }
                (Source::Host(part), None) => {
                    // SAFETY: the device needs no registered memory; the caller guarantees the
                    // rest.
                    unsafe { self.stream.begin_copy_in(part.as_ptr(), to, part.len()) }?;
                    part.len()
                }
                (Source::Device(from, length), _) => {
                    // SAFETY: the caller guarantees both places; the room is in nobody else's
                    // buffer.
                    unsafe { self.stream.begin_copy_within(from, to, length) }?;
                    length
                }
            };
        }
        if let (Some(host), Some(Source::Host(_))) = (&self.blocks_on_host, piece.first()) {
            // SAFETY: the memory is registered, and belongs to this value.
            unsafe { self.stream.begin_copy_in(host.memory.as_ptr(), room, bytes) }?;
        }
        Ok(())
    }
}

impl HostMemory {
    fn new(device: &dyn Device, bytes: usize) -> Result<Self> {
        let memory = Private::new(bytes, Pages::Huge).map_err(|error| Error::memory(device.name(), error))?;
        let address = NonNull::new(memory.mapping().address(0)).filter(|_| device.needs_registration());
        // SAFETY: the value created here keeps the memory, and drops the registration first.
        let register = |address| unsafe { device.register(address, memory.len()) };
        Ok(Self { _registration: address.map(register).transpose()?, memory })
    }
}

impl fmt::Debug for DeviceHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceHasher").field("device", &self.device.name()).field("kind", &self.kind).finish()
    }
}
