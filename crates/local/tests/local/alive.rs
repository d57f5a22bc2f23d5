//! Lock files that show which processes are alive: one holder at a time, among threads and
//! processes; released by death; not kept by forked children.

use std::{
    fs,
    io::ErrorKind,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use outcrop_local::{Alive, Meeting, Scratch, Watch, is_alive};
use outcrop_testing::{
    Companion, alone, answer, child, child_directory, expect_success, in_fork, listen, mount_memory, names, skip,
    until, with_own_mounts,
};
use rustix::{
    fs::{FileType, Mode, mknodat},
    mount::{MountFlags, mount_remount},
};
use tempfile::{TempDir, tempdir};

fn place() -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("lock");
    (dir, path)
}

fn hold(path: &Path) -> Alive {
    Alive::hold(path).unwrap().expect("nobody holds it")
}

#[test]
fn a_lock_file_is_held_once_and_looking_does_not_look_like_holding() {
    let (_dir, path) = place();
    assert!(!is_alive(&path).unwrap() && Watch::open(&path).unwrap().is_none(), "there is no file");
    let held = hold(&path);
    assert!(Alive::hold(&path).unwrap().is_none(), "not by another part of this process either");
    let watches: Vec<_> = (0..3).map(|_| Watch::open(&path).unwrap().unwrap()).collect();
    assert!(watches.iter().all(|watch| watch.is_alive().unwrap()));
    drop(held);
    assert!(path.exists(), "the file stays");
    assert!(!is_alive(&path).unwrap() && watches.iter().all(|watch| !watch.is_alive().unwrap()));
    let _again = hold(&path);
    assert!(watches.iter().all(|watch| watch.is_alive().unwrap()), "looking did not keep it from being held");
}

#[test]
fn looking_at_it_all_the_time_never_keeps_anybody_from_holding_it() {
    let (_dir, path) = place();
    drop(hold(&path));
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(SeqCst) {
                    is_alive(&path).unwrap();
                }
            });
        }
        (0..500).for_each(|_| drop(hold(&path)));
        is_done.store(true, SeqCst);
    });
}

#[test]
fn who_waits_for_the_end_of_a_holder_sleeps_until_then_and_keeps_nobody_out() {
    let (_dir, path) = place();
    for _ in 0..50 {
        let held = hold(&path);
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                let (watch, ended) = (Watch::open(&path).unwrap().unwrap(), &ended);
                scope.spawn(move || {
                    watch.wait().unwrap();
                    assert!(ended.load(SeqCst), "not before");
                });
            }
            thread::yield_now();
            ended.store(true, SeqCst);
            drop(held);
            // Those that have waited hold the lock for a moment.
            drop(hold(&path));
        });
    }
}

#[test]
fn who_passes_through_is_not_taken_for_a_holder() {
    let (_dir, path) = place();
    drop(hold(&path));
    let passing = fs::File::open(&path).unwrap();
    let lock = |kind: libc::c_int| {
        let all = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
        // SAFETY: the file is open, and the command takes a pointer to a valid `flock`.
        assert_eq!(unsafe { libc::fcntl(passing.as_raw_fd(), libc::F_OFD_SETLK, &all) }, 0);
    };
    lock(libc::F_RDLCK);
    assert!(!is_alive(&path).unwrap());
    thread::scope(|scope| {
        let holding = scope.spawn(|| Alive::hold(&path).unwrap().is_some());
        thread::sleep(Duration::from_millis(20));
        lock(libc::F_UNLCK);
        assert!(holding.join().unwrap(), "it waits a moment");
    });
}

/// In a child process: takes the lock file, reports that, forks if told to, and waits.
#[test]
fn child_holds() {
    let Some(path) = child_directory() else { return };
    let held = Alive::hold(&path).unwrap();
    answer(if held.is_some() { "held" } else { "refused" });
    while let Some(line) = listen() {
        assert_eq!(line, "fork");
        // SAFETY: the new process only sleeps until it is killed.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            },
            child => answer(child),
        }
    }
}

#[test]
fn of_many_processes_that_start_at_once_one_holds_it() {
    let (_dir, path) = place();
    let mut all: Vec<_> = (0..20).map(|_| Companion::start("alive::child_holds", &path)).collect();
    let answers: Vec<_> = all.iter_mut().map(Companion::hear).collect();
    assert_eq!(answers.iter().filter(|answer| *answer == "held").count(), 1, "{answers:?}");
    assert!(is_alive(&path).unwrap());
    all.into_iter().for_each(Companion::end);
    assert!(!is_alive(&path).unwrap());
}

#[test]
fn a_killed_holder_is_dead() {
    let (_dir, path) = place();
    let mut holder = Companion::start("alive::child_holds", &path);
    holder.expect("held");
    let mut second = Companion::start("alive::child_holds", &path);
    second.expect("refused");
    assert!(is_alive(&path).unwrap());
    let watch = Watch::open(&path).unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| watch.wait().unwrap());
        holder.kill();
    });
    assert!(!is_alive(&path).unwrap());
    drop(hold(&path));
}

