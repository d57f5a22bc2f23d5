//! Names: what the kernel asks about directories, links and attributes acts on the real files at
//! once. Only the bytes of regular files wait.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use fuser::{FileAttr, INodeNo, Notifier, Request, TimeOrNow};
use outcrop_node::Cache;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timestamps, Uid, chmodat, chownat, fstat, linkat,
    mkdirat, mknodat, openat, readlinkat, renameat_with, statat, symlinkat, unlinkat, utimensat,
};

use super::{
    attributes::{attributes, moment, timespec, user_device, with_cached},
    caller::as_caller,
    content::Times,
    crowd::{Crowded, Limits},
    directory::Directories,
    file::note_change,
    node::{Node, Nodes},
};
use crate::{paths::Paths, run::Fsync};

/// A directory of the real file system, as programs see it through the mount.
pub(super) struct Tree {
    pub(super) nodes: Nodes,
    pub(super) directories: Directories,
    pub(super) cache: Arc<dyn Cache>,
    pub(super) fsync: Fsync,
    /// The kernel can pass reads and writes of a file on by itself.
    pub(super) has_passthrough: AtomicBool,
    /// Files that were closed with bytes in memory, in that order.
    pub(super) closed: Mutex<VecDeque<Arc<Node>>>,
    pub(super) limits: Limits,
    /// Wakes the thread that makes the kernel forget files.
    pub(super) crowded: Crowded,
    /// Tells the kernel what has changed without its doing.
    pub(super) notifier: OnceLock<Notifier>,
    root: PathBuf,
    paths: Paths,
}

impl Tree {
    /// The tree below `root`, which `descriptor` (`O_PATH`) holds.
    pub(super) fn new(
        root: PathBuf,
        descriptor: OwnedFd,
        paths: Paths,
        cache: Arc<dyn Cache>,
        fsync: Fsync,
    ) -> io::Result<Self> {
        let stat = fstat(&descriptor)?;
        Ok(Self {
            nodes: Nodes::new(descriptor, &stat),
            directories: Directories::default(),
            cache,
            fsync,
            has_passthrough: AtomicBool::new(false),
            closed: Mutex::default(),
            limits: Limits::of_process(),
            crowded: Crowded::default(),
            notifier: OnceLock::new(),
            root,
            paths,
        })
    }

    pub(super) fn passes_through(&self) -> bool {
        self.has_passthrough.load(Ordering::Relaxed)
    }

    /// Makes the kernel ask for the attributes of a file again.
    pub(super) fn forget_attributes(&self, node: &Node) {
        // Without an answer the kernel believes the old ones for a moment longer.
        let _ = self.notifier.get().map(|notifier| notifier.inval_inode(INodeNo(node.id), -1, 0));
    }

    /// Whether the patterns of the user select this file.
    pub(super) fn is_selected(&self, path: &Path) -> bool {
        path.strip_prefix(&self.root).is_ok_and(|relative| self.paths.selects(relative))
    }

