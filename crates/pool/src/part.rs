//! The working memory of a structure: ordinary memory, in which blocks that were not changed may
//! still be those of the file.

use std::{ops::Range, sync::Arc};

use outcrop_format::{PAGE_BYTES, PoolEntry, PoolStructure, pool_check};
use outcrop_memory::Overlay;

use crate::{
    Error, Result,
    file::PoolFile,
    pool::Opened,
    table::{Draft, Table},
};

/// The working memory of one structure, and what is durable of it.
pub struct Part {
    /// Without its tree, which is in `table`.
    pub(crate) described: PoolStructure,
    pub(crate) memory: Overlay,
    /// By block: whether it was written since the last version. One byte each, so that marking is
    /// one store.
    dirty: Vec<u8>,
    /// By block: whether its memory shows the file.
    is_shown: Vec<bool>,
    table: Table,
    /// While this lives, the pool is locked, and has the structure open.
    pub(crate) opened: Arc<Opened>,
}

/// What a part is in a durable version.
pub(crate) struct Loaded {
    state: Vec<u8>,
    table: Table,
    memory: Overlay,
    is_shown: Vec<bool>,
}

/// What a part looks like in a version that is not durable yet.
pub(crate) struct Change {
    table: Table,
    entry: PoolStructure,
}

impl Part {
    /// Zeros, none of which are durable.
    pub(crate) fn new(described: PoolStructure, opened: Arc<Opened>) -> Result<Self> {
        let blocks = described.blocks();
        // The table first: it takes memory, and fails if there is not so much.
        let table = Table::new(blocks)?;
        let memory = Overlay::new(room(&described)?)?;
        let mut part = Self {
            described,
            memory,
            dirty: vec![0; blocks as usize],
            is_shown: vec![false; blocks as usize],
            table,
            opened,
        };
        part.describe();
        Ok(part)
    }

    /// Reads what it is in a durable version, and changes nothing.
    pub(crate) fn load(&self, file: &PoolFile, version: &PoolStructure) -> Result<Loaded> {
        let (mine, other) = (&self.described, version);
        let of = |it: &PoolStructure| (it.layout, it.element_bytes, it.shape, it.block_bytes);
        if of(mine) != of(other) {
            return Err(Error::Misfit(format!("\"{}\" has another type, shape or block in that version", mine.name)));
        }
        let table = Table::read(file, version)?;
        let (memory, is_shown) = shown(file, version, table.blocks())?;
        Ok(Loaded { state: version.state.clone(), table, memory, is_shown })
    }

    /// Is what was loaded from now on. What was not persisted is lost.
    pub(crate) fn become_loaded(&mut self, loaded: Loaded) {
        self.described.state = loaded.state;
        (self.memory, self.is_shown, self.table) = (loaded.memory, loaded.is_shown, loaded.table);
        self.dirty.fill(0);
        self.describe();
    }

    fn describe(&mut self) {
        self.described.levels = PoolStructure::levels_of(self.described.blocks());
        self.described.top = self.table.top();
    }

    /// Marks the blocks of a range of bytes as changed, and gives the memory.
    pub(crate) fn write(&mut self, range: Range<usize>) -> &mut [u8] {
        let block = self.described.block_bytes as usize;
        if !range.is_empty() {
            self.dirty[range.start / block..=(range.end - 1) / block].fill(1);
        }
        &mut self.memory[range]
    }

    /// One byte per block: a store of 1 marks it as changed.
    pub(crate) fn marks(&mut self) -> (&mut [u8], &mut [u8]) {
        (&mut self.dirty, &mut self.memory)
    }

