//! `outcrop bench`: measurements that anyone can repeat.

mod all;
mod peers;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use outcrop_bench::{
    Needs, Quiet, Report, Watch, alloc, apps, increment, interval, model, node, page, pool, ranks, rtm, store, tape,
    whole,
};
use outcrop_rtm::{Config, Migration, Shots};

use crate::{RoomArgs, say::say, table};

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Run every benchmark and write one page with tables and plots.
    ///
    /// Writes measured.md into the output directory, and results.json and the plots (PNG) into
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
    /// Compare what a whole program pays, from its first line to its last: a loop bound by memory.
    ///
    /// A stencil in three dimensions, forward and backward, with one core computing and with all of
    /// them. Compares storing nothing, copies alone, the tape with save and with lend, a
    /// hand-written asynchronous ring, O_DIRECT without overlap, and plain files. Opening, closing
    /// and removing files count. Also measures processor seconds.
    ///
    /// Ratios: ring_wall_over_tape: larger is better. The others: smaller is better.
    Loop(LoopArgs),
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
    ///
    /// With --hash, only the rate of hashing against the size of blocks, for each hash on one core,
    /// all cores and each device, with a plot. On a machine without a card, OpenCL runs on the
    /// processor.
    Increment(IncrementArgs),
    /// Compare arrays, an octree and a graph in a pool with plain memory, files, redb and pmemobj.
    ///
    /// Measures what computing on versioned structures costs, how long a version takes until it is
    /// durable and how much is written, with 0.1, 1, 10 and 100 percent changed, and how long it
    /// takes until a new process can use the array: in the given directory, on tmpfs, and, as root,
    /// on ext4 and xfs on loop devices. pmemobj is compared if libpmemobj-dev and a C compiler are
    /// there. It is made to believe that files are persistent memory, which is emulation.
    ///
    /// Ratios: those over DRAM, bytes_over_changed_1pct, over_hand_written_lu and
    /// per_element_longest_over_shortest: smaller is better. The others: larger is better. Those of
    /// pmemobj are from tmpfs.
    Pool(PoolBenchArgs),
    /// Compare when to persist: after each iteration, by the paper's rule, and by ours, under
    /// failures.
    ///
    /// A program with an array in a pool fails at random times and goes on with its newest version.
    /// The paper's rule persists when computing the lost work again would take longer than
    /// persisting; ours knows how often failures come. Both use the cost model.
    ///
    /// Ratios of wall times: no_model_over_ours and paper_rule_over_ours; larger is better.
    Interval(IntervalBenchArgs),
    /// Run four scientific programs with their state in memory, in files and in pools.
    ///
    /// LU decomposition, a crack, PageRank and a droplet on an octree, as in figures 7, 8, 11 and
    /// 12 of NV-Checkpoint: the same problem and growing ones with one thread and with all cores,
    /// in memory, in emulated non-volatile memory, with checkpoint files, in a pool, and in a pool
    /// on emulated non-volatile memory; how long it takes to go on after a SIGTERM in iteration 10;
    /// and LU in a pool against LU with versions that were written by hand.
    ///
    /// Ratios: over_hand_written_lu and those over memory: smaller is better. Those of files over
    /// pools, and restore speedups: larger is better.
    Apps(AppsBenchArgs),
    /// Compare plain writes with writes to memory of the node daemon, as programs perceive them.
    ///
    /// Figures 4 to 7 of the ORNL paper, scaled to this machine: the bandwidth of each rank by the
    /// length of its writes, for several ranks, plainly, with fsync, through the client with 1, 2
    /// and 4 drains at once, and below a mount. Bursts fit into memory, which is touched before.
    /// Then a burst that does not fit, drains, and small files.
    ///
    /// Ratios: small_file_over_native: smaller is better. The others: larger is better.
    Node(NodeBenchArgs),
    /// Measure many ranks: the time to come together and to save, and the processor time of ranks
    /// that wait.
    ///
    /// Starts as many processes. Each opens a session, saves small versions, and waits: for
    /// nothing, for a rank that comes late to a call, and for one that comes late with its version.
    /// Then the same protocol with simulated ranks: how many operations on files a version costs.
    ///
    /// Ratios: milliseconds of a processor that a rank takes in a second while it waits, of the
    /// last number of ranks; smaller is better. And what a message of MPI takes through the layer
    /// that reports what is received, over one past it: pmpi_latency (MPI_Recv),
    /// pmpi_latency_later (MPI_Irecv and MPI_Wait), pmpi_bandwidth; 1 is best.
    /// metadata_ops_per_rank_256_over_4: of a simulated rank, on average; 4 is what a logarithm
    /// would give.
    Ranks(RanksBenchArgs),
    /// Compare tapes and stores with what programs use otherwise, from Python.
    ///
    /// Tapes with h5py, zarr, a mapped NumPy array, pyrevolve and a ring of 35 lines; stores with
    /// PyTorch's distributed checkpoints (default and cached stager), torch.save, safetensors,
    /// torchsnapshot and Orbax. Starts `python3 -m outcrop bench --peers`, so the Python package
    /// must be installed; OUTCROP_PYTHON names the interpreter. Makes an environment and installs
    /// the peers from the network. What cannot be installed is named and left out.
    Peers(peers::PeersArgs),
    /// One process of `bench pool`.
    #[command(hide = true)]
    PoolProcess {
        /// What to do, as JSON.
        order: String,
    },
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
    /// Repeat the whole benchmark this many times, and report the median and the range of each
    /// ratio.
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
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
pub(crate) struct LoopArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Points along each edge of the cube that is a state [default: 216: 40 MB, quick: 160: 16 MB].
    #[arg(long, value_name = "POINTS")]
    side: Option<usize>,
    /// Number of states [default: 80, quick: 60].
    #[arg(long, value_name = "COUNT")]
    states: Option<usize>,
    /// Host memory of the tape and of the ring [default: 1 GiB, quick: 256 MiB].
    #[arg(long, value_name = "SIZE")]
    host: Option<ByteSize>,
    /// Sweeps over the cube between two states [default: what takes all cores twice as long as the
    /// disk takes for a state].
    #[arg(long, value_name = "COUNT")]
    sweeps: Option<usize>,
    /// Rounds; the medians count [default: 5, quick: 3].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
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
    /// Measure only hashing, also on the devices of this machine, and draw increment-hash.png.
    #[arg(long)]
    hash: bool,
    /// Directory for the plot of --hash [default: outcrop-bench; with --json none].
    #[arg(long, value_name = "DIR", requires = "hash")]
    output: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct RanksBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Numbers of ranks that are processes [default: 1,2,4,8, quick: 1,4].
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    counts: Option<Vec<u32>>,
    /// Numbers of ranks that are simulated.
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "4,64,256,4096")]
    simulated: Vec<u32>,
    /// Versions that are saved.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    saves: u64,
    /// Seconds that ranks wait [default: 5, quick: 1].
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Turns of messages of MPI, past and through the layer that reports them [default: 2000,
    /// quick: 200].
    #[arg(long, value_name = "COUNT")]
    turns: Option<u32>,
    /// State of each rank whose versions other nodes keep [default: 64 MiB, quick: 16 MiB].
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
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
    /// Numbers of elements, to compare how long each takes [default: 1, 4, 16 and 64 million,
    /// quick: 1 and 4 million].
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    lengths: Option<Vec<usize>>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct NodeBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// What a rank writes in a burst [default: 256 MiB, quick: 64 MiB].
    #[arg(long, value_name = "SIZE")]
    burst: Option<ByteSize>,
    /// Lengths of single writes [default: 64 KiB to 1 GiB, quick: 64 KiB, 4 MiB and 64 MiB].
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    writes: Option<Vec<ByteSize>>,
    /// Numbers of ranks that write at once [default: 1, 2, 4 and 8, quick: 1 and 4].
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    ranks: Option<Vec<usize>>,
    /// Numbers of drains at once [default: 1, 2 and 4, quick: 1 and 2].
    #[arg(long, value_name = "COUNT", value_delimiter = ',')]
    drains: Option<Vec<usize>>,
    /// Number of small files [default: 5000, quick: 1000].
    #[arg(long, value_name = "COUNT")]
    files: Option<usize>,
    /// How many times everything is measured [default: 3, quick: 1].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct IntervalBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Size of the array [default: 32 MiB, quick: 16 MiB].
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Iterations of the program [default: 800, quick: 250].
    #[arg(long, value_name = "COUNT")]
    steps: Option<u64>,
    /// Milliseconds of an iteration; up to five times as much is added.
    #[arg(long, value_name = "MS", default_value_t = 2.0)]
    compute_ms: f64,
    /// Seconds between two failures, on average [default: 3, quick: 1].
    #[arg(long, value_name = "SECONDS")]
    mtbf: Option<f64>,
    /// Rounds, with failures at other times in each [default: 3, quick: 2].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<u64>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct AppsBenchArgs {
    #[command(flatten)]
    report: ReportArgs,
    /// Size of the problems, where 1 is the usual one [quick: 0.25].
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    scale: Option<f64>,
    /// Rounds; the medians count [default: 5, quick: 1].
    #[arg(long, value_name = "COUNT")]
    rounds: Option<usize>,
    /// Directory for files; they are removed at the end.
    #[arg(long, value_name = "DIR", default_value = "outcrop-scratch")]
    dir: PathBuf,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1e-3..=100.0).contains(&scale) { Ok(scale) } else { Err("from 0.001 to 100".to_owned()) }
}

