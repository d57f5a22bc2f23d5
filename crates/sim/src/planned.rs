//! A store that follows the plan: the same planner that the engine uses, on simulated layers.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use outcrop_plan::{
    Action, Event, LayerIndex, LayerSettings, MemorySettings, Order, Planner, Settings, Site, SnapshotId, Timestamp,
    Touching,
};

use crate::{
    Error, Storage,
    error::Result,
    experiment::{Activity, Approach, Experiment, Medium, Turns},
    memory::HostMemory,
    path::{End, Pages, Path},
    store::{Step, Store},
    world::{Task, Turn, World},
};

/// The size of the pieces in which host memory below a device is touched.
const TOUCH_PIECE_BYTES: u64 = 16 << 20;

/// A write to unpinned host memory checks the state of the memory again after this many bytes.
const WRITE_PIECE_BYTES: u64 = 32 << 20;

type LaneIndex = (LayerIndex, LayerIndex);

/// The planner of one process, and its simulated layers.
pub(crate) struct Planned {
    planner: Planner,
    path: Path,
    layers: Vec<SimLayer>,
    lanes: BTreeMap<LaneIndex, VecDeque<Transfer>>,
    moved_bytes: BTreeMap<LaneIndex, u64>,
    pinning: Turns,
    preparation: Preparation,
    /// What the program copies now, in or out.
    copy: Option<(SnapshotId, Transfer)>,
    /// Whether the program's request is done.
    is_done: bool,
    is_copied_back: bool,
    extents: BTreeMap<SnapshotId, Range<u64>>,
    tick_ns: Option<u64>,
}

struct SimLayer {
    medium: SimMedium,
    capacity_bytes: u64,
}

enum SimMedium {
    Device,
    Host(HostMemory),
    Storage(usize),
}

/// A transfer in pieces.
struct Transfer {
    id: SnapshotId,
    from: Option<LayerIndex>,
    to: Option<LayerIndex>,
    /// What is left to move, as ranges of the target if they matter.
    left: VecDeque<Range<u64>>,
    /// The piece that is being moved.
    piece: Range<u64>,
    begun_ns: u64,
}

/// What has to be done before the first save.
enum Preparation {
    /// Nothing.
    None,
    /// At the first save, allocate and register everything, one process at a time or all at once.
    Wanted(Turns),
    /// This is under way, for a save with this key and size.
    UnderWay { turns: Turns, key: u64, bytes: u64 },
}

impl Planned {
    pub(crate) fn new(experiment: &Experiment, path: Path, is_copied_back: bool) -> Result<Self> {
        let (pinning, preparation) = match experiment.approach {
            Approach::Adaptive { pinning, .. } => (pinning, Preparation::None),
            Approach::DirectPin(turns) => (turns, Preparation::Wanted(turns)),
            _ => (Turns::Parallel, Preparation::None),
        };
        let mut layers = Vec::new();
        let mut settings = Vec::new();
        for (index, layer) in experiment.layers.iter().enumerate() {
            let capacity_bytes = layer.capacity_bytes;
            let medium = match &layer.medium {
                Medium::Device => SimMedium::Device,
                Medium::Host => SimMedium::Host(HostMemory::default()),
                Medium::Storage(name) => SimMedium::Storage(experiment.machine.storage(name)?.0),
            };
            layers.push(SimLayer { medium, capacity_bytes });
            let drain_above_bytes = if layer.medium == Medium::Device { 0 } else { capacity_bytes / 2 };
            let memory = layer.memory.or_else(|| usual_memory(experiment, index));
            let (write_rate, read_rate) = surveyed_rates(experiment, &layer.medium)?;
            let settled = LayerSettings::new(capacity_bytes);
            settings.push(LayerSettings { drain_above_bytes, write_rate, read_rate, memory, ..settled });
        }
        Ok(Self {
            planner: Planner::new(Settings::new(settings, Order::Reverse)),
            path,
            layers,
            lanes: BTreeMap::new(),
            moved_bytes: BTreeMap::new(),
            pinning,
            preparation,
            copy: None,
            is_done: false,
            is_copied_back,
            extents: BTreeMap::new(),
            tick_ns: None,
        })
    }

