//! Where the blocks of a structure are: a tree of pages of entries, of which all but the lowest
//! level refer to further pages. A new version shares the pages that have not changed.

use std::collections::{BTreeSet, HashSet};

use outcrop_format::{PAGE_BYTES, POOL_ENTRIES, PoolEntry, PoolStructure, pool_check};

use crate::{Error, Result, file::PoolFile};

/// All levels of a tree, the blocks first. The last level has one entry, the top.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    levels: Vec<Vec<PoolEntry>>,
}

impl Table {
    /// A table of blocks of zeros.
    pub(crate) fn new(blocks: u64) -> Result<Self> {
        let mut levels = vec![zeros(blocks.max(1))?];
        while levels[levels.len() - 1].len() > 1 {
            let pages = levels[levels.len() - 1].len().div_ceil(POOL_ENTRIES);
            levels.push(zeros(pages as u64)?);
        }
        Ok(Self { levels })
    }

    /// The table of a structure of a durable version.
    pub(crate) fn read(file: &PoolFile, structure: &PoolStructure) -> Result<Self> {
        let mut table = Self::new(structure.blocks())?;
        let top = table.levels.len() - 1;
        table.levels[top][0] = structure.top;
        for level in (1..=top).rev() {
            for page in 0..table.levels[level].len() {
                let entry = table.levels[level][page];
                if !entry.is_zeros() {
                    let below = &mut table.levels[level - 1][page * POOL_ENTRIES..];
                    let count = below.len().min(POOL_ENTRIES);
                    below[..count].copy_from_slice(&file.entries(entry)?[..count]);
                }
            }
        }
        Ok(table)
    }

    /// The entries of all blocks.
    pub(crate) fn blocks(&self) -> &[PoolEntry] {
        &self.levels[0]
    }

    pub(crate) fn top(&self) -> PoolEntry {
        self.levels[self.levels.len() - 1][0]
    }

    /// Has another number of blocks, of which these are elsewhere from now on, and writes the pages
    /// above them.
    pub(crate) fn change(&mut self, blocks: u64, changes: &[(usize, PoolEntry)], draft: &mut Draft<'_>) -> Result<()> {
        let anew = self.resize(blocks)?;
        for (block, entry) in changes {
            self.levels[0][*block] = *entry;
        }
        let mut changed: BTreeSet<usize> = changes.iter().map(|(block, _)| *block).collect();
        for (level, anew) in anew.iter().enumerate().skip(1) {
            let mut pages: BTreeSet<usize> = changed.iter().map(|index| index / POOL_ENTRIES).collect();
            pages.extend(*anew);
            for &page in &pages {
                let first = page * POOL_ENTRIES;
                let below = &self.levels[level - 1];
                let entries = &below[first..below.len().min(first + POOL_ENTRIES)];
                let entry = match entries.iter().all(PoolEntry::is_zeros) {
                    true => PoolEntry::ZEROS,
                    false => draft.write(&PoolEntry::encode_page(entries))?,
                };
                if !entry.is_zeros() {
                    // Both pages refer to what has not changed.
                    let same = entries.iter().enumerate().filter(|(at, _)| !changed.contains(&(first + at)));
                    same.for_each(|(_, entry)| draft.share(*entry));
                }
                self.levels[level][page] = entry;
            }
            changed = pages;
        }
        if !changed.contains(&0) {
            draft.share(self.top());
        }
        Ok(())
    }

    /// Has another number of blocks, the new ones of zeros. By level: the page that is to be
    /// written although none of its entries changes, because there was none on that level, or
    /// because some of its entries must not be there any more.
    fn resize(&mut self, blocks: u64) -> Result<Vec<Option<usize>>> {
        if blocks.max(1) == self.levels[0].len() as u64 {
            return Ok(vec![None; self.levels.len()]);
        }
        let before = std::mem::replace(self, Self::new(blocks)?).levels;
        let mut anew = vec![None; self.levels.len()];
        for (level, now) in self.levels.iter_mut().enumerate() {
            let Some(before) = before.get(level) else {
                anew[level] = Some(0);
                continue;
            };
            let same = before.len().min(now.len());
            now[..same].copy_from_slice(&before[..same]);
            let gone = &before[same..same.next_multiple_of(POOL_ENTRIES).min(before.len())];
            if gone.iter().any(|entry| !entry.is_zeros()) && level + 1 < anew.len() {
                anew[level + 1] = Some((same - 1) / POOL_ENTRIES);
            }
        }
        Ok(anew)
    }
}

/// So many entries of zeros. Any number may be in a file.
fn zeros(count: u64) -> Result<Vec<PoolEntry>> {
    let bytes = count.saturating_mul(size_of::<PoolEntry>() as u64);
    let mut entries = Vec::new();
    let is_room = usize::try_from(count).is_ok_and(|count| entries.try_reserve_exact(count).is_ok());
    if !is_room {
        let source = std::io::ErrorKind::OutOfMemory.into();
        return Err(outcrop_memory::Error::NoMemory { bytes, source }.into());
    }
    entries.resize(count as usize, PoolEntry::ZEROS);
    Ok(entries)
}

