//! Files in a real directory on real media: locks between processes; full, read-only and
//! inaccessible directories; links. `outcrop-crash` checks the promises of every file tree, on
//! these and on recorded ones.
//!
//! Tests that start processes, or are disturbed by them, run alone: a process that is being started
//! briefly has the files and locks of this one.

use std::{
    fs, io,
    os::unix::fs::{FileExt, PermissionsExt, symlink},
    path::Path,
    thread,
};

use outcrop_layers::files::{DiskFiles, Files, read_whole, write_whole};
use outcrop_testing::{
    Companion, alone, answer, child_directory, does_not_apply, listen, mount_ext4, mount_memory, names, pattern, skip,
    with_own_mounts,
};
use rustix::{
    mount::{MountFlags, mount_remount},
    process::Uid,
    thread::set_thread_uid,
};
use tempfile::tempdir;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// In a companion process: takes a lock, and keeps it until told otherwise.
#[test]
fn child_with_a_lock() {
    let Some(directory) = child_directory() else { return };
    let files = DiskFiles::open(&directory).unwrap();
    let mut lock = None;
    while let Some(words) = listen() {
        match &*words {
            "lock" => {
                lock = files.lock("lock").unwrap();
                answer(if lock.is_some() { "mine" } else { "taken" });
            }
            "unlock" => {
                drop(lock.take());
                answer("free");
            }
            other => panic!("what is {other}?"),
        }
    }
}

#[test]
fn a_lock_is_one_between_processes_too() {
    if alone("files::a_lock_is_one_between_processes_too") {
        return;
    }
    let given = tempdir().unwrap();
    let files = DiskFiles::open(given.path()).unwrap();
    let mut other = Companion::start("files::child_with_a_lock", given.path());
    assert_eq!(other.ask("lock"), "mine");
    assert!(files.lock("lock").unwrap().is_none());
    assert_eq!(other.ask("unlock"), "free");
    let lock = files.lock("lock").unwrap().unwrap();
    assert_eq!(other.ask("lock"), "taken");
    drop(lock);
    assert_eq!(other.ask("lock"), "mine");
    other.end();
    assert!(files.lock("lock").unwrap().is_some(), "it ends with its process");
}

#[test]
fn a_lock_ends_with_a_process_that_is_killed() {
    if alone("files::a_lock_ends_with_a_process_that_is_killed") {
        return;
    }
    let given = tempdir().unwrap();
    let files = DiskFiles::open(given.path()).unwrap();
    for _ in 0..5 {
        let mut other = Companion::start("files::child_with_a_lock", given.path());
        assert_eq!(other.ask("lock"), "mine");
        assert!(files.lock("lock").unwrap().is_none());
        other.kill();
        assert!(files.lock("lock").unwrap().is_some());
    }
}

/// Fills the file system in `path`, and checks that nothing is lost.
fn fill_up(path: &Path) {
    let files = DiskFiles::create(&path.join("deep/er")).unwrap();
    files.make_dir("dir").unwrap();
    write_whole(&files, "dir", "small", b"kept").unwrap();
    let full = |outcome: io::Result<()>| assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::StorageFull);
    full(files.create("dir/large", 64 * MIB).map(drop));
    assert_eq!(files.list("dir").unwrap(), ["small"], "nothing is left of it");
    full(files.create("dir/small", 64 * MIB).map(drop));
    assert!(files.list("dir").unwrap().is_empty(), "nor of what was there before");

    // Space that was allocated to a file stays its own, whatever others take.
    let room = files.create("dir/room", 256 * KIB).unwrap();
    write_whole(&files, "dir", "small", b"kept").unwrap();
    let mut ballast = Vec::new();
    for bytes in [256 * KIB, 4 * KIB] {
        while let Ok(file) = files.create(&format!("dir/ballast-{}", ballast.len()), bytes) {
            ballast.push(file);
        }
    }
    full(write_whole(&files, "dir", "small", &pattern(1, 64 * KIB)));
    assert_eq!(read_whole(&files, "dir/small", KIB).unwrap(), b"kept");
    assert_eq!(files.list("dir").unwrap().len(), 2 + ballast.len(), "no draft is left");
    let written = pattern(2, 256 * KIB);
    room.write_at(0, &written).unwrap();
    room.sync().unwrap();
    assert_eq!(read_whole(&files, "dir/room", MIB).unwrap(), written);
    full(room.write_at(256 * KIB, &pattern(3, 256 * KIB)));
    drop(ballast);
    for name in files.list("dir").unwrap().iter().filter(|name| name.starts_with("ballast")) {
        files.remove(&format!("dir/{name}")).unwrap();
    }
    write_whole(&files, "dir", "small", &written).unwrap();
    assert_eq!(read_whole(&files, "dir/small", MIB).unwrap(), written, "when there is room again, all is well");
}

