//! All tests with their sweeps at full size, and a table of what they covered.
//!
//! A sweep (crash images, kills, seeds, random cases) tries a part by default and all of it when
//! `OUTCROP_SOAK` is set. At its end it says what it covered, by `outcrop_testing::covered`.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};

/// What a line of `outcrop_testing::covered` begins with.
const MARK: &str = "COVERED ";

/// The first seed of sweeps that have one, so that a failure can be had again.
const SEED: &str = "OUTCROP_CRASH_SEED";

/// What the tests have told.
#[derive(Debug, Default)]
struct Told {
    /// What sweeps covered.
    covered: BTreeMap<String, String>,
    skipped: Vec<String>,
    failed: Vec<String>,
    passed: u64,
}

impl Told {
    /// Takes note of a line.
    fn hear(&mut self, line: &str) {
        // The harness may have begun the line.
        if let Some((_, words)) = line.split_once(MARK) {
            if let Some((what, count)) = words.split_once(": ") {
                self.covered.insert(what.to_owned(), count.to_owned());
            }
        } else if let Some((_, reason)) = line.split_once("SKIPPED: ") {
            self.skipped.push(reason.to_owned());
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed.push(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("test result: ") {
            let count = rest.split_once(". ").and_then(|(_, rest)| rest.split_once(" passed"));
            self.passed += count.and_then(|(count, _)| count.parse::<u64>().ok()).unwrap_or_default();
        }
    }

    /// The table.
    fn table(&self) -> String {
        let wide = self.covered.keys().map(|what| what.chars().count()).max().unwrap_or_default();
        let sweeps = self.covered.iter().map(|(what, count)| format!("{what:wide$}  {count}  ok\n"));
        let failed = self.failed.iter().map(|name| format!("FAILED   {name}\n"));
        let skipped = self.skipped.iter().map(|reason| format!("skipped  {reason}\n"));
        let counts = format!("{} tests passed, {} failed\n", self.passed, self.failed.len());
        sweeps.chain(failed).chain(skipped).chain([counts]).collect()
    }
}

/// Runs all tests.
pub(crate) fn run() -> Result<()> {
    let seed = env::var(SEED).unwrap_or_else(|_| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.as_secs().to_string()
    });
    println!("{SEED}={seed}");
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--no-fail-fast"]).env("OUTCROP_SOAK", "1").env(SEED, seed);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (output, errors) = (child.stdout.take().context("a pipe")?, child.stderr.take().context("a pipe")?);
    let told = Mutex::new(Told::default());
    thread::scope(|scope| {
        scope.spawn(|| follow(errors, std::io::stderr(), &told));
        follow(output, std::io::stdout(), &told);
    });
    let status = child.wait()?;
    let told = told.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("\n{}", told.table());
    ensure!(status.success(), "the tests ended with {status}");
    Ok(())
}

/// Passes lines on, and takes note of them.
fn follow(from: impl Read, mut to: impl Write, told: &Mutex<Told>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        // Who has closed the output does not want to see it.
        let _ = writeln!(to, "{line}");
        told.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_what_was_covered_and_what_failed() {
        let mut told = Told::default();
        let lines = [
            "test store_crash::no_crash_loses_what_was_durable ... COVERED crash images: 100000, lost: 0",
            "COVERED seeds of the plan: 200000",
            "SKIPPED: there is no NVRTC",
            "test limits::a_limit ... FAILED",
            "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.16s",
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.16s",
        ];
        lines.iter().for_each(|line| told.hear(line));
        let expected = "crash images       100000, lost: 0  ok\n\
                        seeds of the plan  200000  ok\n\
                        FAILED   limits::a_limit\n\
                        skipped  there is no NVRTC\n\
                        15 tests passed, 1 failed\n";
        assert_eq!(told.table(), expected);
    }
}
