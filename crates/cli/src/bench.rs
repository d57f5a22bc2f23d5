//! `outcrop bench`: measurements that anyone can repeat.

mod all;

use std::path::PathBuf;

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use outcrop_bench::{Needs, Report, alloc, increment, model, page, pool, ranks, rtm, store, tape};
use outcrop_rtm::{Config, Migration, Shots};

use crate::{RoomArgs, say::say, table};

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Run every benchmark and write one page with tables and plots.
    ///
    /// Writes measured.md into the output directory, and results.json and the plots (PNG, SVG) into
    /// its subdirectory measured. Each benchmark runs in its own process. If one fails, the page
    /// says so, the others still count, and the exit code is 1. Run it on an idle machine: it takes
    /// some twenty minutes, or some four minutes with --quick.
    All(all::AllArgs),
    /// Compare ways to keep the states of a forward pass for the backward pass.
    ///
    /// Compares storing nothing, the tape with save and with lend, a hand-written asynchronous
    /// ring, O_DIRECT without overlap, plain files with and without fsync, a mapped file, fresh
    /// memory, and memory touched (pre-faulted) in advance.
    Tape(TapeArgs),
    /// Run the migration of the demo with its snapshots on a tape, in memory and in files.
    Rtm(RtmBenchArgs),
    /// Compare what a short program pays to start: ways to allocate, touch and pin memory for its
    /// snapshots.
    ///
    /// Compares pinning everything first, memory on demand, incremental memset, and tapes that
    /// touch memory while they write, between writes, and as they choose; with one and with several
    /// processes at a time.
    Alloc(AllocArgs),
    /// Compare the simulator with reality.
    ///
    /// Runs the same workloads really, and simulated with the rates that a survey measures.
    Sim(SimBenchArgs),
    /// Compare checkpoints in a store with copies, files and the bare disk.
    ///
    /// Measures how long a full checkpoint blocks the program, how long it takes until it is
    /// durable, and how long a restore takes. Compares with a copy into touched memory (one and two
    /// threads), with a file written through the page cache, with and without fsync, and with
    /// O_DIRECT. Then incremental, live and compressed checkpoints.
    ///
    /// Ratios: blocked_over_memcpy is of times, smaller is better. durable_over_direct_write and
    /// restore_over_direct_read are of rates, larger is better. The quick state may fit into the
    /// processor's caches, where copies are faster than in memory.
    Store(StoreBenchArgs),
    /// Measure what incremental checkpoints save, and what it costs to find the changes.
    ///
    /// Runs two programs with full, page-based and hash-based checkpoints, next to the figures of
    /// libhashckpt for CTH and LAMMPS: one rewrites all of its memory with mostly equal values, the
    /// other changes all of it. Then the slowdown of a program that writes to 1, 10, 50 and 100
    /// percent of its pages between checkpoints, the cost of tracking pages against hashing
    /// everything, and the rate of hashing against the size of blocks.
    ///
    /// Ratios: hash_bytes_over_page_bytes (in the first program), slowdown_1pct and
    /// tracking_over_rehash_max (at the worst share of pages): smaller is better.
    /// hash_over_read_bandwidth (one core): larger is better.
    Increment(IncrementArgs),
    /// Compare arrays in a pool with plain memory and with whole files.
    ///
    /// Measures what computing on versioned arrays costs, how long a version takes until it is
    /// durable and how much is written, with 0.1, 1, 10 and 100 percent changed, and how long it
    /// takes until a new process can use the array.
    ///
    /// Ratios: compute_over_dram_max and bytes_over_changed_1pct: smaller is better.
    /// restore_speedup and file_over_persist_1pct: larger is better.
    Pool(PoolBenchArgs),
    /// Measure many ranks on this machine: the time to come together and to save, and the processor
    /// time of ranks that wait.
    ///
    /// Starts as many processes. Each opens a session, saves small versions, and waits: for
    /// nothing, for a rank that comes late to a call, and for one that comes late with its version.
    ///
    /// Ratios: milliseconds of a processor that a rank takes in a second while it waits, of the
    /// last number of ranks; smaller is better.
    Ranks(RanksBenchArgs),
    /// One process of `bench ranks`.
    #[command(hide = true)]
    RanksProcess {
        /// What to do, as JSON.
        order: String,
    },
    /// One process of `bench alloc`.
    #[command(hide = true)]
    AllocProcess {
        /// What to do, as JSON.
        order: String,
    },
}

