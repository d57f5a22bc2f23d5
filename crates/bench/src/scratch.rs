//! A directory for the files of a benchmark.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use outcrop::layers::memory_left;

/// Made if it was missing, and then removed again in the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    is_new: bool,
}

impl Scratch {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let is_new = !path.exists();
        std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path: path.to_owned(), is_new })
    }

    /// As `new`, if there is so much room in the directory and in memory.
    pub(crate) fn with_room(path: &Path, file_bytes: u64, memory_bytes: u64) -> Result<Self> {
        let scratch = Self::new(path)?;
        let system =
            rustix::fs::statvfs(path).with_context(|| format!("cannot ask for the room in {}", path.display()))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        ensure!(
            free >= file_bytes,
            "{} has {free} bytes left, and this takes up to {file_bytes}; use another --dir or a smaller --size",
            path.display()
        );
        let left = memory_left()?;
        ensure!(
            left >= memory_bytes,
            "{left} bytes of memory are left, and this takes {memory_bytes}; use a smaller --size"
        );
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What others have put there meanwhile keeps it.
        if self.is_new {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
