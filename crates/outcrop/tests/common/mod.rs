//! What the tests of a store's survival share: states that can be told apart, and what must be found of them afterwards.

// Each test program compiles this file for itself and uses only a part of it.
#![allow(dead_code)]

pub(crate) mod history;
pub(crate) mod trees;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use fastrand::Rng;
use outcrop::{Part, PartMut, Session};

/// What a program saves. No two saves of a test have the same stamp, so that it tells what the rest must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) stamp: u64,
    pub(crate) field: Vec<u8>,
    /// Changes its length.
    pub(crate) tail: Vec<u8>,
}

impl State {
    /// Bytes that can be compressed, with pieces that are equal.
    pub(crate) fn new(random: &mut Rng, field_bytes: usize) -> Self {
        let piece: Vec<u8> = (0..1024).map(|_| random.u8(..4)).collect();
        let field = piece.iter().copied().cycle().take(field_bytes).collect();
        Self { stamp: 0, field, tail: vec![7; 700] }
    }

    /// Computes a step: a few bytes change, or many; sometimes a region gets another length.
    pub(crate) fn step(&mut self, random: &mut Rng, stamp: u64) {
        self.stamp = stamp;
        for _ in 0..random.usize(..4) {
            let at = random.usize(..self.field.len());
            let end = self.field.len().min(at + random.usize(1..600));
            let value = random.u8(..);
            self.field[at..end].fill(value);
        }
        match random.u8(..8) {
            0 => self.field.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
            1 => self.tail.resize(random.usize(..3000), random.u8(..)),
            2 => self.tail.iter_mut().for_each(|byte| *byte ^= 3),
            _ => {}
        }
    }

    pub(crate) fn parts(&self) -> [Part<'_>; 3] {
        [Part::new("field", &self.field), Part::one("stamp", &self.stamp), Part::new("tail", &self.tail)]
    }

    /// A place for a state of this shape.
    pub(crate) fn empty(&self) -> Self {
        Self { stamp: 0, field: vec![0; self.field.len()], tail: vec![0; self.tail.len()] }
    }

    /// Restores this version into itself.
    pub(crate) fn restore(&mut self, session: &mut Session, version: u64) -> outcrop::Result<()> {
        let Self { stamp, field, tail } = self;
        let mut parts = [PartMut::one("stamp", stamp), PartMut::new("field", field), PartMut::new("tail", tail)];
        session.restore(version, &mut parts).map(drop)
    }
}

/// Says that a test cannot be carried out here; a failure where all of them must be.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("OUTCROP_TEST_ALL").is_none(), "this test must run, but {reason}");
    println!("SKIPPED: {reason}");
}

/// Set in a child: where it is to work.
const CHILD: &str = "OUTCROP_TEST_DIRECTORY";

/// Where this process is to work, if it is a child that `child` started.
pub(crate) fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// This very program again, to carry out the test `name` as a child that works in `directory`.
pub(crate) fn child(name: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, directory);
    command
}

/// Prints a line that is to be seen also when the test passes, which hides what `println` prints.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    // Who has closed the output does not want to see it.
    let _ = writeln!(std::io::stdout(), "{line}");
}
