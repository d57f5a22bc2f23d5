//! What a program can do with a tape: save, lend, take and get, in any order, over any stack.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outcrop::{
    Blank, ErrorKind, Order, Part, Tape,
    layers::{Dir, DirOptions, Host, Method, Throttled},
};
use outcrop_testing::until;

/// Values that identify their snapshot.
fn values(step: usize, len: usize) -> Vec<f32> {
    (0..len).map(|index| (step * 1_000_003 + index) as f32).collect()
}

/// The length of a snapshot, which differs from step to step.
fn length(step: usize) -> usize {
    1 + (step * 7919) % 50_000
}

/// Saves `count` snapshots of varying size and takes them back in reverse.
fn round_trip(tape: &mut Tape, count: usize) {
    for step in 0..count {
        tape.save(step, &values(step, length(step))).unwrap();
    }
    for step in (0..count).rev() {
        let past = tape.take::<f32>(step).unwrap();
        assert_eq!(*past, values(step, length(step)));
    }
    assert!(tape.keys().is_empty());
}

fn assert_within_limits(tape: &Tape) {
    for layer in tape.stats().layers {
        assert!(layer.capacity_bytes >= Some(layer.used_bytes_max), "{layer:?}");
    }
}

#[test]
fn snapshots_sink_to_a_directory_and_come_back() {
    let scratch = tempfile::tempdir().unwrap();
    let opened = Instant::now();
    let mut tape = Tape::builder().host("2 MiB").dir(scratch.path(), "64 MiB").open().unwrap();
    round_trip(&mut tape, 300);
    assert_within_limits(&tape);
    let stats = tape.stats();
    assert_eq!((stats.saves, stats.reads), (300, 300));
    assert!(stats.layers[1].written_bytes > 20 << 20 && stats.layers[1].read_bytes > 20 << 20, "{stats:?}");
    assert!(stats.layers[1].write_rate() > 0.0 && stats.layers[1].read_rate() > 0.0);
    assert_eq!(stats.hits + stats.late + stats.misses, 300);
    let lived_seconds = opened.elapsed().as_secs_f64();
    assert!(stats.helper_seconds > 0.0 && stats.helper_seconds_per_gb() > stats.helper_seconds, "{stats:?}");
    assert!(stats.helper_seconds < lived_seconds * 3.0, "two helpers in {lived_seconds} s: {stats:?}");
    // A drain of a snapshot that has been taken meanwhile may still be under way.
    until("nothing is in use", || tape.stats().layers.iter().all(|layer| layer.used_bytes == 0));
}

#[test]
fn layers_can_be_of_any_number_and_kind_and_order() {
    let scratch = tempfile::tempdir().unwrap();
    let blocking = || DirOptions { method: Some(Method::Blocking), ..DirOptions::default() };
    let path = |name: &str| scratch.path().join(name);
    let stacks = [
        Tape::builder().host("64 MiB"),
        Tape::builder().host("1 MiB").host("64 MiB"),
        Tape::builder().dir(path("a"), "64 MiB").host("1 MiB"),
        Tape::builder().host("1 MiB").dir_with(path("a"), "64 MiB", blocking()),
        Tape::builder().host("512 KiB").dir(path("a"), "2 MiB").dir(path("b"), "4 MiB").dir(path("c"), "64 MiB"),
        Tape::builder().dir(path("a"), "3 MiB").host("1 MiB").host("2 MiB").dir_with(path("b"), "64 MiB", blocking()),
    ];
    for (number, stack) in stacks.into_iter().enumerate() {
        let mut tape = stack.open().unwrap();
        round_trip(&mut tape, 200);
        assert_within_limits(&tape);
        for layer in &tape.stats().layers[1..] {
            assert!(layer.written_bytes > 0, "stack {number} has not used {}", layer.name);
        }
    }
}

#[test]
fn a_slot_is_handed_over_not_copied() {
    let mut tape = Tape::builder().host("1 MiB").open().unwrap();
    let mut lent = tape.lend::<f64>(3, 1000).unwrap();
    lent.fill(2.5);
    let address = lent.as_ptr();
    lent.seal();
    let past = tape.get::<f64>(3).unwrap();
    assert_eq!(past.as_ptr(), address);
    drop(past);
    let past = tape.take::<f64>(3).unwrap();
    assert_eq!(past.as_ptr(), address);
    assert!(past.iter().all(|&value| value == 2.5));
    let used = |tape: &Tape| tape.stats().layers[0].used_bytes;
    assert!(used(&tape) > 0, "the slot is in the program's hands");
    drop(past);
    assert_eq!(used(&tape), 0, "and free when it is dropped");
}

