//! The segment files: which there are, what has been written to them, and how they are made.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use rustix::{
    fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fdatasync},
    io::Errno,
};

use super::{DirOptions, scratch::Scratch};
use crate::{Error, Result, layer::ALIGN};

/// Where the bytes of a layer lie in files.
pub(crate) trait Places {
    /// The first part of `range` that lies in one file and is no longer than `bytes_max`.
    fn first_piece(&self, range: &Range<u64>, bytes_max: u64) -> Piece;

    /// The file to read `piece` from; an error if any part of it was never written.
    fn for_reading(&self, piece: &Piece) -> Result<Arc<Segment>>;

    /// The file to write `piece` to. Until the write has been settled, nothing can be read there: it is neither the old nor
    /// the new.
    fn for_writing(&self, piece: &Piece) -> Result<Arc<Segment>>;

    /// The error for a failed transfer of this layer.
    fn failure(&self, attempt: &'static str, source: io::Error) -> Error;
}

/// All segment files of one layer.
pub(super) struct Segments {
    layer: String,
    capacity: u64,
    segment_bytes: u64,
    /// Whether to ask for files past the page cache; given up when the file system refuses.
    direct: AtomicBool,
    by_number: RwLock<BTreeMap<u64, Arc<Entry>>>,
    scratch: Scratch,
}

/// A segment that has a file, or is getting one.
#[derive(Default)]
struct Entry {
    segment: OnceLock<Arc<Segment>>,
    /// Held while the file is made, so that only one makes it and the others wait.
    making: Mutex<()>,
}

/// One open segment file.
pub(crate) struct Segment {
    pub(crate) file: OwnedFd,
    /// Whether transfers bypass the page cache, and so want aligned memory.
    pub(crate) direct: bool,
    /// One bit for each unit of the file: whether it holds what was last written there.
    written: Box<[AtomicU64]>,
}

/// A piece of the layer that lies in one segment.
pub(crate) struct Piece {
    pub(crate) segment: u64,
    /// Where in the segment's file.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl Segments {
    pub(super) fn new(layer: String, scratch: Scratch, capacity: u64, options: &DirOptions) -> Self {
        Self {
            layer,
            capacity,
            segment_bytes: crate::aligned(options.segment_bytes),
            direct: AtomicBool::new(options.direct),
            by_number: RwLock::default(),
            scratch,
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.scratch.path()
    }

    fn get_or_make(&self, piece: &Piece) -> Result<Arc<Segment>> {
        let found = self.by_number.read().unwrap_or_else(PoisonError::into_inner).get(&piece.segment).cloned();
        let entry = found.unwrap_or_else(|| {
            let mut by_number = self.by_number.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_number.entry(piece.segment).or_default())
        });
        if let Some(segment) = entry.segment.get() {
            return Ok(Arc::clone(segment));
        }
        let _making = entry.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(segment) = entry.segment.get() {
            return Ok(Arc::clone(segment));
        }
        let made = Arc::new(self.make(piece.segment)?);
        Ok(Arc::clone(entry.segment.get_or_init(|| made)))
    }

    /// Makes the file of segment `number` in its full length; leaves none if that fails.
    fn make(&self, number: u64) -> Result<Segment> {
        let name = format!("segment-{number:05}");
        let bytes = self.segment_bytes.min(self.capacity - number * self.segment_bytes);
        let (file, direct) = self.open(&name).map_err(|errno| self.failure("make a segment file", errno.into()))?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // The file system allocates as it goes.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => {
                if let Err(errno) = self.scratch.remove(&name) {
                    tracing::warn!(layer = self.layer, name, %errno, "cannot remove a segment file without room");
                }
                return Err(self.failure("allocate a segment file", errno.into()));
            }
        }
        Ok(Segment::new(file, direct, bytes))
    }

    fn open(&self, name: &str) -> rustix::io::Result<(OwnedFd, bool)> {
        // The directory is ours alone: a file that is there already, or a link, is somebody's doing.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        if self.direct.load(Relaxed) {
            match self.scratch.file(name, flags | OFlags::DIRECT) {
                Ok(file) => return Ok((file, true)),
                Err(Errno::INVAL) => {
                    tracing::info!(layer = self.layer, "the file system cannot bypass the page cache");
                    self.direct.store(false, Relaxed);
                    // The file is made before it is refused.
                    match self.scratch.remove(name) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok((self.scratch.file(name, flags)?, false))
    }
}

impl Places for Segments {
    fn first_piece(&self, range: &Range<u64>, bytes_max: u64) -> Piece {
        let segment = range.start / self.segment_bytes;
        let at = range.start % self.segment_bytes;
        let bytes = (range.end - range.start).min(self.segment_bytes - at).min(bytes_max);
        Piece { segment, at, bytes }
    }

    fn for_reading(&self, piece: &Piece) -> Result<Arc<Segment>> {
        let entry = self.by_number.read().unwrap_or_else(PoisonError::into_inner).get(&piece.segment).cloned();
        entry
            .and_then(|entry| entry.segment.get().cloned())
            .filter(|segment| segment.is_written(piece))
            .ok_or_else(|| self.failure("read", io::Error::new(io::ErrorKind::NotFound, "it was never written there")))
    }

    fn for_writing(&self, piece: &Piece) -> Result<Arc<Segment>> {
        let segment = self.get_or_make(piece)?;
        segment.mark(piece, false);
        Ok(segment)
    }

    fn failure(&self, attempt: &'static str, source: io::Error) -> Error {
        Error::transfer(&self.layer, attempt, source)
    }
}

impl Segment {
    /// An open file of `bytes` of which nothing has been written.
    pub(crate) fn new(file: OwnedFd, direct: bool, bytes: u64) -> Self {
        let words = (bytes / ALIGN).div_ceil(64);
        Self { file, direct, written: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes that `piece` has been written, and sees to it that it is on the medium and in no cache.
    pub(super) fn settle_write(&self, piece: &Piece) -> rustix::io::Result<()> {
        if !self.direct {
            fdatasync(&self.file)?;
            self.forget_cached(piece);
        }
        self.mark(piece, true);
        Ok(())
    }

    /// Notes that `piece` was read, and need not stay in a cache.
    pub(super) fn settle_read(&self, piece: &Piece) {
        if !self.direct {
            self.forget_cached(piece);
        }
    }

    fn forget_cached(&self, piece: &Piece) {
        // Advice that is not taken costs memory for a while, nothing else.
        let _ = fadvise(&self.file, piece.at, std::num::NonZeroU64::new(piece.bytes), Advice::DontNeed);
    }

    fn mark(&self, piece: &Piece, is_written: bool) {
        for (word, bits) in words(piece) {
            if is_written {
                self.written[word].fetch_or(bits, Relaxed);
            } else {
                self.written[word].fetch_and(!bits, Relaxed);
            }
        }
    }

    fn is_written(&self, piece: &Piece) -> bool {
        words(piece).all(|(word, bits)| self.written[word].load(Relaxed) & bits == bits)
    }
}

/// The words of the table of written units that `piece` lies in, and the bits in each.
fn words(piece: &Piece) -> impl Iterator<Item = (usize, u64)> {
    let first = piece.at / ALIGN;
    let end = (piece.at + piece.bytes) / ALIGN;
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.saturating_sub(word * 64).min(63);
        let to = (end - word * 64).min(64);
        ((word as usize), (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}
