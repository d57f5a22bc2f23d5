//! The statistics of an engine.

use outcrop_engine::{SpanKind, replay};
use outcrop_testing::{layer::FakeLayer, until};

use crate::{BYTES, open, options, save, take};

#[test]
fn bytes_calls_and_hits_are_counted() {
    let layer = FakeLayer::new("disk", 64 * BYTES);
    let mut handle = open(4, &[&layer], &options());
    (0..12).for_each(|key| save(&mut handle, key).unwrap());
    until("all is quiet", || handle.stats().layers[1].writes == layer.completed().len() as u64);
    (0..12).rev().for_each(|key| assert!(take(&mut handle, key).unwrap()));
    let stats = handle.stats();
    assert_eq!((stats.saves, stats.saved_bytes, stats.reads), (12, 12 * BYTES, 12));
    assert_eq!((stats.hits + stats.late + stats.misses, stats.waiting), (12, 0));
    let [host, disk] = &stats.layers[..] else { panic!("{stats:?}") };
    assert_eq!((host.capacity_bytes, host.used_bytes, host.used_bytes_max), (Some(4 * BYTES), 0, 4 * BYTES));
    assert_eq!((disk.capacity_bytes, disk.used_bytes, disk.name.as_str()), (Some(64 * BYTES), 0, "disk"));
    assert_eq!((disk.written_bytes, disk.read_bytes), (disk.writes * BYTES, disk.reads * BYTES));
    assert!(disk.reads >= 8 && disk.writes >= 8 && host.hits >= 4, "{stats:?}");
    assert_eq!((disk.write_preference, host.write_preference), (Some(1), None));
    assert!(disk.write_seconds > 0.0 && disk.read_seconds > 0.0 && stats.move_seconds > 0.0);
}

#[test]
fn a_recorded_engine_can_be_decided_again_and_has_a_timeline() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let options = outcrop_engine::Options { log: Some(log.clone()), is_traced: true, ..options() };
    let mut handle = open(4, &[&FakeLayer::new("disk", 64 * BYTES)], &options);
    (0..12).for_each(|key| save(&mut handle, key).unwrap());
    (0..12).rev().for_each(|key| assert!(take(&mut handle, key).unwrap()));
    let kinds: Vec<_> = handle.trace().spans().iter().map(|span| span.kind).collect();
    assert!([SpanKind::Save, SpanKind::Take, SpanKind::Drain].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    drop(handle);
    let (events, divergence) = replay(&log).unwrap();
    assert!(events > 24 && divergence.is_none(), "{events} {divergence:?}");
}
