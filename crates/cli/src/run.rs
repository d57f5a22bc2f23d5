//! `outcrop run`: runs a program that nobody has changed, with its output in memory first.

use std::{
    ffi::OsString,
    io::IsTerminal,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use outcrop::{Error, ErrorKind};
use outcrop_intercept::{Event, Fsync, Outcome, Pattern, RunOptions, Via, WriteThrough, stage::Amount};
use outcrop_node::{Cache, Client};

use crate::node::{DaemonArgs, all_drained, failed};

/// A daemon that was started for a program ends when nobody has used it for this long.
const IDLE: Duration = Duration::from_secs(10);
/// The exit code if the program cannot be found, as shells have it.
const NOT_FOUND: u8 = 127;

/// What to run, and how.
#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Cache the files below this directory; by default the working directory. Can be given several
    /// times.
    #[arg(long, value_name = "DIR")]
    under: Vec<PathBuf>,
    /// Cache only files that match, as in '*.h5' or 'output/**'. Can be given several times.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<Pattern>,
    /// Do not cache files that match. Can be given several times.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<Pattern>,
    /// How to intercept the program's calls.
    #[arg(long, value_enum, default_value_t = Way::Auto)]
    via: Way,
    /// What fsync of the program means: on the file system, or in memory of the node.
    #[arg(long, value_enum, default_value_t = FsyncTo::Disk)]
    fsync: FsyncTo,
    /// Say this often how much is in memory and not on the file system, as in 10s. For seccomp and
    /// preload; with fuse, `outcrop node top` shows it.
    #[arg(long, value_name = "TIME")]
    report: Option<humantime::Duration>,
    /// Do not read back and compare what was drained. Only if this starts the daemon.
    #[arg(long)]
    no_verify: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// The best that this machine allows.
    Auto,
    /// A mount over the directory: for all programs and all processes of the machine.
    Fuse,
    /// The kernel asks about calls that name paths: without privileges, for all programs.
    Seccomp,
    /// A library loaded before others: for programs that are linked dynamically.
    Preload,
}

#[derive(Clone, Copy, ValueEnum)]
enum FsyncTo {
    Disk,
    Memory,
}

/// Runs the program. The result is its own exit code, unless something is not drained.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let via = outcrop_intercept::choose(match args.via {
        Way::Auto => None,
        Way::Fuse => Some(Via::Fuse),
        Way::Seccomp => Some(Via::Seccomp),
        Way::Preload => Some(Via::Preload),
    })?;
    let (program, arguments) = args.command.split_first().expect("clap demands one");
    let mut command = Command::new(program);
    command.args(arguments);
    let under = if args.under.is_empty() { vec![PathBuf::from(".")] } else { args.under.clone() };
    // What a run that was killed has left: the next daemon could not reach its files.
    for directory in &under {
        outcrop_intercept::fuse::clear_stale(directory)?;
        std::fs::metadata(directory.join(".")).map_err(|error| {
            let attempt = format!("cannot cache files below {}; choose another directory", directory.display());
            Error::caused(ErrorKind::Usage, attempt, error)
        })?;
    }
    args.daemon.check_trace(via == Via::Fuse)?;
    let (cache, client, memory) = cache(args, via)?;
    let options = RunOptions {
        under,
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        via: Some(via),
        fsync: match args.fsync {
            FsyncTo::Disk => Fsync::Disk,
            FsyncTo::Memory => Fsync::Memory,
        },
        cache,
        memory,
        report_every: args.report.map(Into::into),
    };
    let mut progress = Progress::default();
    let outcome = match outcrop_intercept::run(options, command, |event| progress.show(&event)) {
        Err(error) if error.kind() == ErrorKind::Missing => {
            eprintln!("outcrop: {error:#}");
            return Ok(ExitCode::from(NOT_FOUND));
        }
        outcome => outcome?,
    };
    drop(progress);
    let mut undrained = report(&outcome);
    if let (true, Some(client)) = (outcome.is_joined, &client) {
        undrained = undrained.and(drain_others(client));
    }
    match undrained {
        Err(error) if outcome.status.success() => Err(error.into()),
        Err(error) => {
            eprintln!("outcrop: {error}");
            Ok(as_the_program(outcome.status))
        }
        Ok(()) => Ok(as_the_program(outcome.status)),
    }
}

/// What holds the bytes, and how many. Staged files need no daemon: they are in memory by
/// themselves.
fn cache(args: &RunArgs, via: Via) -> Result<(Arc<dyn Cache>, Option<Client>, u64)> {
    if via != Via::Fuse {
        return Ok((Arc::new(WriteThrough), None, args.daemon.memory_bytes().map_err(failed)?));
    }
    let client = Client::connect(&args.daemon.connect(IDLE, !args.no_verify)?).map_err(failed)?;
    let memory = client.status().map_err(failed)?.limit_bytes;
    Ok((Arc::new(client.clone()), Some(client), memory))
}

/// Drains what is cached below the mount of another run, which this program may have written.
fn drain_others(client: &Client) -> outcrop::Result<()> {
    let outcome = client.drain_all();
    all_drained(&client.status().map_err(failed)?.files)?;
    outcome.map_err(failed)
}

/// Ends as the program has ended: with its exit code, or by the same signal.
fn as_the_program(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        outcrop_intercept::end_by(signal);
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// An error that names everything that is not on the file system.
fn report(outcome: &Outcome) -> outcrop::Result<()> {
    if outcome.undrained.is_empty() {
        return Ok(());
    }
    for file in &outcome.undrained {
        eprintln!("outcrop: not drained: {}: {}", file.path.display(), file.error);
    }
    let count = outcome.undrained.len();
    let remedy = match outcome.keeper {
        None => "the node daemon still has them: mend the cause, then `outcrop node drain` tries again".to_owned(),
        Some(keeper) => format!(
            "process {keeper} still has them: mend the cause, it tries again every second and ends when they are \
             drained; `kill -9 {keeper}` gives them up"
        ),
    };
    let message = format!("{count} of the program's files are not on the file system as it wrote them; {remedy}");
    Err(Error::new(ErrorKind::Storage, message))
}

/// What a person sees after the program has ended: a bar on a terminal, otherwise lines.
#[derive(Default)]
struct Progress(Option<ProgressBar>);

impl Progress {
    fn show(&mut self, event: &Event<'_>) {
        match event {
            Event::InUse { directory, processes } => {
                let by = if processes.is_empty() { "other processes".to_owned() } else { processes.join(", ") };
                eprintln!("outcrop: waiting for {by}, which still use files below {}", directory.display());
            }
            Event::Staged(Amount { files, bytes, failed }) => {
                let bytes = ByteSize::b(*bytes);
                eprintln!(
                    "outcrop: {files} files with {bytes} are in memory; {failed} of them could not be drained yet"
                );
            }
            Event::Draining { done, files } if std::io::stderr().is_terminal() => {
                let bar = self.0.get_or_insert_with(|| {
                    let style = ProgressStyle::with_template("    draining [{bar:40}] {pos} of {len} files");
                    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ");
                    ProgressBar::new(*files as u64).with_style(style)
                });
                bar.set_position(*done as u64);
            }
            Event::Draining { .. } => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
