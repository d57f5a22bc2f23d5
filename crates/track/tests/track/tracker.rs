//! What a tracker reports, for every way in which memory can change.

use std::io::Read;

use outcrop_track::{TrackOptions, Way};

use crate::common::{Mapping, PAGE, chosen, everything, has, pages, tracker, watched};

/// The ways that can distinguish pages.
const WATCHING: [Way; 2] = [Way::Pages, Way::Protection];

#[test]
fn written_pages_are_reported_once() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 64 * PAGE);
        let nothing = tracker.changed("memory", &memory);
        assert!(nothing.ranges.is_empty() && !nothing.is_everything && nothing.way == way);
        memory[5 * PAGE] = 7;
        memory[6 * PAGE + 1] = 7;
        memory[64 * PAGE - 1] = 7;
        let changes = tracker.changed("memory", &memory);
        assert_eq!(changes.ranges, [5 * PAGE..7 * PAGE, 63 * PAGE..64 * PAGE], "{way}");
        assert_eq!(tracker.stats("memory").unwrap().written_pages, 3);
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
    }
}

#[test]
fn equal_values_are_reported_too() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 8 * PAGE);
        // SAFETY: an ordinary write that the compiler must not remove.
        unsafe { (&raw mut memory[3 * PAGE]).write_volatile(1) };
        assert_eq!(pages(&tracker.changed("memory", &memory)), [3]);
    }
}

#[test]
fn many_scattered_pages_do_not_overflow_anything() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let count = 20_000;
        let (mut memory, mut tracker) = watched(way, count * PAGE);
        for _ in 0..2 {
            (0..count).step_by(2).for_each(|page| memory[page * PAGE + 9] = 3);
            let found = pages(&tracker.changed("memory", &memory));
            assert!((0..count).step_by(2).all(|page| found.binary_search(&page).is_ok()), "{way}");
            if way == Way::Pages {
                assert_eq!(found.len(), count / 2);
            }
        }
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
    }
}

#[test]
fn writes_by_system_calls_are_seen() {
    if !has(Way::Pages) {
        return;
    }
    let (mut memory, mut tracker) = watched(Way::Pages, 8 * PAGE);
    std::fs::File::open("/dev/zero").unwrap().read_exact(&mut memory[2 * PAGE + 5..3 * PAGE + 5]).unwrap();
    assert_eq!(pages(&tracker.changed("memory", &memory)), [2, 3]);
}

#[test]
fn a_system_call_into_protected_memory_fails_as_documented() {
    if !has(Way::Protection) {
        return;
    }
    let (mut memory, mut tracker) = watched(Way::Protection, 8 * PAGE);
    let mut zero = std::fs::File::open("/dev/zero").unwrap();
    let error = zero.read_exact(&mut memory[..PAGE]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    tracker.stop("memory");
    zero.read_exact(&mut memory[..PAGE]).unwrap();
}

#[test]
fn writes_by_other_threads_are_seen() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 64 * PAGE);
        std::thread::scope(|scope| {
            for part in memory.chunks_mut(16 * PAGE) {
                scope.spawn(move || part[PAGE] = 9);
            }
        });
        assert_eq!(pages(&tracker.changed("memory", &memory)), [1, 17, 33, 49]);
    }
}

#[test]
fn many_threads_can_write_to_one_page_at_once() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 4 * PAGE);
        for round in 0..50 {
            std::thread::scope(|scope| {
                for part in memory[PAGE..2 * PAGE].chunks_mut(PAGE / 8) {
                    scope.spawn(move || part.fill(round));
                }
            });
            assert_eq!(pages(&tracker.changed("memory", &memory)), [1]);
        }
    }
}

