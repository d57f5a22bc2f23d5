//! The working memory of a structure: ordinary memory, in which blocks that were not changed may
//! still be those of the file.

use std::{ops::Range, sync::Arc};

use outcrop_cost::{Features, Kind};
use outcrop_format::{PAGE_BYTES, PoolEntry, PoolKind, PoolStructure};
use outcrop_memory::Overlay;

use crate::{
    Error, Result,
    file::PoolFile,
    place::{Home, Placement},
    pool::Opened,
    table::{Draft, Table},
    write::Blocks,
};

/// The arrays of a structure, for its pool. What they are is the pool's business: exchanged, they
/// would not be what the structure takes them for.
pub struct Parts<'a>(pub(crate) Vec<&'a mut Part>);

impl<'a> Parts<'a> {
    /// These, and those of another structure.
    pub fn and(mut self, others: Parts<'a>) -> Self {
        self.0.extend(others.0);
        self
    }
}

impl std::fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|part| &part.described.name)).finish()
    }
}

/// The working memory of one structure, and what is durable of it.
pub(crate) struct Part {
    /// Without its tree, which is in `table`.
    pub(crate) described: PoolStructure,
    pub(crate) memory: Overlay,
    /// By block: whether it was written since the last version. One byte each, so that marking is
    /// one store.
    dirty: Vec<u8>,
    /// Whether all blocks are marked, because all are expected to change. Then writing an element
    /// costs what it costs in a slice: loops are compiled without marks, and vectorised.
    is_all_marked: bool,
    /// By block: whether its memory shows the file.
    pub(crate) is_shown: Vec<bool>,
    pub(crate) table: Table,
    pub(crate) placement: Placement,
    /// How often it has become what a durable version is.
    loads: u64,
    /// Whether somebody else knows its address, and writes there without marks.
    is_foreign: bool,
    /// While this lives, the pool is locked, and has the structure open.
    pub(crate) opened: Arc<Opened>,
}

/// What a part is in a durable version.
pub(crate) struct Loaded {
    pub(crate) shape: [u64; 3],
    pub(crate) state: Vec<u8>,
    pub(crate) table: Table,
    pub(crate) memory: Overlay,
    pub(crate) is_shown: Vec<bool>,
}

/// What a part looks like in a version that is not durable yet.
pub(crate) struct Change {
    table: Table,
    entry: PoolStructure,
    /// How many blocks differ from the version before.
    written: usize,
}

impl Part {
    /// Zeros, none of which are durable.
    pub(crate) fn new(described: PoolStructure, opened: Arc<Opened>) -> Result<Self> {
        let blocks = described.blocks();
        // The table first: it takes memory, and fails if there is not so much.
        let table = Table::new(blocks)?;
        let memory = memory(&described, is_growing(&described))?;
        let mut part = Self {
            described,
            memory,
            dirty: vec![0; blocks as usize],
            is_all_marked: false,
            is_shown: vec![false; blocks as usize],
            table,
            placement: Placement::default(),
            loads: 0,
            is_foreign: false,
            opened,
        };
        part.describe();
        Ok(part)
    }

    /// Reads what it is in a durable version, and changes nothing.
    pub(crate) fn load(&self, file: &PoolFile, version: &PoolStructure) -> Result<Loaded> {
        self.check_fits(version)?;
        if self.described.block_bytes != version.block_bytes {
            return Err(Error::Misfit(format!("\"{}\" has other blocks in that version", self.described.name)));
        }
        let table = Table::read(file, version)?;
        let memory = memory(version, is_growing(version))?;
        let (memory, is_shown) = shown(file, version, table.blocks(), memory)?;
        Ok(Loaded { shape: version.shape, state: version.state.clone(), table, memory, is_shown })
    }

    /// That its elements can be those of a version.
    pub(crate) fn check_fits(&self, version: &PoolStructure) -> Result<()> {
        let (mine, other) = (&self.described, version);
        let of = |it: &PoolStructure| (it.kind(), it.layout, it.element_bytes);
        // A list has one dimension, of any length.
        let is_same_shape = if is_growing(mine) { is_line(other) } else { mine.shape == other.shape };
        match of(mine) == of(other) && is_same_shape {
            true => Ok(()),
            false => Err(Error::Misfit(format!("\"{}\" has another type or shape in that version", mine.name))),
        }
    }

