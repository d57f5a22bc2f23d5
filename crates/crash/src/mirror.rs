//! Real files that are also recorded, including what direct I/O writes to them.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_layers::files::{File, FileLock, Files, read_whole};

use crate::tree::BYTES_MAX;

/// Files that do everything twice: on a disk, and in a recording.
///
/// The files have descriptors of the disk for direct transfers, which cannot be observed. So when a
/// file is synced, bytes on the disk that no call has written count as written just before the
/// sync. Transfers that were still under way when the sync began are therefore missing in the
/// images, as they would be on a medium. For what came after the last sync, see
/// [`differences`](Self::differences).
#[derive(Clone)]
pub struct Mirror {
    disk: Arc<dyn Files>,
    recorded: Arc<dyn Files>,
    transfers: Arc<AtomicU64>,
}

impl Mirror {
    /// Combines two trees with the same content.
    pub fn new(disk: Arc<dyn Files>, recorded: Arc<dyn Files>) -> Self {
        Self { disk, recorded, transfers: Arc::default() }
    }

    /// How many syncs have found bytes that came through direct transfers.
    pub fn transfers(&self) -> u64 {
        self.transfers.load(Relaxed)
    }

    /// The names of files in `dir` that differ from the recording.
    pub fn differences(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut different = Vec::new();
        for name in self.disk.list(dir)? {
            let path = format!("{dir}/{name}");
            let read = |files: &dyn Files| read_whole(files, &path, BYTES_MAX);
            if read(&*self.disk)? != read(&*self.recorded)? {
                different.push(path);
            }
        }
        Ok(different)
    }

    fn file(&self, disk: Arc<dyn File>, recorded: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(MirrorFile { disk, recorded, transfers: Arc::clone(&self.transfers) })
    }
}

impl Files for Mirror {
    fn location(&self) -> String {
        self.disk.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.make_dir(dir)?;
        self.recorded.make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.disk.create(name, bytes)?, self.recorded.create(name, bytes)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(self.disk.open(name)?, self.recorded.open(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)?;
        self.recorded.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)?;
        self.recorded.remove(name)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.remove_dir(dir)?;
        self.recorded.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.disk.sync_dir(dir)?;
        self.recorded.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        let locks = self.disk.lock(name)?.zip(self.recorded.lock(name)?);
        Ok(locks.map(FileLock::new))
    }
}

struct MirrorFile {
    disk: Arc<dyn File>,
    recorded: Arc<dyn File>,
    transfers: Arc<AtomicU64>,
}

impl File for MirrorFile {
    fn bytes(&self) -> io::Result<u64> {
        self.disk.bytes()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write_at(at, bytes)?;
        self.recorded.write_at(at, bytes)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let whole = |file: &dyn File| {
            let mut bytes = vec![0; file.bytes()? as usize];
            file.read_at(0, &mut bytes).map(|()| bytes)
        };
        // Read before the disk is synced.
        let written = whole(&*self.disk)?;
        if written != whole(&*self.recorded)? {
            self.transfers.fetch_add(1, Relaxed);
            self.recorded.write_at(0, &written)?;
        }
        self.disk.sync()?;
        self.recorded.sync()
    }

    fn direct(&self) -> Option<&OwnedFd> {
        self.disk.direct()
    }
}