#[test]
fn a_forked_child_does_not_stand_in_for_a_dead_holder() {
    let (_dir, path) = place();
    let mut holder = Companion::start("alive::child_holds", &path);
    holder.expect("held");
    let forked: i32 = holder.ask("fork").parse().unwrap();
    assert!(is_alive(&path).unwrap());
    holder.kill();
    // A forked child closes it only once it runs for the first time.
    until("the forked child has closed it", || !is_alive(&path).unwrap());
    let held = Alive::hold(&path).unwrap();
    // SAFETY: this process was created for this test alone, and sleeps.
    unsafe { libc::kill(forked, libc::SIGKILL) };
    assert!(held.is_some());
}

#[test]
fn a_forked_child_gives_nothing_up_and_closes_nothing_of_its_own() {
    if alone("alive::a_forked_child_gives_nothing_up_and_closes_nothing_of_its_own") {
        return;
    }
    let (dir, path) = place();
    let held = hold(&path);
    let (mut held, mut scratch) = (Some(held), Some(Scratch::open(dir.path(), |_| true).unwrap()));
    let own = scratch.as_ref().unwrap().path().to_owned();
    let status = in_fork(|| {
        assert!(!held.as_ref().unwrap().is_ours());
        // A file that the child opens may get the number that the lock file had.
        let files: Vec<_> = (0..20).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        drop((held.take(), scratch.take()));
        assert!(files.iter().all(|file| file.metadata().is_ok()), "a file of the child was closed");
        assert!(is_alive(&path).unwrap(), "the parent lives");
        assert!(Alive::hold(&path).unwrap().is_none(), "and the child is not it");
        let _mine = hold(&dir.path().join("other"));
        own.exists()
    });
    assert!(status.success(), "{status}");
    assert!(is_alive(&path).unwrap() && own.exists());
    drop((held, scratch));
    assert!(!is_alive(&path).unwrap() && !own.exists());
}

/// In a child process: locks are taken and released while processes are forked, which must keep
/// none of them.
#[test]
fn locks_come_and_go_while_children_are_forked() {
    if alone("alive::locks_come_and_go_while_children_are_forked") {
        return;
    }
    let dir = tempdir().unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..2 {
            let (path, is_done) = (dir.path().join(format!("lock-{number}")), &is_done);
            scope.spawn(move || {
                while !is_done.load(SeqCst) {
                    drop(hold(&path));
                    assert!(!is_alive(&path).unwrap(), "a forked child keeps it");
                }
            });
        }
        let mut forked = Vec::new();
        for _ in 0..100 {
            // SAFETY: the new process only sleeps until it is killed.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                },
                child => forked.push(child),
            }
        }
        is_done.store(true, SeqCst);
        let files = |child: &i32| fs::read_dir(format!("/proc/{child}/fd")).unwrap();
        let is_kept = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(dir.path()));
        let keeps_some = |child: &i32| files(child).any(|entry| is_kept(entry.unwrap()));
        // A child closes them when it runs for the first time.
        let is_closed =
            catch_unwind(AssertUnwindSafe(|| until("children close it", || !forked.iter().any(keeps_some))));
        for child in forked {
            // SAFETY: these are the processes that were created here, and none has been waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
        assert!(is_closed.is_ok(), "a forked child has it open");
    });
}

#[test]
fn a_lock_file_that_is_removed_costs_nobody_anything_and_fools_nobody() {
    let (_dir, path) = place();
    let first = hold(&path);
    fs::remove_file(&path).unwrap();
    assert!(!is_alive(&path).unwrap(), "who looks for a name finds none");
    let second = hold(&path);
    drop(first);
    assert!(is_alive(&path).unwrap(), "the second's is another file");
    drop(second);

    // The file is removed and created all the time: at no moment do two threads hold the file with
    // this name.
    let (inside, is_done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let holders: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut count = 0;
                    while count < 200 {
                        let Some(held) = Alive::hold(&path).unwrap() else { continue };
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "somebody else is inside");
                        count += 1;
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        // Each holder removes it, as the owner of a ticket does.
                        fs::remove_file(&path).unwrap();
                        drop(held);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_done.load(SeqCst) {
                is_alive(&path).unwrap();
            }
        });
        let ended: Vec<_> = holders.into_iter().map(|holder| holder.join()).collect();
        is_done.store(true, SeqCst);
        assert!(ended.iter().all(|ended| ended.is_ok()));
    });
}

