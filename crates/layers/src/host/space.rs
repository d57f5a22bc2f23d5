//! The address space of a host layer: which ranges are slots, and which have memory.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_local::Segment;
use outcrop_memory::{HUGE_PAGE, Mapping, Pages, limits};

use super::check_range;
use crate::{ALIGN, Error, Result};

/// A mapping, and its slots.
///
/// Private memory is usable as long as the mapping lives. Shared memory is usable as long as a slot
/// overlaps its chunk, or the mapping is registered: until then, no chunk is released.
pub(crate) struct Space {
    name: String,
    mapping: Arc<Mapping>,
    table: Mutex<Table>,
    shared: Option<Shared>,
}

/// The source of shared memory.
struct Shared {
    /// Locked while the space grows or shrinks. If both are locked, this comes before the table.
    segment: Arc<Mutex<Segment>>,
    chunk_bytes: u64,
}

/// Which bytes are in use, and which are usable.
#[derive(Default)]
pub(super) struct Table {
    /// Start and end of every slot.
    pub(super) slots: BTreeMap<u64, u64>,
    /// For each chunk of address space, the chunk of the segment that is mapped there. Empty if the
    /// memory is private.
    chunks: Vec<Option<u32>>,
}

impl Space {
    /// Private memory, all of it usable at once.
    pub(super) fn private(bytes: u64) -> Result<Self> {
        let name = "host".to_owned();
        let mapping = limits::granted(bytes, ALIGN).and_then(|bytes| Mapping::anonymous(bytes, Pages::Huge));
        let mapping = Arc::new(mapping.map_err(|error| Error::memory(&name, error))?);
        Ok(Self { name, mapping, table: Mutex::default(), shared: None })
    }

    /// A share of `bytes` in a segment. It must be touched before use.
    pub(super) fn shared(name: &str, bytes: u64, segment: Segment) -> Result<Self> {
        let name = format!("shared host {name}");
        let chunk_bytes = segment.chunk_bytes();
        let segment = Arc::new(Mutex::new(segment));
        // The mapping keeps the segment: its chunks are freed only after everything is unmapped.
        let mapping = Mapping::chunks(bytes, chunk_bytes, Arc::clone(&segment));
        let mapping = Arc::new(mapping.map_err(|error| Error::memory(&name, error))?);
        let chunks = vec![None; bytes.div_ceil(chunk_bytes) as usize];
        let table = Mutex::new(Table { slots: BTreeMap::new(), chunks });
        Ok(Self { name, mapping, table, shared: Some(Shared { segment, chunk_bytes }) })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The address of byte `at`, which must not be beyond the end.
    pub(super) fn address(&self, at: u64) -> *mut u8 {
        self.mapping.address(at)
    }

    /// Whether memory must be touched before use.
    pub(super) fn needs_touch(&self) -> bool {
        self.shared.is_some()
    }

    /// The best unit for touching.
    pub(super) fn piece_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(HUGE_PAGE as u64, |shared| shared.chunk_bytes)
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        // The table is changed by single calls that cannot panic half-way, so it is consistent even
        // after a panic elsewhere.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table, if no slot overlaps `range` and all of it has memory.
    pub(super) fn unclaimed(&self, range: &Range<u64>) -> Result<MutexGuard<'_, Table>> {
        check_range(&self.name, range, self.bytes())?;
        let table = self.table();
        self.check_unclaimed(&table, range)?;
        Ok(table)
    }

    pub(super) fn check_unclaimed(&self, table: &Table, range: &Range<u64>) -> Result<()> {
        if table.overlaps(range) {
            return Err(self.in_use(range));
        }
        let shared = self.shared.as_ref();
        if shared.is_some_and(|shared| table.chunks[shared.chunks_of(range)].contains(&None)) {
            return Err(Error::Untouched { layer: self.name.clone(), range: range.clone() });
        }
        Ok(())
    }

    /// Has the system provide the memory of `range` now, in addition to what others were promised.
    pub(super) fn touch(&self, range: &Range<u64>, promised_bytes: u64) -> Result<()> {
        check_range(&self.name, range, self.bytes())?;
        let Some(shared) = &self.shared else {
            let touched = self.mapping.touch_beside(range.clone(), promised_bytes);
            return touched.map_err(|error| Error::memory(&self.name, error));
        };
        let mut segment = shared.lock();
        let missing: Vec<usize> = {
            let table = self.table();
            shared.chunks_of(range).filter(|&index| table.chunks[index].is_none()).collect()
        };
        for (done, &index) in missing.iter().enumerate() {
            self.fill_chunk(&mut segment, index, missing.len() - done)?;
        }
        Ok(())
    }

