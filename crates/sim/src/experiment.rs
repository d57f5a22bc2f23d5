//! What to simulate: a machine, the layers in use, how memory is prepared, and what the programs
//! do.

use std::collections::BTreeMap;

use outcrop_plan::{LayerIndex, MemorySettings, Touching};
use serde::Serialize;

use crate::{Error, Machine, error::Result};

/// Where a layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Medium {
    /// In the memory of the process's device.
    Device,
    /// In host memory.
    Host,
    /// On the machine's storage of this name.
    Storage(String),
}

/// A layer of the stack of each process.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Where it is.
    pub medium: Medium,
    /// Its limit.
    pub capacity_bytes: u64,
    /// The settings of its memory, if they differ from the default.
    pub memory: Option<MemorySettings>,
}

impl Layer {
    /// A cache on the device.
    pub fn device(capacity_bytes: u64) -> Self {
        Self { medium: Medium::Device, capacity_bytes, memory: None }
    }

    /// A buffer in host memory.
    pub fn host(capacity_bytes: u64) -> Self {
        Self { medium: Medium::Host, capacity_bytes, memory: None }
    }

    /// Space on a storage.
    pub fn storage(name: &str, capacity_bytes: u64) -> Self {
        Self { medium: Medium::Storage(name.to_owned()), capacity_bytes, memory: None }
    }
}

/// Whether the processes of a node do something one after the other, or all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Turns {
    /// One after the other.
    Serial,
    /// All at once.
    Parallel,
}

/// A way to keep snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approach {
    /// Outcrop's: device memory is mapped piece by piece; host memory is usable at once, touched
    /// according to `touching`, and pinned when all of it is touched.
    Adaptive {
        /// When to touch host memory.
        touching: Touching,
        /// Whether processes pin one after the other.
        pinning: Turns,
    },
    /// Everything is allocated and pinned first, and the first save waits for that.
    DirectPin(Turns),
    /// Unified memory: pages move between device and host when they are used, without knowledge of
    /// later accesses.
    OnDemand,
    /// As `Adaptive`, but with small pages that are filled with zeros, always concurrently, and
    /// pinned by all processes at once.
    IncrementalMemset,
    /// Nothing is kept in memory: every save writes to the last layer and waits; every take reads
    /// from it and waits.
    NoBuffering,
}

impl Approach {
    /// Outcrop's, with its default settings.
    pub const OURS: Self = Self::Adaptive { touching: Touching::Chosen, pinning: Turns::Serial };
}

/// What one process does: saves with computing in between, then takes in reverse order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workload {
    /// When it begins.
    pub start_ns: u64,
    /// The snapshots in the order in which they are saved.
    pub sizes: Vec<u64>,
    /// The time to compute before each save.
    pub forward_gap_ns: u64,
    /// The time to compute after each take.
    pub backward_gap_ns: u64,
    /// Whether a take copies into the program's own memory. Otherwise the program is handed the
    /// slot, and holds it while it computes.
    pub is_copied_back: bool,
}

impl Workload {
    /// `count` saves of the same size, and as many takes, with the same gap in both passes.
    pub fn uniform(count: usize, bytes: u64, gap_ns: u64) -> Self {
        let (forward_gap_ns, backward_gap_ns) = (gap_ns, gap_ns);
        Self { start_ns: 0, sizes: vec![bytes; count], forward_gap_ns, backward_gap_ns, is_copied_back: true }
    }
}

/// Nodes that do the same at the same time. Only one of them is simulated; on shared resources it
/// has the weight of all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The number of nodes.
    pub nodes: u32,
    /// What the processes of each node do.
    pub workloads: Vec<Workload>,
}

/// A simulation to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The machine.
    pub machine: Machine,
    /// How to keep snapshots.
    pub approach: Approach,
    /// The layers of each process, fastest first.
    pub layers: Vec<Layer>,
    /// All nodes.
    pub groups: Vec<Group>,
    /// Whether to record a timeline.
    pub has_timeline: bool,
}

