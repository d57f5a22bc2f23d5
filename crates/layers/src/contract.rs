//! The promises of every layer, as checks that panic with a reason. Other crates run them on their
//! own layers.
//!
//! ```
//! use std::sync::Arc;
//! use outcrop_layers::{Host, Layer, contract};
//!
//! contract::check(&|| -> Arc<dyn Layer> { Arc::new(Host::new(4 << 20).unwrap()) });
//! ```

// Most transfers have lists of one extent.
#![allow(clippy::single_range_in_vec_init)]

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
    slice::from_ref,
    sync::Arc,
    thread,
};

use crate::{ALIGN, Error, Feed, Host, Layer, Memory, Result, Transfer};

/// The smallest capacity of a layer that can be checked.
pub const CAPACITY_MIN: u64 = 4 << 20;

/// Checks every promise, each on a new layer from `make`.
pub fn check(make: &dyn Fn() -> Arc<dyn Layer>) {
    let checks: [fn(&dyn Layer); 9] = [
        round_trip,
        overwrite,
        refuses_what_is_not_its_own,
        gathers_extents,
        ends_each_transfer_once,
        goes_on_after_a_pause,
        serves_many_threads,
        serves_two_runs_at_once,
        errors_stay_with_their_transfer,
    ];
    for check in checks {
        let layer = make();
        let capacity = capacity(&*layer);
        assert!(capacity >= CAPACITY_MIN, "{}: {capacity} bytes are too few for a check", layer.name());
        check(&*layer);
    }
}

/// What was written can be read: short and long, at the start, inside, at the very end, from any
/// address in memory.
pub fn round_trip(layer: &dyn Layer) {
    let end = capacity(layer) / ALIGN * ALIGN;
    for bytes in [ALIGN, 3 * ALIGN, 128 << 10, (1 << 20) + ALIGN] {
        for (place, at) in [0, ALIGN, end / 2 / ALIGN * ALIGN, end - bytes].into_iter().enumerate() {
            let written = pattern(at ^ bytes, bytes);
            // Every other time, an unaligned address.
            let shift = place % 2;
            let mut memory = vec![0; shift];
            memory.extend(&written);
            expect(layer.write(at, &memory[shift..]), layer, "write", at, bytes);
            memory.fill(0xEE);
            expect(layer.read(at, &mut memory[shift..]), layer, "read", at, bytes);
            assert_same(&memory[shift..], &written, layer, at);
        }
    }
}

