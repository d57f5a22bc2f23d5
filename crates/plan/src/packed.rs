//! An ordered map for entries that are kept by the million: it takes little more memory than they
//! do.

use std::{
    collections::BTreeMap,
    mem,
    ops::{Bound, Index, Range},
};

use crate::planner::ALLOCATION_BYTES;

/// The most entries of a chunk.
const CHUNK: usize = 32;

/// Neighbours with no more entries than this together are joined. Less than a whole chunk, so that
/// the next entry does not split it again.
const JOINED_MAX: usize = CHUNK / 4 * 3;

/// An ordered map of sorted chunks.
///
/// The nodes of a `BTreeMap` that was filled in ascending order, as maps of snapshots are, are half
/// empty. Chunks that were filled in ascending or descending order are full. A hash table would
/// take as much, and now and then one call that has to move all of it.
///
/// `K::default()` must be the smallest key.
#[derive(Debug, Clone)]
pub struct Packed<K, V> {
    /// Each chunk under a key that is not greater than its first one, and the first under the
    /// smallest key of all. None is empty.
    chunks: BTreeMap<K, Vec<(K, V)>>,
}

impl<K, V> Default for Packed<K, V> {
    fn default() -> Self {
        Self { chunks: BTreeMap::new() }
    }
}

impl<K: Copy + Ord + Default, V> Packed<K, V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The value of this key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (_, chunk) = self.chunks.range(..=*key).next_back()?;
        find(chunk, key).ok().map(|at| &chunk[at].1)
    }

    /// The value of this key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, chunk) = self.chunks.range_mut(..=*key).next_back()?;
        find(chunk, key).ok().map(|at| &mut chunk[at].1)
    }

    /// Whether this key has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// Adds or replaces an entry. Returns the old value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some((_, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            self.chunks.insert(K::default(), vec![(key, value)]);
            return None;
        };
        let at = match find(chunk, &key) {
            Ok(at) => return Some(mem::replace(&mut chunk[at].1, value)),
            Err(at) => at,
        };
        if chunk.len() < CHUNK {
            chunk.insert(at, (key, value));
            return None;
        }
        // What is added in order leaves full chunks behind.
        let split = if at == 0 || at == CHUNK { at } else { CHUNK / 2 };
        let mut later = chunk.split_off(split);
        match at < split || split == 0 {
            true => chunk.insert(at, (key, value)),
            false => later.insert(at - split, (key, value)),
        }
        self.chunks.insert(later[0].0, later);
        None
    }

    /// Removes an entry. Returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (&bound, chunk) = self.chunks.range_mut(..=*key).next_back()?;
        let at = find(chunk, key).ok()?;
        let (_, value) = chunk.remove(at);
        // Not each time, because looking at the neighbours costs more than the removal.
        if chunk.len() <= CHUNK / 2 && chunk.len().is_multiple_of(CHUNK / 4) {
            self.join(bound);
        }
        Some(value)
    }

    /// Joins a chunk with a neighbour if both are small or it is empty.
    fn join(&mut self, bound: K) {
        let length = self.chunks[&bound].len();
        let is_fit = |chunk: &Vec<_>| length == 0 || length + chunk.len() <= JOINED_MAX;
        let fitting = |found: Option<(&K, &Vec<_>)>| found.filter(|(_, chunk)| is_fit(chunk)).map(|(bound, _)| *bound);
        let later = fitting(self.chunks.range((Bound::Excluded(bound), Bound::Unbounded)).next());
        let earlier = || fitting(self.chunks.range(..bound).next_back());
        let pair = later.map(|later| (bound, later)).or_else(|| earlier().map(|earlier| (earlier, bound)));
        match pair {
            Some((lower, upper)) => {
                let moved = self.chunks.remove(&upper).unwrap_or_default();
                self.chunks.entry(lower).or_default().extend(moved);
            }
            None if length == 0 => drop(self.chunks.remove(&bound)),
            None => {}
        }
    }

    /// All entries, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.chunks.values().flatten().map(|(key, value)| (key, value))
    }

    /// The first entry.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.chunks.first_key_value().and_then(|(_, chunk)| chunk.first()).map(|(key, value)| (key, value))
    }

    /// The last entry.
    pub fn last(&self) -> Option<(&K, &V)> {
        self.chunks.last_key_value().and_then(|(_, chunk)| chunk.last()).map(|(key, value)| (key, value))
    }

    /// The entries below `key`, in ascending order.
    pub fn below(&self, key: K) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let (bound, chunk) = self.chunk_of(&key);
        let part = &chunk[..chunk.partition_point(|(other, _)| *other < key)];
        self.chunks.range(..bound).flat_map(|(_, chunk)| chunk).chain(part).map(|(key, value)| (key, value))
    }

    /// The entries from `key` on, in ascending order.
    pub fn from(&self, key: K) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let (bound, chunk) = self.chunk_of(&key);
        let part = &chunk[chunk.partition_point(|(other, _)| *other < key)..];
        let later = self.chunks.range((Bound::Excluded(bound), Bound::Unbounded));
        part.iter().chain(later.flat_map(|(_, chunk)| chunk)).map(|(key, value)| (key, value))
    }

    /// The entries in a range, in ascending order.
    pub fn range(&self, range: Range<K>) -> impl Iterator<Item = (&K, &V)> {
        self.from(range.start).take_while(move |(key, _)| **key < range.end)
    }

    /// The chunk that has `key`, if any does.
    fn chunk_of(&self, key: &K) -> (K, &[(K, V)]) {
        let found = self.chunks.range(..=*key).next_back();
        found.map_or((K::default(), &[]), |(bound, chunk)| (*bound, chunk))
    }

    /// How many bytes it takes, without what its values refer to.
    pub fn bytes(&self) -> u64 {
        let entries: usize = self.chunks.values().map(Vec::capacity).sum();
        // Nodes of the outer map are at least half full.
        let of_chunk = 2 * size_of::<(K, Vec<(K, V)>)>() + ALLOCATION_BYTES;
        (entries * size_of::<(K, V)>() + self.chunks.len() * of_chunk) as u64
    }
}

