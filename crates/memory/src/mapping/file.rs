//! Mappings with a descriptor behind them: memfds, files, and files on persistent memory.

use std::{
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        PoisonError,
        atomic::Ordering::{Relaxed, Release},
    },
};

use rustix::{
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fdatasync, fstat,
        ftruncate, memfd_create,
    },
    io::{Errno, retry_on_intr},
    mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync},
};

use super::{Backing, Mapping};
use crate::{Access, Error, Result, lines, page_bytes};

impl Mapping {
    /// New memory with a descriptor, called `name` in /proc. Its length is sealed: nobody who gets
    /// the [`descriptor`](Self::descriptor) can shrink it, which would kill every process that uses
    /// it, or make it grow.
    pub fn memfd(name: &str, bytes: u64) -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = memfd_create(name, flags).map_err(Error::failed("make a memfd"))?;
        ftruncate(&memfd, bytes).map_err(Error::failed("set the length of a memfd"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&memfd, seals).map_err(Error::failed("seal a memfd"))?;
        Self::of_memfd(memfd, Access::ReadWrite)
    }

    /// Maps a memfd that another process has created. Returns an error if it could be shrunk.
    pub fn of_memfd(memfd: OwnedFd, access: Access) -> Result<Self> {
        let seals = fcntl_get_seals(&memfd).map_err(Error::failed("read the seals of a memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(Error::Unsealed);
        }
        Self::over(Backing::Memfd, memfd, access, 0)
    }

    /// Maps a file through the page cache. It can [`grow`](Self::grow) to `bytes_max`, for which
    /// address space is reserved.
    pub fn file(file: impl AsFd, access: Access, bytes_max: u64) -> Result<Self> {
        Self::over(Backing::File, cloned(file.as_fd())?, access, bytes_max)
    }

    /// Maps a file on persistent memory, without a page cache. What is stored and flushed is
    /// durable without a system call (MAP_SYNC). Returns [`Error::NoDax`] if the file system does
    /// not support it.
    pub fn dax(file: impl AsFd, access: Access, bytes_max: u64) -> Result<Self> {
        Self::over(Backing::Dax, cloned(file.as_fd())?, access, bytes_max)
    }

    fn over(backing: Backing, descriptor: OwnedFd, access: Access, bytes_max: u64) -> Result<Self> {
        let bytes = file_bytes(&descriptor)?;
        let mut mapping = Self::reserve(backing, access, bytes.max(bytes_max))?;
        mapping.descriptor = Some(descriptor);
        // Of an empty file, map the first page, so that an error is reported now and not later.
        mapping.map_descriptor(&(0..bytes.max(1)))?;
        *mapping.bytes.get_mut() = bytes;
        Ok(mapping)
    }

    /// Its descriptor, if it has one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Makes a mapped file, and the mapping, at least `bytes` long. A read-only mapping can only
    /// follow the growth of the file. Addresses do not change. On return, the space is allocated
    /// and the new length survives a crash.
    pub fn grow(&self, bytes: u64) -> Result<()> {
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.bytes();
        if bytes <= old {
            return Ok(());
        }
        let can_grow = matches!(self.backing, Backing::File | Backing::Dax) && bytes <= self.bytes_max;
        let Some(file) = self.descriptor.as_ref().filter(|_| can_grow) else {
            return Err(Error::OutOfRange { range: old..bytes, bytes: self.bytes_max });
        };
        if file_bytes(file)? < bytes || self.access == Access::ReadWrite {
            self.make_longer(file, old..bytes)?;
        }
        self.map_descriptor(&(old..bytes))?;
        self.bytes.store(bytes, Release);
        Ok(())
    }

    /// Has the file system allocate `range` of the file, and makes that survive a crash.
    fn make_longer(&self, file: &OwnedFd, range: Range<u64>) -> Result<()> {
        if self.access == Access::Read {
            return Err(Error::ReadOnly);
        }
        self.check_trusted()?;
        match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), range.start, range.end - range.start)) {
            Ok(()) => {}
            // The file system allocates on write. If it is full then, the write kills the program.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                if file_bytes(file)? < range.end {
                    retry_on_intr(|| ftruncate(file, range.end)).map_err(Error::failed("grow a mapped file"))?;
                }
            }
            Err(errno) => return Err(Error::failed("grow a mapped file")(errno)),
        }
        retry_on_intr(|| fdatasync(file)).map_err(|errno| self.distrust(errno))
    }

    /// Makes what was written to `range` survive a crash, in the way that the backing needs. Does
    /// nothing for memory that does not survive the process.
    ///
    /// After an error, nothing is certain about the bytes written since the last flush: the system
    /// may have dropped them. All later flushes fail as well.
    pub fn flush(&self, range: Range<u64>) -> Result<()> {
        self.flush_all(&[range])
    }

    /// As `flush`, for several ranges with one fence or one system call.
    pub fn flush_all(&self, ranges: &[Range<u64>]) -> Result<()> {
        ranges.iter().try_for_each(|range| self.check(range))?;
        self.check_trusted()?;
        match (self.backing, lines::instruction()) {
            (Backing::Anonymous(_) | Backing::Chunks { .. } | Backing::Memfd, _) => Ok(()),
            #[cfg(target_arch = "x86_64")]
            (Backing::Dax, Some(instruction)) => {
                for range in ranges {
                    // SAFETY: the range lies inside the mapping, and the processor has the
                    // instruction.
                    unsafe {
                        let bytes = (range.end - range.start) as usize;
                        lines::write_back(instruction, self.pointer(range.start), bytes);
                    }
                }
                lines::fence();
                Ok(())
            }
            (Backing::File | Backing::Dax, _) => self.sync(ranges),
        }
    }

    /// What [`flush`](Self::flush) does, for people.
    pub fn flush_way(&self) -> &'static str {
        match (self.backing, lines::instruction()) {
            (Backing::Anonymous(_) | Backing::Chunks { .. } | Backing::Memfd, _) => "nothing",
            (Backing::Dax, Some(instruction)) => instruction.name(),
            (Backing::File | Backing::Dax, _) => "msync",
        }
    }

    /// One call from the first to the last page, because each call waits for the medium.
    fn sync(&self, ranges: &[Range<u64>]) -> Result<()> {
        let written = ranges.iter().filter(|range| !range.is_empty());
        let Some(all) = written.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { return Ok(()) };
        let (address, bytes) = self.pages_of(&all);
        // SAFETY: the pages lie inside the mapping, and writing them to the file changes no byte.
        retry_on_intr(|| unsafe { msync(address.cast(), bytes, MsyncFlags::SYNC) })
            .map_err(|errno| self.distrust(errno))
    }

    fn check_trusted(&self) -> Result<()> {
        if self.is_distrusted.load(Relaxed) { Err(Error::Distrusted) } else { Ok(()) }
    }

    fn distrust(&self, errno: Errno) -> Error {
        self.is_distrusted.store(true, Relaxed);
        Error::failed("flush a mapped file")(errno)
    }

    /// Maps the pages of the descriptor that hold `range`, except a first page that is already
    /// mapped.
    fn map_descriptor(&self, range: &Range<u64>) -> Result<()> {
        let Some(file) = &self.descriptor else { return Ok(()) };
        let page = page_bytes() as u64;
        let (start, end) = (range.start.next_multiple_of(page), range.end.next_multiple_of(page));
        if start >= end {
            return Ok(());
        }
        let protection = match self.access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let kind = match self.backing {
            Backing::Dax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            _ => MapFlags::SHARED,
        };
        let (address, bytes) = (self.pointer(start), (end - start) as usize);
        // SAFETY: the pages lie inside the reserved address space, beyond what was usable until
        // now, so nobody has used them yet.
        let mapped = unsafe { mmap(address.cast(), bytes, protection, kind | MapFlags::FIXED, file, start) };
        mapped.map(drop).map_err(|errno| match (self.backing, errno) {
            // Old kernels do not support the flags.
            (Backing::Dax, Errno::OPNOTSUPP | Errno::INVAL) => Error::NoDax { source: errno.into() },
            _ => Error::failed("map a file")(errno),
        })
    }
}

fn cloned(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    file.try_clone_to_owned().map_err(|source| Error::Failed { attempt: "keep a file open", source })
}

fn file_bytes(file: &OwnedFd) -> Result<u64> {
    let stat = fstat(file).map_err(Error::failed("read the length of a file"))?;
    Ok(stat.st_size.unsigned_abs())
}
