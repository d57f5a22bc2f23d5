//! The command line of every program.

use std::{
    fs,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::{Args, CommandFactory, FromArgMatches, Parser, value_parser};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{Error, Job, Program, Result, Signal, Stop, Way, job::MTBF};

/// How often to print a line if the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What is the same for every program.
#[derive(Debug, Clone, Args)]
pub struct Keeping {
    /// How the state is kept.
    #[arg(long, value_name = "WAY", default_value = "pool", help_heading = "State")]
    pub keep: Way,
    /// The file of the state [default: the program's name with .pool or .checkpoint]. If it is
    /// there, the program goes on from it.
    #[arg(long, value_name = "FILE", help_heading = "State")]
    pub state: Option<PathBuf>,
    /// Keep the state after every so many iterations, and at the end [default: depends on the
    /// program]. `worth`: when the work that a failure would cost is worth it (pools only).
    #[arg(long, value_name = "COUNT", value_parser = every, overrides_with = "every", help_heading = "State")]
    pub every: Option<Every>,
    /// Seconds between two failures, on average, for `--every worth`.
    #[arg(long, value_name = "SECONDS", default_value_t = MTBF.as_secs(), value_parser = value_parser!(u64).range(1..),
          help_heading = "State")]
    pub mtbf: u64,
    /// Compute threads; 0: one for each core. The result does not depend on it.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = threads)]
    pub threads: usize,
    /// Print a line for each iteration.
    #[arg(long)]
    pub verbose: bool,
    /// Write the result there: little-endian numbers.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Draw the last state there (PNG).
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}

/// When the state is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// After so many iterations.
    Iterations(u64),
    /// When it is worth it.
    Worth,
}

fn every(text: &str) -> std::result::Result<Every, String> {
    match (text, text.parse()) {
        ("worth", _) => Ok(Every::Worth),
        (_, Ok(count)) if count > 0 => Ok(Every::Iterations(count)),
        _ => Err("neither `worth` nor a number from 1 on".to_owned()),
    }
}

fn threads(text: &str) -> std::result::Result<usize, String> {
    let count = text.parse().map_err(|_| "not a number".to_owned())?;
    if count <= 1024 { Ok(count) } else { Err("at most 1024".to_owned()) }
}

#[derive(Parser)]
#[command(version, after_help = AFTER)]
struct Cli<S: Args> {
    #[command(flatten)]
    settings: S,
    #[command(flatten)]
    keeping: Keeping,
}

const AFTER: &str = "\
If the program is killed, run it again with the same options: it goes on from the last state that was kept, and \
its result is the same to the last bit. On SIGTERM and SIGINT it finishes the iteration and keeps the state.

Exit codes: 0: finished. 1: an error. 2: wrong options. 143: stopped by SIGTERM. 130: stopped by SIGINT.";

/// The main function of a program.
pub fn main<P: Program>() -> ExitCode {
    let command = Cli::<P::Settings>::command().name(P::NAME).about(P::ABOUT);
    let parsed = Cli::<P::Settings>::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    match run::<P>(&parsed.settings, &parsed.keeping) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(signal.exit_code()),
        Err(error) => {
            eprintln!("{}: {error}", P::NAME);
            ExitCode::FAILURE
        }
    }
}

/// Runs to the end, or until a signal comes.
fn run<P: Program>(settings: &P::Settings, keeping: &Keeping) -> Result<Option<Signal>> {
    rayon::ThreadPoolBuilder::new().num_threads(keeping.threads).build_global()?;
    let stop = Stop::listen()?;
    let ending = keeping.keep.ending().unwrap_or_default();
    let path = keeping.state.clone().unwrap_or_else(|| Path::new(P::NAME).with_extension(ending));
    let every = keeping.every.unwrap_or(Every::Iterations(P::EVERY));
    if every == Every::Worth && !matches!(keeping.keep, Way::Pool | Way::PoolNvm) {
        return Err(Error::NotWorth { way: keeping.keep.name() });
    }
    let mut job = Job::<P>::open_with(settings, keeping.keep, &path, Duration::from_secs(keeping.mtbf))?;
    if job.done() > 0 {
        eprintln!("{}: goes on after iteration {} ({})", P::NAME, job.done(), path.display());
    }
    let mut shown = Shown::new(P::NAME, job.iterations(), keeping.verbose);
    while !job.is_finished() {
        job.step();
        shown.show(job.done());
        let signal = stop.asked();
        match every {
            _ if signal.is_some() || job.is_finished() => drop(job.persist()?),
            Every::Iterations(count) if job.done().is_multiple_of(count) => drop(job.persist()?),
            Every::Iterations(_) => {}
            Every::Worth => job.persist_if_worth_it()?,
        }
        if let Some(signal) = signal.filter(|_| !job.is_finished()) {
            drop(shown);
            match keeping.keep.ending() {
                Some(_) => eprintln!(
                    "{}: stopped by {} after iteration {}; its state is in {}: run it again to go on",
                    P::NAME,
                    signal.name(),
                    job.done(),
                    path.display()
                ),
                None => eprintln!(
                    "{}: stopped by {} after iteration {}; nothing was kept (--keep {})",
                    P::NAME,
                    signal.name(),
                    job.done(),
                    keeping.keep.name()
                ),
            }
            return Ok(Some(signal));
        }
    }
    drop(shown);
    println!("{} iterations; {}", job.done(), job.program().report());
    if let Some(path) = &keeping.output {
        fs::write(path, job.program().output()).map_err(Error::file("write", path))?;
    }
    if let Some(path) = &keeping.picture {
        match job.program().picture() {
            Some(picture) => picture.save(path)?,
            None => eprintln!("{}: there is nothing to draw", P::NAME),
        }
    }
    Ok(None)
}

/// Progress: a bar on a terminal, otherwise a line from time to time.
struct Shown {
    name: &'static str,
    all: u64,
    bar: Option<ProgressBar>,
    is_verbose: bool,
    last_line: Instant,
}

impl Shown {
    fn new(name: &'static str, all: u64, is_verbose: bool) -> Self {
        let bar = (!is_verbose && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{prefix} [{bar:40}] iteration {pos} of {len} (left: {eta})");
            let bar = ProgressBar::new(all);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
            bar.set_prefix(name);
            bar
        });
        Self { name, all, bar, is_verbose, last_line: Instant::now() }
    }

    fn show(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.is_verbose || self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}: iteration {done} of {}", self.name, self.all);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
