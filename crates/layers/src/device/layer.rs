//! A layer in device memory that is usable before all of it is mapped.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{Buffer, Device, Place, Reservation, Stream, checksum, flight::Flight, registered::Registered};
use crate::{Error, Feed, Front, Host, Layer, Result, aligned, host::check_range};

/// Data that slides at least this far is copied within the device. Shorter distances would need
/// very many small copies, so that data goes through the host in pieces of this size.
const FAR_BYTES: u64 = 1 << 20;

/// Device memory as a layer.
///
/// All of its addresses are reserved at once. [`DeviceLayer::touch`] maps memory chunk by chunk,
/// and mapped chunks can be used meanwhile. Using memory that is not mapped yet is an error.
///
/// Copies between the layer and buffers of the program do not wait for the program's kernels: the
/// program must wait for everything that changes a buffer before it passes the buffer.
///
/// Once the device is lost, the layer is lost too: every later transfer fails without a call of the
/// driver.
pub struct DeviceLayer {
    name: String,
    capacity: u64,
    chunk_bytes: u64,
    /// Idle streams.
    streams: Mutex<Vec<Box<dyn Stream>>>,
    /// The memory of each chunk, once it is mapped.
    chunks: Box<[OnceLock<Buffer>]>,
    reservation: Mutex<Box<dyn Reservation>>,
    registered: Registered,
    /// The driver's error when the device was lost.
    lost: OnceLock<String>,
    device: Arc<dyn Device>,
}

/// A part of a copy that lies in one chunk.
pub(super) struct Piece {
    pub(super) place: Place,
    /// The offset in the memory that is copied from or to.
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
    /// Reserves `bytes`, rounded up to the alignment, to be mapped in chunks of `chunk_bytes`.
    /// Default: what suits the device.
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

