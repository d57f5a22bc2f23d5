//! The `outcrop` program: what stores hold, a demonstration, migrations of one's own, and benchmarks.

#![forbid(unsafe_code)]

mod bench;
mod demo;
mod progress;
mod rtm;
mod say;
mod sim;
mod store;
mod survey;
mod table;

use std::{path::PathBuf, process::ExitCode};

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use outcrop_bench::rtm::Room;

/// Keeps the states that a simulation passes through.
///
/// Saving one costs the program a memory copy or less; the bytes sink to larger and slower layers in the background, and
/// come back up before they are asked for.
///
/// Exit codes: 0 success, 1 failure, 2 wrong usage; 10 a setting that makes no sense, 11 snapshot or file exists,
/// 12 snapshot, session, version or region missing, 13 snapshot too large, 14 no room, 15 no room because of what the
/// program holds, 16 bytes came back changed, 17 storage failed, 18 another process is in the way. Set OUTCROP_LOG=debug to see more of what happens inside.
#[derive(Parser)]
#[command(name = "outcrop", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Image a salt body with reverse time migration, its snapshots on a tape; then the same with plain files.
    Demo(demo::DemoArgs),
    /// Migrate a model of your own.
    Rtm(rtm::RtmArgs),
    /// Measure every layer that this machine has, and write a profile that tapes can use.
    Survey(survey::SurveyArgs),
    /// Simulate the figures of the papers on models of their machines, with the same plan that tapes use.
    Sim(sim::SimArgs),
    #[command(flatten)]
    Store(store::StoreCommand),
    /// Measure, against the obvious alternatives in the same run.
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Where snapshots go.
#[derive(Args, Clone)]
pub(crate) struct RoomArgs {
    /// Host memory for snapshots.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    host: ByteSize,
    /// Directory for the snapshots that do not fit; nothing is left in it.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// At most so many bytes in the directory.
    #[arg(long, value_name = "SIZE", default_value = "64 GiB")]
    dir_size: ByteSize,
}

impl RoomArgs {
    pub(crate) fn room(&self) -> Room {
        Room { host_bytes: self.host.as_u64(), directory: self.dir.clone(), dir_bytes: self.dir_size.as_u64() }
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("OUTCROP_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Rtm(args) => rtm::run(&args),
        Command::Survey(args) => survey::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Store(command) => store::run(&command),
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

/// What happened and why; a cause that was named already is not repeated.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !message.contains(&cause) {
            message = if message.is_empty() { cause } else { format!("{message}: {cause}") };
        }
    }
    message
}

/// What the shell is told of an error.
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
