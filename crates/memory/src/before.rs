//! What memory held before it is overwritten, so that it can be put back.

use std::{fs::File, ops::Range, os::unix::fs::FileExt};

use crate::{Maps, page_bytes};

/// How many entries of the page table are read at once.
const ENTRIES: usize = 4096;
/// Less than this is copied without a look at the page table.
const SMALL_BYTES: usize = 16 << 10;

/// Takes note of what memory holds, with a limit on the copies that this needs.
#[derive(Debug)]
pub struct Befores {
    maps: Option<Maps>,
    table: Option<File>,
    bytes_left: usize,
}

/// What a piece of memory held.
#[derive(Debug)]
pub struct Before {
    /// Copies of what was touched, ascending, by where it begins. All other bytes are zero.
    touched: Vec<(usize, Vec<u8>)>,
}

impl Befores {
    /// Copies take at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let (maps, table) = (Maps::now().ok(), File::open("/proc/self/pagemap").ok());
        Self { maps, table, bytes_left: bytes_max }
    }

    /// What a piece of memory holds. Pages that were never touched are zero, and need no copy.
    /// `None` if there is too much of other pages.
    pub fn of(&mut self, memory: &[u8]) -> Option<Before> {
        let mut left = self.bytes_left;
        let mut touched = Vec::new();
        let mut keep = |range: Range<usize>| {
            left = left.checked_sub(range.len())?;
            touched.push((range.start, memory[range].to_vec()));
            Some(())
        };
        match self.whole_pages(memory) {
            None => keep(0..memory.len())?,
            Some((table, pages)) => {
                keep(0..pages.start)?;
                visit_touched(table, memory, &pages, &mut keep)?;
                keep(pages.end..memory.len())?;
            }
        }
        self.bytes_left = left;
        Some(Before { touched })
    }

    /// The pages that lie in this memory, as a range of its bytes, if it can be told which of them
    /// were touched: those of files and shared memory need not be zero.
    fn whole_pages(&self, memory: &[u8]) -> Option<(&File, Range<usize>)> {
        if memory.len() < SMALL_BYTES {
            return None;
        }
        let start = memory.as_ptr().addr();
        let pages = start.next_multiple_of(page_bytes())..(start + memory.len()) / page_bytes() * page_bytes();
        let is_private = self.maps.as_ref()?.is_private_anonymous(&pages).ok()?;
        is_private.then_some((self.table.as_ref()?, pages.start - start..pages.end - start))
    }
}

/// Visits the touched ones of these pages, until `visit` has had enough.
fn visit_touched(
    table: &File,
    memory: &[u8],
    pages: &Range<usize>,
    visit: &mut impl FnMut(Range<usize>) -> Option<()>,
) -> Option<()> {
    // Present, swapped out, or marked in some way: each is more than untouched.
    const IN_MEMORY_OR_SWAP: u64 = 3 << 62;
    let page = page_bytes();
    let is_touched = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & IN_MEMORY_OR_SWAP != 0;
    let first = (memory.as_ptr().addr() + pages.start) / page;
    let mut entries = vec![0; (pages.len() / page).min(ENTRIES) * 8];
    for nth in (0..pages.len() / page).step_by(ENTRIES) {
        let count = (pages.len() / page - nth).min(ENTRIES);
        let entries = &mut entries[..count * 8];
        table.read_exact_at(entries, (first + nth) as u64 * 8).ok()?;
        let mut at = pages.start + nth * page;
        for alike in entries.as_chunks().0.chunk_by(|one, other| is_touched(one) == is_touched(other)) {
            let end = at + alike.len() * page;
            if is_touched(&alike[0]) {
                visit(at..end)?;
            }
            at = end;
        }
    }
    Some(())
}

impl Before {
    /// Puts it back into the memory that held it. Pages that are zero are not touched for that.
    pub fn put_back(&self, memory: &mut [u8]) {
        let mut at = 0;
        for (start, bytes) in &self.touched {
            clear(&mut memory[at..*start]);
            at = start + bytes.len();
            memory[*start..at].copy_from_slice(bytes);
        }
        clear(&mut memory[at..]);
    }
}

/// Makes bytes zero without a write to those that are.
fn clear(memory: &mut [u8]) {
    for piece in memory.chunks_mut(page_bytes()) {
        if piece.iter().any(|byte| *byte != 0) {
            piece.fill(0);
        }
    }
}
