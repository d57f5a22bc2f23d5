//! Where the working copies of blocks are: in DRAM, or on the medium alone, from which they are
//! read in place.

use std::ops::Range;

use outcrop_format::PAGE_BYTES;

use crate::{Part, file::PoolFile};

/// Where a block is kept once it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// DRAM keeps a copy: for what is changed again soon.
    Dram,
    /// The medium alone has it, and it is read from there. Its DRAM is given back. The next write
    /// to it copies it.
    Nvm,
}

/// Where the blocks of a part are. Blocks that have come later have no hint and no copy.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    hints: Vec<Option<Home>>,
    /// Of blocks with a copy in DRAM: the version in which each has changed last.
    held: Vec<Option<u64>>,
    /// Bytes of blocks that were written while the medium alone had them.
    pub(crate) copied_bytes: u64,
}

/// A copy of a block in DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InDram {
    part: usize,
    block: usize,
    bytes: u64,
    changed_in: u64,
    hint: Option<Home>,
}

impl Placement {
    pub(crate) fn hint(&self, block: usize) -> Option<Home> {
        self.hints.get(block).copied().flatten()
    }

    /// DRAM has a copy of a block that has changed in a version, or has none.
    pub(crate) fn hold(&mut self, block: usize, changed_in: Option<u64>) {
        if block >= self.held.len() {
            self.held.resize(block + 1, None);
        }
        self.held[block] = changed_in;
    }

    /// Of what was read from a version, DRAM has copies of these blocks.
    pub(crate) fn load(&mut self, is_held: impl Iterator<Item = bool>) {
        self.held = is_held.map(|is_held| is_held.then_some(0)).collect();
    }

    fn copies(&self) -> impl Iterator<Item = (usize, u64)> + Clone {
        self.held.iter().enumerate().filter_map(|(block, held)| Some((block, (*held)?)))
    }
}

impl Part {
    /// Says where a range of bytes is to be kept. Blocks that are only partly in it are kept in
    /// DRAM if that is said, and stay as they are otherwise.
    pub(crate) fn place(&mut self, range: Range<usize>, place: Home) {
        let block = self.described.block_bytes as usize;
        let blocks = self.described.blocks() as usize;
        let is_end = range.end as u64 >= self.described.bytes();
        let range = match place {
            Home::Dram => range.start / block..range.end.div_ceil(block),
            Home::Nvm => range.start.div_ceil(block)..if is_end { blocks } else { range.end / block },
        };
        let hints = &mut self.placement.hints;
        hints.resize(blocks, None);
        hints.get_mut(range).into_iter().flatten().for_each(|hint| *hint = Some(place));
    }

    /// Has the medium alone keep blocks that are durable. Returns those of which that is not
    /// possible.
    pub(crate) fn give_back(&mut self, file: &PoolFile, blocks: &[usize]) -> Vec<usize> {
        let Some(descriptor) = file.descriptor().filter(|_| PAGE_BYTES == outcrop_memory::page_bytes()) else {
            return blocks.to_vec();
        };
        let (bytes, pages) = (self.described.block_bytes as usize, self.described.block_pages());
        let entries = self.table.blocks().to_vec();
        let follows = |&one: &usize, &other: &usize| {
            let (one_at, other_at) = (entries[one], entries[other]);
            let is_next = one_at.page() + pages == other_at.page() || one_at.is_zeros();
            other == one + 1 && one_at.is_zeros() == other_at.is_zeros() && is_next
        };
        let mut failed = Vec::new();
        for run in blocks.chunk_by(follows) {
            let (first, range) = (entries[run[0]], run[0] * bytes..(run[run.len() - 1] + 1) * bytes);
            let given = match first.is_zeros() {
                true => {
                    self.memory.clear(range);
                    Ok(true)
                }
                // SAFETY: the working version refers to these pages of the file, so nothing writes
                // them until this part shows something else. The lock of the pool keeps other
                // programs away.
                false => unsafe { self.memory.show(range, descriptor, first.page() * PAGE_BYTES as u64) },
            };
            match given {
                Ok(true) => run.iter().for_each(|block| {
                    self.is_shown[*block] = !first.is_zeros();
                    self.placement.hold(*block, None);
                    self.unmark(*block);
                }),
                // DRAM keeps the copies. The version is durable in any case.
                Ok(false) | Err(_) => failed.extend_from_slice(run),
            }
        }
        failed
    }
}

/// Has DRAM keep no more copies than so many bytes, as far as possible. Returns how many it keeps.
pub(crate) fn limit(parts: &mut [&mut Part], file: &PoolFile, bytes_max: Option<u64>) -> u64 {
    let copies = parts.iter().enumerate().flat_map(|(number, part)| {
        let (bytes, blocks) = (part.described.block_bytes, part.described.blocks() as usize);
        let held = part.placement.copies().take_while(move |(block, _)| *block < blocks);
        held.map(move |(block, changed_in)| {
            let hint = part.placement.hint(block);
            InDram { part: number, block, bytes, changed_in, hint }
        })
    });
    let mut bytes: u64 = copies.clone().map(|copy| copy.bytes).sum();
    let bytes_max = bytes_max.unwrap_or(u64::MAX);
    if bytes <= bytes_max {
        return bytes;
    }
    let leaving = leaving(copies.collect(), bytes, bytes_max);
    for leaving in leaving.chunk_by(|one, other| one.part == other.part) {
        let blocks: Vec<usize> = leaving.iter().map(|copy| copy.block).collect();
        let part = &mut parts[leaving[0].part];
        let failed = part.give_back(file, &blocks).len();
        bytes -= (blocks.len() - failed) as u64 * part.described.block_bytes;
    }
    bytes
}

/// Which copies leave DRAM: those without a hint first, and then those that have not changed for
/// longest. By part and block.
fn leaving(mut copies: Vec<InDram>, mut bytes: u64, bytes_max: u64) -> Vec<InDram> {
    copies.sort_by_key(|copy| (copy.hint == Some(Home::Dram), copy.changed_in, copy.part, copy.block));
    let leave = |copy: &InDram| {
        let leaves = bytes > bytes_max;
        bytes -= if leaves { copy.bytes } else { 0 };
        leaves
    };
    let count = copies.iter().map(leave).take_while(|leaves| *leaves).count();
    copies.truncate(count);
    copies.sort_by_key(|copy| (copy.part, copy.block));
    copies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(block: usize, changed_in: u64, hint: Option<Home>) -> InDram {
        InDram { part: block % 2, block, bytes: 10, changed_in, hint }
    }

    #[test]
    fn what_has_not_changed_for_longest_leaves_first_and_what_is_to_stay_last() {
        let copies = [
            copy(0, 1, Some(Home::Dram)),
            copy(1, 7, None),
            copy(2, 3, None),
            copy(3, 2, Some(Home::Dram)),
            copy(4, 5, None),
        ];
        let blocks = |bytes_max| leaving(copies.to_vec(), 50, bytes_max).iter().map(|it| it.block).collect::<Vec<_>>();
        assert_eq!(blocks(50), [0; 0]);
        assert_eq!(blocks(49), [2]);
        assert_eq!(blocks(40), [2]);
        assert_eq!(blocks(30), [2, 4]);
        assert_eq!(blocks(20), [2, 4, 1]);
        assert_eq!(blocks(15), [0, 2, 4, 1]);
        assert_eq!(blocks(0), [0, 2, 4, 1, 3]);
    }
}
