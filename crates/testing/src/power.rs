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

/// What a [`Disk`] is formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// The usual one of many systems.
    Ext4,
    /// The usual one of others, and of large machines.
    Xfs,
}

/// How a file system ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The journal reaches the medium, and of the bytes of files only what had been written.
    WithJournal = 1,
    /// Nothing does.
    Sudden = 2,
}

/// A small disk in a file. For use inside of [`with_own_mounts`](crate::with_own_mounts), in a test
/// that runs [`alone`](crate::alone): a process that another test starts would have its files open
/// for a moment, and it could not be unmounted.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    path: PathBuf,
}

impl Disk {
    /// Makes a disk in the directory `given` and mounts it, or gives the reason why that is not
    /// possible here.
    pub fn make(given: &Path, file_system: FileSystem) -> Result<Self, String> {
        let (image, path) = (given.join("image"), given.join("medium"));
        fs::create_dir(&path).unwrap();
        // No xfs is smaller than 300 MiB. The file has holes.
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

    /// Ends the file system as a power cut does: from now on everything fails.
    pub fn cut(&self, cut: Cut) {
        const SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
        let root = fs::File::open(&self.path).unwrap();
        // SAFETY: this call takes a pointer to one number, and ends a file system that is this
        // test's own.
        unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(cut as u32)) }.unwrap();
    }

    /// What the machine finds when it is on again. All files must be closed, or about to be.
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
        // It is gone with the namespace of its mount at the latest.
        let _ = unmount(&self.path, UnmountFlags::empty());
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        outcome => Err(format!("{command:?} gave {outcome:?}")),
    }
}
