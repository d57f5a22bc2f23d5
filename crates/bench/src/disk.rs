//! The speed of a directory without Outcrop: large sequential O_DIRECT transfers, one after the
//! other.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::Instant,
};

use anyhow::{Context, Result};
use outcrop::layers::{Host, Slot};

/// Bytes per transfer: the fastest size.
const BLOCK: usize = 16 << 20;

/// Rates in bytes per second.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Rates {
    pub(crate) write: f64,
    pub(crate) read: f64,
}

impl Rates {
    /// Measures them with a new file of about `bytes`.
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

/// The type of the file system of a path, from the contents of `/proc/self/mountinfo`.
pub fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.to_owned();
        Some((point, after.split(' ').next()?.to_owned()))
    };
    let around = mountinfo.lines().filter_map(mount).filter(|(point, _)| path.starts_with(point));
    // Of several file systems at one mount point, the last one hides the others.
    around.max_by_key(|(point, _)| Path::new(point).components().count()).map(|(_, kind)| kind)
}

/// Opens a file with O_DIRECT, or through the page cache if the file system does not support that.
pub(crate) fn open_direct(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let direct = options.clone().custom_flags(flags).open(path);
    direct.or_else(|_| options.open(path)).with_context(|| format!("cannot open {}", path.display()))
}

/// Memory with the alignment that such a file needs.
pub(crate) fn aligned(bytes: usize) -> Result<Slot> {
    let bytes = outcrop::layers::aligned(bytes as u64);
    Ok(Host::new(bytes)?.slot(0, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_decides() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      22 21 0:5 / /scratch rw,relatime shared:4 - xfs /dev/sdb rw\n\
                      23 22 0:6 / /scratch rw - tmpfs tmpfs rw\n";
        let of = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(of("/var/me").as_deref(), Some("ext4"));
        assert_eq!(of("/scratch/run").as_deref(), Some("tmpfs"));
        assert_eq!(of("/scratches").as_deref(), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }
}
