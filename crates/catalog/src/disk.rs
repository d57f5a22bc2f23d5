//! Files of a real directory that somebody else may have put there.

use std::{fs, io, path::Path, sync::Arc};

use outcrop_layers::files::{DiskFiles, File, FileLock, Files};

/// The files below a directory, of which only plain ones are opened: a pipe would never answer, and a link leads elsewhere.
pub(crate) struct PlainFiles(DiskFiles);

impl PlainFiles {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        DiskFiles::open(root).map(Self)
    }

    fn check_plain(&self, name: &str) -> io::Result<()> {
        let kind = fs::symlink_metadata(Path::new(&self.0.location()).join(name))?.file_type();
        match kind.is_file() {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file")),
        }
    }
}

impl Files for PlainFiles {
    fn location(&self) -> String {
        self.0.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.0.make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.0.create(name, bytes)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.check_plain(name)?;
        self.0.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.0.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        match self.check_plain(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.0.lock(name),
        }
    }
}
