//! The program `crack`.

use std::process::ExitCode;

fn main() -> ExitCode {
    outcrop_science::main::<outcrop_science::crack::Crack>()
}