#[test]
fn huge_pages_are_told_apart_by_pages() {
    if !has(Way::Pages) {
        return;
    }
    let mut memory = Mapping::huge(8 << 20);
    let mut tracker = tracker(Way::Pages);
    tracker.changed("memory", &memory);
    memory[3 << 20] = 5;
    assert!(pages(&tracker.changed("memory", &memory)).contains(&((3 << 20) / PAGE)));
    memory[(3 << 20) + PAGE] = 5;
    memory[7 << 20] = 5;
    let found = pages(&tracker.changed("memory", &memory));
    assert!(found.contains(&((3 << 20) / PAGE + 1)) && found.contains(&((7 << 20) / PAGE)));
    assert!(tracker.changed("memory", &memory).ranges.is_empty());
}

#[test]
fn memory_that_was_given_back_has_changed() {
    if !has(Way::Pages) {
        return;
    }
    for mut memory in [Mapping::new(8 << 20), Mapping::huge(8 << 20)] {
        memory.fill(1);
        let mut tracker = tracker(Way::Pages);
        tracker.changed("memory", &memory);
        // One page, and a range so large that its page tables are freed as well.
        memory.advise(PAGE, PAGE, libc::MADV_DONTNEED);
        memory.advise(2 << 20, 4 << 20, libc::MADV_DONTNEED);
        assert_eq!(memory[PAGE], 0);
        let found = pages(&tracker.changed("memory", &memory));
        assert!(found.contains(&1), "{found:?}");
        assert!((512..1536).all(|page| found.contains(&page)), "{found:?}");
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
        memory[2 << 20] = 1;
        assert!(pages(&tracker.changed("memory", &memory)).contains(&512));
    }
}

#[test]
fn memory_that_was_never_touched_is_watched_too() {
    if !has(Way::Pages) {
        return;
    }
    let mut memory = Mapping::new(16 << 20);
    let mut tracker = tracker(Way::Pages);
    tracker.changed("memory", &memory);
    assert!(tracker.changed("memory", &memory).ranges.is_empty());
    // Reading is not a change.
    assert_eq!(memory.iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0);
    assert!(tracker.changed("memory", &memory).ranges.is_empty());
    memory[9 << 20] = 1;
    assert_eq!(pages(&tracker.changed("memory", &memory)), [(9 << 20) / PAGE]);
}

#[test]
fn memory_freed_and_mapped_again_has_changed() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 64 * PAGE);
        memory.replace();
        assert!(everything(&tracker.changed("memory", &memory), 64 * PAGE), "{way}");
        // And it is watched again.
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
        memory[PAGE] = 1;
        assert_eq!(pages(&tracker.changed("memory", &memory)), [1]);
    }
}

#[test]
fn memory_that_others_can_change_is_not_watched() {
    for way in WATCHING {
        let mut tracker = tracker(way);
        let memory = Mapping::shared(16 * PAGE);
        for _ in 0..3 {
            let changes = tracker.changed("memory", &memory);
            assert!(everything(&changes, 16 * PAGE) && changes.way == Way::Everything);
        }
        assert!(tracker.stats("memory").unwrap().reason.contains("private"));
    }
}

#[test]
fn shared_memory_in_place_of_private_is_noticed() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (memory, mut tracker) = watched(way, 16 * PAGE);
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces memory that is ours.
        let start = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(memory.as_ptr().cast_mut().cast(), memory.len(), rights, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        for _ in 0..2 {
            let changes = tracker.changed("memory", &memory);
            assert!(everything(&changes, 16 * PAGE) && changes.way == Way::Everything, "{way}");
        }
    }
}

#[test]
fn moved_grown_and_shrunk_memory_has_changed() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (memory, mut tracker) = watched(way, 16 * PAGE);
        let other = Mapping::new(16 * PAGE);
        assert!(everything(&tracker.changed("memory", &other), 16 * PAGE));
        assert!(tracker.changed("memory", &other).ranges.is_empty());
        assert!(everything(&tracker.changed("memory", &memory), 16 * PAGE));
        assert!(everything(&tracker.changed("memory", &memory[..8 * PAGE]), 8 * PAGE));
        assert!(tracker.changed("memory", &memory[..8 * PAGE]).ranges.is_empty());
        assert!(everything(&tracker.changed("memory", &memory), 16 * PAGE));
    }
}

