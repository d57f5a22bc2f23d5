//! The figures of "Towards Efficient Cache Allocation for High-Frequency Checkpointing", on a
//! DGX-A100 node.

use outcrop_plan::Touching;

use super::{Figure, Headline, row, thinned, traces};
use crate::{
    Approach, Experiment, Layer, Machine, Outcome, Turns, Workload,
    chart::{Chart, Content, Panel, Series},
    error::Result,
    simulate,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// From the paper: 256 snapshots of 128 MB.
const SNAPSHOTS: usize = 256;
const SNAPSHOT_BYTES: u64 = 128 * MIB;

/// From the paper: 4 GB of device cache and 32 GB of host buffer, or 32 GB of device cache.
const SMALL_DEVICE_BYTES: u64 = 4 * GIB;
const LARGE_DEVICE_BYTES: u64 = 32 * GIB;
const HOST_BYTES: u64 = 32 * GIB;

const PROCESSES: usize = 8;

/// The paper begins at 5 ms; its measured programs are around 20 ms.
const GAPS_MS: &[u64] = &[5, 10, 20, 40, 60, 80, 100];
const USUAL_GAP_MS: u64 = 20;

const WAITING: &str = "waiting per process (s)";
pub(super) const GAP: &str = "computing between two snapshots (ms)";

/// The approaches that most figures compare.
const WAYS: &[(&str, Approach)] = &[
    ("direct pin", Approach::DirectPin(Turns::Parallel)),
    ("on demand", Approach::OnDemand),
    ("incremental memset", Approach::IncrementalMemset),
    ("ours", Approach::OURS),
];

/// Which times are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    Saves,
    SavesAndTakes,
}

impl Count {
    fn of(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Saves => outcome.save_seconds(),
            Self::SavesAndTakes => outcome.blocked_seconds(),
        }
    }
}

fn run(machine: &Machine, approach: Approach, layers: &[Layer], workloads: Vec<Workload>) -> Result<Outcome> {
    simulate(&Experiment::one_node(machine.clone(), approach, layers.to_vec(), workloads))
}

fn large_host() -> Vec<Layer> {
    vec![Layer::device(SMALL_DEVICE_BYTES), Layer::host(HOST_BYTES)]
}

fn uniform(processes: usize, gap_ms: u64) -> Vec<Workload> {
    vec![Workload::uniform(SNAPSHOTS, SNAPSHOT_BYTES, gap_ms * 1_000_000); processes]
}

/// Simulates every approach at every tick, and makes a figure with lines.
pub(super) fn compare<T: Copy + std::fmt::Display + Into<serde_json::Value>>(
    head: &str,
    ways: &[(&str, Approach)],
    ticks: &[T],
    seconds: impl Fn(Approach, T) -> Result<f64>,
) -> Result<(Vec<super::Row>, Vec<Series>)> {
    let mut series: Vec<_> = ways.iter().map(|&(name, _)| Series::new(name, Vec::new())).collect();
    let mut rows = Vec::new();
    for &tick in ticks {
        for (series, &(_, approach)) in series.iter_mut().zip(ways) {
            series.values.push(seconds(approach, tick)?);
        }
        let last = series.iter().map(|series| (series.name.as_str(), *series.values.last().unwrap_or(&0.0)));
        rows.push(row([(head, tick.into())], last));
    }
    series.iter_mut().for_each(|series| series.is_ours = series.name.starts_with("ours"));
    Ok((rows, series))
}

pub(super) fn lines(ticks: &[impl ToString], series: Vec<Series>, x_label: &str, is_log: bool) -> Chart {
    let content = Content::Lines { ticks: ticks.iter().map(ToString::to_string).collect(), series };
    let (title, x_label, y_label) = (String::new(), x_label.to_owned(), WAITING.to_owned());
    Chart { panels: vec![Panel { title, x_label, y_label, is_log, content }] }
}

fn figure(rows: Vec<super::Row>, headline: Headline, chart: Chart) -> Figure {
    Figure { name: "", title: "", rows, headline, chart }
}

pub(super) fn named<'a>(series: &'a [Series], name: &str) -> &'a [f64] {
    series.iter().find(|series| series.name == name).map_or(&[], |series| &series.values)
}

