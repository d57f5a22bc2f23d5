//! `outcrop model train`: what persisting takes on this machine, and a model that learns it.

mod cases;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use outcrop::pool::{Array, Block, Options as PoolOptions, Pool, Structure};
use outcrop_cost::{Measured, Model};

use self::cases::{Case, Changing};
use crate::{Needs, Scratch};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many calls are measured.
    pub calls: usize,
    /// The largest structure.
    pub bytes_max: u64,
    /// The directory for pools. None is left there.
    pub directory: PathBuf,
    /// Sizes, changes and placement are drawn from it.
    pub seed: u64,
}

/// The smallest structure.
const BYTES_MIN: u64 = 64 << 10;

/// So many calls are measured with each pool.
const CALLS_PER_POOL: usize = 10;

/// So many times, of which the median counts: a machine is never quite idle.
const REPEATS: usize = 3;

/// Every so many pools, one is not learned from: its calls show how good the model is.
const HELD_OUT_EVERY: usize = 4;

/// What was measured and learned.
#[derive(Debug, Clone)]
pub struct Trained {
    /// Learned from all calls.
    pub model: Model,
    /// Calls that the error was not found with.
    pub learned: Vec<Measured>,
    /// Calls that a model of the others was tried on.
    pub held_out: Vec<Measured>,
    /// Its relative absolute error there.
    pub error: f64,
    /// The factor by which half of these predictions are off at most.
    pub factor: f64,
}

impl Trained {
    /// All calls, those that were learned from first: attributes and the logarithm of the seconds.
    pub fn csv(&self) -> String {
        let all = Model::samples(&[self.learned.as_slice(), &self.held_out].concat());
        let mut text = format!("{},ln_seconds\n", all.names().join(","));
        for row in 0..all.len() {
            all.values(row).iter().for_each(|value| text += &format!("{value:.6},"));
            text += &format!("{:.6}\n", all.target(row));
        }
        text
    }
}

/// Measures and learns. `progress` is told how many calls were measured.
pub fn run(options: &Options, progress: &mut dyn FnMut(usize)) -> Result<Trained> {
    ensure!(options.calls >= 8 * CALLS_PER_POOL, "a model needs at least {} calls", 8 * CALLS_PER_POOL);
    ensure!(options.bytes_max >= BYTES_MIN, "the largest structure has at least {BYTES_MIN} bytes");
    let _scratch = Scratch::new(&options.directory)?;
    Needs { file_bytes: 4 * options.bytes_max, memory_bytes: 3 * options.bytes_max }.check(&options.directory)?;
    let inside = tempfile::tempdir_in(&options.directory)?;
    let mut random = Rng::with_seed(options.seed);
    let (mut learned, mut held_out) = (Vec::new(), Vec::new());
    for nth in 0.. {
        let count = learned.len() + held_out.len();
        if count >= options.calls {
            break;
        }
        progress(count);
        let measured = if nth % HELD_OUT_EVERY == 0 { &mut held_out } else { &mut learned };
        let path = inside.path().join(format!("{nth}.pool"));
        let bytes = between(&mut random, BYTES_MIN as f64, options.bytes_max as f64) as u64;
        // All kinds in turn, also among those that are held out.
        let case = Case::drawn(nth + nth / HELD_OUT_EVERY, bytes, &mut random);
        measure(&case, &path, &mut random, measured)?;
        std::fs::remove_file(&path)?;
    }
    let tried = Model::train(&learned);
    let (error, factor) = (tried.relative_absolute_error(&held_out), factor(&tried, &held_out));
    let model = Model::train(&[learned.as_slice(), &held_out].concat());
    Ok(Trained { model, learned, held_out, error, factor })
}

/// The median of how many times too large or too small predictions are.
fn factor(model: &Model, measured: &[Measured]) -> f64 {
    let off = |it: &Measured| (model.seconds(&it.features) / it.seconds).ln().abs();
    let mut factors: Vec<f64> = measured.iter().map(off).collect();
    factors.sort_by(f64::total_cmp);
    factors.get(factors.len() / 2).map_or(f64::NAN, |off| off.exp())
}

/// A pool with a structure, and perhaps a second one.
type Opened = (Pool, Box<dyn Changing>, Option<Array<u64>>);

/// Persists some versions of a structure.
fn measure(case: &Case, path: &Path, random: &mut Rng, measured: &mut Vec<Measured>) -> Result<()> {
    let has_second = random.bool();
    let open = || -> Result<Opened> {
        let pool = Pool::open(path, PoolOptions::versions(2))?;
        let structure = case.open(&pool)?;
        let second = has_second.then(|| pool.array("step", 1, Block::default())).transpose()?;
        Ok((pool, structure, second))
    };
    let (mut pool, mut structure, mut second) = open()?;
    structure.fill(random);
    for _ in 0..CALLS_PER_POOL {
        let (is_reopened, seed) = (random.u8(0..3) == 0, random.u64(..));
        let mut calls = Vec::new();
        for repeat in 0..REPEATS {
            if is_reopened && !pool.versions().is_empty() {
                // All blocks are in the file then, and only those that are written in memory.
                drop((structure, second, pool));
                (pool, structure, second) = open()?;
            }
            structure.change(&mut Rng::with_seed(seed), random.u64(1..200));
            second.iter_mut().for_each(|step| step[0] += 1 + repeat as u64);
            let mut structures: Vec<&mut dyn Structure> = vec![structure.structure()];
            structures.extend(second.as_mut().map(|step| step as &mut dyn Structure));
            let features = pool.features(&mut structures);
            let start = Instant::now();
            pool.persist(&mut structures)?;
            calls.push(Measured { features, seconds: start.elapsed().as_secs_f64() });
        }
        calls.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        measured.push(calls[REPEATS / 2]);
    }
    Ok(())
}

/// A number between two others whose logarithm is equally likely everywhere.
fn between(random: &mut Rng, low: f64, high: f64) -> f64 {
    low * (high / low).powf(random.f64())
}