#[test]
fn memory_that_does_not_fill_its_pages_is_never_under_reported() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let mut memory = Mapping::new(16 * PAGE);
        let mut tracker = tracker(way);
        let (start, end) = (100, 10 * PAGE + 50);
        tracker.changed("memory", &memory[start..end]);
        // The ends are always reported, the pages between them only if they were written.
        let ends = tracker.changed("memory", &memory[start..end]);
        assert_eq!(ends.ranges, [0..PAGE - start, 10 * PAGE - start..end - start]);
        memory[start] = 1;
        memory[end - 1] = 1;
        memory[5 * PAGE] = 1;
        let changes = tracker.changed("memory", &memory[start..end]);
        assert_eq!(
            changes.ranges,
            [ends.ranges[0].clone(), 5 * PAGE - start..6 * PAGE - start, ends.ranges[1].clone()]
        );
        // Smaller than a page.
        for _ in 0..2 {
            assert!(everything(&tracker.changed("small", &memory[10..20]), 10));
        }
    }
}

#[test]
fn nothing_is_nothing() {
    for way in [Way::Chosen, Way::Pages, Way::Protection, Way::Everything] {
        let mut tracker = tracker(way);
        for _ in 0..3 {
            let changes = tracker.changed("memory", &[]);
            assert!(changes.ranges.is_empty() && changes.is_everything);
        }
    }
}

#[test]
fn regions_are_independent() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        // Not aligned, so that neighbours share pages.
        let mut memory = vec![0u8; 100 * 3000];
        let mut tracker = tracker(way);
        let name = |i: usize| format!("region {i}");
        for round in 0..3 {
            for (i, part) in memory.chunks(3000).enumerate() {
                tracker.changed(&name(i), part);
            }
            memory[50 * 3000 + 1500] = round;
            let changes = tracker.changed(&name(50), &memory[50 * 3000..51 * 3000]);
            assert!(changes.ranges.iter().any(|range| range.contains(&1500)));
        }
    }
}

#[test]
fn overlapping_regions_both_hear_of_a_write() {
    if !has(Way::Pages) {
        return;
    }
    let mut memory = Mapping::new(16 * PAGE);
    let mut tracker = tracker(Way::Pages);
    for _ in 0..2 {
        tracker.changed("all", &memory);
        tracker.changed("part", &memory[4 * PAGE..8 * PAGE]);
    }
    memory[5 * PAGE] = 1;
    assert_eq!(pages(&tracker.changed("part", &memory[4 * PAGE..8 * PAGE])), [1]);
    assert_eq!(pages(&tracker.changed("all", &memory)), [5]);
    memory[6 * PAGE] = 1;
    assert!(pages(&tracker.changed("all", &memory)).contains(&6));
    assert!(pages(&tracker.changed("part", &memory[4 * PAGE..8 * PAGE])).contains(&2));
    memory[7 * PAGE] = 1;
    tracker.stop("part");
    assert!(pages(&tracker.changed("all", &memory)).contains(&7));
}

#[test]
fn two_trackers_of_one_memory_both_tell_the_truth() {
    for (first, second) in [(Way::Pages, Way::Pages), (Way::Protection, Way::Protection), (Way::Pages, Way::Protection)]
    {
        if !has(first) || !has(second) {
            continue;
        }
        let (mut memory, mut one) = watched(first, 16 * PAGE);
        let mut two = tracker(second);
        two.changed("memory", &memory);
        for page in [3, 4] {
            memory[page * PAGE] = 1;
            assert!(pages(&two.changed("memory", &memory)).contains(&page));
            assert!(pages(&one.changed("memory", &memory)).contains(&page));
        }
        // Once the first is dropped, the second can watch.
        drop(one);
        two.changed("memory", &memory);
        memory[9 * PAGE] = 1;
        assert_eq!(pages(&two.changed("memory", &memory)), [9]);
    }
}

