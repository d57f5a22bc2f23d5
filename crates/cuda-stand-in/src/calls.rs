//! The functions of the driver, under its own names.

// They are described by the driver's documentation, and what their pointers must be is said there
// too.
#![allow(non_snake_case, missing_docs, clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    slice,
};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle,
    CUmemLocation, CUmemLocationType, CUmodule, CUpointer_attribute, CUresult, CUstream,
};

use crate::{
    driver::{Answer, Driver, answer, answer_current},
    kernels::Threads,
    memory::{GRANULARITY, invalid},
    streams::{DEFAULT, Source, Target, Work},
};

/// Hands a result to the program.
///
/// # Safety
///
/// The place must be null or fit for a value of this type.
unsafe fn put<T>(driver: &mut Driver, place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return invalid(&mut driver.violations, "a null pointer for a result");
    }
    // SAFETY: it is not null, and the caller vouches for the rest.
    unsafe { place.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> CUresult {
    answer(|driver| {
        if flags != 0 {
            return invalid(&mut driver.violations, "cuInit with flags");
        }
        driver.start();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    answer(|driver| {
        driver.check_started("cuDeviceGetCount")?;
        let devices = driver.settings.devices as c_int;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, count, devices) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    answer(|driver| {
        driver.check_device("cuDeviceGet", ordinal)?;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, device, ordinal) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    answer(|driver| {
        driver.check_device("cuDeviceGetName", device)?;
        let text = b"Stand-in\0";
        if name.is_null() || usize::try_from(length).unwrap_or(0) < text.len() {
            return invalid(&mut driver.violations, "cuDeviceGetName without room");
        }
        // SAFETY: there is room for the text.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    answer(|driver| {
        driver.check_device("cuDeviceTotalMem", device)?;
        let total = driver.settings.bytes as usize;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, bytes, total) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    answer(|driver| {
        driver.check_device("cuDeviceGetAttribute", device)?;
        if attribute != CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, value, 1) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    answer(|driver| {
        let device = driver.check_device("cuDevicePrimaryCtxRetain", device)?;
        let raw = driver.retain(device) as CUcontext;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, context, raw) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    answer(|driver| {
        let device = driver.check_device("cuDevicePrimaryCtxRelease", device)?;
        driver.release(device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    answer(|driver| driver.push(context as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    answer(|driver| {
        let popped = driver.pop()? as CUcontext;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, context, popped) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    answer_current("cuMemGetInfo", |driver, device| {
        let total_bytes = driver.settings.bytes;
        let free_bytes = total_bytes - driver.memory.used(device).min(total_bytes);
        // SAFETY: the program's pointers are of this type.
        unsafe {
            put(driver, free, free_bytes as usize)?;
            put(driver, total, total_bytes as usize)
        }
    })
}

/// The device of a description of memory, if the memory is to lie on a device that there is.
fn device_of(driver: &mut Driver, name: &str, location: &CUmemLocation) -> Answer<usize> {
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return invalid(&mut driver.violations, &format!("{name} for what is no device"));
    }
    driver.check_device(name, location.id)
}

/// # Safety
///
/// The pointer must be null or to a description.
unsafe fn device_of_properties(driver: &mut Driver, name: &str, property: *const CUmemAllocationProp) -> Answer<usize> {
    // SAFETY: the caller vouches for it.
    match unsafe { property.as_ref() } {
        Some(property) if property.type_ == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => {
            device_of(driver, name, &property.location)
        }
        _ => invalid(&mut driver.violations, &format!("{name} without a description of pinned memory")),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    property: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    answer(|driver| {
        driver.check_started("cuMemGetAllocationGranularity")?;
        // SAFETY: the program's pointers are of these types.
        unsafe {
            device_of_properties(driver, "cuMemGetAllocationGranularity", property)?;
            put(driver, granularity, GRANULARITY as usize)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    bytes: usize,
    _alignment: usize,
    _wish: CUdeviceptr,
    flags: c_ulonglong,
) -> CUresult {
    answer_current("cuMemAddressReserve", |driver, _| {
        check_no_flags(driver, "cuMemAddressReserve", flags)?;
        let start = driver.memory.reserve(&mut driver.violations, bytes as u64)?;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, address, start) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    answer_current("cuMemAddressFree", |driver, _| {
        driver.memory.free_addresses(&mut driver.violations, address, bytes as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    property: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> CUresult {
    answer_current("cuMemCreate", |driver, _| {
        check_no_flags(driver, "cuMemCreate", flags)?;
        // SAFETY: the program's pointer is of this type.
        let device = unsafe { device_of_properties(driver, "cuMemCreate", property) }?;
        let Driver { memory, violations, settings, .. } = driver;
        let created = memory.create(violations, settings, device, bytes as u64)?;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, handle, created) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    answer_current("cuMemRelease", |driver, _| driver.memory.release(&mut driver.violations, handle))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CUresult {
    answer_current("cuMemMap", |driver, _| {
        check_no_flags(driver, "cuMemMap", flags | offset as u64)?;
        driver.memory.map(&mut driver.violations, address, bytes as u64, handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    answer_current("cuMemUnmap", |driver, _| driver.memory.unmap(&mut driver.violations, address, bytes as u64))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    description: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    answer_current("cuMemSetAccess", |driver, _| {
        // SAFETY: the program's pointer, if it is not null, is to at least one description.
        let description = unsafe { description.as_ref() }.filter(|_| count == 1);
        let both_ways = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let Some(CUmemAccessDesc { location, .. }) = description.filter(|description| description.flags == both_ways)
        else {
            return invalid(&mut driver.violations, "cuMemSetAccess other than reading and writing for one device");
        };
        let device = device_of(driver, "cuMemSetAccess", location)?;
        driver.memory.set_access(&mut driver.violations, address, bytes as u64, device)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CUresult {
    answer_current("cuMemAlloc", |driver, device| {
        let Driver { memory, violations, settings, .. } = driver;
        let at = memory.allocate(violations, settings, device, bytes as u64)?;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, address, at) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    answer_current("cuMemFree", |driver, _| driver.memory.free(&mut driver.violations, address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    value: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    answer_current("cuPointerGetAttribute", |driver, _| {
        if attribute != CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let Some(device) = driver.memory.device_of(address) else {
            return invalid(&mut driver.violations, "cuPointerGetAttribute of what is no device memory");
        };
        // SAFETY: of this attribute the program's pointer is to a number.
        unsafe { put(driver, value.cast::<c_int>(), device as c_int) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    answer_current("cuMemHostRegister", |driver, device| {
        driver.host.register(&mut driver.violations, device, address as usize, bytes, flags)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    answer_current("cuMemHostUnregister", |driver, _| driver.host.unregister(&mut driver.violations, address as usize))
}

/// From pageable memory, the bytes are taken at once, and arrive when the default stream is waited
/// for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> CUresult {
    answer_current("cuMemcpyHtoD", |driver, device| {
        driver.memory.check_access(&mut driver.violations, device, to, bytes)?;
        // SAFETY: the program's pointer is to this many bytes.
        let staged = unsafe { slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        let copy = Work::Copy { from: Source::Staged(staged), to: Target::Device(to), bytes };
        driver.enqueue(device, DEFAULT, copy)?;
        if driver.host.holds(from as usize, bytes) {
            return driver.run(device, DEFAULT, None);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> CUresult {
    answer_current("cuMemcpyDtoH", |driver, device| {
        driver.memory.check_access(&mut driver.violations, device, from, bytes)?;
        driver.run(device, DEFAULT, None)?;
        let copy = driver.memory.read(&mut driver.violations, from, bytes)?;
        // SAFETY: the program's pointer is to this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(copy.as_ptr(), to.cast(), bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    answer_current("cuMemcpyHtoDAsync", |driver, current| {
        let device = driver.streams.device_of(&mut driver.violations, current, stream as usize)?;
        driver.memory.check_access(&mut driver.violations, device, to, bytes)?;
        driver.check_registered(from as usize, bytes)?;
        let copy = Work::Copy { from: Source::Host(from as usize), to: Target::Device(to), bytes };
        driver.enqueue(device, stream as usize, copy)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    answer_current("cuMemcpyDtoHAsync", |driver, current| {
        let device = driver.streams.device_of(&mut driver.violations, current, stream as usize)?;
        driver.memory.check_access(&mut driver.violations, device, from, bytes)?;
        driver.check_registered(to as usize, bytes)?;
        let copy = Work::Copy { from: Source::Device(from), to: Target::Host(to as usize), bytes };
        driver.enqueue(device, stream as usize, copy)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    answer_current("cuMemcpyDtoDAsync", |driver, current| {
        let device = driver.streams.device_of(&mut driver.violations, current, stream as usize)?;
        driver.memory.check_access(&mut driver.violations, device, from, bytes)?;
        driver.memory.check_access(&mut driver.violations, device, to, bytes)?;
        if from.abs_diff(to) < bytes as u64 {
            return invalid(&mut driver.violations, "a copy within the device that overlaps itself");
        }
        let copy = Work::Copy { from: Source::Device(from), to: Target::Device(to), bytes };
        driver.enqueue(device, stream as usize, copy)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    answer_current("cuStreamCreate", |driver, device| {
        let created = driver.streams.create(&mut driver.violations, device, flags)? as CUstream;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, stream, created) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    answer_current("cuStreamSynchronize", |driver, device| driver.run(device, stream as usize, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    answer_current("cuStreamDestroy", |driver, device| driver.destroy_stream(device, stream as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    answer_current("cuEventCreate", |driver, device| {
        let created = driver.streams.create_event(&mut driver.violations, device, flags)? as CUevent;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, event, created) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    answer_current("cuEventRecord", |driver, device| {
        driver.streams.record(&mut driver.violations, device, event as usize, stream as usize)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    answer_current("cuEventSynchronize", |driver, _| driver.run_to_event(event as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    answer_current("cuEventDestroy", |driver, _| driver.streams.destroy_event(&mut driver.violations, event as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    answer_current("cuModuleLoadData", |driver, device| {
        if image.is_null() {
            return invalid(&mut driver.violations, "cuModuleLoadData of nothing");
        }
        // SAFETY: the program's pointer is to a text with its end.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        let loaded = driver.kernels.load(&mut driver.violations, device, &text)? as CUmodule;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, module, loaded) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    answer_current("cuModuleGetFunction", |driver, _| {
        // SAFETY: the program's pointer is to a text with its end.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let found = driver.kernels.function(&mut driver.violations, module as usize, &name)? as CUfunction;
        // SAFETY: the program's pointer is of this type.
        unsafe { put(driver, function, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    answer_current("cuModuleUnload", |driver, _| driver.kernels.unload(&mut driver.violations, module as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    answer_current("cuLaunchKernel", |driver, device| {
        let product = |numbers: [c_uint; 3]| numbers.into_iter().map(u64::from).product();
        let threads =
            Threads { groups: product([grid_x, grid_y, grid_z]), in_group: product([block_x, block_y, block_z]) };
        // SAFETY: the program's parameters are those of the kernel.
        unsafe { driver.launch(device, function as usize, threads, stream as usize, parameters) }
    })
}

fn check_no_flags(driver: &mut Driver, name: &str, flags: u64) -> Answer {
    if flags == 0 {
        return Ok(());
    }
    invalid(&mut driver.violations, &format!("{name} with flags or an offset"))
}
