//! `outcrop bench`: figures that anyone can repeat.

use std::path::PathBuf;

use anyhow::Result;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use outcrop_bench::{Report, alloc, increment, model, rtm, store, tape};
use outcrop_rtm::{Config, Shots};

use crate::{RoomArgs, say::say, table};

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// A forward and a backward pass with every way of keeping the states between them.
    ///
    /// Compares no storing at all, the tape with save and with lend, a hand-written asynchronous ring, O_DIRECT without
    /// overlap, plain files with and without fsync, a mapped file, fresh memory, and memory touched in advance.
    Tape(TapeArgs),
    /// The demonstration's migration on a tape, in memory and in files.
    Rtm(RtmBenchArgs),
    /// What it costs a short program to begin: ways to allocate, touch and pin memory for its snapshots.
    ///
    /// Compares pinning everything first, memory on demand, setting memory to zero bit by bit, and tapes that touch memory
    /// while they write, between writes, and as they choose; with one and with several programs at a time.
    Alloc(AllocArgs),
    /// The simulator against reality: the same workloads really run, and simulated with the rates that a survey finds.
    Sim(SimBenchArgs),
    /// Full checkpoints in a store: how long the program waits, how long until they survive, how long to have them back.
    ///
    /// Compares a full checkpoint of memory that has been touched with a copy into touched memory (by one and by two
    /// threads), with a file written through the page cache, with and without fsync, and with one written past the page cache;
    /// and restoring with reading one file past the page cache. Then incremental, live and compressed checkpoints. The
    /// ratios: blocked_over_memcpy, times, smaller is better; durable_over_direct_write and restore_over_direct_read, rates,
    /// larger is better. The quick state may fit into the caches of the processor, where copies are faster than in memory.
    Store(StoreBenchArgs),
    /// What it saves to save only what has changed, and what it costs to find out.
    ///
    /// Two programs, one that writes all of its memory with mostly equal values and one that changes all of it, with full,
    /// page-based and hash-based checkpoints, next to the figures of libhashckpt for CTH and LAMMPS; the slowdown of a program that writes to 1, 10,
    /// 50 and 100 percent of its pages between checkpoints; the cost of watching pages against hashing everything; and the
    /// rate of hashing against the size of blocks. The ratios: hash_bytes_over_page_bytes (in the first program), slowdown_1pct
    /// and tracking_over_rehash_max (at the worst share of pages), smaller is better; hash_over_read_bandwidth (one core),
    /// larger is better.
    Increment(IncrementArgs),
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
    /// Less of everything: under a minute.
    #[arg(long)]
    quick: bool,
}

#[derive(Args)]
pub(crate) struct TapeArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// All states together [default: 6 GiB, quick: 1 GiB].
    #[arg(long, value_name = "SIZE")]
    total: Option<ByteSize>,
    /// One state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// Host memory of the tape and of the ring [default: 1 GiB, quick: 256 MiB].
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,
    /// Where files go; nothing is left there.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Milliseconds of arithmetic between two saves [default: twice what the disk needs for a state].
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
    /// One state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// How many processes at the same time.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,2")]
    processes: Vec<usize>,
    /// Milliseconds of computing between two saves [default: 0,5,10,20,50,100, quick: 0,20].
    #[arg(long, value_name = "MS", value_delimiter = ',')]
    gaps: Option<Vec<f64>>,
    /// How often each case is measured; the best counts [default: 3, quick: 2].
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
    /// One state.
    #[arg(long, value_name = "SIZE", default_value = "32 MiB")]
    snapshot: ByteSize,
    /// How many states [default: 128, quick: 32].
    #[arg(long, value_name = "COUNT")]
    snapshots: Option<usize>,
    /// Where files go; nothing is left there.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct StoreBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// The state that is saved, in whole MiB [default: 1 GiB, quick: 256 MiB]. Memory for five of it is needed, and room for
    /// some twenty in the directory.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Where files go; nothing is left there.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// How often everything is measured, in turn; the medians count [default: 5, quick: 3].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
}

#[derive(Args)]
pub(crate) struct IncrementArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// The memory of each program, in whole MiB [default: 1 GiB, quick: 256 MiB]. Memory for four of it is needed, and room
    /// for all checkpoints of a program in the directory.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Where files go; nothing is left there.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
    /// Checkpoints of each program that count [default: 10, quick: 5].
    #[arg(long, value_name = "COUNT")]
    checkpoints: Option<usize>,
    /// Milliseconds of computing between two checkpoints of the program that is slowed down.
    #[arg(long, value_name = "MS", default_value_t = 250.0)]
    compute_ms: f64,
    /// Looks at the memory for each way of tracking.
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    looks: usize,
    /// How often each slowdown is measured; the medians count [default: 3, quick: 1].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
}

