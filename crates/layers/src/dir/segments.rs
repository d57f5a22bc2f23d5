//! The segment files: which ones exist, what has been written to them, and how they are created.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_io::{Direction, File, Piece, Pieces};
use outcrop_local::Scratch;
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate},
    io::{Errno, retry_on_intr},
};

use super::DirOptions;
use crate::{Error, Result, layer::ALIGN};

/// All segment files of one layer.
pub(super) struct Segments {
    layer: String,
    capacity: u64,
    segment_bytes: u64,
    /// Whether to open files with O_DIRECT. Set to false if the file system refuses.
    direct: AtomicBool,
    by_number: RwLock<BTreeMap<u64, Arc<Entry>>>,
    scratch: Scratch,
}

/// A segment that has a file, or is getting one.
#[derive(Default)]
struct Entry {
    segment: OnceLock<Segment>,
    /// Held while the file is created, so that one thread creates it and the others wait.
    making: Mutex<()>,
}

/// One segment file.
struct Segment {
    file: Arc<File>,
    /// One bit per unit of the file: whether the unit holds what was last written to it.
    written: Box<[AtomicU64]>,
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

    /// Adds the places in files for `range` of the layer: see `Places::find`.
    pub(super) fn find(&self, range: &Range<u64>, direction: Direction, pieces: &mut Pieces) -> Result<()> {
        for (number, part) in self.parts(range) {
            let entry = match direction {
                Direction::Write => self.get_or_make(number)?,
                Direction::Read => self.get(number).ok_or_else(|| self.unwritten())?,
            };
            let segment = entry.segment.get().ok_or_else(|| self.unwritten())?;
            match direction {
                Direction::Write => segment.mark(&part, false),
                Direction::Read if segment.is_written(&part) => {}
                Direction::Read => return Err(self.unwritten()),
            }
            let file = Arc::clone(&segment.file);
            pieces.push(Piece { file, offset: part.start, bytes: part.end - part.start });
        }
        Ok(())
    }

    /// Records that these ranges have been moved, and makes sure that they are on the medium and
    /// not in the page cache. Each file is flushed once.
    pub(super) fn settle(&self, ranges: &[Range<u64>], direction: Direction) -> io::Result<()> {
        let parts = || ranges.iter().flat_map(|range| self.parts(range));
        let numbers: BTreeSet<u64> = parts().map(|(number, _)| number).collect();
        let entries: BTreeMap<u64, Arc<Entry>> =
            numbers.into_iter().filter_map(|number| Some((number, self.get(number)?))).collect();
        let segment = |number: u64| entries.get(&number).and_then(|entry| entry.segment.get());
        let is_write = direction == Direction::Write;
        for &number in entries.keys().filter(|_| is_write) {
            if let Some(segment) = segment(number).filter(|segment| !segment.file.is_direct()) {
                segment.file.sync()?;
                #[cfg(test)]
                tests::SYNCS.set(tests::SYNCS.get() + 1);
            }
        }
        for (number, part) in parts() {
            let Some(segment) = segment(number) else { continue };
            if !segment.file.is_direct() {
                segment.file.forget_cached(&part);
            }
            if is_write {
                segment.mark(&part, true);
            }
        }
        Ok(())
    }