/// How to report.
#[derive(Args)]
struct ReportArgs {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Use smaller workloads: less than a minute.
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
pub(crate) struct TapeArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Size of all states together [default: 6 GiB, quick: 1 GiB].
    #[arg(long, value_name = "SIZE")]
    total: Option<ByteSize>,
    /// Size of one state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// Host memory of the tape and of the ring [default: 1 GiB, quick: 256 MiB].
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Milliseconds of arithmetic between two saves [default: twice the time that the disk needs
    /// for a state].
    #[arg(long, value_name = "MS")]
    compute_ms: Option<f64>,
}

#[derive(Args)]
pub(crate) struct RtmBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    #[command(flatten)]
    room: RoomArgs,
}

#[derive(Args)]
pub(crate) struct AllocArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Host memory for snapshots, in each process [default: 4 GiB, quick: 512 MiB].
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,
    /// Size of one state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// Numbers of processes that run at the same time.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,2")]
    processes: Vec<usize>,
    /// Milliseconds of computing between two saves [default: 0,5,10,20,50,100, quick: 0,20].
    #[arg(long, value_name = "MS", value_delimiter = ',')]
    gaps: Option<Vec<f64>>,
    /// Rounds of each case; the best counts [default: 3, quick: 2].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
}

#[derive(Args)]
pub(crate) struct SimBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Host memory of the tape [default: 1 GiB, quick: 256 MiB].
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,
    /// Size of one state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// Number of states [default: 128, quick: 32].
    #[arg(long, value_name = "COUNT")]
    snapshots: Option<usize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct StoreBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Size of the state, in whole MiB [default: 1 GiB, quick: 256 MiB]. Needs five times as much
    /// memory, and some twenty times as much space in the directory.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Rounds of everything, interleaved; the medians count [default: 5, quick: 3].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
}

#[derive(Args)]
pub(crate) struct IncrementArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Memory of each program, in whole MiB [default: 1 GiB, quick: 256 MiB]. Needs four times as
    /// much memory, and space for all checkpoints of a program in the directory.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Measured checkpoints of each program [default: 10, quick: 5].
    #[arg(long, value_name = "COUNT")]
    checkpoints: Option<usize>,
    /// Milliseconds of computing between two checkpoints, for the slowdown.
    #[arg(long, value_name = "MS", default_value_t = 250.0)]
    compute_ms: f64,
    /// How often each way of tracking searches for changes.
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    looks: usize,
    /// Rounds of each slowdown; the medians count [default: 3, quick: 1].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
}

#[derive(Args)]
pub(crate) struct RanksBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Numbers of ranks [default: 64,256, quick: 16].
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    counts: Option<Vec<u32>>,
    /// Versions that are saved.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    saves: u64,
    /// Seconds that ranks wait [default: 10, quick: 2].
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct PoolBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Size of the array [default: 512 MiB, quick: 64 MiB].
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Rounds; the medians count [default: 7, quick: 5].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

pub(crate) fn run(command: &BenchCommand) -> Result<()> {
    let progress = &mut |what: &str| eprintln!("measuring: {what}");
    let (report, how) = match command {
        BenchCommand::All(args) => return all::run(args),
        BenchCommand::Tape(args) => (tape::run(&args.options(), progress)?, &args.report),
        BenchCommand::Rtm(args) => (rtm::run(&args.config(), &args.room.room(), progress)?, &args.report),
        BenchCommand::Alloc(args) => (alloc::run(&args.options(), progress)?, &args.report),
        BenchCommand::Sim(args) => (model::run(&args.options(), progress)?, &args.report),
        BenchCommand::Store(args) => (store::run(&args.options(), progress)?, &args.report),
        BenchCommand::Increment(args) => (increment::run(&args.options(), progress)?, &args.report),
        BenchCommand::Pool(args) => (pool::run(&args.options(), progress)?, &args.report),
        BenchCommand::Ranks(args) => (ranks::run(&args.options(), progress)?, &args.report),
        BenchCommand::AllocProcess { order } => return alloc::process(order),
        BenchCommand::RanksProcess { order } => return ranks::process(order),
    };
    print(&report, how.json)
}

