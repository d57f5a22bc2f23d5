//! File systems that are mounted for one test only.

use std::{fs, path::Path, process::Command, thread};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use tempfile::tempdir;

use crate::skip;

/// Calls `test` in a thread with its own mounts, which end with the thread in any case. Skips the
/// test if that is not possible.
pub fn with_own_mounts(test: impl FnOnce(&Path) + Send) {
    let given = tempdir().unwrap();
    thread::scope(|scope| {
        let body = || {
            // SAFETY: only the table of mounts is unshared, not the open files, and only for this
            // thread.
            let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNS) };
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            match unshared.and_then(|()| mount_change("/", private)) {
                Ok(()) => test(given.path()),
                Err(errno) => skip(format_args!("this user cannot mount file systems here: {errno}")),
            }
        };
        if let Err(panic) = scope.spawn(body).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Mounts a file system in memory (tmpfs).
pub fn mount_memory(path: &Path, options: &std::ffi::CStr) {
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), options).unwrap();
}

/// Makes an ext4 file system of this size in the file `image`, and mounts it on the new directory
/// `medium`. Returns the reason if that is not possible. For use inside [`with_own_mounts`].
pub fn mount_ext4(image: &Path, medium: &Path, bytes: u64) -> Result<(), String> {
    fs::create_dir(medium).unwrap();
    fs::File::create(image).unwrap().set_len(bytes).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(image))?;
    run(Command::new("mount").args(["-o", "loop"]).args([image, medium]))
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        outcome => Err(format!("no ext4 on a loop device here: {command:?} gave {outcome:?}")),
    }
}