pub(crate) fn run(command: &BenchCommand) -> Result<()> {
    match command {
        BenchCommand::All(args) => return all::run(args),
        BenchCommand::Peers(args) => return peers::run(args),
        BenchCommand::PoolProcess { order } => return pool::process(order),
        BenchCommand::AllocProcess { order } => return alloc::process(order),
        BenchCommand::RanksProcess { order } => return ranks::process(order),
        _ => {}
    }
    let Some(how) = command.report() else { return Ok(()) };
    let mut reports = Vec::new();
    for time in 1..=how.repeat {
        let mut progress = |what: &str| match how.repeat {
            1 => eprintln!("measuring: {what}"),
            times => eprintln!("measuring ({time} of {times}): {what}"),
        };
        let watch = Watch::begin();
        let report = command.measure(&mut progress)?;
        reports.push(Report { quiet: Some(watch.end()), ..report });
    }
    let report = Report::of_repetitions(reports);
    if let Some(doubt) = report.quiet.as_ref().and_then(Quiet::doubt) {
        eprintln!("warning: the machine was not quiet ({doubt}): these figures may mislead");
    }
    print(&report, how.json)
}

impl BenchCommand {
    /// How to report, if it is one benchmark.
    fn report(&self) -> Option<&ReportArgs> {
        Some(match self {
            Self::Tape(args) => &args.report,
            Self::Loop(args) => &args.report,
            Self::Rtm(args) => &args.report,
            Self::Alloc(args) => &args.report,
            Self::Sim(args) => &args.report,
            Self::Store(args) => &args.report,
            Self::Increment(args) => &args.report,
            Self::Pool(args) => &args.report,
            Self::Interval(args) => &args.report,
            Self::Apps(args) => &args.report,
            Self::Node(args) => &args.report,
            Self::Ranks(args) => &args.report,
            Self::All(_) | Self::Peers(_) => return None,
            Self::AllocProcess { .. } | Self::PoolProcess { .. } | Self::RanksProcess { .. } => return None,
        })
    }