    /// The parts of `range` by segment: its number, and the range in its file.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
        let (range, segment_bytes) = (range.clone(), self.segment_bytes);
        (range.start / segment_bytes..range.end.div_ceil(segment_bytes)).map(move |number| {
            let start = number * segment_bytes;
            (number, range.start.max(start) - start..range.end.min(start + segment_bytes) - start)
        })
    }

    fn get(&self, number: u64) -> Option<Arc<Entry>> {
        self.by_number.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    fn get_or_make(&self, number: u64) -> Result<Arc<Entry>> {
        let entry = self.get(number).unwrap_or_else(|| {
            let mut by_number = self.by_number.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(by_number.entry(number).or_default())
        });
        if entry.segment.get().is_none() {
            let _making = entry.making.lock().unwrap_or_else(PoisonError::into_inner);
            if entry.segment.get().is_none() {
                let made = self.make(number)?;
                entry.segment.get_or_init(|| made);
            }
        }
        Ok(entry)
    }

    /// Creates the file of segment `number` in its full length. Leaves no file if that fails.
    fn make(&self, number: u64) -> Result<Segment> {
        let name = segment_name(number);
        let bytes = self.segment_bytes.min(self.capacity - number * self.segment_bytes);
        let file = self.open(&name).map_err(|source| self.failure("make a segment file", source))?;
        match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, bytes)) {
            // The file system allocates on write.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => {
                if let Err(errno) = self.scratch.remove(&name) {
                    tracing::warn!(layer = self.layer, name, %errno, "cannot remove a segment file that has no space");
                }
                return Err(self.failure("allocate a segment file", errno.into()));
            }
        }
        let words = (bytes / ALIGN).div_ceil(64);
        Ok(Segment { file: Arc::new(file), written: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    fn open(&self, name: &str) -> io::Result<File> {
        // The directory is ours alone: an existing file or link was not created by this layer.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        if self.direct.load(Relaxed) {
            match self.scratch.file(name, flags | OFlags::DIRECT) {
                Ok(file) => return File::new(file),
                Err(Errno::INVAL) => {
                    tracing::info!(layer = self.layer, "the file system cannot bypass the page cache");
                    self.direct.store(false, Relaxed);
                    // The file has been created although the open was refused.
                    match self.scratch.remove(name) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        File::new(self.scratch.file(name, flags)?)
    }

    fn unwritten(&self) -> Error {
        self.failure("read", io::Error::new(io::ErrorKind::NotFound, "it was never written there"))
    }

    fn failure(&self, attempt: &'static str, source: io::Error) -> Error {
        Error::transfer(&self.layer, attempt, source)
    }
}

impl Segment {
    fn mark(&self, part: &Range<u64>, is_written: bool) {
        for (word, bits) in words(part) {
            if is_written {
                self.written[word].fetch_or(bits, Relaxed);
            } else {
                self.written[word].fetch_and(!bits, Relaxed);
            }
        }
    }

    fn is_written(&self, part: &Range<u64>) -> bool {
        words(part).all(|(word, bits)| self.written[word].load(Relaxed) & bits == bits)
    }
}

fn segment_name(number: u64) -> String {
    format!("segment-{number:05}")
}

/// Whether this is the name of a segment file, which may be removed with its directory.
pub(super) fn is_segment_name(name: &str) -> bool {
    let digits = name.strip_prefix("segment-");
    digits.is_some_and(|digits| digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The words of the bitmap for a part of a file, and the bits in each.
fn words(part: &Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (part.start / ALIGN, part.end / ALIGN);
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.saturating_sub(word * 64).min(63);
        let to = (end - word * 64).min(64);
        ((word as usize), (u64::MAX << from) & (u64::MAX >> (64 - to)))
    })
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, collections::VecDeque};

    use outcrop_io::Method;

    use super::*;
    use crate::{Dir, Extents, Feed, Host, Layer, Memory, Transfer};

    thread_local! {
        /// How many flushes of files this thread has asked for.
        pub(super) static SYNCS: Cell<u64> = const { Cell::new(0) };
    }

    const MIB: u64 = 1 << 20;

    /// Transfers that are all there from the beginning.
    struct Queue(VecDeque<Transfer>, u64);

    impl Feed for Queue {
        fn next(&mut self) -> Option<Transfer> {
            self.0.pop_front()
        }

        fn done(&mut self, _: Transfer, result: Result<()>) {
            result.unwrap();
            self.1 += 1;
        }
    }

    #[test]
    fn without_o_direct_many_transfers_are_flushed_at_once() {
        for method in [Method::Blocking, Method::Uring] {
            let scratch = tempfile::tempdir().unwrap();
            let options = DirOptions { direct: false, method: Some(method), ..DirOptions::default() };
            let Ok(dir) = Dir::open(scratch.path(), 256 * MIB, options) else { continue };
            let host = Host::new(64 * MIB).unwrap();
            let transfer = |tag: u64| {
                let mut slot = host.slot(tag * MIB, MIB).unwrap();
                slot.fill(tag as u8);
                let extents = Extents::from_elem(tag * MIB..(tag + 1) * MIB, 1);
                Transfer { tag, extents, memory: Memory::Write(slot.seal()) }
            };
            let mut queue = Queue((0..64).map(transfer).collect(), 0);
            SYNCS.set(0);
            dir.run(&mut queue);
            assert_eq!(queue.1, 64);
            assert!((1..=5).contains(&SYNCS.get()), "{} flushes for 64 MiB", SYNCS.get());
            let mut bytes = vec![0; MIB as usize];
            dir.read(63 * MIB, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 63));
        }
    }
}
