//! One file with O_DIRECT. The program waits for each transfer.

use std::{fs::File, os::unix::fs::FileExt, path::Path};

use anyhow::Result;
use outcrop::layers::{Slot, aligned};

use super::Way;
use crate::{
    disk,
    workload::{Workload, bytes, state},
};

/// A copy to an aligned buffer, then a transfer.
pub(crate) struct Direct {
    file: File,
    buffer: Slot,
    bytes: usize,
}

impl Direct {
    pub(crate) fn new(directory: &Path, workload: &Workload) -> Result<Self> {
        let bytes = workload.snapshot_bytes();
        Ok(Self { file: disk::open_direct(&directory.join("states"))?, buffer: disk::aligned(bytes)?, bytes })
    }

    fn at(&self, step: usize) -> u64 {
        step as u64 * aligned(self.bytes as u64)
    }
}

impl Way for Direct {
    fn name(&self) -> &'static str {
        "O_DIRECT, no overlap"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        self.buffer[..self.bytes].copy_from_slice(bytes(now));
        Ok(self.file.write_all_at(&self.buffer, self.at(step))?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        let at = self.at(step);
        self.file.read_exact_at(&mut self.buffer, at)?;
        read(state(&self.buffer[..self.bytes]));
        Ok(())
    }
}
