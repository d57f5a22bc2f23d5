//! Limits of host memory: locked memory, the machine, a control group, and no huge pages.

use std::fs;

use outcrop_layers::{Error, Host, Layer, contract};
use outcrop_testing::{
    Companion, Group, answer, child, child_directory, does_not_apply, expect_success, listen, pattern, skip,
};
use tempfile::{tempdir, tempdir_in};

const MIB: u64 = 1 << 20;

/// The value of a line of /proc/self/status or smaps_rollup, in bytes.
fn proc_bytes(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// In a child process, because locked memory is counted per process.
#[test]
fn child_pins_all_it_has() {
    if child_directory().is_none() {
        return;
    }
    let host = Host::new(4 * MIB).unwrap();
    host.write(MIB, &pattern(1, MIB)).unwrap();
    host.pin().unwrap();
    assert_eq!(proc_bytes("status", "VmLck"), 4 * MIB);
    host.pin().expect("to pin twice is to pin once");
    let slot = host.slot(MIB, MIB).unwrap();
    drop(host);
    assert_eq!(*slot, *pattern(1, MIB), "pinning changes no byte");
    assert_eq!(proc_bytes("status", "VmLck"), 4 * MIB, "pinned as long as a slot is there");
    drop(slot);
    assert_eq!(proc_bytes("status", "VmLck"), 0);
}

#[test]
fn memory_is_pinned_in_one_piece_until_it_is_given_back() {
    expect_success(child("host::child_pins_all_it_has", tempdir().unwrap().path()));
}

/// In a child process, because memory is counted per process.
#[test]
fn child_reserves_and_touches() {
    if child_directory().is_none() {
        return;
    }
    let resident = || proc_bytes("status", "VmRSS");
    let before = resident();
    let host = Host::new(256 * MIB).unwrap();
    host.slot(128 * MIB, MIB).expect("usable at once, wherever").fill(1);
    assert!(resident() < before + 16 * MIB, "to reserve takes no memory: {} from {before}", resident());
    host.touch(0..64 * MIB).unwrap();
    let touched = resident();
    assert!((64 * MIB..96 * MIB).contains(&(touched - before)), "to touch does: {touched} from {before}");
    host.slot(0, 64 * MIB).unwrap().fill(2);
    assert!(resident() < touched + 16 * MIB, "and to write there takes no more");
}

#[test]
fn memory_is_reserved_at_once_and_taken_when_it_is_touched() {
    expect_success(child("host::child_reserves_and_touches", tempdir().unwrap().path()));
}

/// In a child process, because huge pages are counted per process.
#[test]
fn child_has_huge_pages() {
    if child_directory().is_none() {
        return;
    }
    let host = Host::new(64 * MIB).unwrap();
    host.touch(0..32 * MIB).unwrap();
    host.slot(32 * MIB, 32 * MIB).unwrap().fill(1);
    let huge = proc_bytes("smaps_rollup", "AnonHugePages");
    assert!(huge > 32 * MIB, "touched and untouched memory comes in huge pages: {huge}");
}

#[test]
fn huge_pages_are_used_where_there_are_some() {
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    if !fs::read_to_string(file).is_ok_and(|text| !text.contains("[never]")) {
        return does_not_apply("this system has no huge pages");
    }
    expect_success(child("host::child_has_huge_pages", tempdir().unwrap().path()));
}

/// In a child process: an ordinary user who may lock little memory.
#[test]
fn child_may_lock_little() {
    if child_directory().is_none() {
        return;
    }
    for limit in [2 * MIB, 0] {
        let little = libc::rlimit { rlim_cur: limit, rlim_max: 2 * MIB };
        // SAFETY: the calls only take numbers and a valid structure.
        let is_done = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &little) == 0 && libc::setuid(1_000_004) == 0 };
        assert!(is_done, "this test is for root");
        let host = Host::new(4 * MIB).unwrap();
        let error = host.pin().unwrap_err();
        let Error::PinLimit { bytes, limit_bytes, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*bytes, *limit_bytes), (4 * MIB, limit));
        for words in ["ulimit -l 4096", "limits.conf", "LimitMEMLOCK", "CAP_IPC_LOCK", &limit.to_string()] {
            assert!(error.to_string().contains(words), "{words} is not in {error}");
        }
        host.slot(0, 4 * MIB).expect("it can be used as before").fill(1);
        if limit > 0 {
            let small = Host::new(MIB).unwrap();
            small.pin().expect("as far as it may");
            let Err(Error::PinLimit { bytes, .. }) = host.pin() else { panic!("more than it may") };
            assert_eq!(bytes, 5 * MIB, "what is locked already counts");
        }
    }
}

