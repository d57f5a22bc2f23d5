//! Memory that several processes of a machine share: which process owns which chunk of it.
//!
//! The segment is a file in memory: a header, and chunks. The header names the owner of each chunk.
//! It is read and written like any file, under a lock, and its contents are checked before they are
//! used. A process has a number among the owners, and locks the byte of that number for as long as
//! it lives. When it ends, in whatever way, its chunks are free. A process maps the chunks that it
//! owns, and no others.
//!
//! The file belongs to one user, and nobody else may open it. The first process creates it, and the
//! last one removes it. A file that no living process uses is created again, whatever it holds.
//! Both happen while the meeting place is locked.
//!
//! A forked child has the memory of its parent's chunks, but owns none of them. Processes of one
//! user trust each other, as they could read each other's memory anyway: there is no defence
//! against a process that truncates the file, or writes into the chunks of others.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use outcrop_format::{
    CHUNK_BYTES_MAX, CHUNK_UNIT_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_OWNERS_MAX, SegmentHeader, encode_segment_number,
};
use rustix::{
    fs::{FallocateFlags, Mode, fallocate, fstat, fstatfs, fstatvfs, ftruncate},
    io::{Errno, pread, pwrite},
};

use crate::{
    Error, Result,
    lock::{Bytes, Description, Holder},
    meeting::Meeting,
};

/// The prefix of the file names of all segments.
const PREFIX: &str = "outcrop-shared-";
/// The byte that is locked while the tables are read or written. Owners have the bytes from 1 on.
const DOOR: Bytes = Bytes { first: 0, count: 1 };
const OWNERS: Bytes = Bytes { first: 1, count: SEGMENT_OWNERS_MAX };
/// A segment should have at least this many chunks, so that rounding wastes little.
const CHUNKS_WANTED: u64 = 64;

/// A process's access to a segment. Dropping it gives its chunks back.
pub struct Segment {
    meeting: Meeting,
    file_name: String,
    file: Description,
    header: SegmentHeader,
    /// The number of this process among the owners.
    owner: u32,
    /// Whether the table shows that this process waits for chunks.
    is_waiting: bool,
}

impl Segment {
    /// Joins the segment `name` of `bytes_total` in the meeting place `directory`, for a process
    /// that wants up to `bytes_mine` of it. Creates it if no process uses it.
    pub fn join(directory: &Path, name: &str, bytes_total: u64, bytes_mine: u64) -> Result<Self> {
        let meeting = Meeting::open(directory)?;
        meeting.check_name(name)?;
        let file_name = format!("{PREFIX}{name}");
        let header = divide(bytes_total, bytes_mine).map_err(|reason| refusal(&meeting, &file_name, reason))?;
        let (file, owner) = meeting.alone(|| {
            remove_dead(&meeting, name);
            let file = match open(&meeting, &file_name)? {
                Some(file) if has_living_owner(&file).map_err(|errno| failure(&meeting, &file_name, errno))? => {
                    check(&file, &header).map_err(|reason| refusal(&meeting, &file_name, reason))?;
                    file
                }
                Some(_) => {
                    meeting.remove(&file_name);
                    make(&meeting, &file_name, &header)?
                }
                None => make(&meeting, &file_name, &header)?,
            };
            let owner = claim(&file).map_err(|errno| failure(&meeting, &file_name, errno))?;
            let owner = owner.ok_or_else(|| {
                let reason = format!("{SEGMENT_OWNERS_MAX} processes use it: choose another name for the rest");
                refusal(&meeting, &file_name, reason)
            })?;
            Ok((file, owner))
        })?;
        let segment = Self { meeting, file_name, file, header, owner, is_waiting: false };
        // The number may have belonged to a process that was killed.
        segment.alone(|| segment.give_all()).map_err(|errno| segment.failure(errno))?;
        Ok(segment)
    }

