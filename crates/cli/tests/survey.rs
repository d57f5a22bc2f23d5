//! `outcrop survey` as a user meets it.

mod common;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use common::{entries, outcrop, text};

fn survey(directory: &Path, arguments: &[&str]) -> Output {
    outcrop(directory, &[&["survey"], arguments].concat())
}

#[test]
fn a_survey_prints_a_ranking_and_writes_a_profile() {
    let directory = tempfile::tempdir().unwrap();
    let output = survey(directory.path(), &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(entries(directory.path()), ["outcrop-profile.toml"]);
    let printed = text(&output.stdout);
    for words in ["rank", "touched memory", "untouched memory", "memfd", "page cache", "GB/s", "outcrop-profile.toml"] {
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
    assert_eq!(printed["ranking"][0]["write_rank"], 1);
}

#[test]
fn what_cannot_be_surveyed_is_explained_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    for name in ["missing", "file"] {
        let output = survey(directory.path(), &[".", name]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(name) && message.contains("name a directory") && !message.contains("measuring"));
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
fn an_interrupted_survey_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outcrop"));
    command.args(["survey", "."]).current_dir(directory.path()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut running = command.spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("past the page cache")), "it comes to the directory");
    let process = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert!(!running.wait().unwrap().success());
    assert!(entries(directory.path()).is_empty());
}
