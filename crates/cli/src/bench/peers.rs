//! `outcrop bench peers`: starts the benchmark of the Python package, which knows the peers.

use std::{env, os::unix::process::CommandExt, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use clap::Args;

#[derive(Args)]
pub(crate) struct PeersArgs {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Use smaller workloads: some minutes.
    #[arg(long)]
    quick: bool,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The Python environment that peers are installed into [default: one in the cache directory
    /// of the user].
    #[arg(long, value_name = "DIR")]
    venv: Option<PathBuf>,
    /// Where to draw what was measured.
    #[arg(long, value_name = "FILE", default_value = "outcrop-peers.png")]
    plot: PathBuf,
}

/// Becomes the Python program.
pub(super) fn run(args: &PeersArgs) -> Result<()> {
    let python = env::var("OUTCROP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&python).args(["-c", "import outcrop.peers"]).output();
    let found = found.with_context(|| format!("cannot run {python}; OUTCROP_PYTHON names the interpreter"))?;
    ensure!(
        found.status.success(),
        "{python} has no package outcrop, which measures the peers; install it (pip install bindings/python), or name \
         an interpreter that has it in OUTCROP_PYTHON, and run python -m outcrop bench --peers"
    );
    let mut command = Command::new(&python);
    command.args(["-m", "outcrop", "bench", "--peers"]);
    command.args(args.json.then_some("--json")).args(args.quick.then_some("--quick"));
    command.arg("--dir").arg(&args.dir).arg("--plot").arg(&args.plot);
    if let Some(venv) = &args.venv {
        command.arg("--venv").arg(venv);
    }
    Err(command.exec()).with_context(|| format!("cannot run {python}"))
}
