//! How much a sweep tries: little by default, all of it in `cargo xtask soak`.

use crate::say;

/// Set by `cargo xtask soak`.
const SOAK: &str = "OUTCROP_SOAK";

/// What [`covered`] begins its lines with. `cargo xtask soak` looks for it.
const MARK: &str = "COVERED";

/// Whether sweeps run at full size.
pub fn soak() -> bool {
    std::env::var_os(SOAK).is_some_and(|value| value != "0")
}

/// How many of something to try: `usual`, or `full` in `cargo xtask soak`.
pub fn amount<T>(usual: T, full: T) -> T {
    if soak() { full } else { usual }
}

/// Says what a sweep covered. `cargo xtask soak` makes a table of these lines.
pub fn covered(what: &str, count: impl std::fmt::Display) {
    say(format_args!("{MARK} {what}: {count}"));
}
