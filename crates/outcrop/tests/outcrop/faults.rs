//! Failures: a clear error or a clean continuation, and no silent loss.

use std::{fs, path::Path, sync::Arc, time::Duration};

use outcrop::{
    Blank, Element, Error, ErrorKind, Order, Part, Tape,
    layers::{Dir, DirOptions, Fault, Faulty, Host, Layer, Method, Throttled},
};
use outcrop_testing::{Companion, answer, child_directory, listen, mount_memory, with_own_mounts};

const LEN: usize = 65_536;

fn values(step: usize) -> Vec<u64> {
    vec![step as u64 * 7 + 1; LEN]
}

/// A tape of 2 MiB host memory over a directory that can be made to fail. A snapshot has 512 KiB.
fn faulty_tape(scratch: &Path) -> (Tape, Arc<Faulty>) {
    let dir = Dir::open(scratch, 64 << 20, DirOptions::default()).unwrap();
    let faulty = Arc::new(Faulty::new(Arc::new(dir)));
    let tape = Tape::builder().host("2 MiB").layer(Arc::clone(&faulty) as Arc<dyn Layer>).open().unwrap();
    (tape, faulty)
}

/// Saves until the tape refuses a snapshot. Returns the number saved, and the error.
fn save_until_refused(tape: &mut Tape) -> (usize, Error) {
    let mut saved = 0;
    loop {
        match tape.save(saved, &values(saved)) {
            Ok(()) => saved += 1,
            Err(error) => return (saved, error),
        }
    }
}

/// Takes everything. Returns the keys that could not be read, with the errors.
fn take_all(tape: &mut Tape) -> Vec<(u64, Error)> {
    let mut failed = Vec::new();
    for key in tape.keys().into_iter().rev() {
        match tape.take::<u64>(key) {
            Ok(past) => assert_eq!(*past, values(key as usize), "wrong bytes for {key}"),
            Err(error) => failed.push((key, error)),
        }
    }
    failed
}

