//! Where the processes of one node meet: a directory in memory that every user may write to.
//!
//! Nothing has to be made for it: the system provides one, with the mode of a temporary directory. Files in it are made
//! by one user and opened by others, so that they are opened in two ways only: as new ones that must not exist, or as
//! old ones that must (a system with `fs.protected_regular` refuses "make it if it is missing" on a file of another
//! user); and nothing is believed of a file before it is known to be an ordinary one.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, open, openat, statat, unlinkat},
    io::Errno,
};

use crate::{Error, Result};

/// Names another directory; all processes that are to know of each other must be given the same.
const VARIABLE: &str = "OUTCROP_NODE_DIR";
/// On every Linux with POSIX shared memory; gone after a reboot, as it should be.
const USUAL: &str = "/dev/shm";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The directory in which the processes of this node meet, unless another is named.
pub(crate) fn usual_directory() -> PathBuf {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    named.unwrap_or_else(|| if Path::new(USUAL).is_dir() { USUAL.into() } else { std::env::temp_dir() })
}

/// A directory in which processes meet.
pub(crate) struct Node {
    path: PathBuf,
    directory: OwnedFd,
}

impl Node {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let directory = open(path, DIRECTORY, Mode::empty()).map_err(|errno| failure(path, "open it", errno))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// What the system said to an attempt in this directory, as an error with a remedy.
    pub(crate) fn failure(&self, attempt: &'static str, errno: Errno) -> Error {
        failure(&self.path, attempt, errno)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps all others out of what `work` does, for as long as it takes: it must be short.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // A lock belongs to what was opened, and one that is shared by threads would let them all in: so each time
        // anew.
        let door = openat(&self.directory, ".", DIRECTORY, Mode::empty());
        let locked = door.and_then(|door| lock(door.as_fd(), FlockOperation::LockExclusive).map(|()| door));
        let locked = locked.map_err(|errno| self.failure("lock it for a moment", errno))?;
        let result = work();
        // Closing it would do, but for children that were forked meanwhile and have it open too.
        if let Err(errno) = lock(locked.as_fd(), FlockOperation::Unlock) {
            tracing::warn!(path = %self.path.display(), %errno, "a directory may stay locked until a child ends");
        }
        result
    }

    /// The names in it that begin with `prefix`, without the prefix.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let entries = rustix::fs::Dir::read_from(&self.directory);
        let names = entries.and_then(|entries| {
            entries
                .filter_map(|entry| match entry {
                    Ok(entry) => entry.file_name().to_str().ok()?.strip_prefix(prefix).map(|rest| Ok(rest.to_owned())),
                    Err(errno) => Some(Err(errno)),
                })
                .collect()
        });
        names.map_err(|errno| self.failure("list it", errno))
    }

    /// Makes a file that nobody had, with exactly this mode.
    pub(crate) fn make(&self, name: &str, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, mode)?;
        // The process may forbid by default what others need.
        if let Err(errno) = fchmod(&file, mode) {
            self.remove(name);
            return Err(errno);
        }
        Ok(file)
    }

    /// Opens an ordinary file that exists. Never waits, whatever bears the name.
    pub(crate) fn file(&self, name: &str, access: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::empty())?;
        let is_ordinary = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
        if is_ordinary { Ok(file) } else { Err(Errno::INVAL) }
    }

    /// Removes the file `name` if it is still the one that is open as `file`.
    pub(crate) fn remove_same(&self, name: &str, file: BorrowedFd<'_>) {
        let there = statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_same = |(there, here): (Stat, Stat)| (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino);
        if there.and_then(|there| Ok((there, fstat(file)?))).is_ok_and(is_same) {
            self.remove(name);
        }
    }

    /// Removes a file, if this user may; the file of another user stays.
    pub(crate) fn remove(&self, name: &str) {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                let path = self.path.join(OsStr::new(name));
                tracing::debug!(path = %path.display(), %errno, "a file that nobody needs any more stays");
            }
        }
    }
}

/// `flock` that a signal does not end.
pub(crate) fn lock(file: BorrowedFd<'_>, operation: FlockOperation) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| flock(file, operation))
}

/// Whether `name` can be part of a file's name, next to others.
pub(crate) fn check_name(path: &Path, name: &str) -> Result<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !name.is_empty() && name.len() <= 64 && name.bytes().all(is_good) {
        return Ok(());
    }
    let source =
        io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not 1 to 64 letters, digits and underscores"));
    let remedy = "choose another name";
    Err(Error::Directory { path: path.to_owned(), attempt: "name something in it", remedy, source })
}

fn failure(path: &Path, attempt: &'static str, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::NOENT | Errno::NOTDIR => "set OUTCROP_NODE_DIR to a directory, the same for all processes of the node",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            "set OUTCROP_NODE_DIR to one with mode 1777 that all users of the node may write to"
        }
        Errno::NOSPC | Errno::DQUOT => "free some space in it, or set OUTCROP_NODE_DIR to another one",
        _ => "set OUTCROP_NODE_DIR to one on a local file system with locks (flock)",
    };
    Error::Directory { path: path.to_owned(), attempt, remedy, source: errno.into() }
}
