//! Streams of the C library, which open files by themselves.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::ask::{call, set_errno};

/// The flags that a mode of `fopen` stands for. `None` if it is none.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    // What comes after a comma is the name of an encoding.
    let rest = rest.split(|&byte| byte == b',').next().unwrap_or_default();
    let access = if rest.contains(&b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let mut flags = match first {
        b'r' if rest.contains(&b'+') => libc::O_RDWR,
        b'r' => libc::O_RDONLY,
        b'w' => access | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    for (letter, flag) in [(b'e', libc::O_CLOEXEC), (b'x', libc::O_EXCL)] {
        if rest.contains(&letter) {
            flags |= flag;
        }
    }
    Some(flags)
}

/// Opens what a stream is to be on. Returns -1 with `errno` if that fails.
///
/// # Safety
/// Both end with a zero byte.
unsafe fn open(path: *const c_char, mode: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    let Some(flags) = flags_of(unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes()) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    let mode: c_uint = 0o666;
    call(libc::SYS_openat, [libc::AT_FDCWD as u64, path as u64, flags as u64, mode.into(), 0, 0]) as c_int
}

/// Opens a stream.
///
/// # Safety
/// As for the function of this name in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: what the program gave; the descriptor was opened here, and is closed if there is no
    // stream that owns it.
    unsafe {
        let file = open(path, mode);
        if file < 0 {
            return std::ptr::null_mut();
        }
        let stream = libc::fdopen(file, mode);
        if stream.is_null() {
            libc::syscall(libc::SYS_close, file);
        }
        stream
    }
}

/// Opens a stream.
///
/// # Safety
/// As for the function of this name in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: it is the same.
    unsafe { fopen(path, mode) }
}

type Freopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut libc::FILE) -> *mut libc::FILE;

/// The function of the C library, once it is known.
static FREOPEN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Opens another file as a stream.
///
/// # Safety
/// As for the function of this name in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut libc::FILE,
) -> *mut libc::FILE {
    let mut own = FREOPEN.load(Ordering::Relaxed);
    if own.is_null() {
        // SAFETY: the name ends with a zero byte.
        own = unsafe { libc::dlsym(libc::RTLD_NEXT, c"freopen".as_ptr()) };
        FREOPEN.store(own, Ordering::Relaxed);
    }
    if own.is_null() {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    }
    // SAFETY: it is the function of this name.
    let own: Freopen = unsafe { std::mem::transmute(own) };
    // SAFETY: what the program gave, or a path that ends with a zero byte.
    unsafe {
        if path.is_null() {
            return own(path, mode, stream);
        }
        let file = open(path, mode);
        if file < 0 {
            // It closes the stream, and fails in the same way.
            return own(path, mode, stream);
        }
        let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
        write_number(&mut link[14..], file);
        // That it must not be there was checked just now.
        let has = |letter: u8| !libc::strchr(mode, letter.into()).is_null();
        let again = match (has(b'x'), has(b'+'), has(b'e')) {
            (false, ..) => mode,
            (_, false, false) => c"w".as_ptr(),
            (_, false, true) => c"we".as_ptr(),
            (_, true, false) => c"w+".as_ptr(),
            (_, true, true) => c"w+e".as_ptr(),
        };
        let opened = own(link.as_ptr().cast(), again, stream);
        let error = *libc::__errno_location();
        libc::syscall(libc::SYS_close, file);
        set_errno(error);
        opened
    }
}

/// Opens another file as a stream.
///
/// # Safety
/// As for the function of this name in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: it is the same.
    unsafe { freopen(path, mode, stream) }
}

/// Writes a number in decimal.
fn write_number(into: &mut [u8], number: c_int) {
    let mut left = number as u32;
    let digits = (1..).scan(left, |left, _| (*left > 9).then(|| *left /= 10)).count() + 1;
    for place in into[..digits].iter_mut().rev() {
        *place = b'0' + (left % 10) as u8;
        left /= 10;
    }
}
