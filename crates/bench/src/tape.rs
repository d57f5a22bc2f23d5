//! `outcrop bench tape`: a forward and a backward pass, with every way to keep the states between
//! them.

use std::{collections::BTreeMap, hint::black_box, path::PathBuf, time::Instant};

use anyhow::{Result, ensure};
use outcrop::Tape;
use serde_json::json;

use crate::{
    Needs, Report, Scratch,
    clock::Calls,
    disk::Rates,
    passes::{Make, Run, measure},
    ways::{Direct, Files, Fresh, Mapped, Nothing, OnTape, Ring, Touched},
    workload::Workload,
};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The total size of all states.
    pub total_bytes: u64,
    /// The size of a state.
    pub snapshot_bytes: u64,
    /// Host memory of the tape and of the ring.
    pub host_bytes: u64,
    /// The directory for files.
    pub directory: PathBuf,
    /// Milliseconds of arithmetic between two saves. Default: enough for the disk to keep up.
    pub compute_ms: Option<f64>,
    /// Rounds of the ways that are close to each other. The best of each counts.
    pub rounds: usize,
}

impl Options {
    /// The most that it needs: one way at a time, in files that grow in large steps, or in memory.
    pub fn needs(&self) -> Needs {
        let memory_bytes = self.total_bytes + self.host_bytes + 3 * self.snapshot_bytes;
        Needs { file_bytes: self.total_bytes + (1 << 30), memory_bytes }
    }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(options.snapshot_bytes >= 4, "a snapshot needs at least 4 bytes");
    ensure!(options.host_bytes >= 2 * options.snapshot_bytes, "the host budget must hold two snapshots");
    ensure!(options.total_bytes >= 2 * options.host_bytes, "the total must be at least twice the host budget");
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    let len = (options.snapshot_bytes / 4) as usize;
    let count = (options.total_bytes / options.snapshot_bytes) as usize;
    progress("the disk alone");
    let before = Rates::measure(&options.directory, options.total_bytes.min(2 << 30))?;
    let disk_seconds = options.snapshot_bytes as f64 / before.write.min(before.read);
    let compute = options.compute_ms.map_or(2.0 * disk_seconds, |ms| ms / 1e3);
    let workload = Workload { len, count, depth: None }.calibrated(compute);
    // First, before anything else has filled the page cache or left writes for the disk.
    let bare = Workload { depth: None, ..workload };
    let bound = disk_bound(options, &bare, progress)?;
    let disk = before.mean(Rates::measure(&options.directory, options.total_bytes.min(2 << 30))?);
    let runs = compare(options, &workload, progress)?;
    progress("small snapshots");
    let small = small_saves(options)?;
    let copy = copy_seconds(&workload);
    let ratios = ratios(options, &workload, &runs, &bound, disk, copy, &small);
    let named = |run: &Run| {
        let mut value = run.to_json();
        value["way"] = format!("disk-bound {}", run.name).into();
        value
    };
    let mut rows: Vec<_> = runs.iter().map(Run::to_json).collect();
    rows.extend(bound.iter().map(named));
    let settings = json!({
        "total_bytes": workload.total_bytes(),
        "snapshot_bytes": options.snapshot_bytes,
        "host_bytes": options.host_bytes,
        "compute_ms": compute * 1e3,
        "disk_bytes_per_second": disk,
        "copy_ms": copy * 1e3,
    });
    Ok(Report::new("tape", settings, rows, ratios))
}

/// The tape, the ring and plain transfers, without computing that could hide them.
fn disk_bound(options: &Options, bare: &Workload, progress: &mut dyn FnMut(&str)) -> Result<[Run; 3]> {
    let host = options.host_bytes;
    let makes: [Make<'_>; 3] = [
        Box::new(|path| Ok(Box::new(OnTape::new(path, bare, host, false)?))),
        Box::new(|path| Ok(Box::new(Ring::new(path, bare, host)?))),
        Box::new(|path| Ok(Box::new(Direct::new(path, bare)?))),
    ];
    let runs = best_of(options, bare, &makes, &mut |name| progress(&format!("disk-bound: {name}")))?;
    runs.try_into().map_err(|_| anyhow::anyhow!("every way gives a run"))
}

/// Every way, with the same arithmetic.
fn compare(options: &Options, workload: &Workload, progress: &mut dyn FnMut(&str)) -> Result<Vec<Run>> {
    let host = options.host_bytes;
    let close: [Make<'_>; 4] = [
        Box::new(|_| Ok(Box::new(Nothing::new(workload)))),
        Box::new(|path| Ok(Box::new(OnTape::new(path, workload, host, false)?))),
        Box::new(|path| Ok(Box::new(OnTape::new(path, workload, host, true)?))),
        Box::new(|path| Ok(Box::new(Ring::new(path, workload, host)?))),
    ];
    let far: [Make<'_>; 6] = [
        Box::new(|path| Ok(Box::new(Direct::new(path, workload)?))),
        Box::new(|path| Ok(Box::new(Files::new(path, workload, false)?))),
        Box::new(|path| Ok(Box::new(Files::new(path, workload, true)?))),
        Box::new(|path| Ok(Box::new(Mapped::new(path, workload)?))),
        Box::new(|_| Ok(Box::new(Fresh::default()))),
        Box::new(|_| Ok(Box::new(Touched::new(workload)))),
    ];
    let mut runs = best_of(options, workload, &close, progress)?;
    let once = Options { rounds: 1, ..options.clone() };
    runs.extend(best_of(&once, workload, &far, progress)?);
    let expected = runs[1].sum;
    for run in &runs[1..] {
        ensure!(run.sum == expected, "{} gave back other states than were saved", run.name);
    }
    Ok(runs)
}

