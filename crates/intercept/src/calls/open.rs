//! Opening files.

use std::{
    ffi::{CStr, OsStr},
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    answer::Answer,
    caller::Caller,
    names::{Found, Last, find_parent, find_with, may},
};
use crate::stage::{Durable, FileId, Shared, checked, path_of, reopen, straight};

/// How often to look again at a name that others change in the meantime.
const ATTEMPTS: usize = 8;

/// A call that opens a file.
pub(super) struct Open<'a> {
    pub(super) directory: i32,
    pub(super) path: &'a CStr,
    pub(super) flags: i32,
    pub(super) mode: u32,
    pub(super) resolve: rustix::fs::ResolveFlags,
}

impl Open<'_> {
    fn has(&self, flags: i32) -> bool {
        self.flags & flags == flags
    }

    fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    fn reads(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_WRONLY
    }

    /// Whether the program wants something that memory is not.
    fn wants_device(&self) -> bool {
        self.flags & (libc::O_DSYNC | libc::O_DIRECT) != 0
    }

    /// Whether such a file is worth staging. What is appended to may be a log to which others
    /// append too, also from outside, and each close would write all of it again.
    fn is_to_be_staged(&self) -> bool {
        self.writes() && !self.wants_device() && !self.has(libc::O_APPEND)
    }

    fn given(&self, file: OwnedFd) -> Answer {
        Answer::Descriptor { file, closes_at_exec: self.has(libc::O_CLOEXEC) }
    }
}

/// Whether such a call may be about a staged file.
pub(super) fn is_ours(flags: i32, stage: &Shared) -> bool {
    let only_reads = flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) == libc::O_RDONLY;
    let is_other = flags & (libc::O_PATH | libc::O_DIRECTORY) != 0;
    !(is_other || only_reads && stage.is_empty())
}

/// One at a time per name, so that two who create a file meet each other.
#[derive(Default)]
pub(super) struct Turns([Mutex<()>; 32]);

impl Turns {
    fn take(&self, path: &CStr) -> MutexGuard<'_, ()> {
        let name = path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        self.0[hasher.finish() as usize % self.0.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a file for a program.
pub(super) fn open(stage: &Shared, turns: &Turns, caller: &Caller<'_>, open: &Open<'_>) -> Answer {
    let last = match open.has(libc::O_NOFOLLOW) || open.has(libc::O_CREAT | libc::O_EXCL) {
        true => Last::Keep,
        false => Last::Follow,
    };
    let _turn = open.writes().then(|| turns.take(open.path));
    for _ in 0..ATTEMPTS {
        let answer = match find_with(caller, open.directory, open.path, last, open.resolve) {
            Ok(found) if found.is_regular() => open_existing(stage, open, &found),
            Err(error) if is(&error, libc::ENOENT) && open.has(libc::O_CREAT) && open.writes() => {
                create(stage, caller, open)
            }
            // The kernel says what is wrong, or opens what is none of our business.
            _ => Some(Answer::Go),
        };
        if let Some(answer) = answer {
            return answer;
        }
    }
    Answer::Go
}

/// Opens a file that is there. `None` if it is another one by now.
fn open_existing(stage: &Shared, open: &Open<'_>, found: &Found) -> Option<Answer> {
    if open.has(libc::O_CREAT | libc::O_EXCL) {
        return Some(Answer::Go);
    }
    if let Some(staged) = stage.find(found.id()) {
        if let Err(error) = may(found, open.reads(), open.writes()) {
            return Some(Answer::failed(&error));
        }
        if open.wants_device() {
            // If others have it open too, they have to share the memory.
            match stage.settle(&staged, Durable::No) {
                Ok(true) => return Some(Answer::Go),
                Ok(false) => {}
                Err(error) => return Some(Answer::failed(&error)),
            }
        }
        return match staged.open(open.flags)? {
            Ok(opened) => Some(open.given(opened)),
            Err(error) => Some(Answer::failed(&error)),
        };
    }
    let is_cut = open.has(libc::O_TRUNC);
    let is_for_us = open.is_to_be_staged()
        && (is_cut || stage.is_worth_it(found.stat.st_size as u64))
        // Writing by another than the owner takes these away at once.
        && found.stat.st_mode & (libc::S_ISUID | libc::S_ISGID) == 0
        && stage.settings.paths.has(&path_of(&found.file));
    if !is_for_us {
        return Some(Answer::Go);
    }
    let flags = open.flags & (libc::O_TRUNC | libc::O_NOATIME);
    let real = match reopen(found.file.as_fd(), flags | libc::O_RDWR) {
        // Nothing has to be read.
        Err(error) if is(&error, libc::EACCES) && is_cut => reopen(found.file.as_fd(), flags | libc::O_WRONLY),
        opened => opened,
    };
    match real {
        Ok(real) => stage_or_give(stage, open, real.into(), false),
        Err(_) => Some(Answer::Go),
    }
}

/// Creates a file. `None` if somebody else has created it.
fn create(stage: &Shared, caller: &Caller<'_>, open: &Open<'_>) -> Option<Answer> {
    let Ok((parent, name)) = find_parent(caller, open.directory, open.path) else {
        return Some(Answer::Go);
    };
    let path = path_of(&parent).join(OsStr::from_bytes(name.to_bytes()));
    if !open.is_to_be_staged() || !open.resolve.is_empty() || !stage.settings.paths.has(&path) {
        return Some(Answer::Go);
    }
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | (open.flags & libc::O_NOATIME);
    // SAFETY: the name ends with a zero byte.
    let opened = checked(unsafe { libc::openat(parent.as_raw_fd(), name.as_ptr(), flags, open.mode) });
    match opened {
        // SAFETY: it was just opened.
        Ok(real) => stage_or_give(stage, open, unsafe { File::from_raw_fd(real as i32) }, true),
        Err(error) if is(&error, libc::EEXIST) && !open.has(libc::O_EXCL) => None,
        Err(error) => Some(Answer::failed(&error)),
    }
}

/// Stages a file, or gives the program the file itself.
fn stage_or_give(stage: &Shared, open: &Open<'_>, real: File, is_new: bool) -> Option<Answer> {
    let real = match stage.add(real, is_new, open.flags) {
        Ok(opened) => return Some(open.given(opened)),
        Err(real) => real,
    };
    // Somebody else was quicker.
    let staged = FileId::of(&real).ok().and_then(|id| stage.find(id));
    let opened = match staged.and_then(|staged| staged.open(open.flags & !libc::O_TRUNC)) {
        Some(opened) => opened,
        None => straight(real, open.flags),
    };
    Some(opened.map_or_else(|error| Answer::failed(&error), |opened| open.given(opened)))
}

fn is(error: &io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}
