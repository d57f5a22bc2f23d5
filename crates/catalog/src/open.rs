//! The files of packs that are open, of which there are never many.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop_layers::files::{File, Files};
use rustix::io::Errno;

/// So many files of packs are open at most, two descriptors each, beside those that threads are
/// reading from: far below the usual limit of a process, and enough for the packs that a window of
/// a region is spread over.
const OPEN_MAX: usize = 32;

/// Whether the process or the system lacks something that has nothing to do with what is stored.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// The same error once more.
pub(crate) fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

/// A tree of files in which packs are read. They are opened when they are read, and closed when
/// others have been read since.
pub(crate) struct OpenFiles {
    pub(crate) files: Arc<dyn Files>,
    /// The one that was used last is the last.
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

    /// The file of this name, if it is open. It stays so while others read it.
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
                // The program may need them all.
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
