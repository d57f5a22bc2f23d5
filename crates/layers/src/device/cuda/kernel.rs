//! The checksum kernel for CUDA.
//!
//! It is compiled in advance to the text in `checksum.ptx`, from which the driver generates machine
//! code for its device. NVRTC 12.9 generated that text from `checksum.cu`; only the version in its
//! header was lowered, so that older drivers accept it too. It has not run on hardware: the
//! stand-in driver does in its place what it would do. The OpenCL kernel, which is the same line by
//! line, runs on PoCL.

use std::{
    ffi::{CStr, c_void},
    ptr,
    sync::Arc,
};

use cudarc::driver::sys;

use super::{context::Context, memory::Allocation};
use crate::{
    Result,
    device::{Place, checksum::SHARES},
};

const PTX: &str = concat!(include_str!("../kernels/checksum.ptx"), "\0");
const FUNCTION: &CStr = c"outcrop_sum_words";
const THREADS_PER_BLOCK: u32 = 256;

/// The loaded kernel, with room for its results.
pub(super) struct Kernel {
    context: Arc<Context>,
    module: sys::CUmodule,
    function: sys::CUfunction,
    sums: Allocation,
}

// SAFETY: modules and functions may be used by any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    pub(super) fn load(context: &Arc<Context>) -> Result<Self> {
        let sums = Allocation::new(Arc::clone(context), (SHARES * size_of::<u64>()) as u64)?;
        let _current = context.enter()?;
        let mut module = ptr::null_mut();
        // SAFETY: the driver reads the text up to its end and writes to the pointer.
        let outcome = unsafe { sys::cuModuleLoadData(&raw mut module, PTX.as_ptr().cast()) };
        context.check("load a kernel", outcome)?;
        let mut kernel = Self { context: Arc::clone(context), module, function: ptr::null_mut(), sums };
        // SAFETY: the module is loaded, and the driver writes to the pointer.
        let outcome = unsafe { sys::cuModuleGetFunction(&raw mut kernel.function, module, FUNCTION.as_ptr()) };
        context.check("find a kernel", outcome)?;
        Ok(kernel)
    }

    /// Begins to sum words in `stream`. The sums are in `sums` once the stream has executed it.
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
        let _current = self.context.enter()?;
        let (mut address, mut length, mut first, mut sums) =
            (at.address(), bytes as u64, first_word, self.sums.address());
        let mut parameters: [*mut c_void; 4] =
            [(&raw mut address).cast(), (&raw mut length).cast(), (&raw mut first).cast(), (&raw mut sums).cast()];
        let blocks = SHARES as u32 / THREADS_PER_BLOCK;
        // SAFETY: the parameters are those of the kernel, and are read before the call returns; the
        // caller guarantees the memory and the stream.
        let outcome = unsafe {
            let (parameters, extra) = (parameters.as_mut_ptr(), ptr::null_mut());
            sys::cuLaunchKernel(self.function, blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, stream, parameters, extra)
        };
        self.context.check("sum words on the device", outcome)?;
        Ok(Place { handle: self.sums.address(), offset: 0 })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the module belongs to this value, and no kernel of it runs, because whoever
        // starts one waits for it.
        self.context.clean("unload a kernel", || unsafe { sys::cuModuleUnload(self.module) });
    }
}