    /// Its size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The size of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// How many bytes are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        let mapped = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.get().is_some());
        mapped.map(|(index, _)| self.chunk(index)).map(|chunk| chunk.end.min(self.capacity) - chunk.start).sum()
    }

    /// Its device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Maps every chunk that overlaps `range`. The contents of mapped chunks do not change.
    pub fn touch(&self, range: Range<u64>) -> Result<()> {
        self.check_inside(&range)?;
        for index in self.chunks_of(&range) {
            self.check_alive()?;
            // Check under the lock, because another thread may be mapping the same chunk.
            let mut reservation = lock(&self.reservation);
            if self.chunks[index].get().is_none() {
                let buffer = self.notice(reservation.map(self.chunk(index)))?;
                let is_first = self.chunks[index].set(buffer).is_ok();
                debug_assert!(is_first, "chunks are mapped under the lock");
            }
        }
        Ok(())
    }

    /// Copies `bytes` into the layer. The offset need not be aligned.
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

    /// Copies from the layer into `bytes`. The offset need not be aligned.
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

    /// Copies `bytes` bytes at `offset` of a buffer of the program into the layer, within the
    /// device.
    pub fn store(&self, at: u64, buffer: &Buffer, offset: u64, bytes: u64) -> Result<()> {
        let from = buffer.place(&*self.device, offset, bytes)?;
        self.copy_within(at, bytes, |stream, piece| {
            // SAFETY: both places were checked to be inside live memory of this device.
            unsafe { stream.begin_copy_within(piece.beside(from), piece.place, piece.bytes) }
        })
    }

    /// Copies `bytes` bytes of the layer to `offset` of a buffer of the program, within the device.
    pub fn load(&self, at: u64, buffer: &mut Buffer, offset: u64, bytes: u64) -> Result<()> {
        let to = buffer.place(&*self.device, offset, bytes)?;
        self.copy_within(at, bytes, |stream, piece| {
            // SAFETY: as in `store`.
            unsafe { stream.begin_copy_within(piece.place, piece.beside(to), piece.bytes) }
        })
    }

    /// Returns an error if a buffer of the program belongs to another device.
    pub fn check_buffer(&self, buffer: &Buffer) -> Result<()> {
        buffer.check_on(&*self.device, 0, 0)
    }

    /// Moves bytes within the layer. The old and the new range may overlap.
    pub fn slide(&self, from: Range<u64>, to: u64) -> Result<()> {
        self.check_inside(&from)?;
        let bytes = from.end - from.start;
        self.check_inside(&(to..to.saturating_add(bytes)))?;
        let distance = from.start.abs_diff(to);
        if distance == 0 {
            return Ok(());
        }
        let is_far = distance >= FAR_BYTES;
        // No step overwrites what a later one reads. Within the device, source and target of one
        // step must not overlap either.
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

    /// Copies within the layer to a range that does not overlap the old one.
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

    /// The checksum of a range of the layer, computed by the device, so that only the checksum is
    /// moved. [`checksum`](crate::checksum) computes the same for host memory. `at` must be a
    /// multiple of eight.
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

    /// Page-locks all of a host layer in one piece, so that several copies from and to it can be in
    /// flight at once. This takes long, even longer if the memory is untouched, and lasts until the
    /// host layer or this one is dropped.
    ///
    /// Before that, and if it fails, transfers run one by one. Does nothing on devices that do not
    /// need it.
    pub fn register(&self, host: &Host) -> Result<()> {
        self.check_alive()?;
        if !self.device.needs_registration() {
            return Ok(());
        }
        self.notice(self.registered.add(&*self.device, host.mapping()))
    }

    /// How many bytes of host memory are registered.
    pub fn registered_bytes(&self) -> u64 {
        self.registered.bytes()
    }

    /// The host memory that this layer has registered.
    pub(super) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// The parts of `range` by chunk, if all of it is mapped.
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

    /// Runs `work` with a stream. A stream that has failed is not used again; dropping it waits for
    /// the copies that it has begun.
    fn with_stream(&self, work: impl FnOnce(&mut dyn Stream) -> Result<()>) -> Result<()> {
        let mut stream = self.take_stream()?;
        self.notice(work(&mut *stream))?;
        self.give_back(stream);
        Ok(())
    }

    /// An idle stream, or a new one.
    pub(super) fn take_stream(&self) -> Result<Box<dyn Stream>> {
        self.check_alive()?;
        let idle = lock(&self.streams).pop();
        idle.map_or_else(|| self.notice(self.device.stream()), Ok)
    }

    /// Keeps an idle stream for the next user.
    pub(super) fn give_back(&self, stream: Box<dyn Stream>) {
        lock(&self.streams).push(stream);
    }

    /// Returns `result`, and remembers if the device is lost according to it.
    pub(super) fn notice<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(Error::DeviceLost { reason, .. }) = &result
            && self.lost.set(reason.clone()).is_ok()
        {
            tracing::error!(layer = self.name, reason, "the device is lost");
        }
        result
    }

    /// Returns an error once the device is lost.
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

    /// The indices of the chunks that overlap `range`.
    fn chunks_of(&self, range: &Range<u64>) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        (range.start / self.chunk_bytes) as usize..range.end.div_ceil(self.chunk_bytes) as usize
    }

    /// The range of a chunk. The last one ends at a multiple of the granularity, which may be
    /// beyond the capacity.
    fn chunk(&self, index: usize) -> Range<u64> {
        let start = index as u64 * self.chunk_bytes;
        let granularity = self.device.granularity_bytes().max(1);
        let end = self.capacity.div_ceil(granularity) * granularity;
        start..end.min(start + self.chunk_bytes)
    }
}

impl Piece {
    /// Its range in the host memory.
    fn memory(&self) -> Range<usize> {
        self.memory_at..self.memory_at + self.bytes
    }

    /// Its place in another buffer, if the whole is copied from or to `start` there.
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

/// The values behind these locks are changed by single calls, so they are consistent even after a
/// panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
