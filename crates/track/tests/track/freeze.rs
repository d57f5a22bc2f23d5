//! Frozen images: they keep the bytes of one moment, whatever happens to the memory afterwards.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use outcrop_testing::skip;
use outcrop_track::{Error, FreezeOptions, FreezeWay, Frozen, Way, freeze};

use crate::common::{self, Mapping, Meanwhile, PAGE, pages, patterned, tracker};

fn options(way: FreezeWay) -> FreezeOptions {
    FreezeOptions { way, ..FreezeOptions::default() }
}

/// The ways that work here.
fn ways() -> Vec<FreezeWay> {
    let memory = Mapping::new(4 * PAGE);
    let works = |way: &FreezeWay| match freeze(&[&memory], options(*way)) {
        Ok(frozen) => frozen.way() == *way,
        Err(error) => {
            skip(error);
            false
        }
    };
    [FreezeWay::Fork, FreezeWay::Protect].into_iter().filter(works).collect()
}

fn has(way: FreezeWay) -> bool {
    ways().contains(&way)
}

fn read_all(frozen: &Frozen, part: usize, bytes: usize) -> Result<Vec<u8>, Error> {
    let mut all = vec![0; bytes];
    frozen.read(part, 0, &mut all).map(|()| all)
}

#[test]
fn images_and_trackers_go_to_any_thread() {
    fn is_free<T: Send + Sync>() {}
    is_free::<Frozen>();
    is_free::<outcrop_track::Tracker>();
}

#[test]
fn an_image_is_that_of_the_moment_while_threads_write() {
    for way in ways() {
        let mut memory = patterned(2048 * PAGE);
        let shadow = memory.to_vec();
        let mut frozen = freeze(&[&memory], options(way)).unwrap();
        assert_eq!(frozen.way(), way);
        let mut random = fastrand::Rng::with_seed(3);
        let start = memory.as_mut_ptr().expose_provenance();
        let bytes = memory.len();
        let _writers: Vec<_> = (0..3)
            .map(|_| {
                let mut random = random.fork();
                Meanwhile::repeat(move || {
                    let at = start + random.usize(..bytes);
                    // SAFETY: inside the mapping, which outlives the thread; nobody else accesses
                    // it.
                    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(random.u8(..)) };
                })
            })
            .collect();
        let mut into = vec![0; 300_000];
        let mut at = 0;
        while at < bytes {
            let count = random.usize(1..into.len()).min(bytes - at);
            frozen.read(0, at, &mut into[..count]).unwrap();
            assert!(into[..count] == shadow[at..at + count], "{way}: wrong bytes at {at}");
            // Bytes may be read any number of times before they are released.
            if random.bool() {
                frozen.release(0, at..at + count / 2);
                frozen.read(0, at + count / 2, &mut into[..count - count / 2]).unwrap();
                assert!(into[..count - count / 2] == shadow[at + count / 2..at + count]);
            }
            frozen.release(0, at..at + count);
            at += count;
        }
    }
}

#[test]
fn all_written_pages_are_kept() {
    for way in ways() {
        let mut memory = patterned(512 * PAGE);
        let shadow = memory.to_vec();
        let frozen = freeze(&[&memory], options(way)).unwrap();
        memory.fill(0xee);
        assert!(read_all(&frozen, 0, shadow.len()).unwrap() == shadow, "{way}");
        drop(frozen);
        assert!(memory.iter().all(|byte| *byte == 0xee));
    }
}

#[test]
fn parts_need_not_fill_pages() {
    for way in ways() {
        let mut memory = patterned(64 * PAGE);
        let mut on_stack = [7u8; 3 * PAGE];
        let bounds = [
            0..0,
            10..20,
            100..5 * PAGE + 3,
            5 * PAGE + 3..5 * PAGE + 4,
            9 * PAGE..12 * PAGE,
            13 * PAGE + 1..15 * PAGE,
        ];
        let shadow = memory.to_vec();
        let frozen = {
            let mut parts: Vec<&[u8]> = bounds.iter().map(|range| &memory[range.clone()]).collect();
            parts.push(&on_stack);
            freeze(&parts, options(way)).unwrap()
        };
        memory.fill(1);
        on_stack.fill(1);
        for (part, range) in bounds.into_iter().enumerate() {
            assert!(read_all(&frozen, part, range.len()).unwrap() == shadow[range], "{way}, part {part}");
        }
        assert_eq!(read_all(&frozen, 6, 3 * PAGE).unwrap(), [7; 3 * PAGE]);
        assert_eq!(on_stack[0], 1);
    }
}

