//! `outcrop bench loop`: what a program with a loop that is bound by memory pays in all, from its
//! first line to its last, with one core computing and with all of them.

use std::{collections::BTreeMap, hint::black_box, path::PathBuf, time::Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    Needs, Report, Scratch,
    disk::Rates,
    passes::{Make, Run, measure},
    pool::median,
    stencil::Stencil,
    ways::{Copies, Direct, Files, Nothing, OnTape, Ring},
    workload::{Arithmetic, Workload},
};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Points along each edge of the cube that is a state.
    pub side: usize,
    /// The number of states.
    pub states: usize,
    /// Host memory of the tape and of the ring.
    pub host_bytes: u64,
    /// The directory for files.
    pub directory: PathBuf,
    /// Rounds, in each of which the ways run in another order. The medians count.
    pub rounds: usize,
    /// Sweeps over the cube between two states. Default: what takes all cores twice as long as the
    /// disk takes for a state.
    pub sweeps: Option<usize>,
}

impl Options {
    fn state_bytes(&self) -> u64 {
        (self.side as u64).saturating_pow(3).saturating_mul(4)
    }

    /// The most that it needs: one way at a time.
    pub fn needs(&self) -> Needs {
        let total_bytes = self.state_bytes().saturating_mul(self.states as u64);
        // The ways that are compared have at most eight states besides the host memory, and the
        // program has seven.
        let memory_bytes = self.host_bytes.saturating_add(self.state_bytes().saturating_mul(15));
        Needs { file_bytes: total_bytes.saturating_add(1 << 30), memory_bytes }
    }
}

/// The ways, in the order of the report. The first two keep nothing.
const NOTHING: usize = 0;
const COPIES: usize = 1;
const SAVE: usize = 2;
const LEND: usize = 3;
const RING: usize = 4;

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!((8..=2048).contains(&options.side), "a cube has from 8 to 2048 points along each edge");
    ensure!(options.host_bytes >= 2 * options.state_bytes(), "the host memory must hold two states");
    ensure!(options.states >= 2, "there must be at least two states");
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    progress("the disk alone");
    let disk = Rates::measure(&options.directory, (options.state_bytes() * options.states as u64).min(1 << 30))?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let sweeps = options.sweeps.unwrap_or_else(|| sweeps_for(options, cores, disk));
    let (mut rows, mut ratios) = (Vec::new(), BTreeMap::new());
    let mut processor = 0.0_f64;
    let total_gb = (options.state_bytes() * options.states as u64) as f64 / 1e9;
    for (threads, case) in [(1, "one core computes"), (cores, "all cores compute")] {
        let runs = interleaved(options, threads, sweeps, &mut |way| progress(&format!("{case}: {way}")))?;
        let medians: Vec<Medians> = runs.iter().map(|runs| Medians::of(runs)).collect();
        rows.extend(runs.iter().zip(&medians).map(|(runs, medians)| medians.row(case, runs)));
        processor = processor.max((medians[SAVE].processor - medians[NOTHING].processor) / total_gb);
        let over = |one: usize, other: usize| medians[one].wall / medians[other].wall;
        let [wall, lend, copies, ring, blocked, lend_blocked] = KEYS.map(|keys| keys[usize::from(threads > 1)]);
        ratios.insert(wall, over(SAVE, NOTHING));
        ratios.insert(lend, over(LEND, NOTHING));
        ratios.insert(copies, over(COPIES, NOTHING));
        ratios.insert(ring, over(RING, SAVE));
        ratios.insert(blocked, medians[SAVE].saves / medians[RING].saves);
        ratios.insert(lend_blocked, medians[LEND].saves / medians[RING].saves);
        if threads == 1 {
            ratios.insert("take_us", medians[SAVE].take_us);
        }
        if cores == 1 {
            break;
        }
    }
    ratios.insert("cpu_seconds_per_gb", processor);
    let settings = json!({
        "side": options.side,
        "state_bytes": options.state_bytes(),
        "states": options.states,
        "host_bytes": options.host_bytes,
        "sweeps": sweeps,
        "rounds": options.rounds,
        "disk_bytes_per_second": disk,
        "memory": "provided by the system shortly before each run, and given back",
    });
    Ok(Report::new("loop", settings, rows, ratios))
}