pub(crate) fn run(command: &BenchCommand) -> Result<()> {
    let progress = &mut |what: &str| eprintln!("measuring: {what}");
    let (report, how) = match command {
        BenchCommand::Tape(args) => (tape::run(&args.options(), progress)?, &args.report),
        BenchCommand::Rtm(args) => {
            let mut config = Config::demo();
            if args.report.quick {
                config.shots = Shots::Count(1);
            }
            (rtm::run(&config, &args.room.room(), progress)?, &args.report)
        }
        BenchCommand::Alloc(args) => (alloc::run(&args.options(), progress)?, &args.report),
        BenchCommand::Sim(args) => (model::run(&args.options(), progress)?, &args.report),
        BenchCommand::Store(args) => (store::run(&args.options(), progress)?, &args.report),
        BenchCommand::Increment(args) => (increment::run(&args.options(), progress)?, &args.report),
        BenchCommand::AllocProcess { order } => return alloc::process(order),
    };
    print(&report, how.json)
}

impl ReportArgs {
    /// What was given, or else what is usual, or else what is quick.
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
            rounds: 3,
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

/// What can stand in a table of runs: the head, the name in the report, and the unit.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("without", "without_seconds", "s"),
    ("wall", "wall_seconds", "s"),
    ("computing", "compute_seconds", "s"),
    ("blocked", "blocked_seconds", "s"),
    ("starting", "init_seconds", "s"),
    ("in saves", "save_seconds", "s"),
    ("in takes", "take_seconds", "s"),
    ("save", "save_ms_mean", "ms"),
    ("take", "take_ms_mean", "ms"),
    ("memory", "memory_mib", "MiB"),
    ("median", "ms_median", "ms"),
    ("best", "ms_best", "ms"),
    ("rate", "gb_per_second", "GB/s"),
    ("slowdown", "slowdown", "x"),
    ("checkpoint", "checkpoint_mib", "MiB"),
    ("written", "written_mib", "MiB"),
    ("less than by pages", "less_percent", "%"),
    ("the paper's", "paper_mb", "MB"),
    ("less there", "paper_less_percent", "%"),
    ("hashing all", "rehash_ms", "ms"),
    ("as chosen", "chosen_ms", "ms"),
    ("over hashing all", "chosen_over_rehash", "x"),
    ("watching pages", "pages_ms", "ms"),
    ("over hashing all", "pages_over_rehash", "x"),
    ("xxh3, one core", "xxh3_one_gb_per_second", "GB/s"),
    ("all cores", "xxh3_all_gb_per_second", "GB/s"),
    ("blake3, one core", "blake3_one_gb_per_second", "GB/s"),
    ("all cores", "blake3_all_gb_per_second", "GB/s"),
    ("md5, one core", "md5_one_gb_per_second", "GB/s"),
    ("all cores", "md5_all_gb_per_second", "GB/s"),
    ("only reading", "read_one_gb_per_second", "GB/s"),
];

fn print(report: &Report, is_json: bool) -> Result<()> {
    if is_json {
        say!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    for part in report.runs.chunk_by(|one, other| one["part"] == other["part"]) {
        print_part(part);
    }
    let mut ratios = table::new(&["ratio", "value"]);
    for (name, value) in &report.ratios {
        ratios.add_row(vec![(*name).to_owned(), format!("{value:.3}")]);
    }
    say!("{ratios}");
    Ok(())
}

/// A table of the runs that belong together, with the columns that any of them has.
fn print_part(part: &[serde_json::Value]) {
    let columns: Vec<_> = COLUMNS.iter().filter(|(_, name, _)| part.iter().any(|run| run[name].is_number())).collect();
    let mut heads = vec![part[0]["part"].as_str().unwrap_or("way")];
    heads.extend(columns.iter().map(|(head, _, _)| head));
    let mut runs = table::new(&heads);
    for run in part {
        let mut cells = vec![run["way"].as_str().unwrap_or("?").to_owned()];
        cells.extend(columns.iter().map(|(_, name, unit)| {
            run[name].as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.2} {unit}"))
        }));
        runs.add_row(cells);
    }
    say!("{runs}");
}