/// Everything below a directory.
fn entries(path: &Path) -> Vec<String> {
    fs::read_dir(path).map_or_else(
        |_| Vec::new(),
        |entries| entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect(),
    )
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("1 MiB").dir(scratch.path(), "8 MiB").open().unwrap();
    tape.save(1, &[1.0f32, 2.0]).unwrap();
    assert_eq!(tape.save(1, &[3.0f32]).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(tape.lend::<f32>(1, 4).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(tape.take::<f32>(2).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(tape.discard(2).unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(
        tape.take::<f64>(1).unwrap_err().to_string(),
        "snapshot 1 holds f32 but f64 was asked for; ask for the type that was saved"
    );
    assert_eq!(tape.take_into(1, &mut [0.0f32; 3]).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(
        tape.save(-5, &[0u8]).unwrap_err().to_string(),
        "-5 cannot be the key of a snapshot: keys are whole numbers from 0 upwards"
    );
    let too_large = tape.save(2, &vec![0u8; (1 << 20) + 1]).unwrap_err();
    assert_eq!(too_large.kind(), ErrorKind::TooLarge);
    assert!(too_large.to_string().contains("give it more host memory"), "{too_large}");
    assert_eq!(tape.lend::<u64>(3, usize::MAX / 2).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(tape.lend::<u8>(3, usize::MAX / 2).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(*tape.take::<f32>(1).unwrap(), [1.0, 2.0]);
    assert_eq!(tape.take::<f32>(1).unwrap_err().kind(), ErrorKind::Missing);
}

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C, align(1024))]
struct Aligned([u64; 128]);

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone, Copy, PartialEq, Debug)]
#[repr(C, align(8192))]
struct Overaligned([u64; 1024]);

#[test]
fn elements_of_any_alignment_and_length_are_kept_or_refused() {
    let mut tape = Tape::builder().host("1 MiB").open().unwrap();
    let aligned = [Aligned([7; 128]); 3];
    tape.save_regions(0, &[Part::new("byte", &[1u8]), Part::new("aligned", &aligned)]).unwrap();
    assert_eq!(*tape.take_regions(0).unwrap().region::<Aligned>("aligned").unwrap(), aligned);
    let mut lent = tape.lend_regions(1, &[Blank::new::<u8>("byte", 1), Blank::new::<Aligned>("aligned", 3)]).unwrap();
    lent.region_mut::<Aligned>("aligned").unwrap().copy_from_slice(&aligned);
    lent.seal();
    assert_eq!(*tape.take_regions(1).unwrap().region::<Aligned>("aligned").unwrap(), aligned);

    let over = [Overaligned([7; 1024]); 2];
    tape.save(2, &over).unwrap();
    tape.save_regions(3, &[Part::new("byte", &[1u8]), Part::new("over", &over)]).unwrap();
    for error in [
        tape.lend::<Overaligned>(4, 1).map(drop).unwrap_err(),
        tape.get::<Overaligned>(2).map(drop).unwrap_err(),
        tape.get_regions(3).unwrap().region::<Overaligned>("over").map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains("aligned to 8192 bytes"), "{error}");
    }

    let twelve = [0u8; 12];
    for (element, bytes, word) in [
        (Element::of::<f64>(), &twelve[..], "12 bytes"),
        (Element::other("nothing", 0), &twelve[..], "0 bytes"),
        (Element::other("nothing", 0), &[], "0 bytes"),
        (Element::other("huge", usize::MAX), &twelve[..], "12 bytes"),
    ] {
        let error = tape.save_regions(5, &[Part::of("x", element.clone(), bytes)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains(word), "{element:?}: {error}");
    }
    assert_eq!(tape.keys(), [2, 3]);
}

#[test]
fn nothing_is_a_snapshot_too() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("16 KiB").dir(scratch.path(), "1 MiB").open().unwrap();
    for step in 0..100 {
        tape.save::<f32>(step, &[]).unwrap();
    }
    for step in (0..100).rev() {
        assert!(tape.take::<f32>(step).unwrap().is_empty());
    }
}

#[test]
fn stacks_that_cannot_work_say_why() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "x").unwrap();
    let message = |builder: outcrop::TapeBuilder| builder.open().unwrap_err().to_string();
    assert!(message(Tape::builder()).contains("host = \"2 GiB\""));
    assert!(message(Tape::builder().dir(scratch.path().join("d"), "1 MiB")).contains("host memory"));
    assert!(message(Tape::builder().host("2 gigs")).contains("2 gigs"));
    assert!(message(Tape::builder().host("0")).contains("above 0"));
    assert!(message(Tape::builder().host("1 EiB")).contains("lower limit"));
    assert!(message(Tape::builder().host("1 MiB").dir(&file, "1 MiB")).contains("file"));
    assert!(message(Tape::builder().host("1 MiB").dir("/proc/outcrop", "1 MiB")).contains("/proc/outcrop"));
    let shared_below = Tape::builder().host("2 MiB").shared_host("below", "4 MiB", "4 MiB");
    assert!(message(shared_below).contains("shared host below is below other host memory"));
    let many = (0..17).fold(Tape::builder(), |builder, _| builder.host("1 MiB"));
    assert!(message(many).contains("17 layers"));
    assert_eq!(entries(scratch.path()), ["file"], "failed attempts leave nothing behind");
}

#[test]
fn when_everything_is_full_a_lone_program_is_told_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("2 MiB").dir(scratch.path(), "2 MiB").open().unwrap();
    let (saved, error) = save_until_refused(&mut tape);
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("2097152 bytes"), "{error}");
    assert!(saved >= 6, "only {saved} of 8 possible");
    assert!(take_all(&mut tape).is_empty());
    tape.save(99, &values(99)).unwrap();
}

#[test]
fn a_program_that_holds_all_slots_is_told_after_its_patience() {
    let mut tape = Tape::builder().host("1 MiB").patience(Duration::from_millis(50)).open().unwrap();
    tape.save(0, &values(0)).unwrap();
    tape.save(1, &values(1)).unwrap();
    let held = (tape.take::<u64>(0).unwrap(), tape.get::<u64>(1).unwrap());
    let error = tape.save(2, &values(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(error.to_string().contains("2 slots"), "{error}");
    drop(held);
    tape.save(2, &values(2)).unwrap();
    assert!(take_all(&mut tape).is_empty());
}

#[test]
fn a_wait_that_turns_hopeless_while_the_disk_works_ends_too() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = Dir::open(scratch.path(), 1 << 20, DirOptions::default()).unwrap();
    let slow = Arc::new(Throttled::new(Arc::new(dir), 4_000_000, 400_000_000, Duration::ZERO));
    let patience = Duration::from_millis(50);
    let mut tape = Tape::builder().host("1 MiB").layer(slow).patience(patience).open().unwrap();
    tape.save(0, &values(0)).unwrap();
    tape.save(1, &values(1)).unwrap();
    let held = tape.get::<u64>(1).unwrap();
    // The first one drains, slowly, and makes room. After that only the program could make room.
    tape.save(2, &values(2)).unwrap();
    let also_held = tape.get::<u64>(2).unwrap();
    assert_eq!(tape.save(3, &values(3)).unwrap_err().kind(), ErrorKind::Held);
    drop((held, also_held));
    assert!(take_all(&mut tape).is_empty());
}

#[test]
fn a_disk_that_fails_in_the_middle_loses_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut tape, faulty) = faulty_tape(scratch.path());
    faulty.inject(Fault::WriteFails, 5, None);
    let (saved, error) = save_until_refused(&mut tape);
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("has failed"), "the user sees the disk's error: {error}");
    assert!(tape.stats().layers[1].fault.is_some());
    assert_eq!(tape.keys().len(), saved);
    assert!(take_all(&mut tape).is_empty());
}

