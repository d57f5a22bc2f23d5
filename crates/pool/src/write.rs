//! Writes the blocks of a part that have changed: with several threads if there are many, each of
//! which copies what it has just computed the checksum of, while the caches have it.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use outcrop_format::{PAGE_BYTES, PoolEntry, pool_check};

use crate::{Error, Medium, Result, file::read_checked, table::Draft};

/// A thread writes about so many bytes at a time: the caches of a core have room for them.
const BATCH_BYTES: usize = 256 << 10;

/// Each thread has at least so many bytes to write. To start one takes some 50 microseconds.
const BYTES_PER_THREAD: usize = 2 << 20;

/// More threads than this write no faster: memory is as fast as that.
const THREADS_MAX: usize = 4;

/// The blocks of a part.
pub(crate) struct Blocks<'a> {
    pub(crate) memory: &'a [u8],
    pub(crate) block_bytes: usize,
    /// Those that may have changed, ascending.
    pub(crate) dirty: Vec<usize>,
    /// What was durable of them before.
    pub(crate) before: &'a [PoolEntry],
    /// By block: whether its memory shows the file.
    pub(crate) is_shown: &'a [bool],
}

/// A block, and where it is from now on.
type Change = (usize, PoolEntry);

impl Blocks<'_> {
    /// Writes those that differ from what was durable, and says where they are now, ascending.
    pub(crate) fn write(&self, draft: &mut Draft<'_>) -> Result<Vec<Change>> {
        let writer = Writer {
            blocks: self,
            medium: Arc::clone(&draft.file().medium),
            location: draft.file().location.clone(),
            draft: Mutex::new(draft),
            next: AtomicUsize::new(0),
        };
        let wanted = self.dirty.len() * self.block_bytes / BYTES_PER_THREAD;
        let threads = if wanted > 1 { wanted.min(threads_max()) } else { 1 };
        let mut changes = thread::scope(|scope| {
            // If the system allows no more threads, this one does it alone.
            let start = |_| thread::Builder::new().spawn_scoped(scope, || writer.work()).ok();
            let others: Vec<_> = (1..threads).filter_map(start).collect();
            let mine = writer.work();
            others.into_iter().fold(mine, |all, other| {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let mut all = all?;
                all.extend(other?);
                Ok(all)
            })
        })?;
        changes.sort_unstable_by_key(|(block, _)| *block);
        Ok(changes)
    }

    fn content(&self, block: usize) -> &[u8] {
        &self.memory[block * self.block_bytes..(block + 1) * self.block_bytes]
    }
}

/// As many as this machine has cores for. To find out takes some twenty system calls, so it is
/// asked once.
fn threads_max() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX))
}

/// What threads that write share.
struct Writer<'a, 'b> {
    blocks: &'a Blocks<'a>,
    medium: Arc<dyn Medium>,
    location: String,
    draft: Mutex<&'a mut Draft<'b>>,
    /// The first of the dirty blocks that nobody has taken on.
    next: AtomicUsize,
}

impl Writer<'_, '_> {
    /// Writes batches until all are taken on, or something fails.
    fn work(&self) -> Result<Vec<Change>> {
        let dirty = &self.blocks.dirty;
        let batch = (BATCH_BYTES / self.blocks.block_bytes).max(1);
        let mut changes = Vec::new();
        loop {
            let first = self.next.fetch_add(batch, Relaxed).min(dirty.len());
            let taken = &dirty[first..(first + batch).min(dirty.len())];
            if taken.is_empty() {
                return Ok(changes);
            }
            self.write(taken, &mut changes).inspect_err(|_| self.next.store(dirty.len(), Relaxed))?;
        }
    }

    fn write(&self, taken: &[usize], changes: &mut Vec<Change>) -> Result<()> {
        let (blocks, start) = (self.blocks, changes.len());
        for &block in taken {
            let before = blocks.before.get(block).copied().unwrap_or(PoolEntry::ZEROS);
            if blocks.is_shown[block] {
                // The rest of it is still the file's. A new checksum would hide damage there.
                read_checked(&*self.medium, &self.location, before, &mut vec![0; blocks.block_bytes])?;
            }
            let content = blocks.content(block);
            if content.iter().all(|byte| *byte == 0) {
                changes.extend((!before.is_zeros()).then_some((block, PoolEntry::ZEROS)));
                continue;
            }
            let check = pool_check(content);
            if before.is_zeros() || before.check() != check || !self.is_same(before, content)? {
                changes.push((block, PoolEntry::new(0, check)));
            }
        }
        let written = &mut changes[start..];
        self.place(written)?;
        let pages = (blocks.block_bytes / PAGE_BYTES) as u64;
        let follows = |one: &Change, other: &Change| {
            let is_content = !one.1.is_zeros() && !other.1.is_zeros();
            is_content && one.0 + 1 == other.0 && one.1.page() + pages == other.1.page()
        };
        for run in written.chunk_by(follows).filter(|run| !run[0].1.is_zeros()) {
            let range = run[0].0 * blocks.block_bytes..(run[run.len() - 1].0 + 1) * blocks.block_bytes;
            self.store(run[0].1.page(), range)?;
        }
        Ok(())
    }

    /// Takes pages for blocks of which the checksums are known.
    fn place(&self, changes: &mut [Change]) -> Result<()> {
        let mut draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, entry) in changes.iter_mut().filter(|(_, entry)| !entry.is_zeros()) {
            let page = draft.take((self.blocks.block_bytes / PAGE_BYTES) as u64)?;
            *entry = PoolEntry::new(page, entry.check());
        }
        Ok(())
    }

    fn store(&self, page: u64, range: Range<usize>) -> Result<()> {
        let stored = self.medium.write(page * PAGE_BYTES as u64, &self.blocks.memory[range]);
        stored.map_err(|source| Error::File { attempt: "write to", location: self.location.clone(), source })
    }

    /// Whether a block is the same as before: its checksum is, but that proves nothing.
    fn is_same(&self, before: PoolEntry, content: &[u8]) -> Result<bool> {
        let mut page = [0; PAGE_BYTES];
        for (number, now) in content.chunks(PAGE_BYTES).enumerate() {
            let read = self.medium.read((before.page() + number as u64) * PAGE_BYTES as u64, &mut page);
            read.map_err(|source| Error::File { attempt: "read", location: self.location.clone(), source })?;
            if now != page {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
