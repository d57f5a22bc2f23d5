//! What every device must do, with any driver. The tests of each kind of device run these checks.

pub(crate) mod hash;

use std::{
    collections::VecDeque,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    slice::from_ref,
    sync::Arc,
    thread,
};

use outcrop_layers::{
    Buffer, Device, DeviceLayer, Error, Feed, Host, Layer, Memory, Result, Throttled, Transfer, checksum, contract,
};

use outcrop_testing::pattern;

use crate::common::{List, UNIT};

/// A length that is not a multiple of any chunk.
pub(crate) const CAPACITY: u64 = contract::CAPACITY_MIN + 3 * UNIT;

/// A layer with all of its memory mapped.
pub(crate) fn touched(device: &Arc<dyn Device>, bytes: u64, chunk_bytes: Option<u64>) -> DeviceLayer {
    let layer = DeviceLayer::new(Arc::clone(device), bytes, chunk_bytes).unwrap();
    layer.touch(0..layer.capacity()).unwrap();
    layer
}

/// The contract, with chunks of several lengths, and throttled.
pub(crate) fn keep_the_contract(device: &Arc<dyn Device>, chunks: &[Option<u64>]) {
    for &chunk_bytes in chunks {
        contract::check(&|| Arc::new(touched(device, CAPACITY, chunk_bytes)));
    }
    contract::check(&|| {
        let layer = Arc::new(touched(device, CAPACITY, chunks[0]));
        Arc::new(Throttled::new(layer, 1 << 30, 1 << 30, std::time::Duration::from_micros(10)))
    });
}

/// Memory is mapped chunk by chunk, in any order, and cannot be used before.
pub(crate) fn map_chunk_by_chunk(device: &Arc<dyn Device>) {
    let chunk = device.granularity_bytes().max(4 * UNIT);
    let layer = DeviceLayer::new(Arc::clone(device), 3 * chunk + UNIT, Some(chunk)).unwrap();
    assert_eq!((layer.chunk_bytes(), layer.mapped_bytes()), (chunk, 0));
    let is_unmapped = |result: Result<()>| matches!(result, Err(Error::Unmapped { .. }));
    let mut bytes = pattern(1, UNIT);
    let mut buffer = device.buffer(2 * UNIT).unwrap();
    assert!(is_unmapped(layer.write(0, &bytes)));
    assert!(is_unmapped(layer.read(0, &mut bytes)));
    assert!(is_unmapped(layer.store(0, &buffer, 0, UNIT)));
    assert!(is_unmapped(layer.load(0, &mut buffer, 0, UNIT)));

    layer.touch(chunk + 1..chunk + 2).unwrap();
    layer.touch(chunk..2 * chunk).unwrap();
    assert_eq!(layer.mapped_bytes(), chunk);
    layer.write(chunk, &bytes).unwrap();
    layer.write(2 * chunk - UNIT, &bytes).unwrap();
    assert!(is_unmapped(layer.copy_in(2 * chunk - UNIT + 1, &bytes)), "its last byte is not mapped");
    assert!(is_unmapped(layer.copy_out(chunk - 1, &mut bytes)), "its first byte is not mapped");
    let host = Host::new(2 * UNIT).unwrap();
    let mut script = Script::default();
    script.read(&host, 0, 2 * UNIT, &[chunk..chunk + UNIT, 0..UNIT]);
    layer.run(&mut script);
    assert!(is_unmapped(script.done.pop().unwrap().1));

    layer.touch(0..3 * chunk + UNIT).unwrap();
    assert_eq!(layer.mapped_bytes(), 3 * chunk + UNIT);
    let mut found = vec![0; UNIT as usize];
    layer.read(2 * chunk - UNIT, &mut found).unwrap();
    assert_eq!(found, bytes, "what was there stays");
    assert!(matches!(layer.touch(0..3 * chunk + 2 * UNIT), Err(Error::OutOfRange { .. })));
}

