//! The speed of a directory without Outcrop: large sequential transfers past the page cache, one after the other.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::Instant,
};

use anyhow::{Context, Result};
use outcrop::layers::{Host, Slot};

/// Bytes per transfer: the size at which this is fastest.
const BLOCK: usize = 16 << 20;

/// Bytes per second.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Rates {
    pub(crate) write: f64,
    pub(crate) read: f64,
}

impl Rates {
    /// Writes and reads a new file of about `bytes`.
    pub(crate) fn measure(directory: &Path, bytes: u64) -> Result<Self> {
        let scratch = tempfile::tempdir_in(directory)?;
        let file = open_direct(&scratch.path().join("rates"))?;
        let mut buffer = aligned(BLOCK)?;
        buffer.fill(1);
        let blocks = (bytes / BLOCK as u64).max(4);
        let start = Instant::now();
        for block in 0..blocks {
            file.write_all_at(&buffer, block * BLOCK as u64)?;
        }
        let write = (blocks * BLOCK as u64) as f64 / start.elapsed().as_secs_f64();
        let start = Instant::now();
        for block in (0..blocks).rev() {
            file.read_exact_at(&mut buffer, block * BLOCK as u64)?;
        }
        let read = (blocks * BLOCK as u64) as f64 / start.elapsed().as_secs_f64();
        Ok(Self { write, read })
    }

    pub(crate) fn mean(self, other: Self) -> Self {
        Self { write: (self.write + other.write) / 2.0, read: (self.read + other.read) / 2.0 }
    }
}

/// A file that is read and written past the page cache, or through it where the file system knows no other way.
pub(crate) fn open_direct(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let direct = options.clone().custom_flags(flags).open(path);
    direct.or_else(|_| options.open(path)).with_context(|| format!("cannot open {}", path.display()))
}

/// Memory that may be given to such a file.
pub(crate) fn aligned(bytes: usize) -> Result<Slot> {
    let bytes = outcrop::layers::aligned(bytes as u64);
    Ok(Host::new(bytes)?.slot(0, bytes)?)
}