    /// Is what was loaded from now on. What was not persisted is lost.
    pub(crate) fn become_loaded(&mut self, loaded: Loaded, file: &PoolFile) {
        (self.described.shape, self.described.state) = (loaded.shape, loaded.state);
        self.table = loaded.table;
        match self.is_foreign {
            true => self.load_in_place(&loaded.memory, file),
            false => (self.memory, self.is_shown) = (loaded.memory, loaded.is_shown),
        }
        self.set_marks(self.is_shown.len(), 0);
        let blocks = self.table.blocks().iter().zip(&self.is_shown);
        self.placement.load(blocks.map(|(entry, is_shown)| !is_shown && !entry.is_zeros()));
        self.loads += 1;
        self.describe();
    }

    /// Is what was copied from elsewhere from now on, all of which counts as changed.
    pub(crate) fn become_copied(&mut self, copied: Loaded) {
        (self.described.shape, self.described.state) = (copied.shape, copied.state);
        match self.is_foreign {
            // It stays where it is, and what was written is found by looking.
            true => self.memory[..copied.memory.len()].copy_from_slice(&copied.memory),
            false => (self.memory, self.is_shown) = (copied.memory, copied.is_shown),
        }
        self.set_marks(self.is_shown.len(), 1);
        self.placement.load(self.is_shown.iter().map(|is_shown| !is_shown));
        self.loads += 1;
        self.describe();
    }

    /// From now on somebody else knows the address, and writes there without marks.
    pub(crate) fn be_foreign(&mut self) {
        self.is_foreign = true;
        // What has its place on the medium is copied when it is written, which can be seen.
        self.place(0..usize::MAX, Home::Nvm);
    }

    /// Shows what the table refers to at the address that it has.
    fn load_in_place(&mut self, loaded: &Overlay, file: &PoolFile) {
        let bytes = self.described.block_bytes as usize;
        let all: Vec<usize> = (0..self.is_shown.len()).collect();
        for block in self.give_back(file, &all) {
            let range = block * bytes..(block + 1) * bytes;
            self.memory[range.clone()].copy_from_slice(&loaded[range]);
            self.is_shown[block] = false;
        }
    }

    /// Marks what may have been written without a mark.
    pub(crate) fn look(&mut self) {
        let bytes = self.described.block_bytes as usize;
        let dirty = &mut self.dirty;
        let looked = self.memory.written(|range| {
            let blocks = range.start / bytes..range.end.div_ceil(bytes).min(dirty.len());
            dirty.get_mut(blocks).into_iter().for_each(|blocks| blocks.fill(1));
        });
        if looked.is_err() {
            dirty.fill(1);
        }
    }

    fn describe(&mut self) {
        self.described.levels = PoolStructure::levels_of(self.described.blocks());
        self.described.top = self.table.top();
    }

    /// Marks the blocks of a range of bytes as changed, and gives the memory.
    #[inline]
    pub(crate) fn write(&mut self, range: Range<usize>) -> &mut [u8] {
        let block = self.described.block_bytes as usize;
        if !range.is_empty() {
            self.dirty[range.start / block..=(range.end - 1) / block].fill(1);
        }
        &mut self.memory[range]
    }

    /// Marks the block of an element as changed, and gives the address of the first element. Blocks
    /// have two to the power of `shift` elements.
    ///
    /// # Safety
    ///
    /// There is such an element.
    #[inline]
    pub(crate) unsafe fn element(&mut self, index: usize, shift: u32) -> *mut u8 {
        // Nothing in a loop changes this, so the compiler decides before the loop.
        if !self.is_all_marked {
            // SAFETY: every element is in a block, and there is a mark for each block. Loops that
            // write element by element have no time for a second comparison.
            unsafe { *self.dirty.get_unchecked_mut(index >> shift) = 1 };
        }
        self.memory.as_mut_ptr()
    }

    /// A block is what is durable, and is not expected to change.
    pub(crate) fn unmark(&mut self, block: usize) {
        self.is_all_marked = false;
        self.dirty[block] = 0;
    }

    /// The pages of all blocks that are marked.
    pub(crate) fn marked_pages(&self) -> u64 {
        self.dirty.iter().filter(|mark| **mark != 0).count() as u64 * self.described.block_pages()
    }

