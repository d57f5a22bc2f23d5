//! Memory with CUDA: address space that is mapped chunk by chunk, buffers, and page-locked host
//! memory.

use std::{ops::Range, ptr::NonNull, sync::Arc};

use cudarc::driver::sys::{self, CUdeviceptr};

use super::{Cuda, context::Context};
use crate::{
    Result,
    device::{Buffer, Reservation},
};

/// Memory that is only on the device.
fn properties(context: &Context) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

fn location(context: &Context) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device() }
}

/// Sizes and addresses of chunks are multiples of this.
pub(super) fn granularity_bytes(context: &Context) -> Result<u64> {
    let _current = context.enter()?;
    let mut bytes = 0;
    let kind = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let properties = properties(context);
    // SAFETY: the driver reads the properties and writes to the number.
    let outcome = unsafe { sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, kind) };
    context.check("query the granularity", outcome)?;
    Ok(bytes as u64)
}

/// Reserved addresses. They are freed after the last chunk.
struct Addresses {
    context: Arc<Context>,
    start: CUdeviceptr,
    bytes: usize,
}

impl Drop for Addresses {
    fn drop(&mut self) {
        // SAFETY: this is the whole reservation, and every mapped chunk keeps this value alive, so
        // none is mapped.
        self.context.clean("free address space", || unsafe { sys::cuMemAddressFree(self.start, self.bytes) });
    }
}

/// Address space in which chunks are mapped one by one.
pub(super) struct Space {
    device: Cuda,
    addresses: Arc<Addresses>,
}

impl Space {
    pub(super) fn reserve(device: Cuda, bytes: u64) -> Result<Self> {
        let context = &device.context;
        let _current = context.enter()?;
        let mut start = 0;
        // SAFETY: the driver writes to the address, and a reservation affects nothing that exists.
        let outcome = unsafe { sys::cuMemAddressReserve(&raw mut start, bytes as usize, 0, 0, 0) };
        context.check_memory(bytes, outcome)?;
        let addresses = Addresses { context: Arc::clone(context), start, bytes: bytes as usize };
        Ok(Self { addresses: Arc::new(addresses), device })
    }
}

impl Reservation for Space {
    fn map(&mut self, range: Range<u64>) -> Result<Buffer> {
        let bytes = range.end - range.start;
        let chunk = Chunk::map(Arc::clone(&self.addresses), range)?;
        // SAFETY: the chunk is mapped with this length, and lives as long as the buffer.
        Ok(unsafe { Buffer::new(&self.device, chunk.at, bytes, chunk) })
    }
}

/// Physical memory without an address.
struct Physical {
    context: Arc<Context>,
    handle: sys::CUmemGenericAllocationHandle,
}

impl Physical {
    fn new(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let mut handle = 0;
        let properties = properties(context);
        // SAFETY: the driver reads the properties and writes to the handle.
        let outcome = unsafe { sys::cuMemCreate(&raw mut handle, bytes as usize, &raw const properties, 0) };
        context.check_memory(bytes, outcome)?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle belongs to this value, and if it was mapped, it has been unmapped.
        self.context.clean("free device memory", || unsafe { sys::cuMemRelease(self.handle) });
    }
}

/// Mapped memory. Dropping it unmaps and frees the memory, and the addresses if it was the last
/// chunk.
struct Chunk {
    at: CUdeviceptr,
    bytes: usize,
    /// These two are dropped in this order, after the memory is unmapped.
    _physical: Physical,
    addresses: Arc<Addresses>,
}

impl Chunk {
    fn map(addresses: Arc<Addresses>, range: Range<u64>) -> Result<Self> {
        let context = Arc::clone(&addresses.context);
        let _current = context.enter()?;
        let at = addresses.start + range.start;
        let bytes = (range.end - range.start) as usize;
        let physical = Physical::new(&context, bytes as u64)?;
        // SAFETY: the addresses are reserved and have no memory yet, and the memory has the same
        // length.
        context.check_memory(bytes as u64, unsafe { sys::cuMemMap(at, bytes, 0, physical.handle, 0) })?;
        let chunk = Self { at, bytes, _physical: physical, addresses };
        let access = sys::CUmemAccessDesc {
            location: location(&context),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the addresses were mapped above, and the driver reads one description.
        let outcome = unsafe { sys::cuMemSetAccess(at, bytes, &raw const access, 1) };
        context.check("give access to device memory", outcome)?;
        Ok(chunk)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, and nobody uses it any more: every user keeps the chunk.
        self.addresses.context.clean("unmap device memory", || unsafe { sys::cuMemUnmap(self.at, self.bytes) });
    }
}

/// Memory for a program.
pub(super) struct Allocation {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl Allocation {
    pub(super) fn new(context: Arc<Context>, bytes: u64) -> Result<Self> {
        let current = context.enter()?;
        let mut address = 0;
        // SAFETY: the driver writes to the address.
        let outcome = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) };
        context.check_memory(bytes, outcome)?;
        drop(current);
        Ok(Self { context, address })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the memory belongs to this value, and nobody uses it any more: every user keeps
        // the buffer.
        self.context.clean("free device memory", || unsafe { sys::cuMemFree_v2(self.address) });
    }
}

/// Host memory that is page-locked.
pub(super) struct Locked {
    context: Arc<Context>,
    address: NonNull<u8>,
}

// SAFETY: the address is only passed back to the driver, which any thread may do.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    /// # Safety
    ///
    /// The memory must stay mapped for as long as the result lives.
    pub(super) unsafe fn new(context: Arc<Context>, address: NonNull<u8>, bytes: usize) -> Result<Self> {
        let current = context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the caller keeps the memory mapped, and locking it changes no byte.
        let outcome = unsafe { sys::cuMemHostRegister_v2(address.as_ptr().cast(), bytes, flags) };
        context.check("register host memory", outcome)?;
        drop(current);
        Ok(Self { context, address })
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let address = self.address.as_ptr().cast();
        // SAFETY: this is what was registered, and no copy from or to it is in flight.
        self.context.clean("release host memory", || unsafe { sys::cuMemHostUnregister(address) });
    }
}
