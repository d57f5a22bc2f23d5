//! The slowdown of a program that computes, writes to some of its pages, and saves.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    Options,
    keepers::{InStore, Keeper, Nothing, WARM_UP},
};
use crate::{
    clock::Calls,
    workload::{Arithmetic, Workload, write_pages},
};

/// The shares of pages that a step writes to. The first one has its own ratio.
const PERCENTS: [f64; 4] = [1.0, 10.0, 50.0, 100.0];

/// The number of values that the program computes with. They fit into the caches, because this does
/// not measure memory bandwidth.
const COMPUTED_LEN: usize = 1 << 18;

/// The results.
pub(super) struct Slowdowns {
    pub(super) rows: Vec<Value>,
    pub(super) one_percent: f64,
}

pub(super) fn measure(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Slowdowns> {
    let workload = Workload { len: COMPUTED_LEN, count: options.checkpoints, depth: None };
    let workload = workload.calibrated(options.compute_ms / 1e3);
    let mut state = vec![1.0; options.state_bytes as usize / size_of::<f32>()];
    let mut rows = Vec::new();
    let mut slowdowns = Vec::new();
    for percent in PERCENTS {
        let (mut without, mut with) = (Calls::default(), Calls::default());
        let mut save_ms = 0.0;
        for round in 0..options.rounds.max(1) {
            progress(&format!("slowdown with {percent}% of the pages written, round {}", round + 1));
            without.add(run(&workload, &mut state, percent, &mut Nothing)?.0);
            let scratch = tempfile::tempdir_in(&options.directory)?;
            let mut store = InStore::new(scratch.path(), options, true)?;
            let (wall, saves) = run(&workload, &mut state, percent, &mut store)?;
            with.add(wall);
            save_ms = saves.mean() * 1e3;
        }
        let slowdown = with.quantile(0.5) / without.quantile(0.5);
        slowdowns.push(slowdown);
        rows.push(json!({
            "part": "slowdown",
            "way": format!("{percent}% of the pages written, {} ms of computing", options.compute_ms),
            "without_seconds": without.quantile(0.5),
            "wall_seconds": with.quantile(0.5),
            "slowdown": slowdown,
            "save_ms_mean": save_ms,
        }));
    }
    Ok(Slowdowns { rows, one_percent: slowdowns[0] })
}

/// Runs all steps of the program. Returns the time of the measured ones, and their saves.
fn run(workload: &Workload, state: &mut [f32], percent: f64, keeper: &mut dyn Keeper) -> Result<(Duration, Calls)> {
    let now = vec![1.0; workload.len];
    let mut next = vec![0.0; workload.len];
    let (mut start, mut saves) = (Instant::now(), Calls::default());
    for step in 0..WARM_UP + workload.count {
        if step == WARM_UP {
            keeper.flush()?;
            (start, saves) = (Instant::now(), Calls::default());
        }
        if step >= WARM_UP {
            workload.depth.clone().advance(&now, black_box(&mut next));
        }
        write_pages(state, percent, step);
        saves.time(|| keeper.save(step as u64, state))?;
    }
    keeper.flush()?;
    Ok((start.elapsed(), saves))
}
