//! Calls to the system that have no safe wrapper: leases, and opening a file again.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::OnceLock,
};

use rustix::fs::{Stat, fstat};

/// Which file it is, whatever its names are. Unique as long as somebody has the file open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl FileId {
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&fstat(file)?))
    }
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// What must not be true for a lease to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Nobody has the file open for writing. The descriptor itself must be read-only.
    NoWriter = libc::F_RDLCK as isize,
    /// Nobody else has the file open at all.
    Sole = libc::F_WRLCK as isize,
}

/// Takes a lease. Returns false if it is not granted because others have the file open.
pub(crate) fn take_lease(file: BorrowedFd<'_>, lease: Lease) -> io::Result<bool> {
    // SAFETY: the call takes a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, lease as libc::c_int) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            error => Err(error),
        },
    }
}

/// Lets this process survive that somebody wants a lease back in the moment in which it was only
/// tried for. The signal would end it. It is handled, not ignored, so that programs that are
/// started from here find it as it was.
pub(crate) fn survive_leases() -> io::Result<()> {
    static HANDLED: OnceLock<Option<io::ErrorKind>> = OnceLock::new();
    // SAFETY: the handler does nothing.
    let handle = || unsafe { signal_hook_registry::register(libc::SIGIO, || ()) };
    match HANDLED.get_or_init(|| handle().err().map(|error| error.kind())) {
        None => Ok(()),
        Some(kind) => Err((*kind).into()),
    }
}

/// Gives back whatever lease there is on this descriptor.
pub(crate) fn release_lease(file: BorrowedFd<'_>) {
    // SAFETY: the call takes a number. It fails only if there is no lease.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Whether somebody waits for the sole lease on this descriptor to be given back.
pub(crate) fn is_lease_breaking(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the call takes no argument.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) != libc::F_WRLCK }
}

/// Has the system tell the thread `thread` by `signal` when somebody else opens the file.
pub(crate) fn signal_thread(file: BorrowedFd<'_>, thread: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    const F_SETSIG: libc::c_int = 10;
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;
    #[repr(C)]
    struct Owner {
        kind: libc::c_int,
        id: libc::pid_t,
    }
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    // SAFETY: one call takes a number, the other one reads `owner`, which has the kernel's layout.
    let done = unsafe {
        libc::fcntl(file.as_raw_fd(), F_SETSIG, signal) == 0
            && libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens the file of a descriptor again: with an offset, an access mode and flags of its own.
pub(crate) fn reopen(file: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // SAFETY: the path ends with a zero byte, and nothing is created, so no mode is read.
    let opened = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) };
    if opened < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// The outcome of a call that returns a negative number if it fails.
pub(crate) fn checked(returned: impl Into<i64>) -> io::Result<i64> {
    match returned.into() {
        returned if returned < 0 => Err(io::Error::last_os_error()),
        returned => Ok(returned),
    }
}

/// The path at which the system knows an open file now.
pub(crate) fn path_of(file: impl AsFd) -> std::path::PathBuf {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    std::fs::read_link(link).unwrap_or_else(|_| "(unknown)".into())
}