#[test]
fn a_program_can_compute_from_slot_to_slot_without_any_copy() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("1 MiB").dir(scratch.path(), "64 MiB").open().unwrap();
    let mut first = tape.lend::<u32>(0, 50_000).unwrap();
    first.fill(1);
    let mut now = first.seal_and_keep();
    for step in 1..100 {
        let mut next = tape.lend::<u32>(step, 50_000).unwrap();
        next.iter_mut().zip(now.iter()).for_each(|(next, now)| *next = now + 3);
        now = next.seal_and_keep();
    }
    assert_eq!(now.key(), 99);
    drop(now);
    for step in (0..100).rev() {
        assert_eq!(*tape.take::<u32>(step).unwrap(), [1 + 3 * step as u32; 50_000]);
    }
}

#[test]
fn a_lent_slot_that_is_not_sealed_leaves_no_snapshot() {
    let mut tape = Tape::builder().host("1 MiB").open().unwrap();
    drop(tape.lend::<u8>(1, 100).unwrap());
    assert_eq!(tape.take::<u8>(1).unwrap_err().kind(), ErrorKind::Missing);
    tape.save(1, &[1u8]).unwrap();
}

#[test]
fn several_regions_make_one_snapshot() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("256 KiB").dir(scratch.path(), "8 MiB").open().unwrap();
    for step in 0..40u64 {
        let pressure = vec![step as f32; 10_001];
        let flags = vec![step as u8; 77];
        tape.save_regions(step, &[Part::new("pressure", &pressure), Part::new("flags", &flags)]).unwrap();
    }
    let mut lent = tape.lend_regions(40, &[Blank::new::<f32>("u", 33), Blank::new::<f32>("v", 44)]).unwrap();
    lent.region_mut::<f32>("u").unwrap().fill(1.0);
    let mut all = lent.all_mut::<f32>().unwrap();
    assert_eq!((all[0].len(), all[1].len(), all[0][0]), (33, 44, 1.0));
    all[1].fill(2.0);
    lent.seal();
    let past = tape.take_regions(40).unwrap();
    assert_eq!(past.region::<f32>("v").unwrap(), [2.0; 44]);
    drop(past);
    for step in (0..40u64).rev() {
        let past = tape.take_regions(step).unwrap();
        assert_eq!(past.names(), ["pressure", "flags"]);
        assert_eq!(past.region::<f32>("pressure").unwrap(), vec![step as f32; 10_001]);
        assert_eq!(past.region::<u8>("flags").unwrap(), [step as u8; 77]);
        let message = past.region::<u8>("temperature").unwrap_err().to_string();
        assert!(message.contains("pressure, flags") && message.contains("temperature"), "{message}");
    }
}

#[test]
fn every_order_gives_the_right_bytes() {
    let forward: Vec<u64> = (0..60).collect();
    let reverse: Vec<u64> = (0..60).rev().collect();
    let repeated: Vec<u64> = (0..60).flat_map(|key| [key, 59 - key]).collect();
    let cases = [
        (Order::Forward, forward.clone()),
        (Order::Reverse, reverse.clone()),
        (Order::Schedule(repeated.clone()), repeated.clone()),
        (Order::Unknown, repeated.clone()),
        // If the announced order is wrong, the results are still right, only slower.
        (Order::Forward, reverse),
        (Order::Reverse, forward),
        (Order::Schedule(vec![5, 3, 1]), repeated),
    ];
    for (order, reads) in cases {
        let scratch = tempfile::tempdir().unwrap();
        let mut tape = Tape::builder().host("1 MiB").dir(scratch.path(), "32 MiB").order(order.clone()).open().unwrap();
        for key in 0..60u64 {
            tape.save(key, &values(key as usize, length(key as usize))).unwrap();
        }
        for &key in &reads {
            let past = tape.get::<f32>(key).unwrap();
            assert_eq!(*past, values(key as usize, length(key as usize)), "{order:?}");
        }
        assert_eq!(tape.keys(), (0..60).collect::<Vec<u64>>());
        assert_within_limits(&tape);
    }
}

