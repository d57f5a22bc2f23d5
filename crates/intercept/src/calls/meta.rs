//! What a program asks and says of a file besides its bytes: length, times, mode, owner,
//! attributes.

use std::{
    ffi::CStr,
    fs::File,
    io,
    mem::MaybeUninit,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    sync::Arc,
};

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_NOW, futimens};

use super::{
    answer::Answer,
    caller::Caller,
    names::{Found, Last, find, may},
};
use crate::stage::{MEMORY_NAME, Shared, Staged, UNDRAINED, checked, path_of};

/// The most that an attribute or a list of them can have.
const ATTRIBUTE_BYTES: u64 = 64 << 10;

/// The staged file that a path names.
pub(super) fn staged_at(
    stage: &Shared,
    caller: &Caller<'_>,
    directory: i32,
    path: &CStr,
    last: Last,
) -> Option<(Arc<Staged>, Found)> {
    if stage.is_empty() {
        return None;
    }
    let found = find(caller, directory, path, last).ok()?;
    Some((stage.find(found.id())?, found))
}

/// The staged file that a program has open.
pub(super) fn staged_as(stage: &Shared, caller: &Caller<'_>, number: i32) -> Option<Arc<Staged>> {
    if stage.is_empty() || number < 0 {
        return None;
    }
    stage.find(caller.file(number).ok()?)
}

/// `stat` of a staged file.
pub(super) fn stat(caller: &Caller<'_>, staged: &Staged, address: u64) -> Answer {
    match staged.stat() {
        Some(Ok(stat)) => Answer::done(caller.write(address, &for_kernel(&stat))),
        Some(Err(error)) => Answer::failed(&error),
        None => Answer::Go,
    }
}

fn for_kernel(from: &Stat) -> libc::stat {
    // SAFETY: zeros are valid.
    let mut stat: libc::stat = unsafe { MaybeUninit::zeroed().assume_init() };
    stat.st_dev = from.st_dev;
    stat.st_ino = from.st_ino;
    stat.st_nlink = from.st_nlink as _;
    stat.st_mode = from.st_mode;
    stat.st_uid = from.st_uid;
    stat.st_gid = from.st_gid;
    stat.st_rdev = from.st_rdev;
    stat.st_size = from.st_size;
    stat.st_blksize = from.st_blksize as _;
    stat.st_blocks = from.st_blocks;
    (stat.st_atime, stat.st_atime_nsec) = (from.st_atime, from.st_atime_nsec as i64);
    (stat.st_mtime, stat.st_mtime_nsec) = (from.st_mtime, from.st_mtime_nsec as i64);
    (stat.st_ctime, stat.st_ctime_nsec) = (from.st_ctime, from.st_ctime_nsec as i64);
    stat
}

/// `statx` of a staged file.
pub(super) fn statx(caller: &Caller<'_>, staged: &Staged, flags: i32, mask: u32, address: u64) -> Answer {
    let (Some(real), Some(Ok(stat))) = (staged.real(), staged.stat()) else { return Answer::Go };
    let mut extended = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags & (libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC) | libc::AT_EMPTY_PATH;
    // SAFETY: the kernel fills the structure, of which zeros are valid too.
    let mut extended = unsafe {
        if let Err(error) = checked(libc::statx(real.as_raw_fd(), c"".as_ptr(), flags, mask, extended.as_mut_ptr())) {
            return Answer::failed(&error);
        }
        extended.assume_init()
    };
    extended.stx_size = stat.st_size as u64;
    extended.stx_blocks = stat.st_blocks as u64;
    (extended.stx_mtime.tv_sec, extended.stx_mtime.tv_nsec) = (stat.st_mtime, stat.st_mtime_nsec as u32);
    (extended.stx_ctime.tv_sec, extended.stx_ctime.tv_nsec) = (stat.st_ctime, stat.st_ctime_nsec as u32);
    Answer::done(caller.write(address, &extended))
}

/// `fstatfs` of a staged file.
pub(super) fn statfs(caller: &Caller<'_>, staged: &Staged, address: u64) -> Answer {
    let Some(real) = staged.real() else { return Answer::Go };
    let mut about = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills the structure.
    let outcome = unsafe {
        checked(libc::fstatfs(real.as_raw_fd(), about.as_mut_ptr())).and_then(|_| {
            let about = about.assume_init();
            caller.write(address, &about)
        })
    };
    Answer::done(outcome)
}

