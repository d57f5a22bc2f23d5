//! What a tape costs besides its layers: almost no memory, and no processor time while nothing
//! moves. Each test measures a whole process, so it runs in one of its own.

use std::{fs, time::Duration};

use outcrop::{Order, Tape};
use outcrop_testing::{alone, amount, covered, of_process};

use crate::ALLOCATOR;

const MIB: u64 = 1 << 20;

/// The processor time of this process so far, in seconds.
fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    // The name, in brackets, may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
    // User and system time, in hundredths of a second.
    (ticks(11) + ticks(12)) / 100.0
}

#[test]
fn memory_stays_within_arrays_limit_and_64_mib() {
    if alone("budget::memory_stays_within_arrays_limit_and_64_mib") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut field = vec![0u64; 8 * MIB as usize / 8];
    field.fill(1);
    let before = of_process("status", "VmRSS").unwrap() * 1024;
    let mut tape = Tape::builder().host(64 * MIB).dir(scratch.path(), "4 GiB").open().unwrap();
    for step in 0..100 {
        field[0] = step;
        tape.save(step, &field).unwrap();
    }
    for step in (0..100).rev() {
        assert_eq!(tape.take::<u64>(step).unwrap()[0], step);
    }
    let more = of_process("status", "VmHWM").unwrap() * 1024 - before;
    assert!(more <= 64 * MIB + 64 * MIB, "{} MiB more than before, for a limit of 64 MiB", more / MIB);
}

#[test]
fn a_tape_that_has_nothing_to_do_takes_no_processor_time() {
    if alone("budget::a_tape_that_has_nothing_to_do_takes_no_processor_time") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host(16 * MIB).dir(scratch.path(), "64 MiB").helpers(4).open().unwrap();
    (0..12).for_each(|step| tape.save(step, &vec![step; MIB as usize / 8]).unwrap());
    // Everything is idle.
    std::thread::sleep(Duration::from_millis(300));
    let before = processor_seconds();
    std::thread::sleep(Duration::from_secs(1));
    let used = processor_seconds() - before;
    assert!(used <= 0.1, "{used} s of processor time in a second of doing nothing");
}

/// How many bytes each of many small snapshots takes beside the layers, and how many the tape says.
/// They are saved in the order of `keys`, a few of them first.
fn bookkeeping(host: u64, order: Order, keys: &[u64]) -> (f64, f64) {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host(host).dir(scratch.path(), "8 GiB").order(order).open().unwrap();
    let mut save = |keys: &[u64]| {
        keys.iter().for_each(|key| tape.save(*key, &[*key; 512]).unwrap());
        // What is under way takes memory too.
        let mut written = None;
        while written.replace(tape.stats().layers[1].writes) != Some(tape.stats().layers[1].writes) {
            std::thread::sleep(Duration::from_millis(50));
        }
        (ALLOCATOR.bytes(), tape.stats().bookkeeping_bytes)
    };
    let (first, rest) = keys.split_at(keys.len() / 5);
    let (before, after) = (save(first), save(rest));
    covered("small snapshots of a tape", rest.len() as u64);
    let of_each = |before: u64, after: u64| (after - before) as f64 / rest.len() as f64;
    (of_each(before.0, after.0), of_each(before.1, after.1))
}

#[test]
fn a_snapshot_takes_at_most_200_bytes_beside_the_layers_and_100_more_in_memory() {
    if alone("budget::a_snapshot_takes_at_most_200_bytes_beside_the_layers_and_100_more_in_memory") {
        return;
    }
    let count = amount(24_000, 240_000);
    let ascending: Vec<u64> = (0..count).collect();
    let scattered: Vec<u64> = (0..count).map(|nth| nth * 7919 % count).collect();
    let (small, large) = (4 * MIB, 2 * count * 4096);
    for (host, order, keys, most) in [
        (small, Order::Reverse, &ascending, 200.0),
        (small, Order::Forward, &ascending, 200.0),
        (small, Order::Unknown, &scattered, 200.0),
        (small, Order::Schedule(scattered.clone()), &ascending, 200.0),
        (small, Order::Schedule(ascending.clone()), &scattered, 200.0),
        (large, Order::Reverse, &ascending, 300.0),
    ] {
        let name = format!("{order:?}").chars().take(9).collect::<String>();
        let (taken, said) = bookkeeping(host, order, keys);
        println!("{name}: {taken:.1} bytes, {said:.1} of which are counted");
        assert!(taken <= most, "{name}: {taken:.1} bytes for each snapshot");
        assert!((said - taken).abs() < 0.1 * taken, "{name}: {taken:.1} bytes are taken, and {said:.1} counted");
    }
}
