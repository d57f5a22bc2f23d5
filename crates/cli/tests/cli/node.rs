//! `outcrop run` and `outcrop node`.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Output},
};

use outcrop_testing::{mount_memory, skip, with_own_mounts};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{entries, outcrop};

/// Runs a command of `outcrop` with a daemon of its own in `place`.
fn of_node(directory: &Path, place: &Path, arguments: &[&str]) -> Output {
    let place = place.join("node");
    let (command, rest) = match arguments {
        ["run", rest @ ..] => (&["run"][..], rest),
        [node, command, rest @ ..] => (&[*node, *command][..], rest),
        _ => unreachable!("a command of the node"),
    };
    outcrop(directory, &[command, &["--directory", place.to_str().unwrap()], rest].concat())
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ends the daemon of a test, however the test ends.
struct Ends<'a>(&'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        of_node(self.0, self.0, &["node", "stop"]);
    }
}

#[test]
fn a_daemon_is_started_once_watched_and_stopped() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    let missing = run(&["node", "status"]);
    assert_eq!(code(&missing), 12, "{missing:?}");
    assert!(stderr(&missing).contains("outcrop node start"), "{missing:?}");
    let _ends = Ends(place.path());
    let started = run(&["node", "start", "--memory", "16 MiB"]);
    assert_eq!(code(&started), 0, "{started:?}");
    let again = run(&["node", "start"]);
    assert_eq!(code(&again), 18, "{again:?}");
    assert!(stderr(&again).contains("running already"), "{again:?}");
    let status: Value = serde_json::from_slice(&run(&["node", "status", "--json"]).stdout).unwrap();
    assert_eq!(status["limit_bytes"], 16 << 20);
    let metrics = String::from_utf8(run(&["node", "metrics"]).stdout).unwrap();
    assert!(metrics.contains("outcrop_node_limit_bytes 16777216"), "{metrics}");
    assert_eq!(code(&run(&["node", "drain"])), 0);
    assert!(stderr(&run(&["node", "top"])).contains("needs a terminal"));
    assert_eq!(code(&run(&["node", "stop"])), 0);
    assert_eq!(code(&run(&["node", "status"])), 12);
}

#[test]
fn wrong_wishes_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    for (arguments, expected, word) in [
        (&["node", "start", "--memory", "9999999 GiB"][..], 10, "lower limit"),
        (&["node", "start", "--memory", "1 KiB"], 10, "too few"),
        (&["node", "start", "--threads", "0"], 2, "--threads"),
        (&["node", "metrics", "--listen", "0.0.0.0:1"], 2, "loopback"),
        (&["run", "--via", "magic", "--", "true"], 2, "magic"),
        (&["run", "--under", "nowhere", "--", "true"], 10, "nowhere"),
        (&["run", "--exclude", "../a", "--", "true"], 2, "pattern"),
        (&["run"], 2, "PROGRAM"),
    ] {
        let output = run(arguments);
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_program_ends_as_without_us_and_its_files_are_there() {
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    let place = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let _ends = Ends(place.path());
    for via in ["fuse", "seccomp"] {
        let run = |script: &str| {
            let options = ["run", "--memory", "16 MiB", "--via", via, "--", "sh", "-c", script];
            of_node(work.path(), place.path(), &options)
        };
        let output = run("echo one > a; mkdir d; head -c 3000000 /dev/zero > d/b; cat a; exit 3");
        assert_eq!(code(&output), 3, "{via}: {output:?}");
        assert_eq!(output.stdout, b"one\n", "{via}");
        assert_eq!(fs::read(work.path().join("a")).unwrap(), b"one\n", "{via}");
        assert!(fs::read(work.path().join("d/b")).unwrap() == vec![0; 3_000_000], "{via}");
        let killed = run("echo two > a; rm -r d; kill -USR2 $$");
        assert_eq!(killed.status.signal(), Some(Signal::USR2.as_raw()), "{via}: {killed:?}");
        assert_eq!(fs::read(work.path().join("a")).unwrap(), b"two\n", "{via}");
    }
    let missing = of_node(work.path(), place.path(), &["run", "--", "no-such-program"]);
    assert_eq!(code(&missing), 127, "{missing:?}");
    assert!(stderr(&missing).contains("no-such-program"), "{missing:?}");
}

#[test]
fn what_cannot_be_drained_is_named_and_tried_again() {
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    let place = tempfile::tempdir().unwrap();
    let _ends = Ends(place.path());
    with_own_mounts(|small| {
        mount_memory(small, c"size=1m");
        let script = ["run", "--memory", "16 MiB", "--", "sh", "-c", "head -c 3000000 /dev/zero > big; true"];
        let output = of_node(small, place.path(), &script);
        assert_eq!(code(&output), 17, "{output:?}");
        assert!(stderr(&output).contains("not drained") && stderr(&output).contains("big"), "{output:?}");
        let status = of_node(small, place.path(), &["node", "status"]);
        assert_eq!(code(&status), 17, "{status:?}");
        assert!(stderr(&status).contains("outcrop node drain"), "{status:?}");
        // There is room now.
        let again = Command::new("mount").args(["-o", "remount,size=16m"]).arg(small).status().unwrap();
        assert!(again.success());
        assert_eq!(code(&of_node(small, place.path(), &["node", "drain"])), 0);
        // `head` has got the error at some write. What was accepted before is there.
        let found = fs::read(small.join("big")).unwrap();
        assert!(found.len() > 1 << 20 && found.iter().all(|byte| *byte == 0), "{} bytes", found.len());
    });
}

#[test]
fn the_benchmark_of_the_node_runs() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--burst", "1 MiB", "--writes", "64KiB,1MiB", "--ranks", "1,2", "--drains", "1", "--files", "20"];
    let output = outcrop(directory.path(), &[&["bench", "node", "--json", "--rounds", "1"], &sizes[..]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["client_over_memcpy", "burst_over_plain_write", "overflow_over_plain_write", "drain_over_direct"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    assert!(entries(directory.path()).is_empty(), "nothing is left");
    assert_eq!(code(&outcrop(directory.path(), &["bench", "node", "--ranks", "0"])), 1);
}
