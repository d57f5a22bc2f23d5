//! A save waits for room as long as something could make it, and fails otherwise.

use std::{thread, time::Duration};

use outcrop_engine::{Error, Layout, Options};
use outcrop_region::Element;
use outcrop_testing::{
    layer::{FakeLayer, Gate},
    until,
};

use crate::{BYTES, open, options, save, take};

#[test]
fn a_save_waits_until_a_slow_layer_has_taken_something() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let slow = FakeLayer::guarded("slow", 64 * BYTES, move |_| {
        at_gate.pass();
        Ok(())
    });
    let mut handle = open(4, &[&slow], &options());
    (0..4).for_each(|key| save(&mut handle, key).unwrap());
    gate.until_waiting(1);
    let mut other = handle.clone();
    let waiting = thread::spawn(move || save(&mut other, 4).map(|()| other.stats()));
    until("the save waits", || handle.stats().waiting == 1);
    assert_eq!((handle.stats().saves, handle.stats().layers[1].writes), (4, 0));
    gate.open();
    let stats = waiting.join().unwrap().unwrap();
    assert_eq!(stats.saves, 5);
    assert!(stats.wait_seconds > 0.0 && stats.wait_seconds <= stats.save_seconds, "{stats:?}");
    (0..5).rev().for_each(|key| assert!(take(&mut handle, key).unwrap(), "{key}"));
}

#[test]
fn a_slot_that_is_given_back_reaches_who_waits_while_all_helpers_are_busy() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let slow = FakeLayer::guarded("slow", 64 * BYTES, move |_| {
        at_gate.pass();
        Ok(())
    });
    let mut handle = open(3, &[&slow], &options());
    (0..3).for_each(|key| save(&mut handle, key).unwrap());
    gate.until_waiting(1);
    let held = handle.read::<Error>(2, true, |_| Ok(())).unwrap();
    let mut other = handle.clone();
    let waiting = thread::spawn(move || save(&mut other, 3));
    until("the save waits", || handle.stats().waiting == 1);
    drop(held);
    until("the save has the slot", || waiting.is_finished());
    waiting.join().unwrap().unwrap();
    gate.open();
}

#[test]
fn when_nothing_can_make_room_a_save_fails_and_says_what_is_full() {
    let small = FakeLayer::new("small", 4 * BYTES);
    let mut handle = open(4, &[&small], &options());
    let error = (0..64).find_map(|key| save(&mut handle, key).err()).unwrap();
    let Error::Full { key, detail } = &error else { panic!("{error}") };
    assert!((7..=8).contains(key), "{error}");
    assert!(detail.contains("host holds") && detail.contains("small holds"), "{detail}");
    assert!((0..*key).all(|key| take(&mut handle, key).unwrap()));
}

#[test]
fn slots_in_the_hands_of_the_only_thread_are_waited_for_until_patience_ends() {
    let options = Options { patience: Some(Duration::from_millis(20)), ..options() };
    let mut handle = open(2, &[], &options);
    let layout = || Layout::single(Element::BYTE, BYTES as usize);
    let lent: Vec<_> = (0..2).map(|key| handle.lend(key, layout()).unwrap()).collect();
    let error = handle.lend(2, layout()).err().unwrap();
    assert!(matches!(error, Error::Held { key: 2, held: 2 }), "{error}");
    drop(lent);
    save(&mut handle, 2).unwrap();
    assert!(take(&mut handle, 2).unwrap());
}

#[test]
fn a_get_that_is_refused_is_not_taken_for_a_take_that_waits() {
    let options = Options { patience: Some(Duration::from_millis(2)), ..options() };
    let disk = FakeLayer::new("disk", 64 * BYTES);
    let mut handle = open(2, &[&disk], &options);
    for round in 0..20 {
        let keys = (round * 10..).take(3);
        keys.clone().for_each(|key| save(&mut handle, key).unwrap());
        let key = round * 10;
        until("it is below", || !handle.is_in_front(key));
        for later in keys.skip(1) {
            handle.discard(later).unwrap();
        }
        let layout = || Layout::single(Element::BYTE, BYTES as usize);
        let lent: Vec<_> = (1..3).map(|nth| handle.lend(key + nth, layout()).unwrap()).collect();
        let other = handle.clone();
        thread::scope(|scope| {
            let getting = scope.spawn(|| handle.read::<Error>(key, false, |_| Ok(())).map(drop));
            until("the get waits", || other.stats().waiting == 1);
            let mut third = other.clone();
            drop(other);
            let taking = scope.spawn(move || take(&mut third, key));
            assert!(matches!(getting.join().unwrap(), Err(Error::Held { .. })));
            drop(lent);
            assert!(taking.join().unwrap().unwrap());
        });
    }
}

#[test]
fn what_is_larger_than_the_front_is_refused_at_once() {
    let mut handle = open(1, &[&FakeLayer::new("large", 64 * BYTES)], &options());
    let error =
        handle.save(0, Layout::single(Element::BYTE, 2 * BYTES as usize), &[&[0; 2 * BYTES as usize]]).unwrap_err();
    assert!(matches!(error, Error::TooLarge { key: 0, .. }), "{error}");
}
