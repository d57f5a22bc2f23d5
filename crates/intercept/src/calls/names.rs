//! What a path of a program names.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2},
    io::Errno,
};

use super::caller::Caller;
use crate::stage::FileId;

/// Something that a path names.
pub(super) struct Found {
    /// Open for nothing but to name it.
    pub(super) file: OwnedFd,
    pub(super) stat: Stat,
}

impl Found {
    pub(super) fn id(&self) -> FileId {
        FileId::from(&self.stat)
    }

    pub(super) fn is_regular(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile
    }
}

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    Keep,
}

/// Finds what `path` means to the caller, relative to the directory that it has open as
/// `directory`.
pub(super) fn find(caller: &Caller<'_>, directory: i32, path: &CStr, last: Last) -> io::Result<Found> {
    find_with(caller, directory, path, last, ResolveFlags::empty())
}

pub(super) fn find_with(
    caller: &Caller<'_>,
    directory: i32,
    path: &CStr,
    last: Last,
    resolve: ResolveFlags,
) -> io::Result<Found> {
    if !caller.has_our_names() {
        return Err(io::Error::from_raw_os_error(libc::EXDEV));
    }
    let flags = match last {
        Last::Follow => OFlags::PATH | OFlags::CLOEXEC,
        Last::Keep => OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
    };
    let is_absolute = path.to_bytes().first() == Some(&b'/');
    // What /proc says of the caller, it would say of this process.
    let careful = resolve | ResolveFlags::NO_MAGICLINKS;
    let opened = match is_absolute {
        true => openat2(CWD, path, flags, Mode::empty(), careful),
        false => openat2(caller.directory(directory)?, path, flags, Mode::empty(), careful),
    };
    let file = match opened {
        Err(Errno::LOOP) if is_absolute && resolve.is_empty() => {
            let own = caller.own_path(path).ok_or(Errno::LOOP)?;
            openat2(CWD, own.as_c_str(), flags, Mode::empty(), resolve)?
        }
        opened => opened?,
    };
    let stat = fstat(&file)?;
    Ok(Found { file, stat })
}

/// The directory in which the last name of a path is, and that name.
pub(super) fn find_parent(caller: &Caller<'_>, directory: i32, path: &CStr) -> io::Result<(OwnedFd, CString)> {
    let bytes = path.to_bytes();
    let (parent, name) = match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&bytes[..=at], &bytes[at + 1..]),
        None => (&b"."[..], bytes),
    };
    if matches!(name, b"" | b"." | b"..") {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let found = find(caller, directory, &CString::new(parent)?, Last::Follow)?;
    Ok((found.file, CString::new(name)?))
}

/// Whether this thread may use a file in these ways.
pub(super) fn may(found: &Found, reads: bool, writes: bool) -> io::Result<()> {
    let mut access = rustix::fs::Access::EXISTS;
    access.set(rustix::fs::Access::READ_OK, reads);
    access.set(rustix::fs::Access::WRITE_OK, writes);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found.file.as_fd()));
    Ok(rustix::fs::accessat(CWD, path, access, rustix::fs::AtFlags::EACCESS)?)
}
