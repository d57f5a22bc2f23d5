//! Write protection of pages by userfaultfd.
//!
//! A descriptor always acts on the process that created it, even if a forked process uses it. So
//! check `process::generation` before each use of a [`Userfault`].

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

/// A userfaultfd descriptor, which reports writes to protected pages of the registered ranges.
pub(crate) struct Userfault {
    file: OwnedFd,
}

impl Userfault {
    /// The kernel itself unprotects a page at the first write, and no write waits. Needs no
    /// privilege.
    pub(crate) fn asynchronous() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
        // SAFETY: without a registered range it does nothing.
        let file = unsafe { userfaultfd(flags) }?;
        Self { file }.with(UFFD_FEATURE_WP_ASYNC | UFFD_FEATURE_WP_UNPOPULATED)
    }

    /// A write to a protected page, also by a system call, waits until the page is unprotected.
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

    /// Registers the pages of `range`, so that they can be protected. Does nothing for pages that
    /// are already registered here, and fails if some belong to another descriptor. So for
    /// protected pages, success also proves that this descriptor protects them.
    pub(crate) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let mut register =
            uffdio_register { range: bounds(range), mode: u64::from(UFFDIO_REGISTER_MODE_WP), ioctls: 0 };
        // SAFETY: the structure of this request. Memory keeps its contents, and protected memory
        // behaves like other memory.
        unsafe { control(&self.file, UFFDIO_REGISTER as Opcode, &mut register) }?;
        if register.ioctls & (1 << _UFFDIO_WRITEPROTECT) == 0 {
            return Err(io::Error::other("this memory cannot be write-protected"));
        }
        Ok(())
    }

    /// Unregisters `range`. If something else is mapped there now, some kernels end the protection
    /// of that as well; its owner then finds it unprotected, and counts it as changed.
    pub(crate) fn unregister(&self, range: &Range<usize>) {
        // SAFETY: the structure of this request.
        let _ = unsafe { control(&self.file, UFFDIO_UNREGISTER as Opcode, &mut bounds(range)) };
    }

    /// Protects registered pages, or unprotects them and wakes the writes that wait there.
    pub(crate) fn protect(&self, range: &Range<usize>, is_protected: bool) -> io::Result<()> {
        let mut request = uffdio_writeprotect { range: bounds(range), mode: u64::from(is_protected) };
        loop {
            // SAFETY: the structure of this request; it changes no contents.
            match unsafe { control(&self.file, UFFDIO_WRITEPROTECT as Opcode, &mut request) } {
                // The mappings are changing, for example because of a fork.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                outcome => return Ok(outcome.map(drop)?),
            }
        }
    }

    /// Wakes the waiting writes to `range`: they are tried again.
    pub(crate) fn wake(&self, range: &Range<usize>) {
        // SAFETY: the structure of this request. It can fail only for an invalid range.
        let _ = unsafe { control(&self.file, UFFDIO_WAKE as Opcode, &mut bounds(range)) };
    }

    /// The address of the next write that waits, if there is one.
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
            // SAFETY: the system has filled a whole message, which has only numbers.
            let message: uffd_msg = unsafe { std::ptr::read_unaligned(message.as_ptr().cast()) };
            if u32::from(message.event) == UFFD_EVENT_PAGEFAULT {
                // SAFETY: a message about a page fault has this field.
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

/// As `userfaultfd`, through the device file of this name, for those who may open it.
fn by_device(flags: UserfaultfdFlags) -> rustix::io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;

    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    const NEW: Opcode = opcode::none(0xaa, 0);
    // SAFETY: this request takes the flags in place of a pointer and returns a new descriptor.
    let made = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&device), NEW as _, flags.bits()) };
    if made < 0 {
        return Err(Errno::PERM);
    }
    // SAFETY: the descriptor is new, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn bounds(range: &Range<usize>) -> uffdio_range {
    uffdio_range { start: range.start as u64, len: range.len() as u64 }
}
