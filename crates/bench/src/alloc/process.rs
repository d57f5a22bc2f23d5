//! One process of the benchmark: computes and saves, reads everything back, and reports the cost.

use std::{
    hint::black_box,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use outcrop_memory::Copier;
use serde::{Deserialize, Serialize};

use super::ways::{self, Way};

/// The order for one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// How to make room.
    pub way: Way,
    /// The size of the room.
    pub host_bytes: u64,
    /// The size of a snapshot.
    pub snapshot_bytes: u64,
    /// Milliseconds of computing between two saves.
    pub gap_ms: f64,
    /// Whether to measure saves into used memory as well.
    pub is_steady: bool,
}

/// The costs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) saves: usize,
    pub(super) init_seconds: f64,
    pub(super) save_seconds: f64,
    pub(super) take_seconds: f64,
    /// The time of a save once all memory has been used.
    pub(super) steady_save_seconds: f64,
    /// The time of a plain copy of the same size, measured at the same time.
    pub(super) copy_seconds: f64,
    /// Details of the way.
    pub(super) details: serde_json::Value,
}

impl Outcome {
    pub(super) fn blocked_seconds(&self) -> f64 {
        self.init_seconds + self.save_seconds + self.take_seconds
    }

    pub(super) fn mean(outcomes: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> f64| outcomes.iter().map(value).sum::<f64>() / outcomes.len().max(1) as f64;
        Self {
            saves: outcomes.first().map_or(1, |outcome| outcome.saves),
            init_seconds: mean(|outcome| outcome.init_seconds),
            save_seconds: mean(|outcome| outcome.save_seconds),
            take_seconds: mean(|outcome| outcome.take_seconds),
            steady_save_seconds: mean(|outcome| outcome.steady_save_seconds),
            copy_seconds: mean(|outcome| outcome.copy_seconds),
            details: outcomes.first().map_or(serde_json::Value::Null, |outcome| outcome.details.clone()),
        }
    }
}

/// A way to make room.
pub(super) trait Room {
    /// Keeps a state.
    fn save(&mut self, step: usize, state: &[u8]) -> Result<()>;

    /// Lets `read` see it, for the last time.
    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[u8])) -> Result<()>;

    /// Details of it.
    fn details(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// Runs an order that another process of this program has passed as JSON, and prints the result.
pub fn process(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let mut state = vec![1u8; order.snapshot_bytes as usize];
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    let outcome = ways::with_room(&order, |init_seconds, room| measure(&order, &mut state, init_seconds, room))?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn measure(order: &Order, state: &mut [u8], init_seconds: f64, room: &mut dyn Room) -> Result<Outcome> {
    let count = (order.host_bytes / order.snapshot_bytes) as usize;
    let mut outcome = Outcome { saves: count, init_seconds, ..Outcome::default() };
    let gap = Duration::from_secs_f64(order.gap_ms / 1e3);
    for step in 0..count {
        compute(gap);
        state[0] = step as u8;
        let start = Instant::now();
        room.save(step, black_box(state))?;
        outcome.save_seconds += start.elapsed().as_secs_f64();
    }
    outcome.details = room.details();
    for step in (0..count).rev() {
        let mut first = 0;
        let start = Instant::now();
        room.take(step, &mut |past| first = black_box(past)[0])?;
        outcome.take_seconds += start.elapsed().as_secs_f64();
        ensure!(first == step as u8, "step {step} came back as another one");
    }
    if order.is_steady {
        steady(state, room, &mut outcome)?;
    }
    Ok(outcome)
}

/// Keeps a core busy. If the program slept, caches and cores would go cold, and its copies would
/// take longer.
fn compute(gap: Duration) {
    let start = Instant::now();
    let mut values = [1.0f32; 256];
    while start.elapsed() < gap {
        values.iter_mut().for_each(|value| *value = *value * 0.999 + 0.5);
        black_box(&mut values);
    }
}

/// Saves into used memory, interleaved with plain copies to other used memory.
fn steady(state: &[u8], room: &mut dyn Room, outcome: &mut Outcome) -> Result<()> {
    const COUNT: usize = 160;
    let (copier, slots) = (Copier::default(), outcome.saves / 2);
    let mut target = vec![0u8; state.len() * slots.min(8)];
    let (mut saves, mut copies) = (Vec::new(), Vec::new());
    for step in 0..COUNT {
        let start = Instant::now();
        let place = step % slots.min(8) * state.len();
        copier.copy(black_box(&mut target[place..place + state.len()]), black_box(state));
        copies.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        room.save(step % slots, black_box(state))?;
        saves.push(start.elapsed().as_secs_f64());
        if step % slots == slots - 1 {
            (0..slots).rev().try_for_each(|step| room.take(step, &mut |_| {}))?;
        }
    }
    let median = |times: &mut Vec<f64>| {
        // The copier needs the first saves to find the best number of threads.
        let mut times = times.split_off(COUNT / 2);
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    outcome.steady_save_seconds = median(&mut saves);
    outcome.copy_seconds = median(&mut copies);
    Ok(())
}
