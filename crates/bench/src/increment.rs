//! `outcrop bench increment`: what incremental checkpoints save, and the cost of finding changes.
//!
//! The experiment of libhashckpt: a program that rewrites nearly all of its memory and changes
//! little of it, and one that changes all of it, with full, page-based and hash-based checkpoints.
//! Then the slowdown of a program that writes to some of its pages, the cost of tracking pages, and
//! the rate of hashing.

mod hashing;
mod keepers;
mod programs;
mod slowdown;
mod tracking;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::{Needs, Report, Scratch, memory, workload::check_state_bytes};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The memory of each program.
    pub state_bytes: u64,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// The number of measured checkpoints of each program.
    pub checkpoints: usize,
    /// Milliseconds of computing between two checkpoints of the program that writes to some of its
    /// pages.
    pub compute_ms: f64,
    /// How many times each way of tracking searches for changes.
    pub looks: usize,
    /// Rounds of each slowdown. The median counts.
    pub rounds: usize,
    /// Whether only hashing is measured, then also on devices.
    pub only_hashes: bool,
}

impl Options {
    /// Room for the version being saved, the one before, and their overhead.
    fn host_bytes(&self) -> u64 {
        self.state_bytes * 5 / 2 + (64 << 20)
    }

    /// The most that it needs.
    pub fn needs(&self) -> Needs {
        if self.only_hashes {
            // A buffer of a device may be host memory.
            return Needs { file_bytes: 0, memory_bytes: 3 * self.state_bytes };
        }
        let file_bytes = (self.checkpoints + keepers::WARM_UP + 1) as u64 * self.state_bytes;
        Needs { file_bytes, memory_bytes: self.host_bytes() + self.state_bytes * 3 / 2 }
    }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let bytes = options.state_bytes;
    check_state_bytes(bytes)?;
    ensure!(options.checkpoints > 0 && options.looks > 0, "there must be something to measure");
    if options.only_hashes {
        return Ok(hashes(options, progress));
    }
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    memory::warm(options.host_bytes() + bytes);
    let programs = programs::measure(options, progress)?;
    let slowdowns = slowdown::measure(options, progress)?;
    let tracking = tracking::measure(options, progress);
    let hashing = hashing::measure(options, progress);
    let ratios = BTreeMap::from([
        ("hash_bytes_over_page_bytes", programs.hash_bytes_over_page_bytes),
        ("slowdown_1pct", slowdowns.one_percent),
        ("tracking_over_rehash_max", tracking.over_rehash_max),
        ("hash_over_read_bandwidth", hashing.over_read_bandwidth),
    ]);
    let settings = json!({
        "state_bytes": bytes,
        "host_bytes": options.host_bytes(),
        "checkpoints": options.checkpoints,
        "compute_ms": options.compute_ms,
        "looks": options.looks,
        "rounds": options.rounds,
        "memory": "everything is touched: the programs' memory in pages of the usual size, what it is copied to in huge pages",
        "wall": "until the last checkpoint is durable; the first ones, which fill the memory, do not count",
    });
    let runs = [programs.rows, slowdowns.rows, tracking.rows, hashing.rows].concat();
    Ok(Report::new("increment", settings, runs, ratios))
}

/// Figure 2 of the paper: the rate of hashing against the size of blocks, on one core, all cores
/// and every device.
fn hashes(options: &Options, progress: &mut dyn FnMut(&str)) -> Report {
    let hashing = hashing::measure(options, progress);
    let on_devices = hashing::measure_devices(options, progress);
    let settings = json!({
        "state_bytes": options.state_bytes,
        "devices": "as found; without a card, OpenCL runs on the processor",
    });
    let ratios = BTreeMap::from([("hash_over_read_bandwidth", hashing.over_read_bandwidth)]);
    Report::new("increment", settings, [hashing.rows, on_devices].concat(), ratios)
}