    /// The length of a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.header.chunk_bytes()
    }

    /// The file from which a chunk is mapped, and its offset there.
    pub fn place(&self, chunk: u32) -> (BorrowedFd<'_>, u64) {
        (self.file.as_fd(), self.header.chunk_at(chunk))
    }

    /// Takes a free chunk. If there is none, tells the others that this process waits for `wanted`
    /// chunks.
    pub fn take(&mut self, wanted: usize) -> Result<Option<u32>> {
        let taken = self.alone(|| {
            let mut free = free_chunk(&self.owners()?);
            if free.is_none() {
                self.free_chunks_of(|owner| !self.is_alive(owner))?;
                free = free_chunk(&self.owners()?);
            }
            if let Some(chunk) = free {
                self.write_number(self.header.owner_at(chunk), self.owner)?;
            }
            if free.is_none() || self.is_waiting {
                let waiting = if free.is_some() { 0 } else { u32::try_from(wanted).unwrap_or(u32::MAX) };
                self.write_number(self.header.wanted_at(self.owner), waiting)?;
            }
            Ok(free)
        });
        let free = taken.map_err(|errno| self.failure(errno))?;
        self.is_waiting = free.is_none();
        Ok(free)
    }

    /// Frees chunks. They keep their memory, so the next owner finds it touched.
    pub fn give(&mut self, chunks: &[u32]) {
        let give = |&chunk: &u32| self.write_number(self.header.owner_at(chunk), 0);
        let given = self.alone(|| chunks.iter().try_for_each(give));
        if let Err(errno) = given {
            tracing::warn!(%errno, "cannot free shared memory: it stays in use until the process ends");
        }
    }

    /// Has the file system allocate the memory of a chunk.
    pub fn reserve(&self, chunk: u32) -> io::Result<()> {
        let (file, offset) = self.place(chunk);
        let allocate = || fallocate(file, FallocateFlags::KEEP_SIZE, offset, self.chunk_bytes());
        Ok(rustix::io::retry_on_intr(allocate)?)
    }

    /// The bytes for which other processes wait.
    pub fn wanted_by_others(&self) -> u64 {
        let wanted = self.alone(|| {
            let bytes = self.read(self.header.wanted_at(0), self.header.owner_at(0))?;
            self.header.decode_wanted(&bytes).map_err(|_| Errno::IO)
        });
        let wanted = wanted.unwrap_or_default().into_iter().zip(0..).skip(1);
        let of_others = wanted.filter(|&(count, owner)| count > 0 && owner != self.owner && self.is_alive(owner));
        of_others.map(|(count, _)| u64::from(count) * self.chunk_bytes()).sum()
    }

    /// The total bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        self.header.bytes()
    }

    /// Its file.
    pub fn path(&self) -> PathBuf {
        self.meeting.path().join(&self.file_name)
    }

    fn failure(&self, errno: Errno) -> Error {
        failure(&self.meeting, &self.file_name, errno)
    }

    /// Runs `work` while no other process can read or write the tables.
    fn alone<T>(&self, work: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        self.file.lock(DOOR)?;
        let result = work();
        self.file.unlock(DOOR)?;
        result
    }

    /// The owner of each chunk; 0 for a free one.
    fn owners(&self) -> rustix::io::Result<Vec<u32>> {
        let bytes = self.read(self.header.owner_at(0), self.header.table_bytes())?;
        self.header.decode_owners(&bytes).map_err(|_| Errno::IO)
    }

    /// Records that this process owns nothing and waits for nothing.
    fn give_all(&self) -> rustix::io::Result<()> {
        self.write_number(self.header.wanted_at(self.owner), 0)?;
        self.free_chunks_of(|owner| owner == self.owner)
    }

    fn free_chunks_of(&self, is_gone: impl Fn(u32) -> bool) -> rustix::io::Result<()> {
        for (owner, chunk) in self.owners()?.into_iter().zip(0..) {
            if owner != 0 && is_gone(owner) {
                self.write_number(self.header.owner_at(chunk), 0)?;
            }
        }
        Ok(())
    }

    fn is_alive(&self, owner: u32) -> bool {
        owner == self.owner || self.file.holder(Bytes::one(owner)) != Ok(Holder::Nobody)
    }

    fn read(&self, from: u64, to: u64) -> rustix::io::Result<Vec<u8>> {
        let mut bytes = vec![0; (to - from) as usize];
        // If there are fewer, another process has truncated the file.
        if pread(&self.file, &mut bytes, from)? == bytes.len() { Ok(bytes) } else { Err(Errno::IO) }
    }

    fn write_number(&self, at: u64, number: u32) -> rustix::io::Result<()> {
        let bytes = encode_segment_number(number);
        if pwrite(&self.file, &bytes, at)? == bytes.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// Frees everything, and removes the file if no other process uses it.
    fn leave(&self) -> Result<()> {
        self.meeting.alone(|| {
            let outcome = self.alone(|| self.give_all());
            self.file.unlock(Bytes::one(self.owner)).map_err(|errno| self.failure(errno))?;
            if !has_living_owner(&self.file).map_err(|errno| self.failure(errno))? {
                self.meeting.remove_same(&self.file_name, self.file.as_fd());
            }
            outcome.map_err(|errno| self.failure(errno))
        })
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.file.is_ours() {
            return;
        }
        if let Err(error) = self.leave() {
            tracing::warn!(%error, "cannot leave shared memory: it is freed when the process ends");
        }
    }
}

