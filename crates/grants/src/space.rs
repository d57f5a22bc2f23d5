//! Which parts of the reserve are free.
//!
//! Whole pages are taken. Owners divide what they have at any byte; then a page has several owners,
//! and is free when the last of them has given up its part.

use std::{collections::BTreeMap, ops::Range};

/// The unit of memory, and of the alignment that bypassing the page cache needs.
pub const PAGE_BYTES: u64 = 4096;

#[derive(Debug, Clone, Default)]
pub(crate) struct Space {
    /// The free ranges below `end`: start and end, in whole pages, none adjacent to the next.
    free: BTreeMap<u64, u64>,
    /// How many owners a page has besides the first.
    shared: BTreeMap<u64, u32>,
    /// Nothing beyond this byte exists yet.
    end: u64,
    used_bytes: u64,
}

impl Space {
    /// How many bytes are in whole pages that somebody owns.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// The end of what exists.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Makes everything up to `end` exist.
    pub(crate) fn grow(&mut self, end: u64) {
        if end > self.end {
            let start = self.end;
            self.end = end;
            self.give(start..end);
        }
    }

    /// Forgets the free pages at the end. Returns what exists no more.
    pub(crate) fn shrink(&mut self) -> Range<u64> {
        let old = self.end;
        if let Some((&start, &end)) = self.free.last_key_value()
            && end == self.end
        {
            self.free.pop_last();
            self.end = start;
        }
        self.end..old
    }

    /// The free ranges.
    pub(crate) fn free(&self) -> impl Iterator<Item = Range<u64>> {
        self.free.iter().map(|(&start, &end)| start..end)
    }

    /// Takes `bytes`, a multiple of the page size, from the first free range that is long enough,
    /// or less from the longest one. `None` if nothing is free.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Range<u64>> {
        let fits = self.free.iter().find(|(start, end)| **end - **start >= bytes);
        let (&start, &end) = fits.or_else(|| self.free.iter().max_by_key(|(start, end)| **end - **start))?;
        let taken = start..end.min(start + bytes);
        self.remove(taken.clone(), start, end);
        Some(taken)
    }

    fn remove(&mut self, taken: Range<u64>, start: u64, end: u64) {
        self.free.remove(&start);
        if start < taken.start {
            self.free.insert(start, taken.start);
        }
        if taken.end < end {
            self.free.insert(taken.end, end);
        }
        self.used_bytes += taken.end - taken.start;
    }

    /// Takes the pages of `range`, or becomes another owner of those that are taken. For recovery.
    pub(crate) fn claim(&mut self, range: &Range<u64>) {
        self.grow(range.end.next_multiple_of(PAGE_BYTES));
        let mut page = range.start / PAGE_BYTES * PAGE_BYTES;
        while page < range.end {
            let free = self.free.range(..=page).next_back().map(|(&start, &end)| (start, end));
            match free.filter(|(_, end)| *end > page) {
                Some((start, end)) => {
                    let to = range.end.next_multiple_of(PAGE_BYTES).min(end);
                    self.remove(page..to, start, end);
                    page = to;
                }
                None => {
                    *self.shared.entry(page).or_default() += 1;
                    page += PAGE_BYTES;
                }
            }
        }
    }

    /// An owner divides what it has at byte `at`: both parts have an owner now.
    pub(crate) fn divide(&mut self, at: u64) {
        if !at.is_multiple_of(PAGE_BYTES) {
            *self.shared.entry(at / PAGE_BYTES * PAGE_BYTES).or_default() += 1;
        }
    }

    /// An owner gives up `range`. Pages without an owner become free.
    pub(crate) fn release(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / PAGE_BYTES * PAGE_BYTES, (range.end - 1) / PAGE_BYTES * PAGE_BYTES);
        let start = if self.leave(first) { first + PAGE_BYTES } else { first };
        let end = if last != first && self.leave(last) { last } else { last + PAGE_BYTES };
        if start < end {
            self.used_bytes -= end - start;
            self.give(start..end);
        }
    }

    /// Whether a page has an owner less now, and still has one.
    fn leave(&mut self, page: u64) -> bool {
        let Some(others) = self.shared.get_mut(&page) else { return false };
        *others -= 1;
        if *others == 0 {
            self.shared.remove(&page);
        }
        true
    }

    fn give(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.free.range(..start).next_back()
            && before_end == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.free.remove(&end) {
            end = after_end;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_when_its_last_owner_leaves() {
        let mut space = Space::default();
        space.grow(4 * PAGE_BYTES);
        assert_eq!(space.take(3 * PAGE_BYTES), Some(0..3 * PAGE_BYTES));
        space.divide(100);
        space.divide(PAGE_BYTES + 7);
        space.release(&(100..PAGE_BYTES + 7));
        assert_eq!(space.used_bytes(), 3 * PAGE_BYTES, "both pages have another owner");
        space.release(&(0..100));
        assert_eq!(space.used_bytes(), 2 * PAGE_BYTES);
        space.release(&(PAGE_BYTES + 7..3 * PAGE_BYTES));
        assert_eq!(space.used_bytes(), 0);
        assert!(space.free().eq(std::iter::once(0..4 * PAGE_BYTES)), "one range again");
    }

    #[test]
    fn less_is_taken_if_there_is_no_more() {
        let mut space = Space::default();
        space.grow(2 * PAGE_BYTES);
        assert_eq!(space.take(PAGE_BYTES), Some(0..PAGE_BYTES));
        assert_eq!(space.take(5 * PAGE_BYTES), Some(PAGE_BYTES..2 * PAGE_BYTES));
        assert_eq!(space.take(PAGE_BYTES), None);
        space.release(&(PAGE_BYTES..2 * PAGE_BYTES));
        assert_eq!(space.shrink(), PAGE_BYTES..2 * PAGE_BYTES);
        assert_eq!((space.end(), space.used_bytes()), (PAGE_BYTES, PAGE_BYTES));
    }

    #[test]
    fn what_is_claimed_twice_is_free_after_both_are_released() {
        let mut space = Space::default();
        space.claim(&(10..PAGE_BYTES));
        space.claim(&(PAGE_BYTES..PAGE_BYTES + 10));
        space.claim(&(0..10));
        assert_eq!(space.used_bytes(), 2 * PAGE_BYTES);
        space.release(&(10..PAGE_BYTES));
        space.release(&(0..10));
        space.release(&(PAGE_BYTES..PAGE_BYTES + 10));
        assert_eq!((space.used_bytes(), space.free().count()), (0, 1));
    }
}
