//! A directory of one process, from creation to removal.
//!
//! It is a sub-directory, `outcrop-PID-NONCE`, of a directory that many processes may use. Its
//! owner holds a lock file in it for as long as it lives. So the next process can distinguish a
//! directory in use from a left-over one, and removes the latter.
//!
//! An owner creates the directory, then the lock file, then locks it, and then checks that both are
//! still there. If not, another process has taken the directory for a left-over in between, and the
//! owner starts over with another name. A process that removes a left-over takes the lock first and
//! unlinks the lock file last, so that the next one can continue a removal that was killed itself.

use std::{
    collections::hash_map::RandomState,
    ffi::{CStr, CString},
    hash::BuildHasher,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir as Entries, Mode, OFlags, mkdirat, open, openat, unlinkat},
    io::Errno,
};

use crate::{
    Error, Result,
    alive::{Alive, Which, is_same},
    lock,
};

const LOCK: &str = "lock";
/// How many times an owner starts over. Each time needs another program that scans within the same
/// microseconds.
const ATTEMPTS_MAX: usize = 100;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A sub-directory of this process. Dropping it removes it with all its files.
pub struct Scratch {
    /// The directories that were missing and have been created, outermost first.
    made: Vec<PathBuf>,
    parent: OwnedFd,
    name: String,
    path: PathBuf,
    directory: OwnedFd,
    alive: Alive,
    is_ours: fn(&str) -> bool,
}