#[test]
fn another_layer_takes_over_when_one_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = |name: &str| Arc::new(Dir::open(&scratch.path().join(name), 64 << 20, DirOptions::default()).unwrap());
    for fault in [Fault::WriteFails, Fault::WriteFull] {
        let faulty = Arc::new(Faulty::new(dir("first")));
        faulty.inject(fault, 3, None);
        let mut tape = Tape::builder().host("2 MiB").layer(faulty).layer(dir("second")).open().unwrap();
        for step in 0..30 {
            tape.save(step, &values(step)).unwrap();
        }
        let stats = tape.stats();
        assert!(stats.layers[1].fault.is_some() && stats.layers[2].written_bytes > 0, "{fault:?}");
        assert!(take_all(&mut tape).is_empty());
    }
}

#[test]
fn a_full_disk_is_used_up_to_where_it_is_full() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut tape, faulty) = faulty_tape(scratch.path());
    faulty.inject(Fault::WriteFull, 6, None);
    let saved = (0..40).take_while(|&step| tape.save(step, &values(step)).is_ok()).count();
    assert!((8..=12).contains(&saved), "{saved}");
    faulty.clear();
    // A take frees extents that were written before. They can be used again.
    for key in (saved as u64 - 4..saved as u64).rev() {
        tape.take::<u64>(key).unwrap();
    }
    for step in 100..103 {
        tape.save(step, &values(step)).unwrap();
    }
    assert!(take_all(&mut tape).is_empty());
}

#[test]
fn a_disk_that_is_smaller_than_its_limit_loses_nothing() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=8m");
        let options = DirOptions { segment_bytes: 1 << 20, ..DirOptions::default() };
        let mut tape = Tape::builder().host("2 MiB").dir_with(path, "64 MiB", options).open().unwrap();
        let (saved, error) = save_until_refused(&mut tape);
        assert!(saved >= 14, "{saved} of some 18 that have room");
        assert!(error.kind() == ErrorKind::Full && error.to_string().contains("no space left"), "{error}");
        assert!(take_all(&mut tape).is_empty());
        drop(tape);
        assert!(entries(path).is_empty());
    });
}

#[test]
fn a_read_that_fails_once_is_tried_again() {
    let scratch = tempfile::tempdir().unwrap();
    for fault in [Fault::ReadFails, Fault::ReadFlipsBit] {
        let (mut tape, faulty) = faulty_tape(scratch.path());
        for step in 0..20 {
            tape.save(step, &values(step)).unwrap();
        }
        faulty.inject(fault, 2, Some(1));
        assert!(take_all(&mut tape).is_empty(), "{fault:?}");
        assert_eq!(faulty.faults(), 1);
    }
}

#[test]
fn bytes_that_cannot_be_read_are_reported_and_stay_listed() {
    let scratch = tempfile::tempdir().unwrap();
    let (mut tape, faulty) = faulty_tape(scratch.path());
    for step in 0..20 {
        tape.save(step, &values(step)).unwrap();
    }
    faulty.inject(Fault::ReadFails, 0, None);
    let failed = take_all(&mut tape);
    assert!(failed.len() > 10, "{failed:?}");
    assert!(failed.iter().all(|(_, error)| error.kind() == ErrorKind::Storage), "{failed:?}");
    assert_eq!(tape.keys().len(), failed.len());
    faulty.clear();
    assert!(take_all(&mut tape).is_empty(), "when the disk is back, so are they");
}

#[test]
fn changed_bytes_are_never_handed_over() {
    for fault in [Fault::WriteFlipsBit, Fault::WriteTorn, Fault::WriteLost] {
        let scratch = tempfile::tempdir().unwrap();
        let (mut tape, faulty) = faulty_tape(scratch.path());
        // These extents contain bytes of other snapshots, so a lost write leaves plausible bytes.
        for step in 0..10 {
            tape.save(step, &values(step)).unwrap();
        }
        assert!(take_all(&mut tape).is_empty());
        faulty.inject(fault, 2, Some(1));
        for step in 100..120 {
            tape.save(step, &values(step)).unwrap();
        }
        let failed = take_all(&mut tape);
        assert_eq!(failed.len(), 1, "{fault:?}: {failed:?}");
        assert_eq!(failed[0].1.kind(), ErrorKind::Damaged);
        assert!(failed[0].1.to_string().contains(&format!("snapshot {}", failed[0].0)));
    }
}

