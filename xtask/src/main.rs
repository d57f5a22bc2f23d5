//! Checks that keep the project in shape, and what is made from it: `cargo xtask check`,
//! `cargo xtask install`.

#![forbid(unsafe_code)]

mod header;
mod install;
mod links;
mod model;
mod mutants;
mod papers;
mod settings;
mod soak;
mod tidy;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str =
    "usage: cargo xtask check | tidy | soak | mutants | model | header | settings | install --prefix DIR

check:    format, clippy, tidy, and whether the C header and the pages on settings are up to date
tidy:     what no linter knows: which crate may use which, sizes of files, first lines, wrapped prose
soak:     all tests with their sweeps at full size, and a table of what they covered
mutants:  whether tests notice faults that are put into a copy of the tree: all, or
          hand [WORD...]               those made by hand, with these words in their names
          CRATE... [-- ARGUMENT...]    those that cargo-mutants makes in plan, format, catalog, commit, store or pool
model:    measure this machine, which must be idle, and make the built-in cost model and its test data again
header:   make the C header again
settings: make docs/settings.md and the Python types of settings again
install:  build everything and put programs, libraries, headers and modules below DIR";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        ["tidy"] => tidy::check(),
        ["soak"] => soak::run(),
        ["mutants", ref arguments @ ..] => mutants::run(arguments),
        ["model"] => model::write(),
        ["header"] => root().and_then(|root| header::write(&root)),
        ["settings"] => root().and_then(|root| settings::write(&root)),
        ["install", "--prefix", prefix] => install(Path::new(prefix)),
        _ => Err(anyhow::anyhow!(USAGE)),
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
    tidy::check()?;
    header::check(&root()?)?;
    settings::check(&root()?)
}

/// Builds everything and puts it below a directory.
fn install(prefix: &Path) -> Result<()> {
    let mut arguments = vec!["build", "--profile", "dist"];
    arguments.extend(install::PACKAGES.iter().flat_map(|package| ["-p", package]));
    arguments.extend(["--features", "outcrop-cli/object"]);
    cargo(&arguments)?;
    let root = root()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    install::put(&root, &target.join("dist"), prefix)?;
    println!("Outcrop is installed in {}", prefix.display());
    for (name, bytes) in install::sizes(prefix)? {
        println!("{:8.1} MB  {name}", bytes as f64 / 1e6);
    }
    Ok(())
}

/// The directory of the workspace.
fn root() -> Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?.to_owned())
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
