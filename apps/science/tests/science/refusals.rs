//! Wrong options, states of others, and states that are in use.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use outcrop_science::{
    Job, Way,
    lu::{self, Lu},
};

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const LU: &str = env!("CARGO_BIN_EXE_lu");
const CRACK: &str = env!("CARGO_BIN_EXE_crack");
const PAGERANK: &str = env!("CARGO_BIN_EXE_pagerank");
const DROPLET: &str = env!("CARGO_BIN_EXE_droplet");

#[test]
fn wrong_options_are_refused_with_a_remedy() {
    for (program, arguments, code, expected) in [
        (LU, &["--order", "0"] as &[&str], 2, "1..=100000"),
        (LU, &["--order", "8", "--block", "9"], 1, "--block: at most the order of the matrix, 8"),
        (LU, &["--keep", "tape"], 2, "pool-nvm"),
        (LU, &["--threads", "100000"], 2, "at most 1024"),
        (CRACK, &["--dt", "1"], 1, "--dt: 1 is not between"),
        (CRACK, &["--dt", "NaN"], 1, "--dt"),
        (CRACK, &["--notch=-0.1"], 1, "--notch: from 0 to 0.9"),
        (CRACK, &["--temperature=-1"], 1, "--temperature"),
        (PAGERANK, &["--damping", "1"], 1, "--damping"),
        (DROPLET, &["--coarsest", "7"], 1, "--coarsest: at most the finest level, 6"),
        (DROPLET, &["--radius", "0.5"], 1, "--radius"),
        (DROPLET, &["--every", "0"], 2, "--every"),
    ] {
        let output = run(program, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(expected), "{arguments:?}: {}", said(&output));
    }
}

#[test]
fn help_tells_the_whole_story() {
    for program in [LU, CRACK, PAGERANK, DROPLET] {
        let output = run(program, &["--help"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for expected in ["--keep", "pool-nvm", "--every", "--threads", "143", "goes on"] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
    }
}

#[test]
fn a_state_of_other_settings_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    for way in ["pool", "file"] {
        let state = dir.path().join(way);
        let state = state.to_str().unwrap();
        assert!(run(LU, &["--order", "40", "--block", "8", "--state", state, "--keep", way]).status.success());
        let before = fs::read(state).unwrap();
        let other = run(LU, &["--order", "48", "--block", "8", "--state", state, "--keep", way]);
        assert_eq!(other.status.code(), Some(1));
        assert!(said(&other).contains("lu --order 40 --block 8 --seed 1; this is: lu --order 48"), "{}", said(&other));
        let other = run(CRACK, &["--state", state, "--keep", way]);
        assert!(said(&other).contains("has the state of: lu --order 40"), "{}", said(&other));
        assert_eq!(fs::read(state).unwrap(), before);
    }
}

#[test]
fn a_state_that_is_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = lu::Settings { order: 40, block: 8, seed: 1 };
    for (way, expected) in [(Way::Pool, "is open already"), (Way::File, "is in use by another process")] {
        let state = dir.path().join(way.name());
        let held = Job::<Lu>::open(&settings, way, &state).unwrap();
        let arguments = ["--order", "40", "--block", "8", "--state", state.to_str().unwrap(), "--keep", way.name()];
        let second = run(LU, &arguments);
        assert_eq!(second.status.code(), Some(1));
        assert!(said(&second).contains(expected), "{}", said(&second));
        drop(held);
        assert!(run(LU, &arguments).status.success());
    }
}

/// Each byte of a checkpoint file changed, and the file cut anywhere.
#[test]
fn a_damaged_checkpoint_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, settings) = (dir.path().join("state"), lu::Settings { order: 5, block: 2, seed: 1 });
    let open = || Job::<Lu>::open(&settings, Way::File, &path).map(|job| job.done());
    let mut job = Job::<Lu>::open(&settings, Way::File, &path).unwrap();
    job.step();
    job.persist().unwrap();
    drop(job);
    assert_eq!(open().unwrap(), 1);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(&path, &changed).unwrap();
        assert!(open().unwrap_err().to_string().contains("remove it to start over"), "byte {at}");
        fs::write(&path, &whole[..at]).unwrap();
        assert!(open().is_err(), "cut at {at}");
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(open().unwrap(), 1);
}

/// A program that is interrupted while it writes a checkpoint leaves a draft, which is not the
/// checkpoint.
#[test]
fn a_draft_of_a_checkpoint_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let (path, settings) = (dir.path().join("state"), lu::Settings { order: 5, block: 2, seed: 1 });
    fs::write(dir.path().join("state.draft"), b"half of it").unwrap();
    let mut job = Job::<Lu>::open(&settings, Way::File, &path).unwrap();
    assert_eq!(job.done(), 0);
    job.step();
    job.persist().unwrap();
    drop(job);
    assert_eq!(Job::<Lu>::open(&settings, Way::File, &path).unwrap().done(), 1);
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    for way in [Way::File, Way::Pool] {
        let settings = lu::Settings { order: 5, block: 2, seed: 1 };
        let error = Job::<Lu>::open(&settings, way, Path::new("/nowhere/state")).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/state"), "{error}");
    }
}
