//! Checks that keep the project in shape: `cargo xtask check`.

#![forbid(unsafe_code)]

mod tidy;

use std::process::{Command, ExitCode};

use anyhow::{Result, bail, ensure};

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("check") => check(),
        Some("tidy") => tidy::check(),
        _ => Err(anyhow::anyhow!(
            "usage: cargo xtask check | tidy\n\ncheck: format, clippy and tidy\ntidy: what no linter knows: which crate may use which, sizes of files, first lines"
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<()> {
    cargo(&["fmt", "--all", "--check"])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
    tidy::check()
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO")).args(arguments).status()?;
    ensure!(status.success(), "cargo {} found something to mend", arguments.join(" "));
    Ok(())
}

/// Ends with everything that was found.
fn report(problems: &[String]) -> Result<()> {
    if !problems.is_empty() {
        bail!("{} to mend:\n{}", problems.len(), problems.join("\n"));
    }
    Ok(())
}
