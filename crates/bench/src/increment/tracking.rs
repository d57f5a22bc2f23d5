//! The cost of finding what has changed: by tracking pages, by hashing everything, and as the
//! tracker chooses.

use std::time::{Duration, Instant};

use outcrop_track::{CpuHasher, Hash, HashKind, Hasher, TrackOptions, Tracker, Way};
use serde_json::{Value, json};

use super::Options;
use crate::workload::{bytes, write_pages};

/// The shares of pages that are written between two searches.
const PERCENTS: [f64; 7] = [0.1, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0];

/// The size of a block: the default of a store.
pub(super) const BLOCK_BYTES: usize = 4096;

/// The results.
pub(super) struct Tracking {
    pub(super) rows: Vec<Value>,
    pub(super) over_rehash_max: f64,
}

/// The time of all searches in one way.
#[derive(Default, Clone, Copy)]
struct Cost {
    /// The program's own writes, which are slower while pages are tracked.
    writing: Duration,
    /// Finding what has changed, tracking it again, and hashing it.
    looking: Duration,
}

/// Hashing everything is the baseline.
const WAYS: [Way; 3] = [Way::Everything, Way::Chosen, Way::Pages];

pub(super) fn measure(options: &Options, progress: &mut dyn FnMut(&str)) -> Tracking {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let hasher = CpuHasher::new(HashKind::Xxh3, threads);
    let mut states = WAYS.map(|_| vec![1.0; options.state_bytes as usize / size_of::<f32>()]);
    let mut rows = Vec::new();
    let mut over_rehash_max: f64 = 0.0;
    for percent in PERCENTS {
        progress(&format!("tracking with {percent}% of the pages written"));
        let costs = looks(options, &hasher, &mut states, percent);
        // The time of the writes themselves, without tracking, does not count.
        let cost_ms = |cost: Cost| {
            let seconds = (cost.writing + cost.looking).as_secs_f64() - costs[0].writing.as_secs_f64();
            seconds * 1e3 / options.looks as f64
        };
        let [rehash_ms, chosen_ms, pages_ms] = costs.map(cost_ms);
        over_rehash_max = over_rehash_max.max(chosen_ms / rehash_ms);
        rows.push(json!({
            "part": "tracking",
            "way": format!("{percent}% of the pages written"),
            "rehash_ms": rehash_ms,
            "chosen_ms": chosen_ms,
            "chosen_over_rehash": chosen_ms / rehash_ms,
            "pages_ms": pages_ms,
            "pages_over_rehash": pages_ms / rehash_ms,
        }));
    }
    Tracking { rows, over_rehash_max }
}

/// Searches for changes several times, with writes before each search. The ways are interleaved,
/// because the speed of the machine varies. The first search hashes everything in any way and does
/// not count.
fn looks(options: &Options, hasher: &CpuHasher, states: &mut [Vec<f32>; 3], percent: f64) -> [Cost; 3] {
    let mut trackers =
        WAYS.map(|way| Tracker::new(TrackOptions { way, block_bytes: BLOCK_BYTES, ..TrackOptions::default() }));
    let mut hashes = vec![Hash::default(); options.state_bytes as usize / BLOCK_BYTES];
    let mut costs = [Cost::default(); 3];
    for step in 0..=options.looks {
        for ((tracker, state), cost) in trackers.iter_mut().zip(&mut *states).zip(&mut costs) {
            let start = Instant::now();
            write_pages(state, percent, step);
            let written = Instant::now();
            look(tracker, hasher, bytes(state), &mut hashes);
            if step > 0 {
                cost.writing += written - start;
                cost.looking += written.elapsed();
            }
        }
    }
    costs
}

/// Hashes the blocks that may have changed, and reports to the tracker how long that took.
fn look(tracker: &mut Tracker, hasher: &CpuHasher, memory: &[u8], hashes: &mut [Hash]) {
    let changes = tracker.changed("state", memory);
    let start = Instant::now();
    let mut parts = Vec::new();
    let mut next = 0;
    for range in changes.ranges {
        let first = (range.start / BLOCK_BYTES).max(next);
        next = range.end.div_ceil(BLOCK_BYTES).max(first);
        parts.push(&memory[first * BLOCK_BYTES..(next * BLOCK_BYTES).min(memory.len())]);
    }
    let hashed_bytes: usize = parts.iter().map(|part| part.len()).sum();
    hasher.hash(&parts, BLOCK_BYTES, &mut hashes[..hashed_bytes.div_ceil(BLOCK_BYTES)]);
    tracker.hashed("state", hashed_bytes, start.elapsed());
}
