//! One host memory for several processes: each can use what the others do not use.

use std::{path::Path, sync::Arc};

use outcrop::{
    ErrorKind, Tape,
    layers::{Host, Layer},
};
use outcrop_testing::{Companion, answer, child_directory, listen};

const MIB: u64 = 1 << 20;
const LEN: usize = 8 * MIB as usize / size_of::<u64>();

/// 256 MiB for all, of which one process may have 192, over a directory.
fn tape(meet: &Path, dir: &Path) -> Tape {
    let host = Host::shared_in(meet, "tape", 256 * MIB, 192 * MIB).unwrap();
    Tape::builder().layer(Arc::new(host) as Arc<dyn Layer>).dir(dir, "4 GiB").open().unwrap()
}

fn values(step: u64) -> Vec<u64> {
    vec![step ^ 0x5EED; LEN]
}

fn in_use(tape: &Tape) -> u64 {
    tape.stats().layers[0].memory.unwrap().touched_bytes
}

/// Another process with a tape of its own. It follows commands (`save N`, `take N`), and answers
/// with the size of its memory.
struct Other(Companion);

impl Other {
    fn start(meet: &Path) -> Self {
        Self(Companion::start("shared::other_process", meet))
    }

    fn tell(&mut self, words: &str) -> u64 {
        self.0.ask(words).parse().unwrap()
    }

    fn kill(self) {
        self.0.kill();
    }
}

/// The other process. It does nothing unless it is started as a companion.
#[test]
fn other_process() {
    let Some(meet) = child_directory() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let mut tape = tape(&meet, scratch.path());
    while let Some(line) = listen() {
        let (verb, count) = line.split_once(' ').unwrap();
        let steps = 0..count.parse().unwrap();
        match verb {
            "save" => steps.for_each(|step| tape.save(step, &values(step)).unwrap()),
            _ => steps.rev().for_each(|step| assert_eq!(*tape.take::<u64>(step).unwrap(), values(step))),
        }
        answer(in_use(&tape));
    }
}

#[test]
fn what_one_process_does_not_use_is_there_for_another() {
    let (meet, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut mine = tape(meet.path(), scratch.path());
    let mut other = Other::start(meet.path());
    // The other process takes as much as one may.
    assert!(other.tell("save 40") > 160 * MIB);
    (0..20).for_each(|step| mine.save(step, &values(step)).unwrap());
    assert!(in_use(&mine) <= 96 * MIB, "no more than is left: {}", in_use(&mine));
    (0..20).rev().for_each(|step| assert_eq!(*mine.take::<u64>(step).unwrap(), values(step)));
    // When it does not need the memory any more, this process can have it.
    assert!(other.tell("take 40") < 96 * MIB);
    (0..20).for_each(|step| mine.save(step, &values(step)).unwrap());
    assert!(in_use(&mine) > 128 * MIB, "{}", in_use(&mine));
    (0..20).rev().for_each(|step| assert_eq!(*mine.take::<u64>(step).unwrap(), values(step)));
    other.kill();
}

#[test]
fn the_memory_of_a_process_that_is_killed_is_there_for_another() {
    let (meet, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut mine = tape(meet.path(), scratch.path());
    let mut other = Other::start(meet.path());
    assert!(other.tell("save 40") > 160 * MIB);
    other.kill();
    (0..20).for_each(|step| mine.save(step, &values(step)).unwrap());
    assert!(in_use(&mine) > 128 * MIB, "{}", in_use(&mine));
    (0..20).rev().for_each(|step| assert_eq!(*mine.take::<u64>(step).unwrap(), values(step)));
}

#[test]
fn a_process_cannot_have_more_than_its_share() {
    let meet = tempfile::tempdir().unwrap();
    let host = Host::shared_in(meet.path(), "alone", 256 * MIB, 32 * MIB).unwrap();
    let mut tape = Tape::builder().layer(Arc::new(host) as Arc<dyn Layer>).open().unwrap();
    let refused = (0..5).find_map(|step| tape.save(step, &values(step)).err());
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::Full));
    assert_eq!(tape.keys(), [0, 1, 2, 3]);
}
