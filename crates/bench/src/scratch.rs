//! A directory for the files of a benchmark, and a check that there is room for it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use outcrop_memory::memory_left;

/// The most that a benchmark needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of files.
    pub file_bytes: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Needs {
    /// Checks that the directory and the machine have enough left.
    ///
    /// # Errors
    /// If there is too little room, or if that cannot be determined.
    pub fn check(self, directory: &Path) -> Result<()> {
        let iec = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let system = rustix::fs::statvfs(directory)
            .with_context(|| format!("cannot ask for the free space of {}", directory.display()))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        ensure!(
            free >= self.file_bytes,
            "{} has {} free, and this benchmark needs {}; use another --dir or a smaller --size",
            directory.display(),
            iec(free),
            iec(self.file_bytes)
        );
        let left = memory_left()?;
        ensure!(
            left >= self.memory_bytes,
            "{} of memory is available, and this benchmark needs {}; use a smaller --size",
            iec(left),
            iec(self.memory_bytes)
        );
        Ok(())
    }
}

/// A directory that is created if it is missing, and then removed at the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    is_new: bool,
}

impl Scratch {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), is_new })
    }

    /// As `new`, if there is room for the benchmark.
    pub(crate) fn with_room(path: &Path, needs: Needs) -> Result<Self> {
        let scratch = Self::new(path)?;
        needs.check(path)?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It stays if others have put files there meanwhile.
        if self.is_new {
            let _ = fs::remove_dir(&self.path);
        }
    }
}
