//! The figures of "Maximizing I/O Bandwidth for Reverse Time Migration on Heterogeneous Large-Scale
//! Systems" (MLBS).

use outcrop_plan::MemorySettings;

use super::{Figure, Headline, Row, row, thinned};
use crate::{
    Activity, Approach, Experiment, Group, Layer, Machine, Outcome, Workload,
    chart::{Chart, Content, Panel, Series},
    error::Result,
    simulate,
};

const GIB: f64 = (1u64 << 30) as f64;

/// From the paper: 200 snapshots, one every 10 time steps.
const STEPS_PER_SNAPSHOT: f64 = 10.0;
const SNAPSHOTS: usize = 200;

/// From the paper: 70 % of the memory for buffers.
const MEMORY_SHARE: f64 = 0.7;

/// From the paper: 64 snapshots of 512 x 512 x 128 fit into the part of a device's memory that is
/// used for them.
const DEVICE_BYTES: u64 = 64 * 512 * 512 * 128 * 4;

/// Large, because snapshots are large and every piece is an event.
const TOUCH_PIECE_BYTES: u64 = 256 << 20;

const NODES: &[u32] = &[1, 4, 16, 64, 256, 1024, 2048];

/// The maximum number of groups of nodes. Their starts are spread over the first gap, so that nodes
/// are not in step.
const GROUPS_MAX: u32 = 4;

/// A grid of single-precision values, saved every ten steps.
#[derive(Clone, Copy)]
struct Grid {
    points: u64,
    snapshots: usize,
}

impl Grid {
    fn new(x: u64, y: u64, z: u64, snapshots: usize) -> Self {
        Self { points: x * y * z, snapshots }
    }

    fn workload(self, machine: &Machine, start_share: f64) -> Workload {
        let rate = machine.points_per_second.unwrap_or(1e9);
        let gap_ns = (self.points as f64 * STEPS_PER_SNAPSHOT / rate * 1e9) as u64;
        let workload = Workload::uniform(self.snapshots, self.points * 4, gap_ns);
        Workload { start_ns: (gap_ns as f64 * start_share) as u64, ..workload }
    }
}

/// The layers of one process: its share of the node's memory, and of these storages.
fn stack(machine: &Machine, storages: &[&str]) -> Result<Vec<Layer>> {
    let processes = u64::from(machine.processes_per_node);
    let host_bytes = (machine.host.memory_bytes as f64 * MEMORY_SHARE) as u64 / processes;
    let mut layers = Vec::new();
    if machine.device.is_some() {
        layers.push(Layer::device(DEVICE_BYTES));
    }
    let memory = MemorySettings {
        piece_bytes: TOUCH_PIECE_BYTES,
        ahead_bytes: u64::MAX,
        pins: machine.device.is_some(),
        ..MemorySettings::new()
    };
    layers.push(Layer { memory: Some(memory), ..Layer::host(host_bytes) });
    for name in storages {
        let (_, storage) = machine.storage(name)?;
        layers.push(Layer::storage(name, storage.node_capacity_bytes / processes));
    }
    Ok(layers)
}

/// One way to keep snapshots.
struct Way {
    name: &'static str,
    is_buffered: bool,
    storages: &'static [&'static str],
}

const WAYS: &[Way] = &[
    Way { name: "file system", is_buffered: false, storages: &["file-system"] },
    Way { name: "burst buffer", is_buffered: false, storages: &["burst-buffer"] },
    Way { name: "ours + file system", is_buffered: true, storages: &["file-system"] },
    Way { name: "ours + burst buffer", is_buffered: true, storages: &["burst-buffer"] },
    Way { name: "ours + both", is_buffered: true, storages: &["burst-buffer", "file-system"] },
];

impl Way {
    fn run(&self, machine: &Machine, grid: Grid, nodes: u32, has_timeline: bool) -> Result<Outcome> {
        let groups = nodes.min(GROUPS_MAX);
        let group = |index: u32| {
            let workload = grid.workload(machine, f64::from(index) / f64::from(groups));
            Group { nodes: nodes / groups, workloads: vec![workload; machine.processes_per_node as usize] }
        };
        simulate(&Experiment {
            machine: machine.clone(),
            approach: if self.is_buffered { Approach::OURS } else { Approach::NoBuffering },
            layers: stack(machine, self.storages)?,
            groups: (0..groups).map(group).collect(),
            has_timeline,
        })
    }
}

