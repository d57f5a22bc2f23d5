//! `outcrop bench pool`: arrays in a pool against plain memory and whole files.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hint::black_box,
    io::{Read, Write},
    path::PathBuf,
    time::Instant,
};

use anyhow::Result;
use outcrop::pool::{Array, Block, Options as PoolOptions, Pool};
use serde_json::{Value, json};

use crate::{Machine, Needs, Report, Scratch};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The length of the array.
    pub state_bytes: u64,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// How many times each is measured; the medians count.
    pub rounds: usize,
}

impl Options {
    /// The memory and space that it needs.
    pub fn needs(&self) -> Needs {
        Needs { file_bytes: 5 * self.state_bytes, memory_bytes: 4 * self.state_bytes }
    }
}

const MIB: f64 = (1 << 20) as f64;

/// Parts of the array that change between two versions.
const CHANGED: [f64; 4] = [0.001, 0.01, 0.1, 1.0];

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let _scratch = Scratch::new(&options.directory)?;
    options.needs().check(&options.directory)?;
    let inside = tempfile::tempdir_in(&options.directory)?;
    let len = (options.state_bytes / 8).max(4096) as usize;
    let path = inside.path().join("bench.pool");
    let plain_path = inside.path().join("bench.file");
    let pool = Pool::open(&path, PoolOptions::versions(2))?;
    let mut array = pool.array::<f64>("state", len, Block::default())?;
    let mut plain = vec![0.0; len];
    // All memory is touched before anything is measured.
    array[..].fill(1.0);
    plain.fill(1.0);
    pool.persist(&mut [&mut array])?;
    let (mut runs, mut ratios) = (Vec::new(), BTreeMap::new());
    progress("computing");
    ratios.insert("compute_over_dram_max", compute(options, &mut array, &mut plain, &mut runs));
    for share in CHANGED {
        progress(&format!("persisting {} % changed", share * 100.0));
        let mut persist = Vec::new();
        let mut whole = Vec::new();
        let mut bytes = 0;
        for round in 0..options.rounds {
            let changed = ((len as f64 * share) as usize).max(1);
            let value = 2.0 + round as f64 + share;
            array[..changed].fill(value);
            plain[..changed].fill(value);
            let start = Instant::now();
            bytes = pool.persist_counted(&mut [&mut array])?.bytes;
            persist.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let mut file = File::create(&plain_path)?;
            file.write_all(as_bytes(&plain))?;
            file.sync_data()?;
            whole.push(start.elapsed().as_secs_f64());
        }
        let part = format!("{} % changed", share * 100.0);
        runs.push(json!({ "part": part, "way": "pool: persist", "ms_median": 1e3 * median(&persist), "written_mib": bytes as f64 / MIB }));
        runs.push(
            json!({ "part": part, "way": "whole file and fsync", "ms_median": 1e3 * median(&whole), "written_mib": len as f64 * 8.0 / MIB }),
        );
        if share == 0.01 {
            ratios.insert("bytes_over_changed_1pct", bytes as f64 / (0.01 * len as f64 * 8.0));
            ratios.insert("file_over_persist_1pct", median(&whole) / median(&persist));
        }
    }
    drop((array, pool));
    progress("restoring");
    let (mut restored, mut read) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let start = Instant::now();
        let pool = Pool::open(&path, PoolOptions::versions(2))?;
        let array = pool.array::<f64>("state", len, Block::default())?;
        black_box(array[len / 2]);
        restored.push(start.elapsed().as_secs_f64());
        drop((array, pool));
        let start = Instant::now();
        let mut bytes = Vec::with_capacity(len * 8);
        File::open(&plain_path)?.read_to_end(&mut bytes)?;
        let state: Vec<f64> =
            bytes.chunks_exact(8).map(|it| f64::from_le_bytes(it.try_into().unwrap_or_default())).collect();
        black_box(state[len / 2]);
        read.push(start.elapsed().as_secs_f64());
    }
    runs.push(json!({ "part": "restore, files in the page cache", "way": "pool: open and read one element", "ms_median": 1e3 * median(&restored) }));
    runs.push(json!({ "part": "restore, files in the page cache", "way": "read a file and rebuild", "ms_median": 1e3 * median(&read) }));
    ratios.insert("restore_speedup", median(&read) / median(&restored));
    fs::remove_file(&plain_path)?;
    let settings = json!({ "state_bytes": len * 8, "rounds": options.rounds });
    Ok(Report { bench: "pool", machine: Machine::here(), settings, runs, ratios })
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

fn as_bytes(state: &[f64]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(state)
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
