//! A front that is not addressable, like that of a device.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use outcrop_engine::{Engine, Error, Handle, Layout};
use outcrop_layers::Layer;
use outcrop_region::Element;
use outcrop_testing::layer::{FakeFront, FakeLayer, LayerCall, broken};

use crate::{BYTES, options, save, take};

fn open(front: &Arc<FakeLayer>, below: &[&Arc<FakeLayer>]) -> Handle {
    let first: Arc<dyn Layer> = Arc::new(FakeFront(Arc::clone(front)));
    let below = below.iter().map(|&layer| Arc::clone(layer) as Arc<dyn Layer>);
    // The front need not come first: layers above it are used as deeper layers.
    let mut layers: Vec<_> = below.collect();
    layers.push(first);
    Engine::open(layers, &options()).unwrap()
}

#[test]
fn a_save_is_a_copy_in_and_a_take_is_a_copy_out() {
    let front = FakeLayer::new("away", 4 * BYTES);
    let mut handle = open(&front, &[]);
    save(&mut handle, 7).unwrap();
    assert!(take(&mut handle, 7).unwrap());
    assert_eq!(front.calls(), [LayerCall::Write(0..BYTES), LayerCall::Read(0..BYTES)]);
    let error = handle.lend(8, Layout::single(Element::BYTE, BYTES as usize)).err().unwrap();
    assert!(matches!(&error, Error::Stack(why) if why.contains("cannot be lent")), "{error}");
}

#[test]
fn what_cannot_be_addressed_is_relayed_through_a_buffer() {
    let (front, disk) = (FakeLayer::new("away", 2 * BYTES), FakeLayer::new("disk", 64 * BYTES));
    let mut handle = open(&front, &[&disk]);
    (0..16).for_each(|key| save(&mut handle, key).unwrap());
    assert!((0..16).rev().all(|key| take(&mut handle, key).unwrap()));
    assert!(disk.completed().len() >= 14);
}

#[test]
fn a_snapshot_is_consumed_only_when_it_has_been_copied_out() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken_now = Arc::clone(&is_broken);
    let front = FakeLayer::guarded("away", 4 * BYTES, move |call| match call {
        LayerCall::Read(_) if broken_now.load(Relaxed) => Err(broken("the link is down")),
        _ => Ok(()),
    });
    let mut handle = open(&front, &[]);
    save(&mut handle, 7).unwrap();
    let error = take(&mut handle, 7).unwrap_err();
    assert!(matches!(error, Error::Layer(_)), "{error}");
    is_broken.store(false, Relaxed);
    assert!(take(&mut handle, 7).unwrap());
    assert!(matches!(take(&mut handle, 7), Err(Error::Missing { key: 7 })));
}

#[test]
fn a_save_that_cannot_be_copied_in_leaves_nothing_behind() {
    let front = FakeLayer::guarded("away", 2 * BYTES, |call| match call {
        LayerCall::Write(_) => Err(broken("the link is down")),
        _ => Ok(()),
    });
    let mut handle = open(&front, &[]);
    for _ in 0..8 {
        assert!(matches!(save(&mut handle, 7), Err(Error::Layer(_))));
    }
    assert_eq!((handle.keys(), handle.stats().layers[0].used_bytes), (Vec::new(), 0));
}

/// A front of four slots, with two free ones that are not adjacent.
fn fragmented(front: &Arc<FakeLayer>) -> Handle {
    let mut handle = open(front, &[]);
    (0..4).for_each(|key| save(&mut handle, key).unwrap());
    assert!(take(&mut handle, 0).unwrap() && take(&mut handle, 2).unwrap());
    handle
}

fn save_double(handle: &mut Handle) -> outcrop_engine::Result<()> {
    handle.save(9, Layout::single(Element::BYTE, 2 * BYTES as usize), &[&[9; 2 * BYTES as usize]])
}

#[test]
fn snapshots_slide_together_when_nothing_else_makes_room() {
    let front = FakeLayer::new("away", 4 * BYTES);
    let mut handle = fragmented(&front);
    save_double(&mut handle).unwrap();
    assert!(front.calls().contains(&LayerCall::Slide(BYTES..2 * BYTES, 0)), "{:?}", front.calls());
    assert!(take(&mut handle, 1).unwrap() && take(&mut handle, 3).unwrap());
}

#[test]
fn after_a_slide_that_has_failed_nothing_is_trusted_any_more() {
    let front = FakeLayer::guarded("away", 4 * BYTES, |call| match call {
        LayerCall::Slide(..) => Err(broken("the link is down")),
        _ => Ok(()),
    });
    let mut handle = fragmented(&front);
    let error = save_double(&mut handle).unwrap_err();
    assert!(matches!(&error, Error::Displaced { detail } if detail.contains("the link is down")), "{error}");
    assert!(matches!(take(&mut handle, 3), Err(Error::Displaced { .. })));
}
