//! The functions of the C library that make one system call each.
//!
//! `open` and its kin take one more argument only if a file may be created. Both architectures pass
//! it in a register in either case, so it can be named here, and is not used unless it was given.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, O_CREAT, O_TMPFILE, O_TRUNC, O_WRONLY};

use crate::ask::call;

type Path = *const c_char;
type Out = *mut c_void;

const HERE: u64 = AT_FDCWD as u64;

/// What a function gives as an argument of a call.
trait Argument {
    fn word(self) -> u64;
}

macro_rules! words {
    ($($kind:ty),*) => { $(impl Argument for $kind {
        fn word(self) -> u64 {
            self as u64
        }
    })* };
}

words!(u64, i64, c_int, c_uint, usize, Path, Out, *const c_void);

/// Functions, each with the call that it makes and the arguments of it.
macro_rules! functions {
    ($($(#[$note:meta])* $name:ident($($given:ident: $kind:ty),*) -> $result:ty = $number:ident($($word:expr),*);)*) => { $(
        $(#[$note])*
        ///
        /// # Safety
        /// As for the function of this name in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($given: $kind),*) -> $result {
            let given = [$($word.word()),*];
            let mut arguments = [0; 6];
            arguments[..given.len()].copy_from_slice(&given);
            call(libc::$number as c_long, arguments) as $result
        }
    )* };
}

fn mode_of(flags: c_int, mode: c_uint) -> c_uint {
    if flags & (O_CREAT | O_TMPFILE) != 0 { mode } else { 0 }
}

const CREATED: c_int = O_CREAT | O_WRONLY | O_TRUNC;

functions! {
    /// Opens a file.
    open(path: Path, flags: c_int, mode: c_uint) -> c_int = SYS_openat(HERE, path, flags, mode_of(flags, mode));
    /// Opens a file.
    open64(path: Path, flags: c_int, mode: c_uint) -> c_int = SYS_openat(HERE, path, flags, mode_of(flags, mode));
    /// Opens a file.
    __open_2(path: Path, flags: c_int) -> c_int = SYS_openat(HERE, path, flags);
    /// Opens a file.
    __open64_2(path: Path, flags: c_int) -> c_int = SYS_openat(HERE, path, flags);
    /// Opens a file.
    openat(at: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int = SYS_openat(at, path, flags, mode_of(flags, mode));
    /// Opens a file.
    openat64(at: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int = SYS_openat(at, path, flags, mode_of(flags, mode));
    /// Opens a file.
    __openat_2(at: c_int, path: Path, flags: c_int) -> c_int = SYS_openat(at, path, flags);
    /// Opens a file.
    __openat64_2(at: c_int, path: Path, flags: c_int) -> c_int = SYS_openat(at, path, flags);
    /// Creates a file.
    creat(path: Path, mode: c_uint) -> c_int = SYS_openat(HERE, path, CREATED, mode);
    /// Creates a file.
    creat64(path: Path, mode: c_uint) -> c_int = SYS_openat(HERE, path, CREATED, mode);

    /// Tells about a file.
    stat(path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, 0_u64);
    /// Tells about a file.
    stat64(path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, 0_u64);
    /// Tells about a file.
    lstat(path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, AT_SYMLINK_NOFOLLOW);
    /// Tells about a file.
    lstat64(path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, AT_SYMLINK_NOFOLLOW);
    /// Tells about a file.
    fstat(file: c_int, into: Out) -> c_int = SYS_fstat(file, into);
    /// Tells about a file.
    fstat64(file: c_int, into: Out) -> c_int = SYS_fstat(file, into);
    /// Tells about a file.
    fstatat(at: c_int, path: Path, into: Out, flags: c_int) -> c_int = SYS_newfstatat(at, path, into, flags);
    /// Tells about a file.
    fstatat64(at: c_int, path: Path, into: Out, flags: c_int) -> c_int = SYS_newfstatat(at, path, into, flags);
    /// Tells about a file, for programs that were compiled long ago.
    __xstat(_version: c_int, path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, 0_u64);
    /// Tells about a file, for programs that were compiled long ago.
    __xstat64(_version: c_int, path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, 0_u64);
    /// Tells about a file, for programs that were compiled long ago.
    __lxstat(_version: c_int, path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, AT_SYMLINK_NOFOLLOW);
    /// Tells about a file, for programs that were compiled long ago.
    __lxstat64(_version: c_int, path: Path, into: Out) -> c_int = SYS_newfstatat(HERE, path, into, AT_SYMLINK_NOFOLLOW);
    /// Tells about a file, for programs that were compiled long ago.
    __fxstat(_version: c_int, file: c_int, into: Out) -> c_int = SYS_fstat(file, into);
    /// Tells about a file, for programs that were compiled long ago.
    __fxstat64(_version: c_int, file: c_int, into: Out) -> c_int = SYS_fstat(file, into);
    /// Tells about a file, for programs that were compiled long ago.
    __fxstatat(_version: c_int, at: c_int, path: Path, into: Out, flags: c_int) -> c_int = SYS_newfstatat(at, path, into, flags);
    /// Tells about a file, for programs that were compiled long ago.
    __fxstatat64(_version: c_int, at: c_int, path: Path, into: Out, flags: c_int) -> c_int = SYS_newfstatat(at, path, into, flags);
    /// Tells about a file.
    statx(at: c_int, path: Path, flags: c_int, mask: c_uint, into: Out) -> c_int = SYS_statx(at, path, flags, mask, into);
    /// Tells about a file system.
    fstatfs(file: c_int, into: Out) -> c_int = SYS_fstatfs(file, into);
    /// Tells about a file system.
    fstatfs64(file: c_int, into: Out) -> c_int = SYS_fstatfs(file, into);

    /// Changes a name.
    rename(old: Path, new: Path) -> c_int = SYS_renameat2(HERE, old, HERE, new, 0_u64);
    /// Changes a name.
    renameat(old_at: c_int, old: Path, new_at: c_int, new: Path) -> c_int = SYS_renameat2(old_at, old, new_at, new, 0_u64);
    /// Changes a name.
    renameat2(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_uint) -> c_int = SYS_renameat2(old_at, old, new_at, new, flags);
    /// Gives a file one more name.
    linkat(old_at: c_int, old: Path, new_at: c_int, new: Path, flags: c_int) -> c_int = SYS_linkat(old_at, old, new_at, new, flags);
    /// Reads a symbolic link.
    readlink(path: Path, into: Out, bytes: usize) -> isize = SYS_readlinkat(HERE, path, into, bytes);
    /// Reads a symbolic link.
    readlinkat(at: c_int, path: Path, into: Out, bytes: usize) -> isize = SYS_readlinkat(at, path, into, bytes);

    /// Cuts a file off.
    truncate(path: Path, bytes: i64) -> c_int = SYS_truncate(path, bytes);
    /// Cuts a file off.
    truncate64(path: Path, bytes: i64) -> c_int = SYS_truncate(path, bytes);
    /// Makes a file durable.
    fsync(file: c_int) -> c_int = SYS_fsync(file);
    /// Makes a file durable.
    fdatasync(file: c_int) -> c_int = SYS_fdatasync(file);
    /// Makes a file system durable.
    syncfs(file: c_int) -> c_int = SYS_syncfs(file);
    /// Makes a mapping durable.
    msync(address: Out, bytes: usize, flags: c_int) -> c_int = SYS_msync(address, bytes, flags);

    /// Sets the mode of a file.
    fchmod(file: c_int, mode: c_uint) -> c_int = SYS_fchmod(file, mode);
    /// Sets the owner of a file.
    fchown(file: c_int, user: c_uint, group: c_uint) -> c_int = SYS_fchown(file, user, group);
    /// Sets the owner of a file.
    fchownat(at: c_int, path: Path, user: c_uint, group: c_uint, flags: c_int) -> c_int = SYS_fchownat(at, path, user, group, flags);
    /// Sets the times of a file.
    utimensat(at: c_int, path: Path, times: *const c_void, flags: c_int) -> c_int = SYS_utimensat(at, path, times, flags);
    /// Sets an attribute.
    fsetxattr(file: c_int, name: Path, value: *const c_void, bytes: usize, flags: c_int) -> c_int = SYS_fsetxattr(file, name, value, bytes, flags);
    /// Gets an attribute.
    fgetxattr(file: c_int, name: Path, value: Out, bytes: usize) -> isize = SYS_fgetxattr(file, name, value, bytes);
    /// Removes an attribute.
    fremovexattr(file: c_int, name: Path) -> c_int = SYS_fremovexattr(file, name);
    /// Lists attributes.
    flistxattr(file: c_int, into: Out, bytes: usize) -> isize = SYS_flistxattr(file, into, bytes);
    /// Lists attributes.
    listxattr(path: Path, into: Out, bytes: usize) -> isize = SYS_listxattr(path, into, bytes);
    /// Lists attributes.
    llistxattr(path: Path, into: Out, bytes: usize) -> isize = SYS_llistxattr(path, into, bytes);
}

/// Makes everything durable.
///
/// # Safety
/// As for the function of this name in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sync() {
    call(libc::SYS_sync, [0; 6]);
}

#[cfg(target_arch = "x86_64")]
functions! {
    /// Sets the times of a file.
    utime(path: Path, times: *const c_void) -> c_int = SYS_utime(path, times);
    /// Sets the times of a file.
    utimes(path: Path, times: *const c_void) -> c_int = SYS_utimes(path, times);
    /// Sets the times of a file.
    futimesat(at: c_int, path: Path, times: *const c_void) -> c_int = SYS_futimesat(at, path, times);
}
