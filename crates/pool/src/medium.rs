//! Where the bytes of a pool are: a mapped file, or persistent memory.

use std::{fs::File, io, ops::Range, os::fd::BorrowedFd};

use outcrop_memory::{Access, Mapping};

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

    /// Writes bytes at `at`. No other call reads or writes the same bytes meanwhile.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written to these ranges durable.
    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()>;

    /// The file, if its bytes can be mapped.
    fn file(&self) -> Option<BorrowedFd<'_>>;
}

/// A file that is mapped, directly if it is on persistent memory.
pub(crate) struct Mapped(Mapping);

/// Address space for the growth of a pool.
const BYTES_MAX: u64 = 1 << 40;

impl Mapped {
    pub(crate) fn open(file: &File, is_written: bool) -> io::Result<Self> {
        let access = if is_written { Access::ReadWrite } else { Access::Read };
        match Mapping::dax(file, access, BYTES_MAX) {
            Err(outcrop_memory::Error::NoDax { .. }) => Ok(Self(Mapping::file(file, access, BYTES_MAX)?)),
            mapped => Ok(Self(mapped?)),
        }
    }
}

impl Medium for Mapped {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        Ok(self.0.grow(bytes)?)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.check(&(at..at.saturating_add(into.len() as u64)))?;
        // SAFETY: the range lies inside the mapping, and nobody writes it: the pool is locked, and
        // writes only what nothing refers to.
        unsafe { std::ptr::copy_nonoverlapping(self.0.address(at), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.check(&(at..at.saturating_add(bytes.len() as u64)))?;
        if self.0.access() == Access::Read {
            return Err(outcrop_memory::Error::ReadOnly.into());
        }
        // SAFETY: as above, writable; the bytes are not part of this mapping, of which there are no
        // slices.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.address(at), bytes.len()) };
        Ok(())
    }

    fn flush(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        Ok(self.0.flush_all(ranges)?)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptor()
    }
}
