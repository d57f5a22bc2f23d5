//! `outcrop bench pool`: arrays, an octree and a graph in a pool against plain memory, whole files,
//! redb and pmemobj.

mod persisting;
#[cfg(feature = "redb")]
mod redb;
mod rivals;
mod structures;

use std::{
    collections::BTreeMap,
    hint::black_box,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Result;
use outcrop::pool::{Array, Block, Options as PoolOptions, Pool};
use serde_json::{Value, json};

use self::{
    persisting::{Order, RESTORE},
    rivals::{FILE, OURS, PMEMOBJ, REDB},
};
use crate::{Needs, Report, Scratch, hand_written::over_hand_written_lu};

pub use self::persisting::process;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The length of the array.
    pub state_bytes: u64,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// How many times each is measured; the medians count.
    pub rounds: usize,
    /// The length of the array on other file systems, if that is shorter.
    pub elsewhere_bytes: u64,
    /// Numbers of elements that are compared, ascending.
    pub lengths: Vec<usize>,
}

impl Options {
    /// The memory and space that it needs.
    pub fn needs(&self) -> Needs {
        let longest = self.lengths.iter().max().map_or(0, |len| 8 * *len as u64);
        // A pool, a file, a database and a pool of pmemobj; on other file systems besides.
        let file_bytes = (12 * self.state_bytes).max(3 * longest) + 12 * self.elsewhere_bytes;
        Needs { file_bytes, memory_bytes: (5 * self.state_bytes).max(3 * longest) }
    }
}

const MIB: f64 = (1 << 20) as f64;

/// Parts of the array that change between two versions.
const CHANGED: [f64; 4] = [0.001, 0.01, 0.1, 1.0];

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let _scratch = Scratch::new(&options.directory)?;
    options.needs().check(&options.directory)?;
    let len = (options.state_bytes / 8).max(4096) as usize;
    let (mut runs, mut ratios) = (Vec::new(), BTreeMap::new());
    progress("computing");
    let of_arrays = compare_computing(options, len, &mut runs)?;
    progress("an octree and a graph");
    structures::measure((&options.directory, options.state_bytes, options.rounds), &mut runs, &mut ratios)?;
    ratios.insert("compute_over_dram_max", ratios.values().copied().fold(of_arrays, f64::max));
    ratios.insert("array_over_dram", of_arrays);
    progress("persisting and restoring");
    let name = "this directory".to_owned();
    let order = Order { name, directory: options.directory.clone(), len, rounds: options.rounds };
    let here = persisting::measure(&order)?;
    ratios.insert("bytes_over_changed_1pct", here.bytes_over_changed);
    let mut add = |key, ratio: Option<f64>| ratio.map(|ratio| ratios.insert(key, ratio));
    add("file_over_persist_1pct", here.ratio(FILE, OURS, 0.01));
    add("redb_over_persist_1pct", here.ratio(REDB, OURS, 0.01));
    add("restore_speedup", here.ratio(FILE, OURS, RESTORE));
    let mut skipped = here.missing.clone();
    runs.extend(here.runs);
    let order = Order { len: len.min(options.elsewhere_bytes as usize / 8), ..order };
    let memory = Path::new("/dev/shm");
    if persisting::is_memory(memory) {
        progress("persisting on tmpfs");
        let order = Order { name: "tmpfs".to_owned(), directory: memory.to_owned(), ..order.clone() };
        let there = persisting::measure(&order)?;
        // Memory is the same to both: nothing waits for a disk.
        add("pmemobj_full_over_ours", there.ratio(PMEMOBJ, OURS, 1.0));
        add("pmemobj_1pct_over_ours", there.ratio(PMEMOBJ, OURS, 0.01));
        runs.extend(there.runs);
    }
    for file_system in ["ext4", "xfs"] {
        progress(&format!("persisting on {file_system} on a loop device"));
        match persisting::measure_on(file_system, &order) {
            Ok(there) => runs.extend(there.runs),
            Err(error) => skipped.push(format!("{file_system}: {error:#}")),
        }
    }
    progress("lengths");
    add("per_element_longest_over_shortest", Some(lengths(options, &mut runs)?));
    progress("LU in a pool and written by hand");
    let order = (options.state_bytes / 256).isqrt().max(16);
    let inside = tempfile::tempdir_in(&options.directory)?;
    add("over_hand_written_lu", Some(over_hand_written_lu(order, options.rounds, inside.path(), &mut runs)?));
    skipped.iter().for_each(|reason| progress(&format!("skipped {reason}")));
    let settings = json!({ "state_bytes": len * 8, "rounds": options.rounds, "skipped": skipped });
    Ok(Report::new("pool", settings, runs, ratios))
}

