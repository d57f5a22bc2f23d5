//! `outcrop survey` from a user's view.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

use outcrop::{
    Tape,
    survey::{FILE, Options, Profile, Survey},
};
use outcrop_testing::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{entries, outcrop, text};

fn survey(directory: &Path, arguments: &[&str]) -> Output {
    outcrop(directory, &[&["survey"], arguments].concat())
}

#[test]
fn a_survey_prints_preferences_and_writes_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let output = survey(directory.path(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(entries(directory.path()), ["outcrop-profile.toml"]);
    let printed = text(&output.stdout);
    for words in ["order", "touched memory", "untouched memory", "memfd", "page cache", "GB/s", "outcrop-profile.toml"]
    {
        assert!(printed.contains(words), "{words} is not in {printed}");
    }
    assert!(text(&output.stderr).contains("measuring: memory"));
}

#[test]
fn tables_fit_a_terminal_of_eighty_columns_whatever_paths_are_called() {
    let directory = tempfile::tempdir().unwrap();
    let long = "a-directory-with-quite-a-long-name/".repeat(3);
    std::fs::create_dir_all(directory.path().join(&long)).unwrap();
    let printed = text(&survey(directory.path(), &[&long]).stdout);
    let widest =
        printed.lines().filter(|line| line.starts_with(['┌', '│', '└'])).map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|widest| widest <= 80), "{widest:?}\n{printed}");
}

#[test]
fn programs_get_json_and_a_file_of_their_choice() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("scratch")).unwrap();
    let output = survey(directory.path(), &["scratch", "--json", "--output", "speeds.toml"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(entries(directory.path()), ["scratch", "speeds.toml"]);
    assert!(entries(&directory.path().join("scratch")).is_empty());
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed["memory"]["touched"]["write_one_core"].as_u64().unwrap() > 0);
    assert!(printed["directories"][0]["path"].as_str().unwrap().ends_with("/scratch"));
    assert_eq!(printed["directories"].as_array().unwrap().len(), 1);
    assert_eq!(printed["locations"][0]["write_preference"], 1);
}

#[test]
fn what_cannot_be_surveyed_is_explained_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    for name in ["missing", "file"] {
        let output = survey(directory.path(), &[".", name]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(name) && message.contains("choose a directory") && !message.contains("measuring"));
    }
    let output = survey(directory.path(), &["--output", "missing/profile.toml"]);
    let message = text(&output.stderr);
    assert!(
        message.contains("cannot write the profile missing/profile.toml") && message.contains("--output"),
        "{message}"
    );
    assert!(!message.contains("measuring"), "{message}");
    assert_eq!(entries(directory.path()), ["file"]);
}

#[test]
fn a_survey_that_is_interrupted_or_killed_leaves_nothing_and_an_older_profile() {
    let directory = tempfile::tempdir().unwrap();
    let profile = directory.path().join(FILE);
    fs::write(&profile, "the older one").unwrap();
    // Not SIGINT, which shells make background jobs ignore.
    for signal in [Signal::TERM, Signal::KILL] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outcrop"));
        command.args(["survey", "."]).current_dir(directory.path()).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut running = command.spawn().unwrap();
        let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("past the page cache")), "it comes to the directory");
        kill_process(Pid::from_child(&running), signal).unwrap();
        assert!(!running.wait().unwrap().success());
        assert_eq!(entries(directory.path()), [FILE]);
        assert_eq!(fs::read_to_string(&profile).unwrap(), "the older one");
    }
    let output = survey(directory.path(), &["."]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(Profile::load(&profile).unwrap().directories.len(), 1);
    assert_eq!(entries(directory.path()), [FILE]);
}

/// Surveys a small file system with an older profile and `ballast`. Prints the profile that is
/// there afterwards, and all names.
const ON_SMALL_DISK: &str = r#"
    mount -t tmpfs -o size=16m tmpfs "$1" && cd "$1" && printf 'the older one ' >outcrop-profile.toml || exit 99
    head -c "$2" /dev/zero >ballast 2>/dev/null
    "$3" survey .
    code=$?
    cat outcrop-profile.toml && ls -A
    exit $code
"#;

#[test]
fn a_full_disk_is_explained_and_keeps_its_older_profile() {
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if !may_mount {
        return skip("this user cannot mount file systems here");
    }
    let directory = tempfile::tempdir().unwrap();
    for (ballast, advice) in [("14m", "free at least 83886080 bytes"), ("17m", "choose another file with --output")] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", ON_SMALL_DISK, "sh"]).arg(directory.path());
        let output = command.args([ballast, env!("CARGO_BIN_EXE_outcrop")]).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(advice) && !message.contains("measuring"), "{message}");
        assert_eq!(text(&output.stdout), "the older one ballast\noutcrop-profile.toml\n");
    }
}

#[test]
fn a_tape_warns_of_a_profile_of_another_machine_or_of_other_directories() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { bytes_max: 8 << 20, rounds: 1, has_devices: false, ..Options::default() };
    let own = Survey::run(&[directory.path().to_owned()], &options, &mut |_| {}).unwrap();
    let file = directory.path().join(FILE);
    // The log of opening a tape with a profile.
    let logged = |profile: &Profile| {
        profile.store(&file).unwrap();
        let log = directory.path().join("log");
        let writer = Arc::new(fs::File::create(&log).unwrap());
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        let builder = Tape::builder().host("4 MiB").dir(directory.path().join("scratch"), "8 MiB").profile(&file);
        tracing::subscriber::with_default(subscriber, || builder.open().unwrap());
        fs::read_to_string(log).unwrap()
    };
    let (of_machine, of_directory) =
        ("the profile is not of this machine", "the profile knows nothing of this directory");
    let cases = [
        (own.clone(), false, false),
        (Profile { machine: "node-17".to_owned(), cores: own.cores + 1, ..own.clone() }, true, false),
        (Profile { memory_bytes: own.memory_bytes / 2, ..own.clone() }, true, false),
        (Profile { directories: Vec::new(), ..own }, false, true),
    ];
    for (profile, is_of_machine, is_of_directory) in cases {
        let log = logged(&profile);
        assert_eq!((log.contains(of_machine), log.contains(of_directory)), (is_of_machine, is_of_directory), "{log}");
        assert_eq!(log.contains("WARN") && log.contains("node-17"), profile.machine == "node-17", "{log}");
    }
}
