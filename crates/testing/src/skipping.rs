//! Tests that cannot run on this machine say so, and fail where all must run.

use std::io::{self, Write};

/// Set where nothing may be skipped, as in `.ci/run`.
const ALL: &str = "OUTCROP_TEST_ALL";

/// Whether a test that cannot run here is a failure.
pub fn must_run_all() -> bool {
    std::env::var_os(ALL).is_some()
}

/// Says that a test, or a part of it, cannot run here. Fails where all must run.
///
/// # Panics
/// If `OUTCROP_TEST_ALL` is set.
#[track_caller]
pub fn skip(reason: impl std::fmt::Display) {
    assert!(!must_run_all(), "{ALL} is set, but {reason}");
    say(format_args!("SKIPPED: {reason}"));
}

/// Says that a test, or a part of it, means nothing on this machine, whatever is installed. Never a
/// failure.
pub fn does_not_apply(reason: impl std::fmt::Display) {
    say(format_args!("SKIPPED: {reason}"));
}

/// Prints a line that is seen also when the test passes: the harness hides what `println!` prints.
pub fn say(line: impl std::fmt::Display) {
    // Written at once, so that lines of several threads stay whole. Who closed the output does not
    // want to see it.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