#[test]
fn nothing_can_be_frozen() {
    for way in ways() {
        let frozen = freeze(&[], options(way)).unwrap();
        assert!(matches!(frozen.read(0, 0, &mut []), Err(Error::OutOfRange { .. })));
        freeze(&[&[]], options(way)).unwrap().read(0, 0, &mut []).unwrap();
    }
}

#[test]
fn what_is_not_there_is_an_error() {
    for way in ways() {
        let memory = Mapping::new(4 * PAGE);
        let frozen = freeze(&[&memory], options(way)).unwrap();
        for (part, at, bytes) in [(1, 0, 1), (0, 4 * PAGE, 1), (0, 4 * PAGE - 1, 2), (0, usize::MAX, 2)] {
            let outcome = frozen.read(part, at, &mut vec![0; bytes]);
            assert!(matches!(outcome, Err(Error::OutOfRange { .. })), "{way}: {outcome:?}");
        }
    }
}

#[test]
fn what_was_released_is_an_error() {
    for way in ways() {
        let mut memory = patterned(16 * PAGE);
        let shadow = memory.to_vec();
        let mut frozen = freeze(&[&memory], options(way)).unwrap();
        frozen.release(0, 0..2 * PAGE);
        frozen.release(0, 8 * PAGE..9 * PAGE);
        frozen.release(0, 99 * PAGE..usize::MAX);
        frozen.release(7, 0..1);
        memory.fill(1);
        // The child process carries out orders with a delay.
        let begin = Instant::now();
        while frozen.read(0, 8 * PAGE, &mut [0]).is_ok() && begin.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        for at in [0, 2 * PAGE - 1, 8 * PAGE] {
            let outcome = frozen.read(0, at, &mut [0]);
            assert!(matches!(outcome, Err(Error::Released { part: 0, .. })), "{way}: {outcome:?}");
        }
        let mut rest = vec![0; 6 * PAGE];
        frozen.read(0, 2 * PAGE, &mut rest).unwrap();
        assert!(rest == shadow[2 * PAGE..8 * PAGE]);
    }
}

#[test]
fn writes_by_system_calls_succeed_and_leave_the_image_alone() {
    for way in ways() {
        let mut memory = patterned(16 * PAGE);
        let shadow = memory.to_vec();
        let frozen = freeze(&[&memory], options(way)).unwrap();
        std::fs::File::open("/dev/zero").unwrap().read_exact(&mut memory[PAGE / 2..9 * PAGE]).unwrap();
        assert!(read_all(&frozen, 0, shadow.len()).unwrap() == shadow);
        assert!(memory[PAGE / 2..9 * PAGE].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_image_can_be_read_into_the_frozen_memory() {
    for way in ways() {
        let mut memory = patterned(64 * PAGE);
        let shadow = memory.to_vec();
        let frozen = freeze(&[&memory], options(way)).unwrap();
        memory[..40 * PAGE].fill(9);
        frozen.read(0, 0, &mut memory).unwrap();
        assert!(*memory == shadow[..], "{way}");
        assert!(read_all(&frozen, 0, shadow.len()).unwrap() == shadow);
    }
}

#[test]
fn memory_without_pages_and_huge_pages_can_be_frozen() {
    for way in ways() {
        let mut untouched = Mapping::new(1024 * PAGE);
        let mut huge = Mapping::huge(4 << 20);
        let frozen = freeze(&[&untouched, &huge], options(way)).unwrap();
        untouched[7 * PAGE] = 1;
        huge[3 << 20] = 9;
        assert!(read_all(&frozen, 0, 1024 * PAGE).unwrap().iter().all(|byte| *byte == 0), "{way}");
        assert!(read_all(&frozen, 1, 4 << 20).unwrap().iter().all(|byte| *byte == 1), "{way}");
    }
}

#[test]
fn replaced_memory_that_another_watches_is_not_mistaken_for_the_image() {
    if !has(FreezeWay::Protect) || !common::has(Way::Pages) {
        return;
    }
    let mut memory = patterned(16 * PAGE);
    let frozen = freeze(&[&memory], options(FreezeWay::Protect)).unwrap();
    memory.replace();
    memory.fill(5);
    let mut tracker = tracker(Way::Pages);
    tracker.changed("memory", &memory);
    assert_eq!(tracker.stats("memory").unwrap().way, Way::Pages);
    assert!(matches!(frozen.read(0, 0, &mut [0; PAGE]), Err(Error::Vanished { .. })));
    memory[PAGE] = 1;
    drop(frozen);
    assert_eq!(pages(&tracker.changed("memory", &memory)), [1]);
}

#[test]
fn the_bound_of_a_fork_is_all_or_nothing() {
    if !has(FreezeWay::Fork) {
        return;
    }
    let memory = patterned(16 * PAGE);
    let bound = |bytes| FreezeOptions { extra_bytes_max: bytes, ..options(FreezeWay::Fork) };
    let error = freeze(&[&memory], bound(16 * PAGE as u64 - 1)).unwrap_err();
    assert!(matches!(error, Error::Bound { .. }), "{error}");
    freeze(&[&memory], bound(16 * PAGE as u64)).unwrap();
}

#[test]
fn the_bound_of_protection_holds_and_writers_wait_for_the_reader() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let mut memory = patterned(256 * PAGE);
    let shadow = memory.to_vec();
    let extra_bytes_max = 20 * PAGE as u64;
    let mut frozen = freeze(&[&memory], FreezeOptions { extra_bytes_max, ..options(FreezeWay::Protect) }).unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let seen = written.clone();
    let writer = std::thread::spawn(move || {
        // In descending order, so that it waits for what is read last.
        for page in (0..256).rev() {
            memory[page * PAGE] = 0xee;
            seen.fetch_add(1, SeqCst);
        }
        memory
    });
    for page in 0..256 {
        let mut into = [0; PAGE];
        frozen.read(0, page * PAGE, &mut into).unwrap();
        assert!(into[..] == shadow[page * PAGE..(page + 1) * PAGE]);
        assert!(frozen.extra_bytes() <= extra_bytes_max, "{}", frozen.extra_bytes());
        // A page that is neither released nor in the pool has not been written.
        assert!(written.load(SeqCst) <= 20 + page);
        frozen.release(0, page * PAGE..(page + 1) * PAGE);
    }
    let memory = writer.join().unwrap();
    assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 0xee));
}

