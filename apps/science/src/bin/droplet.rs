//! The program `droplet`.

use std::process::ExitCode;

fn main() -> ExitCode {
    outcrop_science::main::<outcrop_science::droplet::Droplet>()
}
