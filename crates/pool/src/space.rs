//! Which pages of a pool are in use, and by how many. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// The pages of a pool.
#[derive(Debug)]
pub(crate) struct Space {
    /// The pages that there are.
    pages: u64,
    /// What is in use, by its first page.
    used: BTreeMap<u64, Use>,
    /// What is free, by its first page, with its length; and by length.
    free: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    used_pages: u64,
}

#[derive(Debug, Clone, Copy)]
struct Use {
    pages: u64,
    /// How many entries of durable versions refer to it.
    references: u64,
}

impl Space {
    /// A pool of which the first pages are in use for ever.
    pub(crate) fn new(first: u64, pages: u64) -> Self {
        let (free, by_length) = (BTreeMap::new(), BTreeSet::new());
        let mut space = Self { pages: first, used: BTreeMap::new(), free, by_length, used_pages: first };
        space.grow(pages);
        space
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn used_pages(&self) -> u64 {
        self.used_pages
    }

    /// More pages, all free.
    pub(crate) fn grow(&mut self, pages: u64) {
        if pages > self.pages {
            let start = std::mem::replace(&mut self.pages, pages);
            self.put(start, pages - start);
        }
    }

    /// Takes free pages, with one reference.
    pub(crate) fn take(&mut self, pages: u64) -> Option<u64> {
        let &(length, start) = self.by_length.range((pages, 0)..).next()?;
        self.remove_free(start, length);
        if length > pages {
            self.put(start + pages, length - pages);
        }
        self.used.insert(start, Use { pages, references: 1 });
        self.used_pages += pages;
        Some(start)
    }

    /// Something refers to these pages. `Ok(true)` if nothing did before. An error if they are not
    /// there, or overlap other pages in use.
    pub(crate) fn refer(&mut self, start: u64, pages: u64) -> Result<bool, ()> {
        if let Some(known) = self.used.get_mut(&start) {
            known.references += 1;
            return if known.pages == pages { Ok(false) } else { Err(()) };
        }
        let (&from, &length) = self.free.range(..=start).next_back().ok_or(())?;
        let end = start.checked_add(pages).ok_or(())?;
        if pages == 0 || end > from + length {
            return Err(());
        }
        self.remove_free(from, length);
        self.put(from, start - from);
        self.put(end, from + length - end);
        self.used.insert(start, Use { pages, references: 1 });
        self.used_pages += pages;
        Ok(true)
    }

    /// Something more refers to pages in use.
    pub(crate) fn share(&mut self, start: u64) {
        if let Some(known) = self.used.get_mut(&start) {
            known.references += 1;
        }
    }

    /// Whether only one thing refers to these pages.
    pub(crate) fn is_last(&self, start: u64) -> bool {
        self.used.get(&start).is_some_and(|known| known.references == 1)
    }

    /// Something no longer refers to these pages. Whether nothing does now: then they are free.
    pub(crate) fn release(&mut self, start: u64) -> bool {
        let Some(known) = self.used.get_mut(&start) else { return false };
        known.references -= 1;
        let Use { pages, references } = *known;
        if references == 0 {
            self.used.remove(&start);
            self.used_pages -= pages;
            self.put(start, pages);
        }
        references == 0
    }

    /// Adds free pages, and joins them with their neighbours.
    fn put(&mut self, mut start: u64, mut length: u64) {
        if length == 0 {
            return;
        }
        if let Some((&before, &its_length)) = self.free.range(..start).next_back()
            && before + its_length == start
        {
            self.remove_free(before, its_length);
            (start, length) = (before, length + its_length);
        }
        if let Some(&after) = self.free.get(&(start + length)) {
            self.remove_free(start + length, after);
            length += after;
        }
        self.free.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove_free(&mut self, start: u64, length: u64) {
        self.free.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Call {
        Take(u64),
        Refer(usize),
        Release(usize),
        Grow(u64),
    }

    fn calls() -> impl Strategy<Value = Call> {
        prop_oneof![
            (1..6u64).prop_map(Call::Take),
            (0..20usize).prop_map(Call::Refer),
            (0..20usize).prop_map(Call::Release),
            (0..9u64).prop_map(Call::Grow),
        ]
    }

    proptest! {
        #[test]
        fn every_page_is_free_or_in_use_once(calls in prop::collection::vec(calls(), 0..80)) {
            let mut space = Space::new(3, 10);
            let mut held: Vec<(u64, u64, u64)> = Vec::new();
            for call in calls {
                match call {
                    Call::Take(pages) => {
                        let largest = space.free.values().copied().max().unwrap_or(0);
                        let taken = space.take(pages);
                        prop_assert_eq!(taken.is_some(), pages <= largest);
                        held.extend(taken.map(|start| (start, pages, 1)));
                    }
                    Call::Refer(index) => {
                        if let Some((start, pages, references)) = held.get_mut(index) {
                            *references += 1;
                            prop_assert_eq!(space.refer(*start, *pages), Ok(false));
                        }
                    }
                    Call::Release(index) if index < held.len() => {
                        held[index].2 -= 1;
                        let (start, _, references) = held[index];
                        prop_assert_eq!(space.release(start), references == 0);
                        held.retain(|(_, _, references)| *references > 0);
                    }
                    Call::Release(_) => {}
                    Call::Grow(more) => space.grow(space.pages() + more),
                }
                let mut owners = vec![0; space.pages() as usize];
                let used = held.iter().map(|(start, pages, _)| (*start, *pages));
                for (start, pages) in used.clone().chain(space.free.iter().map(|(a, b)| (*a, *b))) {
                    (start..start + pages).for_each(|page| owners[page as usize] += 1);
                }
                prop_assert_eq!(&owners[..3], &[0, 0, 0]);
                prop_assert!(owners[3..].iter().all(|count| *count == 1), "{:?}", owners);
                prop_assert_eq!(space.used_pages(), 3 + used.map(|(_, pages)| pages).sum::<u64>());
                let by_length: BTreeSet<_> = space.free.iter().map(|(start, length)| (*length, *start)).collect();
                prop_assert_eq!(&space.by_length, &by_length);
            }
        }

        #[test]
        fn what_overlaps_is_refused(ranges in prop::collection::vec((0..24u64, 0..6u64), 0..20)) {
            let mut space = Space::new(3, 20);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (start, pages) in ranges {
                let is_same = taken.contains(&(start, pages));
                let overlaps = |&(other, length): &(u64, u64)| start < other + length && other < start + pages;
                let fits = start >= 3 && start + pages <= 20 && pages > 0 && !taken.iter().any(overlaps);
                let is_start = taken.iter().any(|(other, _)| *other == start);
                match space.refer(start, pages) {
                    Ok(true) => prop_assert!(fits && !is_same),
                    Ok(false) => prop_assert!(is_same),
                    Err(()) => prop_assert!(!fits && !is_same || is_start),
                }
                if fits && !is_same {
                    taken.push((start, pages));
                }
            }
        }
    }
}
