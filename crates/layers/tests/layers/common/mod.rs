//! Shared by the tests of this crate: feeds, and single transfers.

use outcrop_layers::{Extents, Feed, Host, Layer, Memory, Result, Transfer};

pub(crate) const UNIT: u64 = outcrop_layers::ALIGN;

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
