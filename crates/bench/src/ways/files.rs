//! One plain file per state.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::Way;
use crate::{
    disk,
    workload::{Workload, bytes, state},
};

/// Files written and read through the page cache, with fsync or without.
pub(crate) struct Files {
    directory: PathBuf,
    is_synced: bool,
    buffer: outcrop::layers::Slot,
    bytes: usize,
}

impl Files {
    pub(crate) fn new(directory: &Path, workload: &Workload, is_synced: bool) -> Result<Self> {
        let bytes = workload.snapshot_bytes();
        Ok(Self { directory: directory.to_owned(), is_synced, buffer: disk::aligned(bytes)?, bytes })
    }

    fn path(&self, step: usize) -> PathBuf {
        self.directory.join(format!("{step}.state"))
    }
}

impl Way for Files {
    fn name(&self) -> &'static str {
        if self.is_synced { "files, fsync" } else { "files" }
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        let mut file = File::create(self.path(step))?;
        file.write_all(bytes(now))?;
        if self.is_synced {
            file.sync_all()?;
        }
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        let path = self.path(step);
        File::open(&path)?.read_exact(&mut self.buffer[..self.bytes])?;
        read(state(&self.buffer[..self.bytes]));
        Ok(fs::remove_file(&path)?)
    }
}
