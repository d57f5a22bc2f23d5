//! A segment of memory that several processes of a node share: who has which chunk of it.
//!
//! The segment is a file in memory: a header, and chunks. The header names the owner of each chunk; it is read and
//! written like any file, under a lock, so that nothing in it is believed before it has been checked. A process has a
//! number among the owners, and keeps a lock on the byte of that number for as long as it lives: the system gives the
//! lock up when it ends, in whatever way, and then its chunks are anybody's. A process maps the chunks that it owns,
//! and no others.
//!
//! The file belongs to one user, and nobody else may open it. It is made by who comes first and removed by who leaves
//! last; one that nobody living uses is made anew, whatever it holds. Both happen while the node's directory is locked.
//!
//! A process that forks shares its chunks with the child; if it is then killed, they are free when the child has ended
//! too. Processes of one user trust each other, as they could look into each other's memory anyway: one that cuts the
//! file off, or writes into the chunks of others, is not defended against.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, fstatfs, fstatvfs, ftruncate},
    io::{Errno, pread, pwrite},
};

use crate::{Error, Result, node::Node};

/// Of the names of all segments.
const PREFIX: &str = "outcrop-shared-";
const MAGIC: [u8; 8] = *b"outcrop1";
/// Processes that can share a segment.
const OWNERS_MAX: u32 = 1024;
/// The byte that is locked while the header is read or written; owners have the bytes from 1.
const DOOR: u32 = 0;
/// In the header: magic, length of a chunk, number of chunks; then by owner the chunks that it waits for; then by chunk
/// its owner, or 0.
const WANTED_AT: u64 = 64;
const CHUNKS_AT: u64 = WANTED_AT + 4 * (OWNERS_MAX as u64 + 1);
/// Chunks start at a multiple of a huge page.
const HUGE_PAGE: u64 = super::mapping::HUGE_PAGE as u64;
const CHUNK_BYTES_MIN: u64 = HUGE_PAGE;
const CHUNK_BYTES_MAX: u64 = 16 << 20;
/// As many chunks as a segment should have at least, so that what is lost to rounding is little.
const CHUNKS_WANTED: u64 = 64;

/// A process's access to a segment. Dropping it gives its chunks back.
pub(super) struct Segment {
    node: Node,
    file_name: String,
    file: OwnedFd,
    chunk_bytes: u64,
    chunks: u32,
    /// Its number among the owners.
    owner: u32,
    /// Who it is: a child that was forked has a copy that is not its own.
    process: u32,
    /// Whether the header says that this process waits for chunks.
    is_waiting: bool,
}