/// What a new version has written so far, and can be taken back.
pub(crate) struct Draft<'a> {
    file: &'a mut PoolFile,
    /// First pages of what it has taken, and of what it refers to as well.
    taken: Vec<u64>,
    shared: Vec<u64>,
    /// Ranges of bytes to be flushed.
    written: Vec<std::ops::Range<u64>>,
    is_kept: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(file: &'a mut PoolFile) -> Self {
        Self { file, taken: Vec::new(), shared: Vec::new(), written: Vec::new(), is_kept: false }
    }

    pub(crate) fn file(&self) -> &PoolFile {
        self.file
    }

    /// Writes bytes to pages that nothing uses.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<PoolEntry> {
        let page = self.take(bytes.len().div_ceil(PAGE_BYTES) as u64)?;
        self.file.write(page * PAGE_BYTES as u64, bytes)?;
        Ok(PoolEntry::new(page, pool_check(bytes)))
    }

    /// Takes pages that nothing uses, to be written before the draft is flushed.
    pub(crate) fn take(&mut self, pages: u64) -> Result<u64> {
        let page = self.file.take(pages)?;
        self.taken.push(page);
        let at = page * PAGE_BYTES as u64;
        match self.written.last_mut() {
            Some(last) if last.end == at => last.end = at + pages * PAGE_BYTES as u64,
            _ => self.written.push(at..at + pages * PAGE_BYTES as u64),
        }
        Ok(page)
    }

    /// The new version refers to something that a durable one refers to.
    pub(crate) fn share(&mut self, entry: PoolEntry) {
        if !entry.is_zeros() {
            self.file.space.share(entry.page());
            self.shared.push(entry.page());
        }
    }

    /// How many bytes it has written.
    pub(crate) fn bytes(&self) -> u64 {
        self.written.iter().map(|range| range.end - range.start).sum()
    }

    /// Makes everything durable that it has written.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.file.flush(&self.written)
    }

    /// A durable root refers to it.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }

    pub(crate) fn write_root(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write(at, bytes)?;
        self.file.flush(std::slice::from_ref(&(at..at + bytes.len() as u64)))
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // If a root may refer to it, the pool accepts nothing more, and its space does not matter.
        if !self.is_kept {
            for page in self.shared.iter().chain(&self.taken) {
                self.file.space.release(*page);
            }
        }
    }
}

/// Follows a tree of a durable version to its blocks, and compares all pages of entries on the way
/// with their checksums. A page that occurs twice, or is not in the file, is damage.
pub(crate) fn walk(
    file: &PoolFile,
    structure: &PoolStructure,
    visit: &mut dyn FnMut(PoolEntry) -> Result<()>,
) -> Result<()> {
    let mut seen = HashSet::new();
    let mut left = vec![(structure.top, structure.levels)];
    while let Some((entry, levels)) = left.pop() {
        if entry.is_zeros() {
            continue;
        }
        let pages = if levels == 0 { structure.block_pages() } else { 1 };
        let is_there = entry.page().checked_add(pages).is_some_and(|end| end <= file.space.pages());
        if !is_there || !seen.insert(entry.page()) {
            let problem = format!("\"{}\" refers to page {} twice, or it is not there", structure.name, entry.page());
            return Err(Error::Wrong { location: file.location.clone(), problem });
        }
        match levels {
            0 => visit(entry)?,
            _ => left.extend(file.entries(entry)?.into_iter().map(|below| (below, levels - 1))),
        }
    }
    Ok(())
}

/// No longer refers to a tree, and frees what nothing else refers to.
pub(crate) fn release(file: &mut PoolFile, top: PoolEntry, levels: u8) -> Result<()> {
    if top.is_zeros() {
        return Ok(());
    }
    if levels > 0 && file.space.is_last(top.page()) {
        for entry in file.entries(top)?.to_vec() {
            release(file, entry, levels - 1)?;
        }
    }
    file.space.release(top.page());
    Ok(())
}

/// Counts the references of a tree that was found in the file.
pub(crate) fn count(file: &mut PoolFile, top: PoolEntry, levels: u8, block_pages: u64) -> Result<()> {
    if top.is_zeros() {
        return Ok(());
    }
    let pages = if levels == 0 { block_pages } else { 1 };
    let is_new = file.space.refer(top.page(), pages).map_err(|()| {
        let problem = format!("page {} is used twice, or is not there", top.page());
        Error::Wrong { location: file.location.clone(), problem }
    })?;
    if is_new && levels > 0 {
        for entry in file.entries(top)?.to_vec() {
            count(file, entry, levels - 1, block_pages)?;
        }
    }
    Ok(())
}
