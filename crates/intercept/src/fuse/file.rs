//! Bytes of regular files: to the cache, or to the real file.

use std::{
    cell::RefCell,
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::FileExt,
    },
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use fuser::{BackingId, FileAttr, FopenFlags, Request, WriteFlags};
use outcrop_node::Cached;
use rustix::{
    fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom, XattrFlags, chmodat, fallocate, fstat, openat, seek},
    io::Errno,
    time::{ClockId, clock_gettime},
};

use super::{
    attributes::attributes,
    caller::as_caller,
    content::{Bytes, Content, Real},
    node::Node,
    tree::Tree,
};
use crate::{run::Fsync, write_through::read_fully};

/// The most that one request copies from file to file, so that it answers soon.
const COPIED_MAX: u64 = 16 << 20;

/// Closed files of which it is not known whether they are drained: so many do not matter.
const CLOSED_FEW: usize = 64;

/// How much of a copy is in memory at a time.
const CHUNK: usize = 1 << 20;

thread_local! {
    /// What a request reads into: memory that is touched already.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Makes the kernel pass reads and writes on to an open file.
pub(super) type Register<'a> = &'a dyn Fn(BorrowedFd<'_>) -> io::Result<BackingId>;

/// How the kernel shall treat a descriptor.
pub(super) struct Opened {
    pub(super) flags: FopenFlags,
    pub(super) backing: Option<Arc<BackingId>>,
}

impl Opened {
    fn of(content: &Content, writes: bool) -> Self {
        // Closing reports a failure to drain. Without a cache there is none.
        let (mut flags, backing) = match &content.bytes {
            Bytes::Cached(_) => {
                let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
                (direct, None)
            }
            Bytes::Real(real) => (FopenFlags::FOPEN_NOFLUSH, real.backing.clone()),
            Bytes::Idle => (FopenFlags::empty(), None),
        };
        if !writes {
            flags |= FopenFlags::FOPEN_NOFLUSH;
        }
        Self { flags, backing }
    }
}

pub(super) fn can_write(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl Tree {
    pub(super) fn open(&self, request: &Request, id: u64, flags: i32, register: Register<'_>) -> io::Result<Opened> {
        let node = self.nodes.get(id)?;
        if flags & libc::O_TRUNC != 0 {
            self.drop_privileges(request, &node)?;
        }
        self.open_node(&node, flags, None, register)
    }

    pub(super) fn create(
        &self,
        request: &Request,
        (parent, name): (u64, &OsStr),
        (mode, mask): (u32, u32),
        flags: i32,
        register: Register<'_>,
    ) -> io::Result<(FileAttr, Opened)> {
        let directory = self.nodes.get(parent)?;
        let exclusive = OFlags::from_bits_retain((flags & libc::O_EXCL) as u32);
        let wanted = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | exclusive;
        let mode = Mode::from_raw_mode(mode);
        let file = File::from(as_caller(request, mask, || openat(directory.descriptor(), name, wanted, mode))?);
        let stat = fstat(&file)?;
        let node = match self.nodes.find_again(&stat) {
            Some(node) => node,
            None => {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                let descriptor = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                self.add_node(descriptor, &stat, (parent, name))
            }
        };
        match self.open_node(&node, flags, Some(file), register) {
            Ok(opened) => Ok((attributes(node.id, &stat), opened)),
            Err(error) => {
                self.nodes.forget(node.id, 1);
                Err(error)
            }
        }
    }

    /// Opens a file whose real file may be open for reading and writing already.
    fn open_node(&self, node: &Node, flags: i32, file: Option<File>, register: Register<'_>) -> io::Result<Opened> {
        let (writes, is_new) = (can_write(flags), file.is_some() && fstat(node.descriptor())?.st_size == 0);
        let mut content = node.content();
        content.settle();
        let is_new = is_new && matches!(content.bytes, Bytes::Idle);
        let passes = matches!(&content.bytes, Bytes::Real(real) if real.backing.is_some());
        let wants_cache = writes && !passes && content.cached().is_none();
        let cached = if wants_cache { self.cached(node, file)? } else { None };
        match cached {
            Some(cached) => content.bytes = Bytes::Cached(cached),
            None if matches!(content.bytes, Bytes::Idle) => {
                content.bytes = Bytes::Real(Real { backing: self.backing(node, register), file: None });
            }
            None => {}
        }
        // A file that was created now is empty.
        if flags & libc::O_TRUNC != 0 && !is_new {
            let truncated = match content.cached() {
                Some(cached) => cached.set_bytes(0),
                None => self.reopen(node, OFlags::WRONLY).and_then(|file| Ok(rustix::fs::ftruncate(file, 0)?)),
            };
            note_change(&mut content);
            if let Err(error) = truncated {
                content.settle();
                return Err(error);
            }
        }
        content.handles += 1;
        content.writers += u32::from(writes);
        Ok(Opened::of(&content, writes))
    }

    /// The file in the cache, unless a pattern keeps it out.
    fn cached(&self, node: &Node, file: Option<File>) -> io::Result<Option<Arc<dyn Cached>>> {
        let path = node.path()?;
        if !self.is_selected(&path) {
            return Ok(None);
        }
        let file = match file.map_or_else(|| self.reopen(node, OFlags::RDWR).map(File::from), Ok) {
            Ok(file) => file,
            // Its owner may write it but not read it, and this process has no more rights.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.cache.open(file, &path).map(Some)
    }

    fn backing(&self, node: &Node, register: Register<'_>) -> Option<Arc<BackingId>> {
        if !self.passes_through() {
            return None;
        }
        match register(node.descriptor().as_fd()) {
            Ok(backing) => Some(Arc::new(backing)),
            Err(error) => {
                // Without the capability it never works; some file systems refuse it.
                if error.raw_os_error() == Some(libc::EPERM) {
                    self.has_passthrough.store(false, Ordering::Relaxed);
                }
                tracing::debug!(%error, "no passthrough");
                None
            }
        }
    }

    /// The real file of a file that is not cached.
    fn real_file(&self, node: &Node) -> io::Result<Arc<File>> {
        let mut content = node.content();
        let Bytes::Real(real) = &mut content.bytes else {
            return Ok(Arc::new(self.reopen_best(node)?));
        };
        if let Some(file) = &real.file {
            return Ok(file.clone());
        }
        let file = Arc::new(self.reopen_best(node)?);
        real.file = Some(file.clone());
        Ok(file)
    }

    /// Opens the real file for as much as is allowed. The kernel knows what the program may do.
    fn reopen_best(&self, node: &Node) -> io::Result<File> {
        let opened = self.reopen(node, OFlags::RDWR);
        let opened = opened.or_else(|_| self.reopen(node, OFlags::RDONLY));
        Ok(opened.or_else(|_| self.reopen(node, OFlags::WRONLY))?.into())
    }

    /// Reads, and gives what was read to `answer`.
    pub(super) fn read(&self, id: u64, offset: u64, bytes: usize, answer: impl FnOnce(io::Result<&[u8]>)) {
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < bytes {
                buffer.resize(bytes, 0);
            }
            let read = self.read_into(id, offset, &mut buffer[..bytes]);
            answer(read.map(|read| &buffer[..read]));
        });
    }

    fn read_into(&self, id: u64, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let node = self.nodes.get(id)?;
        let cached = node.content().cached();
        match cached {
            Some(cached) => cached.read(offset, into),
            None => read_fully(&*self.real_file(&node)?, offset, into),
        }
    }

    pub(super) fn write(
        &self,
        request: &Request,
        (id, offset): (u64, u64),
        bytes: &[u8],
        flags: i32,
        write_flags: WriteFlags,
    ) -> io::Result<()> {
        let node = self.nodes.get(id)?;
        // The kernel has done it for pages.
        if !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.drop_privileges(request, &node)?;
        }
        let cached = node.content().cached();
        let Some(cached) = cached else {
            return self.real_file(&node)?.write_all_at(bytes, offset);
        };
        // Pages of a mapping come with their own offset, however the file was opened.
        let appends = flags & libc::O_APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let offset = if appends { cached.bytes()? } else { offset };
        let written = cached.write(offset, bytes);
        note_change(&mut node.content());
        written?;
        if flags & libc::O_DSYNC != 0 && self.fsync == Fsync::Disk {
            cached.sync()?;
        }
        Ok(())
    }

    /// A descriptor is closed: an error that was found since the last write shows now.
    pub(super) fn flush(&self, id: u64) -> io::Result<()> {
        let node = self.nodes.get(id)?;
        let dirty = node.content().dirty();
        // A write of nothing reports what has failed.
        dirty.map_or(Ok(()), |cached| cached.write(0, &[]))
    }

    pub(super) fn release(&self, id: u64, flags: i32) -> io::Result<()> {
        let node = self.nodes.get(id)?;
        let is_undrained = {
            let mut content = node.content();
            content.handles -= 1;
            content.writers -= u32::from(can_write(flags));
            // One that was just written is not drained yet: the daemon is not asked.
            content.handles == 0 && (content.dirty().is_some() || !content.settle())
        };
        if is_undrained {
            self.closed.lock().unwrap().push_back(node);
        }
        self.settle_some();
        Ok(())
    }

    /// Lets go of files that were drained after they were closed. While there are many of them,
    /// each close looks at two: the list stays short, and one that cannot be drained holds nothing
    /// up. A few wait for the next close, because asking about each costs a message.
    fn settle_some(&self) {
        for _ in 0..2 {
            let (node, waiting) = {
                let mut closed = self.closed.lock().unwrap();
                let is_long = closed.len() > CLOSED_FEW;
                (is_long.then(|| closed.pop_front()).flatten(), closed.len())
            };
            let Some(node) = node else { return };
            // Each of them holds descriptors, here and in the daemon.
            if waiting > self.limits.closed_max {
                let dirty = node.content().dirty();
                // What fails is reported when the file is used next, or in the end.
                let _ = dirty.map(|cached| cached.drain());
            }
            self.settle_closed(node);
        }
    }

    /// Lets go of a file that was closed, if it is drained.
    fn settle_closed(&self, node: Arc<Node>) {
        let is_undrained = {
            let mut content = node.content();
            content.handles == 0 && !content.settle()
        };
        if is_undrained {
            self.closed.lock().unwrap().push_back(node);
        } else {
            self.nodes.remove_unused(node.id);
        }
    }

    pub(super) fn fsync(&self, id: u64, only_bytes: bool) -> io::Result<()> {
        let node = self.nodes.get(id)?;
        let cached = node.content().cached();
        match (cached, self.fsync) {
            (Some(cached), Fsync::Disk) => cached.sync(),
            (Some(cached), Fsync::Memory) => cached.write(0, &[]),
            (None, _) => {
                let file = self.real_file(&node)?;
                if only_bytes { file.sync_data() } else { file.sync_all() }
            }
        }
    }

    pub(super) fn allocate(&self, id: u64, offset: u64, bytes: u64, mode: i32) -> io::Result<()> {
        let node = self.nodes.get(id)?;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let file = self.drained(&node)?;
        fallocate(&*file, mode, offset, bytes)?;
        let cached = node.content().cached();
        if let Some(cached) = cached {
            if !mode.contains(FallocateFlags::KEEP_SIZE) && cached.bytes()? < offset + bytes {
                cached.set_bytes(offset + bytes)?;
            }
            note_change(&mut node.content());
        }
        Ok(())
    }

    /// Where the next data or hole is.
    pub(super) fn seek(&self, id: u64, offset: i64, whence: i32) -> io::Result<i64> {
        let node = self.nodes.get(id)?;
        let offset = u64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::ENXIO))?;
        let from = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        Ok(seek(&*self.drained(&node)?, from)? as i64)
    }

    /// The real file with everything in it.
    fn drained(&self, node: &Node) -> io::Result<Arc<File>> {
        let undrained = node.content().undrained();
        undrained.map_or(Ok(()), |cached| cached.drain())?;
        self.real_file(node)
    }

    /// Copies at most `bytes` from file to file. Returns how many.
    pub(super) fn copy(&self, (from, at): (u64, u64), (to, offset): (u64, u64), bytes: u64) -> io::Result<u32> {
        let (from, to) = (self.nodes.get(from)?, self.nodes.get(to)?);
        // One at a time: they may be the same file.
        let source = from.content().cached();
        let target = to.content().cached();
        let Some(target) = target else {
            let (from, to) = (self.drained(&from)?, self.real_file(&to)?);
            let (mut at, mut offset) = (at, offset);
            let wanted = bytes.min(u32::MAX.into()) as usize;
            return Ok(rustix::fs::copy_file_range(&*from, Some(&mut at), &*to, Some(&mut offset), wanted)? as u32);
        };
        let real = if source.is_none() { Some(self.real_file(&from)?) } else { None };
        let mut done = 0;
        let copied = BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < CHUNK {
                buffer.resize(CHUNK, 0);
            }
            while done < bytes.min(COPIED_MAX) {
                let into = &mut buffer[..CHUNK.min((bytes - done) as usize)];
                let read = match (&source, &real) {
                    (Some(source), _) => source.read(at + done, into)?,
                    (None, Some(real)) => read_fully(real, at + done, into)?,
                    (None, None) => 0,
                };
                if read == 0 {
                    break;
                }
                target.write(offset + done, &into[..read])?;
                done += read as u64;
            }
            io::Result::Ok(())
        });
        note_change(&mut to.content());
        copied?;
        Ok(done as u32)
    }
}