impl Segment {
    /// The segment `name` of `bytes_total`, made if nobody uses it, for a process that wants up to `bytes_mine` of it.
    pub(super) fn join(node: Node, name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        let file_name = format!("{PREFIX}{name}");
        let chunk_bytes = (bytes_total / CHUNKS_WANTED / HUGE_PAGE * HUGE_PAGE).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        let chunks = u32::try_from(bytes_total / chunk_bytes).unwrap_or(u32::MAX);
        if bytes_mine > bytes_total {
            let reason = format!("{bytes_mine} bytes for one process are more than the {bytes_total} for all");
            return Err(refusal(&node, &file_name, reason));
        }
        if chunks == 0 {
            let reason = format!("{bytes_total} bytes for all are less than the smallest piece, {chunk_bytes}");
            return Err(refusal(&node, &file_name, reason));
        }
        let (file, owner) = node.alone(|| {
            remove_dead(&node, name);
            let file = match open(&node, &file_name)? {
                Some(file) if has_living_owner(file.as_fd()).map_err(|errno| failure(&node, &file_name, errno))? => {
                    check_header(&file, chunk_bytes, chunks).map_err(|reason| refusal(&node, &file_name, reason))?;
                    file
                }
                Some(_) => {
                    node.remove(&file_name);
                    make(&node, &file_name, chunk_bytes, chunks)?
                }
                None => make(&node, &file_name, chunk_bytes, chunks)?,
            };
            let owner = claim(file.as_fd()).map_err(|errno| failure(&node, &file_name, errno))?;
            let owner = owner.ok_or_else(|| {
                refusal(&node, &file_name, format!("{OWNERS_MAX} processes use it: choose another name for the rest"))
            })?;
            Ok((file, owner))
        })?;
        let segment =
            Self { node, file_name, file, chunk_bytes, chunks, owner, process: std::process::id(), is_waiting: false };
        // The number may have been that of a process that was killed.
        segment.alone(|| segment.give_all()).map_err(|errno| segment.failure(errno))?;
        Ok(segment)
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The file that chunks are mapped from, and where in it this one lies.
    pub(super) fn place(&self, chunk: u32) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), header_bytes(self.chunks) + u64::from(chunk) * self.chunk_bytes)
    }

    /// Takes a chunk that nobody has. If there is none, the header says that `wanted` chunks are waited for.
    pub(super) fn take(&mut self, layer: &str, wanted: usize) -> Result<u32> {
        let taken = self.alone(|| {
            let mut free = self.owners()?.iter().position(|&owner| owner == 0);
            if free.is_none() {
                self.free_chunks_of(|owner| !self.is_alive(owner))?;
                free = self.owners()?.iter().position(|&owner| owner == 0);
            }
            if let Some(chunk) = free {
                self.write_number(CHUNKS_AT + 4 * chunk as u64, self.owner)?;
            }
            if free.is_none() || self.is_waiting {
                let waiting = if free.is_some() { 0 } else { u32::try_from(wanted).unwrap_or(u32::MAX) };
                self.write_number(WANTED_AT + 4 * u64::from(self.owner), waiting)?;
            }
            Ok(free)
        });
        let free = taken.map_err(|errno| self.failure(errno))?;
        self.is_waiting = free.is_none();
        free.map(|chunk| chunk as u32).ok_or_else(|| Error::Exhausted {
            layer: layer.to_owned(),
            bytes: self.chunk_bytes,
            limit: format!("all {} bytes are in use by processes that share them", self.bytes()),
        })
    }

    /// Gives chunks back. They keep their memory, so that the next to take them finds it touched.
    pub(super) fn give(&mut self, chunks: &[u32]) {
        let given =
            self.alone(|| chunks.iter().try_for_each(|&chunk| self.write_number(CHUNKS_AT + 4 * u64::from(chunk), 0)));
        if let Err(errno) = given {
            tracing::warn!(%errno, "shared memory stays taken until the process ends");
        }
    }

    /// Has the file system set the memory of a chunk aside.
    pub(super) fn reserve(&self, layer: &str, chunk: u32) -> Result<()> {
        let (file, offset) = self.place(chunk);
        match rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, offset, self.chunk_bytes)) {
            Ok(()) => Ok(()),
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::NOMEM)) => Err(Error::Exhausted {
                layer: layer.to_owned(),
                bytes: self.chunk_bytes,
                limit: format!("{}: {}", self.path().display(), io::Error::from(errno)),
            }),
            Err(errno) => Err(self.failure(errno)),
        }
    }

    /// Bytes that other processes have asked for in vain.
    pub(super) fn wanted_by_others(&self) -> u64 {
        let wanted = self.alone(|| self.numbers(WANTED_AT, OWNERS_MAX + 1));
        let wanted = wanted.unwrap_or_default().into_iter().zip(0..).skip(1);
        let of_others = wanted.filter(|&(count, owner)| count > 0 && owner != self.owner && self.is_alive(owner));
        let chunks: u64 = of_others.map(|(count, _)| u64::from(count.min(self.chunks))).sum();
        chunks * self.chunk_bytes
    }

    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.chunks) * self.chunk_bytes
    }

    fn path(&self) -> PathBuf {
        self.node.path().join(&self.file_name)
    }

    fn failure(&self, errno: Errno) -> Error {
        failure(&self.node, &self.file_name, errno)
    }

    /// Keeps all other processes out of the header for as long as `work` takes.
    fn alone<T>(&self, work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        lock(self.file.as_fd(), DOOR, libc::F_WRLCK, libc::F_OFD_SETLKW)?;
        let result = work();
        lock(self.file.as_fd(), DOOR, libc::F_UNLCK, libc::F_OFD_SETLK)?;
        result
    }

    /// By chunk the number of its owner, or 0.
    fn owners(&self) -> rustix::io::Result<Vec<u32>> {
        self.numbers(CHUNKS_AT, self.chunks)
    }

    /// Nothing is this process's, and it waits for nothing.
    fn give_all(&self) -> rustix::io::Result<()> {
        self.write_number(WANTED_AT + 4 * u64::from(self.owner), 0)?;
        self.free_chunks_of(|owner| owner == self.owner)
    }

    fn free_chunks_of(&self, is_gone: impl Fn(u32) -> bool) -> rustix::io::Result<()> {
        for (owner, chunk) in self.owners()?.into_iter().zip(0_u64..) {
            if owner != 0 && is_gone(owner) {
                self.write_number(CHUNKS_AT + 4 * chunk, 0)?;
            }
        }
        Ok(())
    }

    fn is_alive(&self, owner: u32) -> bool {
        let is_other_alive = || is_locked(self.file.as_fd(), owner, 1).unwrap_or(true);
        owner == self.owner || (owner <= OWNERS_MAX && is_other_alive())
    }

    fn numbers(&self, at: u64, count: u32) -> rustix::io::Result<Vec<u32>> {
        let mut bytes = vec![0; 4 * count as usize];
        let read = pread(&self.file, &mut bytes, at)?;
        // Somebody has cut the file off.
        if read < bytes.len() {
            return Err(Errno::IO);
        }
        Ok(bytes
            .chunks_exact(4)
            .map(|number| u32::from_ne_bytes([number[0], number[1], number[2], number[3]]))
            .collect())
    }

    fn write_number(&self, at: u64, number: u32) -> rustix::io::Result<()> {
        let written = pwrite(&self.file, &number.to_ne_bytes(), at)?;
        if written == 4 { Ok(()) } else { Err(Errno::IO) }
    }

    /// Gives everything back, and removes the file if nobody else uses it.
    fn leave(&self) -> Result<()> {
        self.node.alone(|| {
            let outcome = self.alone(|| self.give_all());
            lock(self.file.as_fd(), self.owner, libc::F_UNLCK, libc::F_OFD_SETLK)
                .map_err(|errno| self.failure(errno))?;
            if !has_living_owner(self.file.as_fd()).map_err(|errno| self.failure(errno))? {
                self.node.remove_same(&self.file_name, self.file.as_fd());
            }
            outcome.map_err(|errno| self.failure(errno))
        })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "shared memory is given back when the process ends");
        }
    }
}

