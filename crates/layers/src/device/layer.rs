//! A cache in device memory that is usable before it is all there.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{Buffer, Device, Place, Reservation, Stream, checksum, flight::Flight, registered::Registered};
use crate::{Error, Feed, Front, Host, Layer, Result, aligned, host::check_range};

/// What slides at least so far is copied within the device; what slides less would be very many
/// small copies, and goes through the host in pieces of this size.
const FAR_BYTES: u64 = 1 << 20;

/// Device memory as a layer.
///
/// Its room is reserved at once, and memory is provided chunk by chunk with [`DeviceLayer::touch`],
/// which may go on while what is already there is used. What is not there yet is an error to use.
///
/// Copies between the cache and buffers of the program do not wait for kernels of the program: it
/// must have waited for whatever changes a buffer before it hands it over.
///
/// Once the device is lost, so is the layer: every later transfer fails without asking the driver
/// again.
pub struct DeviceLayer {
    name: String,
    capacity: u64,
    chunk_bytes: u64,
    /// Streams that nobody uses now.
    streams: Mutex<Vec<Box<dyn Stream>>>,
    /// The memory of each chunk, once it is mapped.
    chunks: Box<[OnceLock<Buffer>]>,
    reservation: Mutex<Box<dyn Reservation>>,
    registered: Registered,
    /// What the driver said when the device was lost.
    lost: OnceLock<String>,
    device: Arc<dyn Device>,
}

/// A part of a copy that lies in one chunk.
pub(super) struct Piece {
    pub(super) place: Place,
    /// Where it begins in the memory that is copied from or to.
    pub(super) memory_at: usize,
    pub(super) bytes: usize,
}

