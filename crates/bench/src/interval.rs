//! `outcrop bench interval`: a program that fails now and then, and when it persists.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use fastrand::Rng;
use outcrop::pool::{Array, Block, Options as PoolOptions, Outcome, Pool, Rule};
use serde_json::json;

use crate::{Needs, Report, Scratch};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The length of the program's array.
    pub state_bytes: u64,
    /// How many iterations it has.
    pub steps: u64,
    /// Milliseconds of an iteration. Up to five times as much is added, as in the paper.
    pub compute_ms: f64,
    /// The mean time between failures.
    pub mtbf: Duration,
    /// How many times each way runs, with failures at other times.
    pub rounds: u64,
    /// The directory for the pool. No file is left there.
    pub directory: PathBuf,
}

impl Options {
    /// The memory and space that it needs.
    pub fn needs(&self) -> Needs {
        Needs { file_bytes: 4 * self.state_bytes, memory_bytes: 3 * self.state_bytes }
    }
}

/// The part of the array that an iteration changes.
const CHANGED: f64 = 0.1;

/// When a program persists. `None`: never, and it does not fail either.
const WAYS: [(&str, Option<When>); 4] = [
    ("no failures, nothing persisted", None),
    ("no model: each iteration", Some(When::Always)),
    ("the paper's rule", Some(When::Worth(Rule::Recompute))),
    ("our rule", Some(When::Worth(Rule::Exact))),
];

#[derive(Clone, Copy)]
enum When {
    Always,
    Worth(Rule),
}

/// What became of a run.
#[derive(Default)]
struct Run {
    wall: Duration,
    persisting: Duration,
    versions: u64,
    failures: u64,
    /// Iterations that were computed again.
    again: u64,
    result: u64,
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(options.steps > 0 && options.rounds > 0, "at least one step and one round");
    ensure!(options.mtbf > Duration::ZERO, "the time between failures is longer than nothing");
    let _scratch = Scratch::new(&options.directory)?;
    options.needs().check(&options.directory)?;
    let inside = tempfile::tempdir_in(&options.directory)?;
    let mut all: [Run; WAYS.len()] = Default::default();
    for round in 0..options.rounds {
        for ((way, when), sum) in WAYS.iter().zip(&mut all) {
            progress(&format!("{way}, round {} of {}", round + 1, options.rounds));
            let path = inside.path().join("interval.pool");
            let run = program(options, *when, &path, round)?;
            std::fs::remove_file(&path)?;
            sum.wall += run.wall;
            sum.persisting += run.persisting;
            (sum.versions, sum.failures) = (sum.versions + run.versions, sum.failures + run.failures);
            (sum.again, sum.result) = (sum.again + run.again, run.result);
        }
        let is_same = all.iter().all(|run| run.result == all[0].result);
        ensure!(is_same, "a program that has failed came to another result than one that has not");
    }
    let runs = WAYS.iter().zip(&all).map(|((way, _), run)| {
        json!({
            "way": way, "wall_seconds": run.wall.as_secs_f64(), "blocked_seconds": run.persisting.as_secs_f64(),
            "versions": run.versions, "failures": run.failures, "iterations_again": run.again,
        })
    });
    let over_ours = |way: usize| all[way].wall.as_secs_f64() / all[3].wall.as_secs_f64();
    let ratios = BTreeMap::from([
        ("no_model_over_ours", over_ours(1)),
        ("paper_rule_over_ours", over_ours(2)),
        ("no_model_over_paper_rule", over_ours(1) / over_ours(2)),
        ("ours_over_no_failures", 1.0 / over_ours(0)),
    ]);
    let settings = json!({
        "state_bytes": options.state_bytes, "steps": options.steps, "compute_ms": options.compute_ms,
        "mtbf_seconds": options.mtbf.as_secs_f64(), "rounds": options.rounds,
    });
    Ok(Report::new("interval", settings, runs.collect(), ratios))
}

/// What a program has in its pool.
struct Program {
    pool: Pool,
    state: Array<f64>,
    step: Array<u64>,
}

impl Program {
    /// Begins, or goes on where it was durable.
    fn start(options: &Options, when: Option<When>, path: &Path) -> Result<Self> {
        let rule = if let Some(When::Worth(rule)) = when { rule } else { Rule::Exact };
        let pool = Pool::open(path, PoolOptions::versions(2).rule(rule).mtbf(options.mtbf))?;
        let state = pool.array("state", (options.state_bytes as usize / 8).max(1000), Block::default())?;
        let step = pool.array("step", 1, Block::default())?;
        Ok(Self { pool, state, step })
    }

    /// One iteration, which takes some time and changes a part of the state.
    fn iterate(&mut self, options: &Options) {
        let start = Instant::now();
        let step = self.step[0];
        let len = self.state.len();
        let count = ((len as f64 * CHANGED) as usize).max(1);
        let first = step as usize * 7919 * count / 3 % (len - count + 1);
        for value in &mut self.state[first..first + count] {
            *value = *value * 0.5 + step as f64;
        }
        self.step[0] += 1;
        // Between one and six times as long, the same for the same step.
        let times = 1.0 + 5.0 * Rng::with_seed(step).f64();
        let until = Duration::from_secs_f64(options.compute_ms * times / 1e3);
        while start.elapsed() < until {
            std::hint::spin_loop();
        }
    }

    /// Persists, if it is time to. Whether it did.
    fn persist(&mut self, when: When) -> Result<bool> {
        let structures: &mut [&mut dyn outcrop::pool::Structure] = &mut [&mut self.state, &mut self.step];
        Ok(match when {
            When::Always => self.pool.persist(structures).map(|_| true)?,
            When::Worth(_) => matches!(self.pool.persist_if_worth_it(structures)?, Outcome::Persisted(_)),
        })
    }

    /// A number that depends on all of the state.
    fn result(&self) -> u64 {
        self.state.iter().fold(self.step[0], |sum, value| sum.rotate_left(5) ^ value.to_bits())
    }
}

/// Runs until all iterations are done. At a failure, the program is dropped as it is, and begins
/// again with what is durable.
fn program(options: &Options, when: Option<When>, path: &Path, round: u64) -> Result<Run> {
    let mut random = Rng::with_seed(round + 1);
    let mut next_failure = || options.mtbf.mul_f64(-(1.0 - random.f64()).ln());
    let mut run = Run::default();
    let start = Instant::now();
    let mut program = Program::start(options, when, path)?;
    let mut failure = start.elapsed() + next_failure();
    while program.step[0] < options.steps {
        program.iterate(options);
        let Some(when) = when else { continue };
        if start.elapsed() >= failure {
            run.failures += 1;
            let reached = program.step[0];
            drop(program);
            program = Program::start(options, Some(when), path)?;
            run.again += reached - program.step[0];
            failure = start.elapsed() + next_failure();
            continue;
        }
        let before = Instant::now();
        run.versions += u64::from(program.persist(when)?);
        run.persisting += before.elapsed();
    }
    (run.wall, run.result) = (start.elapsed(), program.result());
    Ok(run)
}
