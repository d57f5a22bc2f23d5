//! Trackers in forked processes, and in processes with few permissions. Each test runs in a process
//! of its own: a fork copies the state of other threads, whatever they are doing.

use std::os::fd::FromRawFd;

use outcrop_testing::{alone, in_fork};
use outcrop_track::{TrackOptions, Way};

use crate::common::{self, Mapping, PAGE, chosen, everything, has, pages, refuse_userfaultfd, tracker, watched};

#[test]
fn a_forked_process_believes_nothing_and_disturbs_nobody() {
    if alone("fork::a_forked_process_believes_nothing_and_disturbs_nobody") {
        return;
    }
    for way in [Way::Pages, Way::Protection].into_iter().filter(|way| has(*way)) {
        let (mut memory, mut tracker) = watched(way, 16 * PAGE);
        memory[PAGE] = 1;
        let status = in_fork(|| {
            let is_everything = tracker.changed("memory", &memory).is_everything;
            memory[3 * PAGE] = 1;
            let is_found = pages(&tracker.changed("memory", &memory)).contains(&3);
            tracker.stop("memory");
            drop(std::mem::replace(&mut tracker, common::tracker(way)));
            is_everything && is_found
        });
        assert!(status.success(), "{way}: {status}");
        memory[5 * PAGE] = 1;
        let changes = tracker.changed("memory", &memory);
        assert_eq!((pages(&changes), changes.way), (vec![1, 5], way));
        assert!(tracker.changed("memory", &memory).ranges.is_empty());
    }
}

#[test]
fn a_tracker_ends_also_while_a_forked_process_lives() {
    if alone("fork::a_tracker_ends_also_while_a_forked_process_lives") {
        return;
    }
    if !has(Way::Pages) {
        return;
    }
    let (mut memory, first) = watched(Way::Pages, 16 * PAGE);
    let mut ends = [0; 2];
    // SAFETY: a new pipe; the child waits until it is closed and exits.
    let (pid, writer) = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let pid = libc::fork();
        if pid == 0 {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut ends[1]).cast(), 1);
            libc::_exit(0);
        }
        libc::close(ends[0]);
        (pid, std::fs::File::from_raw_fd(ends[1]))
    };
    drop(first);
    let mut second = tracker(Way::Pages);
    second.changed("memory", &memory);
    memory[PAGE] = 1;
    let changes = second.changed("memory", &memory);
    drop(writer);
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    assert_eq!((pages(&changes), changes.way), (vec![1], Way::Pages));
}

#[test]
fn protection_is_chosen_only_if_allowed_and_only_as_the_last_resort() {
    if alone("fork::protection_is_chosen_only_if_allowed_and_only_as_the_last_resort") {
        return;
    }
    if !has(Way::Protection) {
        return;
    }
    let allowed = TrackOptions { allow_protection: true, ..TrackOptions::default() };
    if has(Way::Pages) {
        let (ways, _) = chosen(allowed.clone(), 4 << 20, 1_000.0);
        assert!(!ways.contains(&Way::Protection), "{ways:?}");
    }
    // Without userfaultfd, which can be denied to a process permanently.
    let status = in_fork(|| {
        if !refuse_userfaultfd() {
            return true;
        }
        let (without, _) = chosen(TrackOptions::default(), 4 << 20, 1_000.0);
        let (with, _) = chosen(allowed, 4 << 20, 1_000.0);
        without.iter().all(|way| *way == Way::Everything) && with.contains(&Way::Protection)
    });
    assert!(status.success(), "{status}");
}

#[test]
fn where_pages_cannot_be_watched_everything_is_reported() {
    if alone("fork::where_pages_cannot_be_watched_everything_is_reported") {
        return;
    }
    let status = in_fork(|| {
        if !refuse_userfaultfd() {
            return true;
        }
        let mut tracker = tracker(Way::Pages);
        let memory = Mapping::new(16 * PAGE);
        let is_everything = (0..3).all(|_| everything(&tracker.changed("memory", &memory), 16 * PAGE));
        is_everything && tracker.stats("memory").unwrap().reason.contains("cannot watch pages")
    });
    assert!(status.success(), "{status}");
}
