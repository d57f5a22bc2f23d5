//! A directory for the files of a benchmark.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

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
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What others have put there meanwhile keeps it.
        if self.is_new {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}
