//! File systems that are mounted for one test alone.

use std::{path::Path, thread};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{UnshareFlags, unshare_unsafe},
};
use tempfile::tempdir;

/// Calls `test` in a thread with mounts of its own, which end with it, whatever happens; says so if that is not
/// possible.
pub(crate) fn with_own_mounts(test: impl FnOnce(&Path) + Send) {
    let given = tempdir().unwrap();
    thread::scope(|scope| {
        let body = || {
            // SAFETY: only the table of mounts is unshared, not the open files, and only for this thread.
            let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNS) };
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            match unshared.and_then(|()| mount_change("/", private)) {
                Ok(()) => test(given.path()),
                Err(errno) => println!("SKIPPED: this user cannot mount file systems here: {errno}"),
            }
        };
        scope.spawn(body).join().unwrap();
    });
}

/// Mounts a file system in memory.
pub(crate) fn mount_memory(path: &Path, options: &std::ffi::CStr) {
    mount("tmpfs", path, "tmpfs", MountFlags::empty(), options).unwrap();
}
