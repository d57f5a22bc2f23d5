//! Memory of a device, such as a graphics card: what a driver must provide to make a layer of it.
//!
//! [`Device`] is the interface. [`OpenCl`] and [`Cuda`] implement it for drivers that are found at
//! run time, and [`DeviceLayer`] is the layer on top of any of them. Outcrop builds and runs the
//! same on a machine without a driver or device; opening one is then an error that names what is
//! missing.
//!
//! OpenCL is tested with PoCL, which computes on the processor. CUDA has never run on real
//! hardware: it is tested only with a stand-in driver of this workspace, which keeps device memory
//! in host memory and checks the rules of the real one.

mod checksum;
mod cuda;
mod flight;
mod hash;
mod layer;
mod opencl;
mod registered;

use std::{any::Any, fmt, ops::Range, ptr::NonNull, sync::Arc};

pub use checksum::checksum;
pub use cuda::Cuda;
pub use hash::{DeviceHash, DeviceHasher, HashBlocks};
pub use layer::DeviceLayer;
pub use opencl::OpenCl;

use crate::{Error, Result};

/// The kind of driver of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Any device with an OpenCL driver, including the processor.
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

/// A device of this machine that is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDevice {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its index among the devices of its kind, counted from 0.
    pub index: usize,
    /// The maker's name for it.
    pub model: String,
    /// Its total memory.
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

/// Opens device `index`, counted from 0, of a kind.
pub fn open_device(kind: DeviceKind, index: usize) -> Result<Arc<dyn Device>> {
    Ok(match kind {
        DeviceKind::OpenCl => Arc::new(OpenCl::open(index)?),
        DeviceKind::Cuda => Arc::new(Cuda::open(index)?),
    })
}

/// What a layer needs from a device.
///
/// Everything that a device creates keeps the device's own state alive, so values may be dropped in
/// any order.
pub trait Device: Send + Sync {
    /// A short name for messages, such as `cuda 0`.
    fn name(&self) -> &str;

    /// Distinguishes it from every other open device. Two values that can use each other's buffers
    /// have the same identity.
    fn identity(&self) -> usize;

    /// Its total memory.
    fn total_bytes(&self) -> u64;

    /// Its free memory, according to the driver.
    fn free_bytes(&self) -> Result<u64>;

    /// The default size of a chunk.
    fn chunk_bytes(&self) -> u64;

    /// Chunks must be multiples of this.
    fn granularity_bytes(&self) -> u64;

    /// Reserves room for `bytes`, a multiple of the granularity, without providing memory yet.
    fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>>;

    /// Allocates memory for a program.
    fn buffer(&self, bytes: u64) -> Result<Buffer>;

    /// Wraps memory that a program has allocated itself: a `CUdeviceptr` or a `cl_mem`, of at least
    /// `bytes`.
    ///
    /// # Safety
    ///
    /// The handle must be valid. A `CUdeviceptr` must stay valid as long as the buffer lives; of a
    /// `cl_mem`, the buffer holds its own reference.
    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer>;

    /// Whether [`Stream`]s may begin copies only from and to registered host memory.
    fn needs_registration(&self) -> bool;

    /// Page-locks host memory for asynchronous copies. Dropping the result unlocks it.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped as long as the registration lives.
    unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<Registration>;

    /// A new queue of copies.
    fn stream(&self) -> Result<Box<dyn Stream>>;
}

/// Reserved room on a device, which can be mapped piece by piece. Everything is freed when it and
/// the pieces are dropped.
pub trait Reservation: Send {
    /// Provides memory for `range`, which has none yet. Its ends must be multiples of the
    /// granularity.
    fn map(&mut self, range: Range<u64>) -> Result<Buffer>;
}

/// Page-locked host memory, until it is dropped.
pub type Registration = Box<dyn Any + Send + Sync>;

/// A queue of copies that a device carries out in order. Dropping it waits for all of them.
pub trait Stream: Send {
    /// Copies `bytes` to the device, from any memory. They have arrived when it returns.
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
    /// As for `copy_in`. Also, the host memory must be registered if the device needs that, must
    /// live until the stream or a later event of it has been waited for, and must not be written
    /// before that.
    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()>;

    /// Begins a copy from the device.
    ///
    /// # Safety
    ///
    /// As for `begin_copy_in`. Also, nobody may read the host memory before that.
    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()>;

    /// Begins a copy between two ranges of the device that do not overlap.
    ///
    /// # Safety
    ///
    /// As for `copy_in`, for both places, until the copy has ended.
    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()>;

    /// The sum of the mixed words of a place, as for [`checksum`]. The first word has the index
    /// `first_word`.
    ///
    /// # Safety
    ///
    /// As for `copy_in`. Also, the place must begin at a multiple of eight bytes.
    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64>;

    /// Begins to hash blocks.
    ///
    /// # Safety
    ///
    /// As for `copy_in`, for the blocks and for the room for their hashes, until the hashes are
    /// complete.
    unsafe fn begin_hash(&mut self, kind: DeviceHash, blocks: HashBlocks) -> Result<()>;

    /// Records an event after everything that has been begun so far.
    fn record(&mut self) -> Result<Box<dyn Event>>;

    /// Waits for everything that has been begun.
    fn wait(&mut self) -> Result<()>;
}

/// An event in a stream.
pub trait Event: Send {
    /// Waits until the stream has reached it.
    fn wait(&self) -> Result<()>;
}

/// A place in a device's memory: an offset from the start of a driver's handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// A `CUdeviceptr` or a `cl_mem`.
    pub handle: u64,
    /// The offset in bytes.
    pub offset: u64,
}

/// A piece of device memory. Dropping it frees the memory, unless the program has allocated it.
pub struct Buffer {
    identity: usize,
    device: String,
    handle: u64,
    bytes: u64,
    /// Frees the memory when it is dropped.
    _keeper: Box<dyn Any + Send + Sync>,
}

impl Place {
    /// On CUDA devices a handle is an address.
    fn address(self) -> u64 {
        self.handle + self.offset
    }
}

impl Buffer {
    /// For implementations of [`Device`]. Programs get buffers from [`Device::buffer`] and
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

    /// The driver's handle: a `CUdeviceptr` or a `cl_mem`, for kernels of the program.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Copies bytes from the host into a part of it.
    pub fn write(&mut self, device: &dyn Device, offset: u64, bytes: &[u8]) -> Result<()> {
        let to = self.place(device, offset, bytes.len() as u64)?;
        // SAFETY: `place` has checked that the bytes belong to this buffer, which lives, and to
        // this device.
        unsafe { device.stream()?.copy_in(bytes, to) }
    }

    /// Copies a part of it to the host.
    pub fn read(&self, device: &dyn Device, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let from = self.place(device, offset, bytes.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe { device.stream()?.copy_out(from, bytes) }
    }

    /// Returns an error unless it is on this device and has `bytes` bytes at `offset`.
    pub fn check_on(&self, device: &dyn Device, offset: u64, bytes: u64) -> Result<()> {
        self.place(device, offset, bytes).map(drop)
    }

    /// The place of the bytes at `offset`, if they are inside the buffer and on this device.
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

/// The default chunk of a device with `total_bytes`: 1 GiB on large ones, so that mapping is fast,
/// and less on small ones, so that the first chunk is ready soon and little is wasted.
fn default_chunk_bytes(total_bytes: u64) -> u64 {
    const UNIT: u64 = 2 << 20;
    (total_bytes / 32 / UNIT * UNIT).clamp(8 * UNIT, 1 << 30)
}
