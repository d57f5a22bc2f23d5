//! Writes to the standard output.

use std::{
    fmt,
    io::{self, Write},
    process,
};

/// Prints a line, as `println!` does. If the output is a closed pipe
/// (`outcrop sim list | head -1`), the program ends without an error.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}
pub(crate) use say;

pub(crate) fn line(text: fmt::Arguments<'_>) {
    let Err(error) = writeln!(io::stdout(), "{text}") else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        process::exit(0);
    }
    eprintln!("outcrop: cannot write to the standard output: {error}");
    process::exit(1);
}