#[test]
fn room_that_becomes_free_goes_to_who_waits() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let mut memory = patterned(64 * PAGE);
    let extra_bytes_max = 8 * PAGE as u64;
    let mut frozen = freeze(&[&memory], FreezeOptions { extra_bytes_max, ..options(FreezeWay::Protect) }).unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let seen = written.clone();
    let writer = std::thread::spawn(move || {
        for at in (0..memory.len()).step_by(PAGE) {
            memory[at] = 1;
            seen.fetch_add(1, SeqCst);
        }
    });
    // The released pages come before those that the writer waits for, so only their room can help.
    for page in 0..32 {
        let begin = Instant::now();
        while written.load(SeqCst) <= page {
            assert!(begin.elapsed() < Duration::from_secs(20), "the writer is stuck at page {page}");
            std::thread::yield_now();
        }
        frozen.release(0, page * PAGE..(page + 1) * PAGE);
    }
    drop(frozen);
    writer.join().unwrap();
}

#[test]
fn pieces_that_are_no_pages_release_writers_too() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let mut memory = patterned(64 * PAGE);
    let shadow = memory[100..].to_vec();
    let extra_bytes_max = 8 * PAGE as u64;
    let mut frozen =
        freeze(&[&memory[100..]], FreezeOptions { extra_bytes_max, ..options(FreezeWay::Protect) }).unwrap();
    let writer = std::thread::spawn(move || memory.fill(1));
    let mut at = 0;
    for count in (0..).map(|i| 1000 + i % 777) {
        let count = count.min(shadow.len() - at);
        let mut into = vec![0; count];
        frozen.read(0, at, &mut into).unwrap();
        assert!(into == shadow[at..at + count]);
        frozen.release(0, at..at + count);
        at += count;
        if count == 0 {
            break;
        }
    }
    writer.join().unwrap();
}

#[test]
fn an_image_that_nobody_reads_is_given_up() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let mut memory = patterned(64 * PAGE);
    let wait_max = Duration::from_millis(50);
    let options = FreezeOptions { extra_bytes_max: 8 * PAGE as u64, wait_max, ..options(FreezeWay::Protect) };
    let frozen = freeze(&[&memory], options).unwrap();
    // This is the only thread: without a limit it would wait for itself.
    memory.fill(1);
    let error = frozen.read(0, 0, &mut [0]).unwrap_err();
    assert!(matches!(error, Error::GivenUp { .. }), "{error}");
    assert!(error.to_string().contains("release sooner"));
}

#[test]
fn dropping_an_image_lets_writers_go_on() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let mut memory = patterned(64 * PAGE);
    let frozen =
        freeze(&[&memory], FreezeOptions { extra_bytes_max: 8 * PAGE as u64, ..options(FreezeWay::Protect) }).unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let seen = begun.clone();
    let writer = std::thread::spawn(move || {
        for at in (0..memory.len()).step_by(PAGE) {
            memory[at] = 1;
            seen.fetch_add(1, SeqCst);
        }
    });
    while begun.load(SeqCst) < 5 {
        std::thread::yield_now();
    }
    drop(frozen);
    writer.join().unwrap();
}

