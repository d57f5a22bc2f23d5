//! The turn among all processes of a machine: order, exclusion, death, other users, and foreign
//! files.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    thread,
    time::Duration,
};

use outcrop_local::{Error, Turn, Watch};
use outcrop_testing::{
    Companion, answer, child, child_directory, expect_success, listen, mount_memory, names, skip, with_own_mounts,
};
use rustix::fs::{FileType, Mode, mknodat};
use tempfile::{TempDir, tempdir};

/// A directory that every user may write to.
fn meeting() -> TempDir {
    let meeting = tempdir().unwrap();
    fs::set_permissions(meeting.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    meeting
}

fn ticket(number: u64) -> String {
    format!("outcrop-turn-test-{number:016x}")
}

fn tickets(meeting: &Path) -> usize {
    names(meeting).iter().filter(|name| name.starts_with("outcrop-turn-test-")).count()
}

/// Waits until this many tickets are drawn: a process that waits for its turn cannot report it.
fn wait_for_tickets(meeting: &Path, count: usize) {
    wait_until(|| tickets(meeting) == count);
}

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// In a child process: waits for the turn, reports that, and keeps it until told to continue.
#[test]
fn child_takes_a_turn() {
    let Some(meeting) = child_directory() else { return };
    if let Ok(user) = std::env::var("TURN_USER") {
        become_user(user.parse().unwrap());
    }
    if std::env::var_os("TURN_PRIVATE").is_some() {
        // SAFETY: the call takes a number.
        unsafe { libc::umask(0o077) };
    }
    let turn = Turn::wait_in(&meeting, "test").unwrap();
    if let Some(mark) = std::env::var_os("TURN_MARK") {
        fs::write(mark, "my turn").unwrap();
    }
    answer("my turn");
    listen();
    drop(turn);
    answer("done");
}

fn become_user(user: u32) {
    // SAFETY: the calls only take numbers.
    let is_done = unsafe { libc::setgid(user) == 0 && libc::setuid(user) == 0 };
    assert!(is_done, "only root can become another user");
}

/// A process of another user, with a umask that makes its files private.
fn other_user(meeting: &Path, user: u32) -> Companion {
    let mut command = child("turn::child_takes_a_turn", meeting);
    command.env("TURN_USER", user.to_string()).env("TURN_PRIVATE", "yes");
    Companion::run(command)
}

fn may_become_another_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("only root can become another user");
    }
    is_root
}

#[test]
fn processes_are_served_in_the_order_of_their_coming() {
    let meeting = meeting();
    let first = Turn::wait_in(meeting.path(), "test").unwrap();
    let mut queue = Vec::new();
    for number in 0..6 {
        queue.push(Companion::start("turn::child_takes_a_turn", meeting.path()));
        wait_for_tickets(meeting.path(), number + 2);
    }
    drop(first);
    for (number, mut companion) in queue.into_iter().enumerate() {
        companion.expect("my turn");
        assert_eq!(tickets(meeting.path()), 6 - number, "those behind it still wait");
        assert_eq!(companion.ask("go on"), "done");
        companion.end();
    }
    assert!(names(meeting.path()).is_empty(), "nothing is left when nobody wants the turn");
}

/// In a child process: takes many turns, and must be alone in each.
#[test]
fn child_takes_many_turns() {
    let Some(meeting) = child_directory() else { return };
    take_many_turns(&meeting);
}

fn take_many_turns(meeting: &Path) {
    let inside = meeting.join("inside");
    for _ in 0..50 {
        let turn = Turn::wait_in(meeting, "test").unwrap();
        fs::File::create_new(&inside).expect("nobody else is inside");
        thread::yield_now();
        fs::remove_file(&inside).unwrap();
        drop(turn);
    }
}

#[test]
fn only_one_process_or_thread_has_the_turn() {
    let meeting = meeting();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| expect_success(child("turn::child_takes_many_turns", meeting.path())));
            scope.spawn(|| take_many_turns(meeting.path()));
        }
    });
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn different_names_are_different_turns() {
    let meeting = meeting();
    let one = Turn::wait_in(meeting.path(), "test").unwrap();
    let other = Turn::wait_in(meeting.path(), "test2").unwrap();
    assert_eq!(names(meeting.path()).len(), 2);
    drop((one, other));
}

#[test]
fn a_holder_that_is_killed_passes_the_turn_on() {
    let meeting = meeting();
    let mut holder = Companion::start("turn::child_takes_a_turn", meeting.path());
    holder.expect("my turn");
    let mut waiter = Companion::start("turn::child_takes_a_turn", meeting.path());
    wait_for_tickets(meeting.path(), 2);
    holder.kill();
    waiter.expect("my turn");
    assert_eq!(waiter.ask("go on"), "done");
    waiter.end();
    assert!(names(meeting.path()).is_empty(), "the ticket of the dead is removed");
}