/// A range can be overwritten, and its neighbours do not change.
pub fn overwrite(layer: &dyn Layer) {
    let mut wanted = pattern(1, 16 * ALIGN);
    expect(layer.write(0, &wanted), layer, "write", 0, 16 * ALIGN);
    for (seed, first, units) in [(2, 0, 16), (3, 5, 1), (4, 6, 7), (5, 15, 1), (6, 0, 2)] {
        let bytes = pattern(seed, units * ALIGN);
        let at = first * ALIGN;
        expect(layer.write(at, &bytes), layer, "write again", at, units * ALIGN);
        wanted[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        let mut found = vec![0; wanted.len()];
        expect(layer.read(0, &mut found), layer, "read", 0, 16 * ALIGN);
        assert_same(&found, &wanted, layer, 0);
    }
}

/// Transfers that are beyond the capacity, or not aligned, are refused and change nothing.
pub fn refuses_what_is_not_its_own(layer: &dyn Layer) {
    let capacity = capacity(layer);
    let last = capacity - ALIGN;
    let wanted = pattern(7, ALIGN);
    expect(layer.write(last, &wanted), layer, "write", last, ALIGN);
    let far = u64::MAX / ALIGN * ALIGN;
    let refused =
        [(last, 2 * ALIGN), (capacity, ALIGN), (far, ALIGN), (last + 1, ALIGN), (last, 100), (last, 0), (1, ALIGN)];
    for (at, bytes) in refused {
        let mut memory = pattern(8, bytes);
        let outcomes = [("write", layer.write(at, &memory)), ("read", layer.read(at, &mut memory))];
        for (attempt, outcome) in outcomes {
            assert!(
                matches!(outcome, Err(Error::OutOfRange { .. })),
                "{}: to {attempt} {bytes} bytes at {at} of {capacity} gave {outcome:?}, not OutOfRange",
                layer.name()
            );
        }
        assert_same(&memory, &pattern(8, bytes), layer, at);
    }
    let mut found = vec![0; ALIGN as usize];
    expect(layer.read(last, &mut found), layer, "read", last, ALIGN);
    assert_same(&found, &wanted, layer, last);
}

/// One piece of memory is written to several extents, in any order, and read back with another
/// division.
pub fn gathers_extents(layer: &dyn Layer) {
    let host = host(1 << 20);
    let wanted = pattern(9, 7 * ALIGN);
    let scattered = [10 * ALIGN..12 * ALIGN, 100 * ALIGN..101 * ALIGN, 3 * ALIGN..7 * ALIGN];
    let mut script = Script::new(1);
    script.write(&host, 0, &wanted, &scattered);
    layer.run(&mut script);
    script.expect_all(layer, 1);
    let finer = [
        10 * ALIGN..11 * ALIGN,
        11 * ALIGN..12 * ALIGN,
        100 * ALIGN..101 * ALIGN,
        3 * ALIGN..4 * ALIGN,
        4 * ALIGN..7 * ALIGN,
    ];
    script.read(&host, 64 * ALIGN, 7 * ALIGN, &finer);
    layer.run(&mut script);
    let done = script.expect_all(layer, 1);
    assert_same(memory_of(&done[0]), &wanted, layer, 10 * ALIGN);
}

/// Many transfers of many lengths, more than fit in memory at once: each is reported as done
/// exactly once.
pub fn ends_each_transfer_once(layer: &dyn Layer) {
    let host = host(CAPACITY_MIN);
    let places = many_places();
    let mut script = Script::new(usize::MAX);
    for (seed, place) in places.iter().enumerate() {
        script.write(&host, place.start, &pattern(seed as u64, place.end - place.start), from_ref(place));
    }
    layer.run(&mut script);
    drop(script.expect_all(layer, places.len()));
    for place in &places {
        script.read(&host, place.start, place.end - place.start, from_ref(place));
    }
    layer.run(&mut script);
    for transfer in script.expect_all(layer, places.len()) {
        let wanted = pattern(transfer.tag - places.len() as u64, transfer.memory.bytes());
        assert_same(memory_of(&transfer), &wanted, layer, transfer.extents[0].start);
    }
    layer.run(&mut script);
    drop(script.expect_all(layer, 0));
}

/// A feed that has no transfer at present is asked again after a transfer has ended, and by the
/// next `run`.
pub fn goes_on_after_a_pause(layer: &dyn Layer) {
    let host = host(CAPACITY_MIN);
    let places = many_places();
    for under_way_max in [1, 2, 5] {
        let mut script = Script::new(under_way_max);
        for (seed, place) in places.iter().enumerate() {
            script.write(&host, place.start, &pattern(seed as u64, place.end - place.start), from_ref(place));
        }
        script.pause = true;
        layer.run(&mut script);
        assert!(script.done.is_empty(), "{}: transfers ended that the feed had not handed out", layer.name());
        script.pause = false;
        layer.run(&mut script);
        script.expect_all(layer, places.len());
    }
}

/// Several threads use separate ranges at once.
pub fn serves_many_threads(layer: &dyn Layer) {
    const THREADS: u64 = 4;
    let share = CAPACITY_MIN / THREADS;
    thread::scope(|scope| {
        for index in 0..THREADS {
            scope.spawn(move || {
                for round in 0..8 {
                    let at = index * share + round * ALIGN;
                    let wanted = pattern(index * 100 + round, 24 * ALIGN);
                    expect(layer.write(at, &wanted), layer, "write", at, 24 * ALIGN);
                    let mut found = vec![0; wanted.len()];
                    expect(layer.read(at, &mut found), layer, "read", at, 24 * ALIGN);
                    assert_same(&found, &wanted, layer, at);
                }
            });
        }
    });
}

/// Two concurrent runs, each with its own feed, do not mix.
pub fn serves_two_runs_at_once(layer: &dyn Layer) {
    let half = CAPACITY_MIN / 2;
    thread::scope(|scope| {
        for from in [0, half] {
            scope.spawn(move || {
                let host = host(half);
                let places: Vec<_> =
                    (0..16).map(|index| from + index * 8 * ALIGN..from + (index + 1) * 8 * ALIGN).collect();
                let mut script = Script::new(3);
                for place in &places {
                    script.write(&host, place.start - from, &pattern(place.start, 8 * ALIGN), from_ref(place));
                }
                layer.run(&mut script);
                drop(script.expect_all(layer, places.len()));
                for place in &places {
                    script.read(&host, place.start - from, 8 * ALIGN, from_ref(place));
                }
                layer.run(&mut script);
                for transfer in script.expect_all(layer, places.len()) {
                    let at = transfer.extents[0].start;
                    assert_same(memory_of(&transfer), &pattern(at, 8 * ALIGN), layer, at);
                }
            });
        }
    });
}

/// Transfers that cannot be carried out fail, and others do not.
pub fn errors_stay_with_their_transfer(layer: &dyn Layer) {
    let host = host(CAPACITY_MIN);
    let capacity = capacity(layer);
    let bad: [&[Range<u64>]; 5] = [
        &[capacity..capacity + 2 * ALIGN],
        &[0..ALIGN, capacity - ALIGN / 2..capacity + ALIGN / 2],
        &[0..ALIGN],
        &[0..3 * ALIGN],
        &[],
    ];
    let mut script = Script::new(usize::MAX);
    for (index, extents) in bad.into_iter().enumerate() {
        let at = (index as u64 + 1) * 32 * ALIGN;
        script.write(&host, at, &pattern(at, 4 * ALIGN), &[at..at + 4 * ALIGN]);
        script.write(&host, at + 16 * ALIGN, &pattern(at, 2 * ALIGN), extents);
        script.read(&host, at + 24 * ALIGN, 2 * ALIGN, extents);
    }
    layer.run(&mut script);
    let done = std::mem::take(&mut script.done);
    assert_eq!(done.len(), 3 * bad.len(), "{}: not every transfer was told as done", layer.name());
    for (transfer, outcome) in &done {
        let is_good = transfer.tag % 3 == 0;
        assert_eq!(outcome.is_ok(), is_good, "{}: {transfer:?} ended with {outcome:?}", layer.name());
    }
    drop(done);
    for index in 0..bad.len() as u64 {
        let at = (index + 1) * 32 * ALIGN;
        let mut found = vec![0; 4 * ALIGN as usize];
        expect(layer.read(at, &mut found), layer, "read", at, 4 * ALIGN);
        assert_same(&found, &pattern(at, 4 * ALIGN), layer, at);
    }
}

/// A feed with a list of transfers that records their results.
struct Script {
    waiting: VecDeque<Transfer>,
    /// The tags of transfers that have not ended.
    under_way: BTreeSet<u64>,
    under_way_max: usize,
    done: Vec<(Transfer, Result<()>)>,
    tag_next: u64,
    /// Whether to return no transfer at present.
    pause: bool,
}

impl Script {
    fn new(under_way_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            under_way: BTreeSet::new(),
            under_way_max,
            done: Vec::new(),
            tag_next: 0,
            pause: false,
        }
    }

    fn write(&mut self, host: &Host, memory_at: u64, bytes: &[u8], extents: &[Range<u64>]) {
        let mut slot = host.slot(memory_at, bytes.len() as u64).expect("a free place in memory");
        slot.copy_from_slice(bytes);
        self.add(Memory::Write(slot.seal()), extents);
    }

    fn read(&mut self, host: &Host, memory_at: u64, bytes: u64, extents: &[Range<u64>]) {
        let mut slot = host.slot(memory_at, bytes).expect("a free place in memory");
        slot.fill(0xEE);
        self.add(Memory::Read(slot), extents);
    }

    fn add(&mut self, memory: Memory, extents: &[Range<u64>]) {
        self.waiting.push_back(Transfer { tag: self.tag_next, extents: extents.iter().cloned().collect(), memory });
        self.tag_next += 1;
    }

    /// The transfers that have ended, if there are `count`, all succeeded and none is left.
    fn expect_all(&mut self, layer: &dyn Layer, count: usize) -> Vec<Transfer> {
        let name = layer.name();
        assert!(self.waiting.is_empty(), "{name}: run returned with {} transfers not asked for", self.waiting.len());
        assert!(self.under_way.is_empty(), "{name}: run returned without telling of {:?}", self.under_way);
        assert_eq!(self.done.len(), count, "{name}: the number of transfers that have ended");
        let ended = self.done.drain(..).map(|(transfer, outcome)| match outcome {
            Ok(()) => transfer,
            Err(error) => panic!("{name}: {transfer:?} failed: {error}"),
        });
        ended.collect()
    }
}

