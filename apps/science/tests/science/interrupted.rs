//! Programs that are killed or asked to stop in any iteration, and go on.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use fastrand::Rng;
use outcrop_testing::{amount, covered};
use rustix::process::{Pid, Signal, kill_process};

/// A program, its settings, and how often it keeps its state.
struct Case {
    program: &'static str,
    options: &'static [&'static str],
    every: u64,
}

const LU: Case = Case { program: env!("CARGO_BIN_EXE_lu"), options: &["--order", "240", "--block", "16"], every: 1 };
const CRACK: Case = Case {
    program: env!("CARGO_BIN_EXE_crack"),
    options: &["--columns", "30", "--rows", "20", "--steps", "40", "--strain-rate", "0.02"],
    every: 3,
};
const PAGERANK: Case =
    Case { program: env!("CARGO_BIN_EXE_pagerank"), options: &["--scale", "10", "--tolerance", "1e-9"], every: 2 };
const DROPLET: Case = Case {
    program: env!("CARGO_BIN_EXE_droplet"),
    options: &["--level", "4", "--coarsest", "2", "--steps", "20", "--radius", "0.2"],
    every: 3,
};

impl Case {
    fn command(&self, way: &str, dir: &Path) -> Command {
        let mut command = Command::new(self.program);
        command.args(self.options).args(["--keep", way, "--every", &self.every.to_string(), "--verbose"]);
        command.arg("--state").arg(dir.join("state")).arg("--output").arg(dir.join("output"));
        command.args(["--threads", "2"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it to its end. Gives the result, and the iterations that it said it did.
    fn finish(&self, way: &str, dir: &Path) -> (Vec<u8>, Vec<u64>) {
        let output = self.command(way, dir).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {said}", output.status);
        (fs::read(dir.join("output")).unwrap(), said.lines().filter_map(iteration).collect())
    }

    /// Starts it, and waits until it has done so many iterations, or has ended.
    fn start(&self, way: &str, dir: &Path, iterations: u64) -> (Child, Vec<u64>) {
        let mut child = self.command(way, dir).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut done = Vec::new();
        while (done.len() as u64) < iterations {
            let Some(Ok(line)) = lines.next() else { break };
            done.extend(iteration(&line));
        }
        // What it says later must not block it.
        thread::spawn(move || lines.for_each(drop));
        (child, done)
    }

    /// Kills it several times, in any iteration, and compares the result with an undisturbed run.
    fn is_killed(&self, way: &str, seed: u64) {
        let undisturbed = tempfile::tempdir().unwrap();
        let (expected, all) = self.finish(way, undisturbed.path());
        assert!(all.len() > 8, "{all:?}");
        let mut rng = Rng::with_seed(seed);
        let (rounds, mut resumed) = (amount(3, 60), 0);
        for round in 0..rounds {
            let dir = tempfile::tempdir().unwrap();
            let mut kept = 0;
            for _ in 0..3 {
                let (mut child, done) = self.start(way, dir.path(), rng.u64(1..=6));
                thread::sleep(Duration::from_micros(rng.u64(..2000)));
                child.kill().unwrap();
                child.wait().unwrap();
                // It goes on after an iteration that was kept, and not before one that was known to
                // be.
                let first = done.first().map_or(kept + 1, |first| *first);
                assert!(first > kept, "round {round}: {first} was done before, {kept} was kept");
                assert!((first - 1).is_multiple_of(self.every), "round {round}: goes on with {first}");
                kept = kept.max(done.last().map_or(0, |last| last.saturating_sub(1)) / self.every * self.every);
            }
            let (result, rest) = self.finish(way, dir.path());
            resumed += u64::from(rest.len() < all.len());
            assert!(result == expected, "round {round}: another result after {rest:?}");
        }
        assert!(resumed > 0, "it never went on from a state that was kept");
        covered("applications killed and resumed", rounds);
    }

    /// Asks it to stop: it ends at once, with its state kept.
    fn is_asked_to_stop(&self, way: &str, signal: Signal, code: i32) {
        let (dir, undisturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (expected, all) = self.finish(way, undisturbed.path());
        let mut child = self.command(way, dir.path()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert_eq!(iteration(&first), Some(1));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let said: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{said:?}");
        let stopped = said.last().unwrap();
        assert!(stopped.contains("stopped by SIG") && stopped.contains("run it again to go on"), "{said:?}");
        let done = said.iter().filter_map(|line| iteration(line)).next_back().unwrap_or(1);
        assert!(done < all.len() as u64);
        // Nothing that was done is done again.
        let (result, rest) = self.finish(way, dir.path());
        assert_eq!(rest.first(), Some(&(done + 1)));
        assert!(result == expected);
    }
}

/// The number in "name: iteration 7 of 20".
fn iteration(line: &str) -> Option<u64> {
    line.split_once(": iteration ")?.1.split_once(" of ")?.0.parse().ok()
}

#[test]
fn lu_goes_on_after_kills() {
    LU.is_killed("pool", 1);
    LU.is_killed("file", 2);
}

#[test]
fn crack_goes_on_after_kills() {
    CRACK.is_killed("pool", 3);
    CRACK.is_killed("file", 4);
}

#[test]
fn pagerank_goes_on_after_kills() {
    PAGERANK.is_killed("pool", 5);
    PAGERANK.is_killed("file", 6);
}

#[test]
fn droplet_goes_on_after_kills() {
    DROPLET.is_killed("pool", 7);
    DROPLET.is_killed("file", 8);
}

#[test]
fn programs_stop_when_they_are_asked_to() {
    // Slow enough that the signal comes before the end.
    let slow = |program, options, every| Case { program, options, every };
    slow(LU.program, &["--order", "600", "--block", "8"], 7).is_asked_to_stop("pool", Signal::TERM, 143);
    slow(CRACK.program, &["--columns", "60", "--rows", "60", "--steps", "120"], 1000).is_asked_to_stop(
        "file",
        Signal::TERM,
        143,
    );
    slow(PAGERANK.program, &["--scale", "13", "--tolerance", "0", "--iterations", "60"], 50).is_asked_to_stop(
        "pool",
        Signal::INT,
        130,
    );
    slow(DROPLET.program, &["--level", "5", "--steps", "40", "--radius", "0.2"], 100).is_asked_to_stop(
        "pool",
        Signal::TERM,
        143,
    );
}

#[test]
fn without_a_state_a_stop_says_that_nothing_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let case = Case { program: CRACK.program, options: &["--columns", "60", "--steps", "100000"], every: 1 };
    let mut child = case.command("memory", dir.path()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.next();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let last = lines.map(Result::unwrap).last().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(last.contains("nothing was kept (--keep memory)"), "{last}");
}

#[test]
fn a_state_is_kept_when_it_is_worth_it() {
    let (dir, undisturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (expected, all) = PAGERANK.finish("pool", undisturbed.path());
    let worth = |way: &str| {
        let mut command = PAGERANK.command(way, dir.path());
        // The last one counts.
        command.args(["--every", "worth", "--mtbf", "1"]).output().unwrap()
    };
    let output = worth("file");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("--every worth needs a pool"), "{said}");
    assert!(!dir.path().join("state").exists());
    let output = worth("pool");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().filter_map(iteration).collect::<Vec<_>>(), all);
    assert!(fs::read(dir.path().join("output")).unwrap() == expected);
}
