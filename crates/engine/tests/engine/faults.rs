//! Layers that fail, corrupt bytes, or panic.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use outcrop_engine::{Arrival, Arrivals, Checksums, Error, Layout, Options};
use outcrop_plan::Preference;
use outcrop_region::Element;
use outcrop_testing::{
    layer::{FakeLayer, Gate, LayerCall, broken, full},
    until,
};

use crate::{BYTES, open, options, save, take};

#[test]
fn a_write_that_fails_loses_nothing_and_is_told_to_whoever_it_leaves_without_room() {
    let bad = FakeLayer::guarded("bad", 64 * BYTES, |call| match call {
        LayerCall::Write(_) => Err(broken("the cable is out")),
        _ => Ok(()),
    });
    let mut handle = open(4, &[&bad], &options());
    let error = (0..16).find_map(|key| save(&mut handle, key).err()).unwrap();
    let Error::Full { key, detail } = &error else { panic!("{error}") };
    assert!(detail.contains("the cable is out"), "{detail}");
    assert!(handle.stats().layers[1].fault.as_ref().unwrap().contains("the cable is out"));
    let is_forgotten = |call: &LayerCall| matches!(call, LayerCall::Forget(_));
    assert!(bad.calls().iter().any(is_forgotten), "what was not written whole is forgotten");
    assert!((0..*key).all(|key| take(&mut handle, key).unwrap()));
}

#[test]
fn a_medium_that_is_full_before_its_limit_keeps_what_it_has() {
    let writes = AtomicUsize::new(0);
    let small = FakeLayer::guarded("small", 64 * BYTES, move |call| match call {
        LayerCall::Write(_) if writes.fetch_add(1, Relaxed) >= 2 => Err(full()),
        _ => Ok(()),
    });
    let mut handle = open(4, &[&small], &options());
    let saved = (0..16).take_while(|&key| save(&mut handle, key).is_ok()).count() as u64;
    assert!((4..=6).contains(&saved), "{saved}");
    assert!((0..saved).rev().all(|key| take(&mut handle, key).unwrap()));
}

#[test]
fn a_read_that_fails_twice_is_an_error_and_can_be_asked_for_again() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken_now = Arc::clone(&is_broken);
    let bad = FakeLayer::guarded("bad", 64 * BYTES, move |call| match call {
        LayerCall::Read(_) if broken_now.load(Relaxed) => Err(broken("no answer")),
        _ => Ok(()),
    });
    let mut handle = open(2, &[&bad], &options());
    (0..8).for_each(|key| save(&mut handle, key).unwrap());
    let error = take(&mut handle, 0).unwrap_err();
    assert!(matches!(&error, Error::Unreadable { key: 0, detail } if detail.contains("no answer")), "{error}");
    is_broken.store(false, Relaxed);
    assert!(take(&mut handle, 0).unwrap());
}

#[test]
fn a_single_failed_read_is_tried_again() {
    let reads = AtomicUsize::new(0);
    let bad = FakeLayer::guarded("bad", 64 * BYTES, move |call| match call {
        LayerCall::Read(_) if reads.fetch_add(1, Relaxed) == 0 => Err(broken("once")),
        _ => Ok(()),
    });
    let mut handle = open(2, &[&bad], &options());
    (0..8).for_each(|key| save(&mut handle, key).unwrap());
    assert!(take(&mut handle, 0).unwrap());
}

#[test]
fn bytes_that_have_changed_are_refused_unless_the_program_checks_them_itself() {
    for checksums in [Checksums::Engine, Checksums::Program] {
        let layer = FakeLayer::new("damaged", 64 * BYTES);
        let mut handle = open(2, &[&layer], &Options { checksums, ..options() });
        (0..8).for_each(|key| save(&mut handle, key).unwrap());
        until("all is quiet", || layer.completed().len() as u64 == handle.stats().layers[1].writes);
        layer.damage();
        match checksums {
            Checksums::Engine => {
                let error = take(&mut handle, 0).unwrap_err();
                assert!(matches!(&error, Error::Damaged { key: 0, layer } if layer == "damaged"), "{error}");
            }
            Checksums::Program => assert!(!take(&mut handle, 0).unwrap(), "the bytes come as they are"),
        }
    }
}

