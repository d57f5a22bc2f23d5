//! The life of a layer's directory: created, locked, removed, and left alone if it belongs to
//! others.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
};

use outcrop_layers::{Dir, DirOptions, Error, Host, Layer, Method};
use outcrop_testing::{child, child_directory, expect_success, names, pattern};
use tempfile::tempdir;

use crate::common::{UNIT, run_read, run_write};

fn open(path: &Path) -> Dir {
    Dir::open(path, 1 << 20, DirOptions::default()).unwrap()
}

/// The error of a directory that cannot be used: its kind and text.
fn refusal(path: &Path, options: DirOptions) -> (std::io::ErrorKind, String) {
    let error = Dir::open(path, 1 << 20, options).unwrap_err();
    let text = error.to_string();
    let Error::Directory { source, .. } = error else { panic!("{text}") };
    (source.kind(), text)
}

#[test]
fn a_dropped_layer_leaves_nothing() {
    let given = tempdir().unwrap();
    let path = given.path().join("one/two");
    let dir = open(&path);
    assert_eq!(dir.name(), format!("dir {}", path.display()));
    dir.write(0, &pattern(1, UNIT)).unwrap();
    let own = dir.path().to_owned();
    assert_eq!(names(&own), ["lock", "segment-00000"]);
    assert_eq!(fs::metadata(own.join("segment-00000")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
    drop(dir);
    assert!(names(given.path()).is_empty(), "directories that were made are removed");

    fs::create_dir_all(&path).unwrap();
    drop(open(&path));
    assert!(path.is_dir(), "a directory that was there stays");

    let deeper = path.join("three");
    let dir = open(&deeper);
    fs::write(deeper.join("notes"), "mine").unwrap();
    drop(dir);
    assert_eq!(names(&deeper), ["notes"], "one that was made stays if it has become useful");
}

#[test]
fn a_panic_leaves_nothing() {
    let given = tempdir().unwrap();
    let path = given.path().join("scratch");
    let panicked = catch_unwind(|| {
        let dir = open(&path);
        dir.write(0, &pattern(1, UNIT)).unwrap();
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    assert!(names(given.path()).is_empty());
}

#[test]
fn two_layers_share_a_directory() {
    let given = tempdir().unwrap();
    let (one, other) = (open(given.path()), open(given.path()));
    assert_ne!(one.path(), other.path());
    one.write(0, &pattern(1, UNIT)).unwrap();
    other.write(0, &pattern(2, UNIT)).unwrap();
    let third = open(given.path());
    drop(other);
    let mut found = vec![0; UNIT as usize];
    one.read(0, &mut found).unwrap();
    assert_eq!(found, pattern(1, UNIT));
    drop((one, third));
    assert!(names(given.path()).is_empty());
}

#[test]
fn opening_and_dropping_at_once_never_fails() {
    let given = tempdir().unwrap();
    // It is missing at first, so that creating and removing it is part of the race.
    let path = given.path().join("scratch");
    thread::scope(|scope| {
        for seed in 0..6 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..40 {
                    let dir = open(path);
                    dir.write(0, &pattern(seed, UNIT)).unwrap();
                    let mut found = vec![0; UNIT as usize];
                    dir.read(0, &mut found).unwrap();
                    assert_eq!(found, pattern(seed, UNIT));
                    assert!(dir.path().join("lock").is_file(), "nobody took it for a left-over");
                }
            });
        }
    });
    assert!(!path.exists() || names(&path).is_empty());
}

/// In a child process: opens a layer, reports its directory, and writes to it until killed.
#[test]
fn child_writes_until_killed() {
    let Some(directory) = child_directory() else { return };
    let dir = Dir::open(&directory, 64 << 20, DirOptions { segment_bytes: 8 << 20, ..DirOptions::default() }).unwrap();
    let host = Host::new(4 << 20).unwrap();
    for round in 0.. {
        run_write(&dir, &host, (round % 16) * (4 << 20), &pattern(round, 4 << 20)).unwrap();
        if round == 1 {
            println!("\nready {}", dir.path().display());
        }
    }
}

/// A child that is writing, and its directory.
fn writing_child(directory: &Path) -> (Child, PathBuf) {
    let mut running = child("dir_life::child_writes_until_killed", directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map_while(Result::ok);
    let own = lines.find_map(|line| line.strip_prefix("ready ").map(PathBuf::from));
    (running, own.expect("the child is ready"))
}

#[test]
fn what_a_killed_program_left_is_removed_and_a_running_one_is_left_alone() {
    let given = tempdir().unwrap();
    let (mut killed, left) = writing_child(given.path());
    let (mut alive, kept) = writing_child(given.path());
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(names(&left).contains(&"segment-00000".to_owned()), "a killed program removes nothing");
    let dir = open(given.path());
    let (is_left, is_kept) = (left.exists(), names(&kept));
    alive.kill().unwrap();
    alive.wait().unwrap();
    assert!(!is_left, "the next one to come removes it");
    assert!(is_kept.contains(&"lock".to_owned()) && is_kept.contains(&"segment-00000".to_owned()));
    drop(open(given.path()));
    drop(dir);
    assert!(names(given.path()).is_empty());
}

#[test]
fn half_removed_directories_are_taken_up() {
    let given = tempdir().unwrap();
    let name = |number: u32| given.path().join(format!("outcrop-{number}-0123456789abcdef"));
    fs::create_dir(name(1)).unwrap();
    fs::create_dir(name(2)).unwrap();
    fs::write(name(2).join("lock"), "").unwrap();
    fs::create_dir(name(3)).unwrap();
    fs::write(name(3).join("lock"), "").unwrap();
    fs::write(name(3).join("segment-00007"), "x").unwrap();
    drop(open(given.path()));
    assert!(names(given.path()).is_empty());
}

#[test]
fn files_of_others_stay_whatever_their_name() {
    let given = tempdir().unwrap();
    let victim = tempdir().unwrap();
    for name in ["lock", "segment-00000", "precious"] {
        fs::write(victim.path().join(name), "precious").unwrap();
    }
    let ours = "outcrop-1-00000000000000";
    fs::write(given.path().join(format!("{ours}00")), "a file").unwrap();
    symlink(victim.path(), given.path().join(format!("{ours}01"))).unwrap();
    for almost in ["outcrop-1-123", "outcrop--0123456789abcdef", "outcrop-1-0123456789ABCDEF", "outcrop-x", "outcrop"] {
        fs::create_dir(given.path().join(almost)).unwrap();
        fs::write(given.path().join(almost).join("lock"), "").unwrap();
    }
    // Without a lock file, but not empty.
    fs::create_dir(given.path().join(format!("{ours}02"))).unwrap();
    fs::write(given.path().join(format!("{ours}02/segment-00000")), "x").unwrap();
    // One with a lock that is a link, and one with a foreign file and a link that is named like
    // ours.
    fs::create_dir(given.path().join(format!("{ours}03"))).unwrap();
    symlink(victim.path().join("lock"), given.path().join(format!("{ours}03/lock"))).unwrap();
    fs::create_dir(given.path().join(format!("{ours}04"))).unwrap();
    fs::write(given.path().join(format!("{ours}04/lock")), "").unwrap();
    fs::write(given.path().join(format!("{ours}04/notes")), "mine").unwrap();
    symlink(victim.path().join("precious"), given.path().join(format!("{ours}04/segment-00000"))).unwrap();
    let before = names(given.path());
    drop(open(given.path()));
    assert_eq!(names(given.path()), before);
    assert_eq!(names(victim.path()), ["lock", "precious", "segment-00000"]);
    assert_eq!(fs::read_to_string(victim.path().join("precious")).unwrap(), "precious");
    assert_eq!(names(&given.path().join(format!("{ours}02"))), ["segment-00000"]);
    assert_eq!(fs::read_to_string(given.path().join(format!("{ours}04/notes"))).unwrap(), "mine");
}

#[test]
fn a_segment_name_that_is_taken_by_a_link_is_not_followed() {
    let (given, victim) = (tempdir().unwrap(), tempdir().unwrap());
    fs::write(victim.path().join("precious"), "precious").unwrap();
    let dir = open(given.path());
    symlink(victim.path().join("precious"), dir.path().join("segment-00000")).unwrap();
    assert!(matches!(dir.write(0, &pattern(1, UNIT)), Err(Error::Broken { .. })));
    drop(dir);
    assert_eq!(fs::read_to_string(victim.path().join("precious")).unwrap(), "precious");
    assert!(names(given.path()).is_empty());
}

#[test]
fn directories_that_cannot_be_used_are_refused_with_a_remedy() {
    let given = tempdir().unwrap();
    fs::write(given.path().join("file"), "x").unwrap();
    for path in ["file", "file/deeper"] {
        let (_, text) = refusal(&given.path().join(path), DirOptions::default());
        assert!(text.contains("is a file: name a directory"), "{text}");
    }
    for path in ["/proc", "/sys", "/proc/outcrop", "/sys/outcrop/deeper"] {
        let (_, text) = refusal(Path::new(path), DirOptions::default());
        assert!(text.contains(path) && text.contains("choose one"), "{text}");
    }
    assert_eq!(names(given.path()), ["file"]);
}

/// In a child process: reports which method is chosen.
#[test]
fn child_chooses_a_method() {
    let Some(directory) = child_directory() else { return };
    let wanted = std::env::var("OUTCROP_TEST_WANTED").unwrap();
    if wanted == "refused" {
        let (_, text) = refusal(&directory, DirOptions::default());
        assert!(text.contains("set OUTCROP_IO to uring or blocking") && text.contains("carrier pigeon"), "{text}");
        let dir = Dir::open(&directory, UNIT, DirOptions { method: Some(Method::Blocking), ..DirOptions::default() });
        assert_eq!(dir.unwrap().method(), Method::Blocking, "what the program asks for counts more");
    } else {
        assert_eq!(format!("{:?}", open(&directory).method()), wanted);
    }
}

#[test]
fn the_environment_chooses_the_method() {
    let given = tempdir().unwrap();
    for (value, wanted) in [("uring", "Uring"), ("blocking", "Blocking"), ("carrier pigeon", "refused")] {
        let mut command = child("dir_life::child_chooses_a_method", given.path());
        command.env("OUTCROP_IO", value).env("OUTCROP_TEST_WANTED", wanted);
        expect_success(command);
    }
    assert!(names(given.path()).is_empty());
}

#[test]
fn a_directory_that_is_renamed_is_removed_all_the_same() {
    let given = tempdir().unwrap();
    fs::create_dir(given.path().join("before")).unwrap();
    let dir = open(&given.path().join("before"));
    dir.write(0, &pattern(1, UNIT)).unwrap();
    fs::rename(given.path().join("before"), given.path().join("after")).unwrap();
    let host = Host::new(UNIT).unwrap();
    assert_eq!(run_read(&dir, &host, 0, UNIT).unwrap(), pattern(1, UNIT));
    catch_unwind(AssertUnwindSafe(|| drop(dir))).unwrap();
    assert!(names(&given.path().join("after")).is_empty());
}
