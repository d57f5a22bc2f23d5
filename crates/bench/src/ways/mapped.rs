//! One large file mapped into memory: the system decides when its pages are written and read.

use std::{fs::File, ops::Range, path::Path};

use anyhow::Result;
use outcrop_memory::{Access, Mapping};

use super::Way;
use crate::workload::{Workload, bytes, state};

/// A copy into the mapping.
pub(crate) struct Mapped {
    mapping: Mapping,
    bytes: u64,
}

impl Mapped {
    pub(crate) fn new(directory: &Path, workload: &Workload) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(directory.join("states"))?;
        file.set_len(workload.total_bytes())?;
        let mapping = Mapping::file(&file, Access::ReadWrite, 0)?;
        Ok(Self { mapping, bytes: workload.snapshot_bytes() as u64 })
    }

    /// The range of a state.
    fn range(&self, step: usize) -> Range<u64> {
        let start = step as u64 * self.bytes;
        start..start + self.bytes
    }
}

impl Way for Mapped {
    fn name(&self) -> &'static str {
        "mapped file"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        // SAFETY: the file is in a directory that belongs to this benchmark, and the mapping is
        // borrowed.
        unsafe { self.mapping.slice_mut(self.range(step)) }?.copy_from_slice(bytes(now));
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        // SAFETY: as above.
        read(state(unsafe { self.mapping.slice(self.range(step)) }?));
        Ok(())
    }
}