/// Bytes are copied between host, layer and buffers at any offset, across chunks.
pub(crate) fn copy_at_any_offset(device: &Arc<dyn Device>) {
    let chunk = device.granularity_bytes().max(2 * UNIT);
    let layer = touched(device, 3 * chunk, Some(chunk));
    let mut whole = pattern(2, 3 * chunk);
    layer.copy_in(0, &whole).unwrap();
    let mut buffer = device.buffer(3 * chunk).unwrap();
    for (seed, at, offset, bytes) in [
        (3, chunk - 7, 13, 20),
        (4, 1, 0, 3 * chunk - 2),
        (5, chunk + 3, 5, chunk),
        (6, 2 * chunk - 1, 1, 1),
        (7, 9, 9, 0),
    ] {
        // From the buffer to the layer.
        let new = pattern(seed, bytes);
        buffer.write(&**device, offset, &new).unwrap();
        layer.store(at, &buffer, offset, bytes).unwrap();
        whole[at as usize..][..new.len()].copy_from_slice(&new);
        let mut found = vec![0; whole.len()];
        layer.copy_out(0, &mut found).unwrap();
        assert!(found == whole, "{bytes} bytes at {at}");
        // From the layer to the buffer, at another offset.
        let to = 3 * chunk - bytes - 1.min(3 * chunk - bytes);
        layer.load(at, &mut buffer, to, bytes).unwrap();
        let mut found = vec![0; bytes as usize];
        buffer.read(&**device, to, &mut found).unwrap();
        assert!(found == new, "{bytes} bytes from {at}");
    }
}

