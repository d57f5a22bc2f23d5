//! Where the bytes of a pool are: a mapped file, or persistent memory.

use std::{fs::File, io, ops::Range, os::fd::BorrowedFd};

use outcrop_memory::{Access, Backing, Copier, Error, Mapping};

/// What a pool needs of the place of its bytes.
///
/// What was written is durable after a flush of its range, and may be before, in any order, 8 bytes
/// at a time.
pub trait Medium: Send + Sync {
    /// How many bytes there are.
    fn bytes(&self) -> u64;

    /// Makes it at least so long. New bytes are zeros. It is durable when this returns.
    fn grow(&self, bytes: u64) -> io::Result<()>;

    /// Reads all bytes at `at`.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes bytes at `at`. No other call reads or writes the same bytes meanwhile, but several
    /// threads may write others.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written to these ranges durable.
    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()>;

    /// The file, if its bytes can be mapped. Arrays show it as their memory, so nobody may change
    /// it but the pool: only media of this crate have one, because only they can name the argument.
    #[doc(hidden)]
    fn file(&self, _: OfThisCrate) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How it flushes, for people: `msync`, or the instruction that writes cache lines back.
    fn flush_way(&self) -> &'static str {
        "by a medium of the program"
    }
}

/// What only this crate can name.
#[derive(Debug, Clone, Copy)]
pub struct OfThisCrate;

/// A file that is mapped, directly if it is on persistent memory.
pub(crate) struct Mapped {
    mapping: Mapping,
    /// Copies to the mapping, if the file is memory itself: nothing is written back from there, so
    /// a store costs no fault, once the page was touched.
    copier: Option<Copier>,
}

/// File systems in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Address space for the growth of a pool, the most first: a limit of the process (`ulimit -v`) or
/// a tool such as valgrind may leave less.
const ROOM: [u64; 4] = [1 << 40, 1 << 36, 1 << 33, 1 << 30];

impl Mapped {
    pub(crate) fn open(file: &File, is_written: bool) -> io::Result<Self> {
        let access = if is_written { Access::ReadWrite } else { Access::Read };
        let map = |room| match Mapping::dax(file, access, room) {
            Err(Error::NoDax { .. }) => Mapping::file(file, access, room),
            mapped => mapped,
        };
        let has_room = |mapped: &Result<Mapping, Error>| !matches!(mapped, Err(Error::NoMemory { .. }));
        let mapped = ROOM.into_iter().map(map).find(has_room);
        let mapping = mapped.unwrap_or_else(|| map(0))?;
        Ok(Self { copier: is_memory(file)?.then(|| Copier::new(1)), mapping })
    }
}

/// Whether a file is in memory, all of it: a store to a hole of a file system that is full would
/// kill the process.
fn is_memory(file: &File) -> io::Result<bool> {
    let (system, stat) = (rustix::fs::fstatfs(file)?, rustix::fs::fstat(file)?);
    Ok(system.f_type as u64 == TMPFS_MAGIC && stat.st_blocks as u64 * 512 >= stat.st_size as u64)
}

impl Medium for Mapped {
    fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        let before = self.bytes();
        self.mapping.grow(bytes)?;
        if self.copier.is_some() && before < bytes {
            // All at once takes a tenth of the time of a fault for each page. Failing costs only
            // that.
            let _ = self.mapping.touch(before..bytes);
        }
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.mapping.check(&(at..at.saturating_add(into.len() as u64)))?;
        // SAFETY: the range lies inside the mapping, and nobody writes it: the pool is locked, and
        // writes only what nothing refers to.
        unsafe { std::ptr::copy_nonoverlapping(self.mapping.address(at), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.mapping.check(&(at..at.saturating_add(bytes.len() as u64)))?;
        if self.mapping.access() == Access::Read {
            return Err(Error::ReadOnly.into());
        }
        if let Some(copier) = &self.copier {
            // SAFETY: as above; nobody else uses these bytes, which nothing refers to yet.
            let target = unsafe { self.mapping.slice_mut(at..at + bytes.len() as u64) }?;
            copier.copy(target, bytes);
            return Ok(());
        }
        match self.mapping.descriptor().filter(|_| self.mapping.backing() == Backing::File) {
            // Through the page cache: a call for many pages costs less than a fault for each of
            // them, and a file system that is full is an error and no signal.
            Some(file) => write_all(file, at, bytes),
            None => {
                // SAFETY: as above, writable; the bytes are not part of this mapping, of which
                // there are no slices.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.mapping.address(at), bytes.len()) };
                Ok(())
            }
        }
    }

    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        Ok(self.mapping.flush_all(ranges)?)
    }

    fn file(&self, _: OfThisCrate) -> Option<BorrowedFd<'_>> {
        self.mapping.descriptor()
    }

    fn flush_way(&self) -> &'static str {
        self.mapping.flush_way()
    }
}

fn write_all(file: BorrowedFd<'_>, mut at: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => (at, bytes) = (at + written as u64, &bytes[written..]),
        }
    }
    Ok(())
}
