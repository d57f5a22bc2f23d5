//! The end of a program that does not know that versions have failed.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::Once,
};

use outcrop::ErrorKind;
use pyo3::prelude::*;

unsafe extern "C" {
    #[cfg(target_env = "gnu")]
    fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    fn fflush(stream: *mut c_void) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Has the program end with the exit code of a failed directory, if it would end well. Python
/// ignores what happens in functions that it calls at the end, and a batch system would start the
/// next job.
#[pyfunction]
pub(crate) fn _end_badly() {
    static ONCE: Once = Once::new();
    #[cfg(target_env = "gnu")]
    ONCE.call_once(|| {
        // SAFETY: the handler is a function that stays, and does not use its argument.
        let _ = unsafe { on_exit(end, ptr::null_mut()) };
    });
}

/// Called last, as nothing is left of the interpreter. What was registered with the system before
/// it is not called any more.
extern "C" fn end(status: c_int, _argument: *mut c_void) {
    if status == 0 {
        let code = c_int::from(ErrorKind::Storage.exit_code());
        // SAFETY: flushing all streams and ending the process is allowed at its end.
        unsafe {
            fflush(ptr::null_mut());
            _exit(code);
        }
    }
}
