//! Device memory: addresses, what lies behind them, and who may use it; and which host memory is
//! registered.

use std::{collections::BTreeMap, ops::Range};

use cudarc::driver::sys::CUresult;
use outcrop_memory::{Access, Maps};

use crate::driver::{Answer, Settings, Violations, take_one};

/// Lengths and places of mappings are multiples of this, as on most devices.
pub(crate) const GRANULARITY: u64 = 2 << 20;
/// No two reservations or allocations touch each other, so that running over the end of one is
/// seen.
const GAP: u64 = GRANULARITY;
/// Where addresses begin: nothing of the program lies there. A multiple of the granularity.
const ADDRESS_FIRST: u64 = 0x00DE_0000_0000_0000;

/// All memory of all devices.
pub(crate) struct Memory {
    address_next: u64,
    handle_next: u64,
    /// Start and length of address ranges.
    reserved: BTreeMap<u64, u64>,
    /// By handle.
    physical: BTreeMap<u64, Physical>,
    /// By start.
    mapped: BTreeMap<u64, Mapped>,
}

/// Memory without an address.
struct Physical {
    device: usize,
    bytes: Vec<u8>,
    /// It stays until it is both released and unmapped.
    is_released: bool,
    is_mapped: bool,
}

/// Addresses that have memory.
struct Mapped {
    bytes: u64,
    handle: u64,
    has_access: bool,
    /// Made by `cuMemAlloc`, and to be freed as a whole.
    is_allocation: bool,
}

impl Memory {
    pub(crate) const fn new() -> Self {
        Self {
            address_next: ADDRESS_FIRST,
            handle_next: 1,
            reserved: BTreeMap::new(),
            physical: BTreeMap::new(),
            mapped: BTreeMap::new(),
        }
    }

    /// The bytes of a device that are in use.
    pub(crate) fn used(&self, device: usize) -> u64 {
        let own = self.physical.values().filter(|physical| physical.device == device);
        own.map(|physical| physical.bytes.len() as u64).sum()
    }

    pub(crate) fn reserve(&mut self, violations: &mut Violations, bytes: u64) -> Answer<u64> {
        check_granular(violations, "cuMemAddressReserve", &[bytes])?;
        let start = self.addresses(bytes);
        self.reserved.insert(start, bytes);
        Ok(start)
    }

    pub(crate) fn free_addresses(&mut self, violations: &mut Violations, start: u64, bytes: u64) -> Answer {
        if self.reserved.get(&start) != Some(&bytes) {
            return invalid(violations, "cuMemAddressFree of what is not, or no longer, a whole reservation");
        }
        if self.mapped.range(start..start + bytes).next().is_some() {
            return invalid(violations, "cuMemAddressFree of addresses that are mapped");
        }
        self.reserved.remove(&start);
        Ok(())
    }

    /// New memory without an address.
    pub(crate) fn create(
        &mut self,
        violations: &mut Violations,
        settings: &mut Settings,
        device: usize,
        bytes: u64,
    ) -> Answer<u64> {
        check_granular(violations, "cuMemCreate", &[bytes])?;
        self.provide(settings, device, bytes)
    }

    pub(crate) fn release(&mut self, violations: &mut Violations, handle: u64) -> Answer {
        let physical = self.physical.get_mut(&handle).filter(|physical| !physical.is_released);
        let Some(physical) = physical else {
            return invalid(violations, "cuMemRelease of what was never created or is released");
        };
        physical.is_released = true;
        self.drop_unused(handle);
        Ok(())
    }

    pub(crate) fn map(&mut self, violations: &mut Violations, at: u64, bytes: u64, handle: u64) -> Answer {
        check_granular(violations, "cuMemMap", &[at, bytes])?;
        let range = at..at.saturating_add(bytes);
        if !self.reserved.iter().any(|(&start, &length)| start <= at && range.end <= start + length) {
            return invalid(violations, "cuMemMap at addresses that are not reserved");
        }
        let physical = self.physical.get_mut(&handle).filter(|physical| !physical.is_released);
        let Some(physical) = physical else {
            return invalid(violations, "cuMemMap of memory that was never created or is released");
        };
        if physical.bytes.len() as u64 != bytes {
            return invalid(violations, "cuMemMap of another length than the memory has");
        }
        if overlaps(&self.mapped, &range) {
            return Err(violations.add(CUresult::CUDA_ERROR_ALREADY_MAPPED, "cuMemMap at addresses that are mapped"));
        }
        physical.is_mapped = true;
        self.mapped.insert(at, Mapped { bytes, handle, has_access: false, is_allocation: false });
        Ok(())
    }

