//! The OpenCL device of this machine, and a device wrapper that asks a test before each call.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use outcrop_layers::{
    Buffer, Device, DeviceHash, DeviceKind, Event, HashBlocks, Place, Registration, Reservation, Result, Stream,
    open_device,
};

use crate::skip;

/// The first OpenCL device. Skips the test if there is none.
pub fn device() -> Option<Arc<dyn Device>> {
    match open_device(DeviceKind::OpenCl, 0) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(format_args!("there is no OpenCL device (Debian: pocl-opencl-icd): {error}"));
            None
        }
    }
}

/// A call of a device, before or after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Reserving addresses.
    Reserve,
    /// Mapping a part of a reservation.
    Map(Range<u64>),
    /// Making a buffer.
    Buffer,
    /// Registering host memory.
    Register,
    /// Making a stream.
    Stream,
    /// Copying from the host, synchronously.
    CopyIn,
    /// Copying to the host, synchronously.
    CopyOut,
    /// Starting a copy from the host.
    BeginCopyIn,
    /// Starting a copy to the host.
    BeginCopyOut,
    /// Starting a copy on the device.
    BeginCopyWithin,
    /// Computing a checksum.
    SumWords,
    /// Starting to hash blocks.
    BeginHash,
    /// Recording an event.
    Record,
    /// All operations of a stream have ended.
    Waited,
    /// A wait for an event starts.
    EventWait,
    /// A wait for an event has ended.
    EventWaited,
}

/// A test's control over the calls of a device.
pub trait Guard: Send + Sync {
    /// Decides about this call: it may wait, or fail.
    fn call(&self, call: Call) -> Result<()>;

    /// The hash that is computed in place of this one.
    fn hash(&self, kind: DeviceHash) -> DeviceHash {
        kind
    }

    /// Whether host memory must be registered, even if the device can do without.
    fn needs_registration(&self) -> bool {
        false
    }
}

/// A device, or something that it made, whose calls are passed to a guard first.
pub struct Guarded<T> {
    /// The wrapped value.
    pub inner: T,
    /// The guard of all calls.
    pub guard: Arc<dyn Guard>,
}

impl<T> Guarded<T> {
    fn made<U>(&self, inner: U) -> Box<Guarded<U>> {
        Box::new(Guarded { inner, guard: Arc::clone(&self.guard) })
    }
}

impl Device for Guarded<Arc<dyn Device>> {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn identity(&self) -> usize {
        self.inner.identity()
    }
    fn total_bytes(&self) -> u64 {
        self.inner.total_bytes()
    }
    fn free_bytes(&self) -> Result<u64> {
        self.inner.free_bytes()
    }
    fn chunk_bytes(&self) -> u64 {
        self.inner.chunk_bytes()
    }
    fn granularity_bytes(&self) -> u64 {
        self.inner.granularity_bytes()
    }
    fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>> {
        self.guard.call(Call::Reserve)?;
        Ok(self.made(self.inner.reserve(bytes)?))
    }
    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        self.guard.call(Call::Buffer)?;
        self.inner.buffer(bytes)
    }
    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer> {
        // SAFETY: the caller vouches for the handle.
        unsafe { self.inner.adopt(handle, bytes) }
    }
    fn needs_registration(&self) -> bool {
        self.guard.needs_registration() || self.inner.needs_registration()
    }
    unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<Registration> {
        self.guard.call(Call::Register)?;
        // SAFETY: the caller keeps the memory.
        unsafe { self.inner.register(address, bytes) }
    }
    fn stream(&self) -> Result<Box<dyn Stream>> {
        self.guard.call(Call::Stream)?;
        Ok(self.made(self.inner.stream()?))
    }
}

impl Reservation for Guarded<Box<dyn Reservation>> {
    fn map(&mut self, range: Range<u64>) -> Result<Buffer> {
        self.guard.call(Call::Map(range.clone()))?;
        self.inner.map(range)
    }
}

// SAFETY of all calls below: the caller vouches for the same.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Stream for Guarded<Box<dyn Stream>> {
    unsafe fn copy_in(&mut self, bytes: &[u8], to: Place) -> Result<()> {
        self.guard.call(Call::CopyIn)?;
        unsafe { self.inner.copy_in(bytes, to) }
    }
    unsafe fn copy_out(&mut self, from: Place, bytes: &mut [u8]) -> Result<()> {
        self.guard.call(Call::CopyOut)?;
        unsafe { self.inner.copy_out(from, bytes) }
    }
    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()> {
        self.guard.call(Call::BeginCopyIn)?;
        unsafe { self.inner.begin_copy_in(from, to, bytes) }
    }
    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()> {
        self.guard.call(Call::BeginCopyOut)?;
        unsafe { self.inner.begin_copy_out(from, to, bytes) }
    }
    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()> {
        self.guard.call(Call::BeginCopyWithin)?;
        unsafe { self.inner.begin_copy_within(from, to, bytes) }
    }
    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64> {
        self.guard.call(Call::SumWords)?;
        unsafe { self.inner.sum_words(at, first_word, bytes) }
    }
    unsafe fn begin_hash(&mut self, kind: DeviceHash, blocks: HashBlocks) -> Result<()> {
        self.guard.call(Call::BeginHash)?;
        unsafe { self.inner.begin_hash(self.guard.hash(kind), blocks) }
    }
    fn record(&mut self) -> Result<Box<dyn Event>> {
        self.guard.call(Call::Record)?;
        let inner = self.inner.record()?;
        Ok(self.made(inner))
    }
    fn wait(&mut self) -> Result<()> {
        // Everything that was started has ended before the loss is reported.
        self.inner.wait().and_then(|()| self.guard.call(Call::Waited))
    }
}

impl Event for Guarded<Box<dyn Event>> {
    fn wait(&self) -> Result<()> {
        self.guard.call(Call::EventWait)?;
        self.inner.wait().and_then(|()| self.guard.call(Call::EventWaited))
    }
}
