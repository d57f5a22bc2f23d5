//! Lists of ranges, and pages.

use std::ops::Range;

pub(crate) use outcrop_memory::page_bytes;

/// The whole pages inside a range of addresses.
pub(crate) fn whole_pages(range: Range<usize>) -> Range<usize> {
    let page = page_bytes();
    let start = range.start.next_multiple_of(page);
    start..(range.end / page * page).max(start)
}

/// All pages that overlap a range of addresses.
pub(crate) fn touched_pages(range: Range<usize>) -> Range<usize> {
    let page = page_bytes();
    range.start / page * page..range.end.next_multiple_of(page)
}

/// The addresses of `memory`.
pub(crate) fn addresses(memory: &[u8]) -> Range<usize> {
    let start = memory.as_ptr().addr();
    start..start + memory.len()
}

/// The intersection of two ranges, unless it is empty.
pub(crate) fn shared(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let range = a.start.max(b.start)..a.end.min(b.end);
    (!range.is_empty()).then_some(range)
}

/// Sorts the ranges, clips them to `bounds`, and joins those that are adjacent or overlap.
pub(crate) fn tidy(ranges: &mut Vec<Range<usize>>, bounds: Range<usize>) {
    let mut cut: Vec<_> = ranges.iter().filter_map(|range| shared(range, &bounds)).collect();
    cut.sort_unstable_by_key(|range| range.start);
    ranges.clear();
    for range in cut {
        match ranges.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => ranges.push(range),
        }
    }
}

/// What is left of `from` without `holes`, which must be tidy.
pub(crate) fn without(from: Range<usize>, holes: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = Vec::new();
    let mut start = from.start;
    let first = holes.partition_point(|hole| hole.end <= from.start);
    for hole in holes[first..].iter().map_while(|hole| shared(hole, &from)) {
        if start < hole.start {
            left.push(start..hole.start);
        }
        start = hole.end;
    }
    if start < from.end {
        left.push(start..from.end);
    }
    left
}

/// The whole pages that become unused when `range` of a part at address `start` is released.
/// `released` is how many bytes were released from the start without a gap; with it, a page that is
/// released in two steps is found too.
pub(crate) fn released_pages(start: usize, released: &mut usize, range: Range<usize>) -> Range<usize> {
    let mut first = start + range.start;
    if range.start <= *released {
        first = ((start + *released) / page_bytes() * page_bytes()).max(start);
        *released = range.end.max(*released);
    }
    whole_pages(first..(start + range.end).max(first))
}

/// The total size of the blocks that overlap tidy ranges.
pub(crate) fn block_bytes_of(ranges: &[Range<usize>], block_bytes: usize) -> usize {
    let mut blocks = 0;
    let mut next = 0;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let first = (range.start / block_bytes).max(next);
        next = range.end.div_ceil(block_bytes);
        blocks += next.saturating_sub(first);
    }
    blocks * block_bytes
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what this is about")]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_cut_and_joined() {
        let mut ranges = vec![30..50, 0..3, 5..10, 8..20, 20..22, 45..99, 70..70];
        tidy(&mut ranges, 2..60);
        assert_eq!(ranges, [2..3, 5..22, 30..60]);
        tidy(&mut ranges, 60..60);
        assert!(ranges.is_empty());
    }

    #[test]
    fn holes_are_cut_out() {
        assert_eq!(without(10..50, &[0..12, 20..30, 45..90]), [12..20, 30..45]);
        assert_eq!(without(10..50, &[]), [10..50]);
        assert!(without(10..50, &[0..99]).is_empty());
    }

    #[test]
    fn a_block_counts_once() {
        assert_eq!(block_bytes_of(&[0..1, 2..3, 9..21], 10), 30);
        assert_eq!(block_bytes_of(&[5..5], 10), 0);
        assert_eq!(block_bytes_of(&[10..20, 29..31], 10), 30);
    }

    #[test]
    fn a_page_that_is_released_in_steps_is_released() {
        let page = page_bytes();
        let mut released = 0;
        assert!(released_pages(page, &mut released, 0..10).is_empty());
        assert_eq!(released_pages(page, &mut released, 10..page + 1), page..2 * page);
        assert!(released_pages(page, &mut released, page + 1..page + 2).is_empty());
        assert_eq!(released, page + 2);
        // After a gap, only whole pages inside the range count.
        assert_eq!(released_pages(page, &mut released, 2 * page..3 * page + 1), 3 * page..4 * page);
        assert_eq!(released, page + 2);
        // The first page also belongs to other memory.
        let mut released = 0;
        assert!(released_pages(page + 1, &mut released, 0..page).is_empty());
        assert_eq!(released_pages(page + 1, &mut released, page..2 * page - 1), 2 * page..3 * page);
    }

    #[test]
    fn pages_are_whole() {
        let page = page_bytes();
        assert_eq!(whole_pages(1..3 * page + 1), page..3 * page);
        assert!(whole_pages(1..page).is_empty());
        assert_eq!(touched_pages(1..page + 1), 0..2 * page);
    }
}