    pub(crate) fn set_access(&mut self, violations: &mut Violations, at: u64, bytes: u64, device: usize) -> Answer {
        let Some(mapped) = self.mapped.get_mut(&at).filter(|mapped| mapped.bytes == bytes && !mapped.is_allocation)
        else {
            return invalid(violations, "cuMemSetAccess to what is not mapped");
        };
        if self.physical.get(&mapped.handle).is_none_or(|physical| physical.device != device) {
            return invalid(violations, "cuMemSetAccess for another device than the memory's");
        }
        mapped.has_access = true;
        Ok(())
    }

    pub(crate) fn unmap(&mut self, violations: &mut Violations, at: u64, bytes: u64) -> Answer {
        let is_whole = |mapped: &&Mapped| mapped.bytes == bytes && !mapped.is_allocation;
        let Some(handle) = self.mapped.get(&at).filter(is_whole).map(|mapped| mapped.handle) else {
            return invalid(violations, "cuMemUnmap of what is not, or no longer, mapped");
        };
        self.forget(at, handle);
        Ok(())
    }

    pub(crate) fn allocate(
        &mut self,
        violations: &mut Violations,
        settings: &mut Settings,
        device: usize,
        bytes: u64,
    ) -> Answer<u64> {
        if bytes == 0 {
            return invalid(violations, "cuMemAlloc of nothing");
        }
        let handle = self.provide(settings, device, bytes)?;
        let at = self.addresses(bytes.div_ceil(GRANULARITY) * GRANULARITY);
        self.mapped.insert(at, Mapped { bytes, handle, has_access: true, is_allocation: true });
        if let Some(physical) = self.physical.get_mut(&handle) {
            (physical.is_mapped, physical.is_released) = (true, true);
        }
        Ok(at)
    }

    pub(crate) fn free(&mut self, violations: &mut Violations, at: u64) -> Answer {
        let Some(handle) = self.mapped.get(&at).filter(|mapped| mapped.is_allocation).map(|mapped| mapped.handle)
        else {
            return invalid(violations, "cuMemFree of what was never allocated or is freed");
        };
        self.forget(at, handle);
        Ok(())
    }

    /// The device of an address.
    pub(crate) fn device_of(&self, address: u64) -> Option<usize> {
        let (start, mapped) = self.mapped.range(..=address).next_back()?;
        let is_inside = address < start + mapped.bytes;
        self.physical.get(&mapped.handle).filter(|_| is_inside).map(|physical| physical.device)
    }

    /// A copy of what lies at an address.
    pub(crate) fn read(&self, violations: &mut Violations, at: u64, bytes: usize) -> Answer<Vec<u8>> {
        let mut copy = Vec::with_capacity(bytes);
        for (handle, part) in self.parts(violations, at, bytes)? {
            copy.extend_from_slice(&self.physical[&handle].bytes[part]);
        }
        Ok(copy)
    }

    /// Puts bytes at an address.
    pub(crate) fn write(&mut self, violations: &mut Violations, at: u64, bytes: &[u8]) -> Answer {
        let mut rest = bytes;
        for (handle, part) in self.parts(violations, at, bytes.len())? {
            let (now, later) = rest.split_at(part.len());
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.bytes[part].copy_from_slice(now);
            }
            rest = later;
        }
        Ok(())
    }

    /// Whether a device may use all of what lies at addresses.
    pub(crate) fn check_access(&self, violations: &mut Violations, device: usize, at: u64, bytes: usize) -> Answer {
        for (handle, _) in self.parts(violations, at, bytes)? {
            if self.physical.get(&handle).is_none_or(|physical| physical.device != device) {
                return invalid(violations, "use of device memory by a device that has no access to it");
            }
        }
        Ok(())
    }

    /// Which parts of which memory lie at addresses, if all of them may be used.
    pub(crate) fn parts(&self, violations: &mut Violations, at: u64, bytes: usize) -> Answer<Vec<(u64, Range<usize>)>> {
        let end = at.saturating_add(bytes as u64);
        let mut parts = Vec::new();
        let mut next = at;
        while next < end {
            let found = self.mapped.range(..=next).next_back();
            let Some((start, mapped)) = found.filter(|(start, mapped)| next < *start + mapped.bytes) else {
                return invalid(violations, "a copy from or to device memory that is not, or no longer, mapped");
            };
            if !mapped.has_access {
                return invalid(violations, "a copy from or to device memory without access to it");
            }
            let part_end = end.min(start + mapped.bytes);
            parts.push((mapped.handle, (next - start) as usize..(part_end - start) as usize));
            next = part_end;
        }
        Ok(parts)
    }

    /// The addresses that are reserved, which no device has to itself.
    pub(crate) fn left_addresses(&self) -> Vec<String> {
        self.reserved.values().map(|bytes| format!("{bytes} bytes of addresses")).collect()
    }

    pub(crate) fn left(&self, device: usize) -> Vec<String> {
        let mut left = Vec::new();
        let own = |physical: &&Physical| physical.device == device;
        let unreleased = self.physical.values().filter(own).filter(|physical| !physical.is_released);
        left.extend(unreleased.map(|physical| format!("{} bytes of memory", physical.bytes.len())));
        let mapped = self.mapped.values().filter(|mapped| self.physical.get(&mapped.handle).filter(own).is_some());
        left.extend(mapped.map(|mapped| {
            let kind = if mapped.is_allocation { "allocated" } else { "mapped" };
            format!("{} {kind} bytes", mapped.bytes)
        }));
        left
    }

    /// Memory of a device, if it has any left and is to give it.
    fn provide(&mut self, settings: &mut Settings, device: usize, bytes: u64) -> Answer<u64> {
        if self.used(device).saturating_add(bytes) > settings.bytes || !take_one(&mut settings.allocations_left) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let handle = self.handle_next;
        self.handle_next += 1;
        let bytes = vec![0; bytes as usize];
        self.physical.insert(handle, Physical { device, bytes, is_released: false, is_mapped: false });
        Ok(handle)
    }

    /// Addresses that were never used before, so that use of old ones is seen.
    fn addresses(&mut self, bytes: u64) -> u64 {
        let start = self.address_next;
        self.address_next += bytes + GAP;
        start
    }

    fn forget(&mut self, at: u64, handle: u64) {
        self.mapped.remove(&at);
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.is_mapped = false;
        }
        self.drop_unused(handle);
    }

    fn drop_unused(&mut self, handle: u64) {
        if self.physical.get(&handle).is_some_and(|physical| physical.is_released && !physical.is_mapped) {
            self.physical.remove(&handle);
        }
    }
}