    /// Has so many marks, all alike.
    fn set_marks(&mut self, blocks: usize, mark: u8) {
        self.dirty.clear();
        self.dirty.resize(blocks, mark);
        self.is_all_marked = mark != 0;
    }

    /// How often it has become what a durable version is: what was derived from it before is not
    /// true any more.
    pub(crate) fn loads(&self) -> u64 {
        self.loads
    }

    /// The bytes of its owner that are part of a version, of a structure that is no array.
    #[inline]
    pub(crate) fn state(&self) -> &[u8] {
        state(&self.described)
    }

    pub(crate) fn set_state(&mut self, state: &[u8]) {
        self.described.state.truncate(KIND_BYTES);
        self.described.state.extend_from_slice(state);
    }

    /// Has so many elements in its first dimension. New ones are zeros. Addresses stay, unless the
    /// memory that was reserved is too short.
    pub(crate) fn resize(&mut self, len: usize) -> Result<()> {
        let block = self.described.block_bytes as usize;
        let before = self.described.bytes() as usize;
        let bytes = len.checked_mul(self.described.element_bytes as usize).filter(|bytes| *bytes <= BYTES_MAX);
        let bytes = bytes.ok_or_else(|| Error::Misfit(format!("\"{}\" is too large", self.described.name)))?;
        let blocks = bytes.div_ceil(block);
        if blocks * block > self.memory.len() {
            self.move_to(reserved(blocks * block)?);
        }
        if bytes < before {
            // What is cut off must not come back when it grows again.
            self.write(bytes..before.min(blocks * block)).fill(0);
            self.memory.clear(blocks * block..self.dirty.len() * block);
        }
        // New blocks count as changed: a durable version may have had others in their place.
        self.dirty.resize(blocks, 1);
        self.is_shown.resize(blocks, false);
        self.described.shape[0] = len as u64;
        Ok(())
    }

    /// Lies elsewhere from now on. Blocks that show the file are copied, and still count as shown,
    /// so that they are compared with their checksums when they change.
    pub(crate) fn move_to(&mut self, mut memory: Overlay) {
        let used = self.dirty.len() * self.described.block_bytes as usize;
        let pages = self.memory[..used].chunks(PAGE_BYTES).zip(memory[..used].chunks_mut(PAGE_BYTES));
        for (from, to) in pages.filter(|(from, _)| from.iter().any(|byte| *byte != 0)) {
            to.copy_from_slice(from);
        }
        self.memory = memory;
    }

    /// What the cost model is told of it.
    pub(crate) fn features(&self, kind: Kind) -> Features {
        let is_changed = |mark: &&u8| **mark != 0;
        let changed = self.dirty.iter().filter(is_changed).count() as u64;
        let shown = self.is_shown.iter().filter(|is_shown| **is_shown).count() as u64;
        let both = self.dirty.iter().zip(&self.is_shown).filter(|(mark, is_shown)| is_changed(mark) && **is_shown);
        let element_bytes = u64::from(self.described.element_bytes);
        Features {
            kind,
            structures: 1,
            bytes: self.described.elements() * element_bytes,
            element_bytes,
            blocks: self.dirty.len() as u64,
            changed_blocks: changed,
            changed_bytes: changed * self.described.block_bytes,
            changed_from_file: both.count() as u64,
            memory_blocks: self.dirty.len() as u64 - shown,
            levels: u32::from(self.described.levels),
        }
    }

    /// Writes what has changed to the file, for a version that is not durable yet.
    pub(crate) fn draft(&mut self, draft: &mut Draft<'_>) -> Result<Change> {
        let blocks = Blocks {
            memory: &self.memory,
            block_bytes: self.described.block_bytes as usize,
            dirty: (0..self.dirty.len()).filter(|block| self.dirty[*block] != 0).collect(),
            before: self.table.blocks(),
            is_shown: &self.is_shown,
        };
        let mut changes = blocks.write(draft)?;
        if self.dirty.is_empty() && !self.table.blocks()[0].is_zeros() {
            // A table has at least one entry.
            changes.push((0, PoolEntry::ZEROS));
        }
        let mut table = self.table.clone();
        let blocks = self.described.blocks();
        table.change(blocks, &changes, draft)?;
        let levels = PoolStructure::levels_of(blocks);
        let entry = PoolStructure { top: table.top(), levels, ..self.described.clone() };
        Ok(Change { table, entry, written: changes.len() })
    }