/// Removes this user's segments that nobody living uses, but the one called `name`: all processes that shared them were
/// killed, and their memory would be lost to the node until somebody chose the same name. The directory must be locked.
fn remove_dead(node: &Node, name: &str) {
    for other in node.names(PREFIX).unwrap_or_default().iter().filter(|other| *other != name) {
        let file_name = format!("{PREFIX}{other}");
        let Ok(Some(file)) = open(node, &file_name) else { continue };
        if matches!(has_living_owner(file.as_fd()), Ok(false)) {
            node.remove_same(&file_name, file.as_fd());
        }
    }
}

/// The length of a header, for so many chunks.
fn header_bytes(chunks: u32) -> u64 {
    (CHUNKS_AT + 4 * u64::from(chunks)).next_multiple_of(HUGE_PAGE)
}

/// The file of a segment if there is one, and if it is this user's alone.
fn open(node: &Node, file_name: &str) -> Result<Option<OwnedFd>> {
    let another = || {
        let reason = "it belongs to another user, or others may open it: choose another name, or remove it".to_owned();
        refusal(node, file_name, reason)
    };
    let file = match node.file(file_name, OFlags::RDWR) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ACCESS | Errno::PERM) => return Err(another()),
        Err(Errno::INVAL | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
            return Err(refusal(
                node,
                file_name,
                "it is not an ordinary file: choose another name, or remove it".to_owned(),
            ));
        }
        Err(errno) => return Err(failure(node, file_name, errno)),
    };
    let stat = fstat(&file).map_err(|errno| failure(node, file_name, errno))?;
    let is_private = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
    if is_private { Ok(Some(file)) } else { Err(another()) }
}

/// Makes the file of a segment.
fn make(node: &Node, file_name: &str, chunk_bytes: u64, chunks: u32) -> Result<OwnedFd> {
    let bytes = u64::from(chunks) * chunk_bytes;
    let file =
        node.make(file_name, Mode::RUSR | Mode::WUSR).map_err(|errno| node.failure("make a segment in it", errno))?;
    let reason = match fill(&file, chunk_bytes, chunks) {
        Ok(None) => {
            warn_of_disk(node, &file);
            return Ok(file);
        }
        Ok(Some(room)) => format!("{bytes} bytes are more than the {room} of the file system: set a lower limit"),
        Err(errno) => io::Error::from(errno).to_string(),
    };
    node.remove(file_name);
    Err(refusal(node, file_name, reason))
}

