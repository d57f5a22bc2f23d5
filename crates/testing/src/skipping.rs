//! Tests that cannot run on this machine report that, and fail if all must run.

use std::io::{self, Write};

/// Set where nothing may be skipped, as in `.ci/run`.
const ALL: &str = "OUTCROP_TEST_ALL";

/// Whether a test that cannot run here is a failure.
pub fn must_run_all() -> bool {
    std::env::var_os(ALL).is_some()
}

/// Reports that a test, or a part of it, cannot run here. Fails if all must run.
///
/// # Panics
/// If `OUTCROP_TEST_ALL` is set.
#[track_caller]
pub fn skip(reason: impl std::fmt::Display) {
    assert!(!must_run_all(), "{ALL} is set, but {reason}");
    say(format_args!("SKIPPED: {reason}"));
}

/// Reports that a test, or a part of it, is meaningless on this machine, whatever is installed.
/// This is never a failure.
pub fn does_not_apply(reason: impl std::fmt::Display) {
    say(format_args!("SKIPPED: {reason}"));
}

/// Prints a line that is visible even if the test passes. The harness hides the output of
/// `println!`.
pub fn say(line: impl std::fmt::Display) {
    // One write, so that lines of several threads are not mixed. Nobody reads it if the output is
    // closed.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