/// Measures every way in several interleaved rounds, and returns the best run of each, because
/// noise only adds time.
fn best_of(
    options: &Options,
    workload: &Workload,
    makes: &[Make<'_>],
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Run>> {
    let mut best: Vec<Run> = Vec::new();
    for round in 0..options.rounds.max(1) {
        for (index, make) in makes.iter().enumerate() {
            let warm_bytes = options.host_bytes + workload.own_bytes();
            let mut arithmetic = workload.depth;
            let run = measure(&options.directory, workload, &mut arithmetic, warm_bytes, |path| {
                let way = make(path)?;
                progress(way.name());
                Ok(way)
            })?;
            if round == 0 {
                best.push(run);
                continue;
            }
            let rounds_seconds = [best[index].rounds_seconds.as_slice(), &run.rounds_seconds].concat();
            if run.wall_seconds < best[index].wall_seconds {
                best[index] = run;
            }
            best[index].rounds_seconds = rounds_seconds;
        }
    }
    Ok(best)
}

/// The time of a plain copy of one state into touched memory.
fn copy_seconds(workload: &Workload) -> f64 {
    let source = vec![1.0f32; workload.len];
    let mut target = vec![2.0f32; workload.len];
    let mut calls = Calls::default();
    for _ in 0..20 {
        calls.time(|| black_box(&mut target).copy_from_slice(black_box(&source)));
    }
    calls.mean()
}

/// The cost of a save of 4 KiB beyond its copy, in microseconds.
struct Small {
    /// While everything stays in memory.
    quiet_us: f64,
    /// While earlier saves drain to the directory, without the waits for them.
    draining_us: f64,
}

fn small_saves(options: &Options) -> Result<Small> {
    const COUNT: usize = 30_000;
    let state = [1.0f32; 1024];
    let mut target = vec![0.0f32; 1024 * 1024];
    let start = Instant::now();
    for step in 0..COUNT {
        black_box(&mut target[(step % 1024) * 1024..][..1024]).copy_from_slice(black_box(&state));
    }
    let copy = start.elapsed().as_secs_f64();
    let measure = |host_bytes: u64| -> Result<f64> {
        let scratch = tempfile::tempdir_in(&options.directory)?;
        let mut tape = Tape::builder().host(host_bytes).dir(scratch.path(), "1 GiB").open()?;
        // The first round touches the memory; the second is measured.
        for step in 0..COUNT {
            tape.save(step, &state)?;
        }
        for step in (0..COUNT).rev() {
            tape.take::<f32>(step)?;
        }
        let waited = tape.stats().wait_seconds;
        let start = Instant::now();
        for step in 0..COUNT {
            tape.save(step, &state)?;
        }
        let seconds = start.elapsed().as_secs_f64() - (tape.stats().wait_seconds - waited);
        Ok((seconds - copy) / COUNT as f64 * 1e6)
    };
    Ok(Small { quiet_us: measure(512 << 20)?, draining_us: measure(64 << 20)? })
}

fn ratios(
    options: &Options,
    workload: &Workload,
    runs: &[Run],
    bound: &[Run; 3],
    disk: Rates,
    copy: f64,
    small: &Small,
) -> BTreeMap<&'static str, f64> {
    let (nothing, save, lend, ring) = (&runs[0], &runs[1], &runs[2], &runs[3]);
    let beyond_host = workload.total_bytes().saturating_sub(options.host_bytes) as f64;
    let disk_seconds = beyond_host / disk.write + beyond_host / disk.read;
    let rate = |bytes: &str, seconds: &str| {
        let layer = &bound[0].details["layers"][1];
        layer[bytes].as_f64().unwrap_or(0.0) / layer[seconds].as_f64().unwrap_or(f64::INFINITY)
    };
    let allowed = workload.own_bytes() + options.host_bytes;
    BTreeMap::from([
        ("wall_over_no_storing", save.wall_seconds / nothing.wall_seconds),
        ("lend_wall_over_no_storing", lend.wall_seconds / nothing.wall_seconds),
        ("ring_wall_over_no_storing", ring.wall_seconds / nothing.wall_seconds),
        ("save_over_memcpy", save.saves.mean() / copy),
        ("lend_over_memcpy", lend.saves.mean() / copy),
        ("ring_save_over_memcpy", ring.saves.mean() / copy),
        ("ring_blocked_over_tape", ring.blocked_seconds() / save.blocked_seconds()),
        ("ring_blocked_over_lend", ring.blocked_seconds() / lend.blocked_seconds()),
        ("take_us_prefetched", save.hits.quantile(0.5) * 1e6),
        ("take_us_prefetched_p99", save.hits.quantile(0.99) * 1e6),
        ("drain_over_direct", rate("written_bytes", "write_seconds") / disk.write),
        ("prefetch_over_direct", rate("read_bytes", "read_seconds") / disk.read),
        ("small_save_us", small.quiet_us),
        ("small_save_draining_us", small.draining_us),
        ("rss_over_budget_mib", (save.memory_bytes as f64 - allowed as f64) / (1 << 20) as f64),
        ("disk_bound_wall_over_disk", bound[0].wall_seconds / disk_seconds),
        ("disk_bound_ring_over_tape", bound[1].wall_seconds / bound[0].wall_seconds),
        ("disk_bound_direct_over_tape", bound[2].wall_seconds / bound[0].wall_seconds),
    ])
}
