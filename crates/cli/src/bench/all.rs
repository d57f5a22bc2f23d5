//! `outcrop bench all`: runs every benchmark in its own process, and writes a page with the
//! results.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Instant, SystemTime},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};
use outcrop_bench::{
    Machine, file_system,
    page::{self, Entry, Results},
};
use serde_json::Value;

use crate::{Cli, say::say};

/// The subdirectory for plots and results.
const PLOTS: &str = "measured";

#[derive(Args)]
pub(crate) struct AllArgs {
    /// Directory for the page, the plots and the results.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Use smaller workloads: some four minutes.
    #[arg(long)]
    quick: bool,
    /// The smallest workloads that run at all, for tests.
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
    /// Run only these benchmarks [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Bench>,
    /// Directory for files of the benchmarks; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Python that has the outcrop package: also run its benchmark.
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
}

/// The benchmarks, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bench {
    Tape,
    Loop,
    Rtm,
    Alloc,
    Sim,
    Store,
    Increment,
    Pool,
    Interval,
    Apps,
    Node,
    Ranks,
}

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Loop => "loop",
            Self::Rtm => "rtm",
            Self::Alloc => "alloc",
            Self::Sim => "sim",
            Self::Store => "store",
            Self::Increment => "increment",
            Self::Pool => "pool",
            Self::Interval => "interval",
            Self::Apps => "apps",
            Self::Node => "node",
            Self::Ranks => "ranks",
        }
    }

    /// What differs from the defaults of a benchmark by itself, so that all together take less than
    /// half an hour: `bench alloc` alone sweeps for longer.
    fn full(self) -> &'static [&'static str] {
        match self {
            Self::Alloc => &["--host", "1 GiB", "--gaps", "0,20"],
            _ => &[],
        }
    }

    /// Sizes for tests, in which time matters and figures do not.
    fn tiny(self) -> &'static [&'static str] {
        match self {
            Self::Tape => &["--total", "48 MiB", "--snapshot", "1 MiB", "--host", "8 MiB", "--compute-ms", "1"],
            Self::Loop => &["--side", "24", "--states", "12", "--host", "256 KiB", "--sweeps", "2", "--rounds", "1"],
            Self::Rtm => &["--quick"],
            Self::Alloc => &["--host", "16 MiB", "--snapshot", "2 MiB", "--gaps", "0,2", "--rounds", "2"],
            Self::Sim => &["--host", "16 MiB", "--snapshot", "2 MiB", "--snapshots", "16"],
            Self::Store => &["--size", "8 MiB", "--rounds", "2"],
            Self::Increment => &["--size", "8 MiB", "--checkpoints", "2", "--compute-ms", "5", "--looks", "2"],
            Self::Pool => &["--size", "1 MiB", "--rounds", "3"],
            Self::Interval => &["--size", "1 MiB", "--steps", "40", "--mtbf", "0.1", "--rounds", "1"],
            Self::Node => &[
                "--burst",
                "1 MiB",
                "--writes",
                "64KiB,1MiB",
                "--ranks",
                "1,2",
                "--drains",
                "1",
                "--files",
                "20",
                "--rounds",
                "1",
            ],
            Self::Apps => &["--scale", "0.004", "--rounds", "1"],
            Self::Ranks => {
                &["--counts", "3", "--simulated", "4,256", "--saves", "2", "--seconds", "0.2", "--turns", "10"]
            }
        }
    }
}

/// One benchmark as a command line.
struct Job {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
}

impl AllArgs {
    fn jobs(&self, scratch: &Path) -> Result<Vec<Job>> {
        let program = env::current_exe().context("cannot find this program's own file")?;
        let scratch = scratch.display().to_string();
        let job = |bench: &Bench| {
            let mut arguments: Vec<String> = ["bench", bench.name(), "--json"].map(str::to_owned).into();
            if self.tiny {
                arguments.extend(bench.tiny().iter().map(|&text| text.to_owned()));
            } else if self.quick {
                arguments.push("--quick".to_owned());
            } else {
                arguments.extend(bench.full().iter().map(|&text| text.to_owned()));
            }
            if *bench != Bench::Alloc {
                arguments.extend(["--dir".to_owned(), scratch.clone()]);
            }
            Job { name: bench.name(), program: program.clone(), arguments }
        };
        let is_asked = |bench: &&Bench| self.only.is_empty() || self.only.contains(bench);
        let mut jobs: Vec<Job> = Bench::value_variants().iter().filter(is_asked).map(job).collect();
        if let Some(python) = &self.python {
            let mut arguments = ["-m", "outcrop", "bench", "--json", "--dir", &scratch].map(str::to_owned).to_vec();
            if self.quick || self.tiny {
                arguments.push("--quick".to_owned());
            }
            jobs.push(Job { name: "python", program: python.clone(), arguments });
        }
        Ok(jobs)
    }

