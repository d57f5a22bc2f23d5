//! Who is alive: a lock file that a process holds for as long as it lives.
//!
//! The system gives the lock up when the process ends, in whatever way. What is written in the file
//! means nothing, and whether it exists says nothing: only the lock does. So anybody may remove it
//! at any time, and who has taken the lock looks whether the name still leads to the file that it
//! has locked.

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

use crate::lock::{Bytes, Description, Holder, explained};

/// How often a lock file is opened again that somebody else removes or replaces in the same moment.
const ATTEMPTS_MAX: usize = 1000;
/// How long those take at least who keep a lock together for a moment.
const PASSING: Duration = Duration::from_millis(1);

/// A lock file that says that this process lives. Dropping it says that it does no more, and leaves
/// the file.
///
/// A forked child neither keeps the lock nor gives it up.
#[must_use = "others take this process for dead when this is dropped"]
pub struct Alive {
    held: Description,
}

/// Which file is to be locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// One that does not exist, with exactly this mode.
    New(Mode),
    /// One that exists.
    Old,
    /// One that is made if it is missing.
    Any,
}

impl Alive {
    /// Holds the lock file `path`, which is made if it is missing. Nothing if another process, or
    /// another part of this one, holds it.
    pub fn hold(path: &Path) -> io::Result<Option<Self>> {
        Self::hold_at(CWD, path, Which::Any).map_err(explained)
    }

    /// As `hold`, in the directory that is open as `directory`. Nothing, too, if somebody else has
    /// removed the file.
    pub(crate) fn hold_at(
        directory: BorrowedFd<'_>,
        name: impl AsRef<Path>,
        which: Which,
    ) -> rustix::io::Result<Option<Self>> {
        let name = name.as_ref();
        for _ in 0..ATTEMPTS_MAX {
            let held = match Description::open(|| open(directory, name, which)) {
                // Made by somebody else, just now.
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
            // Those who have waited for the end of another holder only pass through.
            thread::sleep(PASSING);
        }
        Err(Errno::AGAIN)
    }

    /// Whether it was this process that took it: not so in a forked child.
    pub fn is_ours(&self) -> bool {
        self.held.is_ours()
    }

    /// The file; in a forked child it is closed, or another's.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

impl fmt::Debug for Alive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Alive")
    }
}

/// A look at the lock file of another process. Looking never looks like holding it.
pub struct Watch {
    file: Description,
}

impl Watch {
    /// Opens the lock file `path`; nothing if there is none.
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

    /// Whether some process holds it.
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(self.file.holder(Bytes::ALL).map_err(explained)? == Holder::Exclusive)
    }

    /// Waits until no process holds it. To wait is to sleep in the system.
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

/// Whether a process holds the lock file `path`. Not so if there is no such file.
pub fn is_alive(path: &Path) -> io::Result<bool> {
    Watch::open(path)?.map_or(Ok(false), |watch| watch.is_alive())
}

fn open(directory: BorrowedFd<'_>, name: &Path, which: Which) -> rustix::io::Result<OwnedFd> {
    match which {
        Which::Old => open_plain(directory, name, OFlags::RDWR),
        Which::New(mode) => make(directory, name, mode),
        // Not "make it if it is missing" in one call: `fs.protected_regular` refuses that on a file
        // of another user.
        Which::Any => match open_plain(directory, name, OFlags::RDWR) {
            Err(Errno::NOENT) => open_new(directory, name, Mode::from_raw_mode(0o666)),
            opened => opened,
        },
    }
}

/// Opens a plain file that exists. Never waits, and follows no link, whatever bears the name.
pub(crate) fn open_plain(directory: BorrowedFd<'_>, name: &Path, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// Makes a file that nobody had, with exactly this mode.
pub(crate) fn make(directory: BorrowedFd<'_>, name: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let file = open_new(directory, name, mode)?;
    // The process may forbid by default (umask) what others need.
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

/// Whether `name` in `directory` leads to what is open as `open`.
pub(crate) fn is_same(directory: BorrowedFd<'_>, name: &Path, open: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let there = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let here = fstat(open)?;
    Ok((there.st_dev, there.st_ino) == (here.st_dev, here.st_ino))
}
