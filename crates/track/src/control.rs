//! `ioctl` requests that no library has a function for.

use std::{ffi::c_void, os::fd::AsFd};

use rustix::{
    io::Errno,
    ioctl::{Ioctl, IoctlOutput, Opcode, ioctl},
};

/// A request with a structure that the system reads and writes.
struct Request<'a, T> {
    opcode: Opcode,
    argument: &'a mut T,
}

// SAFETY: the pointer is to a whole structure that may be written to; the callers of `control`
// guarantee that it is the right one for the opcode.
unsafe impl<T> Ioctl for Request<'_, T> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.argument).cast()
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        usize::try_from(output).map_err(|_| Errno::INVAL)
    }
}

/// Sends a request and returns the system's result.
///
/// # Safety
///
/// `argument` must be what the request `opcode` of this file takes, and all memory that it points
/// to must be valid for the request.
pub(crate) unsafe fn control<T>(file: impl AsFd, opcode: Opcode, argument: &mut T) -> Result<usize, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { ioctl(file, Request { opcode, argument }) }
}
