//! What is actually touched and pinned in a simulated host buffer, independent of the plan's state.

use std::{collections::BTreeMap, ops::Range};

use crate::path::Pages;

/// A host buffer.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostMemory {
    /// Touched ranges, start and end. Adjacent ranges are joined.
    touched: BTreeMap<u64, u64>,
    pub(crate) is_pinned: bool,
}

impl HostMemory {
    /// The state at the start of `range`, and where that state ends.
    pub(crate) fn state(&self, range: &Range<u64>) -> (Pages, u64) {
        if self.is_pinned {
            return (Pages::Pinned, range.end);
        }
        let before = self.touched.range(..=range.start).next_back().filter(|&(_, &end)| end > range.start);
        match before {
            Some((_, &end)) => (Pages::Touched, end.min(range.end)),
            None => {
                let next = self.touched.range(range.start..).next().map_or(range.end, |(&start, _)| start);
                (Pages::Untouched, next.min(range.end))
            }
        }
    }

    pub(crate) fn touch(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if let Some((&before, &before_end)) = self.touched.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.touched.range(start..=end).next() {
            self.touched.remove(&next);
            end = end.max(next_end);
        }
        self.touched.insert(start, end);
    }

    /// The system takes back everything from the start of `range` on.
    pub(crate) fn release(&mut self, range: Range<u64>) {
        self.touched.split_off(&range.start);
        if let Some((_, end)) = self.touched.iter_mut().next_back() {
            *end = (*end).min(range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_ranges_grow_together() {
        let mut memory = HostMemory::default();
        memory.touch(10..20);
        memory.touch(30..40);
        assert_eq!(memory.state(&(0..50)), (Pages::Untouched, 10));
        assert_eq!(memory.state(&(15..50)), (Pages::Touched, 20));
        assert_eq!(memory.state(&(20..50)), (Pages::Untouched, 30));
        memory.touch(15..35);
        assert_eq!(memory.state(&(10..50)), (Pages::Touched, 40));
        memory.touch(0..10);
        memory.touch(40..50);
        assert_eq!(memory.touched, BTreeMap::from([(0, 50)]));
        memory.release(30..50);
        assert_eq!(memory.touched, BTreeMap::from([(0, 30)]));
        memory.is_pinned = true;
        assert_eq!(memory.state(&(0..90)), (Pages::Pinned, 90));
    }
}