#[test]
fn what_is_not_a_plain_file_is_refused_and_not_waited_for() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("directory")).unwrap();
    symlink("elsewhere", at("link")).unwrap();
    mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for (name, kind) in
        [("directory", ErrorKind::IsADirectory), ("link", ErrorKind::InvalidData), ("pipe", ErrorKind::InvalidData)]
    {
        assert_eq!(Alive::hold(&at(name)).unwrap_err().kind(), kind, "{name}");
        assert_eq!(is_alive(&at(name)).unwrap_err().kind(), kind, "{name}");
    }
    assert!(!at("elsewhere").exists());
    assert_eq!(Alive::hold(&at("missing/lock")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!is_alive(&at("missing/lock")).unwrap());
}

#[test]
fn a_read_only_file_system_is_an_error_and_can_be_looked_at() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=64k");
        drop(hold(&path.join("old")));
        mount_remount(path, MountFlags::RDONLY, c"").unwrap();
        for name in ["old", "new"] {
            let error = Alive::hold(&path.join(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
        }
        assert!(!is_alive(&path.join("old")).unwrap());
    });
}

fn become_user(user: u32) {
    // SAFETY: the calls only take numbers.
    let is_done = unsafe { libc::setgid(user) == 0 && libc::setuid(user) == 0 };
    assert!(is_done, "only root can become another user");
}

/// In a child process: another user, who finds the lock files of the first.
#[test]
fn child_is_another_user() {
    let Some(dir) = child_directory() else { return };
    become_user(1_000_001);
    let at = |name: &str| dir.join(name);
    assert!(is_alive(&at("readable")).unwrap(), "to look, it only has to be readable");
    assert_eq!(is_alive(&at("private")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(Alive::hold(&at("readable")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    // `fs.protected_regular` refuses a file that everybody may write to only with O_CREAT.
    assert!(Alive::hold(&at("writable")).unwrap().is_none(), "held by the other user");
    drop(hold(&at("free")));
    let mine = hold(&at("mine"));
    assert_eq!(fs::metadata(at("mine")).unwrap().uid(), 1_000_001);
    drop(mine);
}

#[test]
fn users_see_each_other_as_far_as_they_may() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let protected = fs::read_to_string("/proc/sys/fs/protected_regular").unwrap_or_default();
    println!("fs.protected_regular is {}", protected.trim());
    let dir = tempdir().unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let mut held = Vec::new();
    for (name, mode) in [("readable", 0o644), ("private", 0o600), ("writable", 0o666), ("free", 0o666)] {
        held.push((name, hold(&dir.path().join(name))));
        fs::set_permissions(dir.path().join(name), PermissionsExt::from_mode(mode)).unwrap();
        // They belong to a third user: files of the directory's owner are not protected.
        chown(dir.path().join(name), Some(1_000_002), None).unwrap();
    }
    held.retain(|(name, _)| *name != "free");
    expect_success(child("alive::child_is_another_user", dir.path()));
    assert_eq!(names(dir.path()), ["free", "mine", "private", "readable", "writable"]);
}

/// In a child process: enters the short section many times.
#[test]
fn child_is_alone_many_times() {
    let Some(dir) = child_directory() else { return };
    be_alone(&dir);
}

fn be_alone(dir: &Path) {
    let meeting = Meeting::open(dir).unwrap();
    let inside = dir.join("inside");
    for _ in 0..100 {
        let alone = meeting.alone(|| {
            fs::File::create_new(&inside).expect("nobody else is inside");
            thread::yield_now();
            fs::remove_file(&inside).unwrap();
            Ok(())
        });
        alone.unwrap();
    }
}

#[test]
fn one_process_or_thread_at_a_time_is_alone_in_a_meeting_place() {
    let dir = tempdir().unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| expect_success(child("alive::child_is_alone_many_times", dir.path())));
            scope.spawn(|| be_alone(dir.path()));
        }
    });
    assert!(names(dir.path()).is_empty(), "it leaves nothing");
}

/// In a child process: dies in the short section, with a forked child that lives on.
#[test]
fn child_dies_alone() {
    let Some(dir) = child_directory() else { return };
    let meeting = Meeting::open(&dir).unwrap();
    let _ = meeting.alone(|| {
        // SAFETY: the new process only sleeps until it is killed.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            },
            child => answer(child),
        }
        listen();
        Ok(())
    });
}

#[test]
fn who_dies_in_a_meeting_place_locks_nobody_out_though_its_child_lives() {
    let dir = tempdir().unwrap();
    let mut other = Companion::start("alive::child_dies_alone", dir.path());
    let forked: i32 = other.hear().parse().unwrap();
    other.kill();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            Meeting::open(dir.path()).unwrap().alone(|| Ok(())).unwrap();
            is_done.store(true, SeqCst);
        });
        let waited = std::panic::catch_unwind(|| until("alone", || is_done.load(SeqCst)));
        // SAFETY: this process was created for this test alone, and sleeps.
        unsafe { libc::kill(forked, libc::SIGKILL) };
        assert!(waited.is_ok(), "the child keeps the directory locked");
    });
}