/// Host memory that is page-locked, by its start.
pub(crate) struct HostMemory {
    registered: BTreeMap<usize, Registered>,
}

struct Registered {
    bytes: usize,
    /// In whose context it was registered.
    device: usize,
}

/// All flags that memory can be registered with.
const REGISTER_FLAGS: u32 = 0b1111;

impl HostMemory {
    pub(crate) const fn new() -> Self {
        Self { registered: BTreeMap::new() }
    }

    pub(crate) fn register(
        &mut self,
        violations: &mut Violations,
        device: usize,
        start: usize,
        bytes: usize,
        flags: u32,
    ) -> Answer {
        if start == 0 || bytes == 0 || flags > REGISTER_FLAGS {
            return invalid(violations, "cuMemHostRegister of nothing, or with flags that there are none of");
        }
        let before = self.registered.range(..start + bytes).next_back();
        if before.is_some_and(|(&other, registered)| other + registered.bytes > start) {
            let code = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
            return Err(violations.add(code, "cuMemHostRegister of what is registered"));
        }
        if !is_mapped(start..start + bytes) {
            return invalid(violations, "cuMemHostRegister of what the process cannot read and write");
        }
        self.registered.insert(start, Registered { bytes, device });
        Ok(())
    }

    /// A real driver would not notice that the memory is gone, but its device might still write
    /// there.
    pub(crate) fn unregister(&mut self, violations: &mut Violations, start: usize) -> Answer {
        let Some(registered) = self.registered.remove(&start) else {
            let code = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
            return Err(violations.add(code, "cuMemHostUnregister of what is not, or no longer, registered"));
        };
        if is_mapped(start..start + registered.bytes) {
            return Ok(());
        }
        invalid(violations, "cuMemHostUnregister after the process has given the memory back")
    }

    /// Whether all of a piece is registered.
    pub(crate) fn holds(&self, start: usize, bytes: usize) -> bool {
        let before = self.registered.range(..=start).next_back();
        before.is_some_and(|(&other, registered)| start + bytes <= other + registered.bytes)
    }

    pub(crate) fn left(&self, device: usize) -> Vec<String> {
        let own = self.registered.values().filter(|registered| registered.device == device);
        own.map(|registered| format!("{} registered bytes of host memory", registered.bytes)).collect()
    }
}

/// Whether this process can read and write all of a piece of its memory.
fn is_mapped(wanted: Range<usize>) -> bool {
    // Where the system does not tell, everything is held to be so.
    Maps::now().and_then(|maps| maps.allows(&wanted, Access::ReadWrite)).unwrap_or(true)
}

pub(crate) fn invalid<T>(violations: &mut Violations, rule: &str) -> Answer<T> {
    Err(violations.add(CUresult::CUDA_ERROR_INVALID_VALUE, rule))
}

fn check_granular(violations: &mut Violations, name: &str, numbers: &[u64]) -> Answer {
    if numbers.iter().all(|number| number.is_multiple_of(GRANULARITY)) && numbers.last() != Some(&0) {
        return Ok(());
    }
    invalid(violations, &format!("{name} of what is not a multiple of the granularity"))
}

/// Whether a piece that begins before the end of `range` ends after its start.
fn overlaps(mapped: &BTreeMap<u64, Mapped>, range: &Range<u64>) -> bool {
    mapped.range(..range.end).next_back().is_some_and(|(start, mapped)| start + mapped.bytes > range.start)
}
