//! One large file mapped into memory: the system decides when its pages are written and read.

use std::{fs::File, path::Path};

use anyhow::Result;

use super::Way;
use crate::workload::{Workload, bytes, state};

/// A copy into the mapping.
pub(crate) struct Mapped {
    map: memmap2::MmapMut,
    bytes: usize,
}

impl Mapped {
    pub(crate) fn new(directory: &Path, workload: &Workload) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(directory.join("states"))?;
        file.set_len(workload.total_bytes())?;
        // SAFETY: the file was made just now in a directory of this benchmark's own; nobody else changes it.
        let map = unsafe { memmap2::MmapMut::map_mut(&file)? };
        Ok(Self { map, bytes: workload.snapshot_bytes() })
    }
}

impl Way for Mapped {
    fn name(&self) -> &'static str {
        "mapped file"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        self.map[step * self.bytes..][..self.bytes].copy_from_slice(bytes(now));
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(state(&self.map[step * self.bytes..][..self.bytes]));
        Ok(())
    }
}
