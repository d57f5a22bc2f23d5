//! A buffer that several processes share: how much each can have, what becomes of the memory of
//! dead processes, and what is refused.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
};

use outcrop_layers::{Dir, DirOptions, Error, Host, Layer, Result, contract};
use outcrop_testing::{
    Companion, answer, child, child_directory, expect_success, listen, mount_memory, names, pattern, skip,
    with_own_mounts,
};
use tempfile::{TempDir, tempdir, tempdir_in};

use crate::common::{run_read, run_write};

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 32 * MIB;
const FILE: &str = "outcrop-shared-test";

/// A meeting place, in memory if possible.
fn meeting() -> TempDir {
    tempdir_in("/dev/shm").or_else(|_| tempdir()).unwrap()
}

fn open(meeting: &Path, bytes_mine: u64) -> Result<Host> {
    Host::shared_in(meeting, "test", TOTAL, bytes_mine)
}

/// The reason why a segment cannot be used.
fn refusal(result: Result<Host>) -> String {
    match result {
        Err(Error::Segment { reason, path }) if path.ends_with(FILE) => reason,
        other => panic!("{other:?}"),
    }
}

fn is_exhausted(result: &Result<()>) -> bool {
    matches!(result, Err(Error::Exhausted { .. }))
}

/// In a child process: carries out commands, on up to 24 MiB of the buffer.
#[test]
fn child_shares() {
    let Some(meeting) = child_directory() else { return };
    let host = open(&meeting, 24 * MIB).unwrap();
    answer("ready");
    let mut slots = Vec::new();
    while let Some(line) = listen() {
        let mut words = line.split(' ');
        let verb = words.next().unwrap();
        let mut number = || words.next().map_or(0, |word| word.parse::<u64>().unwrap());
        let (start, end, seed) = (number() * MIB, number() * MIB, number());
        let said = match verb {
            "touch" => host.touch(start..end).map(|()| 0),
            "release" => host.release(start..end).map(|wanted| wanted / MIB),
            "wanted" => Ok(host.wanted_by_others() / MIB),
            "write" => host.write(start, &pattern(seed, end - start)).map(|()| 0),
            "hold" => host.slot(start, end - start).map(|slot| slots.push(slot)).map(|()| 0),
            "check" => {
                let mut found = vec![0; (end - start) as usize];
                host.read(start, &mut found).map(|()| u64::from(found != pattern(seed, end - start)))
            }
            _ => panic!("{line}"),
        };
        match said {
            Ok(number) => answer(number),
            Err(error) => answer(format!("{error:?}").split(' ').next().unwrap()),
        }
    }
}

fn sharer(meeting: &Path) -> Companion {
    let mut companion = Companion::start("shared::child_shares", meeting);
    companion.expect("ready");
    companion
}

#[test]
fn the_contract_holds_once_all_is_touched() {
    let meeting = meeting();
    contract::check(&|| {
        let host = open(meeting.path(), 8 * MIB).unwrap();
        assert_eq!((host.needs_touch(), host.capacity(), host.name()), (true, 8 * MIB, "shared host test"));
        host.touch(0..8 * MIB).unwrap();
        Arc::new(host)
    });
    assert!(names(meeting.path()).is_empty(), "the last to leave removes the file");
}

#[test]
fn nothing_can_be_used_before_it_is_touched() {
    let meeting = meeting();
    let host = open(meeting.path(), 9 * MIB).unwrap();
    let piece = host.piece_bytes();
    assert_eq!(piece, 2 * MIB);
    let is_untouched = |result: Result<()>| matches!(result, Err(Error::Untouched { .. }));
    assert!(is_untouched(host.slot(0, 4096).map(drop)));
    host.touch(piece..2 * piece).unwrap();
    assert!(is_untouched(host.slot(0, 4096).map(drop)) && is_untouched(host.slot(piece, 2 * piece).map(drop)));
    assert!(is_untouched(host.write(2 * piece, &[0; 4096])) && is_untouched(host.read(0, &mut [0; 4096])));
    assert!(is_untouched(host.pin()), "there is nothing to pin yet");
    let mut slot = host.slot(piece, piece).unwrap();
    slot.copy_from_slice(&pattern(1, piece));
    assert!(is_untouched(host.slide(slot.seal(), 2 * piece).map(drop)));
    host.touch(0..9 * MIB).unwrap();
    host.pin().unwrap();
    let mut found = vec![0; piece as usize];
    host.read(piece, &mut found).unwrap();
    assert_eq!(found, pattern(1, piece), "touching around it changed nothing");
    assert!(host.slot(0, 9 * MIB).is_ok());
    assert!(matches!(host.touch(0..10 * MIB), Err(Error::OutOfRange { .. })), "not more than its own limit");
}