/// The throughput that the program of a node sees: GiB/s in saves, GiB/s in takes.
fn throughput(outcome: &Outcome, processes: u32) -> (f64, f64) {
    let bytes = outcome.processes[0].saved_bytes as f64 / GIB * f64::from(processes);
    (bytes / outcome.save_seconds(), bytes / outcome.take_seconds())
}

/// Throughput by number of nodes, for all ways.
struct Scaling {
    rows: Vec<Row>,
    chart: Chart,
    /// For each way and each number of nodes: writing, reading, wall time.
    results: Vec<Vec<(f64, f64, f64)>>,
}

fn scaling(machine: &Machine, grid: Grid, is_quick: bool) -> Result<Scaling> {
    let nodes = thinned(NODES, is_quick);
    let mut results = vec![Vec::new(); WAYS.len()];
    let mut rows = Vec::new();
    for &count in &nodes {
        for (way, results) in WAYS.iter().zip(&mut results) {
            let outcome = way.run(machine, grid, count, false)?;
            let (write, read) = throughput(&outcome, machine.processes_per_node);
            results.push((write, read, outcome.wall_seconds()));
            let numbers = [
                ("write_gib_per_second", write),
                ("read_gib_per_second", read),
                ("wall_seconds", outcome.wall_seconds()),
            ];
            rows.push(row([("nodes", count.into()), ("way", way.name.into())], numbers));
        }
    }
    let panel = |title: &str, value: fn(&(f64, f64, f64)) -> f64| {
        let of_way = |(way, results): (&Way, &Vec<_>)| Series {
            name: way.name.to_owned(),
            values: results.iter().map(value).collect(),
            is_ours: way.name == "ours + both",
        };
        Panel {
            title: title.to_owned(),
            x_label: "nodes".to_owned(),
            y_label: "GiB/s per node".to_owned(),
            is_log: true,
            content: Content::Lines {
                ticks: nodes.iter().map(ToString::to_string).collect(),
                series: WAYS.iter().zip(&results).map(of_way).collect(),
            },
        }
    };
    let panels = vec![panel("writing", |result| result.0), panel("reading", |result| result.1)];
    Ok(Scaling { rows, chart: Chart { panels }, results })
}

impl Scaling {
    /// The maximum speed-up of the whole run with the best way, compared with the file system
    /// alone.
    fn speedup_max(&self) -> f64 {
        let plain = &self.results[0];
        let of_way =
            |way: &Vec<(f64, f64, f64)>| plain.iter().zip(way).map(|(plain, way)| plain.2 / way.2).fold(0.0, f64::max);
        self.results[2..].iter().map(of_way).fold(0.0, f64::max)
    }
}

pub(super) fn shaheen(machine: &Machine, is_quick: bool) -> Result<Figure> {
    let scaling = scaling(machine, Grid::new(800, 800, 800, SNAPSHOTS), is_quick)?;
    let headline = Headline::new(&[("file_system_over_ours_wall_max", 2.5, scaling.speedup_max())]);
    Ok(Figure { name: "", title: "", rows: scaling.rows, headline, chart: scaling.chart })
}

pub(super) fn summit(machine: &Machine, is_quick: bool) -> Result<Figure> {
    let scaling = scaling(machine, Grid::new(700, 700, 700, SNAPSHOTS), is_quick)?;
    let last = |way: &Vec<(f64, f64, f64)>| way.last().map_or(0.0, |result| result.1);
    let with_both = scaling.results.last().map_or(0.0, last);
    let headline = Headline::new(&[
        ("file_system_over_ours_wall_max", 1.4, scaling.speedup_max()),
        ("ours_over_file_system_reading_2048_nodes", 18.0, with_both / last(&scaling.results[0])),
    ]);
    Ok(Figure { name: "", title: "", rows: scaling.rows, headline, chart: scaling.chart })
}

