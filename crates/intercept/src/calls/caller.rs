//! The thread whose call is to be answered: its memory, its descriptors, its working directory, its
//! identity.

use std::{
    ffi::{CStr, CString},
    fs, io,
    mem::{MaybeUninit, size_of},
    ops::Range,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat, stat},
    process::{Gid, Uid, geteuid, umask},
};

use crate::stage::{FileId, checked};

/// The longest path, with the zero at its end.
const PATH_BYTES: usize = libc::PATH_MAX as usize;

const PAGE: usize = 4096;

/// What may differ between this process and the programs. Each is false until a program makes the
/// call that changes it, because looking it up is slow.
#[derive(Default)]
pub(crate) struct Differences {
    pub(crate) umask: AtomicBool,
    pub(crate) identity: AtomicBool,
    /// The root directory or the mounts.
    pub(crate) names: AtomicBool,
}

impl Differences {
    pub(crate) fn all() -> Self {
        Self { umask: true.into(), identity: true.into(), names: true.into() }
    }
}

/// The thread that called.
pub(crate) struct Caller<'a> {
    thread: u32,
    differences: &'a Differences,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(thread: u32, differences: &'a Differences) -> Self {
        Self { thread, differences }
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// How it has a file open.
    pub(crate) fn description(&self, number: i32) -> io::Result<Description> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", self.thread))?;
        parse_description(&text).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Which files it has open, and under which numbers.
    pub(crate) fn files(&self) -> Vec<(i32, FileId)> {
        let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", self.thread)) else { return Vec::new() };
        let file = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, FileId::from(&stat(entry.path()).ok()?)))
        };
        entries.filter_map(file).collect()
    }

    /// Which files it has mapped there.
    pub(crate) fn mapped(&self, range: Range<u64>) -> Vec<FileId> {
        let text = fs::read(format!("/proc/{}/maps", self.thread)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().filter_map(|line| parse_mapping(line, &range)).collect()
    }

    /// A path in its memory.
    pub(crate) fn path(&self, address: u64) -> io::Result<CString> {
        let mut bytes = [0; PATH_BYTES];
        let mut count = 0;
        // One page at a time: the next one may not be there, and most paths end before it.
        while count < PATH_BYTES {
            let at = address + count as u64;
            let piece = (PAGE - at as usize % PAGE).min(PATH_BYTES - count);
            let got = self.read_bytes(at, &mut bytes[count..count + piece])?;
            if let Ok(path) = CStr::from_bytes_until_nul(&bytes[..count + got]) {
                return Ok(path.to_owned());
            }
            count += got;
        }
        Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
    }

    /// Bytes of its memory. Fewer if the rest is not there.
    pub(crate) fn read_bytes(&self, address: u64, into: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes into `into` only, and checks the other address.
        let count = unsafe { libc::process_vm_readv(self.thread as i32, &raw const local, 1, &raw const remote, 1, 0) };
        match checked(count as i64)? {
            0 if !into.is_empty() => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            count => Ok(count as usize),
        }
    }

    /// A value of its memory.
    ///
    /// # Safety
    /// Any bytes must be a valid value.
    pub(crate) unsafe fn read<T: Copy>(&self, address: u64) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: these are its bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast(), size_of::<T>()) };
        if self.read_bytes(address, bytes)? < size_of::<T>() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        // SAFETY: filled, and valid as the caller promises.
        Ok(unsafe { value.assume_init() })
    }

    /// Puts bytes into its memory.
    pub(crate) fn write_bytes(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
        // SAFETY: the kernel reads `bytes`, and checks the other address.
        let count =
            unsafe { libc::process_vm_writev(self.thread as i32, &raw const local, 1, &raw const remote, 1, 0) };
        match checked(count as i64)? {
            count if count as usize == bytes.len() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Puts a value into its memory. It must not have padding that matters.
    pub(crate) fn write<T: Copy>(&self, address: u64, value: &T) -> io::Result<()> {
        // SAFETY: these are its bytes; structures of the kernel have no uninitialised ones.
        self.write_bytes(address, unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>())
        })
    }

    /// Which file it has open under this number.
    pub(crate) fn file(&self, number: i32) -> io::Result<FileId> {
        Ok(FileId::from(&stat(format!("/proc/{}/fd/{number}", self.thread))?))
    }

    /// The directory that relative paths begin at, for what calls name a directory by.
    pub(crate) fn directory(&self, number: i32) -> io::Result<OwnedFd> {
        let path = match number {
            libc::AT_FDCWD => format!("/proc/{}/cwd", self.thread),
            number => format!("/proc/{}/fd/{number}", self.thread),
        };
        Ok(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// A path that begins at what a process calls its own, in words of this process.
    pub(crate) fn own_path(&self, path: &CStr) -> Option<CString> {
        let path = path.to_bytes();
        let after = |prefix: &str| path.strip_prefix(prefix.as_bytes());
        let (to, rest) = if let Some(rest) = after("/proc/self") {
            (format!("/proc/{}", self.thread), rest)
        } else if let Some(rest) = after("/proc/thread-self") {
            (format!("/proc/{}", self.thread), rest)
        } else if let Some(rest) = after("/dev/fd/") {
            (format!("/proc/{}/fd/", self.thread), rest)
        } else {
            let number = ["/dev/stdin", "/dev/stdout", "/dev/stderr"].iter().position(|name| path == name.as_bytes());
            match number {
                Some(number) => (format!("/proc/{}/fd/{number}", self.thread), &b""[..]),
                // Of some process, by its number.
                None => (String::new(), after("/proc/").map(|_| path)?),
            }
        };
        CString::new([to.as_bytes(), rest].concat()).ok()
    }

    /// Whether the same path means the same to it and to this process.
    pub(crate) fn has_our_names(&self) -> bool {
        if !self.differences.names.load(Ordering::SeqCst) {
            return true;
        }
        let is_same = |what: &str| -> io::Result<bool> {
            let ours = stat(format!("/proc/thread-self/{what}"))?;
            Ok(FileId::from(&ours) == FileId::from(&stat(format!("/proc/{}/{what}", self.thread))?))
        };
        is_same("root").unwrap_or(false) && is_same("ns/mnt").unwrap_or(false)
    }

    /// Makes this thread act as the caller, as far as they may differ, until what is returned is
    /// dropped. The thread must have a working directory and an umask of its own.
    pub(crate) fn act(&self) -> io::Result<Acting> {
        let is_privileged = geteuid().is_root() && self.differences.identity.load(Ordering::SeqCst);
        let mut acting = Acting { identity: None };
        if !is_privileged && !self.differences.umask.load(Ordering::SeqCst) {
            return Ok(acting);
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.thread))?;
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        if let Ok(mask) = u32::from_str_radix(of("Umask:").trim(), 8) {
            umask(Mode::from_raw_mode(mask));
        }
        if is_privileged {
            let last = |name: &str| of(name).split_whitespace().nth(3).and_then(|id| id.parse().ok());
            let groups = of("Groups:").split_whitespace().filter_map(|group| group.parse().ok()).collect();
            let (Some(user), Some(group)) = (last("Uid:"), last("Gid:")) else {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            };
            acting.identity = Some(Identity::current()?);
            Identity { user, group, groups }.take();
        }
        Ok(acting)
    }
}

