//! The resources that a process's bytes cross between two places, and the possible rates.

use smallvec::SmallVec;

use crate::{Machine, fluid::Demand, world::World};

/// The source or target of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The program's own memory, on the same device or host as the front.
    Program,
    /// Device memory.
    Device,
    /// Host memory in this state.
    Host(Pages),
    /// The storage with this index.
    Storage(usize),
}

/// The state of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// The system has not provided it yet.
    Untouched,
    /// The system has provided it.
    Touched,
    /// It is also registered with the device.
    Pinned,
}

/// The paths of one process to everything on its node.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    machine: Machine,
    process: usize,
    node: usize,
    /// The index of this process on the node.
    local: usize,
    /// Whether host memory consists of small pages that are filled, or of huge pages that are
    /// touched.
    has_small_pages: bool,
}

impl Path {
    pub(crate) fn new(machine: &Machine, process: usize, node: usize, local: usize, has_small_pages: bool) -> Self {
        Self { machine: machine.clone(), process, node, local, has_small_pages }
    }

    pub(crate) fn process(&self) -> usize {
        self.process
    }

    pub(crate) fn node(&self) -> usize {
        self.node
    }

    /// The demand of a transfer.
    pub(crate) fn transfer(&self, world: &World, bytes: u64, from: End, to: End) -> Demand {
        let mut demand = Demand::new(self.process, bytes, f64::INFINITY);
        let node = &world.nodes[self.node];
        let is_far = |other: End| !matches!(other, End::Program | End::Device);
        for (end, other, is_target) in [(from, to, false), (to, from, true)] {
            match end {
                End::Program => {}
                End::Device if is_far(other) => demand.crosses.push((node.links[self.link()], 1.0)),
                End::Device => demand.rate_max = demand.rate_max.min(self.device_copy_rate()),
                End::Host(pages) => {
                    let (rate, cost) = self.memory_cost(pages, other);
                    demand.rate_max = demand.rate_max.min(rate);
                    demand.crosses.push((node.domains[self.domain()], cost));
                }
                End::Storage(number) => {
                    let storage = &self.machine.storage[number];
                    let ports = node.storages[number];
                    let (rate, own, all) = if is_target {
                        (storage.process_write_bytes_per_second, ports.node_write, ports.all_write)
                    } else {
                        (storage.process_read_bytes_per_second, ports.node_read, ports.all_read)
                    };
                    demand.rate_max = demand.rate_max.min(rate.unwrap_or(f64::INFINITY));
                    demand.crosses.push((own, 1.0));
                    if own != all {
                        demand.crosses.push((all, node.count));
                    }
                }
            }
        }
        demand
    }

    /// The rate of host memory for this transfer, and how much of the domain's throughput a byte
    /// takes.
    fn memory_cost(&self, pages: Pages, other: End) -> (f64, f64) {
        let host = &self.machine.host;
        let (rate, cost) = match (pages, other) {
            (Pages::Pinned, End::Program | End::Device) => (host.pinned_bytes_per_second, host.pinned_traffic),
            (_, End::Program | End::Device) => (host.touched_bytes_per_second, host.copy_traffic),
            // Storage is accessed by DMA, without the processor.
            _ => (f64::INFINITY, 1.0),
        };
        match pages {
            // The first write to a page also waits until the page is cleared.
            Pages::Untouched => (rate.min(host.untouched_bytes_per_second), cost + host.touch_traffic),
            Pages::Touched | Pages::Pinned => (rate, cost),
        }
    }

    /// The demand of touching host memory.
    pub(crate) fn touch(&self, world: &World, bytes: u64) -> Demand {
        let host = &self.machine.host;
        let domain = world.nodes[self.node].domains[self.domain()];
        let (rate, traffic) = match self.has_small_pages {
            // The system clears the page, and then it is filled.
            true => (host.fill_small_bytes_per_second, host.touch_traffic + 1.0),
            false => (host.touch_bytes_per_second, host.touch_traffic),
        };
        Demand::new(self.process, bytes, rate).crossing(domain, traffic).with_parts(f64::from(host.touch_threads))
    }

    /// The demand of pinning touched host memory.
    pub(crate) fn pin(&self, world: &World, bytes: u64) -> Demand {
        let host = &self.machine.host;
        let rate = if self.has_small_pages { host.pin_small_bytes_per_second } else { host.pin_bytes_per_second };
        self.locked(world.nodes[self.node].pin_lock, bytes, rate).unstoppable()
    }

    /// The demand of allocating and pinning host memory at once.
    pub(crate) fn register(&self, world: &World, bytes: u64) -> Demand {
        let rate = self.machine.host.register_bytes_per_second;
        self.locked(world.nodes[self.node].pin_lock, bytes, rate).unstoppable()
    }

    /// The demand of mapping device memory.
    pub(crate) fn map(&self, world: &World, bytes: u64) -> Demand {
        let rate = self.machine.device.as_ref().map_or(f64::INFINITY, |device| device.map_bytes_per_second);
        self.locked(world.nodes[self.node].map_lock, bytes, rate)
    }

    /// The demand of moving pages on demand.
    pub(crate) fn page(&self, bytes: u64) -> Demand {
        let rate = self.machine.device.as_ref().and_then(|device| device.paging_bytes_per_second);
        Demand::new(self.process, bytes, rate.unwrap_or(f64::INFINITY))
    }

    /// The latency of a storage; 0 without one.
    pub(crate) fn latency_ns(&self, ends: [End; 2]) -> u64 {
        let of_end = |end| match end {
            End::Storage(number) => self.machine.storage[number].latency_ns,
            End::Program | End::Device | End::Host(_) => 0,
        };
        ends.map(of_end).into_iter().sum()
    }

    fn locked(&self, lock: crate::fluid::ResourceId, bytes: u64, rate: f64) -> Demand {
        let crosses = SmallVec::from_elem((lock, 1e9 / rate), 1);
        Demand { crosses, ..Demand::new(self.process, bytes, rate) }
    }

    fn device_copy_rate(&self) -> f64 {
        self.machine.device.as_ref().map_or(f64::INFINITY, |device| device.copy_bytes_per_second)
    }

    fn link(&self) -> usize {
        self.local / self.machine.device.as_ref().map_or(1, |device| device.processes_per_link as usize)
    }

    fn domain(&self) -> usize {
        self.local / self.machine.host.processes_per_domain as usize
    }
}
