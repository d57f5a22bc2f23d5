//! Devices with an OpenCL driver, found at run time.
//!
//! OpenCL cannot reserve address space: a chunk is a buffer object, created when it is mapped. It
//! is filled with zeroes at once, because drivers provide the memory of a new buffer only at its
//! first use. Nor can OpenCL page-lock memory that it has not allocated: a buffer with
//! `CL_MEM_USE_HOST_PTR` may have a copy on the device that differs from the host's while it
//! exists, so the host memory could not be used freely. Instead, copies from and to any host memory
//! may be in flight, and the driver does the rest. So nothing is registered.

mod context;
mod kernel;
mod stream;

use std::{
    ops::Range,
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
};

use opencl3::{
    command_queue::enqueue_fill_buffer,
    device::{CL_DEVICE_TYPE_ALL, Device as Description, get_device_ids},
    error_codes::ClError,
    memory::{
        CL_MEM_CONTEXT, CL_MEM_READ_WRITE, CL_MEM_SIZE, create_buffer, get_mem_object_info, release_mem_object,
        retain_mem_object,
    },
    platform::platform::get_platform_ids,
    types::{cl_context, cl_device_id, cl_int, cl_mem},
};

use self::{context::Context, stream::Queue};
use super::{Buffer, Device, DeviceKind, FoundDevice, Registration, Reservation, Stream, default_chunk_bytes};
use crate::{Error, Result};

/// A device with an OpenCL driver.
#[derive(Debug, Clone)]
pub struct OpenCl {
    context: Arc<Context>,
    allocation_bytes_max: u64,
}

/// A device that a driver has found.
#[derive(Debug)]
struct Found {
    /// A `cl_device_id`.
    id: usize,
    model: String,
    total_bytes: u64,
    allocation_bytes_max: u64,
}

/// The devices of this machine.
pub(super) fn list() -> Result<Vec<FoundDevice>> {
    let list = found()?.iter().enumerate().map(|(index, found)| FoundDevice {
        kind: DeviceKind::OpenCl,
        index,
        model: found.model.clone(),
        total_bytes: found.total_bytes,
    });
    Ok(list.collect())
}

/// The devices of all platforms, in the driver's order.
///
/// They are queried once, by one thread: if a second thread queries PoCL 3.1 at the same time, it
/// gets a device without memory.
fn found() -> Result<&'static [Found]> {
    static FOUND: OnceLock<std::result::Result<Vec<Found>, String>> = OnceLock::new();
    FOUND.get_or_init(find).as_deref().map_err(|reason| Error::NoDriver {
        kind: DeviceKind::OpenCl,
        library: "libOpenCL.so.1",
        reason: reason.clone(),
    })
}

fn find() -> std::result::Result<Vec<Found>, String> {
    let platforms = get_platform_ids().map_err(|code| ClError(code).to_string())?;
    // A platform without a device returns an error.
    let ids = platforms.into_iter().flat_map(|id| get_device_ids(id, CL_DEVICE_TYPE_ALL).unwrap_or_default());
    Ok(ids.map(Found::describe).collect())
}

impl Found {
    fn describe(id: cl_device_id) -> Self {
        let device = Description::new(id);
        Self {
            id: id as usize,
            model: device.name().unwrap_or_else(|_| "unknown".to_owned()),
            total_bytes: device.global_mem_size().unwrap_or(0),
            allocation_bytes_max: device.max_mem_alloc_size().unwrap_or(0),
        }
    }
}

impl OpenCl {
    /// Opens device `index`, counted from 0, in a context of its own.
    pub fn open(index: usize) -> Result<Self> {
        let list = found()?;
        let no_device = || Error::NoDevice { kind: DeviceKind::OpenCl, index, count: list.len() };
        let found = list.get(index).ok_or_else(no_device)?;
        let context = Context::new(format!("opencl {index}"), found.id as cl_device_id, found.total_bytes)?;
        Ok(Self::new(context, found))
    }

    /// Uses a device in the program's own context, so that the program can save from and restore to
    /// its own `cl_mem`s.
    ///
    /// # Safety
    ///
    /// The context and the device must be valid, and the device must belong to the context.
    pub unsafe fn in_context(context: cl_context, device: cl_device_id) -> Result<Self> {
        let index = found()?.iter().position(|found| found.id == device as usize);
        let name = index.map_or_else(|| "opencl".to_owned(), |index| format!("opencl {index}"));
        let found = Found::describe(device);
        // SAFETY: the caller guarantees both.
        let context = unsafe { Context::share(name, context, device, found.total_bytes) }?;
        Ok(Self::new(context, &found))
    }

    fn new(context: Context, found: &Found) -> Self {
        Self { context: Arc::new(context), allocation_bytes_max: found.allocation_bytes_max }
    }

    fn allocate(&self, bytes: u64) -> Result<Allocation> {
        Allocation::new(Arc::clone(&self.context), bytes)
    }
}

