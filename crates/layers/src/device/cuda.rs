//! NVIDIA devices, through the CUDA driver interface, found at run time.
//!
//! This has not run on real hardware. It is tested with the stand-in driver of this workspace,
//! which implements the same calls and checks the rules of a real driver.
//!
//! All work is done in the device's primary context, which programs that use the runtime interface
//! use as well. It is made current for each call, and the program's own context is restored after
//! it.

mod context;
mod kernel;
mod memory;
mod stream;

use std::{ffi::c_int, ptr::NonNull, sync::Arc};

use cudarc::driver::sys;

use self::{
    context::Context,
    memory::{Allocation, Locked, Space},
    stream::CudaStream,
};
use super::{Buffer, Device, DeviceKind, FoundDevice, Registration, Reservation, Stream, default_chunk_bytes};
use crate::{Error, Result};

/// An NVIDIA device.
#[derive(Debug, Clone)]
pub struct Cuda {
    context: Arc<Context>,
    total_bytes: u64,
    granularity_bytes: u64,
}

/// The devices of this machine.
pub(super) fn list() -> Result<Vec<FoundDevice>> {
    let describe = |index: usize| {
        let (model, total_bytes) = context::describe(index)?;
        Ok(FoundDevice { kind: DeviceKind::Cuda, index, model, total_bytes })
    };
    (0..context::count()?).map(describe).collect()
}

impl Cuda {
    /// Opens device `index`, counted from 0.
    pub fn open(index: usize) -> Result<Self> {
        let count = context::count()?;
        if index >= count {
            return Err(Error::NoDevice { kind: DeviceKind::Cuda, index, count });
        }
        let (_, total_bytes) = context::describe(index)?;
        let context = Arc::new(Context::open(index)?);
        let granularity_bytes = memory::granularity_bytes(&context)?;
        Ok(Self { context, total_bytes, granularity_bytes })
    }
}

impl Device for Cuda {
    fn name(&self) -> &str {
        self.context.name()
    }

    fn identity(&self) -> usize {
        self.context.identity()
    }

    fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn free_bytes(&self) -> Result<u64> {
        let _current = self.context.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes to the two numbers.
        let outcome = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        self.context.check("query its free memory", outcome)?;
        Ok(free as u64)
    }

    fn chunk_bytes(&self) -> u64 {
        default_chunk_bytes(self.total_bytes)
    }

    fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    fn reserve(&self, bytes: u64) -> Result<Box<dyn Reservation>> {
        Ok(Box::new(Space::reserve(self.clone(), bytes)?))
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        let allocation = Allocation::new(Arc::clone(&self.context), bytes)?;
        // SAFETY: the allocation has this length, and lives as long as the buffer.
        Ok(unsafe { Buffer::new(self, allocation.address(), bytes, allocation) })
    }

    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer> {
        let _current = self.context.enter()?;
        let mut ordinal: c_int = -1;
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the driver writes a number of the type of this attribute.
        let outcome = unsafe { sys::cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, handle) };
        self.context.check("query a buffer", outcome)?;
        if usize::try_from(ordinal) != Ok(self.context.index()) {
            let other = format!("cuda {ordinal}");
            return Err(Error::OtherDevice { device: self.name().to_owned(), other });
        }
        // SAFETY: the caller guarantees the length, and that the memory lives as long as the
        // buffer.
        Ok(unsafe { Buffer::new(self, handle, bytes, Arc::clone(&self.context)) })
    }

    fn needs_registration(&self) -> bool {
        true
    }

    unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<Registration> {
        // SAFETY: the caller keeps the memory mapped.
        Ok(Box::new(unsafe { Locked::new(Arc::clone(&self.context), address, bytes) }?))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(CudaStream::new(Arc::clone(&self.context))?))
    }
}
