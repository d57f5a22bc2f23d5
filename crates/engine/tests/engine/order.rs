//! The order in which moves are served.

use std::thread::{self, JoinHandle};

use outcrop_engine::{Error, Handle, Options};
use outcrop_plan::Order;
use outcrop_testing::{
    layer::{FakeLayer, Gate, LayerCall},
    until,
};

use crate::{BYTES, open, options, save};

#[test]
fn fetches_are_served_first_come_first_served() {
    const READERS: u64 = 6;
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let layer = FakeLayer::guarded("disk", 64 * BYTES, move |call| {
        if let LayerCall::Read(_) = call {
            at_gate.pass();
        }
        Ok(())
    });
    let mut handle = open(8, &[&layer], &Options { order: Order::Unknown, ..options() });
    (0..16).for_each(|key| save(&mut handle, key).unwrap());
    until("the first ones are below", || (0..READERS).all(|key| !handle.is_in_front(key)));
    let readers: Vec<_> = (0..READERS)
        .map(|key| {
            let mut reading = handle.clone();
            let reader = thread::spawn(move || drop(reading.read::<Error>(key, true, |_| Ok(())).unwrap()));
            until("it waits", || u64::from(handle.stats().waiting) == key + 1);
            reader
        })
        .collect();
    gate.open();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let written = layer.calls().into_iter().filter_map(|call| match call {
        LayerCall::Write(range) => Some(range),
        _ => None,
    });
    let read = layer.calls().into_iter().filter_map(|call| match call {
        LayerCall::Read(range) => Some(range),
        _ => None,
    });
    let asked: Vec<_> = written.take(READERS as usize).collect();
    assert_eq!(read.collect::<Vec<_>>(), asked, "in the order in which they were asked for");
}

#[test]
fn a_fetch_comes_before_what_waits_to_be_drained_or_prefetched() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let layer = FakeLayer::guarded("disk", 64 * BYTES, move |call| {
        if let LayerCall::Read(_) = call {
            at_gate.pass();
        }
        Ok(())
    });
    let mut handle = open(4, &[&layer], &options());
    (0..16).for_each(|key| save(&mut handle, key).unwrap());
    until("the first one is below", || !handle.is_in_front(0));
    // The reverse order announces 15, 14, ...: these are prefetched as room is made for them.
    for key in (12..16).rev() {
        drop(handle.read::<Error>(key, true, |_| Ok(())).unwrap());
    }
    gate.until_waiting(1);
    let mut reading = handle.clone();
    let reader = thread::spawn(move || drop(reading.read::<Error>(0, true, |_| Ok(())).unwrap()));
    until("it waits", || handle.stats().waiting == 1);
    gate.open();
    reader.join().unwrap();
    let reads: Vec<_> = layer.calls().into_iter().filter(|call| matches!(call, LayerCall::Read(_))).collect();
    let first_write = layer.calls().into_iter().find_map(|call| match call {
        LayerCall::Write(range) => Some(LayerCall::Read(range)),
        _ => None,
    });
    let place = reads.iter().position(|read| Some(read) == first_write.as_ref()).unwrap();
    assert_eq!(place, 1, "only what was under way came before it: {reads:?}");
}

/// Lets one thread for each key read, one after the other.
fn read_all(handle: &Handle, keys: impl Iterator<Item = u64>) -> Vec<JoinHandle<()>> {
    let reader = |key| {
        let (mut reading, waiting) = (handle.clone(), handle.stats().waiting);
        let reader = thread::spawn(move || drop(reading.read::<Error>(key, true, |_| Ok(())).unwrap()));
        until("it waits", || handle.stats().waiting == waiting + 1);
        reader
    };
    keys.map(reader).collect()
}

#[test]
fn a_drain_has_its_turn_while_fetches_keep_coming() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let disk = FakeLayer::guarded("disk", 256 * BYTES, move |call| {
        if let LayerCall::Read(_) = call {
            at_gate.pass();
        }
        Ok(())
    });
    let mut handle = open(64, &[&disk], &Options { order: Order::Unknown, ..options() });
    (0..96).for_each(|key| save(&mut handle, key).unwrap());
    until("half of the front is clean", || handle.stats().layers[1].writes >= 64);
    assert!((0..20).all(|key| !handle.is_in_front(key)));
    let readers = read_all(&handle, 0..20);
    let calls_before = disk.calls().len();
    // These make more than half of the front dirty, or wait for room: something has to sink.
    let mut saving = handle.clone();
    let saver = thread::spawn(move || (100..140).for_each(|key| save(&mut saving, key).unwrap()));
    until("they are saved, or wait", || saver.is_finished() || handle.stats().waiting > 20);
    gate.open();
    saver.join().unwrap();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let later = || disk.calls().into_iter().skip(calls_before);
    let is_write = |call: LayerCall| matches!(call, LayerCall::Write(_));
    until("something has sunk", || later().any(is_write));
    let is_read = |call: &LayerCall| matches!(call, LayerCall::Read(_));
    let reads = later().take_while(|call| !matches!(call, LayerCall::Write(_))).filter(is_read).count();
    assert!(reads <= 8, "{reads} fetches came before the first drain");
}