#[test]
fn a_read_that_breaks_the_order_is_a_miss() {
    let mut tape = Tape::builder().host("1 MiB").order(Order::Reverse).open().unwrap();
    for step in 0..10 {
        tape.save(step, &[step]).unwrap();
    }
    tape.take::<i32>(9).unwrap();
    tape.take::<i32>(8).unwrap();
    assert_eq!((tape.stats().hits, tape.stats().misses), (2, 0));
    tape.take::<i32>(2).unwrap();
    assert_eq!((tape.stats().hits, tape.stats().misses), (2, 1));
    tape.take::<i32>(1).unwrap();
    assert_eq!((tape.stats().hits, tape.stats().misses), (3, 1));
}

#[test]
fn any_plain_element_type_will_do() {
    #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone, Copy, PartialEq, Debug)]
    #[repr(C)]
    struct Particle {
        position: [f64; 3],
        charge: f64,
    }
    let mut tape = Tape::builder().host("1 MiB").open().unwrap();
    let particles = [Particle { position: [1.0, 2.0, 3.0], charge: -1.0 }; 5];
    tape.save(0, &particles).unwrap();
    tape.save(1usize, &[1u16, 2]).unwrap();
    tape.save(2u64, &[[1i64; 4]; 3]).unwrap();
    assert_eq!(*tape.take::<Particle>(0).unwrap(), particles);
    assert_eq!(*tape.take::<u16>(1).unwrap(), [1, 2]);
    let mut buffer = [[0i64; 4]; 3];
    tape.take_into(2, &mut buffer).unwrap();
    assert_eq!(buffer, [[1; 4]; 3]);
}

#[test]
fn a_slow_layer_makes_a_save_wait_and_the_wait_is_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = Arc::new(Dir::open(scratch.path(), 64 << 20, DirOptions::default()).unwrap());
    let slow = Arc::new(Throttled::new(dir, 40_000_000, 400_000_000, Duration::ZERO));
    let mut tape = Tape::builder().host("1 MiB").layer(slow).open().unwrap();
    for step in 0..20 {
        tape.save(step, &values(step, 65_536)).unwrap();
    }
    let stats = tape.stats();
    assert!(stats.wait_seconds > 0.0 && stats.wait_seconds <= stats.save_seconds, "{stats:?}");
    for step in (0..20).rev() {
        assert_eq!(*tape.take::<f32>(step).unwrap(), values(step, 65_536));
    }
}

#[test]
fn threads_share_a_tape_through_clones() {
    let scratch = tempfile::tempdir().unwrap();
    let mut producer =
        Tape::builder().host("256 KiB").dir(scratch.path(), "512 KiB").order(Order::Forward).open().unwrap();
    let mut consumer = producer.clone();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            // More than all layers can hold: saves wait until the other thread has taken some.
            for step in 0..200usize {
                producer.save(step, &values(step, 10_000)).unwrap();
                tell.send(step).unwrap();
            }
        });
        threads.spawn(move || {
            for step in told {
                assert_eq!(*consumer.take::<f32>(step).unwrap(), values(step, 10_000));
            }
        });
    });
}

#[test]
fn what_was_taken_outlives_the_tape() {
    let mut tape = Tape::builder().host("1 MiB").open().unwrap();
    tape.save(0, &[7u64; 100]).unwrap();
    let past = tape.take::<u64>(0).unwrap();
    let lent = tape.lend::<u64>(1, 10).unwrap();
    drop(tape);
    assert_eq!(*past, [7; 100]);
    lent.seal();
}

#[test]
fn helpers_can_be_few_or_many_and_pinned() {
    for helpers in [1, 2, 5] {
        let scratch = tempfile::tempdir().unwrap();
        let mut tape = Tape::builder()
            .host("512 KiB")
            .dir(scratch.path().join("a"), "1 MiB")
            .dir(scratch.path().join("b"), "64 MiB")
            .helpers(helpers)
            .helper_cores(&[0])
            .copy_threads(1)
            .open()
            .unwrap();
        round_trip(&mut tape, 100);
    }
}

