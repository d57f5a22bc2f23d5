//! The directory in which one layer keeps its files, from birth to removal.
//!
//! Each layer has a sub-directory of its own, `outcrop-PID-NONCE`, with a file `lock` in it that is locked for as long as
//! the layer lives. The system gives the lock up when the program ends, in whatever way, so that the next one to open a
//! layer there can tell a directory in use from one left behind, and removes the latter.
//!
//! An owner makes the directory, then the lock file, then locks it, and then looks whether both are still where it made
//! them; if not, someone took it for a left-over in between, and the owner starts over under another name. A remover
//! takes the lock before it touches anything and unlinks the lock file last, so that a removal that is itself killed can
//! be taken up by the next.

use std::{
    collections::hash_map::RandomState,
    ffi::CStr,
    hash::BuildHasher,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir as Entries, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, open, openat, statat,
        unlinkat,
    },
    io::Errno,
};

use crate::{Error, Result};

const LOCK: &str = "lock";
/// How often an owner starts over. Each time needs another program that scans in the very same microseconds.
const ATTEMPTS_MAX: usize = 100;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The sub-directory of one layer. Dropping it removes it with everything in it.
pub(super) struct Scratch {
    /// The directories that were missing and were made, outermost first.
    made: Vec<PathBuf>,
    parent: OwnedFd,
    name: String,
    path: PathBuf,
    directory: OwnedFd,
    _lock: OwnedFd,
}

