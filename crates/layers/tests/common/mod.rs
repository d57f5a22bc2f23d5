//! What the tests of this crate share: feeds, and bytes that can be told apart.

// Each test program compiles this file for itself and uses only a part of it.
#![allow(dead_code)]

pub(crate) mod companion;
pub(crate) mod device;
pub(crate) mod group;
pub(crate) mod mounts;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use outcrop_layers::{Extents, Feed, Host, Layer, Memory, Result, Transfer};

pub(crate) const UNIT: u64 = outcrop_layers::ALIGN;

/// Bytes that are the same for the same seed only.
pub(crate) fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|index| (seed.wrapping_mul(31) ^ index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

/// A feed of one transfer after the other.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) waiting: Vec<Transfer>,
    pub(crate) done: Vec<(Transfer, Result<()>)>,
}

impl Feed for List {
    fn next(&mut self) -> Option<Transfer> {
        self.waiting.pop()
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        self.done.push((transfer, result));
    }
}

/// Writes `bytes` at `at` through `run`.
pub(crate) fn run_write(layer: &dyn Layer, host: &Host, at: u64, bytes: &[u8]) -> Result<()> {
    let mut slot = host.slot(0, bytes.len() as u64).unwrap();
    slot.copy_from_slice(bytes);
    run(layer, at, Memory::Write(slot.seal())).1
}

/// Reads `bytes` bytes at `at` through `run`.
pub(crate) fn run_read(layer: &dyn Layer, host: &Host, at: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut slot = host.slot(0, bytes).unwrap();
    slot.fill(0xEE);
    let (transfer, result) = run(layer, at, Memory::Read(slot));
    let Memory::Read(slot) = transfer.memory else { panic!("a read came back as a write") };
    result.map(|()| slot.to_vec())
}

fn run(layer: &dyn Layer, at: u64, memory: Memory) -> (Transfer, Result<()>) {
    let extents = Extents::from_iter(std::iter::once(at..at + memory.bytes()));
    let mut list = List { waiting: vec![Transfer { tag: 1, extents, memory }], ..List::default() };
    layer.run(&mut list);
    list.done.pop().expect("the transfer has ended")
}

/// Set in a child: where it is to work.
pub(crate) const CHILD: &str = "OUTCROP_TEST_DIRECTORY";

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

/// Waits for a child to end well.
pub(crate) fn expect_success(mut command: Command) {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("1 passed"), "the child found no test of that name");
}

/// The names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
