//! What the preload library asks, and what it is answered. The library includes this file as it is,
//! so it must not use anything but the core library.

/// The environment variable with the name of the socket, which has no file.
pub(crate) const SOCKET: &core::ffi::CStr = c"OUTCROP_PRELOAD_SOCKET";

/// A system call that a thread is about to make. Addresses are those of its process.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Request {
    /// The version of this protocol, [`VERSION`].
    pub(crate) version: u32,
    /// The thread.
    pub(crate) thread: u32,
    /// The number of the call.
    pub(crate) number: u64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

/// The version of requests and replies.
pub(crate) const VERSION: u32 = 1;

/// What to do. With [`DESCRIPTOR`], a descriptor comes along.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Reply {
    /// [`GO`], [`VALUE`], [`FAILED`] or [`DESCRIPTOR`].
    pub(crate) kind: u64,
    /// What the call returns, the error with which it fails, or 1 if the descriptor is closed at
    /// exec.
    pub(crate) value: i64,
}

/// Make the call as it is.
pub(crate) const GO: u64 = 0;
/// Return a value.
pub(crate) const VALUE: u64 = 1;
/// Fail with an error.
pub(crate) const FAILED: u64 = 2;
/// Return the descriptor that comes along.
pub(crate) const DESCRIPTOR: u64 = 3;
