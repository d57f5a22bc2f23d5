//! Persistence, checksums and arrivals: three settings, each independent of the others.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use outcrop_engine::{Arrival, Arrivals, Checksums, Error, Options};
use outcrop_plan::{Order, Preference};
use outcrop_testing::{
    layer::{FakeLayer, LayerCall, broken},
    until,
};

use crate::{BYTES, open, options, save, take};

/// A callback for arrivals that records them.
fn noted() -> (Arrivals, Arc<Mutex<Vec<Arrival>>>) {
    let list = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&list);
    (Arrivals(Arc::new(move |arrival| noted.lock().unwrap().push(arrival))), list)
}

fn persisting() -> Options {
    Options { persists: true, order: Order::Unknown, preference: Preference::Fixed, ..options() }
}

#[test]
fn every_snapshot_is_reported_once_on_every_layer_the_oldest_first() {
    let layers = [FakeLayer::new("near", 64 * BYTES), FakeLayer::new("far", 64 * BYTES)];
    let (arrivals, list) = noted();
    let mut handle = open(32, &[&layers[0], &layers[1]], &Options { arrivals: Some(arrivals), ..persisting() });
    (0..16).for_each(|key| save(&mut handle, key).unwrap());
    until("all have arrived", || list.lock().unwrap().len() >= 32);
    let list = list.lock().unwrap().clone();
    for (number, layer) in (1..).zip(&layers) {
        let keys: Vec<u64> = list.iter().filter(|arrival| arrival.layer == number).map(|arrival| arrival.key).collect();
        assert_eq!(keys, (0..16).collect::<Vec<_>>());
        assert_eq!(layer.completed(), keys);
    }
    assert!(list.len() == 32 && list.iter().all(|arrival| arrival.failure.is_none()), "{list:?}");
}

#[test]
fn a_layer_that_fails_to_take_one_snapshot_is_spared_only_that_one() {
    let near = FakeLayer::guarded("near", 64 * BYTES, |call| match call {
        LayerCall::Complete(3) => Err(broken("not flushed")),
        _ => Ok(()),
    });
    let far = FakeLayer::new("far", 64 * BYTES);
    let (arrivals, list) = noted();
    let mut handle = open(32, &[&near, &far], &Options { arrivals: Some(arrivals), ..persisting() });
    (0..8).for_each(|key| save(&mut handle, key).unwrap());
    until("all have arrived", || list.lock().unwrap().len() >= 16);
    let failed: Vec<_> = list.lock().unwrap().iter().filter(|arrival| arrival.failure.is_some()).cloned().collect();
    assert!(matches!(&failed[..], [Arrival { key: 3, layer: 1, .. }]), "{failed:?}");
    assert!(near.calls().contains(&LayerCall::Forget(3)));
    assert_eq!(far.completed(), (0..8).collect::<Vec<_>>());
}

#[test]
fn snapshots_persist_without_anybody_who_is_told() {
    let layer = FakeLayer::new("disk", 64 * BYTES);
    let mut handle = open(32, &[&layer], &persisting());
    (0..4).for_each(|key| save(&mut handle, key).unwrap());
    until("all have arrived", || layer.completed() == [0, 1, 2, 3]);
    assert!((0..4).all(|key| take(&mut handle, key).unwrap()));
}

#[test]
fn who_is_told_of_arrivals_does_not_make_snapshots_persist_or_go_unchecked() {
    let layer = FakeLayer::new("disk", 64 * BYTES);
    let (arrivals, list) = noted();
    let mut handle = open(8, &[&layer], &Options { arrivals: Some(arrivals), ..options() });
    (0..3).for_each(|key| save(&mut handle, key).unwrap());
    thread::sleep(Duration::from_millis(50));
    assert!(layer.calls().is_empty(), "what fits is not written at all");
    (3..32).for_each(|key| save(&mut handle, key).unwrap());
    until("all is quiet", || {
        let stats = handle.stats();
        stats.layers[1].writes > 0 && list.lock().unwrap().len() as u64 == stats.layers[1].writes
    });
    layer.damage();
    let below = list.lock().unwrap()[0].key;
    assert!(matches!(take(&mut handle, below), Err(Error::Damaged { .. })));
}

#[test]
fn persisting_snapshots_are_checked_if_the_engine_is_to() {
    for checksums in [Checksums::Engine, Checksums::Program] {
        let layer = FakeLayer::new("disk", 64 * BYTES);
        let mut handle = open(4, &[&layer], &Options { checksums, ..persisting() });
        (0..16).for_each(|key| save(&mut handle, key).unwrap());
        until("all have arrived", || layer.completed().len() == 16 && !handle.is_in_front(0));
        layer.damage();
        match (checksums, take(&mut handle, 0)) {
            (Checksums::Engine, Err(Error::Damaged { .. })) | (Checksums::Program, Ok(false)) => {}
            (checksums, outcome) => panic!("{checksums:?}: {outcome:?}"),
        }
    }
}

#[test]
fn a_layer_that_keeps_bytes_is_never_filled_above_its_limit() {
    const KEPT: u64 = 3;
    let layer = FakeLayer::new("shelf", 8 * BYTES);
    layer.keep(KEPT * BYTES);
    let (arrivals, list) = noted();
    let mut handle = open(16, &[&layer], &Options { arrivals: Some(arrivals), ..persisting() });
    (0..8).for_each(|key| save(&mut handle, key).unwrap());
    until("all are reported", || list.lock().unwrap().len() == 8);
    assert_eq!(layer.completed(), (0..8 - KEPT).collect::<Vec<_>>());
    let left_out: Vec<_> = list.lock().unwrap().iter().filter(|arrival| arrival.failure.is_some()).cloned().collect();
    assert_eq!(
        left_out.iter().map(|arrival| (arrival.key, arrival.layer)).collect::<Vec<_>>(),
        [(5, 1), (6, 1), (7, 1)]
    );
    assert!(left_out[0].failure.as_ref().unwrap().contains("of the limit are used"), "{left_out:?}");
    let stats = &handle.stats().layers[1];
    assert_eq!((stats.used_bytes, stats.used_bytes_max, stats.capacity_bytes), (8 * BYTES, 8 * BYTES, Some(8 * BYTES)));
    // The layer's owner has removed files.
    layer.keep(0);
    save(&mut handle, 8).unwrap();
    until("it has arrived", || layer.completed().contains(&8));
}
