//! The signal handler of `Way::Protection`, with handlers that were installed before. Each test
//! runs in a process of its own.

use std::{
    os::unix::process::ExitStatusExt,
    ptr,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use outcrop_testing::{alone, in_fork, skip};
use outcrop_track::{Tracker, Way};

use crate::common::{Mapping, PAGE, pages, tracker};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
/// The page that the program's own handler makes writable.
static OWN_PAGE: AtomicUsize = AtomicUsize::new(0);

fn process(work: impl FnOnce() -> bool) -> std::process::ExitStatus {
    in_fork(|| {
        // No core files.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        work()
    })
}

fn set_handler(handler: usize, flags: i32) {
    // SAFETY: valid actions; the handlers below do nothing that is forbidden in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
    }
}

fn rights(start: usize, rights: i32) {
    // SAFETY: a page of the test's own.
    assert_eq!(unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(start), PAGE, rights) }, 0);
}

extern "C" fn own_plain(_: i32) {
    CALLS.fetch_add(1, SeqCst);
    rights(OWN_PAGE.load(SeqCst), libc::PROT_READ | libc::PROT_WRITE);
}

extern "C" fn own_with_address(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: a handler gets a valid structure.
    ADDRESS.store(unsafe { (*info).si_addr() }.addr(), SeqCst);
    own_plain(signal);
}

fn watch() -> (Mapping, Tracker) {
    let memory = Mapping::new(16 * PAGE);
    let mut tracker = tracker(Way::Protection);
    tracker.changed("memory", &memory);
    assert_eq!(tracker.stats("memory").unwrap().way, Way::Protection);
    (memory, tracker)
}