impl Device for OpenCl {
    fn name(&self) -> &str {
        self.context.name()
    }

    fn identity(&self) -> usize {
        self.context.raw() as usize
    }

    fn total_bytes(&self) -> u64 {
        self.context.total_bytes()
    }

    /// OpenCL cannot query this: it is the total minus what was allocated through this context.
    fn free_bytes(&self) -> Result<u64> {
        Ok(self.total_bytes().saturating_sub(self.context.used_bytes()))
    }

    fn chunk_bytes(&self) -> u64 {
        default_chunk_bytes(self.total_bytes()).min(self.allocation_bytes_max)
    }

    fn granularity_bytes(&self) -> u64 {
        1
    }

    fn reserve(&self, _bytes: u64) -> Result<Box<dyn Reservation>> {
        let queue = Queue::new(Arc::clone(&self.context))?;
        Ok(Box::new(Room { device: self.clone(), queue }))
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer> {
        let allocation = self.allocate(bytes)?;
        // SAFETY: the allocation has this length, and lives as long as the buffer.
        Ok(unsafe { Buffer::new(self, allocation.raw as u64, bytes, allocation) })
    }

    unsafe fn adopt(&self, handle: u64, bytes: u64) -> Result<Buffer> {
        let raw = handle as cl_mem;
        let asked = |what| get_mem_object_info(raw, what).map_err(|code| self.context.failure("query a buffer", code));
        let context = isize::from(asked(CL_MEM_CONTEXT)?);
        if context as usize != self.identity() {
            let other = "another OpenCL context".to_owned();
            return Err(Error::OtherDevice { device: self.name().to_owned(), other });
        }
        let there_are = usize::from(asked(CL_MEM_SIZE)?) as u64;
        if there_are < bytes {
            return Err(Error::BufferTooSmall { device: self.name().to_owned(), range: 0..bytes, bytes: there_are });
        }
        // SAFETY: the caller guarantees the handle.
        unsafe { retain_mem_object(raw) }.map_err(|code| self.context.failure("keep a buffer", code))?;
        let allocation = Allocation { context: Arc::clone(&self.context), raw, claimed_bytes: 0 };
        // SAFETY: its length was queried, and the reference taken above keeps it alive.
        Ok(unsafe { Buffer::new(self, handle, bytes, allocation) })
    }

    fn needs_registration(&self) -> bool {
        false
    }

    unsafe fn register(&self, _address: NonNull<u8>, _bytes: usize) -> Result<Registration> {
        Ok(Box::new(()))
    }

    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Queue::new(Arc::clone(&self.context))?))
    }
}

/// Creates chunks one by one.
struct Room {
    device: OpenCl,
    /// To fill new chunks.
    queue: Queue,
}

impl Reservation for Room {
    fn map(&mut self, range: Range<u64>) -> Result<Buffer> {
        let bytes = range.end - range.start;
        let allocation = self.device.allocate(bytes)?;
        let context = &self.device.context;
        let full = |code: cl_int| context.full(bytes, code);
        // Fill with the longest pattern that OpenCL allows, if the length is a multiple of it.
        let zeroes = [0_u8; 128];
        let pattern_bytes = if bytes.is_multiple_of(zeroes.len() as u64) { zeroes.len() } else { 1 };
        // SAFETY: queue and buffer are live and belong to one context, and the call copies the
        // pattern.
        let event = unsafe {
            let pattern = zeroes.as_ptr().cast();
            enqueue_fill_buffer(
                self.queue.raw(),
                allocation.raw,
                pattern,
                pattern_bytes,
                0,
                bytes as usize,
                0,
                ptr::null(),
            )
        };
        context.release_event(event.map_err(full)?);
        self.queue.finish().map_err(full)?;
        // SAFETY: the allocation has this length, and lives as long as the buffer.
        Ok(unsafe { Buffer::new(&self.device, allocation.raw as u64, bytes, allocation) })
    }
}

/// A buffer object.
struct Allocation {
    context: Arc<Context>,
    raw: cl_mem,
    /// How many of the bytes claimed in the context are for it.
    claimed_bytes: u64,
}

// SAFETY: any thread may use OpenCL objects; this one is only released.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(context: Arc<Context>, bytes: u64) -> Result<Self> {
        context.claim(bytes)?;
        // SAFETY: a new buffer without host memory affects nobody else.
        match unsafe { create_buffer(context.raw(), CL_MEM_READ_WRITE, bytes as usize, ptr::null_mut()) } {
            Ok(raw) => Ok(Self { context, raw, claimed_bytes: bytes }),
            Err(code) => {
                context.unclaim(bytes);
                Err(context.full(bytes, code))
            }
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.context.unclaim(self.claimed_bytes);
        // SAFETY: the reference belongs to this value. The driver keeps the memory until copies in
        // flight have ended.
        if let Err(code) = unsafe { release_mem_object(self.raw) } {
            tracing::warn!(device = self.context.name(), error = %ClError(code), "cannot free device memory");
        }
    }
}
