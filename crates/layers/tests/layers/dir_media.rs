//! Segment files on real media: full, read-only, not permitted, truncated, deleted, never written;
//! and kernels that refuse io_uring or registered memory.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use outcrop_layers::{
    Dir, DirOptions, Error, Extents, Feed, Host, Layer, Memory, Method, Result as LayerResult, Transfer, contract,
};
use outcrop_testing::{
    child, child_directory, expect_success, mount_ext4, mount_memory, names, pattern, skip, with_own_mounts,
};
use rustix::mount::{MountFlags, mount_remount};
use tempfile::tempdir;

use crate::common::{List, UNIT, run_read, run_write};

const MIB: u64 = 1 << 20;

fn small_segments(method: Method) -> DirOptions {
    DirOptions { method: Some(method), segment_bytes: MIB, ..DirOptions::default() }
}

/// Fills the file system in `path` through a layer, and checks that nothing is lost.
fn fill_up(path: &Path, method: Method) {
    let ballast = path.join("ballast");
    fs::write(&ballast, vec![1; 2 * MIB as usize]).unwrap();
    let dir = Dir::open(path, 64 * MIB, small_segments(method)).unwrap();
    let host = Host::new(MIB).unwrap();
    let mut written = 0;
    let error = loop {
        assert!(written < 64, "the file system never fills up");
        match run_write(&dir, &host, written * MIB, &pattern(written, MIB)) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full { .. }), "{error}");
    assert!(error.to_string().contains("free some"), "{error}");
    assert!(written > 0);
    assert!(matches!(dir.write(written * MIB, &pattern(1, UNIT)), Err(Error::Full { .. })));
    assert_eq!(names(dir.path()).len() as u64, written + 1, "no half-allocated file is left");
    for index in 0..written {
        assert_eq!(run_read(&dir, &host, index * MIB, MIB).unwrap(), pattern(index, MIB), "what was written stays");
    }
    assert!(run_read(&dir, &host, written * MIB, UNIT).is_err(), "what was not is not there");
    fs::remove_file(&ballast).unwrap();
    run_write(&dir, &host, written * MIB, &pattern(written, MIB)).unwrap();
    assert_eq!(run_read(&dir, &host, written * MIB, MIB).unwrap(), pattern(written, MIB));
    drop(dir);
    assert!(!names(path).iter().any(|name| name.starts_with("outcrop")));
}

#[test]
fn a_full_memory_file_system_is_an_error_and_nothing_is_lost() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=8m");
        fill_up(path, Method::Uring);
        fill_up(path, Method::Blocking);
    });
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    with_own_mounts(|path| {
        let medium = path.join("medium");
        match mount_ext4(&path.join("image"), &medium, 16 * MIB) {
            Ok(()) => {
                fill_up(&medium, Method::Uring);
                fill_up(&medium, Method::Blocking);
            }
            Err(reason) => skip(reason),
        }
    });
}

#[test]
fn a_read_only_file_system_is_refused_with_a_remedy() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=1m");
        mount_remount(path, MountFlags::RDONLY, c"").unwrap();
        for path in [path, &path.join("deeper/still")] {
            let error = Dir::open(path, MIB, DirOptions::default()).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Directory { .. }), "{text}");
            assert!(text.contains("choose one on a file system that is mounted for writing"), "{text}");
        }
    });
}

#[test]
fn what_one_method_wrote_the_other_reads() {
    let given = tempdir().unwrap();
    let options =
        DirOptions { segment_bytes: 7 * UNIT, request_bytes: Some(3 * UNIT), ..small_segments(Method::Uring) };
    let dir = Dir::open(given.path(), MIB, options).unwrap();
    let host = Host::new(MIB).unwrap();
    // With io_uring, `run` goes through the ring and `read` and `write` through blocking calls.
    run_write(&dir, &host, 2 * UNIT, &pattern(1, 40 * UNIT)).unwrap();
    let mut found = vec![0; 40 * UNIT as usize];
    dir.read(2 * UNIT, &mut found).unwrap();
    assert_eq!(found, pattern(1, 40 * UNIT));
    dir.write(5 * UNIT, &pattern(2, 30 * UNIT)).unwrap();
    assert_eq!(run_read(&dir, &host, 5 * UNIT, 30 * UNIT).unwrap(), pattern(2, 30 * UNIT));
}

