//! Closing while moves are under way.

use std::{sync::Arc, thread};

use outcrop_engine::{Error, Layout};
use outcrop_region::Element;
use outcrop_testing::layer::{FakeLayer, Gate};

use crate::{BYTES, open, options, save};

#[test]
fn closing_waits_for_what_is_under_way_and_leaves_the_rest() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let slow = FakeLayer::guarded("slow", 64 * BYTES, move |_| {
        at_gate.pass();
        Ok(())
    });
    let mut handle = open(8, &[&slow], &options());
    (0..8).for_each(|key| save(&mut handle, key).unwrap());
    gate.until_waiting(1);
    let closing = thread::spawn(move || drop(handle));
    gate.open();
    closing.join().unwrap();
    assert_eq!(Arc::strong_count(&slow), 1, "nobody has the layer any more");
}

#[test]
fn what_is_held_or_lent_outlives_the_engine() {
    let mut handle = open(4, &[&FakeLayer::new("disk", 64 * BYTES)], &options());
    save(&mut handle, 0).unwrap();
    let held = handle.read::<Error>(0, true, |_| Ok(())).unwrap();
    let mut lent = handle.lend(1, Layout::single(Element::BYTE, BYTES as usize)).unwrap();
    drop(handle);
    lent.fill(0, &held);
    assert_eq!(*lent, *held);
    lent.seal();
}

#[test]
fn an_anchor_keeps_an_engine_open_and_is_not_waited_for() {
    let handle = open(2, &[], &options());
    let anchor = handle.anchor();
    drop(handle);
    let mut again = anchor.handle();
    (0..2).for_each(|key| save(&mut again, key).unwrap());
    let error = save(&mut again, 2).unwrap_err();
    assert!(matches!(error, Error::Full { key: 2, .. }), "{error}");
}

#[test]
fn slots_that_come_back_while_an_engine_closes_do_not_outlast_it() {
    for _ in 0..100 {
        let layer = FakeLayer::new("disk", 64 * BYTES);
        let mut handle = open(4, &[&layer], &options());
        (0..4).for_each(|key| save(&mut handle, key).unwrap());
        let held: Vec<_> = (0..4).map(|key| handle.read::<Error>(key, true, |_| Ok(())).unwrap()).collect();
        let readers: Vec<_> = held.into_iter().map(|held| thread::spawn(move || drop(held))).collect();
        drop(handle);
        assert_eq!(Arc::strong_count(&layer), 1, "nobody has the layer any more");
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }
}
