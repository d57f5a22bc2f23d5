//! The kernels for CUDA.
//!
//! They are compiled in advance to the texts in `checksum.ptx` and `hash.ptx`, from which the
//! driver generates machine code for its device. NVRTC 12.9 generated these texts from
//! `checksum.cu` and `hash.c`; only the version in their headers was lowered, so that older
//! drivers accept them too. They have not run on hardware: the stand-in driver does in their place
//! what they would do. The OpenCL kernels, which are the same line by line, or the same file, run
//! on PoCL.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys;

use super::{context::Context, memory::Allocation};
use crate::{
    Result,
    device::{
        Place,
        checksum::SHARES,
        hash::{self, DeviceHash, HashBlocks},
    },
};

/// Texts with their ends, as the driver wants them.
const SUM_PTX: &str = concat!(include_str!("../kernels/checksum.ptx"), "\0");
const HASH_PTX: &str = concat!(include_str!("../kernels/hash.ptx"), "\0");
const SUM_GROUP_THREADS: usize = 256;

/// A loaded kernel.
struct Kernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: modules and functions may be used by any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    fn load(context: &Arc<Context>, text: &'static str, name: &CStr) -> Result<Self> {
        let _current = context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the driver reads the text up to its end and writes to the pointer.
        let outcome = unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) };
        context.check("load a kernel", outcome)?;
        let mut kernel = Self { context: Arc::clone(context), module, function: ptr::null_mut() };
        // SAFETY: the module is loaded, and the driver writes to the pointer.
        let outcome = unsafe { sys::cuModuleGetFunction(&raw mut kernel.function, module, name.as_ptr()) };
        context.check("find a kernel", outcome)?;
        Ok(kernel)
    }

    /// Begins to run it in `stream`, in groups of threads.
    ///
    /// # Safety
    ///
    /// The parameters must be those of the kernel, and the memory must be live until it has ended;
    /// the stream must be live.
    unsafe fn begin<const N: usize>(
        &self,
        attempt: &'static str,
        stream: sys::CUstream,
        mut parameters: [u64; N],
        (threads, group_threads): (usize, usize),
    ) -> Result<()> {
        let _current = self.context.enter()?;
        let mut pointers = parameters.each_mut().map(|parameter| ptr::from_mut(parameter).cast::<c_void>());
        let (groups, group) = (threads.div_ceil(group_threads) as u32, group_threads as u32);
        // SAFETY: the parameters are read before the call returns; the caller guarantees the rest.
        let outcome = unsafe {
            let (parameters, extra) = (pointers.as_mut_ptr(), ptr::null_mut());
            sys::cuLaunchKernel(self.function, groups, 1, 1, group, 1, 1, 0, stream, parameters, extra)
        };
        self.context.check(attempt, outcome)
    }
}

/// The kernel that hashes blocks.
pub(super) struct HashKernel(Kernel);

impl HashKernel {
    pub(super) fn load(context: &Arc<Context>, kind: DeviceHash) -> Result<Self> {
        Kernel::load(context, HASH_PTX, kind.function()).map(Self)
    }

    /// Begins to hash blocks in `stream`.
    ///
    /// # Safety
    ///
    /// Both places must be live memory of this device until it has ended: the blocks, and room for
    /// their hashes. The stream must be live.
    pub(super) unsafe fn begin(&self, stream: sys::CUstream, kind: DeviceHash, blocks: HashBlocks) -> Result<()> {
        let HashBlocks { at, bytes, block_bytes, hashes } = blocks;
        let parameters = [at.address(), 0, bytes as u64, block_bytes as u64, hashes.address()];
        let threads = (kind.threads(bytes.div_ceil(block_bytes)), hash::GROUP_THREADS);
        // SAFETY: these are its parameters; the caller guarantees the rest.
        unsafe { self.0.begin("hash blocks on the device", stream, parameters, threads) }
    }
}

/// The kernel that sums words, with room for its results.
pub(super) struct SumKernel {
    kernel: Kernel,
    sums: Allocation,
}

impl SumKernel {
    pub(super) fn load(context: &Arc<Context>) -> Result<Self> {
        let sums = Allocation::new(Arc::clone(context), (SHARES * size_of::<u64>()) as u64)?;
        Ok(Self { kernel: Kernel::load(context, SUM_PTX, c"outcrop_sum_words")?, sums })
    }

    /// Begins to sum words in `stream`. The sums are at the returned place once the stream has
    /// executed it.
    ///
    /// # Safety
    ///
    /// The place must be this many bytes of live memory of this device, at a multiple of eight,
    /// until the sum is complete; the stream must be live.
    pub(super) unsafe fn begin(
        &self,
        stream: sys::CUstream,
        at: Place,
        first_word: u64,
        bytes: usize,
    ) -> Result<Place> {
        let parameters = [at.address(), bytes as u64, first_word, self.sums.address()];
        // SAFETY: these are its parameters; the caller guarantees the rest.
        unsafe { self.kernel.begin("sum words on the device", stream, parameters, (SHARES, SUM_GROUP_THREADS)) }?;
        Ok(Place { handle: self.sums.address(), offset: 0 })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the module belongs to this value, and no kernel of it runs, because whoever
        // starts one waits for it, or for its stream.
        self.context.clean("unload a kernel", || unsafe { sys::cuModuleUnload(self.module) });
    }
}
