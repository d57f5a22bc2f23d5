//! An OpenCL context with one device, and its errors.

use std::{
    io, ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use opencl3::{
    context::context::{create_context, release_context, retain_context},
    error_codes::{
        CL_DEVICE_NOT_AVAILABLE, CL_INVALID_BUFFER_SIZE, CL_INVALID_COMMAND_QUEUE, CL_INVALID_CONTEXT,
        CL_INVALID_DEVICE, CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, ClError,
    },
    event::release_event,
    types::{cl_context, cl_device_id, cl_event, cl_int},
};

use crate::{Error, Result};

/// A context. It is released when its last user is dropped.
#[derive(Debug)]
pub(super) struct Context {
    name: String,
    raw: cl_context,
    device: cl_device_id,
    total_bytes: u64,
    /// How many bytes of device memory were allocated through it.
    used_bytes: AtomicU64,
}

// SAFETY: any thread may use OpenCL objects.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Creates a context.
    pub(super) fn new(name: String, device: cl_device_id, total_bytes: u64) -> Result<Self> {
        match create_context(&[device], ptr::null(), None, ptr::null_mut()) {
            Ok(raw) => Ok(Self { name, raw, device, total_bytes, used_bytes: AtomicU64::new(0) }),
            Err(code) => Err(failure(&name, "open the device", code)),
        }
    }

    /// A reference to an existing context.
    ///
    /// # Safety
    ///
    /// The context and the device must be valid, and the device must belong to the context.
    pub(super) unsafe fn share(name: String, raw: cl_context, device: cl_device_id, total_bytes: u64) -> Result<Self> {
        // SAFETY: the caller guarantees the context.
        match unsafe { retain_context(raw) } {
            Ok(()) => Ok(Self { name, raw, device, total_bytes, used_bytes: AtomicU64::new(0) }),
            Err(code) => Err(failure(&name, "share a context", code)),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn raw(&self) -> cl_context {
        self.raw
    }

    pub(super) fn device(&self) -> cl_device_id {
        self.device
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed)
    }

    /// Counts memory that is about to be allocated. Returns an error if that exceeds the device's
    /// memory: drivers may promise more than they have.
    pub(super) fn claim(&self, bytes: u64) -> Result<()> {
        let add = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.total_bytes);
        let Err(used) = self.used_bytes.fetch_update(Relaxed, Relaxed, add) else { return Ok(()) };
        let reason = format!("{used} of {} are in use", self.total_bytes);
        Err(Error::DeviceFull { device: self.name.clone(), bytes, reason })
    }

    /// Undoes a claim.
    pub(super) fn unclaim(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Relaxed);
    }

    /// The error for a code, if memory was requested.
    pub(super) fn full(&self, bytes: u64, code: cl_int) -> Error {
        match code {
            CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_OUT_OF_RESOURCES | CL_OUT_OF_HOST_MEMORY | CL_INVALID_BUFFER_SIZE => {
                Error::DeviceFull { device: self.name.clone(), bytes, reason: ClError(code).to_string() }
            }
            _ => self.failure("allocate device memory", code),
        }
    }

    /// The error for a code otherwise.
    pub(super) fn failure(&self, attempt: &'static str, code: cl_int) -> Error {
        failure(&self.name, attempt, code)
    }

    /// Releases a reference to an event.
    pub(super) fn release_event(&self, event: cl_event) {
        // SAFETY: the caller owns a reference to the event, and passes it on.
        if let Err(code) = unsafe { release_event(event) } {
            tracing::warn!(device = self.name, error = %ClError(code), "cannot release an event");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the reference belongs to this value, and everything created with it has been
        // released.
        if let Err(code) = unsafe { release_context(self.raw) } {
            tracing::warn!(device = self.name, error = %ClError(code), "cannot release the context");
        }
    }
}

/// OpenCL has no code for a lost device. But these codes mean that objects that were valid are not
/// valid any more.
fn is_lost(code: cl_int) -> bool {
    matches!(code, CL_DEVICE_NOT_AVAILABLE | CL_INVALID_DEVICE | CL_INVALID_CONTEXT | CL_INVALID_COMMAND_QUEUE)
}

fn failure(device: &str, attempt: &'static str, code: cl_int) -> Error {
    let reason = ClError(code).to_string();
    if is_lost(code) {
        return Error::DeviceLost { device: device.to_owned(), reason };
    }
    Error::Broken { layer: device.to_owned(), attempt, source: io::Error::other(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_gone_is_told_from_other_failures() {
        assert!(matches!(failure("opencl 0", "copy", CL_DEVICE_NOT_AVAILABLE), Error::DeviceLost { .. }));
        assert!(matches!(failure("opencl 0", "copy", CL_INVALID_COMMAND_QUEUE), Error::DeviceLost { .. }));
        let other = failure("opencl 0", "copy", CL_OUT_OF_RESOURCES);
        assert!(matches!(other, Error::Broken { .. }));
        assert!(other.to_string().contains("CL_OUT_OF_RESOURCES"), "{other}");
    }
}
