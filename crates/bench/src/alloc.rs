//! `outcrop bench alloc`: the cost of starting a short program, until its caches are allocated.
//!
//! Each way of making room for snapshots runs in one process or in several at the same time, and
//! computes between the saves. All time from the start of the process counts as blocked, except
//! computing.

mod process;
mod ways;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::channel,
    thread,
};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use process::Outcome;
pub use process::{Order, process};
pub use ways::Way;

use crate::{Machine, Report, memory::Supply};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The room for snapshots in each process.
    pub host_bytes: u64,
    /// The size of a snapshot. As many are saved as there is room for.
    pub snapshot_bytes: u64,
    /// The numbers of concurrent processes, one case after the other.
    pub processes: Vec<usize>,
    /// Milliseconds of computing between two saves, one case after the other.
    pub gaps_ms: Vec<f64>,
    /// Rounds of each case. The best counts, because noise only adds time.
    pub rounds: usize,
}

/// One way in one case.
#[derive(Debug)]
struct Run {
    way: Way,
    processes: usize,
    gap_ms: f64,
    outcome: Outcome,
    rounds_seconds: Vec<f64>,
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let most = options.processes.iter().copied().max().unwrap_or(1) as u64;
    let needed = options.host_bytes * most;
    let there_are = Machine::here().memory_bytes;
    ensure!(
        needed * 5 / 4 < there_are,
        "{needed} bytes of caches need a machine with a quarter more; set --host lower"
    );
    ensure!(options.host_bytes >= 4 * options.snapshot_bytes, "the host buffer must hold four snapshots");
    let mut runs = Vec::new();
    for &processes in &options.processes {
        // On a virtual machine, memory that the host has to provide first is very slow. This gives
        // all ways the same memory.
        let mut supply = Supply::new((options.host_bytes + 2 * options.snapshot_bytes) * processes as u64);
        for &gap_ms in &options.gaps_ms {
            progress(&format!("{processes} at a time, {gap_ms} ms between saves"));
            runs.extend(case(options, processes, gap_ms, &mut supply)?);
        }
    }
    let ratios = ratios(options, &runs);
    let settings = json!({
        "host_bytes": options.host_bytes,
        "snapshot_bytes": options.snapshot_bytes,
        "processes": options.processes,
        "gaps_ms": options.gaps_ms,
        "rounds": options.rounds,
        "memory": "held by another process, and given back as it is taken",
    });
    Ok(Report::new("alloc", settings, runs.iter().map(Run::to_json).collect(), ratios))
}

/// The best of several rounds of every way. Each round has another order, because the results
/// depend on whose memory a process gets.
fn case(options: &Options, processes: usize, gap_ms: f64, supply: &mut Supply) -> Result<Vec<Run>> {
    let mut outcomes: Vec<Vec<Outcome>> = vec![Vec::new(); Way::ALL.len()];
    for round in 0..options.rounds.max(1) {
        for number in 0..Way::ALL.len() {
            // The number of ways is a prime, so every stride visits all of them, each after a
            // different one.
            let number = (number * (1 + round % (Way::ALL.len() - 1)) + round) % Way::ALL.len();
            let Options { host_bytes, snapshot_bytes, .. } = *options;
            let way = Way::ALL[number];
            let is_steady = way == Way::Ours && processes == 1;
            let order = Order { way, host_bytes, snapshot_bytes, gap_ms, is_steady };
            outcomes[number].push(at_once(&order, processes, supply)?);
        }
    }
    let run = |(way, mut outcomes): (&Way, Vec<Outcome>)| {
        let rounds_seconds = outcomes.iter().map(Outcome::blocked_seconds).collect();
        outcomes.sort_by(|one, other| one.blocked_seconds().total_cmp(&other.blocked_seconds()));
        let outcome = outcomes.swap_remove(0);
        Run { way: *way, processes, gap_ms, outcome, rounds_seconds }
    };
    Ok(Way::ALL.iter().zip(outcomes).map(run).collect())
}

