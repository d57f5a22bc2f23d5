//! A cache of open pack files, with a small limit.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::files::{File, Files};
use rustix::io::Errno;

/// How many pack files are kept open at most, with two descriptors each, in addition to those that
/// threads are reading. This is far below the usual limit of a process, and enough for the packs to
/// which one window of a region is spread.
const OPEN_MAX: usize = 32;

/// Whether the process or the system lacks descriptors or memory. Such an error proves nothing
/// about what is stored.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// A copy of this error.
pub(crate) fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

/// Files in which packs are read. A file is opened when it is read, and closed when enough others
/// have been read since (LRU).
pub(crate) struct OpenFiles {
    pub(crate) files: Arc<dyn Files>,
    /// The most recently used file is the last.
    open: Mutex<VecDeque<(String, Arc<dyn File>)>>,
}

impl OpenFiles {
    pub(crate) fn new(files: Arc<dyn Files>) -> Arc<Self> {
        Arc::new(Self { files, open: Mutex::default() })
    }

    /// The file of this name.
    pub(crate) fn get(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if let Some(file) = self.known(name) {
            return Ok(file);
        }
        let file = self.open_now(name)?;
        let mut open = self.open();
        if open.len() >= OPEN_MAX {
            open.pop_front();
        }
        open.push_back((name.to_owned(), Arc::clone(&file)));
        Ok(file)
    }

    /// The file of this name, if it is open. Marks it as most recently used.
    fn known(&self, name: &str) -> Option<Arc<dyn File>> {
        let mut open = self.open();
        let found = open.iter().rposition(|(known, _)| known == name)?;
        let entry = open.remove(found)?;
        let file = Arc::clone(&entry.1);
        open.push_back(entry);
        Some(file)
    }

    fn open_now(&self, name: &str) -> io::Result<Arc<dyn File>> {
        match self.files.open(name) {
            Err(error) if is_shortage(&error) => {
                // Close all cached files, and try once more.
                self.open().clear();
                self.files.open(name)
            }
            opened => opened,
        }
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<(String, Arc<dyn File>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
