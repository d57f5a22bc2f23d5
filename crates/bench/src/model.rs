//! Compares the simulator with reality: the same workloads, really run, and simulated with the
//! rates of a survey.

use std::{
    collections::BTreeMap,
    hint::black_box,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use outcrop::{
    Tape,
    layers::Host,
    survey::{self, Profile, Survey},
};
use outcrop_memory::Copier;
use outcrop_sim::{Approach, Experiment, Layer, Machine as Model, PlainRates, Workload, simulate};
use serde_json::json;

use crate::{Machine, Needs, Report, Scratch, memory};

/// The memory that a survey uses.
const SURVEY_BYTES: u64 = 1 << 30;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Host memory of the tape.
    pub host_bytes: u64,
    /// The size of a snapshot.
    pub snapshot_bytes: u64,
    /// How many snapshots are saved and taken.
    pub snapshots: usize,
    /// The directory of the tape. No file is left there.
    pub directory: PathBuf,
    /// Rounds of each real workload. The best counts, because noise only adds time.
    pub rounds: usize,
}

impl Options {
    /// The most that it needs, surveys included.
    pub fn needs(&self) -> Needs {
        let file_bytes = self.snapshots as u64 * self.snapshot_bytes + (1 << 30);
        Needs { file_bytes, memory_bytes: self.host_bytes.max(SURVEY_BYTES) + 3 * self.snapshot_bytes }
    }
}

/// The times of a workload, really run or simulated, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Times {
    wall: f64,
    saves: f64,
    takes: f64,
}

impl Times {
    fn blocked(self) -> f64 {
        self.saves + self.takes
    }

    fn to_json(self, way: String) -> serde_json::Value {
        json!({
            "way": way,
            "wall_seconds": self.wall,
            "blocked_seconds": self.blocked(),
            "save_seconds": self.saves,
            "take_seconds": self.takes,
        })
    }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(options.host_bytes >= 4 * options.snapshot_bytes, "the host memory must hold four snapshots");
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    progress("the machine: a survey before the runs");
    let before = rates(options)?;
    // Gaps of twice the time that the disk needs, of half that time, and none.
    let disk_ms = options.snapshot_bytes as f64 / before.directory_write.min(before.directory_read) * 1e3;
    let gaps_ms = [("calm", 2.0 * disk_ms), ("busy", 0.5 * disk_ms), ("disk-bound", 0.0)];
    let mut real: Vec<Vec<Times>> = vec![Vec::new(); gaps_ms.len()];
    for round in 1..=options.rounds.max(1) {
        for ((name, gap_ms), times) in gaps_ms.iter().zip(&mut real) {
            progress(&format!("{name}, round {round}"));
            times.push(really(options, *gap_ms)?);
        }
    }
    progress("the machine: a survey after the runs");
    let rates = mean(before, rates(options)?);
    let (mut runs, mut ratios) = (Vec::new(), BTreeMap::new());
    let names = [
        ("calm_wall_sim_over_real", "calm_blocked_sim_over_real"),
        ("busy_wall_sim_over_real", "busy_blocked_sim_over_real"),
        ("disk_bound_wall_sim_over_real", "disk_bound_blocked_sim_over_real"),
    ];
    for (((name, gap_ms), mut times), (wall, blocked)) in gaps_ms.into_iter().zip(real).zip(names) {
        times.sort_by(|one, other| one.wall.total_cmp(&other.wall));
        let real = times[0];
        let copy_touched = copy_rate(options, gap_ms)?;
        let simulated = simulated(options, PlainRates { copy_touched, ..rates }, gap_ms)?;
        let mut run = real.to_json(format!("{name}, {gap_ms:.1} ms, really"));
        run["wall_seconds_rounds"] = times.iter().map(|times| times.wall).collect();
        runs.push(run);
        runs.push(simulated.to_json(format!("{name}, {gap_ms:.1} ms, simulated")));
        ratios.insert(wall, simulated.wall / real.wall);
        ratios.insert(blocked, simulated.blocked() / real.blocked());
    }
    let difference = ratios.values().map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max);
    ratios.insert("difference_max", difference);
    let settings = json!({
        "host_bytes": options.host_bytes,
        "snapshot_bytes": options.snapshot_bytes,
        "snapshots": options.snapshots,
        "rounds": options.rounds,
        "rates": rates,
    });
    Ok(Report::new("sim", settings, runs, ratios))
}