#[test]
fn a_waiter_that_is_killed_holds_nobody_up() {
    let meeting = meeting();
    let first = Turn::wait_in(meeting.path(), "test").unwrap();
    let killed = Companion::start("turn::child_takes_a_turn", meeting.path());
    wait_for_tickets(meeting.path(), 2);
    let mut behind = Companion::start("turn::child_takes_a_turn", meeting.path());
    wait_for_tickets(meeting.path(), 3);
    killed.kill();
    assert_eq!(tickets(meeting.path()), 3, "a killed process removes nothing");
    drop(first);
    behind.expect("my turn");
    assert_eq!(behind.ask("go on"), "done");
    behind.end();
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn who_stood_behind_a_killed_waiter_still_waits_for_all_before_it() {
    let (meeting, given) = (meeting(), tempdir().unwrap());
    let mark = given.path().join("mark");
    let first = Turn::wait_in(meeting.path(), "test").unwrap();
    let killed = Companion::start("turn::child_takes_a_turn", meeting.path());
    wait_for_tickets(meeting.path(), 2);
    let mut command = child("turn::child_takes_a_turn", meeting.path());
    command.env("TURN_MARK", &mark);
    let mut behind = Companion::run(command);
    wait_for_tickets(meeting.path(), 3);
    killed.kill();
    thread::sleep(Duration::from_millis(200));
    assert!(!mark.exists(), "the first still has the turn");
    drop(first);
    behind.expect("my turn");
    assert!(mark.exists());
    assert_eq!(behind.ask("go on"), "done");
    behind.end();
}

#[test]
fn who_comes_later_waits_also_when_tickets_before_it_are_gone() {
    let (meeting, given) = (meeting(), tempdir().unwrap());
    let mark = given.path().join("mark");
    let first = Turn::wait_in(meeting.path(), "test").unwrap();
    let mut second = Companion::start("turn::child_takes_a_turn", meeting.path());
    wait_for_tickets(meeting.path(), 2);
    drop(first);
    second.expect("my turn");
    let mut command = child("turn::child_takes_a_turn", meeting.path());
    command.env("TURN_MARK", &mark);
    let mut third = Companion::run(command);
    wait_until(|| meeting.path().join(ticket(2)).exists());
    thread::sleep(Duration::from_millis(100));
    assert!(!mark.exists(), "the second has the turn");
    assert_eq!(second.ask("go on"), "done");
    second.end();
    third.expect("my turn");
    assert_eq!(third.ask("go on"), "done");
    third.end();
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn a_ticket_that_somebody_removed_costs_nobody_another() {
    let meeting = meeting();
    let first = Turn::wait_in(meeting.path(), "test").unwrap();
    fs::remove_file(meeting.path().join(ticket(0))).unwrap();
    let second = Turn::wait_in(meeting.path(), "test").unwrap();
    drop(first);
    assert!(meeting.path().join(ticket(0)).exists(), "this one is the second's");
    drop(second);
    assert!(names(meeting.path()).is_empty());
}

/// In a child process: takes many turns while other processes are forked.
#[test]
fn child_forks_while_it_takes_turns() {
    let Some(meeting) = child_directory() else { return };
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let mut forked = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..2000).for_each(|_| drop(Turn::wait_in(&meeting, "test").unwrap()));
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        for _ in 0..30 {
            thread::sleep(Duration::from_millis(1));
            // SAFETY: the new process only sleeps until it is killed.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                },
                child => forked.push(child),
            }
        }
        let start = std::time::Instant::now();
        while !is_done.load(std::sync::atomic::Ordering::Relaxed) && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(5));
        }
        let is_done_in_time = is_done.load(std::sync::atomic::Ordering::Relaxed);
        for child in forked {
            // SAFETY: these are the processes that were created here, and none has been waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
        assert!(is_done_in_time, "a forked process keeps the directory locked");
    });
}

#[test]
fn a_process_that_is_forked_meanwhile_locks_nobody_out() {
    let meeting = meeting();
    expect_success(child("turn::child_forks_while_it_takes_turns", meeting.path()));
}

#[test]
fn a_directory_without_room_is_an_error_with_a_remedy() {
    with_own_mounts(|path| {
        mount_memory(path, c"nr_inodes=2");
        fs::write(path.join("ballast"), "").unwrap();
        let error = Turn::wait_in(path, "test").unwrap_err();
        let Error::Directory { remedy, .. } = &error else { panic!("{error:?}") };
        assert!(remedy.contains("free some space"), "{error}");
        fs::remove_file(path.join("ballast")).unwrap();
        drop(Turn::wait_in(path, "test").unwrap());
        assert!(names(path).is_empty());
        // A turn works even if the file system has no room for bytes.
        mount_memory(path, c"size=64k");
        while fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path.join("ballast"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]))
            .is_ok()
        {}
        drop(Turn::wait_in(path, "test").unwrap());
    });
}

