//! The meeting place: a directory in memory in which processes of one machine find each other's
//! files.
//!
//! Nobody has to create one: the system provides `/dev/shm`, with the mode of a temporary
//! directory. Its files are created by one user and opened by others. So they are opened in two
//! ways only: as new files that must not exist, or as existing files (`fs.protected_regular`
//! refuses O_CREAT for a file of another user). Only regular files are used.

use std::{
    ffi::OsStr,
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, open, openat, unlinkat},
    io::Errno,
};

use crate::{
    Error, Result,
    alive::{Alive, Watch, Which, is_same, make, open_plain},
    lock::Description,
};

/// Chooses another directory. All processes that should find each other must have the same one.
const VARIABLE: &str = "OUTCROP_MEETING_DIR";
/// Exists on every Linux with POSIX shared memory, and is empty after a reboot.
const USUAL: &str = "/dev/shm";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory in which processes of one machine meet.
pub struct Meeting {
    path: PathBuf,
    directory: OwnedFd,
}

impl Meeting {
    /// The directory where processes of this machine meet: `OUTCROP_MEETING_DIR`. Default:
    /// `/dev/shm`, or the directory for temporary files if that is missing.
    pub fn usual_directory() -> PathBuf {
        let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        named.unwrap_or_else(|| if Path::new(USUAL).is_dir() { USUAL.into() } else { std::env::temp_dir() })
    }

    /// Opens the meeting place `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let directory = open(path, DIRECTORY, Mode::empty()).map_err(|errno| failure(path, "open it", errno))?;
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` while no other process or thread is in such a section of this meeting place. All
    /// users of the machine may wait for it: it must be short.
    ///
    /// The lock is on the directory itself. It leaves no file behind, and nobody can remove it.
    pub fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        // A lock belongs to an open description: if threads shared one, all of them could enter.
        let door = Description::open(|| openat(&self.directory, ".", DIRECTORY, Mode::empty()));
        let locked = door.and_then(|door| door.lock_directory().map(|()| door));
        let locked = locked.map_err(|errno| self.failure("lock it for a moment", errno))?;
        let result = work();
        drop(locked);
        result
    }

    /// Returns an error unless `name` can be part of a file name.
    pub(crate) fn check_name(&self, name: &str) -> Result<()> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !name.is_empty() && name.len() <= 64 && name.bytes().all(is_good) {
            return Ok(());
        }
        let reason = format!("{name:?} is not 1 to 64 letters, digits and underscores");
        let source = io::Error::new(io::ErrorKind::InvalidInput, reason);
        let remedy = "choose another name";
        Err(Error::Directory { path: self.path.clone(), attempt: "name something in it", remedy, source })
    }

    /// A system error of an attempt in this directory, with advice.
    pub(crate) fn failure(&self, attempt: &'static str, errno: Errno) -> Error {
        failure(&self.path, attempt, errno)
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

    /// Creates a new file, with exactly this mode.
    pub(crate) fn make(&self, name: &str, mode: Mode) -> rustix::io::Result<Description> {
        Description::open(|| make(self.directory.as_fd(), name.as_ref(), mode))
    }

    /// Opens an existing regular file. Never blocks.
    pub(crate) fn file(&self, name: &str) -> rustix::io::Result<Description> {
        Description::open(|| open_plain(self.directory.as_fd(), name.as_ref(), OFlags::RDWR))
    }

    /// Creates a new lock file, with exactly this mode, and takes the lock.
    pub(crate) fn hold_new(&self, name: &str, mode: Mode) -> rustix::io::Result<Option<Alive>> {
        Alive::hold_at(self.directory.as_fd(), name, Which::New(mode))
    }

    /// Opens a lock file to watch; `None` if there is none.
    pub(crate) fn watch(&self, name: &str) -> rustix::io::Result<Option<Watch>> {
        Watch::open_at(self.directory.as_fd(), name)
    }

    /// Removes the file `name` if it is still the one that is open as `file`.
    pub(crate) fn remove_same(&self, name: &str, file: BorrowedFd<'_>) {
        if is_same(self.directory.as_fd(), name.as_ref(), file).unwrap_or(false) {
            self.remove(name);
        }
    }

    /// Removes a file, if this user may. The file of another user stays.
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

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meeting({})", self.path.display())
    }
}

fn failure(path: &Path, attempt: &'static str, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::NOENT | Errno::NOTDIR => {
            "set OUTCROP_MEETING_DIR to a directory, the same for all processes of the machine"
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            "set OUTCROP_MEETING_DIR to one with mode 1777 that all users of the machine may write to"
        }
        Errno::NOSPC | Errno::DQUOT => "free some space in it, or set OUTCROP_MEETING_DIR to another one",
        _ => "set OUTCROP_MEETING_DIR to one on a local file system with locks",
    };
    Error::Directory { path: path.to_owned(), attempt, remedy, source: errno.into() }
}