/// The names of the ratios, for one core and for all of them.
const KEYS: [[&str; 2]; 6] = [
    ["wall_over_no_storing_1", "wall_over_no_storing_all"],
    ["lend_wall_over_no_storing_1", "lend_wall_over_no_storing_all"],
    ["copies_wall_over_no_storing_1", "copies_wall_over_no_storing_all"],
    ["ring_wall_over_tape_1", "ring_wall_over_tape_all"],
    ["saves_over_ring_1", "saves_over_ring_all"],
    ["lends_over_ring_1", "lends_over_ring_all"],
];

/// How many sweeps take `threads` twice as long as the disk takes for a state.
fn sweeps_for(options: &Options, threads: usize, disk: Rates) -> usize {
    let mut stencil = Stencil::new(options.side, threads, 1);
    let now = vec![1.0; stencil.len()];
    let mut next = vec![0.0; stencil.len()];
    stencil.advance(&now, &mut next);
    let start = Instant::now();
    (0..3).for_each(|_| stencil.advance(&now, black_box(&mut next)));
    let sweep_seconds = start.elapsed().as_secs_f64() / 3.0;
    let disk_seconds = options.state_bytes() as f64 / disk.write.min(disk.read);
    ((2.0 * disk_seconds / sweep_seconds).round() as usize).clamp(1, 64)
}

/// All runs of each way. The order is another one in each round.
fn interleaved(
    options: &Options,
    threads: usize,
    sweeps: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Vec<Run>>> {
    let mut stencil = Stencil::new(options.side, threads, sweeps);
    let workload = Workload { len: stencil.len(), count: options.states, depth: None };
    let host = options.host_bytes;
    let makes: [Make<'_>; 7] = [
        Box::new(|_| Ok(Box::new(Nothing::new(&workload)))),
        Box::new(|_| Ok(Box::new(Copies::new(&workload)))),
        Box::new(|path| Ok(Box::new(OnTape::new(path, &workload, host, false)?))),
        Box::new(|path| Ok(Box::new(OnTape::new(path, &workload, host, true)?))),
        Box::new(|path| Ok(Box::new(Ring::new(path, &workload, host)?))),
        Box::new(|path| Ok(Box::new(Direct::new(path, &workload)?))),
        Box::new(|path| Ok(Box::new(Files::new(path, &workload, false)?))),
    ];
    let mut runs: Vec<Vec<Run>> = makes.iter().map(|_| Vec::new()).collect();
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..options.rounds.max(1) {
        // Those that are far from the others need no second round.
        let mut order: Vec<usize> = (0..if round == 0 { makes.len() } else { RING + 1 }).collect();
        random.shuffle(&mut order);
        for index in order {
            stencil.forget();
            let warm_bytes = host + 8 * options.state_bytes();
            runs[index].push(measure(&options.directory, &workload, &mut stencil, warm_bytes, |path| {
                let way = makes[index](path)?;
                progress(way.name());
                Ok(way)
            })?);
        }
    }
    let expected = runs[SAVE][0].sum;
    for run in runs[SAVE..].iter().flatten() {
        ensure!(run.sum == expected, "{} gave back other states than were saved", run.name);
    }
    Ok(runs)
}

/// The medians of all rounds of one way.
struct Medians {
    /// From the first line of the program to its last.
    wall: f64,
    close: f64,
    processor: f64,
    blocked: f64,
    /// All saves together.
    saves: f64,
    take_us: f64,
    memory_mib: f64,
}

impl Medians {
    fn of(runs: &[Run]) -> Self {
        let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
        Self {
            wall: of(Run::whole_seconds),
            close: of(|run| run.close_seconds),
            processor: of(|run| run.cpu_seconds),
            blocked: of(Run::blocked_seconds),
            saves: of(|run| run.saves.seconds()),
            take_us: of(|run| run.takes.quantile(0.5) * 1e6),
            memory_mib: of(|run| run.memory_bytes as f64 / f64::from(1 << 20)),
        }
    }

    fn row(&self, case: &str, runs: &[Run]) -> Value {
        json!({
            "part": case,
            "way": runs[0].name,
            "wall_seconds": self.wall,
            "wall_seconds_rounds": runs.iter().map(Run::whole_seconds).collect::<Vec<_>>(),
            "close_seconds": self.close,
            "cpu_seconds": self.processor,
            "blocked_seconds": self.blocked,
            "save_seconds": self.saves,
            "take_us": self.take_us,
            "memory_mib": self.memory_mib,
            "details": runs.last().map(|run| &run.details),
        })
    }
}
