//! Layers in memory that ask a test before each call, and gates that make calls wait.

use std::{
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::{Abilities, Error, Extents, Front, Kept, Layer, Result, Room};
use outcrop_memory::Copier;

/// A call of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerCall {
    /// A snapshot with this key is about to be written.
    Begin(u64),
    /// Writing this range.
    Write(Range<u64>),
    /// Reading this range.
    Read(Range<u64>),
    /// A snapshot with this key has been written.
    Complete(u64),
    /// A snapshot with this key is not needed any more.
    Forget(u64),
    /// Moving a snapshot in a front from this range to this offset.
    Slide(Range<u64>, u64),
}

/// Decides about a call: it may wait, panic, or fail.
type Guard = dyn Fn(&LayerCall) -> Result<()> + Send + Sync;

/// A layer in memory that asks a test before each call, and records all calls.
pub struct FakeLayer {
    name: String,
    bytes: Mutex<Vec<u8>>,
    calls: Mutex<Vec<LayerCall>>,
    kept_bytes: Mutex<Option<u64>>,
    guard: Box<Guard>,
}

impl FakeLayer {
    /// A layer of `capacity` bytes that never fails.
    pub fn new(name: &str, capacity: u64) -> Arc<Self> {
        Self::guarded(name, capacity, |_| Ok(()))
    }

    /// A layer that asks `guard` before each call. For `Forget`, its answer is ignored.
    pub fn guarded(
        name: &str,
        capacity: u64,
        guard: impl Fn(&LayerCall) -> Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (bytes, calls) = (Mutex::new(vec![0; capacity as usize]), Mutex::default());
        let kept_bytes = Mutex::default();
        Arc::new(Self { name: name.to_owned(), bytes, calls, kept_bytes, guard: Box::new(guard) })
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<LayerCall> {
        lock(&self.calls).clone()
    }

    /// The keys of all completed snapshots, in order.
    pub fn completed(&self) -> Vec<u64> {
        let key = |call| if let LayerCall::Complete(key) = call { Some(key) } else { None };
        self.calls().into_iter().filter_map(key).collect()
    }

    /// Makes this a layer whose files stay: `bytes` bytes belong to others, and forgotten snapshots
    /// stay. Call it before the layer is used.
    pub fn keep(&self, bytes: u64) {
        *lock(&self.kept_bytes) = Some(bytes);
    }

    /// Flips one bit of every stored byte.
    pub fn damage(&self) {
        lock(&self.bytes).iter_mut().for_each(|byte| *byte ^= 4);
    }

    fn ask(&self, call: LayerCall) -> Result<()> {
        lock(&self.calls).push(call.clone());
        (self.guard)(&call)
    }
}

impl Layer for FakeLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn capacity(&self) -> Option<u64> {
        Some(lock(&self.bytes).len() as u64)
    }

    fn kept_bytes(&self) -> Option<u64> {
        *lock(&self.kept_bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.ask(LayerCall::Write(at..at + bytes.len() as u64))?;
        lock(&self.bytes)[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.ask(LayerCall::Read(at..at + bytes.len() as u64))?;
        bytes.copy_from_slice(&lock(&self.bytes)[at as usize..][..bytes.len()]);
        Ok(())
    }

    fn begin(&self, key: u64, _: &Extents) -> Result<()> {
        self.ask(LayerCall::Begin(key))
    }

    fn complete(&self, key: u64) -> Result<()> {
        self.ask(LayerCall::Complete(key))
    }

    fn forget(&self, key: u64) {
        let _ = self.ask(LayerCall::Forget(key));
    }
}

/// The same as a front that is not addressable: like device memory, without a device.
pub struct FakeFront(pub Arc<FakeLayer>);

impl Layer for FakeFront {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capacity(&self) -> Option<u64> {
        self.0.capacity()
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(at, bytes)
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.read(at, bytes)
    }

    fn front(&self) -> Option<&dyn Front> {
        Some(self)
    }
}

impl Front for FakeFront {
    fn abilities(&self) -> Abilities {
        let (is_addressable, takes_buffers, needs_touch, is_shared) = (false, false, false, false);
        Abilities { is_addressable, takes_buffers, needs_touch, is_shared, piece_bytes: 1 << 20 }
    }

    fn fill(&self, room: &mut Room, at: usize, bytes: &[u8], _: &Copier) -> Result<()> {
        self.0.write(room.range().start + at as u64, bytes)
    }

    fn copy_out(&self, kept: &Kept, bytes: &mut [u8], _: &Copier) -> Result<()> {
        self.0.read(kept.range().start, bytes)
    }

    fn slide(&self, kept: Kept, to: u64) -> Result<Kept> {
        let range = kept.range();
        self.0.ask(LayerCall::Slide(range.clone(), to))?;
        lock(&self.0.bytes).copy_within(range.start as usize..range.end as usize, to as usize);
        Ok(Kept::new(to..to + (range.end - range.start), None))
    }

    fn touch(&self, _: Range<u64>, _: u64) -> Result<()> {
        Ok(())
    }
}

/// An I/O error of the medium.
pub fn broken(what: &str) -> Error {
    Error::transfer("fake", "do it", std::io::Error::other(what.to_owned()))
}

/// The error of a medium that is full before its limit is reached.
pub fn full() -> Error {
    Error::transfer("fake", "do it", std::io::ErrorKind::StorageFull.into())
}

/// A gate at which calls wait until a test lets them pass.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<Passage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Passage {
    is_open: bool,
    /// How many calls may pass while it is closed.
    passes: usize,
    waiting: usize,
}

impl Gate {
    /// A closed gate.
    pub fn closed() -> Arc<Self> {
        Arc::default()
    }

    /// Passes, or waits until the test lets this call pass.
    pub fn pass(&self) {
        let mut state = lock(&self.state);
        state.waiting += 1;
        self.changed.notify_all();
        let mut state = self
            .changed
            .wait_while(state, |state| !state.is_open && state.passes == 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.passes = state.passes.saturating_sub(1);
        state.waiting -= 1;
    }

    /// Lets all calls pass from now on.
    pub fn open(&self) {
        lock(&self.state).is_open = true;
        self.changed.notify_all();
    }

    /// Lets `count` calls pass.
    pub fn let_pass(&self, count: usize) {
        lock(&self.state).passes += count;
        self.changed.notify_all();
    }

    /// Waits until `count` calls are waiting here.
    pub fn until_waiting(&self, count: usize) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |state| state.waiting < count));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