impl Experiment {
    /// One node.
    pub fn one_node(machine: Machine, approach: Approach, layers: Vec<Layer>, workloads: Vec<Workload>) -> Self {
        Self { machine, approach, layers, groups: vec![Group { nodes: 1, workloads }], has_timeline: false }
    }

    /// Checks the experiment before anything is simulated.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::Experiment(problem));
        if self.layers.is_empty() {
            return wrong("it has no layer: add one".to_owned());
        }
        if let Some(index) = self.layers.iter().position(|layer| layer.capacity_bytes == 0) {
            return wrong(format!("layer {index} has a capacity of 0: give it some bytes or leave it out"));
        }
        for layer in &self.layers {
            match &layer.medium {
                Medium::Device => drop(self.machine.device()?),
                Medium::Storage(name) => drop(self.machine.storage(name)?),
                Medium::Host => {}
            }
        }
        let first_storage = self.layers.iter().position(|layer| matches!(layer.medium, Medium::Storage(_)));
        if first_storage == Some(0) && self.approach != Approach::NoBuffering {
            return wrong("the first layer is storage: put memory before it".to_owned());
        }
        if self.layers.iter().skip(1).any(|layer| layer.medium == Medium::Device) {
            return wrong("device memory can only be the first layer".to_owned());
        }
        if self.groups.iter().any(|group| group.nodes == 0 || group.workloads.is_empty()) {
            return wrong("a group needs at least one node and one process".to_owned());
        }
        let processes_max = self.machine.processes_per_node as usize;
        if self.groups.iter().any(|group| group.workloads.len() > processes_max) {
            return wrong(format!("a node of {} runs at most {processes_max} processes", self.machine.name));
        }
        if self.groups.iter().flat_map(|group| &group.workloads).any(|workload| workload.sizes.contains(&0)) {
            return wrong("a snapshot has a size of 0".to_owned());
        }
        Ok(())
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// From the start to the end of the last process.
    pub wall_ns: u64,
    /// The simulated processes, in the order of groups and workloads.
    pub processes: Vec<ProcessOutcome>,
    /// The timeline, if requested.
    pub timeline: Vec<Span>,
}

/// The result of one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessOutcome {
    /// From its start to its end.
    pub wall_ns: u64,
    /// Time blocked in saves, including preparation and copies.
    pub save_blocked_ns: u64,
    /// Time blocked in takes, including copies.
    pub take_blocked_ns: u64,
    /// Bytes saved, and taken again.
    pub saved_bytes: u64,
    /// Bytes moved from one layer to another.
    pub lane_bytes: BTreeMap<(LayerIndex, LayerIndex), u64>,
    /// When its forward pass ended.
    pub forward_ns: u64,
    /// The touching strategy at the end of the forward pass, and its reason.
    pub strategy: Option<String>,
}

impl Outcome {
    /// Seconds that a process is blocked in saves, on average.
    pub fn save_seconds(&self) -> f64 {
        self.mean(|process| process.save_blocked_ns)
    }

    /// Seconds that a process is blocked in saves and takes, on average.
    pub fn blocked_seconds(&self) -> f64 {
        self.mean(|process| process.save_blocked_ns + process.take_blocked_ns)
    }

    /// Seconds that a process is blocked in takes, on average.
    pub fn take_seconds(&self) -> f64 {
        self.mean(|process| process.take_blocked_ns)
    }

    /// Seconds from start to end.
    pub fn wall_seconds(&self) -> f64 {
        self.wall_ns as f64 / 1e9
    }

    fn mean(&self, value: impl Fn(&ProcessOutcome) -> u64) -> f64 {
        let sum: u64 = self.processes.iter().map(value).sum();
        sum as f64 / 1e9 / self.processes.len().max(1) as f64
    }
}

/// A span of the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub process: usize,
    /// What it did.
    pub what: Activity,
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
}

/// What a process or its helpers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Computing forward.
    Forward,
    /// Computing backward.
    Backward,
    /// Waiting in a save.
    Save,
    /// Waiting in a take.
    Take,
    /// A move down.
    Down,
    /// A move up.
    Up,
}
