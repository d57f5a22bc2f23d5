//! Acting as the program that asks: what it creates belongs to it and has its umask.

use std::{cell::Cell, io};

use fuser::Request;
use rustix::{
    fs::Mode,
    process::{getegid, geteuid, umask},
    thread::{UnshareFlags, capabilities, set_capabilities, unshare_unsafe},
};

thread_local! {
    /// The umask of this thread, once it has one of its own.
    static UMASK: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Calls `create` as the user, the group and with the umask of the program that asks. The kernel
/// has checked what the program may do, with all its groups; so the capabilities of this process
/// stay.
pub(super) fn as_caller<T>(
    request: &Request,
    mask: u32,
    create: impl FnOnce() -> rustix::io::Result<T>,
) -> io::Result<T> {
    set_umask(mask)?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if (user, group) == (request.uid(), request.gid()) || user != 0 {
        return Ok(create()?);
    }
    let kept = capabilities(None)?;
    set_file_ids(request.uid(), request.gid());
    let created = set_capabilities(None, kept).and_then(|()| create());
    set_file_ids(user, group);
    Ok(created?)
}

/// Sets the umask of this thread alone.
fn set_umask(mask: u32) -> io::Result<()> {
    let own = UMASK.get();
    if own == Some(mask) {
        return Ok(());
    }
    if own.is_none() {
        // SAFETY: only the working directory, the root and the umask are unshared, and only for
        // this thread; descriptors and memory stay shared.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    }
    umask(Mode::from_raw_mode(mask));
    UMASK.set(Some(mask));
    Ok(())
}

/// Sets the ids that this thread creates files with. The calls cannot fail for root.
fn set_file_ids(user: u32, group: u32) {
    // SAFETY: the raw calls change the ids of this thread alone, as intended, and take no pointers.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, group);
        libc::syscall(libc::SYS_setfsuid, user);
    }
}