impl BenchCommand {
    /// The memory and space that a benchmark needs, if any.
    fn needs(&self) -> Result<Option<Needs>> {
        Ok(match self {
            Self::Tape(args) => Some(args.options().needs()),
            Self::Rtm(args) => Some(rtm::needs(&Migration::new(&args.config())?)),
            Self::Sim(args) => Some(args.options().needs()),
            Self::Store(args) => Some(args.options().needs()),
            Self::Increment(args) => Some(args.options().needs()),
            Self::Pool(args) => Some(args.options().needs()),
            Self::All(_) | Self::Alloc(_) | Self::Ranks(_) | Self::AllocProcess { .. } | Self::RanksProcess { .. } => {
                None
            }
        })
    }
}

impl RtmBenchArgs {
    fn config(&self) -> Config {
        let mut config = Config::demo();
        if self.report.quick {
            config.shots = Shots::Count(1);
        }
        config
    }
}

impl ReportArgs {
    /// The given size, or the default.
    fn size(&self, given: Option<ByteSize>, usual: u64, quick: u64) -> u64 {
        given.map_or(self.usual(usual, quick), |size| size.as_u64())
    }

    fn usual<T>(&self, usual: T, quick: T) -> T {
        if self.quick { quick } else { usual }
    }
}

impl TapeArgs {
    fn options(&self) -> tape::Options {
        tape::Options {
            total_bytes: self.report.size(self.total, 6 << 30, 1 << 30),
            snapshot_bytes: self.snapshot.as_u64(),
            host_bytes: self.report.size(self.host, 1 << 30, 256 << 20),
            directory: self.dir.clone(),
            compute_ms: self.compute_ms,
            rounds: self.report.usual(3, 2),
        }
    }
}

impl AllocArgs {
    fn options(&self) -> alloc::Options {
        let usual = || self.report.usual(vec![0.0, 5.0, 10.0, 20.0, 50.0, 100.0], vec![0.0, 20.0]);
        alloc::Options {
            host_bytes: self.report.size(self.host, 4 << 30, 512 << 20),
            snapshot_bytes: self.snapshot.as_u64(),
            processes: self.processes.clone(),
            gaps_ms: self.gaps.clone().unwrap_or_else(usual),
            rounds: self.rounds.unwrap_or(self.report.usual(3, 2)),
        }
    }
}

impl SimBenchArgs {
    fn options(&self) -> model::Options {
        model::Options {
            host_bytes: self.report.size(self.host, 1 << 30, 256 << 20),
            snapshot_bytes: self.snapshot.as_u64(),
            snapshots: self.snapshots.unwrap_or(self.report.usual(128, 32)),
            directory: self.dir.clone(),
            rounds: self.report.usual(3, 2),
        }
    }
}

impl StoreBenchArgs {
    fn options(&self) -> store::Options {
        store::Options {
            state_bytes: self.report.size(self.size, 1 << 30, 256 << 20),
            directory: self.dir.clone(),
            rounds: self.rounds.unwrap_or(self.report.usual(5, 3)),
        }
    }
}

impl IncrementArgs {
    fn options(&self) -> increment::Options {
        increment::Options {
            state_bytes: self.report.size(self.size, 1 << 30, 256 << 20),
            directory: self.dir.clone(),
            checkpoints: self.checkpoints.unwrap_or(self.report.usual(10, 5)),
            compute_ms: self.compute_ms,
            looks: self.looks,
            rounds: self.rounds.unwrap_or(self.report.usual(3, 1)),
        }
    }
}

impl PoolBenchArgs {
    fn options(&self) -> pool::Options {
        pool::Options {
            state_bytes: self.report.size(self.size, 512 << 20, 64 << 20),
            directory: self.dir.clone(),
            rounds: self.rounds.unwrap_or(self.report.usual(7, 5)),
        }
    }
}

impl RanksBenchArgs {
    fn options(&self) -> ranks::Options {
        ranks::Options {
            counts: self.counts.clone().unwrap_or(self.report.usual(vec![64, 256], vec![16])),
            saves: self.saves,
            seconds: self.seconds.unwrap_or(self.report.usual(10.0, 2.0)),
            directory: self.dir.clone(),
        }
    }
}

fn print(report: &Report, is_json: bool) -> Result<()> {
    if is_json {
        say!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    for part in page::tables(&serde_json::to_value(report)?) {
        let mut runs = table::new(&part.heads.iter().map(String::as_str).collect::<Vec<_>>());
        for row in part.rows {
            runs.add_row(row);
        }
        say!("{runs}");
    }
    let mut ratios = table::new(&["ratio", "value"]);
    for (name, value) in &report.ratios {
        ratios.add_row(vec![(*name).to_owned(), format!("{value:.3}")]);
    }
    say!("{ratios}");
    Ok(())
}