#[test]
fn what_was_never_written_cannot_be_read() {
    let given = tempdir().unwrap();
    for method in [Method::Uring, Method::Blocking] {
        let dir = Dir::open(given.path(), 4 * MIB, small_segments(method)).unwrap();
        let host = Host::new(MIB).unwrap();
        let is_refused = |at, bytes| {
            let by_read = dir.read(at, &mut vec![0; bytes as usize]);
            let by_run = run_read(&dir, &host, at, bytes).map(drop);
            [by_read, by_run].iter().all(|outcome| matches!(outcome, Err(Error::Broken { .. })))
        };
        assert!(is_refused(0, UNIT), "no file");
        dir.write(64 * UNIT, &pattern(1, 70 * UNIT)).unwrap();
        for (at, units) in [(0, 1), (63, 1), (63, 2), (134, 1), (133, 2), (0, 256), (300, 1)] {
            assert!(is_refused(at * UNIT, units * UNIT), "{units} units at {at}");
        }
        assert_eq!(run_read(&dir, &host, 64 * UNIT, 70 * UNIT).unwrap(), pattern(1, 70 * UNIT));
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error() {
    let given = tempdir().unwrap();
    for method in [Method::Uring, Method::Blocking] {
        let dir = Dir::open(given.path(), 4 * MIB, small_segments(method)).unwrap();
        let host = Host::new(MIB).unwrap();
        dir.write(0, &pattern(1, MIB)).unwrap();
        dir.write(MIB, &pattern(2, MIB)).unwrap();
        for bytes_left in [MIB / 2, MIB / 4 + 100, 0] {
            let file = fs::OpenOptions::new().write(true).open(dir.path().join("segment-00000")).unwrap();
            file.set_len(bytes_left).unwrap();
            let by_run = run_read(&dir, &host, 0, MIB);
            assert!(matches!(by_run, Err(Error::Broken { .. })), "{bytes_left} left: {by_run:?}");
            assert!(dir.read(0, &mut vec![0; MIB as usize]).is_err(), "{bytes_left} left");
        }
        assert_eq!(run_read(&dir, &host, MIB, MIB).unwrap(), pattern(2, MIB), "the other segment is whole");
        run_write(&dir, &host, 0, &pattern(3, MIB)).unwrap();
        assert_eq!(run_read(&dir, &host, 0, MIB).unwrap(), pattern(3, MIB), "and it can be written again");
    }
}

#[test]
fn a_file_that_was_deleted_underneath_still_holds_its_bytes() {
    let given = tempdir().unwrap();
    let dir = Dir::open(given.path(), 4 * MIB, small_segments(Method::Uring)).unwrap();
    let host = Host::new(MIB).unwrap();
    run_write(&dir, &host, 0, &pattern(1, MIB)).unwrap();
    fs::remove_file(dir.path().join("segment-00000")).unwrap();
    assert_eq!(run_read(&dir, &host, 0, MIB).unwrap(), pattern(1, MIB));
    fs::remove_dir_all(dir.path()).unwrap();
    let error = run_write(&dir, &host, MIB, &pattern(2, MIB)).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "no directory to make a file in: {error}");
    assert_eq!(run_read(&dir, &host, 0, MIB).unwrap(), pattern(1, MIB));
    drop(dir);
    assert!(names(given.path()).is_empty());
}

/// A feed that panics after some calls.
struct Panicking {
    list: List,
    calls_left: u32,
}

impl Panicking {
    fn call(&mut self) {
        assert!(self.calls_left > 0, "on purpose");
        self.calls_left -= 1;
    }
}

impl Feed for Panicking {
    fn next(&mut self) -> Option<Transfer> {
        self.call();
        self.list.next()
    }

    fn done(&mut self, transfer: Transfer, result: LayerResult<()>) {
        self.call();
        self.list.done(transfer, result);
    }
}

#[test]
fn a_feed_that_panics_gets_its_memory_back_and_harms_nobody() {
    let given = tempdir().unwrap();
    let dir = Dir::open(given.path(), 32 * MIB, DirOptions { depth: 6, ..small_segments(Method::Uring) }).unwrap();
    let host = Host::new(16 * MIB).unwrap();
    for calls_left in 0..12 {
        let transfer = |index: u64| {
            let slot = host.slot(index * 2 * MIB, 2 * MIB).unwrap();
            let extents = Extents::from_iter(std::iter::once(index * 2 * MIB..(index + 1) * 2 * MIB));
            Transfer { tag: index, extents, memory: Memory::Write(slot.seal()) }
        };
        let list = List { waiting: (0..8).map(transfer).collect(), ..List::default() };
        let mut feed = Panicking { list, calls_left };
        assert!(catch_unwind(AssertUnwindSafe(|| dir.run(&mut feed))).is_err(), "it panics after {calls_left} calls");
        drop(feed);
        assert!(host.slot(0, 16 * MIB).is_ok(), "all memory is free again");
        run_write(&dir, &host, 0, &pattern(u64::from(calls_left), MIB)).unwrap();
        assert_eq!(run_read(&dir, &host, 0, MIB).unwrap(), pattern(u64::from(calls_left), MIB));
    }
}

#[test]
fn memory_is_registered_as_it_is_used_and_given_up_with_its_owner() {
    let given = tempdir().unwrap();
    let dir = Dir::open(given.path(), 32 * MIB, small_segments(Method::Uring)).unwrap();
    let host = Host::new(64 * MIB).unwrap();
    assert_eq!(dir.registered_bytes(), 0);
    run_write(&dir, &host, 0, &pattern(1, 3 * MIB)).unwrap();
    let first = dir.registered_bytes();
    if first == 0 {
        skip("this user cannot register memory with the kernel");
        return;
    }
    assert_eq!(first, 4 * MIB, "whole huge pages, and no more");
    drop(host);
    let other = Host::new(MIB).unwrap();
    assert_eq!(run_read(&dir, &other, 0, MIB).unwrap(), pattern(1, 3 * MIB)[..MIB as usize]);
    assert_eq!(dir.registered_bytes(), MIB, "memory that nobody uses any more is given up");
    let plain = DirOptions { register: false, ..small_segments(Method::Uring) };
    let plain = Dir::open(given.path(), 32 * MIB, plain).unwrap();
    run_write(&plain, &other, 0, &pattern(1, MIB)).unwrap();
    assert_eq!(plain.registered_bytes(), 0);
}

/// In a child process: an ordinary user who may lock little memory.
#[test]
fn child_without_privilege() {
    let Some(directory) = child_directory() else { return };
    // Locked memory is counted per user: use one that nobody else has.
    let user = 1_000_000_000 + std::process::id();
    // Enough for the rings themselves and one piece of host memory.
    let little = libc::rlimit { rlim_cur: 3 * MIB, rlim_max: 3 * MIB };
    // SAFETY: both calls only take numbers and a valid structure.
    let is_done = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &little) == 0 && libc::setuid(user) == 0 };
    assert!(is_done, "this test is for root");
    let error = Dir::open(&directory.join("closed"), MIB, DirOptions::default()).unwrap_err();
    assert!(error.to_string().contains("choose one in which this user may make files"), "{error}");
    let open = || Dir::open(&directory.join("open"), contract::CAPACITY_MIN, DirOptions::default()).unwrap();
    let (dir, host) = (open(), Host::new(4 * MIB).unwrap());
    run_write(&dir, &host, 0, &pattern(1, 4 * MIB)).unwrap();
    assert_eq!((dir.method(), dir.registered_bytes()), (Method::Uring, 2 * MIB), "as far as it may");
    assert_eq!(run_read(&dir, &host, 0, 4 * MIB).unwrap(), pattern(1, 4 * MIB));
    assert_eq!((dir.method(), dir.registered_bytes()), (Method::Uring, 0), "and none at all once it was refused");
    contract::check(&|| std::sync::Arc::new(open()));
}