/// Bytes in the layer slide by any distance, up or down, over themselves and across chunks.
pub(crate) fn slide_over_itself(device: &Arc<dyn Device>) {
    const MIB: u64 = 1 << 20;
    let chunk = device.granularity_bytes().max(MIB + UNIT);
    let layer = touched(device, 4 * chunk, Some(chunk));
    let moves = [
        (MIB + 5 * UNIT..2 * chunk, UNIT),
        (0..chunk + UNIT, 3),
        (2 * chunk - UNIT..4 * chunk, 100),
        (7..2 * chunk, MIB + 8),
        (0..9, 4 * chunk - 9),
        (5..5, 9),
        (5..chunk, 5),
    ];
    for (seed, (from, to)) in (20..).zip(moves) {
        let mut whole = pattern(seed, 4 * chunk);
        layer.copy_in(0, &whole).unwrap();
        layer.slide(from.clone(), to).unwrap();
        whole.copy_within(from.start as usize..from.end as usize, to as usize);
        let mut found = vec![0; whole.len()];
        layer.copy_out(0, &mut found).unwrap();
        assert!(found == whole, "{from:?} to {to}");
    }
    assert!(matches!(layer.slide(0..2, 4 * chunk - 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(layer.slide(4 * chunk - 1..4 * chunk + 1, 0), Err(Error::OutOfRange { .. })));
    let unmapped = DeviceLayer::new(Arc::clone(device), 4 * chunk, Some(chunk)).unwrap();
    unmapped.touch(0..chunk).unwrap();
    assert!(matches!(unmapped.slide(0..UNIT, 2 * chunk), Err(Error::Unmapped { .. })));
}

/// The device computes the same checksum as the host, also across chunks, and another one after any
/// change.
pub(crate) fn sum_like_the_host(device: &Arc<dyn Device>) {
    let chunk = device.granularity_bytes().max(2 * UNIT);
    let layer = DeviceLayer::new(Arc::clone(device), 3 * chunk, Some(chunk)).unwrap();
    assert!(matches!(layer.checksum(0, 8), Err(Error::Unmapped { .. })));
    layer.touch(0..3 * chunk).unwrap();
    let mut whole = pattern(8, 3 * chunk);
    layer.copy_in(0, &whole).unwrap();
    let places = [(0, 3 * chunk), (chunk - 8, 16), (8, 2 * chunk + 3), (2 * chunk - 16, 17), (16, 5), (24, 0)];
    for (at, bytes) in places {
        let wanted = checksum(&whole[at as usize..][..bytes as usize]);
        assert_eq!(layer.checksum(at, bytes).unwrap(), wanted, "{bytes} bytes at {at}");
    }
    assert!(matches!(layer.checksum(4, 8), Err(Error::OutOfRange { .. })));
    assert!(matches!(layer.checksum(0, 3 * chunk + 1), Err(Error::OutOfRange { .. })));
    let before = layer.checksum(0, 3 * chunk).unwrap();
    whole[chunk as usize + 77] ^= 1;
    layer.copy_in(chunk + 77, &whole[chunk as usize + 77..][..1]).unwrap();
    let after = layer.checksum(0, 3 * chunk).unwrap();
    assert!(after != before && after == checksum(&whole));
}

/// Ranges that are too long, and buffers of another device, are refused and change nothing.
pub(crate) fn refuse_wrong_buffers(device: &Arc<dyn Device>, other: &Arc<dyn Device>) {
    let layer = touched(device, CAPACITY, None);
    layer.copy_in(0, &[7; 64]).unwrap();
    let mut small = device.buffer(16).unwrap();
    for (offset, bytes) in [(0, 17), (16, 1), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(matches!(layer.store(0, &small, offset, bytes), Err(Error::BufferTooSmall { .. })), "{offset} {bytes}");
        assert!(matches!(layer.load(0, &mut small, offset, bytes), Err(Error::BufferTooSmall { .. })));
    }
    assert!(matches!(small.write(&**device, 15, &[0; 2]), Err(Error::BufferTooSmall { .. })));
    assert!(matches!(layer.store(CAPACITY - 8, &small, 0, 16), Err(Error::OutOfRange { .. })));
    let mut foreign = other.buffer(64).unwrap();
    let error = layer.store(0, &foreign, 0, 64).unwrap_err();
    assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    assert!(matches!(layer.load(0, &mut foreign, 0, 64), Err(Error::OtherDevice { .. })));
    assert!(matches!(foreign.read(&**device, 0, &mut [0; 1]), Err(Error::OtherDevice { .. })));
    let mut found = [0; 64];
    layer.copy_out(0, &mut found).unwrap();
    assert_eq!(found, [7; 64]);
}

/// Many transfers are in flight at once, with a registered host layer, and each keeps its bytes.
pub(crate) fn run_many_at_once(device: &Arc<dyn Device>) {
    const COUNT: u64 = 40;
    let chunk = device.granularity_bytes().max(8 * UNIT);
    let layer = touched(device, CAPACITY, Some(chunk));
    let host = Host::new(2 * COUNT * 8 * UNIT).unwrap();
    layer.register(&host).unwrap();
    layer.register(&host).unwrap();
    assert!(!device.needs_registration() || layer.registered_bytes() == host.capacity());
    // Two extents each. If chunks are small, most of them cross the end of a chunk.
    let extents = |index: u64| {
        let at = index * 12 * UNIT;
        [at + 7 * UNIT..at + 12 * UNIT, at..at + 3 * UNIT]
    };
    let mut script = Script::default();
    for index in 0..COUNT {
        script.write(&host, index * 8 * UNIT, &pattern(index, 8 * UNIT), &extents(index));
        if index % 5 == 0 {
            script.write(&host, (COUNT + index) * 8 * UNIT, &pattern(0, UNIT), &[CAPACITY..CAPACITY + UNIT]);
        }
    }
    layer.run(&mut script);
    let (good, bad): (Vec<_>, Vec<_>) = script.done.drain(..).partition(|(_, result)| result.is_ok());
    assert_eq!((good.len(), bad.len()), (COUNT as usize, COUNT as usize / 5));
    drop((good, bad));
    for index in 0..COUNT {
        script.read(&host, (COUNT + index) * 8 * UNIT, 8 * UNIT, &extents(index));
    }
    layer.run(&mut script);
    for (transfer, result) in script.done.drain(..) {
        result.unwrap();
        let Memory::Read(slot) = &transfer.memory else { panic!("a read came back as a write") };
        let index = slot.range().start / (8 * UNIT) - COUNT;
        assert!(slot[..] == pattern(index, 8 * UNIT), "transfer {index}");
    }
}

/// Concurrent saves, restores, runs and mappings of several threads do not mix.
pub(crate) fn serve_many_threads(device: &Arc<dyn Device>) {
    const THREADS: u64 = 4;
    let share = device.granularity_bytes().max(64 * UNIT);
    let layer = &DeviceLayer::new(Arc::clone(device), THREADS * share, Some(share / 2)).unwrap();
    thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                let from = index * share;
                layer.touch(from..from + share).unwrap();
                let host = Host::new(16 * UNIT).unwrap();
                layer.register(&host).unwrap();
                let mut buffer = device.buffer(16 * UNIT).unwrap();
                for round in 0..8 {
                    let wanted = pattern(index * 100 + round, 16 * UNIT);
                    buffer.write(&**device, 0, &wanted).unwrap();
                    layer.store(from + round * UNIT, &buffer, 0, 16 * UNIT).unwrap();
                    let mut script = Script::default();
                    let place = from + round * UNIT..from + (round + 16) * UNIT;
                    script.read(&host, 0, 16 * UNIT, from_ref(&place));
                    layer.run(&mut script);
                    let (transfer, result) = script.done.pop().unwrap();
                    result.unwrap();
                    let Memory::Read(slot) = &transfer.memory else { panic!("a read came back as a write") };
                    assert!(slot[..] == wanted, "thread {index}, round {round}");
                }
            });
        }
    });
}