/// The rate of copying a snapshot into touched memory after a pause. It is lower than in a survey,
/// which does not pause, because caches and cores have gone cold.
fn copy_rate(options: &Options, gap_ms: f64) -> Result<f64> {
    const COPIES: usize = 24;
    let (copier, state) = (Copier::default(), vec![1u8; options.snapshot_bytes as usize]);
    let host = Host::new(options.host_bytes)?;
    host.touch(0..host.capacity())?;
    let places = host.capacity() / options.snapshot_bytes;
    let mut seconds = Vec::new();
    for copy in 0..COPIES as u64 {
        let mut slot = host.slot(copy % places * options.snapshot_bytes, options.snapshot_bytes)?;
        thread::sleep(Duration::from_secs_f64(gap_ms / 1e3));
        let start = Instant::now();
        copier.copy(black_box(&mut slot), black_box(&state));
        seconds.push(start.elapsed().as_secs_f64());
    }
    // The copier needs the first copies to find the best number of threads.
    let mut settled = seconds.split_off(COPIES / 4);
    settled.sort_by(f64::total_cmp);
    Ok(options.snapshot_bytes as f64 / settled[settled.len() / 2])
}

/// The rates of this machine, from a survey.
fn rates(options: &Options) -> Result<PlainRates> {
    memory::warm(SURVEY_BYTES);
    let how = survey::Options { bytes_max: 512 << 20, rounds: 3, has_devices: false, ..survey::Options::default() };
    let profile = Survey::run(std::slice::from_ref(&options.directory), &how, &mut |_| {})?;
    plain_rates(&profile, &options.directory).context("the directory was just measured")
}

/// The rates of memory and a directory from a profile, for the simulator. `None` if the directory
/// was not measured.
pub fn plain_rates(profile: &Profile, directory: &Path) -> Option<PlainRates> {
    let memory = &profile.memory;
    let directory = profile.directory(directory)?.rates();
    Some(PlainRates {
        copy_untouched: memory.untouched.write_all_cores as f64,
        copy_touched: memory.touched.write_all_cores.max(memory.touched.write_one_core) as f64,
        touch: memory.touch_one_core as f64,
        pin: memory.pinned.as_ref().map_or(1e12, |pinned| pinned.pin_touched as f64),
        directory_write: directory.write as f64,
        directory_read: directory.read as f64,
    })
}

fn mean(one: PlainRates, other: PlainRates) -> PlainRates {
    let mean = |rate: fn(&PlainRates) -> f64| f64::midpoint(rate(&one), rate(&other));
    PlainRates {
        copy_untouched: mean(|rates| rates.copy_untouched),
        copy_touched: mean(|rates| rates.copy_touched),
        touch: mean(|rates| rates.touch),
        pin: mean(|rates| rates.pin),
        directory_write: mean(|rates| rates.directory_write),
        directory_read: mean(|rates| rates.directory_read),
    }
}

/// A forward and a backward pass on a real tape, with pauses instead of computing.
fn really(options: &Options, gap_ms: f64) -> Result<Times> {
    let scratch = tempfile::tempdir_in(&options.directory)?;
    let pause = Duration::from_secs_f64(gap_ms / 1e3);
    let state = vec![1u8; options.snapshot_bytes as usize];
    let mut back = vec![0u8; state.len()];
    memory::warm(options.host_bytes);
    let mut times = Times { wall: 0.0, saves: 0.0, takes: 0.0 };
    let start = Instant::now();
    let mut tape = Tape::builder().host(options.host_bytes).dir(scratch.path(), "1 TiB").open()?;
    for step in 0..options.snapshots {
        thread::sleep(pause);
        let start = Instant::now();
        tape.save(step, black_box(&state))?;
        times.saves += start.elapsed().as_secs_f64();
    }
    for step in (0..options.snapshots).rev() {
        let start = Instant::now();
        tape.take_into(step, black_box(&mut back))?;
        times.takes += start.elapsed().as_secs_f64();
        thread::sleep(pause);
    }
    times.wall = start.elapsed().as_secs_f64();
    Ok(times)
}

fn simulated(options: &Options, rates: PlainRates, gap_ms: f64) -> Result<Times> {
    let machine = Model::plain("here", rates, Machine::here().memory_bytes, 1 << 40)?;
    let workload = Workload::uniform(options.snapshots, options.snapshot_bytes, (gap_ms * 1e6) as u64);
    let layers = vec![Layer::host(options.host_bytes), Layer::storage("directory", 1 << 40)];
    let outcome = simulate(&Experiment::one_node(machine, Approach::OURS, layers, vec![workload]))?;
    Ok(Times { wall: outcome.wall_seconds(), saves: outcome.save_seconds(), takes: outcome.take_seconds() })
}