impl Tree {
    /// Takes from a file what a write by anybody but root takes: setuid, setgid and capabilities.
    fn drop_privileges(&self, request: &Request, node: &Node) -> io::Result<()> {
        if request.uid() == 0 || !node.may_be_privileged.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(fstat(node.descriptor())?.st_mode);
        let mut kept = mode - Mode::SUID;
        if mode.contains(Mode::XGRP) {
            kept -= Mode::SGID;
        }
        let changed = if kept == mode { Ok(()) } else { chmodat(CWD, node.magic_path(), kept, AtFlags::empty()) };
        if kept != mode {
            self.forget_attributes(node);
        }
        let removed = rustix::fs::removexattr(node.magic_path(), "security.capability");
        match changed.and(removed) {
            // Whoever may write a file of somebody else cannot change its mode; the kernel does it
            // when the file is drained.
            Ok(()) | Err(Errno::NODATA | Errno::NOTSUP | Errno::PERM) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The bytes have changed just now.
pub(super) fn note_change(content: &mut Content) {
    content.is_dirty = true;
    content.times.modified = Some(now());
    content.times.is_news = true;
}

/// The time as file systems take it: a file that is made later never looks older.
fn now() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The mark of files that are not drained. The daemon's own: programs neither see nor copy it.
const MARK: &str = "user.outcrop.undrained";

impl Tree {
    pub(super) fn attribute(&self, id: u64, name: &OsStr) -> io::Result<Vec<u8>> {
        if name == MARK {
            return Err(io::Error::from_raw_os_error(libc::ENODATA));
        }
        let node = self.nodes.get(id)?;
        let mut value = Vec::with_capacity(64 << 10);
        rustix::fs::getxattr(node.magic_path(), name, rustix::buffer::spare_capacity(&mut value))?;
        Ok(value)
    }

    /// The names of the extended attributes, each followed by a zero.
    pub(super) fn attribute_names(&self, id: u64) -> io::Result<Vec<u8>> {
        let node = self.nodes.get(id)?;
        let mut names = Vec::with_capacity(64 << 10);
        rustix::fs::listxattr(node.magic_path(), rustix::buffer::spare_capacity(&mut names))?;
        let kept = names.split_inclusive(|&byte| byte == 0).filter(|name| &name[..name.len() - 1] != MARK.as_bytes());
        Ok(kept.flatten().copied().collect())
    }

    pub(super) fn set_attribute(&self, id: u64, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
        if name == MARK {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let node = self.nodes.get(id)?;
        node.may_be_privileged.store(true, Ordering::Relaxed);
        let flags = XattrFlags::from_bits_retain(flags as u32);
        Ok(rustix::fs::setxattr(node.magic_path(), name, value, flags)?)
    }

    pub(super) fn remove_attribute(&self, id: u64, name: &OsStr) -> io::Result<()> {
        if name == MARK {
            return Err(io::Error::from_raw_os_error(libc::ENODATA));
        }
        Ok(rustix::fs::removexattr(self.nodes.get(id)?.magic_path(), name)?)
    }
}