    fn tell(&mut self, world: &mut World, event: Event) -> Result<Step> {
        self.planner.handle(Timestamp(world.now_ns), event);
        while let Some(action) = self.planner.poll() {
            self.carry_out(world, action)?;
        }
        let timeout_ns = self.planner.poll_timeout().map(|Timestamp(at_ns)| at_ns);
        if timeout_ns != self.tick_ns {
            self.tick_ns = timeout_ns;
            if let Some(at_ns) = timeout_ns {
                world.wake_at(at_ns.max(world.now_ns), self.path.process(), Task::Tick);
            }
        }
        Ok(if std::mem::take(&mut self.is_done) { Step::Done } else { Step::Pending })
    }

    fn carry_out(&mut self, world: &mut World, action: Action) -> Result<()> {
        match action {
            Action::Lend { id, at } => {
                let range = at..at + self.planner.bytes(id);
                self.extents.insert(id, range.clone());
                self.begin_copy(world, id, None, Some(0), range);
            }
            Action::Hand { id, .. } if self.is_copied_back => {
                let range = self.extents[&id].clone();
                self.begin_copy(world, id, Some(0), None, range);
            }
            Action::Hand { .. } => self.is_done = true,
            Action::LeaveOut { .. } => {}
            Action::Move { id, from, to, .. } => self.begin_move(world, id, &from, to),
            Action::Evict { id, layer } => {
                if layer == 0 {
                    self.extents.remove(&id);
                }
            }
            // A slide takes no simulated time: it is rare, and short compared with everything else.
            Action::Slide { id, to, .. } => {
                let range = &self.extents[&id];
                let range = to..to + (range.end - range.start);
                self.touch_now(0, range.clone());
                self.extents.insert(id, range);
            }
            Action::Refuse { id, why, .. } => {
                let seconds = world.now_ns as f64 / 1e9;
                return Err(Error::Refused { key: id.0, seconds, why: format!("{why:?}") });
            }
            Action::Touch { layer, range } => {
                let bytes = range.end - range.start;
                let demand = match self.layers[layer].medium {
                    SimMedium::Device => self.path.map(world, bytes),
                    SimMedium::Host(_) | SimMedium::Storage(_) => self.path.touch(world, bytes),
                };
                world.wake_after(demand, self.path.process(), Task::Touched { layer, range });
            }
            Action::Release { layer, range } => {
                if let SimMedium::Host(memory) = &mut self.layers[layer].medium {
                    memory.release(range);
                }
            }
            Action::Pin { layer } => match self.pinning {
                Turns::Serial => world.ask_turn(self.path.node(), Turn::Pin, self.path.process(), Task::PinTurn(layer)),
                Turns::Parallel => self.begin_pin(world, layer),
            },
        }
        Ok(())
    }

    /// Pinning pauses all other transfers of this process: the driver does nothing else meanwhile.
    fn begin_pin(&mut self, world: &mut World, layer: LayerIndex) {
        world.network.pause(self.path.process());
        let demand = self.path.pin(world, self.layers[layer].capacity_bytes);
        world.wake_after(demand, self.path.process(), Task::Pinned(layer));
    }

    fn begin_copy(
        &mut self,
        world: &mut World,
        id: SnapshotId,
        from: Option<LayerIndex>,
        to: Option<LayerIndex>,
        range: Range<u64>,
    ) {
        let left = VecDeque::from([range]);
        let mut transfer = Transfer { id, from, to, left, piece: 0..0, begun_ns: world.now_ns };
        self.next_piece(world, &mut transfer, Task::Copied);
        self.copy = Some((id, transfer));
    }

