//! What ranks need from the shared directory: a few operations on files and locks.
//!
//! Only this is assumed of a shared file system (docs/store.md, "The shared directory"):
//!
//! - Whoever opens a file sees what others had written and synced before. A file that was opened
//!   earlier may still show its old content.
//! - Whoever opens the directory sees the names that others had made before.
//! - A rename replaces one file by another atomically.
//! - Locks are visible to all, and are released when the process that holds them ends.
//!
//! Changes may become visible later than this; ranks wait for them. Bytes may become visible in any
//! order: the length before the bytes, with zeros in between.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

use outcrop_local::{Alive, Watch};

/// A directory through which ranks communicate.
pub(crate) trait Medium {
    /// An open file.
    type File;
    /// A held lock.
    type Alive;
    /// A handle to query the lock of another process.
    type Watch;

    /// Makes names visible that others have made before. Until then the system may use cached
    /// names, and cached absences of names.
    fn refresh(&self) -> io::Result<()>;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file for writing.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading, with its current content; `None` if it does not exist.
    fn open(&self, name: &str) -> io::Result<Option<Self::File>>;

    /// Renames a file, and replaces the file that had the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file, if it exists.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Writes all of `bytes` at `at`.
    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written visible to whoever opens the file from now on.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Reads the bytes at `at`, up to the end of the file.
    fn read_at(&self, file: &Self::File, at: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Takes a lock file, unless another process holds it.
    fn hold(&self, name: &str) -> io::Result<Option<Self::Alive>>;

    /// Opens a lock file to query it; `None` if it does not exist.
    fn watch(&self, name: &str) -> io::Result<Option<Self::Watch>>;

    /// Whether some process holds the lock.
    fn is_alive(&self, watch: &Self::Watch) -> io::Result<bool>;
}

/// A directory of the system.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Medium for Directory {
    type File = File;
    type Alive = Alive;
    type Watch = Watch;

    fn refresh(&self) -> io::Result<()> {
        // When a directory is opened, NFS asks the server, and drops its cached names if the
        // directory has changed.
        File::open(&self.0).map(drop)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.0)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str) -> io::Result<File> {
        File::create(self.0.join(name))
    }

    fn open(&self, name: &str) -> io::Result<Option<File>> {
        found(File::open(self.0.join(name)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        found(fs::remove_file(self.0.join(name))).map(drop)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn read_at(&self, file: &File, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        while count < bytes.len() {
            match file.read_at(&mut bytes[count..], at + count as u64) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn hold(&self, name: &str) -> io::Result<Option<Alive>> {
        Alive::hold(&self.0.join(name))
    }

    fn watch(&self, name: &str) -> io::Result<Option<Watch>> {
        Watch::open(&self.0.join(name))
    }

    fn is_alive(&self, watch: &Watch) -> io::Result<bool> {
        watch.is_alive()
    }
}

/// `None` if the file does not exist.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
