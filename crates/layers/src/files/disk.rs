//! The files in a real directory.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use outcrop_local::{Alive, is_held_here};
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate, statvfs},
    io::Errno,
};

use super::{File, FileLock, Files, Holder};

/// The files below a directory.
#[derive(Debug, Clone)]
pub struct DiskFiles {
    root: PathBuf,
    /// Whether directories below the root may be symbolic links.
    follows_links: bool,
}

impl DiskFiles {
    /// The files below `root`, which is created if it is missing, and then survives a crash.
    pub fn create(root: &Path) -> io::Result<Self> {
        let missing = root.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let missing: Vec<_> = missing.map(Path::to_owned).collect();
        fs::create_dir_all(root)?;
        for made in missing.iter().rev() {
            let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
            sync_names(parent.unwrap_or(Path::new(".")))?;
        }
        Self::open(root)
    }

    /// The files below `root`, which must exist.
    pub fn open(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        match root.is_dir() {
            true => Ok(Self { root, follows_links: true }),
            false => Err(Errno::NOTDIR.into()),
        }
    }

    /// The same files, except those in directories that are symbolic links, for a directory to
    /// which others can write.
    #[must_use]
    pub fn without_links(self) -> Self {
        Self { follows_links: false, ..self }
    }

    /// The path of a file. Names come from this program or from a directory listing, and must not
    /// lead elsewhere.
    fn path(&self, name: &str) -> io::Result<PathBuf> {
        let name = Path::new(name);
        let is_inside = name.components().all(|part| matches!(part, Component::Normal(_)));
        if !is_inside || name.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} leads elsewhere")));
        }
        if let Some(parent) = name.parent() {
            self.check_dir(parent)?;
        }
        Ok(self.root.join(name))
    }

    /// The path of a directory.
    fn dir_path(&self, dir: &str) -> io::Result<PathBuf> {
        let path = self.path(dir)?;
        self.check_dir(Path::new(dir))?;
        Ok(path)
    }

    /// Checks that no part of this name is a link that must not be followed. Missing parts are left
    /// to the caller.
    fn check_dir(&self, dir: &Path) -> io::Result<()> {
        if self.follows_links {
            return Ok(());
        }
        let is_link =
            |part: &Path| self.root.join(part).symlink_metadata().is_ok_and(|found| found.file_type().is_symlink());
        match dir.ancestors().filter(|part| !part.as_os_str().is_empty()).find(|part| is_link(part)) {
            None => Ok(()),
            Some(link) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("{link:?} is a link; it is not followed")))
            }
        }
    }

    /// Makes a file for writing and reading, with space for `bytes` bytes.
    fn make(&self, name: &str, bytes: u64, options: &mut fs::OpenOptions) -> io::Result<Arc<dyn File>> {
        let path = self.path(name)?;
        let file = open_plain(options.read(true).write(true), &path)?;
        let allocated = loop {
            match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes.max(1)) {
                Err(Errno::INTR) => {}
                // The file system allocates on write.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => break Ok(()),
                Err(errno) => break Err(io::Error::from(errno)),
            }
        };
        let opened = allocated.and_then(|()| DiskFile::with_direct(file, &path, true));
        if opened.is_err() {
            fs::remove_file(&path)?;
        }
        opened
    }
}

impl Files for DiskFiles {
    fn location(&self) -> String {
        self.root.display().to_string()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.dir_path(dir)?)?;
        // A name that is not valid UTF-8 is not one of ours.
        entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        let path = self.dir_path(dir)?;
        match fs::DirBuilder::new().mode(0o777).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.make(name, bytes, fs::OpenOptions::new().create(true).truncate(true))
    }

    fn create_new(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.make(name, bytes, fs::OpenOptions::new().create_new(true))
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let found = statvfs(&self.root)?;
        // Some file systems do not say how large they are.
        Ok((found.f_blocks > 0).then(|| found.f_bavail.saturating_mul(found.f_frsize)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let path = self.path(name)?;
        DiskFile::with_direct(open_plain(fs::OpenOptions::new().read(true), &path)?, &path, false)
    }

    fn bytes_of(&self, name: &str) -> io::Result<u64> {
        let found = fs::symlink_metadata(self.path(name)?)?;
        found.is_file().then_some(found.len()).ok_or_else(not_plain)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from)?, self.path(to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name)?)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        fs::remove_dir(self.dir_path(dir)?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        sync_names(&self.dir_path(dir)?)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        Ok(Alive::hold(&self.path(name)?)?.map(FileLock::new))
    }

    fn holder(&self, name: &str) -> Option<Holder> {
        self.path(name).is_ok_and(|path| is_held_here(&path)).then_some(Holder::Here)
    }
}

/// Opens a regular file. A link could lead elsewhere, and opening a pipe could block forever;
/// neither was created by Outcrop.
fn open_plain(options: &mut fs::OpenOptions, path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        // A link, or a socket.
        Some(Errno::LOOP | Errno::NXIO) => not_plain(),
        _ => error,
    })?;
    match file.metadata()? {
        found if found.is_file() => Ok(file),
        found if found.is_dir() => Err(Errno::ISDIR.into()),
        _ => Err(not_plain()),
    }
}

/// Makes what was created, renamed or removed in a directory durable.
fn sync_names(dir: &Path) -> io::Result<()> {
    sync_opened(&fs::File::open(dir)?, dir)
}

/// XFS that has failed and shut down loses what it had not synced, but says that a directory which
/// was opened before is synced. To open it again fails then.
fn sync_opened(opened: &fs::File, dir: &Path) -> io::Result<()> {
    opened.sync_all()?;
    fs::File::open(dir).map(drop)
}

fn not_plain() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file")
}

struct DiskFile {
    file: fs::File,
    direct: Option<OwnedFd>,
}

impl DiskFile {
    fn with_direct(file: fs::File, path: &Path, is_writable: bool) -> io::Result<Arc<dyn File>> {
        let direct = fs::OpenOptions::new()
            .read(true)
            .write(is_writable)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .map(OwnedFd::from);
        let direct = match direct {
            Ok(direct) => Some(direct),
            // The file system does not support O_DIRECT.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => None,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self { file, direct }))
    }
}

impl File for DiskFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn direct(&self) -> Option<&OwnedFd> {
        self.direct.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use outcrop_testing::{Cut, Disk, FileSystem, alone, skip, with_own_mounts};

    use super::*;

    #[test]
    fn a_directory_of_a_file_system_that_has_shut_down_is_not_synced() {
        if alone("files::disk::tests::a_directory_of_a_file_system_that_has_shut_down_is_not_synced") {
            return;
        }
        with_own_mounts(|given| {
            for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
                let given = given.join(format!("{file_system:?}"));
                fs::create_dir(&given).unwrap();
                let disk = match Disk::make(&given, file_system) {
                    Ok(disk) => disk,
                    Err(reason) => {
                        skip(format_args!("no {file_system:?} that could be shut down: {reason}"));
                        continue;
                    }
                };
                let opened = fs::File::open(disk.path()).unwrap();
                sync_opened(&opened, disk.path()).unwrap();
                fs::write(disk.path().join("name"), b"bytes").unwrap();
                disk.cut(Cut::Sudden);
                sync_opened(&opened, disk.path()).unwrap_err();
                drop(opened);
                disk.power_up();
                assert!(!disk.path().join("name").exists(), "{file_system:?}");
            }
        });
    }
}