#[test]
fn a_new_owner_of_the_address_is_not_robbed() {
    if !has(Way::Pages) {
        return;
    }
    let (mut memory, mut old) = watched(Way::Pages, 16 * PAGE);
    memory.replace();
    let mut new = tracker(Way::Pages);
    new.changed("memory", &memory);
    memory[2 * PAGE] = 1;
    assert!(old.changed("memory", &memory).is_everything);
    old.stop("memory");
    assert!(pages(&new.changed("memory", &memory)).contains(&2));
}

#[test]
fn marked_bytes_are_reported_once() {
    for way in [Way::Pages, Way::Protection, Way::Everything] {
        let (memory, mut tracker) = watched(way, 16 * PAGE);
        tracker.mark_dirty("memory", 100..200);
        tracker.mark_dirty("memory", 150..300);
        tracker.mark_dirty("memory", 16 * PAGE - 1..usize::MAX);
        tracker.mark_dirty("stranger", 0..10);
        let changes = tracker.changed("memory", &memory);
        if changes.way == Way::Everything {
            continue;
        }
        assert_eq!(changes.ranges, [100..300, 16 * PAGE - 1..16 * PAGE]);
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
        (0..1000).for_each(|i| tracker.mark_dirty("memory", i * 8..i * 8 + 4));
        assert_eq!(tracker.changed("memory", &memory).ranges.len(), 1000);
    }
}

#[test]
fn what_is_stopped_is_forgotten() {
    for way in WATCHING.into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 16 * PAGE);
        tracker.stop("memory");
        assert!(tracker.stats("memory").is_none());
        memory[PAGE] = 1;
        assert!(tracker.changed("memory", &memory).is_everything);
        tracker.stop("memory");
        tracker.stop("memory");
        drop(tracker);
        memory.fill(3);
    }
}

#[test]
fn the_cheapest_way_is_chosen() {
    if !has(Way::Pages) {
        return;
    }
    // So slow and so fast that the result is the same on every machine.
    let (slow, fast) = (1_000.0, 0.001);
    let (ways, stats) = chosen(TrackOptions::default(), 4 << 20, slow);
    assert!(ways[..2] == [Way::Everything; 2] && ways[2..].iter().all(|way| *way == Way::Pages), "{ways:?}");
    assert!(stats.way == Way::Pages && stats.reason.contains("watching should cost"), "{stats:?}");
    let (ways, stats) = chosen(TrackOptions::default(), PAGE, fast);
    assert!(ways.iter().all(|way| *way == Way::Everything), "{ways:?}");
    assert_eq!(stats.way, Way::Everything);
}

#[test]
fn small_memory_is_not_watched_by_choice() {
    let mut tracker = tracker(Way::Chosen);
    let memory = Mapping::new(16 * PAGE);
    for _ in 0..5 {
        assert!(tracker.changed("memory", &memory).is_everything);
    }
    assert!(tracker.stats("memory").unwrap().reason.contains("hashed as fast"));
}

#[test]
fn many_regions_leave_mappings_for_the_program() {
    if outcrop_testing::alone("tracker::many_regions_leave_mappings_for_the_program") || !has(Way::Pages) {
        return;
    }
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let count = limit / 2;
    if count > 100_000 {
        return outcrop_testing::does_not_apply("this system allows more mappings than a test can use up");
    }
    let mut memory = Mapping::new(2 * count * PAGE);
    let mut tracker = tracker(Way::Pages);
    for round in 0..2 {
        for nth in 0..count {
            let changes = tracker.changed(&nth.to_string(), &memory[2 * nth * PAGE..][..PAGE]);
            assert_eq!(changes.is_everything, round == 0 || changes.way == Way::Everything || nth == 5, "region {nth}");
        }
        memory[10 * PAGE] = 1;
    }
    let watched = (0..count).filter(|nth| tracker.stats(&nth.to_string()).unwrap().way == Way::Pages).count();
    assert_eq!(watched, limit / 4);
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(mappings < limit * 3 / 4, "{mappings} of {limit}");
    assert!(tracker.stats(&(count - 1).to_string()).unwrap().reason.contains("mappings"));
}