    /// Opens the file of a node.
    pub(super) fn reopen(&self, node: &Node, flags: OFlags) -> io::Result<OwnedFd> {
        Ok(openat(CWD, node.magic_path(), flags | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Tells the kernel of a name.
    pub(super) fn lookup(&self, id: u64, name: &OsStr) -> io::Result<(Arc<Node>, FileAttr)> {
        let parent = self.nodes.get(id)?;
        // One call is enough for an inode that is held.
        let stat = statat(parent.descriptor(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        if let Some(node) = self.nodes.find_again(&stat) {
            let shown = self.shown(&node, &stat)?;
            return Ok((node, shown));
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(parent.descriptor(), name, flags, Mode::empty())?;
        let stat = fstat(&descriptor)?;
        let node = self.add_node(descriptor, &stat, (id, name));
        let shown = self.shown(&node, &stat)?;
        Ok((node, shown))
    }

    /// What `stat` shows of a node.
    pub(super) fn attributes(&self, node: &Node) -> io::Result<FileAttr> {
        if !node.is_regular || node.content().dirty().is_none() {
            return Ok(attributes(node.id, &fstat(node.descriptor())?));
        }
        // What is shown now has to be so after the file is drained.
        self.keep_time(node)?;
        let (dirty, times) = {
            let content = node.content();
            (content.dirty(), content.times)
        };
        let real = attributes(node.id, &fstat(node.descriptor())?);
        match dirty {
            None => Ok(real),
            Some(cached) => Ok(with_cached(real, cached.bytes()?, times.accessed, times.modified)),
        }
    }

    /// What `stat` shows of a node whose real file has just been asked.
    fn shown(&self, node: &Node, stat: &Stat) -> io::Result<FileAttr> {
        let is_dirty = node.is_regular && node.content().dirty().is_some();
        if is_dirty { self.attributes(node) } else { Ok(attributes(node.id, stat)) }
    }

    pub(super) fn readlink(&self, id: u64) -> io::Result<Vec<u8>> {
        let node = self.nodes.get(id)?;
        Ok(readlinkat(node.descriptor(), "", Vec::new())?.into_bytes())
    }

    pub(super) fn mkdir(
        &self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
        mask: u32,
    ) -> io::Result<FileAttr> {
        let directory = self.nodes.get(parent)?;
        as_caller(request, mask, || mkdirat(directory.descriptor(), name, Mode::from_raw_mode(mode)))?;
        Ok(self.lookup(parent, name)?.1)
    }

    pub(super) fn mknod(
        &self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        (mode, mask, device): (u32, u32, u32),
    ) -> io::Result<FileAttr> {
        let directory = self.nodes.get(parent)?;
        let kind = FileType::from_raw_mode(mode);
        let mode = Mode::from_raw_mode(mode);
        as_caller(request, mask, || mknodat(directory.descriptor(), name, kind, mode, user_device(device)))?;
        Ok(self.lookup(parent, name)?.1)
    }

    pub(super) fn symlink(&self, request: &Request, parent: u64, name: &OsStr, target: &Path) -> io::Result<FileAttr> {
        let directory = self.nodes.get(parent)?;
        as_caller(request, 0, || symlinkat(target, directory.descriptor(), name))?;
        Ok(self.lookup(parent, name)?.1)
    }

    pub(super) fn link(&self, id: u64, parent: u64, name: &OsStr) -> io::Result<FileAttr> {
        let (node, directory) = (self.nodes.get(id)?, self.nodes.get(parent)?);
        // Needs a capability on older kernels.
        let linked = linkat(node.descriptor(), "", directory.descriptor(), name, AtFlags::EMPTY_PATH);
        if linked == Err(rustix::io::Errno::NOENT) {
            linkat(CWD, node.magic_path(), directory.descriptor(), name, AtFlags::SYMLINK_FOLLOW)?;
        } else {
            linked?;
        }
        Ok(self.lookup(parent, name)?.1)
    }

    pub(super) fn remove(&self, parent: u64, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        let directory = self.nodes.get(parent)?;
        let removed = self.known(&directory, name);
        unlinkat(directory.descriptor(), name, flags)?;
        if let Some(node) = removed {
            self.discard_if_gone(&node)?;
        }
        Ok(())
    }

    /// The node of a name, if the kernel knows it or bytes of it are cached.
    fn known(&self, directory: &Node, name: &OsStr) -> Option<Arc<Node>> {
        let stat = statat(directory.descriptor(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        self.nodes.find(&stat).filter(|node| node.is_regular)
    }

    /// A file without a name that nobody has open need not be written any more.
    fn discard_if_gone(&self, node: &Node) -> io::Result<()> {
        let content = node.content();
        match content.dirty() {
            Some(cached) if content.handles == 0 && fstat(node.descriptor())?.st_nlink == 0 => cached.set_bytes(0),
            _ => Ok(()),
        }
    }

    /// A name that replaces a file never shows before the bytes that belong to it.
    pub(super) fn rename(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: RenameFlags,
    ) -> io::Result<()> {
        let (from, to) = (self.nodes.get(parent)?, self.nodes.get(new_parent)?);
        let (moved, replaced) = (self.known(&from, name), self.known(&to, new_name));
        let replaces = !flags.contains(RenameFlags::NOREPLACE)
            && statat(to.descriptor(), new_name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if replaces {
            let exchanged = replaced.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE));
            for node in moved.iter().chain(exchanged) {
                self.drain_before_rename(node)?;
            }
        }
        renameat_with(from.descriptor(), name, to.descriptor(), new_name, flags)?;
        if let Some(moved) = &moved {
            moved.set_place((new_parent, new_name));
        }
        replaced.map_or(Ok(()), |node| self.discard_if_gone(&node))
    }

    fn drain_before_rename(&self, node: &Node) -> io::Result<()> {
        let dirty = node.content().dirty();
        match (dirty, self.fsync) {
            (None, _) => Ok(()),
            (Some(cached), Fsync::Disk) => cached.sync(),
            (Some(cached), Fsync::Memory) => cached.drain(),
        }
    }

    /// Tells the cache when the file was last written to, if that is news.
    pub(super) fn keep_time(&self, node: &Node) -> io::Result<()> {
        let (undrained, time) = {
            let mut content = node.content();
            let is_news = std::mem::take(&mut content.times.is_news);
            (content.dirty(), content.times.modified.filter(|_| is_news))
        };
        match (undrained, time) {
            (Some(cached), Some(time)) => cached.set_times(None, Some(time)),
            _ => Ok(()),
        }
    }

    pub(super) fn change(&self, id: u64, change: &Change) -> io::Result<FileAttr> {
        let node = self.nodes.get(id)?;
        if let Some(bytes) = change.bytes {
            self.set_bytes(&node, bytes)?;
        }
        if change.user.is_some() || change.group.is_some() {
            let (user, group) = (change.user.map(Uid::from_raw), change.group.map(Gid::from_raw));
            chownat(node.descriptor(), "", user, group, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = change.mode {
            node.may_be_privileged.store(true, Ordering::Relaxed);
            chmodat(CWD, node.magic_path(), Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            self.set_times(&node, change)?;
        }
        self.attributes(&node)
    }

    fn set_times(&self, node: &Node, change: &Change) -> io::Result<()> {
        let mut content = node.content();
        if let Some(cached) = content.undrained() {
            let (accessed, modified) = (moment(change.accessed), moment(change.modified));
            // What was written before has no say any more.
            let is_news = content.times.is_news && modified.is_none();
            let Times { accessed: old_accessed, modified: old_modified, .. } = content.times;
            content.times = Times { accessed: accessed.or(old_accessed), modified: modified.or(old_modified), is_news };
            drop(content);
            return cached.set_times(accessed, modified);
        }
        drop(content);
        let times = Timestamps { last_access: timespec(change.accessed), last_modification: timespec(change.modified) };
        Ok(utimensat(node.descriptor(), "", &times, AtFlags::EMPTY_PATH)?)
    }

    /// Truncates or extends a file, open or not.
    pub(super) fn set_bytes(&self, node: &Node, bytes: u64) -> io::Result<()> {
        let cached = node.content().cached();
        match cached {
            Some(cached) => {
                let set = cached.set_bytes(bytes);
                note_change(&mut node.content());
                set
            }
            None => Ok(rustix::fs::ftruncate(self.reopen(node, OFlags::WRONLY)?, bytes)?),
        }
    }
}

/// What `chmod`, `chown`, `truncate` and `utimes` ask for.
#[derive(Default)]
pub(super) struct Change {
    pub(super) mode: Option<u32>,
    pub(super) user: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) bytes: Option<u64>,
    pub(super) accessed: Option<TimeOrNow>,
    pub(super) modified: Option<TimeOrNow>,
}