    fn begin_move(&mut self, world: &mut World, id: SnapshotId, from: &Site, to: Site) {
        let lane = (from.layer, to.layer);
        let bytes: u64 = to.extents.iter().map(|piece| piece.end - piece.start).sum();
        *self.moved_bytes.entry(lane).or_default() += bytes;
        if to.layer == 0 {
            self.extents.insert(id, to.extents[0].clone());
        }
        let left = to.extents.into_iter().collect();
        let (from, to) = (Some(lane.0), Some(lane.1));
        let queue = self.lanes.entry(lane).or_default();
        queue.push_back(Transfer { id, from, to, left, piece: 0..0, begun_ns: world.now_ns });
        if queue.len() == 1 {
            self.begin_first(world, lane);
        }
    }

    /// A lane serves one move at a time, oldest first.
    fn begin_first(&mut self, world: &mut World, lane: LaneIndex) {
        let ends = [self.end(lane.0, Pages::Touched), self.end(lane.1, Pages::Touched)];
        let latency_ns = self.path.latency_ns(ends);
        world.wake_at(world.now_ns + latency_ns, self.path.process(), Task::MoveBegins(lane));
    }

    /// Begins the next piece of a transfer. Returns whether there was one.
    fn next_piece(&self, world: &mut World, transfer: &mut Transfer, task: Task) -> bool {
        let Some(range) = transfer.left.pop_front() else { return false };
        let mut end = range.end;
        let mut pages = Pages::Touched;
        // A source was written, so it is touched; a target may be untouched.
        let host = transfer.to.or(transfer.from);
        if let Some(SimMedium::Host(memory)) = host.map(|layer| &self.layers[layer].medium) {
            (pages, end) = memory.state(&range);
            if pages != Pages::Pinned && transfer.to.is_some() {
                end = end.min(range.start + WRITE_PIECE_BYTES);
            }
        }
        if end < range.end {
            transfer.left.push_front(end..range.end);
        }
        transfer.piece = range.start..end;
        let from_pages = transfer.from.map_or(Pages::Touched, |layer| self.read_state(layer));
        let from = transfer.from.map_or(End::Program, |layer| self.end(layer, from_pages));
        let to = transfer.to.map_or(End::Program, |layer| self.end(layer, pages));
        let demand = self.path.transfer(world, end - range.start, from, to);
        world.wake_after(demand, self.path.process(), task);
        true
    }

    fn read_state(&self, layer: LayerIndex) -> Pages {
        match &self.layers[layer].medium {
            SimMedium::Host(memory) if memory.is_pinned => Pages::Pinned,
            _ => Pages::Touched,
        }
    }

    fn end(&self, layer: LayerIndex, pages: Pages) -> End {
        match self.layers[layer].medium {
            SimMedium::Device => End::Device,
            SimMedium::Host(_) => End::Host(pages),
            SimMedium::Storage(number) => End::Storage(number),
        }
    }

    fn touch_now(&mut self, layer: LayerIndex, range: Range<u64>) {
        if let SimMedium::Host(memory) = &mut self.layers[layer].medium {
            memory.touch(range);
        }
    }

    fn copied(&mut self, world: &mut World) -> Result<Step> {
        let Some((id, mut transfer)) = self.copy.take() else { return Ok(Step::Pending) };
        if let Some(layer) = transfer.to {
            self.touch_now(layer, transfer.piece.clone());
        }
        if self.next_piece(world, &mut transfer, Task::Copied) {
            self.copy = Some((id, transfer));
            return Ok(Step::Pending);
        }
        self.is_done = true;
        let event = if transfer.to.is_some() { Event::Sealed { id, keep: false } } else { Event::Released(id) };
        self.tell(world, event)
    }