#[test]
fn only_free_and_whole_pieces_are_given_back() {
    let meeting = meeting();
    let host = open(meeting.path(), 9 * MIB).unwrap();
    host.touch(0..9 * MIB).unwrap();
    let slot = host.slot(5 * MIB, MIB).unwrap();
    assert!(matches!(host.release(0..9 * MIB), Err(Error::InUse { .. })));
    assert!(host.slot(0, 4 * MIB).is_ok(), "a refusal gives nothing back");
    assert_eq!(host.release(MIB..5 * MIB).unwrap(), 0);
    assert!(matches!(host.slot(2 * MIB, 4096), Err(Error::Untouched { .. })));
    assert!(host.slot(0, 2 * MIB).is_ok() && host.slot(4 * MIB, MIB).is_ok(), "only what lies inside as a whole");
    drop(slot);
    host.release(4 * MIB..9 * MIB).unwrap();
    assert!(host.slot(4 * MIB, 4096).is_err() && host.slot(8 * MIB, 4096).is_err(), "and the short one at the end");
    host.touch(0..9 * MIB).unwrap();
    assert!(host.slot(0, 9 * MIB).is_ok());
}

#[test]
fn what_one_process_does_not_use_is_there_for_another() {
    let meeting = meeting();
    let (mut one, mut other) = (sharer(meeting.path()), sharer(meeting.path()));
    assert_eq!(one.ask("touch 0 20"), "0");
    assert_eq!(one.ask("write 0 20 1"), "0");
    assert_eq!(other.ask("touch 0 24"), "Exhausted", "one has 20 of 32");
    assert_eq!(other.ask("write 0 12 2"), "0", "what there was, it has got");
    assert_eq!(other.ask("write 12 14 2"), "Untouched");
    assert_eq!(one.ask("wanted"), "12");
    assert_eq!(one.ask("check 0 20 1"), "0", "nobody else wrote there");
    assert_eq!(one.ask("hold 0 2"), "0");
    assert_eq!(one.ask("release 0 20"), "InUse");
    assert_eq!(one.ask("release 2 10"), "12", "others still wait for so much");
    assert_eq!(other.ask("touch 0 24"), "Exhausted");
    assert_eq!(one.ask("wanted"), "4");
    assert_eq!(one.ask("release 10 20"), "4");
    assert_eq!(other.ask("touch 0 24"), "0");
    assert_eq!(one.ask("wanted"), "0");
    assert_eq!(other.ask("check 0 12 2"), "0", "its first bytes are as they were");
    assert_eq!(other.ask("write 12 24 3"), "0");
    assert_eq!(one.ask("touch 2 10"), "Exhausted", "now it has 2 of its own and 6 more");
    assert_eq!(one.ask("write 2 8 4"), "0");
    assert_eq!(other.ask("check 12 24 3"), "0", "and they are not the other's");
    one.end();
    other.end();
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn what_a_killed_process_had_is_free() {
    let meeting = meeting();
    let (mut killed, mut other) = (sharer(meeting.path()), sharer(meeting.path()));
    assert_eq!(killed.ask("touch 0 24"), "0");
    assert_eq!(other.ask("touch 0 8"), "0");
    assert_eq!(other.ask("write 0 8 1"), "0");
    assert_eq!(other.ask("touch 8 24"), "Exhausted");
    assert_eq!(killed.ask("touch 0 24"), "0");
    killed.kill();
    assert_eq!(other.ask("touch 8 24"), "0");
    assert_eq!(other.ask("check 0 8 1"), "0");
    let mut third = sharer(meeting.path());
    assert_eq!(third.ask("touch 0 8"), "0", "its number is free as well");
    assert_eq!(third.ask("wanted"), "0", "and what it waited for is forgotten");
    assert_eq!(other.ask("check 0 8 1"), "0");
    third.kill();
    other.kill();
    assert_eq!(names(meeting.path()), [FILE], "those who are killed remove nothing");
    let host = Host::shared_in(meeting.path(), "test", 2 * TOTAL, 2 * TOTAL).expect("nobody living has another total");
    host.touch(0..2 * TOTAL).unwrap();
    drop(host);
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn what_was_shared_by_the_dead_alone_is_removed_by_the_next_of_any_name() {
    let meeting = meeting();
    let mut dead = sharer(meeting.path());
    assert_eq!(dead.ask("touch 0 24"), "0");
    let living = Host::shared_in(meeting.path(), "living", TOTAL, MIB).unwrap();
    assert_eq!(names(meeting.path()), ["outcrop-shared-living", FILE], "those who live keep theirs");
    dead.kill();
    assert_eq!(names(meeting.path()), ["outcrop-shared-living", FILE]);
    fs::create_dir(meeting.path().join("outcrop-shared-directory")).unwrap();
    symlink("elsewhere", meeting.path().join("outcrop-shared-link")).unwrap();
    let other = Host::shared_in(meeting.path(), "other", TOTAL, MIB).unwrap();
    let left = ["directory", "link", "living", "other"].map(|name| format!("outcrop-shared-{name}"));
    assert_eq!(names(meeting.path()), left);
    drop((living, other));
    assert_eq!(names(meeting.path()), left[..2]);
}

#[test]
fn whatever_a_creator_that_died_has_left_is_made_anew() {
    let meeting = meeting();
    let path = meeting.path().join(FILE);
    // A complete file, with owners of all chunks. The process may have written any part of it.
    let host = open(meeting.path(), TOTAL).unwrap();
    host.touch(0..TOTAL).unwrap();
    let whole = fs::metadata(&path).unwrap().len();
    let header = fs::read(&path).unwrap()[..8192].to_vec();
    drop(host);
    for (written, length) in [(0, 0), (0, whole), (7, whole), (8, whole), (24, whole), (8192, whole), (8192, 8192)] {
        fs::write(&path, &header[..written]).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let host = open(meeting.path(), TOTAL).unwrap();
        host.touch(0..TOTAL).unwrap_or_else(|error| panic!("{written} of {length}: {error}"));
        drop(host);
        assert!(names(meeting.path()).is_empty());
    }
}

#[test]
fn a_slot_keeps_its_memory_when_everything_else_is_gone() {
    let meeting = meeting();
    let host = open(meeting.path(), 4 * MIB).unwrap();
    host.touch(0..4 * MIB).unwrap();
    let mut slot = host.slot(0, 2 * MIB).unwrap();
    drop(host);
    let other = open(meeting.path(), TOTAL).unwrap();
    assert!(is_exhausted(&other.touch(0..TOTAL)), "the slot's process still has it all");
    slot.fill(7);
    assert!(slot.seal().iter().all(|&byte| byte == 7));
    other.touch(0..TOTAL).unwrap();
}

/// In a child process: joins and leaves many times.
#[test]
fn child_comes_and_goes() {
    let Some(meeting) = child_directory() else { return };
    come_and_go(&meeting, u64::from(std::process::id()));
}

fn come_and_go(meeting: &Path, seed: u64) {
    for round in 0..40 {
        let host = open(meeting, 4 * MIB).unwrap();
        host.touch(0..4 * MIB).unwrap();
        host.write(0, &pattern(seed + round, 4 * MIB)).unwrap();
        thread::yield_now();
        let mut found = vec![0; 4 << 20];
        host.read(0, &mut found).unwrap();
        assert!(found == pattern(seed + round, 4 * MIB), "somebody else wrote here");
    }
}

#[test]
fn coming_and_going_at_once_never_fails() {
    let meeting = meeting();
    thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(|| expect_success(child("shared::child_comes_and_goes", meeting.path())));
            let meeting = meeting.path();
            scope.spawn(move || come_and_go(meeting, seed * 1000));
        }
    });
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn other_sizes_are_refused_while_somebody_uses_it() {
    let meeting = meeting();
    let host = open(meeting.path(), 4 * MIB).unwrap();
    let reason = refusal(Host::shared_in(meeting.path(), "test", 2 * TOTAL, 4 * MIB));
    assert!(reason.contains("33554432 bytes and not 67108864"), "{reason}");
    let reason = refusal(open(meeting.path(), TOTAL + 1));
    assert!(reason.contains("more than the 33554432 for all"), "{reason}");
    let reason = refusal(Host::shared_in(meeting.path(), "test", MIB, MIB));
    assert!(reason.contains("less than the smallest piece"), "{reason}");
    drop(host);
    Host::shared_in(meeting.path(), "test", 2 * TOTAL, 4 * MIB).unwrap();
    assert!(Host::shared_in(meeting.path(), "../test", TOTAL, MIB).is_err());
    let there_is_not = Host::shared_in(meeting.path(), "test", 1 << 50, MIB);
    assert!(refusal(there_is_not).contains("of the file system"));
    assert!(names(meeting.path()).is_empty(), "what was refused leaves nothing");
}

