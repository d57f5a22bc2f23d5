//! The size of sweeps: small by default, full in `cargo xtask soak`.

use crate::say;

/// Set by `cargo xtask soak`.
const SOAK: &str = "OUTCROP_SOAK";

/// The prefix of the lines of [`covered`]. `cargo xtask soak` looks for it.
const MARK: &str = "COVERED";

/// Whether sweeps run at full size.
pub fn soak() -> bool {
    std::env::var_os(SOAK).is_some_and(|value| value != "0")
}

/// How many cases to try: `usual`, or `full` in `cargo xtask soak`.
pub fn amount<T>(usual: T, full: T) -> T {
    if soak() { full } else { usual }
}

/// Reports what a sweep has covered. `cargo xtask soak` makes a table of these lines.
pub fn covered(what: &str, count: impl std::fmt::Display) {
    say(format_args!("{MARK} {what}: {count}"));
}
