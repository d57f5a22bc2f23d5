//! Which packs to merge: a version should consist of few packs, and merging should write little.

use std::ops::Range;

/// A pack is included in a merge if it is at most this many times as large as all packs included
/// before it. Larger packs would be rewritten often for little gain.
const GROWTH: u64 = 2;

/// The range of neighbouring packs in a chain to merge, or `None` while the chain has at most
/// `chain_max` packs.
///
/// `live_bytes` is how many bytes each pack still contributes, newest first. The policy merges
/// packs of similar size, newest first, so that a byte is rewritten only into a pack that is larger
/// by a factor. If no neighbours are similar, it merges the two that differ least.
pub fn merge(live_bytes: &[u64], chain_max: usize) -> Option<Range<usize>> {
    let chain_max = chain_max.max(1);
    if live_bytes.len() <= chain_max {
        return None;
    }
    let alike = (0..live_bytes.len()).map(|start| start..alike_until(live_bytes, start)).find(|range| range.len() > 1);
    alike.or_else(|| {
        let difference = |newer: usize| live_bytes[newer + 1] as f64 / live_bytes[newer].max(1) as f64;
        let pairs = 0..live_bytes.len() - 1;
        pairs.min_by(|&a, &b| difference(a).total_cmp(&difference(b))).map(|newer| newer..newer + 2)
    })
}

/// The end of the packs that may be merged with the one at `start`.
fn alike_until(live_bytes: &[u64], start: usize) -> usize {
    let mut gathered = live_bytes[start];
    let mut end = start + 1;
    while end < live_bytes.len() && live_bytes[end] <= gathered.saturating_mul(GROWTH) {
        gathered = gathered.saturating_add(live_bytes[end]);
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn like_packs_are_merged_newest_first() {
        assert_eq!(merge(&[1, 1, 1], 3), None);
        assert_eq!(merge(&[1, 1, 1], 2), Some(0..3));
        assert_eq!(merge(&[1, 1, 5, 6], 3), Some(0..2), "5 is more than twice 1 + 1");
        assert_eq!(merge(&[1, 1, 4, 100], 3), Some(0..3));
        assert_eq!(merge(&[1, 50, 60, 1000], 3), Some(1..3), "50 is far from 1, and like 60");
        assert_eq!(merge(&[1, 50, 200, 601], 3), Some(2..4), "none are alike: 601 is closest to 200");
    }

    #[test]
    fn odd_chains_are_harmless() {
        assert_eq!(merge(&[], 0), None);
        assert_eq!(merge(&[7], 0), None);
        assert_eq!(merge(&[0, 0], 1), Some(0..2));
        assert_eq!(merge(&[0, u64::MAX, 0], 1), Some(1..3));
        assert_eq!(merge(&[u64::MAX; 3], 1), Some(0..3));
    }

    /// Merges until the policy is satisfied, and returns the bytes written.
    fn settle(chain: &mut Vec<u64>, chain_max: usize) -> u64 {
        let mut written = 0;
        while let Some(range) = merge(chain, chain_max) {
            assert!(range.len() > 1);
            let merged = chain[range.clone()].iter().sum();
            written += merged;
            chain.splice(range, [merged]);
        }
        written
    }

    proptest! {
        /// The worst case: no block is saved twice, so merging saves no space.
        #[test]
        fn chains_stay_short_and_bytes_are_written_again_only_a_logarithmic_number_of_times(
            saves in prop::collection::vec(1u64..=16, 1..3000),
            chain_max in 8usize..20,
        ) {
            let mut chain = Vec::new();
            let mut written = 0;
            for &bytes in &saves {
                chain.insert(0, bytes);
                written += settle(&mut chain, chain_max);
                prop_assert!(chain.len() <= chain_max);
            }
            let saved = saves.iter().sum::<u64>();
            prop_assert_eq!(chain.iter().sum::<u64>(), saved);
            let bound = (saves.len() as f64).log2() + 1.0;
            prop_assert!(written as f64 <= saved as f64 * bound, "{written} for {saved} in {} saves", saves.len());
        }

        /// Saves that change some of the same blocks again: a block in a newer pack no longer
        /// counts in the older ones.
        #[test]
        fn chains_of_overlapping_packs_stay_short_at_little_cost(
            saves in prop::collection::vec((0u64..1000, 1u64..30), 1..1000),
            chain_max in 2usize..12,
        ) {
            let mut chain: Vec<BTreeSet<u64>> = vec![(0..1000).collect()];
            let (mut written, mut saved) = (0, 1000);
            for &(first, count) in &saves {
                let pack: BTreeSet<_> = (first..first + count).map(|block| block % 1000).collect();
                saved += pack.len();
                for older in &mut chain {
                    older.retain(|block| !pack.contains(block));
                }
                chain.insert(0, pack);
                let live: Vec<_> = chain.iter().map(|pack| pack.len() as u64).collect();
                if let Some(range) = merge(&live, chain_max) {
                    let merged: BTreeSet<_> = chain[range.clone()].iter().flatten().copied().collect();
                    written += merged.len();
                    chain.splice(range, [merged]);
                }
                prop_assert!(chain.len() <= chain_max, "one merge is enough");
                prop_assert_eq!(chain.iter().map(BTreeSet::len).sum::<usize>(), 1000);
            }
            if chain_max >= 8 {
                prop_assert!(written as f64 <= saved as f64 * ((saves.len() as f64).log2() + 1.0), "{written} for {saved}");
            }
        }
    }
}