#[test]
fn a_process_may_have_all_there_is_of_a_total_that_is_no_multiple_of_a_piece() {
    let meeting = meeting();
    let total = TOTAL + MIB + 5;
    let host = Host::shared_in(meeting.path(), "test", total, total).unwrap();
    assert_eq!(host.capacity(), TOTAL, "what makes no whole piece is nobody's");
    host.touch(0..TOTAL).unwrap();
    drop(host.slot(0, TOTAL).unwrap());
}

#[test]
fn a_buffer_that_lies_on_a_disk_is_said_to_be_slow() {
    let warns = |meeting: &Path| {
        let logs = tempdir().unwrap();
        let log = logs.path().join("log");
        let writer = Arc::new(fs::File::create(&log).unwrap());
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || drop(open(meeting, 4 * MIB).unwrap()));
        fs::read_to_string(log).unwrap().contains("lies on a disk")
    };
    with_own_mounts(|path| {
        mount_memory(path, c"size=64m");
        assert!(!warns(path));
    });
    let disk = tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if rustix::fs::statfs(disk.path()).unwrap().f_type as u64 != 0x0102_1994 {
        assert!(warns(disk.path()));
    }
}

#[test]
fn a_damaged_file_is_refused_while_it_is_in_use_and_made_anew_when_it_is_not() {
    let meeting = meeting();
    let path = meeting.path().join(FILE);
    for damage in [damage_magic as fn(&Path), cut_off] {
        let host = open(meeting.path(), 4 * MIB).unwrap();
        damage(&path);
        let reason = refusal(open(meeting.path(), 4 * MIB));
        assert!(reason.contains("end the processes that use it"), "{reason}");
        drop(host);
        drop(open(meeting.path(), 4 * MIB).unwrap());
    }
    for left_over in ["", "nonsense"] {
        fs::write(&path, left_over).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let host = open(meeting.path(), 4 * MIB).unwrap();
        host.touch(0..4 * MIB).unwrap();
    }
    assert!(names(meeting.path()).is_empty());
}

