//! Memory of a device, such as a graphics card: what a driver must offer so that a layer can be
//! made of it.
//!
//! [`Device`] is the small interface, [`OpenCl`] and [`Cuda`] implement it over drivers that are
//! looked for at run time, and [`DeviceLayer`] is the layer that stands on any of them. A machine
//! without a driver or device builds and runs the same; opening one is then an error that says what
//! is missing.
//!
//! OpenCL is tested on PoCL, which computes on the processor. CUDA has never run on real hardware:
//! it is tested against a stand-in driver of this workspace only, which keeps device memory in host
//! memory and checks the rules of the real one.

mod checksum;
mod cuda;
mod flight;
mod layer;
mod opencl;
mod registered;

use std::{any::Any, fmt, ops::Range, ptr::NonNull, sync::Arc};

pub use checksum::checksum;
pub use cuda::Cuda;
pub use layer::DeviceLayer;
pub use opencl::OpenCl;

use crate::{Error, Result};

/// Which kind of driver a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Any device with an OpenCL driver, the processor among them.
    OpenCl,
    /// An NVIDIA device. Not run on real hardware so far.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenCl => "OpenCL",
            Self::Cuda => "CUDA",
        })
    }
}

/// A device of this machine, not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its number among those of its kind, from 0.
    pub index: usize,
    /// What its maker calls it.
    pub model: String,
    /// The memory that it has.
    pub total_bytes: u64,
}

/// The devices of this machine, of all kinds. A kind whose driver is missing or fails has none.
///
/// A card with drivers of both kinds is listed under both.
pub fn devices() -> Vec<FoundDevice> {
    let mut found = Vec::new();
    for (kind, list) in [(DeviceKind::Cuda, cuda::list()), (DeviceKind::OpenCl, opencl::list())] {
        match list {
            Ok(list) => found.extend(list),
            Err(error) => tracing::debug!(%error, "no {kind} devices"),
        }
    }
    found
}

/// Opens the device `index`, from 0, of a kind.
pub fn open_device(kind: DeviceKind, index: usize) -> Result<Arc<dyn Device>> {
    Ok(match kind {
        DeviceKind::OpenCl => Arc::new(OpenCl::open(index)?),
        DeviceKind::Cuda => Arc::new(Cuda::open(index)?),
    })
}

/// What a layer needs of a device.
///
/// Everything that is made by a device keeps the device's own state alive, so that it may be
/// dropped in any order.
pub trait Device: Send + Sync {
    /// A short name for messages, such as `cuda 0`.
    fn name(&self) -> &str;

    /// Tells it from every other device that is open. Two values that can use each other's buffers
    /// have the same.
    fn identity(&self) -> usize;

    /// The memory that it has.
    fn total_bytes(&self) -> u64;

    /// The memory that nobody uses, as far as the driver tells.
    fn free_bytes(&self) -> Result<u64>;

    /// What it maps at once unless told otherwise.
    fn chunk_bytes(&self) -> u64;

    /// Chunks are multiples of this.
    fn granularity_bytes(&self) -> u64;

    /// Reserves room for `bytes`, which are a multiple of the granularity, without providing memory
    /// yet.
    fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>>;

    /// New memory for a program.
    fn buffer(&self, bytes: u64) -> Result<Buffer>;

    /// Memory that a program has allocated itself: a `CUdeviceptr` or a `cl_mem`, of at least
    /// `bytes`.
    ///
    /// # Safety
    ///
    /// The handle must be valid. A `CUdeviceptr` must stay so for as long as the buffer lives; of a
    /// `cl_mem`, the buffer holds a reference of its own.
    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer>;

    /// Whether [`Stream`]s may only begin copies from and to host memory that is registered.
    fn needs_registration(&self) -> bool;

    /// Page-locks host memory for copies that are under way while the program goes on; dropping the
    /// result ends that.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped for as long as the registration lives.
    unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<Registration>;

    /// A new queue of copies.
    fn stream(&self) -> Result<Box<dyn Stream>>;
}

/// Room on a device of which pieces can be provided with memory. Gives all of it back when it and
/// they are dropped.
pub trait Reservation: Send {
    /// Provides memory for `range`, whose ends are multiples of the granularity and which has none
    /// yet.
    fn map(&mut self, range: Range<u64>) -> Result<Buffer>;
}

/// Page-locked host memory, until it is dropped.
pub type Registration = Box<dyn Any + Send + Sync>;

