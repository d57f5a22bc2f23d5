//! Every fault has its effect, and the contract detects each of them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outcrop_layers::{Error, Fault, Faulty, Host, Layer, Throttled, contract};
use outcrop_testing::pattern;

use crate::common::{UNIT, run_read, run_write};

const ALL: [Fault; 7] = [
    Fault::WriteFails,
    Fault::WriteFull,
    Fault::WriteTorn,
    Fault::WriteLost,
    Fault::WriteFlipsBit,
    Fault::ReadFails,
    Fault::ReadFlipsBit,
];

fn faulty() -> Faulty {
    Faulty::new(Arc::new(Host::new(contract::CAPACITY_MIN).unwrap()))
}

fn read(layer: &dyn Layer, bytes: u64) -> Vec<u8> {
    let mut found = vec![0; bytes as usize];
    layer.read(0, &mut found).unwrap();
    found
}

fn bits_changed(one: &[u8], other: &[u8]) -> u32 {
    one.iter().zip(other).map(|(one, other)| (one ^ other).count_ones()).sum()
}

#[test]
fn failing_operations_change_nothing() {
    let layer = faulty();
    let old = pattern(1, 4 * UNIT);
    layer.write(0, &old).unwrap();
    layer.inject(Fault::WriteFails, 0, Some(1));
    layer.inject(Fault::WriteFull, 1, Some(1));
    assert!(matches!(layer.write(0, &pattern(2, 4 * UNIT)), Err(Error::Broken { .. })));
    let full = layer.write(0, &pattern(2, 4 * UNIT)).unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(full.to_string().contains("faulty host"), "{full}");
    assert_eq!(read(&layer, 4 * UNIT), old);
    layer.inject(Fault::ReadFails, 0, Some(1));
    let mut memory = vec![9; UNIT as usize];
    assert!(matches!(layer.read(0, &mut memory), Err(Error::Broken { .. })));
    assert!(memory.iter().all(|&byte| byte == 9));
    assert_eq!(layer.faults(), 3);
}

#[test]
fn torn_and_lost_writes_report_success() {
    let layer = faulty();
    let (old, new) = (pattern(1, 4 * UNIT), pattern(2, 4 * UNIT));
    layer.write(0, &old).unwrap();
    layer.inject(Fault::WriteTorn, 0, Some(1));
    layer.write(0, &new).unwrap();
    let half = 2 * UNIT as usize;
    assert_eq!(read(&layer, 4 * UNIT), [&new[..half], &old[half..]].concat());
    layer.inject(Fault::WriteLost, 0, Some(1));
    layer.write(0, &pattern(3, 4 * UNIT)).unwrap();
    assert_eq!(read(&layer, 4 * UNIT), [&new[..half], &old[half..]].concat());
    layer.inject(Fault::WriteTorn, 0, Some(1));
    layer.write(0, &old[..UNIT as usize]).unwrap();
    assert_eq!(read(&layer, UNIT), &new[..UNIT as usize], "of a single unit nothing arrives");
}

#[test]
fn a_bit_flips_on_the_medium_or_on_the_way_back() {
    let layer = faulty();
    let wanted = pattern(1, 4 * UNIT);
    layer.inject(Fault::WriteFlipsBit, 0, Some(1));
    layer.write(0, &wanted).unwrap();
    assert_eq!(bits_changed(&read(&layer, 4 * UNIT), &wanted), 1);
    assert_eq!(bits_changed(&read(&layer, 4 * UNIT), &wanted), 1, "it stays changed");
    layer.write(0, &wanted).unwrap();
    layer.inject(Fault::ReadFlipsBit, 0, Some(1));
    assert_eq!(bits_changed(&read(&layer, 4 * UNIT), &wanted), 1);
    assert_eq!(read(&layer, 4 * UNIT), wanted, "what is stored is whole");
}

#[test]
fn faults_come_when_and_as_often_as_told() {
    let layer = faulty();
    let bytes = pattern(1, UNIT);
    layer.inject(Fault::WriteFails, 2, Some(2));
    let outcomes: Vec<bool> = (0..6).map(|_| layer.write(0, &bytes).is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, false, true, true]);
    layer.inject(Fault::WriteFails, 0, None);
    assert!((0..20).all(|_| layer.write(0, &bytes).is_err()));
    assert_eq!(read(&layer, UNIT), bytes, "reads are not concerned");
    layer.clear();
    layer.write(0, &bytes).unwrap();
    assert_eq!((layer.writes(), layer.reads(), layer.faults()), (27, 1, 22));
}

#[test]
fn faults_strike_once_among_threads() {
    let layer = faulty();
    layer.inject(Fault::WriteFails, 10, Some(7));
    thread::scope(|scope| {
        for index in 0..4 {
            let layer = &layer;
            scope.spawn(move || (0..25).filter(|_| layer.write(index * UNIT, &pattern(1, UNIT)).is_err()).count());
        }
    });
    assert_eq!((layer.writes(), layer.faults()), (100, 7));
}

#[test]
fn transfers_of_run_meet_faults_too() {
    let (layer, host) = (faulty(), Host::new(1 << 20).unwrap());
    layer.inject(Fault::WriteFails, 0, Some(1));
    assert!(run_write(&layer, &host, 0, &pattern(1, UNIT)).is_err());
    run_write(&layer, &host, 0, &pattern(1, UNIT)).unwrap();
    layer.inject(Fault::ReadFlipsBit, 0, Some(1));
    assert_eq!(bits_changed(&run_read(&layer, &host, 0, UNIT).unwrap(), &pattern(1, UNIT)), 1);
}

#[test]
fn the_contract_notices_every_fault() {
    for fault in ALL {
        let broken = catch_unwind(AssertUnwindSafe(|| {
            contract::check(&|| {
                let layer = faulty();
                layer.inject(fault, 3, Some(1));
                Arc::new(layer)
            });
        }));
        assert!(broken.is_err(), "{fault:?} went unnoticed");
    }
}

/// The only guarantee about time: a throttled layer is never faster than its rate.
#[test]
fn a_throttled_layer_takes_the_time_it_was_told_to() {
    let host: Arc<dyn Layer> = Arc::new(Host::new(1 << 20).unwrap());
    let layer = Throttled::new(host, 1 << 20, 1 << 20, Duration::from_millis(5));
    assert_eq!(layer.name(), "throttled host");
    let start = Instant::now();
    thread::scope(|scope| {
        for index in 0..2 {
            let layer = &layer;
            scope.spawn(move || layer.write(index * (64 << 10), &pattern(index, 64 << 10)).unwrap());
        }
    });
    assert!(start.elapsed() >= Duration::from_millis(125 + 5), "two writes queue: {:?}", start.elapsed());
    layer.set_read_rate(u64::MAX);
    layer.set_latency(Duration::from_millis(20));
    let start = Instant::now();
    layer.read(0, &mut [0; 4096]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(20));
    layer.set_write_rate(16 << 20);
    let start = Instant::now();
    layer.write(0, &pattern(1, 512 << 10)).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(31 + 20));
}