/// Where a program has put the times that it sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Times {
    /// Two `timespec`, or nothing.
    Nanoseconds(u64),
    /// Two `timeval`, or nothing.
    #[cfg(target_arch = "x86_64")]
    Microseconds(u64),
    /// A `utimbuf`, or nothing.
    #[cfg(target_arch = "x86_64")]
    Seconds(u64),
}

impl Times {
    fn read(self, caller: &Caller<'_>) -> io::Result<Timestamps> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let of = |[first, second]: [(i64, i64); 2]| {
            let of = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
            Timestamps { last_access: of(first), last_modification: of(second) }
        };
        match self {
            Self::Nanoseconds(0) => Ok(Timestamps { last_access: now, last_modification: now }),
            Self::Nanoseconds(at) => {
                // SAFETY: any numbers are valid.
                let [a, b, c, d] = unsafe { caller.read::<[i64; 4]>(at)? };
                Ok(of([(a, b), (c, d)]))
            }
            #[cfg(target_arch = "x86_64")]
            Self::Microseconds(0) | Self::Seconds(0) => Ok(Timestamps { last_access: now, last_modification: now }),
            #[cfg(target_arch = "x86_64")]
            Self::Microseconds(at) => {
                // SAFETY: any numbers are valid.
                let [a, b, c, d] = unsafe { caller.read::<[i64; 4]>(at)? };
                let is_right = |micros: i64| (0..1_000_000).contains(&micros);
                if !is_right(b) || !is_right(d) {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                Ok(of([(a, b * 1000), (c, d * 1000)]))
            }
            #[cfg(target_arch = "x86_64")]
            Self::Seconds(at) => {
                // SAFETY: any numbers are valid.
                let [a, b] = unsafe { caller.read::<[i64; 2]>(at)? };
                Ok(of([(a, 0), (b, 0)]))
            }
        }
    }
}

/// Sets the times of a staged file: those of the real one, which draining would change, and those
/// that it gets then.
pub(super) fn set_times(caller: &Caller<'_>, staged: &Staged, times: Times) -> Answer {
    let set = |times: Timestamps| -> io::Result<Option<()>> {
        // In this order, because a drain that is under way looks at the memory last.
        staged.set_times(&times)?;
        staged.real().map(|real| Ok(futimens(&real, &times)?)).transpose()
    };
    match times.read(caller).and_then(set) {
        // It is staged no more.
        Ok(None) => Answer::Go,
        outcome => Answer::done(outcome.map(drop)),
    }
}

/// Cuts off or extends a staged file.
pub(super) fn truncate(staged: &Staged, found: &Found, bytes: u64) -> Answer {
    if bytes > i64::MAX as u64 {
        return Answer::Failed(libc::EINVAL);
    }
    match may(found, false, true) {
        Ok(()) => staged.set_bytes(bytes).map_or(Answer::Go, Answer::done),
        Err(error) => Answer::failed(&error),
    }
}

/// Does something with the real file in place of the one in memory.
pub(super) fn with_real(staged: &Staged, act: impl FnOnce(i32) -> i64) -> Answer {
    match staged.real() {
        Some(real) => match checked(act(real.as_raw_fd())) {
            Ok(value) => Answer::Value(value),
            Err(error) => Answer::failed(&error),
        },
        None => Answer::Go,
    }
}

/// `fsetxattr`.
pub(super) fn set_attribute(caller: &Caller<'_>, staged: &Staged, arguments: [u64; 6]) -> Answer {
    let [_, name, value, bytes, flags, _] = arguments;
    if bytes > ATTRIBUTE_BYTES {
        return Answer::Failed(libc::E2BIG);
    }
    let mut buffer = vec![0; bytes as usize];
    let read = caller.path(name).and_then(|name| {
        if !buffer.is_empty() && caller.read_bytes(value, &mut buffer)? < buffer.len() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        Ok(name)
    });
    match read {
        // SAFETY: the name ends with a zero byte, and the value has these bytes.
        Ok(name) => with_real(staged, |real| unsafe {
            libc::fsetxattr(real, name.as_ptr(), buffer.as_ptr().cast(), buffer.len(), flags as i32).into()
        }),
        Err(error) => Answer::failed(&error),
    }
}

/// `fremovexattr`.
pub(super) fn remove_attribute(caller: &Caller<'_>, staged: &Staged, name: u64) -> Answer {
    match caller.path(name) {
        // SAFETY: the name ends with a zero byte.
        Ok(name) => with_real(staged, |real| unsafe { libc::fremovexattr(real, name.as_ptr()).into() }),
        Err(error) => Answer::failed(&error),
    }
}

