//! The file operations that a directory on a shelf needs, as a trait. Implemented by a real
//! directory, and by tests that record every write and sync or make them fail.

mod disk;

use std::{fmt, io, os::fd::OwnedFd, sync::Arc};

pub use disk::DiskFiles;

/// A tree of files. Names are relative to its root, with `/` between their parts.
///
/// It is assumed to behave like a local file system: what was written before a successful
/// [`File::sync`] survives a crash, and so does what was created, renamed or removed in a directory
/// before a successful [`sync_dir`](Self::sync_dir). Any part of everything else may be lost, in
/// any order. A rename is atomic.
pub trait Files: Send + Sync {
    /// Its location, for messages.
    fn location(&self) -> String;

    /// The names of all entries of a directory, in any order. The root is `""`.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Creates a directory in an existing one, unless it exists. Returns `AlreadyExists` if a file
    /// has that name.
    fn make_dir(&self, dir: &str) -> io::Result<()>;

    /// Creates a file for writing and reading, or truncates an existing one, and allocates space
    /// for `bytes` bytes. If there is no space, returns `StorageFull` and leaves no file.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>>;

    /// As [`create`](Self::create), but fails if anything has this name.
    fn create_new(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(name, bytes),
            Err(error) => Err(error),
            Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// How much room there is for files, if that is known.
    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// The length of a file.
    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        self.open(name)?.bytes()
    }

    /// Renames a file, and replaces the file that had the new name. Where files cannot be renamed,
    /// [`replace`](Self::replace) does without.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Writes a small file atomically in place of the one of this name, if there is one: after a
    /// crash there is either all of it or what was there before. It is not durable before
    /// [`sync_dir`](Self::sync_dir). If it fails, the old file is still there. The directory must
    /// not be the root.
    ///
    /// By default it is written under another name first, and then renamed.
    fn replace(&self, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let (target, draft) = (format!("{dir}/{name}"), format!("{dir}/{name}.draft"));
        let file = self.create(&draft, bytes.len() as u64)?;
        let written = file.write_at(0, bytes).and_then(|()| file.sync()).and_then(|()| self.rename(&draft, &target));
        if let Err(error) = written {
            // An incomplete file is of no use.
            let _ = self.remove(&draft);
            return Err(error);
        }
        Ok(())
    }

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes everything that was created, renamed or removed in this directory survive a crash.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Takes the lock file `name`, which is created if it is missing, until the value is dropped.
    /// `None` if another process, or another part of this one, has it. The lock is released when
    /// its process ends, in whatever way.
    fn lock(&self, name: &str) -> io::Result<Option<FileLock>>;

    /// Who has the lock file `name`, if that can be told.
    fn holder(&self, _name: &str) -> Option<Holder> {
        None
    }

    /// Whether [`File::write_at`] returns while its bytes are still on their way. Then a file that
    /// waits for its sync need not keep the next one waiting.
    fn writes_behind(&self) -> bool {
        false
    }

    /// What somebody who relies on a directory should know of it, each in one sentence.
    fn remarks(&self, _dir: &str) -> Vec<String> {
        Vec::new()
    }
}

/// Who has a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// This process.
    Here,
    /// Another one, in words.
    Other(String),
}

/// A lock that is released when it is dropped.
pub struct FileLock(#[expect(dead_code, reason = "held until it is dropped")] Box<dyn Send + Sync>);

impl fmt::Debug for FileLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileLock")
    }
}

impl FileLock {
    /// A lock that lasts as long as `holder`.
    pub fn new(holder: impl Send + Sync + 'static) -> Self {
        Self(Box::new(holder))
    }
}

/// One file of a [`Files`].
pub trait File: Send + Sync {
    /// Its length.
    fn bytes(&self) -> io::Result<u64>;

    /// Writes all of `bytes` at `at`. The file grows as needed.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills all of `bytes` from `at`. Returns `UnexpectedEof` if the file is too short.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes everything that was written survive a crash.
    fn sync(&self) -> io::Result<()>;

    /// Reads of so many bytes are as fast as any. By default they stay in a core's cache while they
    /// are verified and copied.
    fn read_bytes(&self) -> u64 {
        1 << 20
    }

    /// A descriptor with O_DIRECT, for transfers whose memory, offset and length are multiples of
    /// [`ALIGN`](crate::ALIGN). `None` if it is not supported.
    fn direct(&self) -> Option<&OwnedFd> {
        None
    }
}

/// Writes a small file atomically, as [`Files::replace`] does. On return, it is durable.
pub fn write_whole(files: &dyn Files, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    files.replace(dir, name, bytes)?;
    files.sync_dir(dir)
}

/// All bytes of a small file.
pub fn read_whole(files: &dyn Files, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = files.open(name)?;
    let bytes = file.bytes()?;
    if bytes > bytes_max {
        let reason = format!("{name} is {bytes} bytes long, which is more than it can be");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut whole = vec![0; bytes as usize];
    file.read_at(0, &mut whole)?;
    Ok(whole)
}