impl Scratch {
    /// Makes a sub-directory in `path`, and `path` itself where it is missing; removes what killed programs left there.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fail = |attempt, errno| failure(path, attempt, errno);
        let absolute = std::path::absolute(path)
            .map_err(|source| fail("find it", Errno::from_io_error(&source).unwrap_or(Errno::INVAL)))?;
        let mut made = Vec::new();
        let mut failed = ("make a sub-directory that nobody else removes", Errno::AGAIN);
        for _ in 0..ATTEMPTS_MAX {
            match attempt(&absolute, &mut made) {
                Ok(Some((parent, name, directory, lock))) => {
                    let path = absolute.join(&name);
                    return Ok(Self { made, parent, name, path, directory, _lock: lock });
                }
                Ok(None) => {}
                // Another layer that had made the directory may have removed it a moment ago.
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

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file `name` in it.
    pub(super) fn file(&self, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        openat(&self.directory, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::RUSR | Mode::WUSR)
    }

    /// Removes the file `name` in it.
    pub(super) fn remove(&self, name: &str) -> rustix::io::Result<()> {
        unlinkat(&self.directory, name, AtFlags::empty())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(errno) = empty_and_remove(self.parent.as_fd(), &self.name, self.directory.as_fd()) {
            tracing::warn!(path = %self.path.display(), %errno, "cannot remove a layer's directory");
        }
        remove_made(&self.made);
    }
}

/// One attempt to make a sub-directory: that it is in, its name, itself and its lock; nothing if another was in the way.
#[expect(clippy::type_complexity, reason = "used once, and taken apart at once")]
fn attempt(
    path: &Path,
    made: &mut Vec<PathBuf>,
) -> std::result::Result<Option<(OwnedFd, String, OwnedFd, OwnedFd)>, (&'static str, Errno)> {
    let parent = open_or_make(path, made).map_err(|errno| ("make it", errno))?;
    remove_left_overs(parent.as_fd(), path);
    let name = format!("outcrop-{}-{:016x}", std::process::id(), RandomState::new().hash_one(made.len()));
    match claim(parent.as_fd(), &name) {
        Ok(claimed) => Ok(claimed.map(|(directory, lock)| (parent, name, directory, lock))),
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(("make a sub-directory with a locked file in it", errno)),
    }
}

/// Opens `path`, and notes in `made` which directories had to be made for it.
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

/// Makes the sub-directory `name` and locks it; nothing if someone took it for a left-over meanwhile.
fn claim(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<(OwnedFd, OwnedFd)>> {
    mkdirat(parent, name, Mode::RWXU)?;
    match lock_new(parent, name) {
        Ok(claimed) => Ok(claimed),
        // Someone else is removing it, or has done so.
        Err(Errno::NOENT | Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => {
            if let Ok(directory) = openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
                let _ = empty_and_remove(parent, name, directory.as_fd());
            }
            Err(errno)
        }
    }
}

fn lock_new(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<Option<(OwnedFd, OwnedFd)>> {
    let directory = openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock = openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let is_ours = is_same(parent, name, directory.as_fd())? && is_same(directory.as_fd(), LOCK, lock.as_fd())?;
    Ok(is_ours.then_some((directory, lock)))
}

/// Whether `name` in `directory` still leads to what is open as `open`.
fn is_same(directory: BorrowedFd<'_>, name: &str, open: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let there = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let here = fstat(open)?;
    Ok((there.st_dev, there.st_ino) == (here.st_dev, here.st_ino))
}

/// Removes the sub-directories of programs that are no more. What cannot be removed is left and told.
fn remove_left_overs(parent: BorrowedFd<'_>, path: &Path) {
    let entries = match Entries::read_from(parent) {
        Ok(entries) => entries,
        Err(errno) => return tracing::warn!(path = %path.display(), %errno, "cannot look for left-over directories"),
    };
    for entry in entries.flatten() {
        let Some(name) = entry.file_name().to_str().ok().filter(|name| is_scratch_name(name)) else { continue };
        match remove_left_over(parent, name) {
            Ok(true) => tracing::info!(path = %path.join(name).display(), "removed what a killed program left"),
            Ok(false) => {}
            Err(errno) => {
                tracing::warn!(path = %path.join(name).display(), %errno, "cannot remove a left-over directory");
            }
        }
    }
}

/// Removes the sub-directory `name` if its owner is gone, and tells whether it did.
fn remove_left_over(parent: BorrowedFd<'_>, name: &str) -> rustix::io::Result<bool> {
    let directory = match openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(directory) => directory,
        // A file or a link that only bears the name, or a directory that another program has just removed.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    let lock = match openat(&directory, LOCK, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => {
            // Just made, or nearly removed: it goes if it is empty. An owner that is about to lock it notices.
            return match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(true),
                Err(Errno::NOTEMPTY | Errno::NOENT) => Ok(false),
                Err(errno) => Err(errno),
            };
        }
        Err(errno) => return Err(errno),
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    // Between opening and locking, another program may have removed it all.
    match is_same(directory.as_fd(), LOCK, lock.as_fd()) {
        Ok(true) => {}
        Ok(false) | Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    empty_and_remove(parent, name, directory.as_fd())?;
    Ok(true)
}

/// Removes our files in `directory`, the lock last, and then the directory itself. Files of others stay.
fn empty_and_remove(parent: BorrowedFd<'_>, name: &str, directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let names: Vec<_> = Entries::read_from(directory)?.flatten().map(|entry| entry.file_name().to_owned()).collect();
    for segment in names.iter().filter(|name| is_segment_name(name)) {
        unlink(directory, segment)?;
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

/// `outcrop-`, a process number, `-`, sixteen hexadecimal digits; nothing else is ours.
fn is_scratch_name(name: &str) -> bool {
    let Some((process, nonce)) = name.strip_prefix("outcrop-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_process = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    let is_nonce = nonce.len() == 16 && nonce.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_process && is_nonce
}

fn is_segment_name(name: &CStr) -> bool {
    let digits = name.to_bytes().strip_prefix(b"segment-");
    digits.is_some_and(|digits| digits.len() >= 5 && digits.iter().all(u8::is_ascii_digit))
}

/// Removes the directories that were made, innermost first, as far as they are empty.
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
        Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS => "choose one on a file system with locks (flock)",
        _ => "choose another one",
    };
    Error::Directory { path: path.to_owned(), attempt, remedy, source: errno.into() }
}
