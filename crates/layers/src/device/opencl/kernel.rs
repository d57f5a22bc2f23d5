//! The checksum kernel for OpenCL, compiled by the driver when it is first used.

use std::{ffi::CStr, ptr, sync::Arc};

use opencl3::{
    command_queue::enqueue_nd_range_kernel,
    error_codes::ClError,
    kernel::{create_kernel, release_kernel, set_kernel_arg},
    program::{build_program, create_program_with_source, release_program},
    types::{cl_command_queue, cl_int, cl_kernel, cl_mem, cl_program},
};

use super::{Allocation, context::Context};
use crate::{
    Result,
    device::{Place, checksum::SHARES},
};

const SOURCE: &str = include_str!("../kernels/checksum.cl");
const FUNCTION: &CStr = c"outcrop_sum_words";

/// The compiled kernel, with room for its results.
pub(super) struct Kernel {
    context: Arc<Context>,
    program: cl_program,
    /// Null until it has been created from the program.
    raw: cl_kernel,
    sums: Allocation,
}

// SAFETY: any thread may use OpenCL objects, a kernel only one at a time, as here.
unsafe impl Send for Kernel {}

impl Kernel {
    pub(super) fn compile(context: &Arc<Context>) -> Result<Self> {
        let failed = |code: cl_int| context.failure("compile a kernel", code);
        let sums = Allocation::new(Arc::clone(context), (SHARES * size_of::<u64>()) as u64)?;
        let program = create_program_with_source(context.raw(), &[SOURCE]).map_err(failed)?;
        let mut kernel = Self { context: Arc::clone(context), program, raw: ptr::null_mut(), sums };
        build_program(program, &[context.device()], c"-cl-std=CL1.2", None, ptr::null_mut()).map_err(failed)?;
        kernel.raw = create_kernel(program, FUNCTION).map_err(failed)?;
        Ok(kernel)
    }

    /// Begins to sum words in `queue`, which must be in order. The sums are at the returned place
    /// once the queue has executed it.
    ///
    /// # Safety
    ///
    /// The place must be this many bytes of live memory of this device, at a multiple of eight,
    /// until the sum is complete; the queue must be live.
    pub(super) unsafe fn begin(
        &mut self,
        queue: cl_command_queue,
        at: Place,
        first_word: u64,
        bytes: usize,
    ) -> Result<Place> {
        let failed = |code: cl_int| self.context.failure("sum words on the device", code);
        let memory = at.handle as cl_mem;
        let numbers = [at.offset, bytes as u64, first_word];
        let event = set_arguments(self.raw, memory, numbers, self.sums.raw).and_then(|()| {
            let threads = SHARES;
            // SAFETY: the kernel has all of its arguments; the caller guarantees the memory and the
            // queue.
            unsafe {
                let (none, no_events) = (ptr::null(), ptr::null());
                enqueue_nd_range_kernel(queue, self.raw, 1, none, &raw const threads, none, 0, no_events)
            }
        });
        self.context.release_event(event.map_err(failed)?);
        Ok(Place { handle: self.sums.raw as u64, offset: 0 })
    }
}

/// Sets the arguments of the kernel, in its order.
fn set_arguments(
    kernel: cl_kernel,
    memory: cl_mem,
    numbers: [u64; 3],
    sums: cl_mem,
) -> std::result::Result<(), cl_int> {
    // SAFETY: the driver copies each argument, of the size that the kernel declares.
    unsafe {
        set_kernel_arg(kernel, 0, size_of::<cl_mem>(), (&raw const memory).cast())?;
        for (index, number) in (1..).zip(&numbers) {
            set_kernel_arg(kernel, index, size_of::<u64>(), ptr::from_ref(number).cast())?;
        }
        set_kernel_arg(kernel, 4, size_of::<cl_mem>(), (&raw const sums).cast())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: both belong to this value; the driver keeps what is still running.
        let outcome = unsafe {
            let kernel = if self.raw.is_null() { Ok(()) } else { release_kernel(self.raw) };
            kernel.and(release_program(self.program))
        };
        if let Err(code) = outcome {
            tracing::warn!(device = self.context.name(), error = %ClError(code), "cannot release a kernel");
        }
    }
}
