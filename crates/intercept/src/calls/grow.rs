//! Large writes: whether a staged file may grow, and what to do if memory is short.

use std::{fs, io, os::fd::OwnedFd};

use outcrop_memory::memory_left;
use rustix::fs::{SeekFrom, seek};

use super::{answer::Answer, caller::Caller};
use crate::stage::{FileId, Shared, Staged, straight};

/// Puts a file into the program in place of another, under the same number.
/// The last argument says whether it is closed at exec.
pub(crate) type Replace<'a> = &'a dyn Fn(&OwnedFd, i32, bool) -> io::Result<()>;

/// A program is about to write this many bytes to a staged file.
pub(super) fn grow(
    stage: &Shared,
    caller: &Caller<'_>,
    staged: &Staged,
    (number, bytes): (i32, u64),
    replace: Replace<'_>,
) -> Answer {
    // Some ask for all that there is.
    let bytes = if bytes > 1 << 40 { 1 << 20 } else { bytes };
    if stage.may_grow(staged, bytes) {
        return Answer::Go;
    }
    let moved = move_out(stage, caller, staged, number, replace);
    match moved {
        Ok(true) => Answer::Go,
        Ok(false) if memory_left().is_ok_and(|left| left > bytes) => {
            tracing::warn!("{} outgrows the memory limit, because several have it open", staged.path().display());
            Answer::Go
        }
        Ok(false) => Answer::Failed(libc::ENOSPC),
        Err(error) => Answer::failed(&error),
    }
}

/// Gives the program the real file in place of the one in memory, if nobody else uses that.
pub(super) fn move_out(
    stage: &Shared,
    caller: &Caller<'_>,
    staged: &Staged,
    number: i32,
    replace: Replace<'_>,
) -> io::Result<bool> {
    staged.move_out(
        || Ok(is_sole_user(stage, caller, staged.memory_id)? && !caller.description(number)?.is_locked),
        |real| {
            let own = caller.description(number)?;
            let file = straight(real, own.flags & !libc::O_CLOEXEC)?;
            seek(&file, SeekFrom::Start(own.position))?;
            replace(&file, number, own.flags & libc::O_CLOEXEC != 0)
        },
        |real| stage.close(staged, real),
    )
}

/// Whether nobody but the caller can write to the file now: one thread, one descriptor, no mapping.
fn is_sole_user(stage: &Shared, caller: &Caller<'_>, memory: FileId) -> io::Result<bool> {
    Ok(sole_user(stage, memory)?.is_some_and(|(process, _)| process == caller.thread()))
}

/// The only process that can write to a file in memory, and its descriptor: if it has one thread,
/// one descriptor, and no mapping.
pub(crate) fn sole_user(stage: &Shared, memory: FileId) -> io::Result<Option<(u32, i32)>> {
    let mut user = None;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if stage.own_processes().contains(&number) {
            continue;
        }
        // Processes of other users cannot have it, and those that are gone do not.
        let differences = Default::default();
        let process = Caller::new(number, &differences);
        if process.mapped(0..u64::MAX).contains(&memory) {
            return Ok(None);
        }
        for (descriptor, _) in process.files().into_iter().filter(|(_, file)| *file == memory) {
            if user.replace((number, descriptor)).is_some() {
                return Ok(None);
            }
        }
    }
    let Some((process, _)) = user else { return Ok(None) };
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(user.filter(|_| status.lines().any(|line| line == "Threads:\t1")))
}