    /// The version has become durable. Blocks that were written no longer depend on what they
    /// showed, which may be freed.
    pub(crate) fn keep(&mut self, change: Change, file: &PoolFile, version: u64) {
        let bytes = self.described.block_bytes as usize;
        let changed: Vec<usize> = (0..self.dirty.len()).filter(|block| self.dirty[*block] != 0).collect();
        for &block in &changed {
            self.placement.copied_bytes += if self.is_shown[block] { bytes as u64 } else { 0 };
            self.placement.hold(block, Some(version));
        }
        self.set_marks(self.dirty.len(), 0);
        let written = change.written;
        self.table = change.table;
        self.describe();
        let (leave, mut stay): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|block| self.placement.hint(*block) == Some(Home::Nvm));
        stay.extend(self.give_back(file, &leave));
        for block in stay {
            if std::mem::replace(&mut self.is_shown[block], false) {
                self.memory.own(block * bytes..(block + 1) * bytes);
            }
        }
        self.expect(written);
    }

    /// If so many blocks have changed that all may change again, all are marked now. What turns out
    /// to be the same is not written, and next time nothing is expected. Blocks that the medium
    /// alone has are left alone.
    fn expect(&mut self, written: usize) {
        let blocks = self.dirty.len();
        let is_whole = blocks > 0 && written >= blocks - blocks / 8;
        if is_whole && !self.is_foreign && !self.is_shown.contains(&true) {
            self.set_marks(blocks, 1);
        }
    }
}

impl Change {
    pub(crate) fn entry(&self) -> &PoolStructure {
        &self.entry
    }
}

/// A state begins with the kind of the structure, and with which part of it this is.
const KIND_BYTES: usize = 2;

/// The bytes of the owner of a structure that is no array.
pub(crate) fn state(structure: &PoolStructure) -> &[u8] {
    structure.state.get(KIND_BYTES..).unwrap_or_default()
}

/// Whether its length may differ between versions.
pub(crate) fn is_growing(structure: &PoolStructure) -> bool {
    structure.kind() != Some((PoolKind::Array, 0))
}

/// Whether it has one dimension.
pub(crate) fn is_line(structure: &PoolStructure) -> bool {
    structure.shape[1..] == [1, 1]
}

/// The longest structure: any sum of offsets in it can be computed.
pub(crate) const BYTES_MAX: usize = isize::MAX as usize / 2;

/// Address space for the growth of a list. It costs nothing until it is used.
const RESERVED_BYTES: usize = 64 << 30;

/// A few pages, so that no two structures of one length are a power of two apart. Programs read
/// element *i* of several: some processors tell lines of their caches apart by a few bits of the
/// address, and would miss each time.
const APART_BYTES: usize = 5 * PAGE_BYTES;

/// Memory with room to grow, as much as the system allows.
fn reserved(bytes: usize) -> Result<Overlay> {
    let more = [bytes.saturating_add(RESERVED_BYTES), bytes.saturating_mul(2)];
    let found = more.into_iter().find_map(|bytes| apart(bytes).ok());
    found.map_or_else(|| apart(bytes), Ok)
}

fn apart(bytes: usize) -> Result<Overlay> {
    Ok(Overlay::new(bytes.saturating_add(APART_BYTES))?)
}

/// Memory for the blocks of a structure.
pub(crate) fn memory(structure: &PoolStructure, grows: bool) -> Result<Overlay> {
    let bytes = room(structure)?;
    if grows { reserved(bytes) } else { apart(bytes) }
}

/// The bytes of all blocks in memory.
fn room(structure: &PoolStructure) -> Result<usize> {
    let bytes = structure.blocks().checked_mul(structure.block_bytes).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| Error::Misfit(format!("\"{}\" is larger than the address space", structure.name)))
}

/// Memory with the blocks of a durable version, and which of them show the file.
pub(crate) fn shown(
    file: &PoolFile,
    structure: &PoolStructure,
    blocks: &[PoolEntry],
    mut memory: Overlay,
) -> Result<(Overlay, Vec<bool>)> {
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
            let is_mapped = match file.descriptor().filter(|_| is_there && PAGE_BYTES == outcrop_memory::page_bytes()) {
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
