//! The bytes of a staged file: a file in memory that has no name.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::fs::{MemfdFlags, SealFlags, Stat, fcntl_add_seals, fstat, memfd_create};

use super::system::{Lease, release_lease, reopen, take_lease};

/// Which flags of an open call belong to the descriptor, and not to the name.
const OF_DESCRIPTOR: libc::c_int =
    libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_TRUNC | libc::O_LARGEFILE;

/// What its link below /proc/PID/fd begins with.
pub(crate) const NAME: &str = "outcrop-staged";

/// A file in memory, open for reading only: so the system's count of writers is that of the others.
pub(crate) struct Memory(OwnedFd);

impl Memory {
    /// An empty one. It belongs to the user who calls.
    pub(crate) fn new() -> io::Result<Self> {
        let writable = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        Ok(Self(reopen(writable.as_fd(), libc::O_RDONLY)?))
    }

    pub(crate) fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.0)?)
    }

    /// A path through which this process finds it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// A descriptor as `open` with these flags would return.
    pub(crate) fn open(&self, flags: libc::c_int) -> io::Result<OwnedFd> {
        reopen(self.0.as_fd(), flags & OF_DESCRIPTOR)
    }

    /// From now on it cannot become longer.
    pub(crate) fn seal(&self) -> io::Result<()> {
        Ok(fcntl_add_seals(self.open(libc::O_WRONLY)?, SealFlags::GROW)?)
    }

    /// Whether anybody has it open or mapped for writing.
    pub(crate) fn has_writers(&self) -> io::Result<bool> {
        self.is_refused(Lease::NoWriter)
    }

    /// Whether anybody has it open or mapped at all.
    pub(crate) fn is_in_use(&self) -> io::Result<bool> {
        self.is_refused(Lease::Sole)
    }

    fn is_refused(&self, lease: Lease) -> io::Result<bool> {
        let is_granted = take_lease(self.0.as_fd(), lease)?;
        release_lease(self.0.as_fd());
        Ok(!is_granted)
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use super::*;

    #[test]
    fn what_is_sealed_does_not_grow() {
        let memory = Memory::new().unwrap();
        let mut writer = File::from(memory.open(libc::O_RDWR).unwrap());
        writer.write_all(b"before").unwrap();
        memory.seal().unwrap();
        assert_eq!(writer.write_all(b"after").unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(memory.stat().unwrap().st_size, 6);
    }

    #[test]
    fn users_are_seen_as_long_as_they_have_it_open_or_mapped() {
        let memory = Memory::new().unwrap();
        assert!(!memory.is_in_use().unwrap());
        let reader = memory.open(libc::O_RDONLY).unwrap();
        assert!(memory.is_in_use().unwrap() && !memory.has_writers().unwrap());
        let mut writer = File::from(memory.open(libc::O_RDWR).unwrap());
        let second = writer.try_clone().unwrap();
        writer.write_all(&[1; 4096]).unwrap();
        // SAFETY: a new mapping of a file that stays that long.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&writer),
                0,
            )
        };
        drop((reader, writer));
        assert!(memory.has_writers().unwrap());
        drop(second);
        assert!(memory.has_writers().unwrap(), "the mapping alone keeps it open");
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(mapped, 4096) }, 0);
        assert!(!memory.is_in_use().unwrap());
    }
}
