//! The calls that a directory which survives is made of, as a trait: a real directory, and what
//! tests put in its place to record every write and flush or to make them fail.

mod disk;

use std::{fmt, io, os::fd::OwnedFd, sync::Arc};

pub use disk::DiskFiles;

/// A tree of files. Names are relative to its root, with `/` between their parts.
///
/// What is assumed of it is what is true of a local file system: what was written before a
/// successful [`File::sync`] survives a crash, and so does what was created, renamed or removed in
/// a directory before a successful [`sync_dir`](Self::sync_dir). Of everything else any part may be
/// lost, in any order; a rename happens wholly or not at all.
pub trait Files: Send + Sync {
    /// Where it is, for messages.
    fn location(&self) -> String;

    /// The names of everything in a directory, in any order; the root is `""`.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;

    /// Makes a directory, if it is not there, in one that is; `AlreadyExists` if a file has that
    /// name.
    fn make_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes a file for `bytes` bytes, empty if there was one, for writing and reading. Fails with
    /// `StorageFull`, and leaves no file, if there is no room for them.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>>;

    /// Opens a file for reading.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in place of the file that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &str) -> io::Result<()>;

    /// Makes everything that was created, renamed or removed in this directory survive a crash.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// Takes the lock file `name`, which is made if it is missing, until the value is dropped;
    /// nothing if another process, or another part of this one, has it. It ends with the process
    /// that holds it, however that ends.
    fn lock(&self, name: &str) -> io::Result<Option<FileLock>>;
}

/// A lock that is given up when it is dropped.
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
    /// How long it is.
    fn bytes(&self) -> io::Result<u64>;

    /// Writes all of `bytes` at `at`; the file grows as needed.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills all of `bytes` from `at`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes everything that was written survive a crash.
    fn sync(&self) -> io::Result<()>;

    /// A descriptor past the page cache for transfers whose memory, place and length are multiples
    /// of [`ALIGN`](crate::ALIGN); nothing where there is none.
    fn direct(&self) -> Option<&OwnedFd> {
        None
    }
}

/// Writes a small file so that after a crash there is either all of it or what was there before:
/// under another name first, which then takes the place of `name` in `dir`, which is not the root.
/// When it returns, it survives.
pub fn write_whole(files: &dyn Files, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace_whole(files, dir, name, bytes)?;
    files.sync_dir(dir)
}

/// As [`write_whole`], without making its name durable: when it returns, it is there, and a crash
/// may bring back what was there before. When it fails, that is still there.
pub fn replace_whole(files: &dyn Files, dir: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (target, draft) = (format!("{dir}/{name}"), format!("{dir}/{name}.draft"));
    let file = files.create(&draft, bytes.len() as u64)?;
    let written = file.write_at(0, bytes).and_then(|()| file.sync()).and_then(|()| files.rename(&draft, &target));
    if let Err(error) = written {
        // What the medium did not take is of no use to anybody.
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
