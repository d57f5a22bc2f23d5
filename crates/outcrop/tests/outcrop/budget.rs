//! What a tape costs besides its layers: almost no memory, and no processor time while nothing
//! moves. Each test measures a whole process, so it runs in one of its own.

use std::{fs, time::Duration};

use outcrop::Tape;
use outcrop_testing::{alone, of_process};

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
