//! Write protection of pages by userfaultfd.
//!
//! All here acts on the process that made the descriptor, also when a forked process uses it:
//! whoever holds a [`Userfault`] checks `process::generation` first.

use std::{
    io,
    mem::MaybeUninit,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use linux_raw_sys::{
    general::{
        _UFFDIO_WRITEPROTECT, UFFD_API, UFFD_EVENT_PAGEFAULT, UFFD_FEATURE_WP_ASYNC, UFFD_FEATURE_WP_UNPOPULATED,
        UFFD_USER_MODE_ONLY, UFFDIO_REGISTER_MODE_WP, uffd_msg, uffdio_api, uffdio_range, uffdio_register,
        uffdio_writeprotect,
    },
    ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_WRITEPROTECT},
};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    ioctl::{Opcode, opcode},
    mm::{UserfaultfdFlags, userfaultfd},
};

use crate::control::control;

/// A write to a protected page of the ranges that are registered here.
pub(crate) struct Userfault {
    file: OwnedFd,
}

impl Userfault {
    /// The system itself unprotects a page that is written to, and nobody waits. Needs no
    /// privilege.
    pub(crate) fn asynchronous() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: without a registered range it does nothing.
        let file = unsafe { userfaultfd(flags) }?;
        Self { file }.with(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED)
    }

    /// Who writes to a protected page waits until somebody has unprotected it, system calls
    /// included.
    pub(crate) fn synchronous() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: without a registered range it does nothing.
        let file = match unsafe { userfaultfd(flags) } {
            Err(Errno::PERM) => by_device(flags).map_err(|_| Errno::PERM),
            outcome => outcome,
        }?;
        Self { file }.with(UFFD_FEATURE_WP_UNPOPULATED)
    }

    fn with(self, features: u32) -> io::Result<Self> {
        let mut api = uffdio_api { api: u64::from(UFFD_API), features: u64::from(features), ioctls: 0 };
        // SAFETY: the structure of this request.
        unsafe { control(&self.file, UFFDIO_API as Opcode, &mut api) }?;
        Ok(self)
    }

    /// Makes the pages of `range` protectable. Does nothing to those that are already, and fails if
    /// some belong to another descriptor, so that for protected pages it is also a proof that they
    /// are this one's.
    pub(crate) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let mut register =
            uffdio_register { range: bounds(range), mode: u64::from(UFFDIO_REGISTER_MODE_WP), ioctls: 0 };
        // SAFETY: the structure of this request. Memory keeps its contents, and what is protected
        // behaves like other memory.
        unsafe { control(&self.file, UFFDIO_REGISTER as Opcode, &mut register) }?;
        if register.ioctls & (1 << _UFFDIO_WRITEPROTECT) == 0 {
            return Err(io::Error::other("this memory cannot be write-protected"));
        }
        Ok(())
    }

    /// Ends protection of `range`. If something else lies there by now, some kernels end what
    /// protection that has; its owner will find that and take it for changed.
    pub(crate) fn unregister(&self, range: &Range<usize>) {
        // SAFETY: the structure of this request.
        let _ = unsafe { control(&self.file, UFFDIO_UNREGISTER as Opcode, &mut bounds(range)) };
    }

    /// Protects registered pages, or unprotects them and wakes who waits to write there.
    pub(crate) fn protect(&self, range: &Range<usize>, is_protected: bool) -> io::Result<()> {
        let mut request = uffdio_writeprotect { range: bounds(range), mode: u64::from(is_protected) };
        loop {
            // SAFETY: the structure of this request; it changes no contents.
            match unsafe { control(&self.file, UFFDIO_WRITEPROTECT as Opcode, &mut request) } {
                // The mappings are being changed by a fork or the like.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                outcome => return Ok(outcome.map(drop)?),
            }
        }
    }

    /// Wakes who waits to write to `range`: they try again.
    pub(crate) fn wake(&self, range: &Range<usize>) {
        // SAFETY: the structure of this request. It can only fail for a range that is none.
        let _ = unsafe { control(&self.file, UFFDIO_WAKE as Opcode, &mut bounds(range)) };
    }

    /// The address of the next write that waits, if any does.
    pub(crate) fn next_write(&self) -> io::Result<Option<usize>> {
        let mut message = [MaybeUninit::<u8>::uninit(); size_of::<uffd_msg>()];
        loop {
            let message = match rustix::io::read(&self.file, &mut message) {
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                outcome => outcome?.0,
            };
            if message.len() < size_of::<uffd_msg>() {
                return Ok(None);
            }
            // SAFETY: the system has filled a whole message, of numbers only.
            let message: uffd_msg = unsafe { std::ptr::read_unaligned(message.as_ptr().cast()) };
            if u32::from(message.event) == UFFD_EVENT_PAGEFAULT {
                // SAFETY: this is what a message of a fault has.
                return Ok(Some(unsafe { message.arg.pagefault.address } as usize));
            }
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// As `userfaultfd`, for those who may open the device of this name.
fn by_device(flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;

    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    const NEW: Opcode = opcode::none(0xaa, 0);
    // SAFETY: this request takes the flags in place of a pointer and gives a new descriptor.
    let made = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&device), NEW as _, flags.bits()) };
    if made < 0 {
        return Err(Errno::PERM);
    }
    // SAFETY: new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn bounds(range: &Range<usize>) -> uffdio_range {
    uffdio_range { start: range.start as u64, len: range.len() as u64 }
}
