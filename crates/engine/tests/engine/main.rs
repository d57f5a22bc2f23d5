//! Integration tests of the engine, against fake layers. One program, so that only one has to be
//! linked.

mod closing;
mod faults;
mod front;
mod order;
mod pressure;
mod settings;
mod statistics;
mod waking;

use std::sync::Arc;

use outcrop_engine::{Engine, Error, Handle, Layout, Options, Result};
use outcrop_layers::{Host, Layer};
use outcrop_plan::Touching;
use outcrop_region::Element;
use outcrop_testing::{layer::FakeLayer, pattern, until};

/// The size of every snapshot in these tests.
const BYTES: u64 = 64 << 10;

/// One helper, and no pinning.
fn options() -> Options {
    Options { touching: Touching::Concurrent, is_unpinned: true, helpers: Some(1), ..Options::default() }
}

/// An engine with host memory for `slots` snapshots above these layers. All memory is touched;
/// otherwise a snapshot might sink only because untouched memory is slow.
fn open(slots: u64, layers: &[&Arc<FakeLayer>], options: &Options) -> Handle {
    let host: Arc<dyn Layer> = Arc::new(Host::new(slots * BYTES).unwrap());
    let below = layers.iter().map(|&layer| Arc::clone(layer) as Arc<dyn Layer>);
    let handle = Engine::open(std::iter::once(host).chain(below).collect(), options).unwrap();
    until("all is touched", || handle.stats().layers[0].memory.unwrap().touched_bytes >= slots * BYTES);
    handle
}

fn save(handle: &mut Handle, key: u64) -> Result<()> {
    handle.save(key, Layout::single(Element::BYTE, BYTES as usize), &[&pattern(key, BYTES)])
}

/// Takes a snapshot, and returns whether its bytes are those that were saved.
fn take(handle: &mut Handle, key: u64) -> Result<bool> {
    let held = handle.read::<Error>(key, true, |_| Ok(()))?;
    Ok(*held == pattern(key, BYTES)[..])
}