fn damage_magic(path: &Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"nonsense", 0).unwrap();
}

fn cut_off(path: &Path) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(MIB).unwrap();
}

#[test]
fn nonsense_about_owners_harms_nobody() {
    let meeting = meeting();
    let host = open(meeting.path(), TOTAL).unwrap();
    // Overwrite all numbers of the header: the owners of chunks do not exist, and everybody waits
    // for more than there is.
    let file = fs::OpenOptions::new().write(true).open(meeting.path().join(FILE)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xFF; 8192], 64).unwrap();
    host.touch(0..TOTAL).unwrap();
    host.slot(0, TOTAL).unwrap().fill(1);
    assert_eq!(host.wanted_by_others(), 0, "there are no others");
}

#[test]
fn what_is_not_this_users_file_is_refused() {
    let meeting = meeting();
    let path = meeting.path().join(FILE);
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(refusal(open(meeting.path(), MIB)).contains("others may open it"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(refusal(open(meeting.path(), MIB)).contains("not a plain file"));
    fs::remove_dir(&path).unwrap();
    symlink("elsewhere", &path).unwrap();
    assert!(refusal(open(meeting.path(), MIB)).contains("not a plain file"));
    assert_eq!(names(meeting.path()), [FILE], "and nothing was made elsewhere");
    let missing = Host::shared_in(&meeting.path().join("missing"), "test", TOTAL, MIB);
    assert!(matches!(missing, Err(Error::Directory { .. })));
}

/// In a child process: another user, who finds the buffer of the first.
#[test]
fn child_is_another_user() {
    let Some(meeting) = child_directory() else { return };
    // SAFETY: the call only takes a number.
    assert_eq!(unsafe { libc::setuid(1_000_005) }, 0, "this test is for root");
    assert!(refusal(open(&meeting, MIB)).contains("another user"));
    Host::shared_in(&meeting, "mine", TOTAL, MIB).expect("a buffer of its own").touch(0..MIB).unwrap();
}

#[test]
fn users_do_not_share() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return;
    }
    let meeting = meeting();
    fs::set_permissions(meeting.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let host = open(meeting.path(), MIB).unwrap();
    expect_success(child("shared::child_is_another_user", meeting.path()));
    drop(host);
    assert!(names(meeting.path()).is_empty());
}

#[test]
fn a_file_system_that_is_full_is_no_more_memory() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=24m");
        fs::write(path.join("ballast"), vec![1; 16 << 20]).unwrap();
        let host = Host::shared_in(path, "test", 16 * MIB, 16 * MIB).unwrap();
        let touched = host.touch(0..16 * MIB);
        assert!(is_exhausted(&touched), "{touched:?}");
        host.slot(0, 4 * MIB).expect("as much as there was").fill(1);
        fs::remove_file(path.join("ballast")).unwrap();
        host.touch(0..16 * MIB).unwrap();
        host.slot(0, 16 * MIB).unwrap().fill(2);
    });
}

