//! What the kernel asks, answered by the tree.

use std::{
    ffi::OsStr,
    io,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, OFlags};

use super::{
    attributes::{attributes, kind},
    tree::{Change, Tree},
};

/// How long the kernel trusts what it was told. All changes of this node come through here, but a
/// shared file system changes on other nodes too.
const TRUST: Duration = Duration::from_secs(1);

/// Files keep their nodes for as long as the kernel knows them, so ids are never used twice.
const GENERATION: Generation = Generation(0);

/// What the kernel may do, where it can.
const WANTED: [InitFlags; 7] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_DONT_MASK,
];

/// Answers the kernel.
pub(super) struct Server(pub(super) Arc<Tree>);

fn errno(error: io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Answers with what an attempt gave, or with its error.
macro_rules! answer {
    ($reply:ident, $attempt:expr, $value:pat => $good:expr) => {
        match $attempt {
            Ok($value) => $good,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

fn entry(reply: ReplyEntry, made: io::Result<FileAttr>) {
    answer!(reply, made, made => reply.entry(&TRUST, &made, GENERATION));
}

fn done(reply: ReplyEmpty, outcome: io::Result<()>) {
    answer!(reply, outcome, () => reply.ok());
}

fn extended(reply: ReplyXattr, size: u32, value: io::Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // What an older kernel lacks only costs speed, or is refused when it is used.
            let _ = config.add_capabilities(flag);
        }
        if self.0.limits.can_list_with_attributes() {
            let _ = config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO);
        }
        // A file below may itself be on a stacked file system, as in a container.
        let passes =
            config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() && config.set_max_stack_depth(2).is_ok();
        self.0.has_passthrough.store(passes, Ordering::Relaxed);
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.0.lookup(parent.0, name).map(|(_, found)| found));
    }

    fn forget(&self, _request: &Request, id: INodeNo, count: u64) {
        self.0.nodes.forget(id.0, count);
    }

    fn getattr(&self, _request: &Request, id: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let shown = self.0.nodes.get(id.0).and_then(|node| Ok((self.0.attributes(&node)?, self.0.trust(&node))));
        answer!(reply, shown, (shown, trust) => reply.attr(&trust, &shown));
    }

    fn setattr(
        &self,
        _request: &Request,
        id: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        bytes: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = self.0.change(id.0, &Change { mode, user, group, bytes, accessed, modified });
        answer!(reply, changed, shown => reply.attr(&TRUST, &shown));
    }

    fn readlink(&self, _request: &Request, id: INodeNo, reply: ReplyData) {
        answer!(reply, self.0.readlink(id.0), target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        entry(reply, self.0.mknod(request, parent.0, name, (mode, umask, device)));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(reply, self.0.mkdir(request, parent.0, name, mode, umask));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.0.remove(parent.0, name, AtFlags::empty()));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.0.remove(parent.0, name, AtFlags::REMOVEDIR));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        entry(reply, self.0.symlink(request, parent.0, name, target));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        done(reply, self.0.rename((parent.0, name), (new_parent.0, new_name), flags));
    }

    fn link(&self, _request: &Request, id: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.0.link(id.0, parent.0, name));
    }

    fn open(&self, request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.0.open(request, id.0, flags.0, &|file| reply.open_backing(file));
        answer!(reply, opened, opened => match &opened.backing {
            Some(backing) => reply.opened_passthrough(FileHandle(0), opened.flags, backing),
            None => reply.opened(FileHandle(0), opened.flags),
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let register = |file: std::os::fd::BorrowedFd<'_>| reply.open_backing(file);
        let created = self.0.create(request, (parent.0, name), (mode, umask), flags, &register);
        answer!(reply, created, (made, opened) => match &opened.backing {
            Some(backing) => {
                reply.created_passthrough(&TRUST, &made, GENERATION, FileHandle(0), opened.flags, backing);
            }
            None => reply.created(&TRUST, &made, GENERATION, FileHandle(0), opened.flags),
        });
    }

    fn read(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.read(id.0, offset, size as usize, |read| answer!(reply, read, bytes => reply.data(bytes)));
    }

    fn write(
        &self,
        request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.0.write(request, (id.0, offset), bytes, flags.0, write_flags);
        answer!(reply, written, () => reply.written(bytes.len() as u32));
    }

    fn flush(&self, _request: &Request, id: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        done(reply, self.0.flush(id.0));
    }

    fn release(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        done(reply, self.0.release(id.0, flags.0));
    }

    fn fsync(&self, _request: &Request, id: INodeNo, _handle: FileHandle, datasync: bool, reply: ReplyEmpty) {
        done(reply, self.0.fsync(id.0, datasync));
    }

    fn opendir(&self, _request: &Request, id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.0.nodes.get(id.0).and_then(|node| self.0.reopen(&node, OFlags::RDONLY | OFlags::DIRECTORY));
        answer!(reply, opened, descriptor => {
            reply.opened(FileHandle(self.0.directories.add(descriptor)), FopenFlags::empty());
        });
    }

    fn readdir(&self, _request: &Request, _id: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let read = self.0.directories.get(handle.0).and_then(|directory| {
            directory.read(offset, |entry| reply.add(INodeNo(entry.inode), entry.next, kind(entry.kind), entry.name))
        });
        answer!(reply, read, () => reply.ok());
    }

    fn readdirplus(
        &self,
        _request: &Request,
        id: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (mut failed, mut is_empty) = (None, true);
        let read = self.0.directories.get(handle.0).and_then(|directory| {
            let own = attributes(id.0, &rustix::fs::fstat(&directory.descriptor)?);
            directory.read(offset, |entry| {
                let at = INodeNo(entry.inode);
                if entry.name == "." || entry.name == ".." {
                    is_empty = false;
                    // The kernel takes no more than the number of these.
                    let shown = FileAttr { ino: at, ..own };
                    return reply.add(at, entry.next, entry.name, &TRUST, &shown, GENERATION);
                }
                let (node, shown) = match self.0.lookup(id.0, entry.name) {
                    Ok(found) => found,
                    // One that was removed meanwhile is no entry any more.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
                    Err(error) => {
                        failed = Some(error).filter(|_| is_empty);
                        return true;
                    }
                };
                is_empty = false;
                let is_full = reply.add(shown.ino, entry.next, entry.name, &TRUST, &shown, GENERATION);
                if is_full {
                    self.0.nodes.forget(node.id, 1);
                }
                is_full
            })
        });
        let read = failed.map_or(read, Err);
        answer!(reply, read, () => reply.ok());
    }

    fn releasedir(&self, _request: &Request, _id: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.0.directories.remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _id: INodeNo, handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let directory = self.0.directories.get(handle.0);
        done(reply, directory.and_then(|directory| Ok(rustix::fs::fsync(&directory.descriptor)?)));
    }

    fn statfs(&self, _request: &Request, id: INodeNo, reply: ReplyStatfs) {
        let shown = self.0.nodes.get(id.0).and_then(|node| Ok(rustix::fs::fstatvfs(node.descriptor())?));
        answer!(reply, shown, shown => reply.statfs(
            shown.f_blocks,
            shown.f_bfree,
            shown.f_bavail,
            shown.f_files,
            shown.f_ffree,
            shown.f_bsize as u32,
            shown.f_namemax as u32,
            shown.f_frsize as u32,
        ));
    }

    fn setxattr(
        &self,
        _request: &Request,
        id: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.0.set_attribute(id.0, name, value, flags));
    }

    fn getxattr(&self, _request: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        extended(reply, size, self.0.attribute(id.0, name));
    }

    fn listxattr(&self, _request: &Request, id: INodeNo, size: u32, reply: ReplyXattr) {
        extended(reply, size, self.0.attribute_names(id.0));
    }

    fn removexattr(&self, _request: &Request, id: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.0.remove_attribute(id.0, name));
    }

    fn ioctl(
        &self,
        _request: &Request,
        _id: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _request: &Request,
        id: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        done(reply, self.0.allocate(id.0, offset, length, mode));
    }

    fn lseek(&self, _request: &Request, id: INodeNo, _handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        answer!(reply, self.0.seek(id.0, offset, whence), at => reply.offset(at));
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let copied = self.0.copy((from.0, from_offset), (to.0, to_offset), length);
        answer!(reply, copied, copied => reply.written(copied));
    }
}

impl Tree {
    /// How long the kernel may trust attributes: not at all where it writes without asking.
    fn trust(&self, node: &super::node::Node) -> Duration {
        let is_written_past = node.is_regular && {
            let content = node.content();
            content.writers > 0 && content.cached().is_none()
        };
        if is_written_past { Duration::ZERO } else { TRUST }
    }
}
