//! The reserve: memory that the daemon shares with its clients. This file has all unsafe code about
//! it.
//!
//! Who may use which bytes when is decided by `outcrop_grants`: a client fills only what is granted
//! to it and not filled yet; the daemon, and clients that read, use only what was filled and is
//! kept for them. A client that breaks these rules changes bytes under the eyes of others. They are
//! compared with checksums before they reach a file.

use std::{
    fs,
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use outcrop_format::{JournalHeader, NodeChecksum, PIECE_BYTES_MAX, node_checksum};
use outcrop_memory::{Access, Mapping, copy_and_see, copy_and_sum};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};

/// How the descriptors of a daemon are called in /proc.
fn memfd_name(what: &str, nonce: u64) -> String {
    format!("outcrop-{what}-{nonce:016x}")
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Reserve {
    mapping: Arc<Mapping>,
}

impl Reserve {
    fn new(mapping: outcrop_memory::Result<Mapping>) -> io::Result<Self> {
        Ok(Self { mapping: Arc::new(mapping.map_err(io::Error::other)?) })
    }

    /// New memory without a name in a file system.
    pub(crate) fn memfd(nonce: u64, bytes: u64) -> io::Result<Self> {
        Self::new(Mapping::memfd(&memfd_name("reserve", nonce), bytes))
    }

    /// Memory that another process has made.
    pub(crate) fn of_memfd(memfd: OwnedFd) -> io::Result<Self> {
        Self::new(Mapping::of_memfd(memfd, Access::ReadWrite))
    }

    /// A file, which survives all processes.
    pub(crate) fn file(file: &File) -> io::Result<Self> {
        Self::new(Mapping::file(file, Access::ReadWrite, 0))
    }

    /// What a client has received.
    pub(crate) fn received(descriptor: OwnedFd) -> io::Result<Self> {
        let is_memfd = rustix::fs::fcntl_get_seals(&descriptor).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if is_memfd { Self::of_memfd(descriptor) } else { Self::file(&File::from(descriptor)) }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mapping.descriptor().expect("a reserve has a descriptor")
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// How much of it the system has provided.
    pub(crate) fn provided_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self.descriptor())?.st_blocks as u64 * 512)
    }

    /// Has the system provide this part.
    pub(crate) fn touch(&self, range: Range<u64>) -> io::Result<()> {
        self.mapping.touch(range).map_err(io::Error::other)
    }

    /// Returns this part to the system.
    pub(crate) fn give_back(&self, range: &Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.descriptor(), flags, range.start, range.end - range.start)?)
    }

    /// Copies `source` to `at`, where bytes of a file from `offset` on are filled, and returns the
    /// checksum of each piece. Each is computed while the piece is in the cache.
    pub(crate) fn fill(&self, at: u64, offset: u64, source: &[u8]) -> io::Result<Vec<u64>> {
        let range = at..at + source.len() as u64;
        // SAFETY: the mapping is alive, and nobody else uses what is granted to this client.
        let target = unsafe { self.mapping.slice_mut(range) }.map_err(io::Error::other)?;
        let mut sums = Vec::with_capacity(source.len() / PIECE_BYTES_MAX as usize + 2);
        let mut from = 0;
        while from < source.len() {
            let room = PIECE_BYTES_MAX - (offset + from as u64) % PIECE_BYTES_MAX;
            let to = source.len().min(from + room as usize);
            sums.push(copy_piece(&mut target[from..to], &source[from..to]));
            from = to;
        }
        Ok(sums)
    }

    /// Copies from `at`, where bytes are kept for a reader.
    pub(crate) fn copy_to(&self, at: u64, target: &mut [u8]) -> io::Result<()> {
        // SAFETY: the mapping is alive, and nobody writes to what is kept for readers. After the
        // death of the daemon somebody may: then the generation tells, and the copy is not used.
        let source = unsafe { self.mapping.slice(at..at + target.len() as u64) }.map_err(io::Error::other)?;
        target.copy_from_slice(source);
        Ok(())
    }

    /// What was filled, for the daemon to drain.
    pub(crate) fn filled(&self, at: u64, bytes: u64) -> io::Result<&[u8]> {
        // SAFETY: the mapping is alive, and nobody writes to what was filled until it is drained.
        unsafe { self.mapping.slice(at..at + bytes) }.map_err(io::Error::other)
    }
}

/// Copies a piece, and returns its checksum.
fn copy_piece(target: &mut [u8], source: &[u8]) -> u64 {
    if (source.len() as u64) < PIECE_BYTES_MAX {
        target.copy_from_slice(source);
        return node_checksum(source);
    }
    // The same checksum, computed in the same pass, where the processor can do that.
    if let Some(sum) = copy_and_sum(target, source) {
        return sum;
    }
    let mut sum = NodeChecksum::default();
    copy_and_see(target, source, |block| sum.update(block));
    sum.finish()
}

/// The first page of a journal, as a client sees it.
pub(crate) struct Generation {
    mapping: Mapping,
}

impl Generation {
    pub(crate) fn new(journal: OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::file(File::from(journal), Access::Read, 0).map_err(io::Error::other)?;
        mapping.check(&(0..4096)).map_err(io::Error::other)?;
        Ok(Self { mapping })
    }

    /// How many daemons have served the reserve.
    pub(crate) fn now(&self) -> u64 {
        self.number(JournalHeader::GENERATION_AT)
    }

    /// How many drains have failed in this generation.
    pub(crate) fn failures(&self) -> u64 {
        self.number(JournalHeader::FAILURES_AT)
    }

    fn number(&self, at: u64) -> u64 {
        let address = self.mapping.address(at).cast::<u64>();
        // SAFETY: the mapping is alive, the address is inside of it and a multiple of eight, and
        // daemons change it only as a whole.
        let number = unsafe { AtomicU64::from_ptr(address) };
        std::sync::atomic::fence(Ordering::Acquire);
        number.load(Ordering::Acquire)
    }
}

/// A new memfd of this length that cannot shrink.
pub(crate) fn journal_memfd(nonce: u64, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memfd = memfd_create(memfd_name("journal", nonce), flags)?;
    ftruncate(&memfd, bytes)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(memfd))
}

/// Opens a file or memfd again, with other access.
pub(crate) fn reopened(descriptor: BorrowedFd<'_>, is_writable: bool, flags: i32) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    fs::OpenOptions::new().read(true).write(is_writable).custom_flags(flags).open(path)
}

/// Looks for the reserve and the journal of a dead daemon in the processes of this user: its
/// clients have both open.
pub(crate) fn find(nonce: u64) -> Option<(File, File)> {
    let names = [memfd_name("reserve", nonce), memfd_name("journal", nonce)];
    let mut found: [Option<File>; 2] = [None, None];
    for process in fs::read_dir("/proc").ok()?.flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(link) = fs::read_link(descriptor.path()) else { continue };
            for (name, found) in names.iter().zip(&mut found) {
                if found.is_none() && is_memfd(&link, name) {
                    *found = fs::OpenOptions::new().read(true).write(true).open(descriptor.path()).ok();
                }
            }
        }
        if let [Some(_), Some(_)] = found {
            let [reserve, journal] = found;
            return reserve.zip(journal);
        }
    }
    None
}

fn is_memfd(link: &Path, name: &str) -> bool {
    link.to_str().is_some_and(|link| link.strip_prefix("/memfd:").is_some_and(|rest| rest.starts_with(name)))
}
