//! Files that the program writes or reads by itself, in the scratch directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::failure::{Failure, Result};

/// Where they are. VELOC's own files lie beside, and must not be mistaken for these.
const DIRECTORY: &str = "outcrop-files";

/// A file for one checkpoint or restart of this rank. It goes when the value does: what is kept is
/// a version.
#[derive(Debug)]
pub(crate) struct Routed(PathBuf);

impl Routed {
    /// A file that is not there yet.
    pub(crate) fn new(scratch: &Path, name: &str, rank: u32, version: u32) -> Result<Self> {
        let path = scratch.join(DIRECTORY).join(format!("{name}-{rank}-{version}"));
        let made = fs::create_dir_all(scratch.join(DIRECTORY)).and_then(|()| match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        made.map_err(|error| Failure::new(format!("{} cannot be made: {error}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        // One that the program has not made is not there.
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes what a run that was killed has left for this rank.
pub(crate) fn remove_left_over(scratch: &Path, name: &str, rank: u32) {
    let Ok(entries) = fs::read_dir(scratch.join(DIRECTORY)) else { return };
    let prefix = format!("{name}-{rank}-");
    for entry in entries.flatten() {
        let file = entry.file_name();
        let version = file.to_str().and_then(|file| file.strip_prefix(&prefix)?.parse::<u32>().ok());
        if version.is_some() {
            drop(Routed(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_files_of_this_rank_and_name_are_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join(DIRECTORY);
        fs::create_dir(&files).unwrap();
        for file in ["heat-1-4", "heat-1-5", "heat-2-4", "heat-1-4-5", "heat2-1-4", "notes"] {
            fs::write(files.join(file), b"bytes").unwrap();
        }
        remove_left_over(dir.path(), "heat", 1);
        let mut left: Vec<_> = fs::read_dir(&files).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["heat-1-4-5", "heat-2-4", "heat2-1-4", "notes"]);
    }
}
