//! A file that the daemon drains to.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use outcrop_format::{NodePart, node_checksum};
use outcrop_grants::{PAGE_BYTES, PieceSum};
use outcrop_io::{Carrier, CarrierOptions, Method};
use rustix::{
    fs::{
        OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fdatasync, fremovexattr, fsetxattr, ftruncate, futimens,
    },
    io::Errno,
};

use crate::reserve::{Reserve, reopened};

/// The extended attribute of a file that is not drained yet.
pub(crate) const MARK: &str = "user.outcrop.undrained";
/// Stretches of at least this length are written from where they lie; shorter ones are gathered.
const LONG_BYTES: u64 = 64 << 10;
/// How much is gathered.
const GATHERED_BYTES: usize = 1 << 20;

/// An open file.
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    buffered: Arc<outcrop_io::File>,
    /// Past the page cache, if the file system has that. Opened when it is needed, which it never
    /// is for small files.
    direct: OnceLock<Option<Arc<outcrop_io::File>>>,
    is_direct_refused: AtomicBool,
    /// Whether the file shall be marked. Threads that mark and unmark it take turns.
    marked: Mutex<bool>,
}

impl Target {
    /// The file of a descriptor that was opened for reading and writing.
    pub(crate) fn new(descriptor: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        if !flags.contains(OFlags::RDWR) || flags.intersects(OFlags::APPEND | OFlags::DIRECT) {
            // The file is the same, whatever the flags of this descriptor.
            let own = reopened(descriptor.as_fd(), true, 0)?;
            return Self::of(own.into(), path);
        }
        Self::of(descriptor, path)
    }

    fn of(descriptor: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let buffered = Arc::new(outcrop_io::File::new(descriptor)?);
        let (is_direct_refused, marked) = (AtomicBool::new(false), Mutex::new(false));
        Ok(Self { path, buffered, direct: OnceLock::new(), is_direct_refused, marked })
    }

    /// The file past the page cache, unless it was refused.
    fn direct(&self) -> Option<&Arc<outcrop_io::File>> {
        let open = || {
            let file = reopened(self.buffered.as_fd(), true, OFlags::DIRECT.bits() as i32).ok()?;
            outcrop_io::File::new(file.into()).ok().map(Arc::new)
        };
        self.direct.get_or_init(open).as_ref().filter(|_| !self.is_direct_refused.load(Relaxed))
    }

    /// Compares pieces with their checksums, and writes parts of them.
    pub(crate) fn drain(
        &self,
        writer: &mut Writer,
        reserve: &Reserve,
        parts: &[NodePart],
        pieces: &[PieceSum],
    ) -> io::Result<()> {
        for piece in pieces {
            if node_checksum(reserve.filled(piece.at, piece.bytes)?) != piece.sum {
                tracing::error!(path = %self.path.display(), offset = piece.offset, "cached bytes have changed");
                return Err(Errno::IO.into());
            }
        }
        let mut gathered: Option<u64> = None;
        for part in stretches(parts) {
            let bytes = reserve.filled(part.at, part.bytes)?;
            let is_full = writer.gathered.len() + bytes.len() > GATHERED_BYTES;
            if part.bytes >= LONG_BYTES || is_full {
                self.write_gathered(writer, &mut gathered)?;
            }
            if part.bytes >= LONG_BYTES {
                self.write(&writer.carrier, part.offset, bytes)?;
                continue;
            }
            gathered.get_or_insert(part.offset);
            writer.gathered.extend_from_slice(bytes);
        }
        self.write_gathered(writer, &mut gathered)?;
        if writer.verifies {
            parts
                .iter()
                .try_for_each(|part| self.compare(writer, part.offset, reserve.filled(part.at, part.bytes)?))?;
        }
        Ok(())
    }

    /// Reads back what was written, and compares it.
    fn compare(&self, writer: &mut Writer, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (nth, chunk) in bytes.chunks(GATHERED_BYTES).enumerate() {
            let offset = offset + (nth * GATHERED_BYTES) as u64;
            writer.gathered.resize(chunk.len(), 0);
            let outcome = self.read_back(&writer.carrier, offset, &mut writer.gathered);
            let is_same = writer.gathered == chunk;
            writer.gathered.clear();
            outcome?;
            if !is_same {
                tracing::error!(path = %self.path.display(), offset, "the file has other bytes than were written");
                return Err(Errno::IO.into());
            }
        }
        Ok(())
    }

    fn write_gathered(&self, writer: &mut Writer, from: &mut Option<u64>) -> io::Result<()> {
        let Some(offset) = from.take() else { return Ok(()) };
        let written = self.write(&writer.carrier, offset, &writer.gathered);
        writer.gathered.clear();
        written
    }

