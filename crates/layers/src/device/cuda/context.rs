//! The CUDA driver library, the primary context of a device, and its errors.

use std::{
    ffi::{CStr, c_char, c_int},
    io,
    marker::PhantomData,
    ptr,
    sync::OnceLock,
};

use cudarc::driver::sys::{self, CUresult};

use crate::{DeviceKind, Error, Result};

/// All functions of the driver that are called. `cudarc` panics if one is missing, so they are
/// looked up first.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemGetInfo_v2",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuPointerGetAttribute",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuLaunchKernel",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
];

/// Loads and initialises the driver, once. Returns an error if there is no usable driver.
fn start() -> Result<()> {
    static OUTCOME: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    OUTCOME.get_or_init(try_start).clone().map_err(|reason| Error::NoDriver {
        kind: DeviceKind::Cuda,
        library: "libcuda",
        reason,
    })
}

fn try_start() -> std::result::Result<(), String> {
    // SAFETY: loading a library runs its code, and whoever installed it is trusted.
    if !unsafe { sys::is_culib_present() } {
        return Err("it cannot be loaded".to_owned());
    }
    // SAFETY: as above; it can be loaded, so this does not panic.
    let library = unsafe { sys::culib() };
    for name in FUNCTIONS {
        // SAFETY: the function is only looked up, not called, so its type does not matter.
        if let Err(error) = unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) } {
            return Err(format!("it lacks {name} and is too old: {error}"));
        }
    }
    // SAFETY: the library is loaded and has this function.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NO_DEVICE => Ok(()),
        code => Err(format!("it does not start: {code:?}")),
    }
}

/// How many devices there are.
pub(super) fn count() -> Result<usize> {
    start()?;
    let mut count: c_int = 0;
    // SAFETY: the driver writes to the number.
    match unsafe { sys::cuDeviceGetCount(&raw mut count) } {
        // The answer of a driver that found no device when it was initialised.
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_NOT_INITIALIZED => Ok(0),
        code => check("cuda", "count devices", code).map(|()| usize::try_from(count).unwrap_or(0)),
    }
}

/// The model and the memory of a device.
pub(super) fn describe(index: usize) -> Result<(String, u64)> {
    let (name, device) = find(index)?;
    let mut model = [0 as c_char; 256];
    // SAFETY: the driver writes a text of at most that length, with a terminating zero.
    check(&name, "query its name", unsafe { sys::cuDeviceGetName(model.as_mut_ptr(), model.len() as c_int, device) })?;
    let mut bytes = 0;
    // SAFETY: the driver writes to the number.
    check(&name, "query its memory", unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) })?;
    // SAFETY: the array ends with a zero, whatever the driver wrote before it.
    let model = unsafe { CStr::from_ptr(model.as_ptr()) };
    Ok((model.to_string_lossy().into_owned(), bytes as u64))
}

/// The name in messages, and the driver's handle, of a device.
fn find(index: usize) -> Result<(String, sys::CUdevice)> {
    let name = format!("cuda {index}");
    let mut device = 0;
    // SAFETY: the driver writes to the number.
    check(&name, "find the device", unsafe { sys::cuDeviceGet(&raw mut device, index as c_int) })?;
    Ok((name, device))
}

/// A reference to the primary context of a device.
#[derive(Debug)]
pub(super) struct Context {
    name: String,
    index: usize,
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: a context may be current to any number of threads at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn open(index: usize) -> Result<Self> {
        let (name, device) = find(index)?;
        let mut has_mapping: c_int = 0;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        // SAFETY: the driver writes to the number.
        let outcome = unsafe { sys::cuDeviceGetAttribute(&raw mut has_mapping, attribute, device) };
        check(&name, "query its features", outcome)?;
        if has_mapping == 0 {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it cannot map memory chunk by chunk");
            return Err(Error::Broken { layer: name, attempt: "use the device", source });
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the driver writes to the pointer.
        check(&name, "open the device", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) })?;
        Ok(Self { name, index, device, raw })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The driver's handle of the device.
    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }

    pub(super) fn identity(&self) -> usize {
        self.raw as usize
    }

    /// Makes it current for this thread until the result is dropped.
    pub(super) fn enter(&self) -> Result<Current> {
        // SAFETY: the context lives at least as long as this value.
        self.check("use the device", unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        Ok(Current { _here: PhantomData })
    }

    /// Converts a result of the driver.
    pub(super) fn check(&self, attempt: &'static str, code: CUresult) -> Result<()> {
        check(&self.name, attempt, code)
    }

    /// The same, for an allocation of memory.
    pub(super) fn check_memory(&self, bytes: u64, code: CUresult) -> Result<()> {
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(Error::DeviceFull { device: self.name.clone(), bytes, reason: format!("{code:?}") });
        }
        self.check("allocate device memory", code)
    }

    /// Runs a cleanup. A failure can only be logged. If the device is lost, there is nothing to
    /// clean up.
    pub(super) fn clean(&self, attempt: &'static str, give_back: impl FnOnce() -> CUresult) {
        match self.enter().and_then(|_current| self.check(attempt, give_back())) {
            Ok(()) => {}
            Err(error @ Error::DeviceLost { .. }) => tracing::debug!(attempt, %error, "nothing to give back"),
            Err(error) => tracing::warn!(%error, "a resource may be left on the device"),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the reference belongs to this value, and everything created in the context is
        // gone, because it would have kept this value alive.
        let outcome = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
        if let Err(error) = self.check("close the device", outcome) {
            tracing::warn!(%error, "the device stays open");
        }
    }
}

/// The context is current for this thread. Dropping it restores the previous one.
pub(super) struct Current {
    /// Prevents sending it to another thread.
    _here: PhantomData<*const ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: undoes `enter`. Contexts are pushed and popped in nested order on each thread,
        // because this value is never sent to another.
        let code = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
        if code != CUresult::CUDA_SUCCESS {
            tracing::warn!(?code, "cannot restore the program's own CUDA context");
        }
    }
}

/// After these errors, no call in the context succeeds any more.
fn is_lost(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

fn check(device: &str, attempt: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let (device, reason) = (device.to_owned(), format!("{code:?}"));
    if is_lost(code) {
        return Err(Error::DeviceLost { device, reason });
    }
    Err(Error::Broken { layer: device, attempt, source: io::Error::other(reason) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A function that is called without being looked up first would panic with an old driver.
    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let sources = [
            include_str!("../cuda.rs"),
            include_str!("context.rs"),
            include_str!("kernel.rs"),
            include_str!("memory.rs"),
            include_str!("stream.rs"),
        ];
        let calls = sources.iter().flat_map(|source| source.split("sys::cu").skip(1));
        let names = calls.filter_map(|rest| rest.split('(').next()).filter(|name| !name.contains(char::is_whitespace));
        let called: BTreeSet<_> =
            names.filter(|name| name.starts_with(char::is_uppercase)).map(|name| format!("cu{name}")).collect();
        assert_eq!(called, FUNCTIONS.iter().map(|&name| name.to_owned()).collect());
    }
}
