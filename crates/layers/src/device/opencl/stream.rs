//! Queues of copies with OpenCL.

use std::{ptr, sync::Arc};

use opencl3::{
    command_queue::{
        create_command_queue, enqueue_copy_buffer, enqueue_marker_with_wait_list, enqueue_read_buffer,
        enqueue_write_buffer, finish, flush, release_command_queue,
    },
    error_codes::ClError,
    event::wait_for_events,
    types::{CL_BLOCKING, CL_NON_BLOCKING, cl_bool, cl_command_queue, cl_event, cl_int, cl_mem},
};

use super::{
    context::Context,
    kernel::{HashKernel, SumKernel},
};
use crate::{
    Result,
    device::{
        Event, Place, Stream,
        checksum::{SHARES, add_up},
        hash::{DeviceHash, HashBlocks},
    },
};

/// An in-order command queue.
pub(super) struct Queue {
    context: Arc<Context>,
    raw: cl_command_queue,
    /// Compiled when they are first needed.
    sum_kernel: Option<SumKernel>,
    hash_kernel: Option<(DeviceHash, HashKernel)>,
}

// SAFETY: any thread may use OpenCL objects.
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        // SAFETY: the context is live and has this device.
        let raw = unsafe { create_command_queue(context.raw(), context.device(), 0) }
            .map_err(|code| context.failure("make a command queue", code))?;
        Ok(Self { context, raw, sum_kernel: None, hash_kernel: None })
    }

    pub(super) fn raw(&self) -> cl_command_queue {
        self.raw
    }

    /// Waits for all queued commands.
    pub(super) fn finish(&self) -> std::result::Result<(), cl_int> {
        finish(self.raw)
    }

    /// Releases the event of a command of which only the success matters.
    fn accept(&self, attempt: &'static str, outcome: std::result::Result<cl_event, cl_int>) -> Result<()> {
        let event = outcome.map_err(|code| self.context.failure(attempt, code))?;
        self.context.release_event(event);
        Ok(())
    }

    /// # Safety
    ///
    /// As for `Stream::copy_in`, or for `Stream::begin_copy_in` if it does not block.
    unsafe fn write(&self, from: *const u8, to: Place, bytes: usize, blocking: cl_bool) -> Result<()> {
        let (memory, offset) = (to.handle as cl_mem, to.offset as usize);
        // SAFETY: the caller guarantees both places.
        let outcome =
            unsafe { enqueue_write_buffer(self.raw, memory, blocking, offset, bytes, from.cast(), 0, ptr::null()) };
        self.accept("copy to the device", outcome)
    }

    /// # Safety
    ///
    /// As for `Stream::copy_out`, or for `Stream::begin_copy_out` if it does not block.
    unsafe fn read(&self, from: Place, to: *mut u8, bytes: usize, blocking: cl_bool) -> Result<()> {
        let (memory, offset) = (from.handle as cl_mem, from.offset as usize);
        // SAFETY: the caller guarantees both places.
        let outcome =
            unsafe { enqueue_read_buffer(self.raw, memory, blocking, offset, bytes, to.cast(), 0, ptr::null()) };
        self.accept("copy from the device", outcome)
    }
}

impl Stream for Queue {
    unsafe fn copy_in(&mut self, bytes: &[u8], to: Place) -> Result<()> {
        // SAFETY: the caller guarantees the place, and the slice outlives a blocking call.
        unsafe { self.write(bytes.as_ptr(), to, bytes.len(), CL_BLOCKING) }
    }

    unsafe fn copy_out(&mut self, from: Place, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: as in `copy_in`.
        unsafe { self.read(from, bytes.as_mut_ptr(), bytes.len(), CL_BLOCKING) }
    }

    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees place and memory.
        unsafe { self.write(from, to, bytes, CL_NON_BLOCKING) }
    }

    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees place and memory.
        unsafe { self.read(from, to, bytes, CL_NON_BLOCKING) }
    }

    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees both places.
        let outcome = unsafe {
            let (from_memory, to_memory) = (from.handle as cl_mem, to.handle as cl_mem);
            let (from_offset, to_offset) = (from.offset as usize, to.offset as usize);
            enqueue_copy_buffer(self.raw, from_memory, to_memory, from_offset, to_offset, bytes, 0, ptr::null())
        };
        self.accept("copy within the device", outcome)
    }

    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64> {
        let kernel = match &self.sum_kernel {
            Some(kernel) => kernel,
            None => self.sum_kernel.insert(SumKernel::compile(&self.context)?),
        };
        // SAFETY: the caller guarantees the place, and this function waits for the kernel; the
        // queue belongs to this value.
        let sums_at = unsafe { kernel.begin(self.raw, at, first_word, bytes) }?;
        let mut sums = vec![0; SHARES * size_of::<u64>()];
        // SAFETY: the kernel has room for this many results. The queue is in order, so this waits
        // for the kernel.
        unsafe { self.copy_out(sums_at, &mut sums) }?;
        Ok(add_up(&sums))
    }

    unsafe fn begin_hash(&mut self, kind: DeviceHash, blocks: HashBlocks) -> Result<()> {
        let kernel = match &self.hash_kernel {
            Some((of, kernel)) if *of == kind => kernel,
            _ => &self.hash_kernel.insert((kind, HashKernel::compile(&self.context, kind)?)).1,
        };
        // SAFETY: the caller guarantees the places; the queue belongs to this value.
        unsafe { kernel.begin(self.raw, kind, blocks) }
    }

    fn record(&mut self) -> Result<Box<dyn Event>> {
        // SAFETY: a marker without a list waits for all commands before it.
        let raw = unsafe { enqueue_marker_with_wait_list(self.raw, 0, ptr::null()) }
            .map_err(|code| self.context.failure("mark the end of a copy", code))?;
        let marker = Marker { context: Arc::clone(&self.context), raw };
        // Without a flush, a driver may delay the copies until somebody waits for them.
        flush(self.raw).map_err(|code| self.context.failure("begin a copy", code))?;
        Ok(Box::new(marker))
    }

    fn wait(&mut self) -> Result<()> {
        self.finish().map_err(|code| self.context.failure("wait for copies", code))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue belongs to this value, and is empty once `finish` has returned.
        let outcome = self.finish().and_then(|()| unsafe { release_command_queue(self.raw) });
        if let Err(code) = outcome {
            tracing::warn!(device = self.context.name(), error = %ClError(code), "cannot release a command queue");
        }
    }
}

/// The event of a marker.
struct Marker {
    context: Arc<Context>,
    raw: cl_event,
}

// SAFETY: any thread may use OpenCL objects.
unsafe impl Send for Marker {}

impl Event for Marker {
    fn wait(&self) -> Result<()> {
        wait_for_events(&[self.raw]).map_err(|code| self.context.failure("wait for a copy", code))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        self.context.release_event(self.raw);
    }
}
