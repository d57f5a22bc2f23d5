//! `outcrop mpi`: the library that Outcrop loads in programs with MPI.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use outcrop::Error;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum MpiCommand {
    /// Compile liboutcrop-mpi.so for an MPI, and print where it is.
    ///
    /// A program that opens a store over MPI compiles it by itself if the compiler of its MPI is
    /// there. Run this where the compiler is, such as on a login node, if it is not where the
    /// program runs. Preload the library, or link with it, to mark what MPI receives as changed:
    /// `LD_PRELOAD=$(outcrop mpi build)`. OUTCROP_MPI_DIR says where libraries are kept; by default
    /// in `~/.cache/outcrop/mpi`.
    Build {
        /// The compiler of the MPI. Default: the value of OUTCROP_MPICC, or mpicc.
        #[arg(long, value_name = "PATH")]
        mpicc: Option<PathBuf>,
    },
}

/// Carries it out.
pub(crate) fn run(command: &MpiCommand) -> Result<()> {
    let MpiCommand::Build { mpicc } = command;
    let built = outcrop_mpi::build(mpicc.as_deref(), None).map_err(Error::from)?;
    let verb = if built.was_there { "was compiled before" } else { "compiled" };
    eprintln!("outcrop: {verb}, for {}", built.mpi);
    println!("{}", built.path.display());
    Ok(())
}