#[test]
fn an_earlier_handler_gets_what_is_its_own() {
    if alone("signals::an_earlier_handler_gets_what_is_its_own") {
        return;
    }
    let plain = own_plain as *const () as usize;
    let with_address = own_with_address as *const () as usize;
    for (handler, flags) in
        [(plain, 0), (with_address, libc::SA_SIGINFO), (with_address, libc::SA_SIGINFO | libc::SA_ONSTACK)]
    {
        let status = process(|| {
            set_handler(handler, flags);
            let (mut memory, mut tracker) = watch();
            let mut own = Mapping::new(PAGE);
            OWN_PAGE.store(own.as_ptr().expose_provenance(), SeqCst);
            rights(own.as_ptr().addr(), libc::PROT_READ);
            memory[3 * PAGE] = 1;
            assert_eq!(CALLS.load(SeqCst), 0);
            own[10] = 1;
            assert_eq!(CALLS.load(SeqCst), 1);
            if flags != 0 {
                assert_eq!(ADDRESS.load(SeqCst), own.as_ptr().addr() + 10);
            }
            memory[4 * PAGE] = 1;
            pages(&tracker.changed("memory", &memory)) == [3, 4] && CALLS.load(SeqCst) == 1
        });
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_real_fault_still_kills() {
    if alone("signals::a_real_fault_still_kills") {
        return;
    }
    for is_default in [false, true] {
        for is_read in [false, true] {
            let status = process(|| {
                if is_default {
                    set_handler(libc::SIG_DFL, 0);
                }
                let (mut memory, _tracker) = watch();
                memory[0] = 1;
                let nothing = Mapping::new(PAGE);
                rights(nothing.as_ptr().addr(), libc::PROT_NONE);
                // SAFETY: this is unsound on purpose, and should kill the process.
                unsafe {
                    match is_read {
                        true => drop(nothing.as_ptr().read_volatile()),
                        false => nothing.as_ptr().cast_mut().write_volatile(1),
                    }
                }
                true
            });
            assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
        }
    }
}

#[test]
fn a_fault_where_a_watch_has_ended_kills() {
    if alone("signals::a_fault_where_a_watch_has_ended_kills") {
        return;
    }
    let status = process(|| {
        let (memory, mut tracker) = watch();
        tracker.stop("memory");
        rights(memory.as_ptr().addr(), libc::PROT_READ);
        // SAFETY: this is unsound on purpose, and should kill the process.
        unsafe { memory.as_ptr().cast_mut().write_volatile(1) };
        true
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
}

#[test]
fn a_signal_that_was_sent_does_what_it_did() {
    if alone("signals::a_signal_that_was_sent_does_what_it_did") {
        return;
    }
    // SAFETY: sends a signal to this process.
    let send = || unsafe { libc::raise(libc::SIGSEGV) };
    let killed = process(|| {
        set_handler(libc::SIG_DFL, 0);
        let _watched = watch();
        send();
        true
    });
    assert_eq!(killed.signal(), Some(libc::SIGSEGV), "{killed}");
    let ignored = process(|| {
        set_handler(libc::SIG_IGN, 0);
        let _watched = watch();
        send();
        true
    });
    assert!(ignored.success(), "{ignored}");
    let handled_once = process(|| {
        set_handler(own_plain as *const () as usize, libc::SA_RESETHAND);
        let _watched = watch();
        let own = Mapping::new(PAGE);
        OWN_PAGE.store(own.as_ptr().expose_provenance(), SeqCst);
        send();
        assert_eq!(CALLS.load(SeqCst), 1);
        send();
        true
    });
    assert_eq!(handled_once.signal(), Some(libc::SIGSEGV), "{handled_once}");
}

#[test]
fn a_handler_on_top_of_ours_is_respected() {
    if alone("signals::a_handler_on_top_of_ours_is_respected") {
        return;
    }
    let status = process(|| {
        drop(watch());
        set_handler(own_plain as *const () as usize, 0);
        let memory = Mapping::new(16 * PAGE);
        let mut tracker = tracker(Way::Protection);
        tracker.changed("memory", &memory);
        let stats = tracker.stats("memory").unwrap();
        stats.way == Way::Everything && stats.reason.contains("another handler")
    });
    assert!(status.success(), "{status}");
}

#[test]
fn who_writes_while_a_watch_ends_goes_on() {
    if alone("signals::who_writes_while_a_watch_ends_goes_on") {
        return;
    }
    const WRITERS: usize = 3;
    const ROUNDS: u8 = 250;
    let status = process(|| {
        let mut memory = Mapping::new(WRITERS * PAGE);
        let mut tracker = tracker(Way::Protection);
        let turn = Barrier::new(WRITERS + 1);
        for _ in 0..4 {
            for round in 0..ROUNDS {
                tracker.changed("memory", &memory);
                std::thread::scope(|scope| {
                    for byte in memory.iter_mut().step_by(PAGE) {
                        let turn = &turn;
                        scope.spawn(move || {
                            turn.wait();
                            *byte = round;
                        });
                    }
                    turn.wait();
                    tracker.stop("memory");
                });
                assert!(memory.iter().step_by(PAGE).all(|byte| *byte == round));
            }
        }
        true
    });
    assert!(status.success(), "{status}");
}

#[test]
fn a_process_without_mappings_to_spare_can_still_write() {
    if alone("signals::a_process_without_mappings_to_spare_can_still_write") {
        return;
    }
    let status = process(|| {
        let (mut memory, mut tracker) = watch();
        // Every change of access rights creates two more mappings, up to the limit.
        let other = Mapping::new(200_000 * PAGE);
        let is_full = (0..100_000).any(|i| {
            let page = other.as_ptr().wrapping_add(2 * i * PAGE).cast_mut();
            // SAFETY: a page of the test's own.
            unsafe { libc::mprotect(page.cast(), PAGE, libc::PROT_NONE) != 0 }
        });
        if !is_full {
            skip("a process may have more mappings here than this test makes");
            return true;
        }
        memory[3 * PAGE] = 1;
        tracker.changed("memory", &memory).ranges.iter().any(|range| range.contains(&(3 * PAGE)))
    });
    assert!(status.success(), "{status}");
}

#[test]
fn more_regions_than_places_are_reported_whole() {
    if alone("signals::more_regions_than_places_are_reported_whole") {
        return;
    }
    let status = process(|| {
        let memory = Mapping::new(600 * PAGE);
        let mut tracker = tracker(Way::Protection);
        let mut look = || {
            let parts = memory.chunks(2 * PAGE).enumerate();
            parts.filter(|(i, part)| tracker.changed(&i.to_string(), part).is_everything).count()
        };
        look() == 300 && look() == 300 - 256
    });
    assert!(status.success(), "{status}");
}