#[test]
fn a_limit_that_is_too_low_to_pin_comes_with_the_remedy() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let given = tempdir().unwrap();
    expect_success(child("host::child_may_lock_little", given.path()));
}

/// In a child process: a kernel without huge pages for this process.
#[test]
fn child_without_huge_pages() {
    if child_directory().is_none() {
        return;
    }
    // SAFETY: the call only takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }, 0);
    let host = Host::new(16 * MIB).unwrap();
    host.touch(0..8 * MIB).unwrap();
    host.write(8 * MIB, &pattern(1, 8 * MIB)).unwrap();
    assert_eq!(proc_bytes("smaps_rollup", "AnonHugePages"), 0);
    contract::check(&|| std::sync::Arc::new(Host::new(contract::CAPACITY_MIN).unwrap()));
}

#[test]
fn no_huge_pages_are_no_obstacle() {
    expect_success(child("host::child_without_huge_pages", tempdir().unwrap().path()));
}

#[test]
fn touching_changes_no_byte_and_can_be_repeated() {
    let host = Host::new(200 * MIB).unwrap();
    host.write(MIB, &pattern(1, MIB)).unwrap();
    for range in [0..200 * MIB, MIB..2 * MIB, 0..200 * MIB] {
        host.touch(range).unwrap();
    }
    let mut found = vec![0; MIB as usize];
    host.read(MIB, &mut found).unwrap();
    assert_eq!(found, pattern(1, MIB));
    for range in [0..201 * MIB, 1..4096, 4096..4096] {
        assert!(matches!(host.touch(range), Err(Error::OutOfRange { .. })));
    }
    assert!(!host.needs_touch());
    assert_eq!(host.release(0..200 * MIB).unwrap(), 0, "private memory stays");
    host.read(MIB, &mut found).unwrap();
    assert_eq!(found, pattern(1, MIB));
}

#[test]
fn more_than_the_machine_has_is_refused_by_name() {
    let error = Host::new(1 << 45).unwrap_err();
    assert!(error.to_string().contains("bytes are all that"), "{error}");
}

/// In a child process: fills as much as it gets, and touches until there is no more.
#[test]
fn child_lives_in_a_small_group() {
    let Some(node) = child_directory() else { return };
    answer("ready");
    listen();
    let error = Host::new(1 << 30).unwrap_err();
    assert!(error.to_string().contains("the control group") && matches!(error, Error::NoMemory { .. }), "{error}");

    let smaller = Host::new(252 * MIB).unwrap();
    assert!((128 * MIB..252 * MIB).contains(&smaller.capacity()), "{}", smaller.capacity());
    smaller.slot(0, smaller.capacity()).unwrap().fill(1);
    let error = Host::new(252 * MIB).and_then(|second| second.touch(0..second.capacity())).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. } | Error::Exhausted { .. }), "{error:?}");
    drop(smaller);

    let host = Host::new(200 * MIB).unwrap();
    assert_eq!(host.capacity(), 200 * MIB);
    let ballast = vec![1_u8; 120 << 20];
    let touched = touch_until_there_is_no_more(&host);
    assert!((50 * MIB..130 * MIB).contains(&touched), "{touched}");
    host.slot(0, touched).unwrap().fill(2);
    assert!(matches!(host.pin(), Err(Error::Exhausted { .. })), "pinning would touch the rest");
    drop(ballast);
    host.touch(0..host.capacity()).expect("there is room again");
    drop(host);

    let shared = Host::shared_in(&node, "test", 512 * MIB, 512 * MIB).unwrap();
    let touched = touch_until_there_is_no_more(&shared);
    assert!((128 * MIB..256 * MIB).contains(&touched), "{touched}");
    shared.slot(0, touched).unwrap().fill(3);
    answer("alive");
}

/// Touches until the group's limit, and returns how far that was.
fn touch_until_there_is_no_more(host: &Host) -> u64 {
    let mut touched = 0;
    let error = loop {
        match host.touch(touched..touched + host.piece_bytes()) {
            Ok(()) => touched += host.piece_bytes(),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Exhausted { limit, .. } if limit.contains("the control group")), "{error:?}");
    touched
}

#[test]
fn a_small_control_group_makes_a_smaller_cache_and_kills_nobody() {
    let group = match Group::new(256 * MIB) {
        Ok(group) => group,
        Err(reason) => return skip(format_args!("no control group can be made here: {reason}")),
    };
    // In memory, where shared memory normally is.
    let given = tempdir_in("/dev/shm").or_else(|_| tempdir()).unwrap();
    let mut companion = Companion::start("host::child_lives_in_a_small_group", given.path());
    companion.expect("ready");
    group.add(companion.id());
    assert_eq!(companion.ask("go on"), "alive");
    companion.end();
}
