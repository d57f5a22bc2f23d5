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

    /// Renames a file, and replaces the file that had the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

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

    /// Whether it is this process that has the lock file `name`, if that can be told.
    fn is_locked_here(&self, _name: &str) -> bool {
        false
    }
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

    /// A descriptor with O_DIRECT, for transfers whose memory, offset and length are multiples of
    /// [`ALIGN`](crate::ALIGN). `None` if it is not supported.
    fn direct(&self) -> Option<&OwnedFd> {
        None
    }
}

/// Writes a small file atomically: after a crash there is either all of it or what was there
/// before. It is written under another name first, which is then renamed to `name` in `dir`, which
/// must not be the root. On return, it is durable.
pub fn write_whole(files: &dyn Files, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace_whole(files, dir, name, bytes)?;
    files.sync_dir(dir)
}

/// As [`write_whole`], without making the name durable: a crash may bring back what was there
/// before. If it fails, the old file is still there.
pub fn replace_whole(files: &dyn Files, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (target, draft) = (format!("{dir}/{name}"), format!("{dir}/{name}.draft"));
    let file = files.create(&draft, bytes.len() as u64)?;
    let written = file.write_at(0, bytes).and_then(|()| file.sync()).and_then(|()| files.rename(&draft, &target));
    if let Err(error) = written {
        // An incomplete file is of no use.
        let _ = files.remove(&draft);
        return Err(error);
    }
    Ok(())
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
