//! Helpers sleep as long as there is nothing to do.

use std::{fs, thread, time::Duration};

use outcrop_engine::{Error, Options};
use outcrop_plan::Order;
use outcrop_testing::{alone, layer::FakeLayer, until};

use crate::{open, options, save};

/// How often the helper of this process has gone to sleep.
fn sleeps() -> u64 {
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_helper = |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap() == "outcrop-0\n";
    let status = fs::read_to_string(tasks.find(is_helper).unwrap().join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_slot_that_is_given_back_wakes_nobody_if_it_is_good_for_nothing() {
    if alone("waking::a_slot_that_is_given_back_wakes_nobody_if_it_is_good_for_nothing") {
        return;
    }
    let layer = FakeLayer::new("disk", 64 * crate::BYTES);
    let mut handle = open(8, &[&layer], &Options { order: Order::Unknown, ..options() });
    (0..12).for_each(|key| save(&mut handle, key).unwrap());
    until("the first one is below", || !handle.is_in_front(0));
    let mut before = None;
    until("all has come to rest", || {
        thread::sleep(Duration::from_millis(20));
        before.replace(sleeps()) == Some(sleeps())
    });
    let before = sleeps();
    for _ in 0..1000 {
        drop(handle.read::<Error>(11, false, |_| Ok(())).unwrap());
        // Time for a helper to go to sleep again, if it was woken.
        thread::yield_now();
    }
    let woken = sleeps() - before;
    assert!(woken < 100, "woken {woken} times for 1000 slots");
}
