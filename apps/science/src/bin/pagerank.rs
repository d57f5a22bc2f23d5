//! The program `pagerank`.

use std::process::ExitCode;

fn main() -> ExitCode {
    outcrop_science::main::<outcrop_science::pagerank::PageRank>()
}