/// If a feed panics while copies are in flight, no memory is released early, and the layer still
/// works.
pub(crate) fn survive_a_panic_of_the_feed(device: &Arc<dyn Device>) {
    let layer = touched(device, CAPACITY, None);
    let host = Host::new(64 * UNIT).unwrap();
    layer.register(&host).unwrap();
    let mut script = Script { panic_after: Some(3), ..Script::default() };
    for index in 0..5 {
        script.write(&host, index * UNIT, &pattern(index, UNIT), &[index * UNIT..(index + 1) * UNIT]);
    }
    assert!(catch_unwind(AssertUnwindSafe(|| layer.run(&mut script))).is_err());
    drop(script);
    assert!(host.slot(0, 64 * UNIT).is_ok(), "every slot was given back");
    let mut found = vec![0; UNIT as usize];
    layer.read(2 * UNIT, &mut found).unwrap();
    assert_eq!(found, pattern(2, UNIT), "what was under way has ended");
}

/// Host memory may be dropped before the layer or after it.
pub(crate) fn let_registered_memory_go(device: &Arc<dyn Device>) {
    let layer = touched(device, CAPACITY, None);
    let host = Host::new(16 * UNIT).unwrap();
    layer.register(&host).unwrap();
    let registered_bytes = layer.registered_bytes();
    let slot = host.slot(0, UNIT).unwrap();
    drop(host);
    layer.run(&mut List::default());
    assert_eq!(layer.registered_bytes(), registered_bytes, "a slot is left");
    drop(slot);
    layer.run(&mut List::default());
    assert_eq!(layer.registered_bytes(), 0, "nobody can use it any more");
    let host = Host::new(16 * UNIT).unwrap();
    layer.register(&host).unwrap();
    drop(layer);
    assert!(host.slot(0, 16 * UNIT).is_ok());
}

/// More memory than the device has is refused at once.
pub(crate) fn refuse_more_than_there_is(device: &Arc<dyn Device>) {
    let total = device.total_bytes();
    for bytes in [total + 1, u64::MAX] {
        let error = DeviceLayer::new(Arc::clone(device), bytes, None).expect_err("more than there is");
        assert!(matches!(error, Error::DeviceFull { .. }), "{error}");
        assert!(error.to_string().contains("lower limit"), "{error}");
    }
}

/// A buffer with these bytes.
pub(crate) fn filled(device: &Arc<dyn Device>, bytes: &[u8]) -> Buffer {
    let mut buffer = device.buffer(bytes.len() as u64).unwrap();
    buffer.write(&**device, 0, bytes).unwrap();
    buffer
}

/// A feed of transfers in their order.
#[derive(Default)]
pub(crate) struct Script {
    waiting: VecDeque<Transfer>,
    pub(crate) done: Vec<(Transfer, Result<()>)>,
    /// Panics when asked for another transfer after this many.
    panic_after: Option<usize>,
}

impl Script {
    pub(crate) fn write(&mut self, host: &Host, memory_at: u64, bytes: &[u8], extents: &[Range<u64>]) {
        let mut slot = host.slot(memory_at, bytes.len() as u64).unwrap();
        slot.copy_from_slice(bytes);
        self.add(Memory::Write(slot.seal()), extents);
    }

    pub(crate) fn read(&mut self, host: &Host, memory_at: u64, bytes: u64, extents: &[Range<u64>]) {
        let mut slot = host.slot(memory_at, bytes).unwrap();
        slot.fill(0xEE);
        self.add(Memory::Read(slot), extents);
    }

    fn add(&mut self, memory: Memory, extents: &[Range<u64>]) {
        let tag = self.waiting.len() as u64;
        self.waiting.push_back(Transfer { tag, extents: extents.iter().cloned().collect(), memory });
    }
}

impl Feed for Script {
    fn next(&mut self) -> Option<Transfer> {
        match &mut self.panic_after {
            Some(0) => panic!("the feed was told to"),
            Some(left) => *left -= 1,
            None => {}
        }
        self.waiting.pop_front()
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        self.done.push((transfer, result));
    }
}