/// Removes this user's segments that no living process uses, except the one called `name`. All
/// processes that shared them were killed; their memory would be lost until some process chose the
/// same name. The directory must be locked.
fn remove_dead(meeting: &Meeting, name: &str) {
    for other in meeting.names(PREFIX).unwrap_or_default().iter().filter(|other| *other != name) {
        let file_name = format!("{PREFIX}{other}");
        let Ok(Some(file)) = open(meeting, &file_name) else { continue };
        if matches!(has_living_owner(&file), Ok(false)) {
            meeting.remove_same(&file_name, file.as_fd());
        }
    }
}

/// Divides `bytes_total` into chunks. The error is the reason why that is impossible.
fn divide(bytes_total: u64, bytes_mine: u64) -> std::result::Result<SegmentHeader, String> {
    let unit = CHUNK_UNIT_BYTES;
    let chunk_bytes = (bytes_total / CHUNKS_WANTED / unit * unit).clamp(unit, CHUNK_BYTES_MAX);
    let chunks = u32::try_from(bytes_total / chunk_bytes).unwrap_or(u32::MAX);
    if bytes_mine > bytes_total {
        return Err(format!("{bytes_mine} bytes for one process are more than the {bytes_total} for all"));
    }
    if chunks == 0 {
        return Err(format!("{bytes_total} bytes for all are less than the smallest piece, {chunk_bytes}"));
    }
    SegmentHeader::new(chunk_bytes, chunks).map_err(|error| error.to_string())
}

/// The first free chunk.
fn free_chunk(owners: &[u32]) -> Option<u32> {
    owners.iter().zip(0..).find_map(|(&owner, chunk)| (owner == 0).then_some(chunk))
}

/// Opens the file of a segment, if it exists and only this user can access it.
fn open(meeting: &Meeting, file_name: &str) -> Result<Option<Description>> {
    let another = || {
        let reason = "it belongs to another user, or others may open it: choose another name, or remove it".to_owned();
        refusal(meeting, file_name, reason)
    };
    let file = match meeting.file(file_name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::ACCESS | Errno::PERM) => return Err(another()),
        Err(Errno::INVAL | Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
            let reason = "it is not a plain file: choose another name, or remove it".to_owned();
            return Err(refusal(meeting, file_name, reason));
        }
        Err(errno) => return Err(failure(meeting, file_name, errno)),
    };
    let stat = fstat(&file).map_err(|errno| failure(meeting, file_name, errno))?;
    let is_private = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
    if is_private { Ok(Some(file)) } else { Err(another()) }
}