impl fmt::Debug for DeviceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceLayer")
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl DeviceLayer {
    /// Reserves `bytes`, rounded up to whole units, to be mapped in chunks of `chunk_bytes`, or
    /// what suits the device.
    pub fn new(device: Arc<dyn Device>, bytes: u64, chunk_bytes: Option<u64>) -> Result<Self> {
        let total_bytes = device.total_bytes();
        if bytes > total_bytes {
            let reason = format!("it has {total_bytes}");
            return Err(Error::DeviceFull { device: device.name().to_owned(), bytes, reason });
        }
        let granularity = device.granularity_bytes().max(1);
        let whole = |bytes: u64| bytes.max(1).div_ceil(granularity) * granularity;
        let capacity = aligned(bytes);
        let chunk_bytes = whole(aligned(chunk_bytes.unwrap_or_else(|| device.chunk_bytes()).min(capacity)));
        let reservation = device.reserve(whole(capacity))?;
        Ok(Self {
            name: format!("device {}", device.name()),
            capacity,
            chunk_bytes,
            streams: Mutex::default(),
            chunks: (0..capacity.div_ceil(chunk_bytes)).map(|_| OnceLock::new()).collect(),
            reservation: Mutex::new(reservation),
            registered: Registered::default(),
            lost: OnceLock::new(),
            device,
        })
    }

    /// The bytes that it has.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What is mapped at once.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The bytes that can be used already.
    pub fn mapped_bytes(&self) -> u64 {
        let mapped = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.get().is_some());
        mapped.map(|(index, _)| self.chunk(index)).map(|chunk| chunk.end.min(self.capacity) - chunk.start).sum()
    }

    /// The device that it lies on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Has the device provide the memory of every chunk that `range` has a part of. What was there
    /// stays as it is.
    pub fn touch(&self, range: Range<u64>) -> Result<()> {
        self.check_inside(&range)?;
        for index in self.chunks_of(&range) {
            self.check_alive()?;
            // Looked at under the lock, as another thread may be about to map the very same.
            let mut reservation = lock(&self.reservation);
            if self.chunks[index].get().is_none() {
                let buffer = self.notice(reservation.map(self.chunk(index)))?;
                let is_first = self.chunks[index].set(buffer).is_ok();
                debug_assert!(is_first, "chunks are mapped under the lock");
            }
        }
        Ok(())
    }

    /// Copies `bytes` into the cache at any place.
    pub fn copy_in(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let pieces = self.pieces(at..at.saturating_add(bytes.len() as u64))?;
        self.with_stream(|stream| {
            for piece in &pieces {
                // SAFETY: `pieces` are parts of mapped chunks, which live as long as the layer.
                unsafe { stream.copy_in(&bytes[piece.memory()], piece.place) }?;
            }
            Ok(())
        })
    }

    /// Copies what lies at any place of the cache into `bytes`.
    pub fn copy_out(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let pieces = self.pieces(at..at.saturating_add(bytes.len() as u64))?;
        self.with_stream(|stream| {
            for piece in &pieces {
                // SAFETY: as in `copy_in`.
                unsafe { stream.copy_out(piece.place, &mut bytes[piece.memory()]) }?;
            }
            Ok(())
        })
    }

    /// Copies `bytes` bytes at `offset` of a buffer of the program into the cache, within the
    /// device.
    pub fn store(&self, at: u64, buffer: &Buffer, offset: u64, bytes: u64) -> Result<()> {
        let from = buffer.place(&*self.device, offset, bytes)?;
        self.copy_within(at, bytes, |stream, piece| {
            // SAFETY: both places were checked to be inside live memory of this device.
            unsafe { stream.begin_copy_within(piece.beside(from), piece.place, piece.bytes) }
        })
    }

    /// Copies `bytes` bytes of the cache to `offset` of a buffer of the program, within the device.
    pub fn load(&self, at: u64, buffer: &mut Buffer, offset: u64, bytes: u64) -> Result<()> {
        let to = buffer.place(&*self.device, offset, bytes)?;
        self.copy_within(at, bytes, |stream, piece| {
            // SAFETY: as in `store`.
            unsafe { stream.begin_copy_within(piece.place, piece.beside(to), piece.bytes) }
        })
    }

    /// An error if a buffer of the program is one of another device.
    pub fn check_buffer(&self, buffer: &Buffer) -> Result<()> {
        buffer.place(&*self.device, 0, 0).map(drop)
    }

    /// Moves what lies in the cache to another place of it, which may overlap the old one.
    pub fn slide(&self, from: Range<u64>, to: u64) -> Result<()> {
        self.check_inside(&from)?;
        let bytes = from.end - from.start;
        self.check_inside(&(to..to.saturating_add(bytes)))?;
        let distance = from.start.abs_diff(to);
        if distance == 0 {
            return Ok(());
        }
        let is_far = distance >= FAR_BYTES;
        // No step overwrites what a later one reads. Within the device no step may overlap its own
        // target either.
        let step_bytes = if is_far { distance } else { FAR_BYTES };
        let mut steps: Vec<u64> = (0..bytes).step_by(step_bytes as usize).collect();
        if to > from.start {
            steps.reverse();
        }
        let mut bounce = vec![0; if is_far { 0 } else { FAR_BYTES.min(bytes) as usize }];
        for step in steps {
            let part = from.start + step..from.start + bytes.min(step + step_bytes);
            if is_far {
                self.copy_inside(part, to + step)?;
            } else {
                let bounce = &mut bounce[..(part.end - part.start) as usize];
                self.copy_out(part.start, bounce)?;
                self.copy_in(to + step, bounce)?;
            }
        }
        Ok(())
    }

    /// Copies to a place of the cache that does not overlap the old one.
    fn copy_inside(&self, from: Range<u64>, to: u64) -> Result<()> {
        let sources = self.pieces(from)?;
        self.with_stream(|stream| {
            for source in &sources {
                let at = to + source.memory_at as u64;
                for target in self.pieces(at..at + source.bytes as u64)? {
                    // SAFETY: both places are parts of mapped chunks, which live as long as the
                    // layer.
                    unsafe { stream.begin_copy_within(target.beside(source.place), target.place, target.bytes) }?;
                }
            }
            stream.wait()
        })
    }

    fn copy_within(
        &self,
        at: u64,
        bytes: u64,
        mut begin: impl FnMut(&mut dyn Stream, &Piece) -> Result<()>,
    ) -> Result<()> {
        let pieces = self.pieces(at..at.saturating_add(bytes))?;
        self.with_stream(|stream| {
            for piece in &pieces {
                begin(stream, piece)?;
            }
            stream.wait()
        })
    }

    /// The checksum of what lies in the cache, computed by the device, so that nothing but the
    /// checksum is moved. [`checksum`](crate::checksum) is the same for host memory. The place must
    /// be a multiple of eight bytes.
    pub fn checksum(&self, at: u64, bytes: u64) -> Result<u64> {
        let range = at..at.saturating_add(bytes);
        if !at.is_multiple_of(8) {
            return Err(Error::OutOfRange { layer: self.name.clone(), range, capacity: self.capacity });
        }
        let pieces = self.pieces(range)?;
        let mut sum: u64 = 0;
        self.with_stream(|stream| {
            for piece in &pieces {
                // SAFETY: `pieces` are parts of mapped chunks, whose lengths are multiples of
                // eight, as is the place.
                sum = sum
                    .wrapping_add(unsafe { stream.sum_words(piece.place, piece.memory_at as u64 / 8, piece.bytes) }?);
            }
            Ok(())
        })?;
        Ok(checksum::finish(sum, bytes))
    }

    /// Page-locks all of a host layer in one piece, so that several copies from and to it can be
    /// under way at once. It takes long, the more so if the memory has not been touched, and lasts
    /// until the host layer or this one is gone.
    ///
    /// Until then, and if it fails, transfers go on one by one. On devices that need no such thing
    /// it does nothing.
    pub fn register(&self, host: &Host) -> Result<()> {
        self.check_alive()?;
        if !self.device.needs_registration() {
            return Ok(());
        }
        self.notice(self.registered.add(&*self.device, host.mapping()))
    }

    /// The host memory that is registered.
    pub fn registered_bytes(&self) -> u64 {
        self.registered.bytes()
    }

    /// What this layer has registered.
    pub(super) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The parts of `range` in each chunk, if all of it is mapped.
    pub(super) fn pieces(&self, range: Range<u64>) -> Result<Vec<Piece>> {
        self.check_inside(&range)?;
        let unmapped = || Error::Unmapped { layer: self.name.clone(), range: range.clone() };
        let mut pieces = Vec::new();
        for index in self.chunks_of(&range) {
            let chunk = self.chunk(index);
            let buffer = self.chunks[index].get().ok_or_else(unmapped)?;
            let part = range.start.max(chunk.start)..range.end.min(chunk.end);
            pieces.push(Piece {
                place: Place { handle: buffer.handle(), offset: part.start - chunk.start },
                memory_at: (part.start - range.start) as usize,
                bytes: (part.end - part.start) as usize,
            });
        }
        Ok(pieces)
    }

    /// Lends a stream for some work. One that has failed is not used again; dropping it waits for
    /// what it has begun.
    fn with_stream(&self, work: impl FnOnce(&mut dyn Stream) -> Result<()>) -> Result<()> {
        let mut stream = self.take_stream()?;
        self.notice(work(&mut *stream))?;
        self.give_back(stream);
        Ok(())
    }

    /// A stream that has nothing to do.
    pub(super) fn take_stream(&self) -> Result<Box<dyn Stream>> {
        self.check_alive()?;
        let idle = lock(&self.streams).pop();
        idle.map_or_else(|| self.notice(self.device.stream()), Ok)
    }

    /// Keeps a stream, which has nothing to do any more, for whoever needs one next.
    pub(super) fn give_back(&self, stream: Box<dyn Stream>) {
        lock(&self.streams).push(stream);
    }

    /// Passes a result on, and remembers if it says that the device is lost.
    pub(super) fn notice<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::DeviceLost { reason, .. }) = &result
            && self.lost.set(reason.clone()).is_ok()
        {
            tracing::error!(layer = self.name, reason, "the device is lost");
        }
        result
    }

    /// An error once the device is lost.
    pub(super) fn check_alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost { device: self.device.name().to_owned(), reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn check_inside(&self, range: &Range<u64>) -> Result<()> {
        if range.start <= range.end && range.end <= self.capacity {
            return Ok(());
        }
        Err(Error::OutOfRange { layer: self.name.clone(), range: range.clone(), capacity: self.capacity })
    }

    /// The numbers of the chunks that `range` has a part of.
    fn chunks_of(&self, range: &Range<u64>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        (range.start / self.chunk_bytes) as usize..range.end.div_ceil(self.chunk_bytes) as usize
    }

    /// What a chunk covers. The last one ends at a multiple of the granularity, which may lie
    /// beyond the capacity.
    fn chunk(&self, index: usize) -> Range<u64> {
        let start = index as u64 * self.chunk_bytes;
        let granularity = self.device.granularity_bytes().max(1);
        let end = self.capacity.div_ceil(granularity) * granularity;
        start..end.min(start + self.chunk_bytes)
    }
}

impl Piece {
    /// Which part of the host memory it is.
    fn memory(&self) -> Range<usize> {
        self.memory_at..self.memory_at + self.bytes
    }

    /// The place of it in a buffer from which, or to which, the whole is copied from `start` on.
    fn beside(&self, start: Place) -> Place {
        Place { offset: start.offset + self.memory_at as u64, ..start }
    }
}

impl Layer for DeviceLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> Option<u64> {
        Some(self.capacity)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        check_range(&self.name, &(at..at.saturating_add(bytes.len() as u64)), self.capacity)?;
        self.copy_in(at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        check_range(&self.name, &(at..at.saturating_add(bytes.len() as u64)), self.capacity)?;
        self.copy_out(at, bytes)
    }

    fn run(&self, feed: &mut dyn Feed) {
        self.registered.tidy();
        Flight::new(self).run(feed);
    }

    fn front(&self) -> Option<&dyn Front> {
        Some(self)
    }
}

/// What these locks guard is changed by single calls, so that it is whole also after a panic
/// elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