#[test]
fn helpers_stay_on_the_cores_that_they_are_given() {
    let tape = Tape::builder().host("1 MiB").helpers(3).helper_cores(&[0]).open().unwrap();
    // A helper pins itself before it does anything else, but perhaps after this thread looks.
    let is_pinned = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
        let helpers: Vec<_> = statuses.filter(|status| status.starts_with("Name:\toutcrop-2\n")).collect();
        helpers.iter().any(|status| status.contains("Cpus_allowed_list:\t0\n"))
    };
    let found = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        is_pinned()
    });
    assert!(found, "no third helper on core 0");
    drop(tape);
}

#[test]
fn a_recorded_run_is_decided_the_same_way_again() {
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("run.log");
    let mut tape = Tape::builder().host("1 MiB").dir(scratch.path().join("s"), "64 MiB").log_file(&log).open().unwrap();
    round_trip(&mut tape, 100);
    drop(tape);
    let (events, divergence) = outcrop_engine::replay(&log).unwrap();
    assert_eq!(divergence, None);
    assert!(events > 400, "{events}");
    // A log with one changed decision must be rejected.
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"Drain\"", "\"Fetch\"", 1)).unwrap();
    assert!(outcrop_engine::replay(&log).unwrap().1.is_some());
}

#[test]
fn the_timeline_shows_who_did_what() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("1 MiB").dir(scratch.path().join("s"), "64 MiB").trace(true).open().unwrap();
    round_trip(&mut tape, 100);
    let file = scratch.path().join("trace.json");
    tape.write_trace(&file).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let names: std::collections::BTreeSet<_> =
        trace["traceEvents"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap()).collect();
    for name in ["compute", "save", "drain", "prefetch", "take"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    assert!(tape.write_trace(scratch.path().join("no/such/file")).is_err());
}

#[test]
fn a_second_host_layer_is_a_layer_like_any_other() {
    let host = Arc::new(Host::new(1 << 20).unwrap());
    let mut tape = Tape::builder().layer(host).host("8 MiB").open().unwrap();
    round_trip(&mut tape, 40);
    assert!(tape.stats().layers[1].written_bytes > 0);
}

#[test]
fn what_is_larger_than_memory_can_be_is_refused() {
    let mut tape = Tape::builder().host(1 << 20).pin(false).open().unwrap();
    for len in [usize::MAX, isize::MAX as usize + 1, 1 << 40] {
        let error = tape.lend::<u8>(1, len).map(drop).unwrap_err();
        assert_eq!(error.kind(), outcrop::ErrorKind::TooLarge, "{error}");
    }
    tape.save(1, &[1u8]).unwrap();
}

#[test]
fn an_anchor_keeps_the_tape_open_and_is_not_waited_for() {
    let anchor = Tape::builder().host(1 << 20).pin(false).open().unwrap().anchor();
    let half = vec![1u8; 1 << 19];
    (0..2).for_each(|key| anchor.tape().save(key, &half).unwrap());
    // Nobody else could make room, so the save is refused at once.
    let error = anchor.tape().save(2, &half).unwrap_err();
    assert_eq!(error.kind(), outcrop::ErrorKind::Full);
    let past = anchor.tape().take::<u8>(1).unwrap();
    assert_eq!(past[..], half[..]);
    drop(past);
    anchor.tape().save(2, &half).unwrap();
    // A thread that holds a slot may give it back.
    let held = anchor.tape().get::<u8>(2).unwrap();
    let other = anchor.clone();
    let waiting = std::thread::spawn(move || other.tape().take::<u8>(0).map(|past| past[0]));
    assert_eq!(waiting.join().unwrap().unwrap(), 1);
    drop(held);
}

#[test]
fn a_directory_without_a_limit_takes_everything() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("1 MiB").dir(scratch.path(), u64::MAX).open().unwrap();
    assert_eq!(tape.stats().layers[1].capacity_bytes, None);
    (0..64_u64).for_each(|step| tape.save(step, &vec![step; 1 << 14]).unwrap());
    (0..64_u64).rev().for_each(|step| assert_eq!(*tape.take::<u64>(step).unwrap(), vec![step; 1 << 14]));
}