/// How a program has a file open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) position: u64,
    pub(crate) flags: i32,
    /// It holds a lock on the file.
    pub(crate) is_locked: bool,
}

/// What `fdinfo` says.
fn parse_description(text: &str) -> Option<Description> {
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some(Description {
        position: of("pos:")?.parse().ok()?,
        flags: i32::from_str_radix(of("flags:")?, 8).ok()?,
        is_locked: of("lock:").is_some(),
    })
}

/// The file of a line of `maps`, if the mapping has bytes in this range.
fn parse_mapping(line: &str, range: &Range<u64>) -> Option<FileId> {
    let mut words = line.split_whitespace();
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let device = rustix::fs::makedev(hexadecimal(major)? as u32, hexadecimal(minor)? as u32);
    let inode = words.next()?.parse().ok()?;
    (inode != 0 && start < range.end && end > range.start).then_some(FileId { device, inode })
}

/// This thread acts as another user.
pub(crate) struct Acting {
    /// Who it was.
    identity: Option<Identity>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        if let Some(identity) = self.identity.take() {
            identity.take();
        }
    }
}

/// As whom a thread opens files.
struct Identity {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

impl Identity {
    fn current() -> io::Result<Self> {
        let groups = rustix::process::getgroups()?.into_iter().map(Gid::as_raw).collect();
        Ok(Self { user: geteuid().as_raw(), group: rustix::process::getegid().as_raw(), groups })
    }

    /// For this thread only: that is why it calls the system, and not the library.
    fn take(&self) {
        let groups: Vec<_> = self.groups.iter().map(|&group| Gid::from_raw(group)).collect();
        let _ = rustix::thread::set_thread_groups(&groups);
        // SAFETY: both take a number.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, self.group);
            libc::syscall(libc::SYS_setfsuid, Uid::from_raw(self.user).as_raw());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_found_by_what_they_cover() {
        let line = "7f00-7f10 rw-s 00000000 00:01 4242                       /memfd:outcrop-staged (deleted)";
        let id = Some(FileId { device: 1, inode: 4242 });
        for (range, expected) in
            [(0x7f00..0x7f01, id), (0..u64::MAX, id), (0x7f0f..0x8000, id), (0x7f10..0x8000, None), (0..0x7f00, None)]
        {
            assert_eq!(parse_mapping(line, &range), expected, "{range:?}");
        }
        assert_eq!(parse_mapping("7f00-7f10 rw-p 00000000 00:00 0 [heap]", &(0..u64::MAX)), None);
        assert_eq!(parse_mapping("nonsense", &(0..u64::MAX)), None);
    }

    #[test]
    fn a_description_has_position_flags_and_locks() {
        let text = "pos:\t42\nflags:\t02102001\nmnt_id:\t1\nino:\t7\n";
        let expected = Description {
            position: 42,
            flags: libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | 0o100_000,
            is_locked: false,
        };
        assert_eq!(parse_description(text), Some(expected));
        let locked = format!("{text}lock:\t1: FLOCK  ADVISORY  WRITE 1 00:01:7 0 EOF\n");
        assert!(parse_description(&locked).unwrap().is_locked);
        assert_eq!(parse_description("pos: x"), None);
    }

    #[test]
    fn what_a_process_calls_its_own_is_that_of_the_caller() {
        let differences = Differences::default();
        let caller = Caller::new(77, &differences);
        for (path, expected) in [
            (c"/proc/self/fd/3", Some(c"/proc/77/fd/3")),
            (c"/proc/thread-self/cwd/a", Some(c"/proc/77/cwd/a")),
            (c"/dev/fd/5", Some(c"/proc/77/fd/5")),
            (c"/dev/stdout", Some(c"/proc/77/fd/1")),
            (c"/proc/12/fd/1", Some(c"/proc/12/fd/1")),
            (c"/dev/stdoutside", None),
            (c"/var/x", None),
        ] {
            assert_eq!(caller.own_path(path).as_deref(), expected, "{path:?}");
        }
    }
}