    /// Runs one benchmark, once.
    fn measure(&self, progress: &mut (dyn FnMut(&str) + Send)) -> Result<Report> {
        match self {
            Self::Tape(args) => tape::run(&args.options(), progress),
            Self::Loop(args) => whole::run(&args.options(), progress),
            Self::Rtm(args) => rtm::run(&args.config(), &args.room.room(), progress),
            Self::Alloc(args) => alloc::run(&args.options(), progress),
            Self::Sim(args) => model::run(&args.options(), progress),
            Self::Store(args) => store::run(&args.options(), progress),
            Self::Increment(args) => {
                let report = increment::run(&args.options(), progress)?;
                args.draw(&report)?;
                Ok(report)
            }
            Self::Pool(args) => pool::run(&args.options(), progress),
            Self::Interval(args) => interval::run(&args.options()?, progress),
            Self::Apps(args) => apps::run(&args.options(), progress),
            Self::Node(args) => node::run(&args.options()?, progress),
            Self::Ranks(args) => ranks::run(&args.options(), progress),
            Self::All(_)
            | Self::Peers(_)
            | Self::AllocProcess { .. }
            | Self::PoolProcess { .. }
            | Self::RanksProcess { .. } => {
                unreachable!("these are not one benchmark")
            }
        }
    }