#[test]
fn bytes_that_change_between_two_deeper_layers_are_found_out() {
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let near = FakeLayer::new("near", 4 * BYTES);
    let far = FakeLayer::guarded("far", 64 * BYTES, move |call| {
        if let LayerCall::Begin(_) = call {
            at_gate.pass();
        }
        Ok(())
    });
    let mut handle = open(2, &[&near, &far], &Options { preference: Preference::Fixed, ..options() });
    let mut saving = handle.clone();
    let saver = thread::spawn(move || (0..16).try_for_each(|key| save(&mut saving, key)));
    // The near layer is half full, and the oldest snapshot is about to be relayed from there.
    gate.until_waiting(1);
    near.damage();
    gate.open();
    saver.join().unwrap().unwrap();
    assert!(matches!(take(&mut handle, 0), Err(Error::Damaged { key: 0, .. })));
    assert!(!far.completed().contains(&0));
}

#[test]
fn a_layer_that_panics_ends_every_wait_and_closing_does_not_hang() {
    let bad = FakeLayer::guarded("bad", 64 * BYTES, |call| match call {
        LayerCall::Write(_) => panic!("a mistake in a layer"),
        _ => Ok(()),
    });
    let mut handle = open(4, &[&bad], &options());
    let error = (0..16).find_map(|key| save(&mut handle, key).err()).unwrap();
    assert!(matches!(error, Error::Stopped), "{error}");
    drop(handle);
    assert_eq!(Arc::strong_count(&bad), 1);
}

#[test]
fn many_snapshots_that_cannot_even_begin_to_be_written_are_each_reported() {
    const SNAPSHOTS: u64 = 20_000;
    let gate = Gate::closed();
    let at_gate = gate.clone();
    let bad = FakeLayer::guarded("bad", SNAPSHOTS * 4096, move |call| match call {
        LayerCall::Begin(_) => {
            at_gate.pass();
            Err(broken("no file can be made"))
        }
        _ => Ok(()),
    });
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let arrivals = Arrivals(Arc::new(move |arrival: Arrival| {
        assert!(arrival.failure.is_some_and(|failure| failure.contains("no file can be made")));
        counted.fetch_add(1, Relaxed);
    }));
    let options = Options { persists: true, arrivals: Some(arrivals), ..options() };
    let mut handle = open(SNAPSHOTS * 4096 / BYTES, &[&bad], &options);
    let layout = || Layout::single(Element::BYTE, 4096);
    (0..SNAPSHOTS).for_each(|key| handle.save(key, layout(), &[&[1; 4096]]).unwrap());
    gate.open();
    until("all have failed", || failures.load(Relaxed) == SNAPSHOTS as usize);
}

#[test]
fn what_stays_of_a_discarded_snapshot_counts_before_anything_else_is_placed() {
    let (writing, forgetting) = (Gate::closed(), Gate::closed());
    let (at_writing, at_forgetting) = (Arc::clone(&writing), Arc::clone(&forgetting));
    let this = Arc::new(OnceLock::<Weak<FakeLayer>>::new());
    let known = Arc::clone(&this);
    let shelf = FakeLayer::guarded("shelf", BYTES, move |call| {
        match call {
            LayerCall::Write(_) => at_writing.pass(),
            LayerCall::Forget(0) => {
                at_forgetting.pass();
                // The file stays, and nobody but its owner knows it from now on.
                known.get().unwrap().upgrade().unwrap().keep(BYTES);
            }
            _ => {}
        }
        Ok(())
    });
    shelf.keep(0);
    this.set(Arc::downgrade(&shelf)).unwrap();
    let mut handle = open(4, &[&shelf], &Options { persists: true, ..options() });
    let mut saving = handle.clone();
    save(&mut handle, 0).unwrap();
    writing.until_waiting(1);
    handle.discard(0).unwrap();
    writing.open();
    forgetting.until_waiting(1);
    let saver = thread::spawn(move || save(&mut saving, 1).unwrap());
    // Whoever could save now would find room that is not there.
    (0..50).take_while(|_| !saver.is_finished()).for_each(|_| thread::sleep(Duration::from_millis(2)));
    forgetting.open();
    saver.join().unwrap();
    until("it is left out", || handle.stats().layers[1].fault.is_some());
    assert!(!shelf.calls().contains(&LayerCall::Begin(1)), "{:?}", shelf.calls());
}
