//! What ranks need of the directory that they share: a few operations on its files and locks.
//!
//! Only this is asked of a shared file system (docs/store.md, "The shared directory"):
//!
//! - Who opens a file sees what others had written and synced before. What it has opened earlier
//!   may go on to show what it was.
//! - Who opens the directory sees the names that others had made before.
//! - A rename puts one file in place of another at once.
//! - Locks are seen by all, and end with the process that holds them.
//!
//! What is seen later than that is waited for. Bytes may be seen in any order: a length before the
//! bytes, zeros in between.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

use outcrop_local::{Alive, Watch};

/// A directory in which ranks talk.
pub(crate) trait Medium {
    /// An open file.
    type File;
    /// A lock that is held.
    type Alive;
    /// A look at the lock of another.
    type Watch;

    /// Lets names be seen that others have made before. Until then, old ones may be remembered, and
    /// that there were none.
    fn refresh(&self) -> io::Result<()>;

    /// The names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file for writing.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading, as it is now; nothing if there is none.
    fn open(&self, name: &str) -> io::Result<Option<Self::File>>;

    /// Gives a file another name, in place of the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file, if it is there.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Writes all of `bytes` at `at`.
    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Lets others see what was written, if they open the file from now on.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Reads as many of the bytes at `at` as there are.
    fn read_at(&self, file: &Self::File, at: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Holds a lock file, unless another does.
    fn hold(&self, name: &str) -> io::Result<Option<Self::Alive>>;

    /// Looks at a lock file; nothing if there is none.
    fn watch(&self, name: &str) -> io::Result<Option<Self::Watch>>;

    /// Whether some process holds it.
    fn is_alive(&self, watch: &Self::Watch) -> io::Result<bool>;
}

/// A directory of the system.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Medium for Directory {
    type File = File;
    type Alive = Alive;
    type Watch = Watch;

    fn refresh(&self) -> io::Result<()> {
        // NFS asks the server again when a directory is opened, and forgets the names that it
        // remembers if the directory has changed.
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

/// Nothing if it is not there.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