/// A queue of copies that a device carries out one after the other. Dropping it waits for all of
/// them.
pub trait Stream: Send {
    /// Copies `bytes` to the device, from any memory; they have arrived when it returns.
    ///
    /// # Safety
    ///
    /// The place must be that many bytes of live memory of this device.
    unsafe fn copy_in(&mut self, bytes: &[u8], to: Place) -> Result<()>;

    /// Fills `bytes` from the device, in any memory.
    ///
    /// # Safety
    ///
    /// As for `copy_in`.
    unsafe fn copy_out(&mut self, from: Place, bytes: &mut [u8]) -> Result<()>;

    /// Begins a copy to the device.
    ///
    /// # Safety
    ///
    /// As for `copy_in`; besides, the host memory must be registered if the device needs that, live
    /// until the stream or a later event of it has been waited for, and not be written to before.
    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()>;

    /// Begins a copy from the device.
    ///
    /// # Safety
    ///
    /// As for `begin_copy_in`; besides, nobody may read the host memory before.
    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()>;

    /// Begins a copy from one place of the device to another that does not overlap it.
    ///
    /// # Safety
    ///
    /// As for `copy_in`, of both places, until the copy has ended.
    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()>;

    /// The sum of the mixed words of a place, of which the first has the number `first_word`, as
    /// for [`checksum`].
    ///
    /// # Safety
    ///
    /// As for `copy_in`; besides, the place must begin at a multiple of eight bytes.
    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64>;

    /// Marks the end of what has been begun so far.
    fn record(&mut self) -> Result<Box<dyn Event>>;

    /// Waits for everything that has been begun.
    fn wait(&mut self) -> Result<()>;
}

/// A mark in a stream.
pub trait Event: Send {
    /// Waits until the stream has come to it.
    fn wait(&self) -> Result<()>;
}

/// Where in a device's memory: so many bytes behind the start of what the driver knows by a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// A `CUdeviceptr` or a `cl_mem`.
    pub handle: u64,
    /// Bytes from its start.
    pub offset: u64,
}

/// A piece of device memory. It is given back when it is dropped, unless the program has allocated
/// it.
pub struct Buffer {
    identity: usize,
    device: String,
    handle: u64,
    bytes: u64,
    /// What gives the memory back.
    _keeper: Box<dyn Any + Send + Sync>,
}

impl Place {
    /// On CUDA devices a handle is an address.
    fn address(self) -> u64 {
        self.handle + self.offset
    }
}

impl Buffer {
    /// For those who implement [`Device`]; programs get theirs from [`Device::buffer`] and
    /// [`Device::adopt`].
    ///
    /// # Safety
    ///
    /// The handle must be `bytes` of live memory of the device for as long as `keeper` lives.
    pub unsafe fn new(device: &dyn Device, handle: u64, bytes: u64, keeper: impl Any + Send + Sync) -> Self {
        let (identity, device) = (device.identity(), device.name().to_owned());
        Self { identity, device, handle, bytes, _keeper: Box::new(keeper) }
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the driver knows it by: a `CUdeviceptr` or a `cl_mem`, for kernels of the program.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Fills a part of it from the host.
    pub fn write(&mut self, device: &dyn Device, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.place(device, offset, bytes.len() as u64)?;
        // SAFETY: `place` has checked that the bytes are this buffer's, which lives, and the
        // device's.
        unsafe { device.stream()?.copy_in(bytes, to) }
    }

    /// Brings a part of it to the host.
    pub fn read(&self, device: &dyn Device, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let from = self.place(device, offset, bytes.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe { device.stream()?.copy_out(from, bytes) }
    }

    /// Where the bytes at `offset` are, if they are there and on this device.
    fn place(&self, device: &dyn Device, offset: u64, bytes: u64) -> Result<Place> {
        if self.identity != device.identity() {
            return Err(Error::OtherDevice { device: device.name().to_owned(), other: self.device.clone() });
        }
        let range = offset..offset.saturating_add(bytes);
        if range.end > self.bytes {
            return Err(Error::BufferTooSmall { device: self.device.clone(), range, bytes: self.bytes });
        }
        Ok(Place { handle: self.handle, offset })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.bytes, self.device)
    }
}

/// What a device of `total_bytes` maps at once: 1 GiB on large ones, so that mapping is fast, and
/// less on small ones, so that the first chunk is there soon and little is left over.
fn default_chunk_bytes(total_bytes: u64) -> u64 {
    const UNIT: u64 = 2 << 20;
    (total_bytes / 32 / UNIT * UNIT).clamp(8 * UNIT, 1 << 30)
}
