//! File systems that lose power.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    io::Errno,
    ioctl::{Setter, ioctl, opcode},
    mount::{UnmountFlags, unmount},
};

use crate::until;

/// The file system of a [`Disk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// The default of many distributions.
    Ext4,
    /// The default of others, and common on large machines.
    Xfs,
}

/// How much reaches the medium in a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The journal, and the data that had been written before.
    WithJournal = 1,
    /// Nothing more.
    Sudden = 2,
}

/// A small disk in a file. For use inside [`with_own_mounts`](crate::with_own_mounts), in a test
/// that runs [`alone`](crate::alone). Otherwise a process that another test starts would have its
/// files open for a moment, and it could not be unmounted.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    path: PathBuf,
}

impl Disk {
    /// Makes a disk in the directory `given` and mounts it. Returns the reason if that is not
    /// possible here.
    pub fn make(given: &Path, file_system: FileSystem) -> Result<Self, String> {
        let (image, path) = (given.join("image"), given.join("medium"));
        fs::create_dir(&path).unwrap();
        // An xfs has at least 300 MiB. The file is sparse.
        let (bytes, mut command) = match file_system {
            FileSystem::Ext4 => (32 << 20, Command::new("mkfs.ext4")),
            FileSystem::Xfs => (320 << 20, Command::new("mkfs.xfs")),
        };
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let disk = Self { image, path };
        run(command.arg("-q").arg(&disk.image))?;
        disk.mount()?;
        Ok(disk)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop"]).args([&self.image, &self.path]))
    }

    /// Shuts the file system down, as a power cut does. From now on every operation fails.
    pub fn cut(&self, cut: Cut) {
        const SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
        let root = fs::File::open(&self.path).unwrap();
        // SAFETY: this call takes a pointer to one number, and ends a file system that is this
        // test's own.
        unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(cut as u32)) }.unwrap();
    }

    /// Mounts it again, as the machine does after a restart. All files must be closed, or about to
    /// be.
    pub fn power_up(&self) {
        until("the disk is unmounted", || match unmount(&self.path, UnmountFlags::empty()) {
            Err(Errno::BUSY) => false,
            result => result.map(|()| true).unwrap(),
        });
        self.mount().unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // At the latest, it is unmounted with its mount namespace.
        let _ = unmount(&self.path, UnmountFlags::empty());
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        outcome => Err(format!("{command:?} gave {outcome:?}")),
    }
}