/// Says so if what is to be memory lies on a disk.
fn warn_of_disk(node: &Node, file: &OwnedFd) {
    const TMPFS: u64 = 0x0102_1994;
    if fstatfs(file).is_ok_and(|system| system.f_type as u64 != TMPFS) {
        let path = node.path().display();
        tracing::warn!(%path, "shared memory lies on a disk and is slow: set OUTCROP_NODE_DIR to a directory in memory");
    }
}

/// Gives a new file its length and its header; tells the room of the file system instead if that can never be enough.
fn fill(file: &OwnedFd, chunk_bytes: u64, chunks: u32) -> rustix::io::Result<Option<u64>> {
    let bytes = u64::from(chunks) * chunk_bytes;
    let system = fstatvfs(file)?;
    let room = system.f_blocks.saturating_mul(system.f_frsize);
    if room < bytes {
        return Ok(Some(room));
    }
    ftruncate(file, header_bytes(chunks) + bytes)?;
    // So that a file system which becomes full never refuses who takes a chunk or gives it back.
    let table_bytes = CHUNKS_AT + 4 * u64::from(chunks);
    rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, table_bytes))?;
    // The rest of the header is zeroes: no owners, nobody waits.
    let header = header(chunk_bytes, chunks);
    if pwrite(file, &header, 0)? == header.len() { Ok(None) } else { Err(Errno::IO) }
}

fn header(chunk_bytes: u64, chunks: u32) -> [u8; 24] {
    let mut header = [0; 24];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&chunk_bytes.to_ne_bytes());
    header[16..].copy_from_slice(&u64::from(chunks).to_ne_bytes());
    header
}

/// Whether a segment in use is what this process takes it for; why not, if not.
fn check_header(file: &OwnedFd, chunk_bytes: u64, chunks: u32) -> std::result::Result<(), String> {
    let mut found = [0; 24];
    let read = pread(file, &mut found, 0).map_err(|errno| io::Error::from(errno).to_string())?;
    if read < found.len() || found[..8] != MAGIC {
        return Err("its header is damaged or of another version: end the processes that use it".to_owned());
    }
    if found != header(chunk_bytes, chunks) {
        let number = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| found[at + index]));
        let (there, here) = (number(8).saturating_mul(number(16)), chunk_bytes * u64::from(chunks));
        return Err(format!(
            "those who use it share {there} bytes and not {here}: give the same total to all, or choose another name"
        ));
    }
    let bytes = header_bytes(chunks) + u64::from(chunks) * chunk_bytes;
    match fstat(file) {
        Ok(stat) if u64::try_from(stat.st_size) == Ok(bytes) => Ok(()),
        Ok(stat) => Err(format!("it has {} bytes instead of {bytes}: end the processes that use it", stat.st_size)),
        Err(errno) => Err(io::Error::from(errno).to_string()),
    }
}

/// Locks the byte of an owner that nobody is; nothing if there are too many.
fn claim(file: BorrowedFd<'_>) -> rustix::io::Result<Option<u32>> {
    for owner in 1..=OWNERS_MAX {
        match lock(file, owner, libc::F_WRLCK, libc::F_OFD_SETLK) {
            Ok(()) => return Ok(Some(owner)),
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(None)
}

/// Whether any other process, or another part of this one, uses the segment.
fn has_living_owner(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    is_locked(file, 1, OWNERS_MAX)
}

/// Locks one byte, or gives it up. The lock belongs to what was opened, so that it ends with the process that did.
fn lock(file: BorrowedFd<'_>, byte: u32, kind: libc::c_int, command: libc::c_int) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| fcntl(file, &mut region(byte, 1, kind), command))
}

/// Whether any of these bytes is locked through another opening of the file.
fn is_locked(file: BorrowedFd<'_>, first: u32, count: u32) -> rustix::io::Result<bool> {
    let mut found = region(first, count, libc::F_WRLCK);
    fcntl(file, &mut found, libc::F_OFD_GETLK)?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

fn region(first: u32, count: u32, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(first),
        l_len: libc::off_t::from(count),
        l_pid: 0,
    }
}

fn fcntl(file: BorrowedFd<'_>, region: &mut libc::flock, command: libc::c_int) -> rustix::io::Result<()> {
    // SAFETY: the descriptor is open, and the commands used here take a pointer to a valid `flock`.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), command, region) };
    if outcome == -1 { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) } else { Ok(()) }
}

fn refusal(node: &Node, file_name: &str, reason: String) -> Error {
    Error::Segment { path: node.path().join(file_name), reason }
}

fn failure(node: &Node, file_name: &str, errno: Errno) -> Error {
    refusal(node, file_name, io::Error::from(errno).to_string())
}