/// Where the time of one process goes, with and without buffers, for a grid that fits into device
/// memory and one that does not.
pub(super) fn breakdown(machine: &Machine, _is_quick: bool) -> Result<Figure> {
    let machine = Machine { processes_per_node: 1, ..machine.clone() };
    let grids = [("256 x 256 x 64", Grid::new(256, 256, 64, 350)), ("512 x 512 x 128", Grid::new(512, 512, 128, 350))];
    let kinds = ["computing forward", "computing backward", "writing", "reading"];
    let mut ticks = Vec::new();
    let mut rows = Vec::new();
    let mut walls = Vec::new();
    let mut parts: Vec<_> = kinds.iter().map(|name| Series::new(name, Vec::new())).collect();
    for (name, grid) in grids {
        for way in [&WAYS[0], &WAYS[2]] {
            let outcome = way.run(&machine, grid, 1, false)?;
            let gaps = grid.snapshots as f64 * grid.workload(&machine, 0.0).forward_gap_ns as f64 / 1e9;
            let numbers = [gaps, gaps, outcome.save_seconds(), outcome.take_seconds()];
            parts.iter_mut().zip(numbers).for_each(|(part, number)| part.values.push(number));
            let about = [("grid", name.into()), ("way", way.name.into())];
            rows.push(row(about, kinds.iter().copied().zip(numbers)));
            ticks.push(format!("{name}\n{}", way.name));
            walls.push(outcome.wall_seconds());
        }
    }
    let headline = Headline::new(&[
        ("file_system_over_ours_wall_small_grid", 3.0, walls[0] / walls[1]),
        ("file_system_over_ours_wall_large_grid", 2.5, walls[2] / walls[3]),
    ]);
    let content = Content::Bars { ticks, parts };
    let (title, x_label, y_label) = (String::new(), String::new(), "seconds".to_owned());
    let chart = Chart { panels: vec![Panel { title, x_label, y_label, is_log: false, content }] };
    Ok(Figure { name: "", title: "", rows, headline, chart })
}

/// One node out of 2048, with and without buffers.
pub(super) fn timeline(machine: &Machine, _is_quick: bool) -> Result<Figure> {
    // Fewer than in a whole shot, so that each is visible, but more than fit into memory.
    let grid = Grid::new(800, 800, 800, 60);
    let kinds = ["computing forward", "computing backward", "waiting for a write", "waiting for a read", "down", "up"];
    let mut spans = Vec::new();
    let mut rows = Vec::new();
    let mut shares = Vec::new();
    for (index, way) in [&WAYS[0], &WAYS[4]].into_iter().enumerate() {
        let outcome = way.run(machine, grid, 2048, true)?;
        let wall = outcome.processes[0].wall_ns as f64;
        let process = &outcome.processes[0];
        shares.push((process.save_blocked_ns + process.take_blocked_ns) as f64 / wall);
        for span in outcome.timeline.iter().filter(|span| span.process == 0) {
            let (below, kind) = match span.what {
                Activity::Forward => (0, 0),
                Activity::Backward => (0, 1),
                Activity::Save => (0, 2),
                Activity::Take => (0, 3),
                Activity::Down => (1, 4),
                Activity::Up => (1, 5),
            };
            spans.push((index + below, kind, span.start_ns as f64 / 1e9, span.end_ns as f64 / 1e9));
        }
        let numbers = [
            ("wall_seconds", wall / 1e9),
            ("waiting_for_writes_seconds", process.save_blocked_ns as f64 / 1e9),
            ("waiting_for_reads_seconds", process.take_blocked_ns as f64 / 1e9),
        ];
        rows.push(row([("way", way.name.into())], numbers));
    }
    // Spans without a duration are not visible.
    spans.retain(|&(_, _, start, end)| end > start);
    let headline = Headline::new(&[("io_share_without_buffers", 0.7, shares[0])]);
    let names = ["file system", "ours + both", "in the background"];
    let rows_of_chart = names.map(str::to_owned).to_vec();
    let content = Content::Timeline { rows: rows_of_chart, kinds: kinds.map(str::to_owned).to_vec(), spans };
    let (title, x_label, y_label) = (String::new(), "seconds".to_owned(), String::new());
    let chart = Chart { panels: vec![Panel { title, x_label, y_label, is_log: false, content }] };
    Ok(Figure { name: "", title: "", rows, headline, chart })
}