#[test]
fn a_segment_that_somebody_overwrites_is_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("2 MiB").dir(scratch.path(), "64 MiB").order(Order::Unknown).open().unwrap();
    for step in 0..20 {
        tape.save(step, &values(step)).unwrap();
    }
    let own = scratch.path().join(&entries(scratch.path())[0]);
    let segment = own.join("segment-00000");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let failed = take_all(&mut tape);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].1.kind(), ErrorKind::Damaged);
}

#[test]
fn damage_on_the_way_between_two_directories_is_noticed() {
    let scratch = tempfile::tempdir().unwrap();
    let first = Dir::open(&scratch.path().join("a"), 2 << 20, DirOptions::default()).unwrap();
    let faulty = Arc::new(Faulty::new(Arc::new(first)));
    let mut tape = Tape::builder()
        .host("2 MiB")
        .layer(Arc::clone(&faulty) as Arc<dyn Layer>)
        .dir(scratch.path().join("b"), "64 MiB")
        .open()
        .unwrap();
    faulty.inject(Fault::ReadFlipsBit, 3, Some(1));
    for step in 0..30 {
        tape.save(step, &values(step)).unwrap();
    }
    assert!(take_all(&mut tape).is_empty(), "one flipped bit is read again");
    assert_eq!(faulty.faults(), 1);
}

#[test]
fn dropping_a_tape_leaves_no_file_also_after_a_panic() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("made/by/the/tape");
    for method in [Method::Uring, Method::Blocking] {
        let open = || {
            let options = DirOptions { method: Some(method), ..DirOptions::default() };
            Tape::builder().host("2 MiB").dir_with(&path, "64 MiB", options).open().unwrap()
        };
        let mut tape = open();
        (0..20).for_each(|step| tape.save(step, &values(step)).unwrap());
        assert!(!entries(&path).is_empty());
        drop(tape);
        assert!(entries(&path).is_empty());
        let outcome = std::panic::catch_unwind(|| {
            let mut tape = open();
            (0..20).for_each(|step| tape.save(step, &values(step)).unwrap());
            panic!("in the user's loop");
        });
        assert!(outcome.is_err());
        assert!(entries(&path).is_empty());
    }
}

#[test]
fn two_programs_share_a_directory_and_a_killed_one_is_cleaned_up_after() {
    if let Some(path) = child_directory() {
        let mut tape = Tape::builder().host("2 MiB").dir(path, "64 MiB").open().unwrap();
        (0..20).for_each(|step| tape.save(step, &values(step)).unwrap());
        answer("ready");
        listen();
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let name = "faults::two_programs_share_a_directory_and_a_killed_one_is_cleaned_up_after";
    let mut companion = Companion::start(name, scratch.path());
    companion.expect("ready");
    let mut tape = Tape::builder().host("2 MiB").dir(scratch.path(), "64 MiB").open().unwrap();
    (0..20).for_each(|step| tape.save(step, &values(step)).unwrap());
    assert_eq!(entries(scratch.path()).len(), 2, "the running program keeps its files");
    assert!(take_all(&mut tape).is_empty());
    companion.kill();
    drop(tape);
    assert_eq!(entries(scratch.path()).len(), 1, "a killed program leaves its files");
    drop(Tape::builder().host("2 MiB").dir(scratch.path(), "64 MiB").open().unwrap());
    assert!(entries(scratch.path()).is_empty(), "the next one removes them");
}

/// A layer with a bug.
struct Panicking(Host);

impl Layer for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn capacity(&self) -> Option<u64> {
        Layer::capacity(&self.0)
    }

    fn write(&self, _: u64, _: &[u8]) -> outcrop::layers::Result<()> {
        panic!("a mistake in a layer")
    }

    fn read(&self, _: u64, _: &mut [u8]) -> outcrop::layers::Result<()> {
        panic!("a mistake in a layer")
    }
}

#[test]
fn a_layer_that_panics_does_not_hang_the_program() {
    let layer = Arc::new(Panicking(Host::new(64 << 20).unwrap()));
    let mut tape = Tape::builder().host("2 MiB").layer(layer).open().unwrap();
    let error = (0..100).find_map(|step| tape.save(step, &values(step)).err()).unwrap();
    assert!(error.to_string().contains("panicked"), "{error}");
}