/// The ratio of two series, at every tick.
fn ratios(series: &[Series], longer: &str, shorter: &str) -> Vec<f64> {
    named(series, longer).iter().zip(named(series, shorter)).map(|(longer, shorter)| longer / shorter).collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MIN, f64::max)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn gaps(
    machine: &Machine,
    is_quick: bool,
    count: Count,
    paper: f64,
    workloads: impl Fn(u64) -> Vec<Workload>,
) -> Result<Figure> {
    let gaps = thinned(GAPS_MS, is_quick);
    let seconds = |approach, gap_ms| Ok(count.of(&run(machine, approach, &large_host(), workloads(gap_ms))?));
    let (rows, series) = compare("gap_ms", WAYS, &gaps, seconds)?;
    let sum = |name| named(&series, name).iter().sum::<f64>();
    let headline = Headline::new(&[("direct_pin_over_ours_all_gaps", paper, sum("direct pin") / sum("ours"))]);
    Ok(figure(rows, headline, lines(&gaps, series, GAP, true)))
}

fn variable(gap_ms: u64) -> Vec<Workload> {
    let of_process = |process| Workload { sizes: traces::shot(process), ..uniform(1, gap_ms).remove(0) };
    (0..PROCESSES).map(of_process).collect()
}

pub(super) fn variable_saves(machine: &Machine, is_quick: bool) -> Result<Figure> {
    gaps(machine, is_quick, Count::Saves, 16.7, variable)
}

pub(super) fn variable_total(machine: &Machine, is_quick: bool) -> Result<Figure> {
    gaps(machine, is_quick, Count::SavesAndTakes, 9.3, variable)
}

pub(super) fn large_host_saves(machine: &Machine, is_quick: bool) -> Result<Figure> {
    gaps(machine, is_quick, Count::Saves, 12.5, |gap_ms| uniform(PROCESSES, gap_ms))
}

pub(super) fn large_host_total(machine: &Machine, is_quick: bool) -> Result<Figure> {
    gaps(machine, is_quick, Count::SavesAndTakes, 7.8, |gap_ms| uniform(PROCESSES, gap_ms))
}

/// The rate at which each process gets a large device cache if all allocate at once.
pub(super) fn allocation_rate(machine: &Machine, is_quick: bool) -> Result<Figure> {
    let counts = thinned(&[1u32, 2, 3, 4, 5, 6, 7, 8], is_quick);
    let layers = [Layer::device(LARGE_DEVICE_BYTES)];
    let mut rates = Vec::new();
    let mut rows = Vec::new();
    for &processes in &counts {
        let workloads = vec![Workload::uniform(1, SNAPSHOT_BYTES, 0); processes as usize];
        let first_save = run(machine, Approach::DirectPin(Turns::Parallel), &layers, workloads.clone())?.save_seconds();
        let copy = run(machine, Approach::OnDemand, &layers, workloads)?.save_seconds();
        let rate = LARGE_DEVICE_BYTES as f64 / 1e9 / (first_save - copy);
        rates.push(rate);
        rows.push(row([("processes", processes.into())], [("gb_per_second", rate)]));
    }
    let headline = Headline::new(&[
        ("gb_per_second_1_process", 1200.0, rates[0]),
        ("gb_per_second_8_processes", 160.0, *rates.last().unwrap_or(&0.0)),
    ]);
    let mut chart = lines(&counts, vec![Series::ours("each process", rates)], "processes on a node", true);
    chart.panels[0].y_label = "allocation (GB/s)".to_owned();
    Ok(figure(rows, headline, chart))
}