#[test]
fn a_file_system_with_room_for_a_few_pages_is_full_from_the_start_or_later_but_not_in_between() {
    with_own_mounts(|path| {
        let (mut refused, mut opened) = (0, 0);
        for pages in 0..6 {
            mount_memory(path, c"size=40m");
            fs::write(path.join("ballast"), vec![1; (40 << 20) - pages * 4096]).unwrap();
            match open(path, TOTAL) {
                Ok(host) => {
                    opened += 1;
                    let touched = host.touch(0..MIB);
                    assert!(is_exhausted(&touched), "{pages}: {touched:?}");
                    fs::remove_file(path.join("ballast")).unwrap();
                    host.touch(0..TOTAL).unwrap();
                }
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error, Error::Segment { .. }), "{error:?}");
                    fs::remove_file(path.join("ballast")).unwrap();
                }
            }
            assert!(names(path).is_empty(), "nothing is left");
        }
        assert!(refused > 0 && opened > 0, "{refused} {opened}");
    });
}

#[test]
fn shared_memory_goes_to_a_directory_and_back() {
    let (meeting, given) = (meeting(), tempdir().unwrap());
    let host = open(meeting.path(), 4 * MIB).unwrap();
    let dir = Dir::open(given.path(), 8 * MIB, DirOptions::default()).unwrap();
    for round in 0..3 {
        host.touch(0..4 * MIB).unwrap();
        run_write(&dir, &host, 0, &pattern(round, 4 * MIB)).unwrap();
        assert_eq!(dir.registered_bytes(), 0, "the kernel must not keep memory that may become another's");
        host.release(0..4 * MIB).unwrap();
        host.touch(0..4 * MIB).unwrap();
        assert_eq!(run_read(&dir, &host, 0, 4 * MIB).unwrap(), pattern(round, 4 * MIB));
    }
}

/// In a child process: forks, and the forked child drops its copy.
#[test]
fn child_forks() {
    let Some(meeting) = child_directory() else { return };
    let host = open(&meeting, 4 * MIB).unwrap();
    host.touch(0..4 * MIB).unwrap();
    // SAFETY: the new process only drops its copy and ends.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        drop(host);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: waits for the process that was just created.
    assert_eq!(unsafe { libc::waitpid(forked, std::ptr::null_mut(), 0) }, forked);
    let other = open(&meeting, TOTAL).unwrap();
    assert!(is_exhausted(&other.touch(0..TOTAL)), "what was touched still belongs to the first");
    assert_eq!(names(&meeting), [FILE]);
}

#[test]
fn a_forked_copy_gives_nothing_back() {
    let meeting = meeting();
    expect_success(child("shared::child_forks", meeting.path()));
    assert!(names(meeting.path()).is_empty());
}

/// In a child process: the directory comes from the environment.
#[test]
fn child_looks_at_the_environment() {
    let Some(meeting) = child_directory() else { return };
    let host = Host::shared("test", TOTAL, MIB).unwrap();
    assert_eq!(names(&meeting), [FILE]);
    drop(host);
}

#[test]
fn the_directory_can_be_named() {
    let meeting = meeting();
    let mut command: Command = child("shared::child_looks_at_the_environment", meeting.path());
    command.env("OUTCROP_MEETING_DIR", meeting.path());
    expect_success(command);
    assert_eq!(names(meeting.path()), Vec::<PathBuf>::new());
}
