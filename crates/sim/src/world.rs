//! What all processes of a simulation share: the clock, the resources of the nodes, and turns.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    ops::Range,
};

use outcrop_plan::LayerIndex;

use crate::{
    Machine,
    experiment::{Activity, Group, Span},
    fluid::{Demand, Network, ResourceId},
};

/// A task that a process waits for has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) process: usize,
    pub(crate) task: Task,
}

/// What a process can wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    /// The start of the program.
    Begin,
    /// The program has computed.
    Computed,
    /// All of the device's memory has been allocated.
    Allocated,
    /// It is this process's turn to register its host buffer.
    RegisterTurn,
    /// The host buffer has been registered.
    Registered,
    /// A piece of the program's own copy is done.
    Copied,
    /// The latency of the oldest move on a lane has passed.
    MoveBegins((LayerIndex, LayerIndex)),
    /// A piece of that move has been transferred.
    MovePiece((LayerIndex, LayerIndex)),
    /// Memory has been touched.
    Touched { layer: LayerIndex, range: Range<u64> },
    /// It is this process's turn to pin.
    PinTurn(LayerIndex),
    /// Memory has been pinned.
    Pinned(LayerIndex),
    /// The plan's timeout has passed.
    Tick,
    /// It is this process's turn to page.
    PageTurn,
    /// Pages have been moved.
    Paged,
    /// A step of an unbuffered write or read is done.
    Stepped,
}

/// A timer. Timers for the same time fire in the order in which they were set.
#[derive(Debug, PartialEq, Eq)]
struct Timer {
    at_ns: u64,
    number: u64,
    wake: Wake,
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.number).cmp(&(other.at_ns, other.number))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Something that the processes of a node do one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Pinning and registering.
    Pin,
    /// Serving page faults.
    Page,
}

#[derive(Debug, Default)]
struct Queue {
    is_taken: bool,
    waiting: VecDeque<Wake>,
}

/// The resources of one node.
#[derive(Debug)]
pub(crate) struct Node {
    /// How many nodes like it there are.
    pub(crate) count: f64,
    pub(crate) links: Vec<ResourceId>,
    pub(crate) domains: Vec<ResourceId>,
    /// Locks in the driver. A unit is a nanosecond of holding the lock.
    pub(crate) map_lock: ResourceId,
    pub(crate) pin_lock: ResourceId,
    pub(crate) storages: Vec<Ports>,
    pin_turn: Queue,
    page_turn: Queue,
}

/// The resources that writes to a storage, and reads from it, cross.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) node_write: ResourceId,
    pub(crate) node_read: ResourceId,
    pub(crate) all_write: ResourceId,
    pub(crate) all_read: ResourceId,
}

/// The clock and all shared resources.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) network: Network<Wake>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) timeline: Option<Vec<Span>>,
    timers: BinaryHeap<Reverse<Timer>>,
    timers_set: u64,
}

impl World {
    pub(crate) fn new(machine: &Machine, groups: &[Group], has_timeline: bool) -> Self {
        let mut network = Network::new();
        let shared: Vec<_> = machine
            .storage
            .iter()
            .map(|storage| {
                let write = network.add_resource(storage.write_bytes_per_second);
                (write, network.add_resource(storage.read_bytes_per_second))
            })
            .collect();
        let nodes = groups.iter().map(|group| Node::new(machine, group, &shared, &mut network)).collect();
        let timeline = has_timeline.then(Vec::new);
        Self { now_ns: 0, network, nodes, timeline, timers: BinaryHeap::new(), timers_set: 0 }
    }

    /// Wakes a process at a given time.
    pub(crate) fn wake_at(&mut self, at_ns: u64, process: usize, task: Task) {
        let timer = Timer { at_ns, number: self.timers_set, wake: Wake { process, task } };
        self.timers_set += 1;
        self.timers.push(Reverse(timer));
    }

    /// Wakes a process when a flow has ended.
    pub(crate) fn wake_after(&mut self, demand: Demand, process: usize, task: Task) {
        self.network.start(demand, Wake { process, task });
    }

    /// Advances the time to the next wake-up.
    pub(crate) fn next(&mut self) -> Option<Wake> {
        if let Some(wake) = self.network.take_ended() {
            return Some(wake);
        }
        let timer_ns = self.timers.peek().map(|Reverse(timer)| timer.at_ns);
        let flow_ns = self.network.next_end_ns();
        let at_ns = timer_ns.into_iter().chain(flow_ns).min()?.max(self.now_ns);
        self.now_ns = at_ns;
        self.network.advance(at_ns);
        if timer_ns.is_some_and(|timer_ns| timer_ns <= at_ns) {
            return self.timers.pop().map(|Reverse(timer)| timer.wake);
        }
        self.network.take_ended()
    }

    /// Wakes a process when it has the turn.
    pub(crate) fn ask_turn(&mut self, node: usize, turn: Turn, process: usize, task: Task) {
        let now_ns = self.now_ns;
        let queue = self.queue(node, turn);
        if queue.is_taken {
            queue.waiting.push_back(Wake { process, task });
        } else {
            queue.is_taken = true;
            self.wake_at(now_ns, process, task);
        }
    }

    /// Passes the turn to the next process.
    pub(crate) fn end_turn(&mut self, node: usize, turn: Turn) {
        let now_ns = self.now_ns;
        let queue = self.queue(node, turn);
        match queue.waiting.pop_front() {
            Some(Wake { process, task }) => self.wake_at(now_ns, process, task),
            None => queue.is_taken = false,
        }
    }

    fn queue(&mut self, node: usize, turn: Turn) -> &mut Queue {
        match turn {
            Turn::Pin => &mut self.nodes[node].pin_turn,
            Turn::Page => &mut self.nodes[node].page_turn,
        }
    }

    /// Records an activity that ends now.
    pub(crate) fn record(&mut self, process: usize, what: Activity, start_ns: u64) {
        let end_ns = self.now_ns;
        if let Some(timeline) = &mut self.timeline {
            timeline.push(Span { process, what, start_ns, end_ns });
        }
    }
}

impl Node {
    fn new(machine: &Machine, group: &Group, shared: &[(ResourceId, ResourceId)], network: &mut Network<Wake>) -> Self {
        let processes = machine.processes_per_node;
        let (link_rate, per_link) = machine
            .device
            .as_ref()
            .map_or((1.0, processes), |device| (device.link_bytes_per_second, device.processes_per_link));
        let per_domain = machine.host.processes_per_domain;
        let mut several = |count: u32, rate: f64| (0..count).map(|_| network.add_resource(rate)).collect::<Vec<_>>();
        let links = several(processes.div_ceil(per_link), link_rate);
        let domains = several(processes.div_ceil(per_domain), machine.host.domain_bytes_per_second);
        let locks = several(2, 1e9);
        let storages = machine.storage.iter().zip(shared).map(|(storage, &(all_write, all_read))| {
            let write = storage.node_write_bytes_per_second.unwrap_or(storage.write_bytes_per_second);
            let read = storage.node_read_bytes_per_second.unwrap_or(storage.read_bytes_per_second);
            let (node_write, node_read) = (network.add_resource(write), network.add_resource(read));
            // The rates of a node's own storage do not depend on the number of nodes.
            let (all_write, all_read) = if storage.is_shared { (all_write, all_read) } else { (node_write, node_read) };
            Ports { node_write, node_read, all_write, all_read }
        });
        Self {
            count: f64::from(group.nodes),
            links,
            domains,
            map_lock: locks[0],
            pin_lock: locks[1],
            storages: storages.collect(),
            pin_turn: Queue::default(),
            page_turn: Queue::default(),
        }
    }
}