    fn sizes(&self) -> &'static str {
        match (self.tiny, self.quick) {
            (true, _) => "tiny: the figures mean nothing",
            (_, true) => "quick",
            _ => "full",
        }
    }
}

pub(super) fn run(args: &AllArgs) -> Result<()> {
    let plots = args.output.join(PLOTS);
    fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
    let is_new = !args.dir.exists();
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot create {}", args.dir.display()))?;
    let measured = measure(args, &plots);
    if is_new {
        // It stays if others have put files there meanwhile.
        let _ = fs::remove_dir(&args.dir);
    }
    let results = measured?;
    write(&results, &args.output)?;
    say!("wrote {}, and plots and results.json in {}", args.output.join("measured.md").display(), plots.display());
    let failed = results.failed();
    if !failed.is_empty() {
        bail!("{} of {} benchmarks failed: {}", failed.len(), results.benches.len(), failed.join(", "));
    }
    Ok(())
}

/// Runs one benchmark after the other. After each of them, `results.json` has all results so far.
fn measure(args: &AllArgs, plots: &Path) -> Result<Results> {
    let directory = args.dir.canonicalize()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut results = Results {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        version: version(),
        machine: Machine::here(),
        file_system: file_system(&mounts, &directory),
        sizes: args.sizes().to_owned(),
        benches: Vec::new(),
    };
    // One directory for all, so that it is removed here, however a benchmark ends.
    let scratch = tempfile::tempdir_in(&directory)?;
    let jobs = args.jobs(scratch.path())?;
    check_room(&jobs, &directory)?;
    for (number, job) in jobs.iter().enumerate() {
        eprintln!("benchmark {} of {}: {}", number + 1, jobs.len(), job.name);
        let start = Instant::now();
        let report = report(job, scratch.path());
        let seconds = start.elapsed().as_secs_f64();
        let (report, error) = match report {
            Ok(report) => (Some(report), None),
            Err(error) => {
                eprintln!("benchmark {} failed: {error:#}", job.name);
                (None, Some(format!("{error:#}")))
            }
        };
        results.benches.push(Entry { bench: job.name.to_owned(), seconds, report, error });
        fs::write(plots.join("results.json"), serde_json::to_string_pretty(&results)?)
            .with_context(|| format!("cannot write {}", plots.join("results.json").display()))?;
    }
    Ok(results)
}

/// Checks, before the first one starts, that there is room for each of them.
fn check_room(jobs: &[Job], directory: &Path) -> Result<()> {
    for job in jobs.iter().filter(|job| job.name != "python") {
        let line = ["outcrop"].into_iter().chain(job.arguments.iter().map(String::as_str));
        let crate::Command::Bench(command) = Cli::try_parse_from(line)?.command else { continue };
        if let Some(needs) = command.needs()? {
            needs.check(directory).with_context(|| format!("bench {}", job.name))?;
        }
    }
    Ok(())
}

/// Runs a benchmark, passes on its messages, and reads its report, in which the directory for files
/// is called `scratch`. If it fails, the last message is the reason.
fn report(job: &Job, scratch: &Path) -> Result<Value> {
    let mut command = Command::new(&job.program);
    command.args(&job.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", job.program.display()))?;
    let mut stdout = child.stdout.take().context("the output is piped")?;
    let stderr = BufReader::new(child.stderr.take().context("the messages are piped")?);
    let printed = thread::spawn(move || {
        let mut printed = Vec::new();
        stdout.read_to_end(&mut printed).map(|_| printed)
    });
    let mut last = String::new();
    for line in stderr.split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim_end().to_owned();
        eprintln!("{line}");
        if !line.is_empty() {
            last = line;
        }
    }
    let status = child.wait()?;
    let printed = printed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    ensure!(status.success(), "{status}; {}", if last.is_empty() { "it said nothing" } else { &last });
    let printed = String::from_utf8_lossy(&printed).replace(&scratch.display().to_string(), "scratch");
    serde_json::from_str(&printed).context("its report is not JSON")
}

/// Writes the page, the plots, and all results.
fn write(results: &Results, output: &Path) -> Result<()> {
    for plot in page::plots(results) {
        outcrop_sim::draw(&plot.chart, &plot.bench, &plot.title, &output.join(PLOTS))?;
    }
    let path = output.join("measured.md");
    fs::write(&path, page::markdown(results, PLOTS)).with_context(|| format!("cannot write {}", path.display()))
}

/// The version, and the commit if this program was built from a checkout that still exists.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let git = ["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty", "--exclude=*"];
    let described = Command::new("git").args(git).stderr(Stdio::null()).output();
    match described {
        Ok(output) if output.status.success() => {
            format!("{version}, commit {}", String::from_utf8_lossy(&output.stdout).trim())
        }
        _ => version.to_owned(),
    }
}