/// Runs the same order in several processes at the same time, and returns the mean of their
/// reports.
fn at_once(order: &Order, processes: usize, supply: &mut Supply) -> Result<Outcome> {
    supply.refill();
    let text = serde_json::to_string(order)?;
    let mut children: Vec<Child> = Vec::new();
    for _ in 0..processes {
        let child = Command::new(std::env::current_exe()?)
            .args(["bench", "alloc-process", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start another process of this program")?;
        children.push(child);
    }
    // Each process reports when it is ready, and all start together.
    let mut readers = Vec::new();
    for child in &mut children {
        let mut reader = BufReader::new(child.stdout.take().context("a child has an output")?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        readers.push(reader);
    }
    let ids: Vec<u32> = children.iter().map(Child::id).collect();
    thread::scope(|scope| {
        let (end, over) = channel();
        scope.spawn(move || supply.give(&ids, &over));
        for child in &mut children {
            child.stdin.as_mut().context("a child has an input")?.write_all(b"go\n")?;
        }
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (mut child, reader) in children.into_iter().zip(readers) {
            let outcome = serde_json::from_reader(reader);
            let status = child.wait()?;
            ensure!(status.success(), "a process of way {:?} has failed: {status}", order.way.name());
            outcomes.push(outcome?);
        }
        drop(end);
        Ok(Outcome::mean(&outcomes))
    })
}

fn ratios(options: &Options, runs: &[Run]) -> BTreeMap<&'static str, f64> {
    let blocked = |way: Way, processes: usize, gap_ms: f64| {
        let is_it = |run: &&Run| run.way == way && run.processes == processes && run.gap_ms == gap_ms;
        runs.iter().find(is_it).map_or(f64::NAN, |run| run.outcome.blocked_seconds())
    };
    let nearest = |wanted: f64| {
        let distance = |gap: f64| (gap - wanted).abs();
        options.gaps_ms.iter().copied().min_by(|one, other| distance(*one).total_cmp(&distance(*other))).unwrap_or(0.0)
    };
    let gap = nearest(20.0);
    let over = |way: Way, processes: usize| blocked(way, processes, gap) / blocked(Way::Ours, processes, gap);
    let worst = |is_rival: fn(Way) -> bool| {
        let cases =
            options.processes.iter().flat_map(|&processes| options.gaps_ms.iter().map(move |&gap| (processes, gap)));
        let over_best = |(processes, gap_ms): (usize, f64)| {
            let rivals = Way::ALL.into_iter().filter(|&way| is_rival(way)).map(|way| blocked(way, processes, gap_ms));
            blocked(Way::Ours, processes, gap_ms) / rivals.fold(f64::INFINITY, f64::min)
        };
        cases.map(over_best).fold(0.0, f64::max)
    };
    let steady = runs.iter().filter(|run| run.way == Way::Ours && run.processes == 1);
    let mut steady: Vec<f64> =
        steady.map(|run| run.outcome.steady_save_seconds / run.outcome.copy_seconds.max(1e-12)).collect();
    steady.sort_by(f64::total_cmp);
    let (first, last) = (options.processes[0], options.processes[options.processes.len() - 1]);
    BTreeMap::from([
        ("direct_pin_over_ours_20ms", over(Way::DirectPin, first)),
        ("direct_pin_over_ours_20ms_most_processes", over(Way::DirectPin, last)),
        ("direct_pin_huge_over_ours_20ms", over(Way::DirectPinHuge, first)),
        ("on_demand_over_ours_20ms", over(Way::OnDemand, first)),
        ("incremental_memset_over_ours_20ms", over(Way::IncrementalMemset, first)),
        ("ours_over_best_static_max", worst(|way| way.is_static() && way != Way::DirectPinHuge)),
        ("ours_over_best_static_max_with_huge_pin", worst(Way::is_static)),
        ("steady_over_memcpy", steady.get(steady.len() / 2).copied().unwrap_or(f64::NAN)),
    ])
}

impl Run {
    fn to_json(&self) -> serde_json::Value {
        json!({
            "way": format!("{}, {} at a time, {} ms", self.way.name(), self.processes, self.gap_ms),
            "name": self.way.name(),
            "processes": self.processes,
            "gap_ms": self.gap_ms,
            "blocked_seconds": self.outcome.blocked_seconds(),
            "blocked_seconds_rounds": self.rounds_seconds,
            "init_seconds": self.outcome.init_seconds,
            "save_ms_mean": self.outcome.save_seconds / self.outcome.saves as f64 * 1e3,
            "take_ms_mean": self.outcome.take_seconds / self.outcome.saves as f64 * 1e3,
            "details": self.outcome.details,
        })
    }
}