fn find<K: Ord, V>(chunk: &[(K, V)], key: &K) -> Result<usize, usize> {
    chunk.binary_search_by(|(other, _)| other.cmp(key))
}

impl<K: Copy + Ord + Default, V> Index<&K> for Packed<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("what is asked for is there")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(packed: &Packed<u64, u64>, plain: &BTreeMap<u64, u64>) {
        assert!(packed.iter().eq(plain.iter()));
        assert!(packed.iter().rev().eq(plain.iter().rev()));
        assert_eq!((packed.first(), packed.last()), (plain.first_key_value(), plain.last_key_value()));
        assert_eq!(packed.is_empty(), plain.is_empty());
        assert!(packed.chunks.values().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        assert!(packed.chunks.keys().next().is_none_or(|bound| *bound == 0));
        for key in (0..300).step_by(7) {
            assert_eq!(packed.get(&key), plain.get(&key));
            assert!(packed.below(key).eq(plain.range(..key)) && packed.from(key).eq(plain.range(key..)));
            assert!(packed.below(key).rev().eq(plain.range(..key).rev()));
            assert!(packed.from(key).rev().eq(plain.range(key..).rev()));
            assert!(packed.range(key..key + 50).eq(plain.range(key..key + 50)));
        }
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map(steps in prop::collection::vec((0..300u64, 0..5u32), 0..1000)) {
            let (mut packed, mut plain) = (Packed::new(), BTreeMap::new());
            // First it grows, then it shrinks.
            let half = steps.len() / 2;
            for (step, (key, choice)) in (0..).zip(steps) {
                let is_insert = (choice > 0) == ((step as usize) < half);
                match is_insert {
                    true => assert_eq!(packed.insert(key, step), plain.insert(key, step)),
                    false => assert_eq!(packed.remove(&key), plain.remove(&key)),
                }
            }
            check(&packed, &plain);
            let all: Vec<_> = plain.keys().copied().collect();
            all.into_iter().for_each(|key| assert_eq!(packed.remove(&key), plain.remove(&key)));
            check(&packed, &plain);
        }
    }

    #[test]
    fn what_is_added_in_order_fills_its_chunks() {
        let of_entry = |packed: &Packed<u64, u64>| packed.bytes() / 10_000;
        let (mut up, mut down) = (Packed::new(), Packed::new());
        for key in 0..10_000 {
            up.insert(key, key);
            down.insert(10_000 - key, key);
        }
        assert!(of_entry(&up) < 20 && of_entry(&down) < 20, "{} {}", of_entry(&up), of_entry(&down));
    }

    #[test]
    fn what_is_removed_leaves_no_empty_room() {
        let mut packed = Packed::new();
        for key in 0..32_000u64 {
            packed.insert(key, key);
        }
        let before = packed.bytes();
        for key in (0..32_000).filter(|key| key % 32 != 0) {
            packed.remove(&key);
        }
        assert!(packed.bytes() * 8 < before, "{} of {before}", packed.bytes());
    }
}
