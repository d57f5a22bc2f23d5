//! Who passes on whose messages: the ranks form a tree, with rank 0 at its top. Pure.
//!
//! The ranks below one are consecutive numbers. So equal messages of all of them are one message,
//! and a rank has to do with few others, however many there are.

use std::ops::Range;

/// So many others pass their messages to one rank at most. Unit tests of this crate have few ranks.
const BELOW_MAX: u32 = if cfg!(test) { 2 } else { 4 };

/// The ranks that pass their messages to `rank`, each with itself and all below it.
pub(crate) fn below(rank: u32, count: u32) -> Vec<Range<u32>> {
    let mut all = 0..count;
    while all.start != rank {
        let part = parts(&all).find(|part| part.contains(&rank));
        all = part.expect("a rank is below the number of ranks");
    }
    parts(&all).collect()
}

/// All below the first of these ranks, divided.
fn parts(all: &Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
    let (start, length) = (all.start + 1, u64::from(all.end - all.start - 1));
    let count = length.min(u64::from(BELOW_MAX));
    let cut = move |nth: u64| start + (length * nth / count) as u32;
    (0..count).map(move |nth| cut(nth)..cut(nth + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_below_exactly_one_and_the_tree_is_low() {
        for count in [1, 2, 3, 7, 64, 100, 4096] {
            let mut above = vec![None; count as usize];
            for rank in 0..count {
                let parts = below(rank, count);
                assert!(parts.len() <= BELOW_MAX as usize);
                for part in parts {
                    assert!(part.start > rank && !part.is_empty());
                    assert_eq!(above[part.start as usize].replace(rank), None, "{} of {count}", part.start);
                }
            }
            let depth = |mut rank: u32| {
                let mut depth = 0;
                while let Some(next) = above[rank as usize] {
                    (rank, depth) = (next, depth + 1);
                }
                assert_eq!(rank, 0);
                depth
            };
            let deepest = (0..count).map(depth).max().unwrap();
            assert!(deepest <= count.ilog2() + 1, "{count}: {deepest}");
        }
    }
}
