//! What liboutcrop-mpi.so costs each message: two ranks of MPI that send to and fro.

use std::{
    env, fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The program of both ranks.
const PROGRAM: &str = include_str!("ping.c");

/// The lines that it prints: their first word, the key of the ratio, and what was done.
const LINES: [(&str, &str, &str); 3] = [
    ("latency", "pmpi_latency", "a message of 8 bytes (MPI_Recv)"),
    ("latency_later", "pmpi_latency_later", "a message of 8 bytes (MPI_Irecv and MPI_Wait)"),
    ("bandwidth", "pmpi_bandwidth", "a message of 1 MiB (MPI_Recv)"),
];

/// What one kind of message takes, one way, at the median of all turns.
#[derive(Debug)]
pub(crate) struct Ping {
    pub(crate) key: &'static str,
    pub(crate) about: &'static str,
    pub(crate) past_seconds: f64,
    pub(crate) through_seconds: f64,
}

/// Measures with the MPI whose compiler is `OUTCROP_MPICC`, or `mpicc`; `None` if there is none.
pub(crate) fn run(directory: &Path, turns: u32) -> Result<Option<Vec<Ping>>> {
    let mpicc = PathBuf::from(env::var_os("OUTCROP_MPICC").unwrap_or_else(|| "mpicc".into()));
    let mpirun = mpicc.with_file_name("mpirun");
    for tool in [&mpicc, &mpirun] {
        match Command::new(tool).arg("--version").output() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            outcome => outcome.with_context(|| format!("cannot run {}", tool.display()))?,
        };
    }
    let scratch = tempfile::tempdir_in(directory)?;
    let layer = outcrop_mpi::build(Some(&mpicc), Some(scratch.path())).map_err(outcrop::Error::from)?.path;
    let (source, program) = (scratch.path().join("ping.c"), scratch.path().join("ping"));
    fs::write(&source, PROGRAM)?;
    let folder = layer.parent().context("a library is in a directory")?;
    let mut compile = Command::new(&mpicc);
    compile.args(["-std=gnu11", "-O2"]).args([&source, &layer]).arg("-o").arg(&program).arg("-ldl");
    said(compile.arg(format!("-Wl,-rpath,{}", std::path::absolute(folder)?.display())))?;
    let mut ranks = Command::new(&mpirun);
    // Open MPI asks for these; others do not know them.
    for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
        ranks.env(name, "1").env(format!("{name}_CONFIRM"), "1");
    }
    ranks.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_hwloc_base_binding_policy", "none");
    ranks.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    let printed = said(ranks.args(["-n", "2"]).arg(&program).arg(turns.to_string()))?;
    LINES.map(|(word, key, about)| parse(&printed, word, key, about)).into_iter().collect::<Result<_>>().map(Some)
}

fn parse(printed: &str, word: &str, key: &'static str, about: &'static str) -> Result<Ping> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let line = printed.lines().map(words).find(|words| words[0] == word && words.len() == 3);
    let line = line.with_context(|| format!("the ranks have printed no {word}: {printed}"))?;
    Ok(Ping { key, about, past_seconds: line[1].parse()?, through_seconds: line[2].parse()? })
}

/// What a command prints. It must succeed.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} has failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
