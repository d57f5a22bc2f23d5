//! File systems that are mounted for one test alone.

use std::{fs, path::Path, process::Command, thread};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use tempfile::tempdir;

use crate::skip;

/// Calls `test` in a thread with mounts of its own, which end with it, whatever happens. Skips the
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

/// Mounts a file system in memory.
pub fn mount_memory(path: &Path, options: &std::ffi::CStr) {
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), options).unwrap();
}

/// Makes an ext4 of so many bytes in the file `image` and mounts it on the new directory `medium`,
/// or gives the reason why that is not possible. For use inside of [`with_own_mounts`].
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