fn large_device(
    machine: &Machine,
    is_quick: bool,
    count: Count,
    (ratio, paper): (&'static str, f64),
) -> Result<Figure> {
    let ways = &[("direct allocation", Approach::DirectPin(Turns::Parallel)), ("ours", Approach::OURS)];
    let gaps = thinned(GAPS_MS, is_quick);
    let layers = [Layer::device(LARGE_DEVICE_BYTES)];
    let seconds = |approach, gap_ms| Ok(count.of(&run(machine, approach, &layers, uniform(PROCESSES, gap_ms))?));
    let (rows, series) = compare("gap_ms", ways, &gaps, seconds)?;
    let saved: Vec<_> = ratios(&series, "ours", "direct allocation").iter().map(|ratio| 1.0 - ratio).collect();
    let headline = Headline::new(&[(ratio, paper, largest(&saved))]);
    Ok(figure(rows, headline, lines(&gaps, series, GAP, false)))
}

pub(super) fn large_device_saves(machine: &Machine, is_quick: bool) -> Result<Figure> {
    large_device(machine, is_quick, Count::Saves, ("less_than_direct_max", 0.76))
}

pub(super) fn large_device_total(machine: &Machine, is_quick: bool) -> Result<Figure> {
    large_device(machine, is_quick, Count::SavesAndTakes, ("less_than_direct_max", 0.63))
}

/// Sequential and concurrent touching, serial and parallel pinning.
pub(super) fn strategies(machine: &Machine, _is_quick: bool) -> Result<Figure> {
    let way = |touching, pinning| Approach::Adaptive { touching, pinning };
    let ways = &[
        ("sequential, parallel pinning", way(Touching::Sequential, Turns::Parallel)),
        ("concurrent, parallel pinning", way(Touching::Concurrent, Turns::Parallel)),
        ("sequential, serial pinning", way(Touching::Sequential, Turns::Serial)),
        ("concurrent, serial pinning", way(Touching::Concurrent, Turns::Serial)),
        ("ours (chosen, serial)", Approach::OURS),
    ];
    let gaps = GAPS_MS;
    let seconds = |approach, gap_ms| {
        Ok(Count::SavesAndTakes.of(&run(machine, approach, &large_host(), uniform(PROCESSES, gap_ms))?))
    };
    let (rows, series) = compare("gap_ms", ways, gaps, seconds)?;
    let pinning = ratios(&series, "sequential, parallel pinning", "sequential, serial pinning");
    let touching = ratios(&series, "concurrent, serial pinning", "sequential, serial pinning");
    let headline = Headline::new(&[
        ("parallel_over_serial_pinning_mean", 6.4, mean(&pinning)),
        ("parallel_over_serial_pinning_max", 8.0, largest(&pinning)),
        ("concurrent_over_sequential_at_5_ms", 0.9, touching[0]),
        ("concurrent_over_sequential_mean_above", 1.43, mean(&touching[1..])),
        ("concurrent_over_sequential_max", 2.7, largest(&touching)),
    ]);
    Ok(figure(rows, headline, lines(gaps, series, GAP, true)))
}

fn processes(machine: &Machine, is_quick: bool, count: Count, paper: [f64; 2]) -> Result<Figure> {
    let counts = thinned(&[1u32, 2, 4, 6, 8], is_quick);
    let seconds = |approach, processes: u32| {
        Ok(count.of(&run(machine, approach, &large_host(), uniform(processes as usize, USUAL_GAP_MS))?))
    };
    let (rows, series) = compare("processes", WAYS, &counts, seconds)?;
    let ours = ratios(&series, "direct pin", "ours");
    let headline = Headline::new(&[
        ("direct_pin_over_ours_1_process", paper[0], ours[0]),
        ("direct_pin_over_ours_8_processes", paper[1], *ours.last().unwrap_or(&0.0)),
    ]);
    Ok(figure(rows, headline, lines(&counts, series, "processes on a node", true)))
}

pub(super) fn processes_saves(machine: &Machine, is_quick: bool) -> Result<Figure> {
    processes(machine, is_quick, Count::Saves, [7.6, 27.8])
}

pub(super) fn processes_total(machine: &Machine, is_quick: bool) -> Result<Figure> {
    processes(machine, is_quick, Count::SavesAndTakes, [4.7, 13.6])
}

/// As many snapshots as the host buffer holds, so that all of it is used.
pub(super) fn buffer_sizes(machine: &Machine, is_quick: bool) -> Result<Figure> {
    let sizes = thinned(&[8u64, 16, 32, 64], is_quick);
    let seconds = |approach, size_gib: u64| {
        let layers = [Layer::device(SMALL_DEVICE_BYTES), Layer::host(size_gib * GIB)];
        let snapshots = (size_gib * GIB / SNAPSHOT_BYTES) as usize;
        let workload = Workload::uniform(snapshots, SNAPSHOT_BYTES, USUAL_GAP_MS * 1_000_000);
        Ok(Count::SavesAndTakes.of(&run(machine, approach, &layers, vec![workload; PROCESSES])?))
    };
    let (rows, series) = compare("host_gib", WAYS, &sizes, seconds)?;
    let ours = ratios(&series, "direct pin", "ours");
    let headline = Headline::new(&[
        ("direct_pin_over_ours_8_gib", 4.8, ours[0]),
        ("direct_pin_over_ours_64_gib", 12.4, *ours.last().unwrap_or(&0.0)),
    ]);
    Ok(figure(rows, headline, lines(&sizes, series, "host buffer per process (GiB)", true)))
}
