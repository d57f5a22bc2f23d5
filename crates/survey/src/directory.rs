//! The speed of a directory, with O_DIRECT and through the page cache.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use outcrop_layers::{Host, Slot};
use rustix::{
    fs::{Advice, AtFlags, CWD, Mode, OFlags, fadvise, fdatasync, fstat, fstatvfs, openat, unlinkat},
    io::{Errno, pread, pwrite},
};

use crate::{
    BYTES_MIN, DirectoryRates, Error, FREE_SHARE, FileRates, Options, Result, bytes_of, memory_left,
    rate::{self, BLOCK_BYTES, median},
};

/// The prefix of files that need a name.
const NAME: &str = "outcrop-survey-";

/// A directory that can be measured.
pub(crate) struct Directory {
    path: PathBuf,
    device: u64,
    bytes: u64,
}

impl Directory {
    /// Checks that the directory exists, has enough room, and is writable. Writes nothing.
    pub(crate) fn check(path: &Path, options: &Options) -> Result<Self> {
        let fail = |attempt, source| Error::Directory { path: path.to_owned(), attempt, source };
        let absolute = path.canonicalize().map_err(|source| fail("find it", source))?;
        let file = nameless(&absolute, OFlags::empty()).map_err(|errno| fail("make a file in it", errno.into()))?;
        let looked = fstat(&file).and_then(|stat| Ok((stat, fstatvfs(&file)?)));
        let (stat, space) = looked.map_err(|errno| fail("look at its file system", errno.into()))?;
        let free_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        let needed_bytes = BYTES_MIN * FREE_SHARE;
        let bytes = bytes_of(free_bytes, options);
        let bytes = bytes.ok_or(Error::LittleSpace { path: path.to_owned(), free_bytes, needed_bytes })?;
        // A file system in memory may report more free space than there is memory.
        let bytes = bytes_of(memory_left(), options).map_or(bytes, |in_memory| bytes.min(in_memory));
        Ok(Self { path: absolute, device: stat.st_dev, bytes })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the file system that it lies on.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Measures it, with files that have no name, so nothing can be left behind.
    pub(crate) fn measure(&self, options: &Options, progress: &mut dyn FnMut(&str)) -> Result<DirectoryRates> {
        let host = Host::new(BLOCK_BYTES)?;
        host.touch(0..BLOCK_BYTES)?;
        let mut block = host.slot(0, BLOCK_BYTES)?;
        // Varied bytes, for file systems that compress or deduplicate.
        for (index, word) in block.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_ne_bytes());
        }
        let fail = |errno: Errno| Error::Directory {
            path: self.path.clone(),
            attempt: "write and read a file in it",
            source: io::Error::from(errno),
        };
        progress(&format!("{}, past the page cache", self.path.display()));
        let direct = match self.rounds(options, &mut block, self.bytes, true) {
            Ok(rates) => Some(rates),
            // This file system has no O_DIRECT.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(fail(errno)),
        };
        progress(&format!("{}, through the page cache", self.path.display()));
        // What the cache has taken must be written out at the end, however long that takes: so no
        // more than fits the time, by what is known already, or else by what one block takes.
        let write_new = match direct {
            Some(rates) => rates.write_new,
            None => {
                self.rounds(&Options { rounds: 1, ..*options }, &mut block, BLOCK_BYTES, false).map_err(fail)?.write_new
            }
        };
        let bytes = self.fitting(write_new, options);
        let buffered = self.rounds(options, &mut block, bytes, false).map_err(fail)?;
        Ok(DirectoryRates { path: self.path.clone(), device: self.device, direct, buffered })
    }

    /// The bytes, in whole blocks, that can be written in the given time at this rate; at least one
    /// block.
    fn fitting(&self, write: u64, options: &Options) -> u64 {
        let bytes = (write as f64 * options.time_max.as_secs_f64()) as u64;
        (bytes / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, self.bytes)
    }

    fn rounds(
        &self,
        options: &Options,
        block: &mut Slot,
        bytes: u64,
        is_direct: bool,
    ) -> rustix::io::Result<FileRates> {
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        rate::rounds(options, || {
            let flags = if is_direct { OFlags::DIRECT } else { OFlags::empty() };
            let file = nameless(&self.path, flags)?;
            let mut extent = bytes;
            for (index, rates) in rates.iter_mut().enumerate() {
                // The third time it reads.
                let is_write = index < 2;
                if !is_write && !is_direct {
                    fadvise(&file, 0, None, Advice::DontNeed)?;
                }
                let start = Instant::now();
                let done = rate::blocks(extent, options.time_max, |at| transfer(&file, block, at, is_write))?;
                if is_write && !is_direct {
                    fdatasync(&file)?;
                }
                rates.push(rate::per_second(done, start.elapsed()));
                // Only what was written can be overwritten and read.
                extent = extent.min(done);
            }
            Ok(())
        })?;
        let [write_new, overwrite, read] = rates.map(median);
        Ok(FileRates { write_new, overwrite, read })
    }
}

/// Writes or reads one whole block.
fn transfer(file: &OwnedFd, block: &mut Slot, at: u64, is_write: bool) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < block.len() {
        let offset = at + done as u64;
        let count = rustix::io::retry_on_intr(|| {
            if is_write { pwrite(file, &block[done..], offset) } else { pread(file, &mut block[done..], offset) }
        })?;
        if count == 0 {
            return Err(Errno::IO);
        }
        done += count;
    }
    Ok(())
}

/// A file without a name: it disappears when it is closed.
pub(crate) fn nameless(directory: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let (flags, mode) = (flags | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match openat(CWD, directory, flags | OFlags::TMPFILE, mode) {
        // The file system or the kernel does not support it.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => named(directory, flags, mode),
        result => result,
    }
}

/// The same where every file has a name: it lives for a moment. One that somebody left behind who
/// was killed in that moment is empty and means nothing, and goes.
fn named(directory: &Path, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{NAME}{}-{number}", std::process::id()));
    let open = || openat(CWD, &path, flags | OFlags::CREATE | OFlags::EXCL, mode);
    let file = match open() {
        Err(Errno::EXIST) => {
            unlinkat(CWD, &path, AtFlags::empty())?;
            open()?
        }
        result => result?,
    };
    unlinkat(CWD, &path, AtFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_slow_directory_gets_no_more_through_the_page_cache_than_it_can_write_out_in_time() {
        let directory = Directory { path: PathBuf::new(), device: 0, bytes: 8 * BLOCK_BYTES };
        let options = Options { time_max: std::time::Duration::from_millis(500), ..Options::default() };
        for (write, blocks) in [(0, 1), (BLOCK_BYTES, 1), (7 * BLOCK_BYTES, 3), (16 * BLOCK_BYTES, 8), (u64::MAX, 8)] {
            assert_eq!(directory.fitting(write, &options), blocks * BLOCK_BYTES, "{write} bytes per second");
        }
    }

    #[test]
    fn a_file_that_must_have_a_name_loses_it_at_once_also_one_of_a_killed_survey() {
        let directory = std::env::temp_dir().join(format!("outcrop-survey-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        for number in 0..8 {
            fs::write(directory.join(format!("{NAME}{}-{number}", std::process::id())), "").unwrap();
        }
        let open = || named(&directory, OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR).unwrap();
        let files: Vec<_> = (0..8).map(|_| open()).collect();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        assert_eq!(pwrite(&files[7], b"it can be used", 0), Ok(14));
        fs::remove_dir(&directory).unwrap();
    }
}