#[test]
fn whatever_lies_about_is_removed_or_passed_by() {
    let meeting = meeting();
    let at = |number| meeting.path().join(ticket(number));
    fs::write(at(3), "left by a dead process").unwrap();
    fs::write(at(7), "").unwrap();
    fs::create_dir(at(8)).unwrap();
    symlink("nowhere", at(9)).unwrap();
    mknodat(rustix::fs::CWD, at(10), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for name in ["outcrop-turn-test-", "outcrop-turn-test-12", "outcrop-turn-test-000000000000000G", "else"] {
        fs::write(meeting.path().join(name), "").unwrap();
    }
    let turn = Turn::wait_in(meeting.path(), "test").unwrap();
    assert!(at(11).is_file(), "behind all that look like tickets");
    assert!(!at(3).exists() && !at(7).exists(), "what a dead process left is gone");
    drop(turn);
    assert_eq!(names(meeting.path()).len(), 7, "what is no ticket stays: {:?}", names(meeting.path()));

    fs::write(at(u64::MAX), "").unwrap();
    let error = Turn::wait_in(meeting.path(), "test").unwrap_err();
    assert!(error.to_string().contains("a higher number"), "{error}");
}

#[test]
fn users_take_turns_with_each_other() {
    if !may_become_another_user() {
        return;
    }
    let meeting = meeting();
    let (one, other) = (1_000_001, 1_000_002);
    let mut first = other_user(meeting.path(), one);
    first.expect("my turn");
    let owner = fs::metadata(meeting.path().join(ticket(0))).unwrap();
    assert_eq!((owner.uid(), owner.mode() & 0o777), (one, 0o644), "readable in spite of the umask");
    let mut second = other_user(meeting.path(), other);
    wait_for_tickets(meeting.path(), 2);
    first.kill();
    second.expect("my turn");
    assert!(meeting.path().join(ticket(0)).exists(), "this user may not remove that of the dead one");
    let mut third = Companion::start("turn::child_takes_a_turn", meeting.path());
    // Root may remove it.
    wait_until(|| meeting.path().join(ticket(2)).exists() && !meeting.path().join(ticket(0)).exists());
    assert_eq!(second.ask("go on"), "done");
    second.end();
    third.expect("my turn");
    assert_eq!(third.ask("go on"), "done");
    third.end();
    assert!(names(meeting.path()).is_empty());
}

/// In a child process: a user who may not write to the directory.
#[test]
fn child_may_not_write() {
    let Some(meeting) = child_directory() else { return };
    become_user(1_000_003);
    let Err(Error::Directory { path, source, remedy, .. }) = Turn::wait_in(&meeting, "test") else {
        panic!("a ticket where nobody may make files")
    };
    assert_eq!((&*path, source.kind()), (&*meeting, std::io::ErrorKind::PermissionDenied));
    assert!(remedy.contains("OUTCROP_MEETING_DIR"), "{remedy}");
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_with_a_remedy() {
    let meeting = meeting();
    for (path, name) in
        [(meeting.path().join("missing"), "test"), (meeting.path().into(), "../x"), (meeting.path().into(), "")]
    {
        let error = Turn::wait_in(&path, name).unwrap_err();
        assert!(matches!(error, Error::Directory { .. }), "{error}");
    }
    if may_become_another_user() {
        fs::set_permissions(meeting.path(), PermissionsExt::from_mode(0o755)).unwrap();
        expect_success(child("turn::child_may_not_write", meeting.path()));
    }
}

/// In a child process: the directory comes from the environment.
#[test]
fn child_looks_at_the_environment() {
    let Some(meeting) = child_directory() else { return };
    let turn = Turn::wait("test").unwrap();
    assert_eq!(names(&meeting), [ticket(0)]);
    assert!(format!("{turn:?}").contains(&ticket(0)));
}

#[test]
fn the_directory_can_be_named() {
    let meeting = meeting();
    let mut command = child("turn::child_looks_at_the_environment", meeting.path());
    command.env("OUTCROP_MEETING_DIR", meeting.path());
    expect_success(command);
    assert!(names(meeting.path()).is_empty());
}

/// In a child process: forks, and the forked child drops its copy of the turn.
#[test]
fn child_forks_in_its_turn() {
    let Some(meeting) = child_directory() else { return };
    let turn = Turn::wait_in(&meeting, "test").unwrap();
    // SAFETY: the new process only drops the turn, which neither allocates nor takes a lock of this
    // process, and ends.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        drop(turn);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the process that was just created.
    assert_eq!(unsafe { libc::waitpid(forked, std::ptr::null_mut(), 0) }, forked);
    let path = meeting.join(ticket(0));
    let ticket = Watch::open(&path).unwrap().expect("the copy did not remove the ticket");
    assert!(ticket.is_alive().unwrap(), "nor give it up");
    drop(turn);
    assert!(!ticket.is_alive().unwrap());
    assert!(!path.exists());
}

#[test]
fn a_forked_copy_does_not_end_the_turn() {
    let meeting = meeting();
    expect_success(child("turn::child_forks_in_its_turn", meeting.path()));
}