/// Creates the file of a segment.
fn make(meeting: &Meeting, file_name: &str, header: &SegmentHeader) -> Result<Description> {
    let file = meeting
        .make(file_name, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| meeting.failure("make a segment in it", errno))?;
    let reason = match fill(&file, header) {
        Ok(None) => {
            warn_of_disk(meeting, &file);
            return Ok(file);
        }
        Ok(Some(room)) => {
            let bytes = header.bytes();
            format!("{bytes} bytes are more than the {room} of the file system: set a lower limit")
        }
        Err(errno) => io::Error::from(errno).to_string(),
    };
    meeting.remove(file_name);
    Err(refusal(meeting, file_name, reason))
}

/// Warns if the segment is on a disk instead of in memory.
fn warn_of_disk(meeting: &Meeting, file: &Description) {
    const TMPFS: u64 = 0x0102_1994;
    if fstatfs(file).is_ok_and(|system| system.f_type as u64 != TMPFS) {
        let path = meeting.path().display();
        tracing::warn!(%path, "shared memory lies on a disk and is slow: set OUTCROP_MEETING_DIR to a directory in memory");
    }
}

/// Sets the length of a new file and writes its header. Returns the size of the file system instead
/// if that can never be enough.
fn fill(file: &Description, header: &SegmentHeader) -> rustix::io::Result<Option<u64>> {
    let system = fstatvfs(file)?;
    let room = system.f_blocks.saturating_mul(system.f_frsize);
    if room < header.bytes() {
        return Ok(Some(room));
    }
    ftruncate(file, header.file_bytes())?;
    // Allocate the tables, so that taking and freeing chunks works even when the file system is
    // full.
    rustix::io::retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, header.table_bytes()))?;
    // Both tables are zeros: no owners, and nobody waits.
    if pwrite(file, &header.encode(), 0)? == SEGMENT_HEADER_BYTES { Ok(None) } else { Err(Errno::IO) }
}

/// Checks that a segment in use is as expected. The error is the reason if not.
fn check(file: &Description, expected: &SegmentHeader) -> std::result::Result<(), String> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let read = pread(file, &mut bytes, 0).map_err(|errno| io::Error::from(errno).to_string())?;
    let found = SegmentHeader::decode(&bytes[..read])
        .map_err(|error| format!("it is damaged or of another version: {error}; end the processes that use it"))?;
    if found != *expected {
        let (there, here) = (found.bytes(), expected.bytes());
        return Err(format!(
            "those who use it share {there} bytes and not {here}: give the same total to all, or choose another name"
        ));
    }
    let bytes = expected.file_bytes();
    match fstat(file) {
        Ok(stat) if u64::try_from(stat.st_size) == Ok(bytes) => Ok(()),
        Ok(stat) => Err(format!("it has {} bytes instead of {bytes}: end the processes that use it", stat.st_size)),
        Err(errno) => Err(io::Error::from(errno).to_string()),
    }
}

/// Claims a free owner number by locking its byte. `None` if there are too many owners.
fn claim(file: &Description) -> rustix::io::Result<Option<u32>> {
    for owner in 1..=SEGMENT_OWNERS_MAX {
        if file.try_lock(Bytes::one(owner))? {
            return Ok(Some(owner));
        }
    }
    Ok(None)
}

/// Whether any other process, or another part of this one, uses the segment.
fn has_living_owner(file: &Description) -> rustix::io::Result<bool> {
    Ok(file.holder(OWNERS)? != Holder::Nobody)
}

fn refusal(meeting: &Meeting, file_name: &str, reason: String) -> Error {
    Error::Segment { path: meeting.path().join(file_name), reason }
}

fn failure(meeting: &Meeting, file_name: &str, errno: Errno) -> Error {
    refusal(meeting, file_name, io::Error::from(errno).to_string())
}
