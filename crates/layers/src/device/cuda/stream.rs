//! Streams of copies with CUDA.

use std::{ptr, sync::Arc};

use cudarc::driver::sys;

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

/// A stream that does not synchronise with the program's kernels.
pub(super) struct CudaStream {
    context: Arc<Context>,
    raw: sys::CUstream,
    /// Loaded when they are first needed.
    sum_kernel: Option<SumKernel>,
    hash_kernel: Option<(DeviceHash, HashKernel)>,
}

// SAFETY: a stream may be used by any thread.
unsafe impl Send for CudaStream {}

impl CudaStream {
    pub(super) fn new(context: Arc<Context>) -> Result<Self> {
        let current = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver writes to the pointer.
        context.check("make a stream", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        drop(current);
        Ok(Self { context, raw, sum_kernel: None, hash_kernel: None })
    }
}

impl Stream for CudaStream {
    unsafe fn copy_in(&mut self, bytes: &[u8], to: Place) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller guarantees the place; the bytes are not needed any more when the call
        // returns.
        let outcome = unsafe { sys::cuMemcpyHtoD_v2(to.address(), bytes.as_ptr().cast(), bytes.len()) };
        self.context.check("copy to the device", outcome)?;
        // The call may return before the bytes have arrived, and streams like this one do not wait
        // for the default stream, which does the copy. SAFETY: the null stream always exists.
        self.context.check("copy to the device", unsafe { sys::cuStreamSynchronize(ptr::null_mut()) })
    }

    unsafe fn copy_out(&mut self, from: Place, bytes: &mut [u8]) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller guarantees the place; the bytes have arrived when the call returns.
        let outcome = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from.address(), bytes.len()) };
        self.context.check("copy from the device", outcome)
    }

    unsafe fn begin_copy_in(&mut self, from: *const u8, to: Place, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller guarantees place and memory until the copy has ended.
        let outcome = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address(), from.cast(), bytes, self.raw) };
        self.context.check("copy to the device", outcome)
    }

    unsafe fn begin_copy_out(&mut self, from: Place, to: *mut u8, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: as in `begin_copy_in`.
        let outcome = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.address(), bytes, self.raw) };
        self.context.check("copy from the device", outcome)
    }

    unsafe fn begin_copy_within(&mut self, from: Place, to: Place, bytes: usize) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the caller guarantees both places until the copy has ended.
        let outcome = unsafe { sys::cuMemcpyDtoDAsync_v2(to.address(), from.address(), bytes, self.raw) };
        self.context.check("copy within the device", outcome)
    }

    unsafe fn sum_words(&mut self, at: Place, first_word: u64, bytes: usize) -> Result<u64> {
        let kernel = match &self.sum_kernel {
            Some(kernel) => kernel,
            None => self.sum_kernel.insert(SumKernel::load(&self.context)?),
        };
        // SAFETY: the caller guarantees the place, and this function waits for the kernel; the
        // stream belongs to this value.
        let sums_at = unsafe { kernel.begin(self.raw, at, first_word, bytes) }?;
        self.wait()?;
        let mut sums = vec![0; SHARES * size_of::<u64>()];
        // SAFETY: the kernel has room for this many results.
        unsafe { self.copy_out(sums_at, &mut sums) }?;
        Ok(add_up(&sums))
    }

    unsafe fn begin_hash(&mut self, kind: DeviceHash, blocks: HashBlocks) -> Result<()> {
        if self.hash_kernel.as_ref().is_none_or(|(of, _)| *of != kind) {
            // The kernel that is replaced may still be running.
            self.wait()?;
            self.hash_kernel = Some((kind, HashKernel::load(&self.context, kind)?));
        }
        let Some((_, kernel)) = &self.hash_kernel else { return Ok(()) };
        // SAFETY: the caller guarantees the places; the stream belongs to this value.
        unsafe { kernel.begin(self.raw, kind, blocks) }
    }

    fn record(&mut self) -> Result<Box<dyn Event>> {
        let _current = self.context.enter()?;
        let mut raw = ptr::null_mut();
        // A thread that waits for it sleeps instead of spinning.
        let flags =
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the driver writes to the pointer.
        self.context.check("make an event", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
        let mark = Mark { context: Arc::clone(&self.context), raw };
        // SAFETY: event and stream are live and of one context.
        self.context.check("mark the end of a copy", unsafe { sys::cuEventRecord(mark.raw, self.raw) })?;
        Ok(Box::new(mark))
    }

    fn wait(&mut self) -> Result<()> {
        // Wait by an event, because that sleeps. Without one, wait all the same.
        let Ok(end) = self.record() else {
            let _current = self.context.enter()?;
            // SAFETY: the stream belongs to this value.
            return self.context.check("wait for copies", unsafe { sys::cuStreamSynchronize(self.raw) });
        };
        end.wait()
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: the stream belongs to this value.
        self.context.clean("wait for copies", || unsafe { sys::cuStreamSynchronize(self.raw) });
        // SAFETY: as above, and the stream is empty.
        self.context.clean("close a stream", || unsafe { sys::cuStreamDestroy_v2(self.raw) });
    }
}

/// A recorded event.
struct Mark {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: an event may be used by any thread.
unsafe impl Send for Mark {}

impl Event for Mark {
    fn wait(&self) -> Result<()> {
        let _current = self.context.enter()?;
        // SAFETY: the event belongs to this value.
        self.context.check("wait for a copy", unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the event belongs to this value. If the stream has not reached it yet, the driver
        // destroys it when it has.
        self.context.clean("drop an event", || unsafe { sys::cuEventDestroy_v2(self.raw) });
    }
}
