//! Which bytes of a layer are free.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::Extents;

/// The free bytes of one layer, as a set of holes. Adjacent holes are joined.
#[derive(Debug, Clone)]
pub(crate) struct Space {
    /// The size to which it can grow; at least `capacity`.
    limit: u64,
    capacity: u64,
    used: u64,
    /// Start and end.
    holes: BTreeMap<u64, u64>,
    /// Length and start. The best fit is the first entry that is long enough; of equal ones, the
    /// lowest address.
    by_length: BTreeSet<(u64, u64)>,
    /// Nothing was ever placed at or after this byte.
    frontier: u64,
}

impl Space {
    /// A space that is completely free.
    pub(crate) fn new(capacity: u64) -> Self {
        let mut space = Self::growing(capacity);
        space.grow(capacity);
        space
    }

    /// A space that has no bytes yet, and can grow to `limit`.
    pub(crate) fn growing(limit: u64) -> Self {
        Self { limit, capacity: 0, used: 0, holes: BTreeMap::new(), by_length: BTreeSet::new(), frontier: 0 }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used
    }

    pub(crate) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// How many bytes the list of holes takes.
    pub(crate) fn bytes(&self) -> u64 {
        // Two maps, whose nodes are at least half full.
        (self.holes.len() * 2 * 2 * size_of::<(u64, u64)>()) as u64
    }