    /// The memory and space that a benchmark needs, if any.
    fn needs(&self) -> Result<Option<Needs>> {
        Ok(match self {
            Self::Tape(args) => Some(args.options().needs()),
            Self::Loop(args) => Some(args.options().needs()),
            Self::Rtm(args) => Some(rtm::needs(&Migration::new(&args.config())?)),
            Self::Sim(args) => Some(args.options().needs()),
            Self::Store(args) => Some(args.options().needs()),
            Self::Increment(args) => Some(args.options().needs()),
            Self::Pool(args) => Some(args.options().needs()),
            Self::Interval(args) => Some(args.options()?.needs()),
            Self::Apps(args) => Some(args.options().needs()),
            Self::Node(args) => Some(args.options()?.needs()),
            Self::All(_) | Self::Alloc(_) | Self::Peers(_) | Self::Ranks(_) => None,
            Self::AllocProcess { .. } | Self::PoolProcess { .. } | Self::RanksProcess { .. } => None,
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

impl LoopArgs {
    fn options(&self) -> whole::Options {
        whole::Options {
            side: self.side.unwrap_or(self.report.usual(216, 160)),
            states: self.states.unwrap_or(self.report.usual(80, 60)),
            host_bytes: self.report.size(self.host, 1 << 30, 256 << 20),
            directory: self.dir.clone(),
            rounds: self.rounds.unwrap_or(self.report.usual(5, 3)),
            sweeps: self.sweeps,
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
            only_hashes: self.hash,
        }
    }

    /// Draws what `--hash` has measured.
    fn draw(&self, report: &Report) -> Result<()> {
        let output = self.output.as_deref().or((!self.report.json).then_some(Path::new("outcrop-bench")));
        let Some(output) = output.filter(|_| self.hash) else { return Ok(()) };
        let plot = page::hash_plot(&report.runs);
        outcrop_sim::draw(&plot.chart, &plot.bench, &plot.title, output)?;
        eprintln!("plot: {}.png", output.join(&plot.bench).display());
        Ok(())
    }
}

impl AppsBenchArgs {
    fn options(&self) -> apps::Options {
        apps::Options {
            scale: self.scale.unwrap_or(self.report.usual(1.0, 0.25)),
            directory: self.dir.clone(),
            rounds: self.rounds.unwrap_or(self.report.usual(5, 1)).max(1),
        }
    }
}

impl PoolBenchArgs {
    fn options(&self) -> pool::Options {
        pool::Options {
            state_bytes: self.report.size(self.size, 512 << 20, 64 << 20),
            directory: self.dir.clone(),
            rounds: self.rounds.unwrap_or(self.report.usual(7, 5)),
            elsewhere_bytes: self.report.usual(128 << 20, 32 << 20),
            lengths: self.lengths.clone().unwrap_or(
                self.report.usual(vec![1_000_000, 4_000_000, 16_000_000, 64_000_000], vec![1_000_000, 4_000_000]),
            ),
        }
    }
}

impl IntervalBenchArgs {
    fn options(&self) -> Result<interval::Options> {
        let mtbf = std::time::Duration::try_from_secs_f64(self.mtbf.unwrap_or(self.report.usual(3.0, 1.0)));
        ensure!((0.0..=1e6).contains(&self.compute_ms), "--compute-ms {} is not a time", self.compute_ms);
        Ok(interval::Options {
            state_bytes: self.report.size(self.size, 32 << 20, 16 << 20),
            steps: self.steps.unwrap_or(self.report.usual(800, 250)),
            compute_ms: self.compute_ms,
            mtbf: mtbf.context("--mtbf")?,
            rounds: self.rounds.unwrap_or(self.report.usual(3, 2)),
            directory: self.dir.clone(),
        })
    }
}

impl NodeBenchArgs {
    fn options(&self) -> Result<node::Options> {
        let usual = self.report.usual(&[16, 18, 20, 22, 24, 26, 28, 30][..], &[16, 22, 26]);
        let usual = || usual.iter().map(|&power| ByteSize(1 << power)).collect();
        let writes = self.writes.clone().unwrap_or_else(usual).into_iter().map(|size| size.as_u64());
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(node::Options {
            burst_bytes: self.report.size(self.burst, 256 << 20, 64 << 20),
            writes: writes.collect(),
            ranks: self.ranks.clone().unwrap_or(self.report.usual(vec![1, 2, 4, 8], vec![1, 4])),
            threads: self.drains.clone().unwrap_or(self.report.usual(vec![1, 2, 4], vec![1, 2])),
            files: self.files.unwrap_or(self.report.usual(5000, 1000)),
            rounds: self.rounds.unwrap_or(self.report.usual(3, 1)),
            directory: self.dir.clone(),
            program: (program, ["node", "serve"].map(str::to_owned).into()),
        })
    }
}

impl RanksBenchArgs {
    fn options(&self) -> ranks::Options {
        ranks::Options {
            counts: self.counts.clone().unwrap_or(self.report.usual(vec![1, 2, 4, 8], vec![1, 4])),
            simulated: self.simulated.clone(),
            saves: self.saves,
            seconds: self.seconds.unwrap_or(self.report.usual(5.0, 1.0)),
            turns: self.turns.unwrap_or(self.report.usual(2000, 200)),
            parity: outcrop_bench::parity::Options {
                bytes: self.report.size(self.size, 64 << 20, 16 << 20) as usize,
                saves: self.saves,
                rounds: self.report.usual(5, 3),
            },
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
    let mut ratios = match report.ranges.is_empty() {
        true => table::new(&["ratio", "value"]),
        false => table::new(&["ratio", "median", "least", "largest"]),
    };
    for (name, value) in &report.ratios {
        let range = report.ranges.get(name).into_iter().flatten();
        ratios.add_row(
            [(*name).to_owned()].into_iter().chain([value].into_iter().chain(range).map(|it| format!("{it:.3}"))),
        );
    }
    say!("{ratios}");
    Ok(())
}
