//! Memory that the system writes to without a page fault: buffers registered with io_uring. `VmPin`
//! is counted per process, so each test has a process of its own.

use std::{fs::File, io::Write};

use outcrop_testing::{Registered, alone, skip};
use outcrop_track::{Error, FreezeOptions, FreezeWay, TrackOptions, Tracker, Way, freeze};

use crate::common::{Mapping, PAGE, has, pages, tracker};

/// A file of one page of sevens.
fn sevens() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; PAGE]).unwrap();
    file
}

fn registered(memory: &mut [u8]) -> Option<Registered> {
    let registered = Registered::new(memory);
    registered.inspect_err(|error| skip(format_args!("io_uring registers no memory here: {error}"))).ok()
}

#[test]
fn nothing_is_believed_to_be_unchanged_while_memory_is_pinned() {
    if alone("pinned::nothing_is_believed_to_be_unchanged_while_memory_is_pinned") {
        return;
    }
    for way in [Way::Pages, Way::Protection].into_iter().filter(|way| has(*way)) {
        let mut memory = Mapping::new(64 * PAGE);
        let Some(mut ring) = registered(&mut memory) else { return };
        let mut tracker = tracker(way);
        for _ in 0..3 {
            ring.read(&sevens(), &mut memory[5 * PAGE..6 * PAGE]);
            assert!(tracker.changed("memory", &memory).is_everything, "{way}");
        }
        let stats = tracker.stats("memory").unwrap();
        assert!(stats.way == Way::Everything && stats.reason.contains("VmPin"), "{stats:?}");
        drop(ring);
        outcrop_testing::until("nothing is pinned any more", || !tracker.changed("memory", &memory).is_everything);
        memory[9 * PAGE] = 1;
        assert_eq!(pages(&tracker.changed("memory", &memory)), [9]);
    }
}

#[test]
fn memory_that_is_pinned_and_unpinned_between_two_looks_has_changed() {
    if alone("pinned::memory_that_is_pinned_and_unpinned_between_two_looks_has_changed") || !has(Way::Pages) {
        return;
    }
    let mut memory = Mapping::new(64 * PAGE);
    let mut tracker = tracker(Way::Pages);
    tracker.changed("memory", &memory);
    let Some(mut ring) = registered(&mut memory[8 * PAGE..16 * PAGE]) else { return };
    ring.read(&sevens(), &mut memory[12 * PAGE..13 * PAGE]);
    drop(ring);
    assert!(tracker.changed("memory", &memory).ranges.iter().any(|range| range.contains(&(12 * PAGE))));
}

#[test]
fn a_program_that_marks_what_is_pinned_is_believed() {
    if alone("pinned::a_program_that_marks_what_is_pinned_is_believed") || !has(Way::Pages) {
        return;
    }
    let mut memory = Mapping::new(64 * PAGE);
    let Some(mut ring) = registered(&mut memory) else { return };
    let mut tracker = Tracker::new(TrackOptions { way: Way::Pages, marks_pinned: true, ..TrackOptions::default() });
    tracker.changed("memory", &memory);
    ring.read(&sevens(), &mut memory[5 * PAGE..6 * PAGE]);
    tracker.mark_dirty("memory", 5 * PAGE..6 * PAGE);
    assert_eq!(pages(&tracker.changed("memory", &memory)), [5]);
    assert!(tracker.changed("memory", &memory).ranges.is_empty());
}

#[test]
fn an_image_of_a_process_with_pinned_memory_is_made_by_a_fork() {
    if alone("pinned::an_image_of_a_process_with_pinned_memory_is_made_by_a_fork") {
        return;
    }
    let mut memory = Mapping::new(64 * PAGE);
    let Some(mut ring) = registered(&mut memory) else { return };
    let protect = FreezeOptions { way: FreezeWay::Protect, ..FreezeOptions::default() };
    let error = freeze(&[&memory], protect).unwrap_err();
    assert!(matches!(error, Error::Refused { way: FreezeWay::Protect, .. }), "{error}");
    let frozen = freeze(&[&memory], FreezeOptions::default()).unwrap();
    assert_eq!(frozen.way(), FreezeWay::Fork);
    ring.read(&sevens(), &mut memory[5 * PAGE..6 * PAGE]);
    let mut page = [1; PAGE];
    frozen.read(0, 5 * PAGE, &mut page).unwrap();
    assert_eq!((page, memory[5 * PAGE]), ([0; PAGE], 7), "the image is that of the moment");
}

#[test]
fn parts_that_overlap_are_refused() {
    let memory = Mapping::new(8 * PAGE);
    let parts = [&memory[PAGE..3 * PAGE], &[], &memory[3 * PAGE..4 * PAGE], &memory[3 * PAGE - 1..3 * PAGE]];
    assert!(freeze(&parts[..3], FreezeOptions::default()).is_ok());
    let error = freeze(&parts, FreezeOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Overlap { part: 0, other: 3 }), "{error}");
}