    /// Whether `bytes` fit in one piece.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.by_length.last().is_some_and(|&(length, _)| length >= bytes)
    }

    /// The hole that would result if `range` were freed.
    pub(crate) fn hole_around(&self, range: &Range<u64>) -> Range<u64> {
        let before = self.holes.range(..range.start).next_back().filter(|&(_, &end)| end == range.start);
        let start = before.map_or(range.start, |(&start, _)| start);
        let end = self.holes.get(&range.end).copied().unwrap_or(range.end);
        start..end
    }

    /// Where `bytes` would be placed in one piece.
    pub(crate) fn place(&self, bytes: u64) -> Option<Extents> {
        let &(_, start) = self.by_length.range((bytes, 0)..).next()?;
        Some(Extents::from_elem(start..start + bytes, 1))
    }

    /// Allocates `bytes` in one piece.
    pub(crate) fn take_whole(&mut self, bytes: u64) -> Option<Range<u64>> {
        let &(_, start) = self.by_length.range((bytes, 0)..).next()?;
        let range = start..start + bytes;
        self.take(range.clone());
        Some(range)
    }

    /// Allocates `bytes` in one piece if possible, otherwise in the largest holes.
    pub(crate) fn take_pieces(&mut self, bytes: u64) -> Option<Extents> {
        if let Some(range) = self.take_whole(bytes) {
            return Some(Extents::from_elem(range, 1));
        }
        if self.free() < bytes {
            return None;
        }
        let mut pieces = Extents::new();
        let mut missing = bytes;
        while missing > 0 {
            let &(length, start) = self.by_length.last()?;
            let piece = start..start + length.min(missing);
            missing -= piece.end - piece.start;
            self.take(piece.clone());
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// Frees a range.
    pub(crate) fn give(&mut self, range: Range<u64>) {
        self.used -= range.end - range.start;
        let hole = self.hole_around(&range);
        if hole.start < range.start {
            self.remove_hole(hole.start, range.start);
        }
        if hole.end > range.end {
            self.remove_hole(range.end, hole.end);
        }
        self.add_hole(hole);
    }

    /// Moves a range down to `to`. The target must be free, except for the range itself.
    pub(crate) fn slide(&mut self, range: Range<u64>, to: u64) -> Range<u64> {
        let target = to..to + (range.end - range.start);
        self.give(range);
        self.take(target.clone());
        target
    }

    /// Makes the bytes up to `end` available.
    pub(crate) fn grow(&mut self, end: u64) {
        let start = self.capacity;
        self.capacity = end.clamp(start, self.limit);
        if self.capacity > start {
            self.used += self.capacity - start;
            self.give(start..self.capacity);
        }
    }

    /// The end of the last range that is in use.
    pub(crate) fn end_of_used(&self) -> u64 {
        // The capacity is not an address any more once `shrink_to_used` has reduced it.
        let last = self.holes.last_key_value().filter(|&(_, &end)| end >= self.frontier);
        last.map_or(self.frontier, |(&start, _)| start.min(self.frontier))
    }

    /// Makes the bytes from `end` on unavailable for now. None of them may be in use.
    pub(crate) fn shrink(&mut self, end: u64) {
        let limit = self.limit;
        self.frontier = self.end_of_used();
        self.cut(end);
        self.limit = limit;
    }

    /// Removes the bytes from `end` on for good, except those that were ever in use.
    pub(crate) fn cut(&mut self, end: u64) {
        let end = end.max(self.frontier).min(self.capacity);
        let last = self.holes.last_key_value().map(|(&start, &end)| (start, end));
        if let Some((start, old_end)) = last.filter(|&(_, old_end)| old_end > end) {
            self.remove_hole(start, old_end);
            if start < end {
                self.add_hole(start..end);
            }
        }
        self.capacity = end;
        self.limit = end;
    }

    /// Reduces the capacity to the bytes in use, without `lost`: the medium has no more space.
    pub(crate) fn shrink_to_used(&mut self, lost: &[Range<u64>]) {
        self.used -= lost.iter().map(|piece| piece.end - piece.start).sum::<u64>();
        self.holes.clear();
        self.by_length.clear();
        self.capacity = self.used;
        self.limit = self.used;
    }

    /// Marks `range`, which lies in one hole, as used.
    fn take(&mut self, range: Range<u64>) {
        let found = self.holes.range(..=range.start).next_back().map(|(&start, &end)| (start, end));
        let (start, end) = found.expect("a place is taken from a hole");
        debug_assert!(range.end <= end);
        self.remove_hole(start, end);
        if start < range.start {
            self.add_hole(start..range.start);
        }
        if range.end < end {
            self.add_hole(range.end..end);
        }
        self.used += range.end - range.start;
        self.frontier = self.frontier.max(range.end);
    }

    fn add_hole(&mut self, hole: Range<u64>) {
        self.by_length.insert((hole.end - hole.start, hole.start));
        self.holes.insert(hole.start, hole.end);
    }

    fn remove_hole(&mut self, start: u64, end: u64) {
        self.holes.remove(&start);
        self.by_length.remove(&(end - start, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_grow_together() {
        let mut space = Space::new(100);
        let places: Vec<_> = (0..10).map(|_| space.take_whole(10).unwrap()).collect();
        assert!(!space.fits(1));
        for index in [1, 3, 2] {
            space.give(places[index].clone());
        }
        assert_eq!(space.take_whole(30), Some(10..40));
        assert_eq!((space.used(), space.free(), space.frontier()), (100, 0, 100));
    }

    #[test]
    fn scattered_bytes_are_still_a_place_of_pieces() {
        let mut space = Space::new(50);
        let places: Vec<_> = (0..5).map(|_| space.take_whole(10).unwrap()).collect();
        for index in [0, 2, 4] {
            space.give(places[index].clone());
        }
        assert_eq!(space.take_whole(20), None);
        let pieces = space.take_pieces(25).unwrap();
        assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), 25);
        assert_eq!(pieces.len(), 3);
        assert_eq!(space.take_pieces(6), None);
        pieces.into_iter().for_each(|piece| space.give(piece));
        assert_eq!(space.free(), 30);
    }

    #[test]
    fn a_full_medium_keeps_what_it_has() {
        let mut space = Space::new(100);
        let kept = space.take_whole(30).unwrap();
        let lost = space.take_pieces(10).unwrap();
        space.shrink_to_used(&lost);
        assert_eq!((space.capacity, space.free()), (30, 0));
        space.give(kept);
        assert_eq!(space.take_whole(30), Some(0..30));
    }

    #[test]
    fn a_space_grows_until_there_is_no_more() {
        let mut space = Space::growing(100);
        assert!(!space.fits(1));
        space.grow(40);
        assert_eq!(space.take_whole(30), Some(0..30));
        space.grow(60);
        assert_eq!((space.free(), space.capacity, space.limit()), (30, 60, 100));
        space.cut(60);
        space.grow(100);
        assert_eq!((space.free(), space.capacity, space.limit()), (30, 60, 60));
        let mut whole = Space::new(100);
        let place = whole.take_whole(30).unwrap();
        whole.give(place);
        whole.cut(10);
        assert_eq!((whole.capacity, whole.free()), (30, 30), "what was placed once stays");
    }

    #[test]
    fn a_space_that_has_shrunk_can_grow_again() {
        let mut space = Space::growing(100);
        space.grow(80);
        let (low, high) = (space.take_whole(10).unwrap(), space.take_whole(50).unwrap());
        assert_eq!(space.end_of_used(), 60);
        space.give(high);
        assert_eq!(space.end_of_used(), 10);
        space.shrink(20);
        assert_eq!((space.free(), space.frontier(), space.limit()), (10, 10, 100));
        space.grow(40);
        assert_eq!(space.take_whole(30), Some(10..40));
        space.give(low);
        assert_eq!(space.end_of_used(), 40);
    }

    #[test]
    fn sliding_may_overlap_the_old_place() {
        let mut space = Space::new(100);
        let first = space.take_whole(10).unwrap();
        let second = space.take_whole(40).unwrap();
        space.give(first);
        assert_eq!(space.slide(second, 0), 0..40);
        assert!(space.fits(60));
    }
}
