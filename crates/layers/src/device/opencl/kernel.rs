//! The kernels for OpenCL, compiled by the driver when they are first used.

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
    device::{
        Place,
        checksum::SHARES,
        hash::{self, DeviceHash, HashBlocks},
    },
};

/// A compiled kernel.
struct Kernel {
    context: Arc<Context>,
    program: cl_program,
    /// Null until it has been created from the program.
    raw: cl_kernel,
}

// SAFETY: any thread may use OpenCL objects, a kernel only one at a time, as here.
unsafe impl Send for Kernel {}

impl Kernel {
    fn compile(context: &Arc<Context>, source: &str, function: &CStr) -> Result<Self> {
        let failed = |code: cl_int| context.failure("compile a kernel", code);
        let program = create_program_with_source(context.raw(), &[source]).map_err(failed)?;
        let mut kernel = Self { context: Arc::clone(context), program, raw: ptr::null_mut() };
        build_program(program, &[context.device()], c"-cl-std=CL1.2", None, ptr::null_mut()).map_err(failed)?;
        kernel.raw = create_kernel(program, function).map_err(failed)?;
        Ok(kernel)
    }

    /// Begins to run it in `queue`, with memory, numbers and room for results as its arguments.
    ///
    /// # Safety
    ///
    /// The arguments must be those of the kernel, and the memory must be live until it has ended;
    /// the queue must be live.
    unsafe fn begin(
        &self,
        queue: cl_command_queue,
        (memory, numbers, results): (u64, [u64; 3], u64),
        threads: usize,
        group_threads: Option<usize>,
    ) -> std::result::Result<(), cl_int> {
        set_arguments(self.raw, memory as cl_mem, numbers, results as cl_mem)?;
        let group_threads = group_threads.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the kernel has all of its arguments; the caller guarantees the memory and the
        // queue.
        let event = unsafe {
            let (no_offset, no_events) = (ptr::null(), ptr::null());
            enqueue_nd_range_kernel(queue, self.raw, 1, no_offset, &raw const threads, group_threads, 0, no_events)
        };
        self.context.release_event(event?);
        Ok(())
    }
}

/// The kernel that hashes blocks.
pub(super) struct HashKernel(Kernel);

impl HashKernel {
    pub(super) fn compile(context: &Arc<Context>, kind: DeviceHash) -> Result<Self> {
        Kernel::compile(context, include_str!("../kernels/hash.c"), kind.function()).map(Self)
    }

    /// Begins to hash blocks in `queue`.
    ///
    /// # Safety
    ///
    /// Both places must be live memory of this device until it has ended: the blocks, and room for
    /// their hashes, at the start of its buffer. The queue must be live.
    pub(super) unsafe fn begin(&self, queue: cl_command_queue, kind: DeviceHash, blocks: HashBlocks) -> Result<()> {
        let HashBlocks { at, bytes, block_bytes, hashes } = blocks;
        let arguments = (at.handle, [at.offset, bytes as u64, block_bytes as u64], hashes.handle);
        let (threads, group) = (kind.threads(bytes.div_ceil(block_bytes)), Some(hash::GROUP_THREADS));
        // SAFETY: these are its arguments; the caller guarantees the rest.
        unsafe { self.0.begin(queue, arguments, threads, group) }
            .map_err(|code| self.0.context.failure("hash blocks on the device", code))
    }
}

/// The kernel that sums words, with room for its results.
pub(super) struct SumKernel {
    kernel: Kernel,
    sums: Allocation,
}

impl SumKernel {
    pub(super) fn compile(context: &Arc<Context>) -> Result<Self> {
        let sums = Allocation::new(Arc::clone(context), (SHARES * size_of::<u64>()) as u64)?;
        let kernel = Kernel::compile(context, include_str!("../kernels/checksum.cl"), c"outcrop_sum_words")?;
        Ok(Self { kernel, sums })
    }

    /// Begins to sum words in `queue`, which must be in order. The sums are at the returned place
    /// once the queue has executed it.
    ///
    /// # Safety
    ///
    /// The place must be this many bytes of live memory of this device, at a multiple of eight,
    /// until the sum is complete; the queue must be live.
    pub(super) unsafe fn begin(
        &self,
        queue: cl_command_queue,
        at: Place,
        first_word: u64,
        bytes: usize,
    ) -> Result<Place> {
        let sums = self.sums.raw as u64;
        let arguments = (at.handle, [at.offset, bytes as u64, first_word], sums);
        // SAFETY: these are its arguments; the caller guarantees the rest.
        unsafe { self.kernel.begin(queue, arguments, SHARES, None) }
            .map_err(|code| self.kernel.context.failure("sum words on the device", code))?;
        Ok(Place { handle: sums, offset: 0 })
    }
}

/// Sets the arguments of a kernel, in its order.
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