#[test]
fn a_full_memory_file_system_is_an_error_and_nothing_is_lost() {
    if alone("files::a_full_memory_file_system_is_an_error_and_nothing_is_lost") {
        return;
    }
    with_own_mounts(|path| {
        mount_memory(path, c"size=4m");
        fill_up(path);
    });
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    if alone("files::a_full_disk_is_an_error_and_nothing_is_lost") {
        return;
    }
    with_own_mounts(|path| {
        let medium = path.join("medium");
        match mount_ext4(&path.join("image"), &medium, 16 * MIB) {
            Ok(()) => {
                fill_up(&medium);
            }
            Err(reason) => skip(reason),
        }
    });
}

#[test]
fn room_that_nothing_has_is_refused_and_leaves_no_file() {
    let given = tempdir().unwrap();
    let files = DiskFiles::open(given.path()).unwrap();
    for bytes in [1 << 62, u64::MAX] {
        assert!(files.create("file", bytes).is_err());
        assert!(names(given.path()).is_empty());
    }
    files.create("file", 0).unwrap();
    assert_eq!(names(given.path()), ["file"]);
}

#[test]
fn a_read_only_file_system_can_be_read() {
    if alone("files::a_read_only_file_system_can_be_read") {
        return;
    }
    with_own_mounts(|path| {
        mount_memory(path, c"size=1m");
        let files = DiskFiles::open(path).unwrap();
        files.make_dir("dir").unwrap();
        write_whole(&files, "dir", "file", b"bytes").unwrap();
        mount_remount(path, MountFlags::RDONLY, c"").unwrap();
        let outcomes = [
            files.make_dir("other"),
            files.create("file", 1).map(drop),
            files.rename("dir/file", "file"),
            files.remove("dir/file"),
            files.remove_dir("dir"),
            files.lock("lock").map(drop),
            write_whole(&files, "dir", "file", b"other"),
        ];
        for outcome in outcomes {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(read_whole(&files, "dir/file", KIB).unwrap(), b"bytes");
    });
}

#[test]
fn what_a_user_may_not_do_is_an_error_and_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let given = tempdir().unwrap();
    let allow = |name: &str, mode| {
        fs::set_permissions(given.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let files = DiskFiles::open(given.path()).unwrap();
    for dir in ["closed", "readable"] {
        files.make_dir(dir).unwrap();
        write_whole(&files, dir, "file", b"bytes").unwrap();
    }
    write_whole(&files, "readable", "secret", b"bytes").unwrap();
    drop(files.lock("readable/lock").unwrap());
    for (name, mode) in [("", 0o755), ("closed", 0o700), ("readable", 0o755), ("readable/secret", 0o600)] {
        allow(name, mode);
    }
    let as_another_user = || {
        // For this thread only.
        set_thread_uid(Uid::from_raw(1_000_000_000)).unwrap();
        let outcomes = [
            files.list("closed").map(drop),
            files.open("closed/file").map(drop),
            files.remove("closed/file"),
            files.sync_dir("closed"),
            files.open("readable/secret").map(drop),
            files.create("readable/file", 1).map(drop),
            files.create("readable/other", 1).map(drop),
            files.make_dir("readable/dir"),
            files.rename("readable/file", "readable/other"),
            files.remove("readable/file"),
            files.remove_dir("readable"),
            files.lock("readable/lock").map(drop),
            write_whole(&files, "readable", "file", b"other"),
        ];
        for (index, outcome) in outcomes.into_iter().enumerate() {
            assert_eq!(outcome.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied), "{index}");
        }
        assert_eq!(read_whole(&files, "readable/file", KIB).unwrap(), b"bytes");
        assert!(DiskFiles::create(&given.path().join("more")).is_err());
    };
    thread::scope(|scope| scope.spawn(as_another_user).join().unwrap());
    assert_eq!(names(&given.path().join("closed")), ["file"]);
    assert_eq!(names(&given.path().join("readable")), ["file", "lock", "secret"]);
}

#[test]
fn links_to_directories_are_followed_and_those_in_the_place_of_files_are_not() {
    let given = tempdir().unwrap();
    let (root, elsewhere) = (given.path().join("root"), given.path().join("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::create_dir(&root).unwrap();
    symlink(&root, given.path().join("link")).unwrap();
    let files = DiskFiles::create(&given.path().join("link")).unwrap();
    assert_eq!(files.location(), root.canonicalize().unwrap().display().to_string(), "the root can be a link");

    symlink(&elsewhere, root.join("dir")).unwrap();
    write_whole(&files, "dir", "file", b"bytes").unwrap();
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"bytes", "a directory on another medium");
    assert_eq!(files.remove_dir("dir").unwrap_err().kind(), io::ErrorKind::NotADirectory);
    let strict = DiskFiles::open(&given.path().join("link")).unwrap().without_links();
    let refused = [
        strict.list("dir").map(drop),
        strict.make_dir("dir"),
        strict.make_dir("dir/deeper"),
        strict.sync_dir("dir"),
        strict.open("dir/file").map(drop),
        strict.create("dir/file", 1).map(drop),
        strict.remove("dir/file"),
        strict.rename("dir/file", "file"),
    ];
    for outcome in refused {
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
    assert_eq!(fs::read(elsewhere.join("file")).unwrap(), b"bytes", "unless they must not be");

    let target = elsewhere.join("target");
    fs::write(&target, b"untouched").unwrap();
    for name in ["removed", "replaced", "renamed"] {
        symlink(&target, root.join(name)).unwrap();
    }
    symlink(given.path().join("nowhere"), root.join("dangling")).unwrap();
    for name in ["removed", "dangling"] {
        assert!(files.open(name).is_err() && files.create(name, 1).is_err() && files.lock(name).is_err(), "{name}");
    }
    assert!(!given.path().join("nowhere").exists());
    symlink("loop", root.join("loop")).unwrap();
    assert!(files.open("loop").is_err() && files.create("loop", 1).is_err());
    files.remove("removed").unwrap();
    files.create("new", 3).unwrap().write_at(0, b"new").unwrap();
    files.rename("new", "replaced").unwrap();
    files.rename("renamed", "new").unwrap();
    assert_eq!(read_whole(&files, "replaced", KIB).unwrap(), b"new");
    assert_eq!(names(&root), ["dangling", "dir", "loop", "new", "replaced"]);
    assert_eq!(fs::read(&target).unwrap(), b"untouched");
}

#[test]
fn a_root_is_a_directory_that_is_there_or_is_made() {
    let given = tempdir().unwrap();
    let missing = given.path().join("one/two");
    assert_eq!(DiskFiles::open(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    DiskFiles::create(&missing).unwrap();
    DiskFiles::open(&missing).unwrap();
    let file = given.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(DiskFiles::create(&file).is_err());
    assert_eq!(DiskFiles::open(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn names_that_are_not_text_are_passed_over() {
    let given = tempdir().unwrap();
    let strange: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xFF\xFE");
    fs::write(given.path().join(strange), b"").unwrap();
    fs::write(given.path().join("file"), b"").unwrap();
    assert_eq!(DiskFiles::open(given.path()).unwrap().list("").unwrap(), ["file"]);
}

/// Direct and buffered access reach the same file.
#[test]
fn a_direct_descriptor_leads_to_the_same_bytes() {
    let given = tempdir().unwrap();
    let files = DiskFiles::open(given.path()).unwrap();
    let file = files.create("file", 8 * KIB).unwrap();
    file.write_at(0, &pattern(1, 8 * KIB)).unwrap();
    let Some(direct) = file.direct() else {
        does_not_apply("this file system cannot bypass the page cache");
        return;
    };
    let direct = fs::File::from(direct.try_clone().unwrap());
    // Memory at an address that is aligned for direct transfers.
    let mut memory = vec![0_u8; 12 * KIB as usize];
    let shift = memory.as_ptr().align_offset(4 * KIB as usize);
    let page = &mut memory[shift..][..4 * KIB as usize];
    page.copy_from_slice(&pattern(2, 4 * KIB));
    direct.write_all_at(page, 4 * KIB).unwrap();
    let wanted = [pattern(1, 8 * KIB)[..4 * KIB as usize].to_vec(), pattern(2, 4 * KIB)].concat();
    assert_eq!(read_whole(&files, "file", MIB).unwrap(), wanted);
    let opened = files.open("file").unwrap();
    let opened = fs::File::from(opened.direct().unwrap().try_clone().unwrap());
    opened.read_exact_at(page, 0).unwrap();
    assert_eq!(page, &wanted[..4 * KIB as usize]);
    assert!(opened.write_all_at(page, 0).is_err(), "a file that was opened is for reading");
}

#[test]
fn what_is_not_a_plain_file_is_refused_and_not_waited_for() {
    let given = tempdir().unwrap();
    let files = DiskFiles::create(given.path()).unwrap();
    let pipe = given.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(given.path().join("dir")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(given.path().join("socket")).unwrap());
    for name in ["pipe", "dir", "socket"] {
        assert!(files.open(name).is_err() && files.lock(name).is_err(), "{name}");
    }
    // What is no file of Outcrop is no failure of the medium.
    for name in ["pipe", "socket"] {
        assert_eq!(files.open(name).err().unwrap().kind(), std::io::ErrorKind::InvalidData, "{name}");
    }
    assert!(files.create("dir", 1).is_err());
}
