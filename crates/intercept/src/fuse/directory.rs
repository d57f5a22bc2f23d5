//! Open directories.

use std::{
    collections::HashMap,
    ffi::OsStr,
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{FileType, RawDir, SeekFrom, seek};

/// Directories that programs have open.
#[derive(Default)]
pub(super) struct Directories {
    open: Mutex<HashMap<u64, Arc<Directory>>>,
    next: AtomicU64,
}

impl Directories {
    pub(super) fn add(&self, descriptor: OwnedFd) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = Directory { descriptor, position: Mutex::new(Some(0)) };
        self.open.lock().unwrap().insert(handle, Arc::new(directory));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> io::Result<Arc<Directory>> {
        let open = self.open.lock().unwrap();
        open.get(&handle).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    pub(super) fn remove(&self, handle: u64) {
        self.open.lock().unwrap().remove(&handle);
    }
}

/// A directory that a program has open.
pub(super) struct Directory {
    pub(super) descriptor: OwnedFd,
    /// Where the descriptor stands, if that is known.
    position: Mutex<Option<u64>>,
}

/// An entry of a directory, and where the next one is.
pub(super) struct Entry<'a> {
    pub(super) name: &'a OsStr,
    pub(super) inode: u64,
    pub(super) kind: FileType,
    pub(super) next: u64,
}

impl Directory {
    /// Gives entries from `offset` on to `take`, until it has enough (returns true). Offsets are
    /// those of the real directory, so that a position keeps its meaning while entries come and go.
    pub(super) fn read(&self, offset: u64, mut take: impl FnMut(Entry<'_>) -> bool) -> io::Result<()> {
        let mut position = self.position.lock().unwrap();
        if *position != Some(offset) {
            seek(&self.descriptor, SeekFrom::Start(offset))?;
        }
        *position = None;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut entries = RawDir::new(&self.descriptor, &mut buffer);
        let mut at = offset;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let next = entry.next_entry_cookie();
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_full = take(Entry { name, inode: entry.ino(), kind: entry.file_type(), next });
            if is_full {
                return Ok(());
            }
            at = next;
        }
        *position = Some(at);
        Ok(())
    }
}