    /// Writes what has changed to the file, for a version that is not durable yet.
    pub(crate) fn draft(&mut self, draft: &mut Draft<'_>) -> Result<Change> {
        let bytes = self.described.block_bytes as usize;
        let mut changes = Vec::new();
        for block in (0..self.dirty.len()).filter(|block| self.dirty[*block] != 0) {
            let range = block * bytes..(block + 1) * bytes;
            let before = self.table.blocks()[block];
            if self.is_shown[block] {
                // The rest of it is still the file's. A new checksum would hide damage there.
                draft.file().read_checked(before, &mut vec![0; bytes])?;
            }
            let content = &self.memory[range];
            let is_zeros = content.iter().all(|byte| *byte == 0);
            if is_zeros {
                changes.extend((!before.is_zeros()).then_some((block, PoolEntry::ZEROS)));
            } else if before.is_zeros() || before.check() != pool_check(content) || !is_same(draft, before, content)? {
                changes.push((block, draft.write(content)?));
            }
        }
        let mut table = self.table.clone();
        if !changes.is_empty() {
            table.change(&changes, draft)?;
        }
        if table.top() == self.table.top() {
            draft.share(table.top());
        }
        let entry = PoolStructure { top: table.top(), ..self.described.clone() };
        Ok(Change { table, entry })
    }

    /// The version has become durable. Blocks that were written no longer depend on the file: what
    /// they show may be freed.
    pub(crate) fn keep(&mut self, change: Change) {
        let bytes = self.described.block_bytes as usize;
        for block in (0..self.dirty.len()).filter(|block| self.dirty[*block] != 0) {
            if std::mem::replace(&mut self.is_shown[block], false) {
                self.memory.own(block * bytes..(block + 1) * bytes);
            }
        }
        self.dirty.fill(0);
        self.table = change.table;
        self.describe();
    }
}

impl Change {
    pub(crate) fn entry(&self) -> &PoolStructure {
        &self.entry
    }
}

/// Whether a block is the same as before: its checksum is, but that proves nothing.
fn is_same(draft: &Draft<'_>, before: PoolEntry, content: &[u8]) -> Result<bool> {
    let mut page = [0; PAGE_BYTES];
    for (number, now) in content.chunks(PAGE_BYTES).enumerate() {
        draft.file().read((before.page() + number as u64) * PAGE_BYTES as u64, &mut page)?;
        if now != page {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The bytes of all blocks in memory.
pub(crate) fn room(structure: &PoolStructure) -> Result<usize> {
    let bytes = structure.blocks().checked_mul(structure.block_bytes).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| Error::Misfit(format!("\"{}\" is larger than the address space", structure.name)))
}

/// Memory with the blocks of a durable version, and which of them show the file.
pub(crate) fn shown(file: &PoolFile, structure: &PoolStructure, blocks: &[PoolEntry]) -> Result<(Overlay, Vec<bool>)> {
    let mut memory = Overlay::new(room(structure)?)?;
    let count = structure.blocks() as usize;
    let (bytes, pages) = (structure.block_bytes as usize, structure.block_pages());
    let mut is_shown = vec![false; count];
    let mut first = 0;
    while first < count {
        // Neighbours in the file are shown by one mapping.
        let follows = |next: usize| {
            let is_next = blocks[next].page() == blocks[first].page() + (next - first) as u64 * pages;
            !blocks[next].is_zeros() && is_next
        };
        let end = (first + 1..count).find(|next| !follows(*next)).unwrap_or(count);
        let end = if blocks[first].is_zeros() { first + 1 } else { end };
        if !blocks[first].is_zeros() {
            let range = first * bytes..end * bytes;
            let at = blocks[first].page() * PAGE_BYTES as u64;
            let is_there = at + range.len() as u64 <= file.medium.bytes();
            let is_mapped = match file.medium.file().filter(|_| is_there && PAGE_BYTES == outcrop_memory::page_bytes())
            {
                // SAFETY: a durable version refers to these pages, and the working version, or the
                // view that this is for, keeps them: nothing writes them until this part shows
                // something else. The lock of the pool keeps other programs away.
                Some(descriptor) => unsafe { memory.show(range.clone(), descriptor, at)? },
                None => false,
            };
            match is_mapped {
                true => is_shown[first..end].fill(true),
                false => {
                    let mut copies = memory[range].chunks_mut(bytes).zip(&blocks[first..end]);
                    copies.try_for_each(|(copy, entry)| file.read_checked(*entry, copy))?;
                }
            }
        }
        first = end;
    }
    Ok((memory, is_shown))
}