#[test]
fn a_user_without_privilege_goes_without_registered_memory() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let given = tempdir().unwrap();
    let allow = |path: &Path, mode| {
        fs::create_dir_all(path).unwrap();
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    allow(given.path(), 0o755);
    allow(&given.path().join("open"), 0o777);
    allow(&given.path().join("closed"), 0o755);
    expect_success(child("dir_media::child_without_privilege", given.path()));
    assert!(names(&given.path().join("open")).is_empty());
}

/// In a child process: a kernel that refuses io_uring, as in many containers.
#[test]
fn child_without_io_uring() {
    let Some(directory) = child_directory() else { return };
    forbid_io_uring();
    let asked = DirOptions { method: Some(Method::Uring), ..DirOptions::default() };
    let error = Dir::open(&directory, MIB, asked).unwrap_err();
    assert!(error.to_string().contains("OUTCROP_IO=blocking"), "{error}");
    contract::check(&|| {
        let dir = Dir::open(&directory, contract::CAPACITY_MIN, DirOptions::default()).unwrap();
        assert_eq!(dir.method(), Method::Blocking);
        std::sync::Arc::new(dir)
    });
}

#[test]
fn a_kernel_without_io_uring_is_no_obstacle() {
    let given = tempdir().unwrap();
    expect_success(child("dir_media::child_without_io_uring", given.path()));
    assert!(names(given.path()).is_empty());
}

/// Makes io_uring_setup fail with EPERM for this thread and those that it starts.
fn forbid_io_uring() {
    let step =
        |code: u32, jump_true, jump_false, k| libc::sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k };
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid while the kernel copies it, and only concerns a child that ends
    // after this test.
    let is_done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(is_done, "a filter of system calls: {}", std::io::Error::last_os_error());
}
