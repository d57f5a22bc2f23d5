//! Which processes are alive: a lock file that a process holds for as long as it lives.
//!
//! The system releases the lock when the process ends, in whatever way. Only the lock counts, not
//! the file or its contents. So anybody may remove the file at any time. After taking the lock, a
//! process checks that the name still refers to the file that it has locked.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, fchmod, fstat, openat, statat, unlinkat},
    io::Errno,
};

use crate::lock::{Bytes, Description, Holder, explained, is_open_here};

/// How many times to open a lock file again that others remove or replace at the same time.
const ATTEMPTS_MAX: usize = 1000;
/// How long to wait for those that hold a shared lock for a moment.
const PASSING: Duration = Duration::from_millis(1);

/// A lock file that shows that this process is alive. Dropping it releases the lock, and leaves the
/// file.
///
/// A forked child neither keeps the lock nor releases it.
#[must_use = "others take this process for dead when this is dropped"]
pub struct Alive {
    held: Description,
}

/// Which file to lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// A new file, with exactly this mode.
    New(Mode),
    /// An existing file.
    Old,
    /// Either: it is created if it is missing.
    Any,
}

impl Alive {
    /// Takes the lock file `path`, which is created if it is missing. `None` if another process, or
    /// another part of this one, holds it.
    pub fn hold(path: &Path) -> io::Result<Option<Self>> {
        Self::hold_at(CWD, path, Which::Any).map_err(explained)
    }

    /// As `hold`, in the open directory `directory`. Also `None` if the file has been removed
    /// meanwhile.
    pub(crate) fn hold_at(
        directory: BorrowedFd<'_>,
        name: impl AsRef<Path>,
        which: Which,
    ) -> rustix::io::Result<Option<Self>> {
        let name = name.as_ref();
        for _ in 0..ATTEMPTS_MAX {
            let held = match Description::open(|| open(directory, name, which)) {
                // It was created by another process just now.
                Err(Errno::EXIST) if which == Which::Any => continue,
                opened => opened?,
            };
            if held.try_lock(Bytes::ALL)? {
                match is_same(directory, name, held.as_fd()) {
                    Ok(true) => return Ok(Some(Self { held })),
                    Ok(false) | Err(Errno::NOENT) if which == Which::Any => continue,
                    Ok(false) | Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(errno),
                }
            }
            if matches!(which, Which::New(_)) || held.holder(Bytes::ALL)? == Holder::Exclusive {
                return Ok(None);
            }
            // Only processes that waited for another holder hold the lock, for a moment.
            thread::sleep(PASSING);
        }
        Err(Errno::AGAIN)
    }

    /// Whether this process took it. False in a forked child.
    pub fn is_ours(&self) -> bool {
        self.held.is_ours()
    }

    /// The file. In a forked child it is closed, or another file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alive")
    }
}

/// Watches the lock file of another process, without ever holding it.
pub struct Watch {
    file: Description,
}

impl Watch {
    /// Opens the lock file `path`; `None` if there is none.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        Self::open_at(CWD, path).map_err(explained)
    }

    pub(crate) fn open_at(directory: BorrowedFd<'_>, name: impl AsRef<Path>) -> rustix::io::Result<Option<Self>> {
        match Description::open(|| open_plain(directory, name.as_ref(), OFlags::RDONLY)) {
            Ok(file) => Ok(Some(Self { file })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether a process holds it.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(self.file.holder(Bytes::ALL).map_err(explained)? == Holder::Exclusive)
    }

    /// Waits, without polling, until no process holds it.
    pub fn wait(&self) -> io::Result<()> {
        self.wait_for_end().map_err(explained)
    }

    pub(crate) fn wait_for_end(&self) -> rustix::io::Result<()> {
        self.file.lock_shared(Bytes::ALL)?;
        self.file.unlock(Bytes::ALL)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Whether a process holds the lock file `path`. False if there is no such file.
pub fn is_alive(path: &Path) -> io::Result<bool> {
    Watch::open(path)?.map_or(Ok(false), |watch| watch.is_alive())
}

/// Whether it is this process that holds the lock file `path`, by another value, if anybody does.
pub fn is_held_here(path: &Path) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|file| is_open_here(&file))
}

fn open(directory: BorrowedFd<'_>, name: &Path, which: Which) -> rustix::io::Result<OwnedFd> {
    match which {
        Which::Old => open_plain(directory, name, OFlags::RDWR),
        Which::New(mode) => make(directory, name, mode),
        // Not with O_CREAT in one call: `fs.protected_regular` refuses that for a file of another
        // user.
        Which::Any => match open_plain(directory, name, OFlags::RDWR) {
            Err(Errno::NOENT) => open_new(directory, name, Mode::from_raw_mode(0o666)),
            opened => opened,
        },
    }
}

/// Opens an existing regular file. Never blocks, and follows no symbolic link.
pub(crate) fn open_plain(directory: BorrowedFd<'_>, name: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// Creates a new file, with exactly this mode.
pub(crate) fn make(directory: BorrowedFd<'_>, name: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let file = open_new(directory, name, mode)?;
    // The umask may have removed permissions that others need.
    if let Err(errno) = fchmod(&file, mode) {
        let _ = unlinkat(directory, name, AtFlags::empty());
        return Err(errno);
    }
    Ok(file)
}

fn open_new(directory: BorrowedFd<'_>, name: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, mode)
}

/// Whether `name` in `directory` is the same file as `open`.
pub(crate) fn is_same(directory: BorrowedFd<'_>, name: &Path, open: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let there = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let here = fstat(open)?;
    Ok((there.st_dev, there.st_ino) == (here.st_dev, here.st_ino))
}
