//! The `outcrop` program: inspects stores, runs a demonstration and migrations, measures and
//! simulates.

#![forbid(unsafe_code)]

mod annotate;
mod bench;
mod demo;
mod model;
mod mpi;
mod node;
mod pool;
mod progress;
mod rtm;
mod run;
mod say;
mod sim;
mod store;
mod survey;
mod table;

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use bytesize::ByteSize;
use clap::{Args, CommandFactory, Parser, Subcommand};
use outcrop_bench::rtm::Room;
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    fmt,
    prelude::*,
};

/// The end of `--help`.
const AFTER_HELP: &str = "\
Start with `outcrop demo`. Inspect checkpoints with `outcrop ls DIR`.

Exit codes:
   0  success
   1  failure
   2  wrong command line
   3  it is not time to save (outcrop due)
  10  wrong setting
  11  the snapshot or file exists already
  12  no such snapshot, session, version or region
  13  the snapshot is larger than the memory for it
  14  no room
  15  no room because of what the program holds
  16  damaged: bytes came back changed
  17  a disk or another storage failed
  18  another process is in the way

Environment:
  OUTCROP_LOG=debug   log more (error, warn, info, debug, trace; default: warn)";

/// Keeps the states that a simulation passes through, and brings them back.
///
/// A save costs the program one memory copy or less. In the background the bytes sink to larger and
/// slower layers, and they come back up before the program asks for them.
#[derive(Parser)]
#[command(name = "outcrop", version, propagate_version = true, after_long_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a reverse time migration with its snapshots on a tape, then with plain files.
    ///
    /// The migration images a salt body. The forward pass of each shot makes more snapshots than
    /// the host memory holds. They sink to the directory, and come back before the backward pass
    /// asks for them. Then the same migration runs with plain files, for comparison. It takes about
    /// a minute.
    Demo(demo::DemoArgs),
    #[command(flatten)]
    Store(store::StoreCommand),
    /// Show, verify and export the versions of a pool.
    #[command(subcommand)]
    Pool(pool::PoolCommand),
    /// Translate a C source with `#pragma nvcp` to one that keeps its state in a pool.
    Annotate(annotate::AnnotateArgs),
    /// Compile C sources, those with `#pragma nvcp` translated: make CC="outcrop cc -- gcc".
    Cc(annotate::CcArgs),
    /// Run a program that nobody has changed, with its output in memory first.
    ///
    /// What the program writes below a directory lands in memory of this machine and drains to the
    /// file system in the background. When the program has ended, `outcrop run` waits until
    /// everything is drained. It ends with the exit code of the program (or by the same signal);
    /// with 127 if there is no such program; with 17 if something could not be drained, which it
    /// names.
    Run(run::RunArgs),
    /// Compile the library for programs with MPI.
    #[command(subcommand)]
    Mpi(mpi::MpiCommand),
    /// Start, watch, drain and stop the daemon that caches output in memory.
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Train the model by which pools decide when to persist.
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Run a reverse time migration of your own model.
    ///
    /// The configuration is TOML. Every key has a default, so an empty file gives a small salt
    /// model. docs/rtm.md describes the keys.
    Rtm(rtm::RtmArgs),
    /// Measure memory, devices and directories, and write a profile for tapes.
    Survey(survey::SurveyArgs),
    /// Compare Outcrop with the obvious alternatives.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Simulate the figures of the papers with the planner that tapes use.
    Sim(sim::SimArgs),
    /// Write the manual pages of all commands.
    #[command(hide = true)]
    Man {
        /// Directory for the pages; it is created if it is missing.
        #[arg(value_name = "DIR")]
        to: PathBuf,
    },
}

/// Writes a page for each command, from what `--help` is made of.
fn write_manual(to: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write manual pages to {}", to.display());
    std::fs::create_dir_all(to).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), to).with_context(cannot)
}

/// Where snapshots are stored.
#[derive(Args, Clone)]
pub(crate) struct RoomArgs {
    /// Host memory for snapshots.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    host: ByteSize,
    /// Directory for the snapshots that do not fit into memory; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Limit of the files in that directory.
    #[arg(long, value_name = "SIZE", default_value = "64 GiB")]
    dir_size: ByteSize,
}

impl RoomArgs {
    pub(crate) fn room(&self) -> Room {
        Room { host_bytes: self.host.as_u64(), directory: self.dir.clone(), dir_bytes: self.dir_size.as_u64() }
    }
}

fn main() -> ExitCode {
    let filter = std::env::var("OUTCROP_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    // No colours in files.
    let lines = fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let result = match Cli::parse().command {
        Command::Run(args) => match run::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Cc(args) => match annotate::cc(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Annotate(args) => annotate::annotate(&args),
        Command::Mpi(command) => mpi::run(&command),
        Command::Node(command) => node::run(&command),
        Command::Demo(args) => demo::run(&args),
        Command::Rtm(args) => rtm::run(&args),
        Command::Survey(args) => survey::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Man { to } => write_manual(&to),
        Command::Store(command) => match store::run(&command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Pool(command) => pool::run(&command),
        Command::Model(command) => model::run(&command),
        Command::Bench(command) => bench::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outcrop: {}", message(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The error and its causes. A cause whose text was already printed is left out.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !message.contains(&cause) {
            message = if message.is_empty() { cause } else { format!("{message}: {cause}") };
        }
    }
    message
}

/// The exit code of an error.
fn exit_code(error: &anyhow::Error) -> u8 {
    use outcrop_rtm::Error as Rtm;
    let of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let of_tape = cause.downcast_ref::<outcrop::Error>().map(outcrop::Error::kind);
        let is_setting = matches!(
            cause.downcast_ref::<Rtm>(),
            Some(Rtm::Syntax(_) | Rtm::Setting { .. } | Rtm::Unstable { .. } | Rtm::Model(_) | Rtm::ModelFile { .. })
        );
        let is_of_model = matches!(
            cause.downcast_ref::<outcrop_sim::Error>(),
            Some(error) if !matches!(error, outcrop_sim::Error::File { .. } | outcrop_sim::Error::Plot { .. })
        );
        let is_there = cause.is::<store::Exists>().then_some(outcrop::ErrorKind::Exists);
        of_tape.or(is_there).or((is_setting || is_of_model).then_some(outcrop::ErrorKind::Usage))
    };
    error.chain().find_map(of_cause).map_or(1, outcrop::ErrorKind::exit_code)
}
