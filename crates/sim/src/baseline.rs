//! Approaches without a plan, for comparison: unified memory that pages on demand, and no buffering
//! at all.

use std::collections::{BTreeMap, VecDeque};

use outcrop_plan::LayerIndex;

use crate::{
    error::Result,
    experiment::{Experiment, Medium},
    path::{End, Pages, Path},
    store::{Step, Store},
    world::{Task, Turn, World},
};

/// Unified memory. The device holds what was used last. What is used and not there is fetched page
/// by page. The system does not know that a snapshot has been consumed, so everything that leaves
/// the device is written back.
pub(crate) struct OnDemand {
    path: Path,
    capacity_bytes: u64,
    /// On the device, least recently used first.
    resident: VecDeque<(u64, u64)>,
    resident_bytes: u64,
    sizes: BTreeMap<u64, u64>,
    /// The request of the program: the key, and the bytes that have to be paged first.
    request: Option<(u64, u64)>,
    down_bytes: u64,
    up_bytes: u64,
}

impl OnDemand {
    pub(crate) fn new(experiment: &Experiment, path: Path) -> Self {
        Self {
            path,
            capacity_bytes: experiment.layers[0].capacity_bytes,
            resident: VecDeque::new(),
            resident_bytes: 0,
            sizes: BTreeMap::new(),
            request: None,
            down_bytes: 0,
            up_bytes: 0,
        }
    }

    /// Makes room on the device. Returns how many bytes have to leave it.
    fn evict_for(&mut self, bytes: u64) -> u64 {
        let mut evicted = 0;
        while self.resident_bytes + bytes > self.capacity_bytes {
            let Some((_, oldest)) = self.resident.pop_front() else { break };
            self.resident_bytes -= oldest;
            evicted += oldest;
        }
        self.down_bytes += evicted;
        evicted
    }

    fn request(&mut self, world: &mut World, key: u64, paged_bytes: u64) -> Step {
        self.request = Some((key, paged_bytes));
        if paged_bytes > 0 {
            world.ask_turn(self.path.node(), Turn::Page, self.path.process(), Task::PageTurn);
        } else {
            self.begin_copy(world, key);
        }
        Step::Pending
    }

    fn begin_copy(&mut self, world: &mut World, key: u64) {
        let demand = self.path.transfer(world, self.sizes[&key], End::Program, End::Device);
        world.wake_after(demand, self.path.process(), Task::Copied);
    }
}

impl Store for OnDemand {
    fn save(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step> {
        let evicted = self.evict_for(bytes);
        self.resident.push_back((key, bytes));
        self.resident_bytes += bytes;
        self.sizes.insert(key, bytes);
        Ok(self.request(world, key, evicted))
    }

    fn take(&mut self, world: &mut World, key: u64) -> Result<Step> {
        let bytes = self.sizes[&key];
        let mut paged_bytes = 0;
        match self.resident.iter().position(|&(resident, _)| resident == key) {
            Some(index) => drop(self.resident.remove(index)),
            None => {
                paged_bytes = self.evict_for(bytes) + bytes;
                self.resident_bytes += bytes;
                self.up_bytes += bytes;
            }
        }
        self.resident.push_back((key, bytes));
        Ok(self.request(world, key, paged_bytes))
    }

    fn give_back(&mut self, _world: &mut World, _key: u64) -> Result<()> {
        Ok(())
    }

    fn wake(&mut self, world: &mut World, task: Task) -> Result<Step> {
        let Some((key, paged_bytes)) = self.request else { return Ok(Step::Pending) };
        match task {
            Task::PageTurn => world.wake_after(self.path.page(paged_bytes), self.path.process(), Task::Paged),
            Task::Paged => {
                world.end_turn(self.path.node(), Turn::Page);
                self.begin_copy(world, key);
            }
            _ => {
                self.request = None;
                return Ok(Step::Done);
            }
        }
        Ok(Step::Pending)
    }

    fn lane_bytes(&self) -> BTreeMap<(LayerIndex, LayerIndex), u64> {
        BTreeMap::from([((0, 1), self.down_bytes), ((1, 0), self.up_bytes)])
    }
}

/// No buffering: a save copies to the host if necessary, writes to the last layer, and waits. A
/// take does the opposite.
pub(crate) struct NoBuffering {
    path: Path,
    storage: usize,
    storage_layer: LayerIndex,
    has_device: bool,
    sizes: BTreeMap<u64, u64>,
    /// The remaining steps, in order: source and target.
    steps: VecDeque<(End, End)>,
    bytes: u64,
    written_bytes: u64,
    read_bytes: u64,
}

impl NoBuffering {
    pub(crate) fn new(experiment: &Experiment, path: Path) -> Result<Self> {
        let storage_layer = experiment.layers.len() - 1;
        let Medium::Storage(name) = &experiment.layers[storage_layer].medium else {
            return Err(experiment.machine.missing("storage at the end of the stack"));
        };
        Ok(Self {
            path,
            storage: experiment.machine.storage(name)?.0,
            storage_layer,
            has_device: experiment.machine.device.is_some(),
            sizes: BTreeMap::new(),
            steps: VecDeque::new(),
            bytes: 0,
            written_bytes: 0,
            read_bytes: 0,
        })
    }

    fn begin(&mut self, world: &mut World, steps: VecDeque<(End, End)>, bytes: u64) -> Step {
        self.steps = steps;
        self.bytes = bytes;
        let latency_ns = self.path.latency_ns([End::Storage(self.storage), End::Program]);
        world.wake_at(world.now_ns + latency_ns, self.path.process(), Task::Stepped);
        Step::Pending
    }
}

impl Store for NoBuffering {
    fn save(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step> {
        self.sizes.insert(key, bytes);
        self.written_bytes += bytes;
        let mut steps = VecDeque::from([(End::Host(Pages::Touched), End::Storage(self.storage))]);
        if self.has_device {
            steps.push_front((End::Device, End::Host(Pages::Touched)));
        }
        Ok(self.begin(world, steps, bytes))
    }

    fn take(&mut self, world: &mut World, key: u64) -> Result<Step> {
        let bytes = self.sizes[&key];
        self.read_bytes += bytes;
        let mut steps = VecDeque::from([(End::Storage(self.storage), End::Host(Pages::Touched))]);
        if self.has_device {
            steps.push_back((End::Host(Pages::Touched), End::Device));
        }
        Ok(self.begin(world, steps, bytes))
    }

    fn give_back(&mut self, _world: &mut World, _key: u64) -> Result<()> {
        Ok(())
    }

    fn wake(&mut self, world: &mut World, _task: Task) -> Result<Step> {
        let Some((from, to)) = self.steps.pop_front() else { return Ok(Step::Done) };
        let demand = self.path.transfer(world, self.bytes, from, to);
        world.wake_after(demand, self.path.process(), Task::Stepped);
        Ok(Step::Pending)
    }

    fn lane_bytes(&self) -> BTreeMap<(LayerIndex, LayerIndex), u64> {
        let last = self.storage_layer;
        BTreeMap::from([((0, last), self.written_bytes), ((last, 0), self.read_bytes)])
    }
}