    /// Whole pages bypass the page cache, if that is possible; the rest does not.
    fn write(&self, carrier: &Carrier, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        let (first, last) = (offset.next_multiple_of(PAGE_BYTES), end / PAGE_BYTES * PAGE_BYTES);
        let direct = if last >= first + LONG_BYTES { self.direct() } else { None };
        let Some(direct) = direct else { return carrier.write(&self.buffered, offset, bytes) };
        let middle = (first - offset) as usize..(last - offset) as usize;
        match carrier.write(direct, first, &bytes[middle.clone()]) {
            Err(error) if is_refusal(&error) => {
                self.is_direct_refused.store(true, Relaxed);
                return carrier.write(&self.buffered, offset, bytes);
            }
            written => written?,
        }
        carrier.write(&self.buffered, offset, &bytes[..middle.start])?;
        carrier.write(&self.buffered, last, &bytes[middle.end..])
    }

    /// Reads back, past the page cache if possible.
    pub(crate) fn read_back(&self, carrier: &Carrier, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let is_aligned = offset.is_multiple_of(PAGE_BYTES) && (bytes.len() as u64).is_multiple_of(PAGE_BYTES);
        let direct = if is_aligned { self.direct() } else { None };
        carrier.read(direct.unwrap_or(&self.buffered), offset, bytes)
    }

    pub(crate) fn truncate(&self, bytes: u64) -> io::Result<()> {
        Ok(ftruncate(&*self.buffered, bytes)?)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::io::retry_on_intr(|| fdatasync(&*self.buffered))?)
    }

    /// Says whether the file shall be marked, from now on.
    pub(crate) fn want_mark(&self, is_wanted: bool) {
        *self.marked.lock().unwrap_or_else(PoisonError::into_inner) = is_wanted;
    }

    /// Marks the file as not drained. File systems without extended attributes have no mark.
    pub(crate) fn mark(&self) {
        let is_wanted = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_wanted {
            return;
        }
        if let Err(error) = fsetxattr(&*self.buffered, MARK, b"1", XattrFlags::empty()) {
            tracing::debug!(path = %self.path.display(), %error, "a file that is not drained cannot be marked");
        }
    }

    /// Removes the mark, unless there is a new reason for it, and sets the times.
    pub(crate) fn settle(&self, accessed_ns: Option<i64>, modified_ns: Option<i64>, is_marked: bool) {
        if is_marked {
            let is_wanted = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_wanted {
                let _ = fremovexattr(&*self.buffered, MARK);
            }
        }
        if accessed_ns.is_none() && modified_ns.is_none() {
            return;
        }
        let time = |ns: Option<i64>| match ns {
            Some(ns) => Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) },
            None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        let times = Timestamps { last_access: time(accessed_ns), last_modification: time(modified_ns) };
        if let Err(error) = futimens(&*self.buffered, &times) {
            tracing::warn!(path = %self.path.display(), %error, "the times of a drained file cannot be set");
        }
    }

    /// The device and the number of a file.
    pub(crate) fn identity(file: impl AsFd) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(file)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens the file at `path`, if it is the right one.
    pub(crate) fn find(path: PathBuf, device: u64, inode: u64) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(below_mounts(&path)?)?;
        if Self::identity(&file)? != (device, inode) {
            return Err(Errno::STALE.into());
        }
        Self::new(file.into(), path)
    }
}

/// The type of mounts through which programs see what is cached.
const MOUNT_TYPE: &str = "fuse.outcrop";

/// A path to the same file that does not lead through a mount of ours: whoever serves that mount
/// may be waiting for this daemon. The source of the mount says where the directory below it is.
fn below_mounts(path: &Path) -> io::Result<PathBuf> {
    let Some(mounted) = outcrop_local::mounts_over(path, MOUNT_TYPE).pop() else { return Ok(path.to_owned()) };
    let source = mounted.source.to_str().and_then(|source| source.strip_prefix("outcrop:"));
    let (Some(below), Ok(relative)) = (source, path.strip_prefix(&mounted.point)) else {
        return Err(Errno::STALE.into());
    };
    Ok(Path::new(below).join(relative))
}

/// What a thread that writes needs.
pub(crate) struct Writer {
    pub(crate) carrier: Carrier,
    gathered: Vec<u8>,
    /// Whether what was written is read back.
    verifies: bool,
}

impl Writer {
    pub(crate) fn new(verifies: bool) -> io::Result<Self> {
        let options = CarrierOptions { method: Some(Method::Blocking), ..CarrierOptions::default() };
        Ok(Self { carrier: Carrier::new(&options).map_err(io::Error::other)?, gathered: Vec::new(), verifies })
    }
}

/// Whether a file system accepted O_DIRECT and does not support it after all, or not for this.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::INVAL | Errno::OPNOTSUPP))
}

/// Parts that follow each other in the reserve too are one.
fn stretches(parts: &[NodePart]) -> Vec<NodePart> {
    let mut stretches: Vec<NodePart> = Vec::new();
    for part in parts {
        match stretches.last_mut() {
            Some(last) if last.offset + last.bytes == part.offset && last.at + last.bytes == part.at => {
                last.bytes += part.bytes;
            }
            _ => stretches.push(*part),
        }
    }
    stretches
}
