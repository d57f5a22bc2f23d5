//! Copies bytes between memory and a file: only those that are there, so that holes stay holes.
//!
//! Nothing here allocates, so that a process without an allocator (the keeper) can do it too.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use rustix::{
    fs::{FallocateFlags, SeekFrom, fallocate, fstat, ftruncate, seek},
    io::{Errno, pread, pwrite, retry_on_intr},
};

/// How much is copied at once.
const PIECE: usize = 1 << 20;

/// From how many bytes on a file is written past the page cache, which would double its memory.
const DIRECT_FROM: u64 = 8 << 20;

/// What direct transfers are aligned to.
const ALIGN: u64 = 4096;

/// Memory for the pieces, aligned for direct transfers.
#[repr(C, align(4096))]
pub(crate) struct Buffer([u8; PIECE], [u8; PIECE]);

impl Buffer {
    /// One on the heap, which is never on the stack.
    pub(crate) fn new() -> Box<Self> {
        // SAFETY: the layout is that of the type, which may be all zeros; the box frees it as it
        // was allocated.
        unsafe {
            let memory = std::alloc::alloc_zeroed(std::alloc::Layout::new::<Self>()).cast::<Self>();
            if memory.is_null() {
                std::alloc::handle_alloc_error(std::alloc::Layout::new::<Self>());
            }
            Box::from_raw(memory)
        }
    }
}

/// Whether to write what is equal already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    No,
    /// Leave out what is equal, so that a file that did not change keeps its times.
    Yes,
}

/// Makes `to` equal to `from`: its length, its bytes, its holes. Returns how many bytes were
/// written.
pub(crate) fn make_equal(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    compare: Compare,
    buffer: &mut Buffer,
) -> io::Result<u64> {
    let bytes = fstat(from)?.st_size as u64;
    let before = fstat(to)?.st_size as u64;
    let mut written = 0;
    let mut done = 0;
    while done < bytes {
        let (start, end) = next_data(from, done, bytes)?;
        written += clear(to, done, start.min(before), compare, buffer)?;
        written += copy_range(from, to, start..end, (compare, before), buffer)?;
        done = end;
    }
    if before != bytes || fstat(to)?.st_size as u64 != bytes {
        ftruncate(to, bytes)?;
    }
    Ok(written)
}

/// The next range of bytes at or after `from` that is not a hole; empty at the end.
fn next_data(file: BorrowedFd<'_>, from: u64, bytes: u64) -> io::Result<(u64, u64)> {
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start.min(bytes),
        Err(Errno::NXIO) => return Ok((bytes, bytes)),
        // A file system that does not know holes.
        Err(Errno::INVAL) => return Ok((from, bytes)),
        Err(error) => return Err(error.into()),
    };
    match seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok((start, end.min(bytes))),
        Err(Errno::NXIO) => Ok((start, bytes)),
        Err(error) => Err(error.into()),
    }
}

/// Makes a range of the file read as zeros.
fn clear(file: BorrowedFd<'_>, from: u64, to: u64, compare: Compare, buffer: &mut Buffer) -> io::Result<u64> {
    let mut written = 0;
    let mut done = from;
    while done < to {
        let (start, end) = next_data(file, done, to)?;
        if start >= to {
            break;
        }
        if compare == Compare::No || !reads_as_zeros(file, start..end, buffer)? {
            written += end - start;
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(file, punch, start, end - start).is_err() {
                write_zeros(file, start..end, buffer)?;
            }
        }
        done = end;
    }
    Ok(written)
}