/// `fgetxattr`.
pub(super) fn attribute(caller: &Caller<'_>, staged: &Staged, arguments: [u64; 6]) -> Answer {
    let [_, name, into, bytes, ..] = arguments;
    let mut buffer = vec![0; bytes.min(ATTRIBUTE_BYTES) as usize];
    let name = match caller.path(name) {
        Ok(name) => name,
        Err(error) => return Answer::failed(&error),
    };
    // SAFETY: the name ends with a zero byte, and the buffer has room for these bytes.
    let answer = with_real(staged, |real| unsafe {
        libc::fgetxattr(real, name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) as i64
    });
    match answer {
        Answer::Value(count) if !buffer.is_empty() => match caller.write_bytes(into, &buffer[..count as usize]) {
            Ok(()) => Answer::Value(count),
            Err(error) => Answer::failed(&error),
        },
        answer => answer,
    }
}

/// `flistxattr`, `listxattr`, `llistxattr`: without the mark.
pub(super) fn attributes(caller: &Caller<'_>, staged: &Staged, into: u64, bytes: u64) -> Answer {
    let mut buffer = vec![0_u8; ATTRIBUTE_BYTES as usize];
    // SAFETY: the buffer has room for these bytes.
    let answer =
        with_real(staged, |real| unsafe { libc::flistxattr(real, buffer.as_mut_ptr().cast(), buffer.len()) as i64 });
    let Answer::Value(count) = answer else { return answer };
    let names = buffer[..count as usize].split_inclusive(|&byte| byte == 0);
    let shown: Vec<u8> =
        names.filter(|name| name.strip_suffix(b"\0") != Some(UNDRAINED.as_bytes())).flatten().copied().collect();
    if bytes == 0 {
        return Answer::Value(shown.len() as i64);
    }
    if shown.len() as u64 > bytes {
        return Answer::Failed(libc::ERANGE);
    }
    match caller.write_bytes(into, &shown) {
        Ok(()) => Answer::Value(shown.len() as i64),
        Err(error) => Answer::failed(&error),
    }
}

/// `readlink` of what /proc says of an open file: the path of the real file.
pub(super) fn read_link(stage: &Shared, caller: &Caller<'_>, path: &CStr, into: u64, bytes: u64) -> Answer {
    if stage.is_empty() || !path.to_bytes().starts_with(b"/proc/") && !path.to_bytes().starts_with(b"/dev/") {
        return Answer::Go;
    }
    let target =
        caller.own_path(path).and_then(|own| std::fs::read_link(std::ffi::OsStr::from_bytes(own.to_bytes())).ok());
    let name = format!("/memfd:{MEMORY_NAME}");
    if !target.is_some_and(|target| target.as_os_str().as_bytes().starts_with(name.as_bytes())) {
        return Answer::Go;
    }
    let Some((staged, _)) = staged_at(stage, caller, libc::AT_FDCWD, path, Last::Follow) else { return Answer::Go };
    let Some(real) = staged.real() else { return Answer::Go };
    let path = path_of(&real);
    let shown = path.as_os_str().as_bytes();
    let shown = &shown[..shown.len().min(bytes as usize)];
    match caller.write_bytes(into, shown) {
        Ok(()) => Answer::Value(shown.len() as i64),
        Err(error) => Answer::failed(&error),
    }
}

/// Gives a staged file another name, for a program that names it by a descriptor.
pub(super) fn link(stage: &Shared, caller: &Caller<'_>, arguments: [u64; 6]) -> Answer {
    let [from, path, to, name, flags, _] = arguments;
    let (from, to, flags) = (from as i32, to as i32, flags as i32);
    let named = || -> io::Result<Option<Arc<File>>> {
        let path = caller.path(path)?;
        let staged = match path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            true => staged_as(stage, caller, from),
            false if flags & libc::AT_SYMLINK_FOLLOW != 0 => {
                staged_at(stage, caller, from, &path, Last::Follow).map(|(staged, _)| staged)
            }
            false => None,
        };
        Ok(staged.and_then(|staged| staged.real()))
    };
    let Ok(Some(real)) = named() else { return Answer::Go };
    let linked = || -> io::Result<()> {
        let name = caller.path(name)?;
        let directory = if name.to_bytes().starts_with(b"/") { None } else { Some(caller.directory(to)?) };
        let real = format!("/proc/self/fd/{}\0", real.as_raw_fd());
        let directory = directory.as_ref().map_or(libc::AT_FDCWD, AsRawFd::as_raw_fd);
        // SAFETY: both paths end with a zero byte.
        checked(unsafe {
            libc::linkat(libc::AT_FDCWD, real.as_ptr().cast(), directory, name.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        })?;
        Ok(())
    };
    Answer::done(linked())
}