    /// Maps a free chunk of the segment as chunk `index` of the address space. `wanted` is how many
    /// chunks are still needed.
    fn fill_chunk(&self, segment: &mut Segment, index: usize, wanted: usize) -> Result<()> {
        let taken = segment.take(wanted)?;
        let chunk = taken.ok_or_else(|| {
            let limit = format!("all {} bytes are in use by processes that share them", segment.bytes());
            Error::Exhausted { layer: self.name.clone(), bytes: segment.chunk_bytes(), limit }
        })?;
        if let Err(error) = self.map_chunk(segment, index as u64, chunk) {
            self.remove_chunk(index as u64);
            segment.give(&[chunk]);
            return Err(error);
        }
        self.table().chunks[index] = Some(chunk);
        Ok(())
    }

    fn map_chunk(&self, segment: &Segment, index: u64, chunk: u32) -> Result<()> {
        let (file, offset) = segment.place(chunk);
        let start = index * segment.chunk_bytes();
        // The last chunk may extend beyond the limit.
        let range = start..(start + segment.chunk_bytes()).min(self.bytes());
        // SAFETY: the chunk is not in the table, so it has no memory, and no slot overlaps it.
        let mapped = unsafe { self.mapping.put_chunk(index, file, offset) };
        mapped.map_err(|error| Error::memory(&self.name, error))?;
        self.mapping.may_take(self.mapping.missing_bytes(&range)).map_err(|error| Error::memory(&self.name, error))?;
        // If a file system in memory were full, the first access would kill the program.
        segment.reserve(chunk).map_err(|source| self.unreserved(segment, source))?;
        self.mapping.touch(range).map_err(|error| Error::memory(&self.name, error))
    }

    /// The error if the file system could not allocate the memory of a chunk.
    fn unreserved(&self, segment: &Segment, source: io::Error) -> Error {
        let path = segment.path();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory => {
                let limit = format!("{}: {source}", path.display());
                Error::Exhausted { layer: self.name.clone(), bytes: segment.chunk_bytes(), limit }
            }
            _ => Error::Segment { path, reason: source.to_string() },
        }
    }

    /// Unmaps a chunk that is not in the table.
    fn remove_chunk(&self, index: u64) {
        // SAFETY: the chunk is not in the table, so no slot overlaps it.
        if let Err(error) = unsafe { self.mapping.remove_chunk(index) } {
            tracing::warn!(%error, "a chunk of shared memory that was given back is still mapped");
        }
    }

    /// Frees the chunks that lie inside `range`. Does nothing if a slot overlaps any of them.
    pub(super) fn release(&self, range: &Range<u64>) -> Result<u64> {
        check_range(&self.name, range, self.bytes())?;
        let Some(shared) = &self.shared else { return Ok(0) };
        let mut segment = shared.lock();
        if self.mapping.is_registered() {
            return Err(self.in_use(range));
        }
        let mut given = Vec::new();
        {
            let mut table = self.table();
            let first = range.start.div_ceil(shared.chunk_bytes) as usize;
            // The last chunk may extend beyond the limit.
            let is_all = range.end == self.bytes();
            let end = if is_all { table.chunks.len() } else { (range.end / shared.chunk_bytes) as usize };
            let bytes = first as u64 * shared.chunk_bytes..(end as u64 * shared.chunk_bytes).min(self.bytes());
            if table.overlaps(&bytes) {
                return Err(self.in_use(&bytes));
            }
            for index in first..end {
                given.extend(table.chunks[index].take().map(|chunk| (index, chunk)));
            }
        }
        for (index, _) in &given {
            self.remove_chunk(*index as u64);
        }
        segment.give(&given.iter().map(|(_, chunk)| *chunk).collect::<Vec<_>>());
        Ok(segment.wanted_by_others())
    }

    /// The bytes of shared memory that other processes wait for.
    pub(super) fn wanted_by_others(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.lock().wanted_by_others())
    }

    /// Asks for permission to write to `bytes` that were never touched.
    pub(super) fn may_take(&self, bytes: u64) -> Result<()> {
        self.mapping.may_take(bytes).map_err(|error| Error::memory(&self.name, error))
    }

    /// Asks for permission to write to `range`, if some of it was never touched.
    pub(super) fn provide(&self, range: &Range<u64>) -> Result<()> {
        match self.mapping.missing_bytes(range) {
            0 => Ok(()),
            missing_bytes => self.may_take(missing_bytes),
        }
    }

    /// Locks all of it in memory.
    pub(super) fn pin(&self) -> Result<()> {
        if self.table().chunks.contains(&None) {
            return Err(Error::Untouched { layer: self.name.clone(), range: 0..self.bytes() });
        }
        self.mapping.pin().map_err(|error| Error::memory(&self.name, error))
    }

    fn in_use(&self, range: &Range<u64>) -> Error {
        Error::InUse { layer: self.name.clone(), range: range.clone() }
    }
}

impl Table {
    /// Whether a slot overlaps `range`.
    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.slots.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Segment> {
        self.segment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunks of the address space that overlap `range`.
    fn chunks_of(&self, range: &Range<u64>) -> Range<usize> {
        (range.start / self.chunk_bytes) as usize..range.end.div_ceil(self.chunk_bytes) as usize
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Space({}, {} bytes)", self.name, self.bytes())
    }
}