fn reads_as_zeros(file: BorrowedFd<'_>, range: std::ops::Range<u64>, buffer: &mut Buffer) -> io::Result<bool> {
    let mut at = range.start;
    while at < range.end {
        let piece = PIECE.min((range.end - at) as usize);
        let count = retry_on_intr(|| pread(file, &mut buffer.0[..piece], at))?;
        if count == 0 {
            break;
        }
        if buffer.0[..count].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

fn write_zeros(file: BorrowedFd<'_>, range: std::ops::Range<u64>, buffer: &mut Buffer) -> io::Result<()> {
    buffer.0.fill(0);
    let mut at = range.start;
    while at < range.end {
        let piece = PIECE.min((range.end - at) as usize);
        at += retry_on_intr(|| pwrite(file, &buffer.0[..piece], at))? as u64;
    }
    Ok(())
}

fn copy_range(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: std::ops::Range<u64>,
    (compare, before): (Compare, u64),
    buffer: &mut Buffer,
) -> io::Result<u64> {
    let mut direct = Direct::new(to, range.end - range.start >= DIRECT_FROM);
    let mut written = 0;
    let mut at = range.start;
    while at < range.end {
        let piece = PIECE.min((range.end - at) as usize);
        let count = retry_on_intr(|| pread(from, &mut buffer.0[..piece], at))?;
        if count == 0 {
            // Somebody cut the file off in the meantime. Whoever did it has it open: this is not
            // the last time that it drains.
            break;
        }
        let is_same = compare == Compare::Yes && at + count as u64 <= before && {
            let Buffer(bytes, other) = buffer;
            is_equal(to, &bytes[..count], at, other)?
        };
        if !is_same {
            direct.write(&buffer.0[..count], at)?;
            written += count as u64;
        }
        at += count as u64;
    }
    Ok(written)
}

fn is_equal(file: BorrowedFd<'_>, bytes: &[u8], at: u64, other: &mut [u8; PIECE]) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        let count = retry_on_intr(|| pread(file, &mut other[done..bytes.len()], at + done as u64))?;
        if count == 0 {
            return Ok(false);
        }
        done += count;
    }
    Ok(bytes == &other[..done])
}

/// A file that is written past the page cache where length and offset allow it.
struct Direct<'a> {
    file: BorrowedFd<'a>,
    is_on: bool,
    is_wanted: bool,
}

impl<'a> Direct<'a> {
    fn new(file: BorrowedFd<'a>, is_wanted: bool) -> Self {
        // A process that was killed may have left it on.
        let is_on = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT));
        Self { file, is_on, is_wanted }
    }

    fn write(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let is_aligned = at.is_multiple_of(ALIGN) && (bytes.len() as u64).is_multiple_of(ALIGN);
        self.turn(self.is_wanted && is_aligned);
        let mut done = 0;
        while done < bytes.len() {
            match retry_on_intr(|| pwrite(self.file, &bytes[done..], at + done as u64)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    done += count;
                    if self.is_on && !(done as u64).is_multiple_of(ALIGN) {
                        self.turn(false);
                    }
                }
                // This file system wants another alignment, or none of it.
                Err(Errno::INVAL) if self.is_on => {
                    self.is_wanted = false;
                    self.turn(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn turn(&mut self, on: bool) {
        if self.is_on == on {
            return;
        }
        let file = self.file.as_fd().as_raw_fd();
        // SAFETY: both calls take and return a number.
        let is_set = unsafe {
            let flags = libc::fcntl(file, libc::F_GETFL);
            libc::fcntl(file, libc::F_SETFL, if on { flags | libc::O_DIRECT } else { flags & !libc::O_DIRECT }) == 0
        };
        match is_set {
            true => self.is_on = on,
            false => self.is_wanted = false,
        }
    }
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.turn(false);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read};

    use super::*;

    #[test]
    fn a_file_that_somebody_left_in_direct_mode_is_written() {
        let mut from = tempfile::tempfile().unwrap();
        let to = tempfile::NamedTempFile::new().unwrap();
        let bytes = vec![7; 12_345];
        io::Write::write_all(&mut from, &bytes).unwrap();
        rustix::fs::fcntl_setfl(to.as_file(), rustix::fs::OFlags::DIRECT).unwrap();
        make_equal(from.as_fd(), to.as_file().as_fd(), Compare::No, &mut Buffer::new()).unwrap();
        let mut found = Vec::new();
        fs::File::open(to.path()).unwrap().read_to_end(&mut found).unwrap();
        assert_eq!(found, bytes);
    }
}