impl Scratch {
    /// Creates a sub-directory in `path`, and `path` itself if it is missing. Removes what killed
    /// programs have left there. `is_ours` recognises the names of the files that it may remove.
    pub fn open(path: &Path, is_ours: fn(&str) -> bool) -> Result<Self> {
        let fail = |attempt, errno| failure(path, attempt, errno);
        let absolute = std::path::absolute(path)
            .map_err(|source| fail("find it", Errno::from_io_error(&source).unwrap_or(Errno::INVAL)))?;
        let mut made = Vec::new();
        let mut failed = ("make a sub-directory that nobody else removes", Errno::AGAIN);
        for _ in 0..ATTEMPTS_MAX {
            match attempt(&absolute, &mut made, is_ours) {
                Ok(Some((parent, name, directory, alive))) => {
                    let path = absolute.join(&name);
                    return Ok(Self { made, parent, name, path, directory, alive, is_ours });
                }
                Ok(None) => {}
                // Another layer that had created the directory may have removed it just now.
                Err((attempt, errno)) => {
                    failed = (attempt, errno);
                    if errno != Errno::NOENT {
                        break;
                    }
                }
            }
        }
        remove_made(&made);
        Err(fail(failed.0, failed.1))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file `name` in it.
    pub fn file(&self, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat(&self.directory, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR)
    }

    /// Removes the file `name` in it.
    pub fn remove(&self, name: &str) -> rustix::io::Result<()> {
        unlinkat(&self.directory, name, AtFlags::empty())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It belongs to the process that created it, not to a forked child.
        if !self.alive.is_ours() {
            return;
        }
        let (parent, directory) = (self.parent.as_fd(), self.directory.as_fd());
        if let Err(errno) = empty_and_remove(parent, &self.name, directory, self.is_ours) {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove a layer's directory");
        }
        remove_made(&self.made);
    }
}

/// One attempt to create a sub-directory. Returns its parent, its name, itself and its lock; `None`
/// if another process interfered.
#[expect(clippy::type_complexity, reason = "used once, and taken apart at once")]
fn attempt(
    path: &Path,
    made: &mut Vec<PathBuf>,
    is_ours: fn(&str) -> bool,
) -> std::result::Result<Option<(OwnedFd, String, OwnedFd, Alive)>, (&'static str, Errno)> {
    let parent = open_or_make(path, made).map_err(|errno| ("make it", errno))?;
    remove_left_overs(parent.as_fd(), path, is_ours);
    let name = format!("outcrop-{}-{:016x}", std::process::id(), RandomState::new().hash_one(made.len()));
    match claim(parent.as_fd(), &name, is_ours) {
        Ok(claimed) => Ok(claimed.map(|(directory, alive)| (parent, name, directory, alive))),
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(("make a sub-directory with a locked file in it", errno)),
    }
}

/// Opens `path`, and records in `made` which directories had to be created for it.
fn open_or_make(path: &Path, made: &mut Vec<PathBuf>) -> rustix::io::Result<OwnedFd> {
    match open(path, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let missing: Vec<&Path> =
        path.ancestors().take_while(|ancestor| matches!(ancestor.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)).collect();
    for ancestor in missing.into_iter().rev() {
        match mkdirat(CWD, ancestor, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
            Ok(()) if made.iter().all(|known| known != ancestor) => made.push(ancestor.to_owned()),
            Ok(()) => {}
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    open(path, DIRECTORY, Mode::empty())
}

/// Creates the sub-directory `name` and takes its lock. `None` if another process has taken it for
/// a left-over meanwhile.
fn claim(
    parent: BorrowedFd<'_>,
    name: &str,
    is_ours: fn(&str) -> bool,
) -> rustix::io::Result<Option<(OwnedFd, Alive)>> {
    mkdirat(parent, name, Mode::RWXU)?;
    match hold_new(parent, name) {
        Ok(claimed) => Ok(claimed),
        // Another process has removed it.
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => {
            if let Ok(directory) = openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
                let _ = empty_and_remove(parent, name, directory.as_fd(), is_ours);
            }
            Err(errno)
        }
    }
}

fn hold_new(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<(OwnedFd, Alive)>> {
    let directory = openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    let Some(alive) = Alive::hold_at(directory.as_fd(), LOCK, Which::New(Mode::RUSR | Mode::WUSR))? else {
        return Ok(None);
    };
    Ok(is_same(parent, name.as_ref(), directory.as_fd())?.then_some((directory, alive)))
}

/// Removes the sub-directories of programs that have ended. Warns of those that cannot be removed.
fn remove_left_overs(parent: BorrowedFd<'_>, path: &Path, is_ours: fn(&str) -> bool) {
    let entries = match Entries::read_from(parent) {
        Ok(entries) => entries,
        Err(errno) => return tracing::warn!(path = %path.display(), %errno, "cannot look for left-over directories"),
    };
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().ok().filter(|name| is_scratch_name(name)) else { continue };
        match remove_left_over(parent, name, is_ours) {
            Ok(true) => tracing::info!(path = %path.join(name).display(), "removed what a killed program left"),
            Ok(false) => {}
            Err(errno) => {
                tracing::warn!(path = %path.join(name).display(), %errno, "cannot remove a left-over directory");
            }
        }
    }
}

/// Removes the sub-directory `name` if its owner has ended. Returns whether it did.
fn remove_left_over(parent: BorrowedFd<'_>, name: &str, is_ours: fn(&str) -> bool) -> rustix::io::Result<bool> {
    let directory = match openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(directory) => directory,
        // A file or link with such a name, or a directory that another program has just removed.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    // Hold the lock until everything is removed.
    let _owner = match Alive::hold_at(directory.as_fd(), LOCK, Which::Old) {
        Ok(Some(alive)) => alive,
        // It is in use, or another program has just removed it.
        Ok(None) => return Ok(false),
        Err(Errno::NOENT) => {
            // Just created, or nearly removed: remove it if it is empty. An owner that is about to
            // lock it will notice.
            return match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(true),
                Err(Errno::NOTEMPTY | Errno::NOENT) => Ok(false),
                Err(errno) => Err(errno),
            };
        }
        Err(errno) => return Err(errno),
    };
    empty_and_remove(parent, name, directory.as_fd(), is_ours)?;
    Ok(true)
}

/// Removes our files in `directory`, the lock file last, and then the directory itself. Other files
/// stay.
fn empty_and_remove(
    parent: BorrowedFd<'_>,
    name: &str,
    directory: BorrowedFd<'_>,
    is_ours: fn(&str) -> bool,
) -> rustix::io::Result<()> {
    let names: Vec<_> = Entries::read_from(directory)?.flatten().map(|entry| entry.file_name().to_owned()).collect();
    let is_file = |name: &&CString| !matches!(name.as_bytes(), b"." | b"..") && name.to_str().is_ok_and(is_ours);
    for file in names.iter().filter(is_file) {
        unlink(directory, file)?;
    }
    unlink(directory, c"lock")?;
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

fn unlink(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Whether `name` is `outcrop-`, a process number, `-`, and sixteen hexadecimal digits.
fn is_scratch_name(name: &str) -> bool {
    let Some((process, nonce)) = name.strip_prefix("outcrop-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_process = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    let is_nonce = nonce.len() == 16 && nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_process && is_nonce
}

/// Removes the directories that were created, innermost first, as far as they are empty.
fn remove_made(made: &[PathBuf]) {
    for directory in made.iter().rev() {
        if std::fs::remove_dir(directory).is_err() {
            break;
        }
    }
}

fn failure(path: &Path, attempt: &'static str, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::NOTDIR | Errno::EXIST => "a part of the path is a file: name a directory",
        Errno::ROFS => "choose one on a file system that is mounted for writing",
        Errno::ACCESS | Errno::PERM => "choose one in which this user may make files",
        Errno::NOSPC | Errno::DQUOT => "free some space, or choose one on another file system",
        Errno::NOENT => "choose one on a file system that can hold files",
        errno => lock::remedy(errno).unwrap_or("choose another one"),
    };
    Error::Directory { path: path.to_owned(), attempt, remedy, source: errno.into() }
}
