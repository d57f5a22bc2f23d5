//! Files in a subdirectory of other files, and files that misbehave.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use outcrop::layers::files::{DiskFiles, File, FileLock, Files};
use outcrop_crash::Tree;

/// A subdirectory of other files, as files of its own. So two layers in one recording have a common
/// order of events.
struct Below {
    files: Arc<dyn Files>,
    dir: String,
}

/// The directory `dir` of `files`.
pub(crate) fn below(files: &Arc<dyn Files>, dir: &str) -> Arc<dyn Files> {
    Arc::new(Below { files: Arc::clone(files), dir: dir.to_owned() })
}

impl Below {
    fn name(&self, name: &str) -> String {
        if name.is_empty() { self.dir.clone() } else { format!("{}/{name}", self.dir) }
    }
}

/// A tree with directories of these names. Each contains a file that does not belong to a store.
pub(crate) fn tree_of<T: std::fmt::Display>(dirs: &[T]) -> Tree {
    let mut tree = Tree::default();
    dirs.iter().for_each(|dir| tree.put(&format!("{dir}/readme"), b"not from a store"));
    tree
}

impl Files for Below {
    fn location(&self) -> String {
        format!("{} of {}", self.dir, self.files.location())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.files.list(&self.name(dir))
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.files.make_dir(&self.name(dir))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.files.create(&self.name(name), bytes)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.files.open(&self.name(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(&self.name(from), &self.name(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(&self.name(name))
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.files.remove_dir(&self.name(dir))
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.files.sync_dir(&self.name(dir))
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.files.lock(&self.name(name))
    }
}

/// What the files do not do, to show that a test would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgets {
    SyncOfFiles,
    SyncOfDirectories,
}

/// Files that report success without doing it.
struct Forgetful {
    files: Arc<dyn Files>,
    forgets: Forgets,
}

/// These files, without the operations that they forget.
pub(crate) fn forgetful(files: Arc<dyn Files>, forgets: Forgets) -> Arc<dyn Files> {
    Arc::new(Forgetful { files, forgets })
}

impl Files for Forgetful {
    fn location(&self) -> String {
        self.files.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.files.make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        let file = self.files.create(name, bytes)?;
        Ok(Arc::new(ForgetfulFile { file, forgets: self.forgets }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.files.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.files.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        if self.forgets == Forgets::SyncOfDirectories { Ok(()) } else { self.files.sync_dir(dir) }
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.files.lock(name)
    }
}

struct ForgetfulFile {
    file: Arc<dyn File>,
    forgets: Forgets,
}

impl File for ForgetfulFile {
    fn bytes(&self) -> io::Result<u64> {
        self.file.bytes()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(at, bytes)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        if self.forgets == Forgets::SyncOfFiles { Ok(()) } else { self.file.sync() }
    }
}

/// The files in a directory. The bytes that are read from packs are counted.
pub(crate) fn counted(dir: &Path, bytes: &Arc<AtomicU64>) -> Arc<dyn Files> {
    Arc::new(Counted { files: DiskFiles::create(dir).unwrap(), bytes: Arc::clone(bytes) })
}

struct Counted {
    files: DiskFiles,
    bytes: Arc<AtomicU64>,
}

struct CountedFile(Arc<dyn File>, Arc<AtomicU64>);

impl File for CountedFile {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(at, bytes)
    }
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.1.fetch_add(bytes.len() as u64, SeqCst);
        self.0.read_at(at, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Files for Counted {
    fn location(&self) -> String {
        self.files.location()
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }
    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.files.make_dir(dir)
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.files.create(name, bytes)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = self.files.open(name)?;
        Ok(if name.contains("pack-") { Arc::new(CountedFile(file, Arc::clone(&self.bytes))) } else { file })
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.files.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.remove(name)
    }
    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.files.remove_dir(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.files.sync_dir(dir)
    }
    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.files.lock(name)
    }
}