#[test]
fn a_bound_that_is_too_small_for_anything_is_refused() {
    let memory = patterned(64 * PAGE);
    for way in [FreezeWay::Fork, FreezeWay::Protect, FreezeWay::Chosen] {
        let error = freeze(&[&memory], FreezeOptions { extra_bytes_max: 100, ..options(way) }).unwrap_err();
        let is_expected = matches!(error, Error::Bound { .. }) || !has(way);
        assert!(is_expected, "{way}: {error}");
    }
}

#[test]
fn a_bound_makes_protection_the_choice() {
    if !has(FreezeWay::Protect) {
        return;
    }
    let memory = patterned(64 * PAGE);
    let bound = FreezeOptions { extra_bytes_max: 32 * PAGE as u64, ..FreezeOptions::default() };
    assert_eq!(freeze(&[&memory], bound).unwrap().way(), FreezeWay::Protect);
}

#[test]
fn watched_memory_is_frozen_by_fork_and_still_watched() {
    if !has(FreezeWay::Fork) || !common::has(Way::Pages) {
        return;
    }
    let mut memory = patterned(64 * PAGE);
    let shadow = memory.to_vec();
    let mut tracker = tracker(Way::Pages);
    tracker.changed("memory", &memory);
    let refused = freeze(&[&memory], options(FreezeWay::Protect)).unwrap_err();
    assert!(matches!(refused, Error::Refused { way: FreezeWay::Protect, .. }), "{refused}");
    let frozen = freeze(&[&memory], FreezeOptions::default()).unwrap();
    assert_eq!(frozen.way(), FreezeWay::Fork);
    memory[3 * PAGE] = 0;
    memory[4 * PAGE] = 0;
    assert_eq!(pages(&tracker.changed("memory", &memory)), [3, 4]);
    assert!(read_all(&frozen, 0, shadow.len()).unwrap() == shadow);
    drop(frozen);
    memory[5 * PAGE] = 0;
    assert_eq!(pages(&tracker.changed("memory", &memory)), [5]);
}

#[test]
fn protected_memory_is_frozen_and_both_hold() {
    if !common::has(Way::Protection) {
        return;
    }
    for way in ways() {
        let mut memory = patterned(64 * PAGE);
        let shadow = memory.to_vec();
        let mut tracker = tracker(Way::Protection);
        tracker.changed("memory", &memory);
        let frozen = freeze(&[&memory], options(way)).unwrap();
        memory[3 * PAGE] = 0;
        memory[4 * PAGE] = 0;
        assert_eq!(pages(&tracker.changed("memory", &memory)), [3, 4], "{way}");
        assert!(read_all(&frozen, 0, shadow.len()).unwrap() == shadow, "{way}");
    }
}

#[test]
fn one_memory_has_several_images() {
    if !has(FreezeWay::Fork) {
        return;
    }
    let mut memory = patterned(16 * PAGE);
    let images: Vec<_> = (0..5u8)
        .map(|i| {
            memory.fill(i);
            freeze(&[&memory], FreezeOptions::default()).unwrap()
        })
        .collect();
    memory.fill(99);
    for (i, image) in images.iter().enumerate() {
        assert!(read_all(image, 0, memory.len()).unwrap().iter().all(|byte| usize::from(*byte) == i));
    }
}

#[test]
fn memory_that_others_can_change_is_refused() {
    let (private, memory) = (vec![1, 2, 3], Mapping::shared(16 * PAGE));
    for way in [FreezeWay::Fork, FreezeWay::Protect, FreezeWay::Chosen] {
        let error = freeze(&[&private, &memory], options(way)).unwrap_err();
        assert!(matches!(error, Error::NotPrivate { part: 1 }), "{error}");
    }
}

#[test]
fn memory_that_a_fork_leaves_out_is_refused() {
    if !has(FreezeWay::Fork) {
        return;
    }
    for advice in [libc::MADV_DONTFORK, libc::MADV_WIPEONFORK] {
        let mut memory = patterned(64 * PAGE);
        // Its beginning is zero, as wiped memory would be.
        memory[..40 * PAGE].fill(0);
        memory.advise(32 * PAGE, 32 * PAGE, advice);
        let error = freeze(&[&memory], options(FreezeWay::Fork)).unwrap_err();
        assert!(matches!(error, Error::NotPrivate { part: 0 }), "{error}");
    }
}