    fn moved(&mut self, world: &mut World, lane: LaneIndex, is_begin: bool) -> Result<Step> {
        let Some(mut transfer) = self.lanes.get_mut(&lane).and_then(VecDeque::pop_front) else {
            return Ok(Step::Pending);
        };
        if is_begin {
            transfer.begun_ns = world.now_ns;
        } else {
            self.touch_now(lane.1, transfer.piece.clone());
        }
        if self.next_piece(world, &mut transfer, Task::MovePiece(lane)) {
            self.lanes.entry(lane).or_default().push_front(transfer);
            return Ok(Step::Pending);
        }
        let activity = if lane.0 < lane.1 { Activity::Down } else { Activity::Up };
        world.record(self.path.process(), activity, transfer.begun_ns);
        let (id, (from, to)) = (transfer.id, lane);
        if self.lanes.get(&lane).is_some_and(|queue| !queue.is_empty()) {
            self.begin_first(world, lane);
        }
        self.tell(world, Event::Moved { id, from, to })
    }

    fn room_wanted(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step> {
        self.tell(world, Event::RoomWanted { id: SnapshotId(key), key, bytes, is_copy: true, yields: false })
    }

    fn host_bytes(&self) -> u64 {
        let of_layer = |layer: &SimLayer| match layer.medium {
            SimMedium::Host(_) => layer.capacity_bytes,
            _ => 0,
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// The device's memory is allocated; now the host buffer is registered.
    fn allocated(&mut self, world: &mut World, turns: Turns) -> Result<Step> {
        let is_host = self.host_bytes() > 0;
        match turns {
            _ if !is_host => return self.prepared(world),
            Turns::Serial => world.ask_turn(self.path.node(), Turn::Pin, self.path.process(), Task::RegisterTurn),
            Turns::Parallel => self.begin_register(world),
        }
        Ok(Step::Pending)
    }

    fn begin_register(&mut self, world: &mut World) {
        let demand = self.path.register(world, self.host_bytes());
        world.wake_after(demand, self.path.process(), Task::Registered);
    }

    fn prepared(&mut self, world: &mut World) -> Result<Step> {
        for layer in &mut self.layers {
            if let SimMedium::Host(memory) = &mut layer.medium {
                memory.is_pinned = true;
            }
        }
        match std::mem::replace(&mut self.preparation, Preparation::None) {
            Preparation::UnderWay { key, bytes, .. } => self.room_wanted(world, key, bytes),
            Preparation::None | Preparation::Wanted(_) => Ok(Step::Pending),
        }
    }
}

impl Store for Planned {
    fn begin(&mut self, world: &mut World) -> Result<()> {
        self.tell(world, Event::Handles(1)).map(drop)
    }

    fn save(&mut self, world: &mut World, key: u64, bytes: u64) -> Result<Step> {
        let Preparation::Wanted(turns) = self.preparation else { return self.room_wanted(world, key, bytes) };
        self.preparation = Preparation::UnderWay { turns, key, bytes };
        let of_device = |layer: &&SimLayer| matches!(layer.medium, SimMedium::Device);
        match self.layers.iter().find(of_device) {
            Some(device) => {
                let demand = self.path.map(world, device.capacity_bytes);
                world.wake_after(demand, self.path.process(), Task::Allocated);
                Ok(Step::Pending)
            }
            None => self.allocated(world, turns),
        }
    }

    fn take(&mut self, world: &mut World, key: u64) -> Result<Step> {
        self.tell(world, Event::Wanted { id: SnapshotId(key), consume: true })
    }

    fn give_back(&mut self, world: &mut World, key: u64) -> Result<()> {
        if self.is_copied_back {
            return Ok(());
        }
        self.tell(world, Event::Released(SnapshotId(key))).map(drop)
    }

    fn wake(&mut self, world: &mut World, task: Task) -> Result<Step> {
        match task {
            Task::Copied => self.copied(world),
            Task::MoveBegins(lane) => self.moved(world, lane, true),
            Task::MovePiece(lane) => self.moved(world, lane, false),
            Task::Touched { layer, range } => {
                self.touch_now(layer, range);
                self.tell(world, Event::Touched { layer, is_done: true })
            }
            Task::PinTurn(layer) => {
                self.begin_pin(world, layer);
                Ok(Step::Pending)
            }
            Task::Pinned(layer) => {
                world.network.resume(self.path.process());
                if self.pinning == Turns::Serial {
                    world.end_turn(self.path.node(), Turn::Pin);
                }
                if let SimMedium::Host(memory) = &mut self.layers[layer].medium {
                    memory.is_pinned = true;
                }
                self.tell(world, Event::Pinned { layer, is_done: true })
            }
            Task::Tick => {
                self.tick_ns = None;
                self.tell(world, Event::Tick)
            }
            Task::Allocated => match self.preparation {
                Preparation::UnderWay { turns, .. } => self.allocated(world, turns),
                _ => Ok(Step::Pending),
            },
            Task::RegisterTurn => {
                self.begin_register(world);
                Ok(Step::Pending)
            }
            Task::Registered => {
                if self.pinning == Turns::Serial {
                    world.end_turn(self.path.node(), Turn::Pin);
                }
                self.prepared(world)
            }
            Task::Begin | Task::Computed | Task::PageTurn | Task::Paged | Task::Stepped => Ok(Step::Pending),
        }
    }

    fn lane_bytes(&self) -> BTreeMap<LaneIndex, u64> {
        self.moved_bytes.clone()
    }

    fn strategy(&self) -> Option<String> {
        let layer = self.layers.iter().position(|layer| matches!(layer.medium, SimMedium::Host(_)))?;
        let state = self.planner.memory(layer)?;
        Some(format!("{}: {}", state.strategy, state.reason))
    }
}

/// The rates of a storage that a survey would measure if all processes made one at the same time:
/// each gets its share of what they have in common.
fn surveyed_rates(experiment: &Experiment, medium: &Medium) -> Result<(Option<u64>, Option<u64>)> {
    let Medium::Storage(name) = medium else { return Ok((None, None)) };
    let (_, storage) = experiment.machine.storage(name)?;
    let on_node = experiment.groups.iter().map(|group| group.workloads.len()).max().unwrap_or(1) as f64;
    let nodes = experiment.groups.iter().map(|group| f64::from(group.nodes)).sum::<f64>().max(1.0);
    let share = |process: Option<f64>, node: Option<f64>, all: f64| {
        let of_all = if storage.is_shared { all / nodes } else { all };
        let of_node = node.unwrap_or(f64::INFINITY).min(of_all) / on_node;
        Some(process.unwrap_or(f64::INFINITY).min(of_node) as u64)
    };
    let Storage { write_bytes_per_second, read_bytes_per_second, .. } = *storage;
    let write =
        share(storage.process_write_bytes_per_second, storage.node_write_bytes_per_second, write_bytes_per_second);
    let read = share(storage.process_read_bytes_per_second, storage.node_read_bytes_per_second, read_bytes_per_second);
    Ok((write, read))
}

/// The default memory settings of a layer, by approach. `None` if the plan does not manage it as
/// memory.
fn usual_memory(experiment: &Experiment, index: LayerIndex) -> Option<MemorySettings> {
    let touching = match experiment.approach {
        Approach::Adaptive { touching, .. } => touching,
        Approach::IncrementalMemset => Touching::Concurrent,
        Approach::DirectPin(_) | Approach::OnDemand | Approach::NoBuffering => return None,
    };
    let has_device = experiment.layers.iter().any(|layer| layer.medium == Medium::Device);
    match experiment.layers[index].medium {
        Medium::Device => Some(MemorySettings {
            piece_bytes: experiment.machine.device.as_ref()?.map_piece_bytes,
            ahead_bytes: u64::MAX,
            touching: Touching::Concurrent,
            needs_touch: true,
            pins: false,
            ..MemorySettings::new()
        }),
        Medium::Host if has_device => Some(MemorySettings {
            piece_bytes: TOUCH_PIECE_BYTES,
            ahead_bytes: u64::MAX,
            touching,
            // The fill runs ahead of the writes: only filled memory is written to.
            needs_touch: experiment.approach == Approach::IncrementalMemset,
            pins: true,
            ..MemorySettings::new()
        }),
        Medium::Host => Some(MemorySettings { touching, ..MemorySettings::new() }),
        Medium::Storage(_) => None,
    }
}