impl Feed for Script {
    fn next(&mut self) -> Option<Transfer> {
        if self.pause || self.under_way.len() >= self.under_way_max {
            return None;
        }
        let transfer = self.waiting.pop_front()?;
        self.under_way.insert(transfer.tag);
        Some(transfer)
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        assert!(self.under_way.remove(&transfer.tag), "{transfer:?} ended twice, or was never handed out");
        self.done.push((transfer, result));
    }
}

/// Some two hundred adjacent ranges of many lengths, in 4 MiB.
fn many_places() -> Vec<Range<u64>> {
    let lengths = [1, 2, 1, 9, 1, 3, 17, 1, 4, 1].into_iter().cycle().map(|units| units * ALIGN);
    let starts = lengths.clone().scan(0, |at, bytes| Some(std::mem::replace(at, *at + bytes)));
    starts.zip(lengths).map(|(at, bytes)| at..at + bytes).take_while(|place| place.end <= CAPACITY_MIN).collect()
}

/// The capacity of a layer. A layer without a limit cannot be checked.
fn capacity(layer: &dyn Layer) -> u64 {
    layer.capacity().unwrap_or_else(|| panic!("{}: a layer without a limit cannot be checked", layer.name()))
}

fn host(bytes: u64) -> Host {
    Host::new(bytes).expect("a little host memory")
}

fn memory_of(transfer: &Transfer) -> &[u8] {
    match &transfer.memory {
        Memory::Write(sealed) => sealed,
        Memory::Read(slot) => slot,
    }
}

/// Pseudo-random bytes that depend on the seed.
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut words = Vec::with_capacity(bytes as usize + 8);
    while (words.len() as u64) < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend(state.to_le_bytes());
    }
    words.truncate(bytes as usize);
    words
}

fn expect(outcome: Result<()>, layer: &dyn Layer, attempt: &str, at: u64, bytes: u64) {
    if let Err(error) = outcome {
        panic!("{}: to {attempt} {bytes} bytes at {at} failed: {error}", layer.name());
    }
}

fn assert_same(found: &[u8], wanted: &[u8], layer: &dyn Layer, at: u64) {
    if let Some(index) = (0..wanted.len()).find(|&index| found[index] != wanted[index]) {
        panic!(
            "{}: {} bytes at {at}: byte {index} is {:#04x} instead of {:#04x}",
            layer.name(),
            wanted.len(),
            found[index],
            wanted[index]
        );
    }
}
