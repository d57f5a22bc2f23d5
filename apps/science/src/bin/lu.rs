//! The program `lu`.

use std::process::ExitCode;

fn main() -> ExitCode {
    outcrop_science::main::<outcrop_science::lu::Lu>()
}