/// Arrays of several lengths, of which one percent changes: how much longer an element takes in the
/// longest than in the shortest.
fn lengths(options: &Options, runs: &mut Vec<Value>) -> Result<f64> {
    let inside = tempfile::tempdir_in(&options.directory)?;
    let mut costs = Vec::new();
    for &len in &options.lengths {
        let pool = Pool::open(inside.path().join(format!("{len}.pool")), PoolOptions::versions(2))?;
        let mut array = pool.array::<f64>("state", len, Block::default())?;
        array[..].fill(1.0);
        pool.persist(&mut [&mut array])?;
        let (mut persist, mut compute) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            let start = Instant::now();
            stencil(&mut array[..len / 100]);
            compute.push(start.elapsed().as_secs_f64());
            array[..len / 100].fill(2.0 + round as f64);
            let start = Instant::now();
            pool.persist(&mut [&mut array])?;
            persist.push(start.elapsed().as_secs_f64());
        }
        let cost = median(&persist) / (len / 100) as f64;
        costs.push(cost);
        runs.push(json!({
            "part": "lengths, 1 % changed", "way": format!("{} M elements", len as f64 / 1e6),
            "ms_median": 1e3 * median(&persist), "ns_per_changed_element": 1e9 * cost,
            "ns_per_computed_element": 1e9 * median(&compute) / (len / 100) as f64,
        }));
    }
    Ok(costs.last().zip(costs.first()).map_or(1.0, |(longest, shortest)| longest / shortest))
}

/// An array of a pool and plain memory.
fn compare_computing(options: &Options, len: usize, runs: &mut Vec<Value>) -> Result<f64> {
    let inside = tempfile::tempdir_in(&options.directory)?;
    let pool = Pool::open(inside.path().join("bench.pool"), PoolOptions::versions(2))?;
    let mut array = pool.array::<f64>("state", len, Block::default())?;
    let mut plain = vec![0.0; len];
    // All memory is touched before anything is measured.
    array[..].fill(1.0);
    plain.fill(1.0);
    pool.persist(&mut [&mut array])?;
    Ok(compute(options, &mut array, &mut plain, runs))
}

/// Programs on the array and on plain memory, one after the other. The worst ratio.
fn compute(options: &Options, array: &mut Array<f64>, plain: &mut [f64], runs: &mut Vec<Value>) -> f64 {
    type Program<'a> = (&'a str, fn(&mut Array<f64>), fn(&mut [f64]));
    let programs: [Program<'_>; 3] = [
        ("elements, one after the other", |array| each(array), |plain| each_plain(plain)),
        ("elements at random", |array| random(array), |plain| random_plain(plain)),
        ("a stencil over slices", |array| stencil(&mut array[..]), stencil),
    ];
    let mut worst: f64 = 0.0;
    for (name, versioned, ordinary) in programs {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.rounds.max(3) {
            let start = Instant::now();
            versioned(black_box(array));
            ours.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            ordinary(black_box(plain));
            theirs.push(start.elapsed().as_secs_f64());
        }
        let part = format!("compute: {name}");
        runs.push(json!({ "part": part, "way": "pool", "ms_median": 1e3 * median(&ours) }));
        runs.push(json!({ "part": part, "way": "plain memory", "ms_median": 1e3 * median(&theirs) }));
        worst = worst.max(median(&ours) / median(&theirs));
    }
    worst
}

fn each(array: &mut Array<f64>) {
    for index in 0..array.len() {
        array[index] = array[index] * 0.99 + 0.5;
    }
}

fn each_plain(plain: &mut [f64]) {
    for value in plain {
        *value = *value * 0.99 + 0.5;
    }
}

/// The next index of a walk that visits elements at random.
fn next(index: usize, len: usize) -> usize {
    (index.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 11) % len
}

fn random(array: &mut Array<f64>) {
    let (len, mut index) = (array.len(), 1);
    for _ in 0..len / 8 {
        index = next(index, len);
        array[index] += 1.0;
    }
}

fn random_plain(plain: &mut [f64]) {
    let (len, mut index) = (plain.len(), 1);
    for _ in 0..len / 8 {
        index = next(index, len);
        plain[index] += 1.0;
    }
}

fn stencil(state: &mut [f64]) {
    for index in 1..state.len() - 1 {
        state[index] = 0.25 * (state[index - 1] + 2.0 * state[index] + state[index + 1]);
    }
}

pub(crate) fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
