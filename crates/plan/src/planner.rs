//! The state machine: where every snapshot is, what is moving, and how events change that. `decide`
//! chooses the actions.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::{
    Action, Event, Extents, Fault, LayerIndex, MemorySettings, MemoryState, Order, Purpose, Refusal, Site, SnapshotId,
    Timestamp,
    memory::{Begun, Memory},
    order::{PositionSet, Positions},
    packed::Packed,
    preference::Lane,
    sets::Sets,
    snapshot::{Copy, Filling, Loss, Phase, Snapshot},
    space::Space,
};

/// The size of a layer without a limit: more than any medium has, and small enough that sums do not
/// overflow.
const ADDRESSES: u64 = 1 << 62;

/// The largest number of layers in a stack.
pub const LAYERS_MAX: usize = 16;

/// What an allocation takes beside its bytes.
pub(crate) const ALLOCATION_BYTES: usize = 16;

/// A copy is given up after this many failed reads in a row.
const READ_FAULTS_MAX: u8 = 2;

/// The settings of a planner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The layers, the front first.
    pub layers: Vec<LayerSettings>,
    /// The order in which snapshots will be read.
    pub order: Order,
    /// How many bytes may be moving on one lane. Two moves are always allowed, however large.
    pub lane_bytes_max: u64,
    /// How long a save or read waits for slots that the program holds, when every handle of the
    /// program waits.
    pub patience_ns: u64,
    /// How to choose between layers that have room.
    pub preference: Preference,
    /// Whether every snapshot has to reach every layer below the front, oldest first, instead of
    /// sinking only when room is needed. If a layer fails to take a snapshot, that snapshot is left
    /// out there, and later ones are still sent.
    #[serde(default)]
    pub persists: bool,
}

/// How the planner chooses between layers that have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Preference {
    /// By recent measurements of writing and reading.
    #[default]
    Measured,
    /// The upper one first.
    Fixed,
}

impl Settings {
    /// Default settings for these layers.
    pub fn new(layers: Vec<LayerSettings>, order: Order) -> Self {
        Self {
            layers,
            order,
            lane_bytes_max: 64 << 20,
            patience_ns: 30_000_000_000,
            preference: Preference::default(),
            persists: false,
        }
    }
}

/// One layer of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSettings {
    /// How many bytes it may hold; `None` without a limit.
    pub capacity_bytes: Option<u64>,
    /// Whether bytes stay on it when the plan forgets a snapshot, until their owner removes them:
    /// see [`Event::Kept`].
    #[serde(default)]
    pub keeps: bool,
    /// With more dirty bytes than this, the layer drains.
    pub drain_above_bytes: u64,
    /// Bytes per second of writing to it, if known before the first move.
    pub write_rate: Option<u64>,
    /// Bytes per second of reading from it, if known before the first move.
    pub read_rate: Option<u64>,
    /// Settings of its memory, if it is memory.
    pub memory: Option<MemorySettings>,
}

impl LayerSettings {
    /// A layer that drains when it is more than half dirty: it has room for bursts, and writes no
    /// more than is likely to be needed.
    pub fn new(capacity_bytes: u64) -> Self {
        let drain_above_bytes = capacity_bytes / 2;
        Self { capacity_bytes: Some(capacity_bytes), drain_above_bytes, ..Self::unlimited() }
    }

    /// A layer without a limit. It does not drain because of the number of its bytes.
    pub fn unlimited() -> Self {
        let (capacity_bytes, drain_above_bytes) = (None, u64::MAX);
        Self { capacity_bytes, keeps: false, drain_above_bytes, write_rate: None, read_rate: None, memory: None }
    }

    /// The same layer, as memory with these settings.
    pub fn with_memory(self, memory: MemorySettings) -> Self {
        Self { memory: Some(memory), ..self }
    }
}

/// Counts of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counters {
    /// The snapshot was in the front.
    pub hits: u64,
    /// The snapshot was on its way to the front.
    pub late: u64,
    /// The snapshot was elsewhere, or was not the announced one.
    pub misses: u64,
    /// Reads by the topmost layer that had the snapshot.
    pub found: [u64; LAYERS_MAX],
}

/// Decides what moves where and when. See the crate's documentation.
#[derive(Debug, Clone)]
pub struct Planner {
    pub(crate) settings: Settings,
    pub(crate) now: Timestamp,
    pub(crate) layers: Vec<Layer>,
    pub(crate) snapshots: Packed<SnapshotId, Snapshot>,
    /// The copies that are being written.
    filling: BTreeMap<(SnapshotId, LayerIndex), Filling>,
    /// The extents of copies that lie in several pieces.
    pieces: BTreeMap<(SnapshotId, LayerIndex), Extents>,
    /// How many copies are not the first one of their snapshot.
    further_copies: u64,
    pub(crate) keys: Packed<u64, SnapshotId>,
    /// How many snapshots the program can ask for.
    pub(crate) live: usize,
    pub(crate) positions: Positions,
    /// The snapshots that the program can ask for, and that were lost.
    pub(crate) lost: PositionSet,
    /// The snapshots in the front, by address.
    pub(crate) front: Packed<u64, SnapshotId>,
    /// Bytes in the front that could leave it only if another layer had room.
    pub(crate) stuck_bytes: u64,
    /// Sizes of the snapshots that are only below the front, with a count for each size.
    pub(crate) below: BTreeMap<u64, u64>,
    /// Saves that wait for room, oldest first.
    pub(crate) rooms: VecDeque<SnapshotId>,
    /// Reads that wait for their snapshot, and whether each of them consumes it, oldest first.
    pub(crate) wants: VecDeque<(SnapshotId, bool)>,
    pub(crate) lanes: BTreeMap<(LayerIndex, LayerIndex), Lane>,
    /// Slots that the program holds.
    pub(crate) held: u32,
    pub(crate) handles: u32,
    pub(crate) patience_until: Option<Timestamp>,
    /// The size of the largest snapshot so far.
    pub(crate) bytes_max: u64,
    /// Untouched bytes of the front that the program or a fetch is filling.
    pub(crate) filling_bytes: u64,
    /// For how many events there is no search for snapshots to evict that lie side by side.
    pub(crate) search_pause: u64,
    pub(crate) actions: VecDeque<Action>,
    counters: Counters,
}

/// The free space of a layer, and its sets of snapshots for decisions.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) space: Space,
    /// How many bytes it may hold, kept ones included; `None` without a limit.
    limit_bytes: Option<u64>,
    /// If bytes stay on it: those that belong to no snapshot that the plan knows.
    kept_bytes: Option<u64>,
    pub(crate) memory: Option<Memory>,
    pub(crate) drain_above_bytes: u64,
    /// Whether it can be written.
    pub(crate) is_writable: bool,
    pub(crate) used_bytes_max: u64,
    pub(crate) sets: Sets,
}

impl Planner {
    /// A planner for an empty stack.
    ///
    /// # Panics
    /// If `settings` has no layer, or more than [`LAYERS_MAX`].
    pub fn new(mut settings: Settings) -> Self {
        assert!((1..=LAYERS_MAX).contains(&settings.layers.len()), "a stack has 1 to {LAYERS_MAX} layers");
        let layers = settings.layers.iter().map(Layer::new).collect();
        Self {
            now: Timestamp(0),
            layers,
            snapshots: Packed::new(),
            filling: BTreeMap::new(),
            pieces: BTreeMap::new(),
            further_copies: 0,
            keys: Packed::new(),
            live: 0,
            positions: Positions::new(std::mem::take(&mut settings.order)),
            lost: PositionSet::new(),
            front: Packed::new(),
            stuck_bytes: 0,
            below: BTreeMap::new(),
            rooms: VecDeque::new(),
            wants: VecDeque::new(),
            lanes: BTreeMap::new(),
            held: 0,
            handles: 1,
            patience_until: None,
            bytes_max: 0,
            filling_bytes: 0,
            search_pause: 0,
            actions: VecDeque::new(),
            counters: Counters::default(),
            settings,
        }
    }

    /// Records what happened at `now`. [`poll`](Self::poll) returns the actions that follow.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        self.now = self.now.max(now);
        self.search_pause = self.search_pause.saturating_sub(1);
        match event {
            Event::RoomWanted { id, key, bytes, is_copy, yields } => {
                let below = (u16::MAX >> (LAYERS_MAX - self.layers.len())) & !1;
                let persists_on = if self.settings.persists { below } else { 0 };
                self.room_wanted(id, Snapshot::new(key, bytes, is_copy, yields, persists_on));
            }
            Event::Shortened { id, bytes } => self.shortened(id, bytes),
            Event::Sealed { id, keep } => self.sealed(id, keep),
            Event::Abandoned(id) => {
                self.held -= 1;
                self.end_fill(id, false);
                self.change(id, |snapshot| snapshot.phase = Phase::Consumed);
                self.forget_key(id);
                self.reap(id);
            }
            Event::Wanted { id, consume } => self.wanted(id, consume),
            Event::Withdrawn { id, consume } => self.withdrawn(id, consume),
            Event::Released(id) => {
                self.held -= 1;
                self.change(id, |snapshot| snapshot.holders -= 1);
                self.reap(id);
            }
            Event::Discarded(id) => self.discarded(id),
            Event::Moved { id, from, to } => self.moved(id, from, to),
            Event::Failed { id, from, to, fault } => self.failed(id, from, to, fault),
            Event::Touched { layer, is_done } => self.touched(layer, is_done),
            Event::Exhausted { layer } => self.exhausted(layer),
            Event::Pinned { layer, is_done } => self.pinned(layer, is_done),
            Event::Kept { layer, bytes } => self.layers[layer].keep(bytes),
            Event::Handles(count) => self.handles = count,
            Event::Tick => {}
        }
        self.decide();
    }

    /// The next action, if there is one.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send a `Tick` if no other event comes first.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        // While something waits, try again to touch shared memory that ran out.
        let retry = self.patience_until.and_then(|_| self.exhausted_until());
        self.patience_until.into_iter().chain(retry).min()
    }

    /// When to try again to touch shared memory that ran out, if it did.
    pub(crate) fn exhausted_until(&self) -> Option<Timestamp> {
        self.layers.iter().filter_map(|layer| layer.memory.as_ref()?.exhausted_until()).min()
    }

    /// The snapshot with this key, if the program can read it.
    pub fn find(&self, key: u64) -> Option<SnapshotId> {
        let id = *self.keys.get(&key)?;
        let snapshot = &self.snapshots[&id];
        snapshot.is_live().then_some(id)
    }

    /// Whether `key` is in use, also by a save that is not complete or a read that still waits.
    pub fn has_key(&self, key: u64) -> bool {
        self.keys.contains_key(&key)
    }

    /// The keys of all snapshots that the program can read, in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.keys.iter().filter(|(_, id)| self.snapshots[id].is_live()).map(|(key, _)| *key)
    }

    /// How many [keys](Self::keys) there are.
    pub fn count(&self) -> usize {
        self.live
    }

    /// The size of a snapshot that exists, waits for room, or is being filled.
    ///
    /// # Panics
    /// If there is no such snapshot.
    pub fn bytes(&self, id: SnapshotId) -> u64 {
        self.snapshots[&id].bytes
    }

    /// Where a snapshot begins in the front, if it is there.
    pub fn start_in_front(&self, id: SnapshotId) -> Option<u64> {
        self.snapshots.get(&id)?.copy(0).map(|copy| copy.start)
    }

    /// Whether the front has a complete copy of the snapshot.
    pub fn is_in_front(&self, id: SnapshotId) -> bool {
        self.snapshots.get(&id).and_then(|snapshot| snapshot.copy(0)).is_some_and(|copy| !copy.is_arriving)
    }

    /// Whether no copy of the snapshot can be read, or the snapshot does not exist any more.
    pub fn is_lost(&self, id: SnapshotId) -> bool {
        self.snapshots.get(&id).is_none_or(|snapshot| snapshot.lost.is_some())
    }

    /// The size that the front has or can grow to.
    pub fn front_bytes(&self) -> u64 {
        self.layers[0].space.limit()
    }

    /// How many slots the program holds.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The counts of reads so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes in use on a layer, now and at most so far, kept ones included.
    pub fn used_bytes(&self, layer: LayerIndex) -> (u64, u64) {
        (self.layers[layer].used(), self.layers[layer].used_bytes_max)
    }

    /// If bytes stay on a layer: those that belong to no snapshot that the plan knows.
    pub fn kept_bytes(&self, layer: LayerIndex) -> Option<u64> {
        self.layers[layer].kept_bytes
    }

    /// How many bytes the plan takes itself, for all that it knows of snapshots.
    pub fn bookkeeping_bytes(&self) -> u64 {
        let maps = self.snapshots.bytes() + self.keys.bytes() + self.front.bytes() + self.lost.bytes();
        let layers: u64 = self.layers.iter().map(|layer| layer.sets.bytes() + layer.space.bytes()).sum();
        let copies = self.further_copies * (2 * size_of::<Copy>() + ALLOCATION_BYTES) as u64;
        // Nodes of this map are at least half full.
        let of_pieces = 2 * size_of::<((SnapshotId, LayerIndex), Extents)>() + ALLOCATION_BYTES;
        let pieces = self.pieces.values().map(|pieces| (of_pieces + size_of_val(pieces.as_slice())) as u64);
        maps + layers + copies + pieces.sum::<u64>() + self.positions.bytes()
    }

    /// The state of a layer's memory, if it is memory.
    pub fn memory(&self, layer: LayerIndex) -> Option<MemoryState> {
        self.layers[layer].memory.as_ref().map(Memory::state)
    }

    fn room_wanted(&mut self, id: SnapshotId, wanted: Snapshot) {
        let (key, bytes) = (wanted.key, wanted.bytes);
        if bytes > self.layers[0].space.limit() {
            self.actions.push_back(Action::Refuse { id, consume: false, why: Refusal::TooLarge });
            return;
        }
        self.bytes_max = self.bytes_max.max(bytes);
        self.snapshots.insert(id, wanted);
        self.keys.insert(key, id);
        self.rooms.push_back(id);
    }

    /// Handles `Event::Shortened`: a slot that is being filled needs only its first `bytes`.
    fn shortened(&mut self, id: SnapshotId, bytes: u64) {
        let mut rest = 0..0;
        self.change(id, |snapshot| {
            debug_assert!(matches!(snapshot.phase, Phase::Lent { .. }) && bytes <= snapshot.bytes);
            if let Some(place) = snapshot.range_in_front() {
                rest = place.start + bytes..place.end;
            }
            snapshot.bytes = bytes;
        });
        if !rest.is_empty() {
            self.layers[0].space.give(rest);
        }
    }

    fn sealed(&mut self, id: SnapshotId, keep: bool) {
        self.held -= u32::from(!keep);
        self.end_fill(id, true);
        let position = self.positions.of_new(self.snapshots[&id].key);
        self.change(id, |snapshot| {
            snapshot.phase = Phase::Live;
            snapshot.position = position;
            snapshot.holders = u32::from(keep);
        });
    }

    /// The program begins to fill a slot. If it only copies, the time measures how fast the front
    /// can be written.
    pub(crate) fn begin_fill(&mut self, id: SnapshotId, extents: &Extents) -> Begun {
        let is_copy = matches!(self.snapshots[&id].phase, Phase::Lent { is_copy: true, .. });
        let Some(memory) = &mut self.layers[0].memory else { return Begun::default() };
        let begun = match is_copy {
            true => memory.begin_write(self.now, extents, true),
            false => memory.begin_lend(extents),
        };
        self.filling_bytes += begun.untouched_bytes();
        begun
    }

    fn end_fill(&mut self, id: SnapshotId, is_filled: bool) {
        let Snapshot { bytes, phase, .. } = self.snapshots[&id];
        let Some(Filling { since, begun }) = self.filling.remove(&(id, 0)) else { return };
        self.filling_bytes -= begun.untouched_bytes();
        let is_copy = matches!(phase, Phase::Lent { is_copy: true, .. });
        let Some(memory) = self.layers[0].memory.as_mut().filter(|_| is_copy) else { return };
        match is_filled {
            true => memory.end_write(self.now, bytes, begun, since),
            false => memory.abandon_write(self.now),
        }
    }

    fn wanted(&mut self, id: SnapshotId, consume: bool) {
        let snapshot = &self.snapshots[&id];
        let (key, position) = (snapshot.key, snapshot.position);
        let is_nearest = self.nearest_live() == Some(id);
        let (is_in_order, changed) = self.positions.read(key, position, is_nearest);
        match self.snapshots[&id].copy(0) {
            _ if !is_in_order => self.counters.misses += 1,
            Some(copy) if copy.is_arriving => self.counters.late += 1,
            Some(_) => self.counters.hits += 1,
            None => self.counters.misses += 1,
        }
        let complete = self.snapshots[&id].copies.iter().filter(|copy| !copy.is_arriving);
        if let Some(layer) = complete.map(Copy::layer).min() {
            self.counters.found[layer] += 1;
        }
        for (key, position) in changed {
            if let Some(&id) = self.keys.get(&key) {
                self.change(id, |snapshot| snapshot.position = position);
            }
        }
        self.change(id, |snapshot| {
            snapshot.wants += 1;
            snapshot.is_claimed |= consume;
            // The cause of the failed reads may be gone: try once more.
            if snapshot.lost.take().is_some() {
                snapshot.read_faults = READ_FAULTS_MAX - 1;
            }
        });
        self.wants.push_back((id, consume));
    }

    fn withdrawn(&mut self, id: SnapshotId, consume: bool) {
        if let Some(place) = self.rooms.iter().position(|waiting| *waiting == id) {
            self.rooms.remove(place);
            self.forget_key(id);
            self.snapshots.remove(&id);
        } else if let Some(place) = self.wants.iter().position(|wanted| *wanted == (id, consume)) {
            self.wants.remove(place);
            self.forget_want(id, consume);
        }
    }

    fn discarded(&mut self, id: SnapshotId) {
        let (gone, wants) = self.wants.drain(..).partition(|&(wanted, _)| wanted == id);
        self.wants = wants;
        let gone: VecDeque<_> = gone;
        for (_, consume) in gone {
            self.refuse_want(id, consume, Refusal::Gone);
        }
        self.consume(id);
        self.reap(id);
    }

    fn moved(&mut self, id: SnapshotId, from: LayerIndex, to: LayerIndex) {
        self.end_move(id, from, to, true);
        self.change(id, |snapshot| {
            snapshot.read_faults = 0;
            // It has reached the layer, even if it cannot be read there later.
            snapshot.persists_on &= !(1 << to);
            if let Some(copy) = snapshot.copy_mut(to) {
                copy.is_arriving = false;
            }
        });
        self.reap(id);
    }

    fn failed(&mut self, id: SnapshotId, from: LayerIndex, to: LayerIndex, fault: Fault) {
        self.end_move(id, from, to, false);
        match fault {
            Fault::TargetFull | Fault::TargetBroken if self.settings.persists => {
                self.drop_copy(id, to);
                self.change(id, |snapshot| snapshot.persists_on &= !(1 << to));
            }
            Fault::TargetFull => {
                if let Some(lost) = self.remove_copy(id, to) {
                    self.layers[to].space.shrink_to_used(&lost);
                }
            }
            Fault::TargetBroken => {
                self.layers[to].is_writable = false;
                self.drop_copy(id, to);
            }
            Fault::SourceUnreadable => self.read_failed(id, from, to, Loss::Unreadable(from as u8)),
            Fault::SourceDamaged => self.read_failed(id, from, to, Loss::Damaged(from as u8)),
        }
        self.reap(id);
    }

    fn read_failed(&mut self, id: SnapshotId, from: LayerIndex, to: LayerIndex, why: Loss) {
        self.drop_copy(id, to);
        let snapshot = &self.snapshots[&id];
        let is_given_up = snapshot.read_faults + 1 >= READ_FAULTS_MAX;
        let has_other = snapshot.copies.iter().any(|copy| copy.layer() != from && !copy.is_arriving);
        if is_given_up && has_other && snapshot.copy(from).is_some_and(|copy| copy.readers == 0) {
            match self.layers[from].keeps() {
                // The bytes stay there, and the layer's owner counts them.
                true => self.evict(id, from),
                false => self.drop_copy(id, from),
            }
            self.change(id, |snapshot| snapshot.read_faults = 0);
            return;
        }
        self.change(id, |snapshot| {
            snapshot.read_faults += 1;
            if is_given_up {
                snapshot.lost = Some(why);
            }
        });
    }

    fn end_move(&mut self, id: SnapshotId, from: LayerIndex, to: LayerIndex, is_done: bool) {
        let bytes = self.snapshots[&id].bytes;
        let target = self.filling.remove(&(id, to)).expect("a move fills its target");
        let lane = self.lanes.get_mut(&(from, to)).expect("a move ends on the lane where it began");
        let since = lane.end(self.now, target.since, bytes, is_done);
        if to == 0 {
            self.filling_bytes -= target.begun.untouched_bytes();
        }
        if let Some(memory) = &mut self.layers[to].memory {
            match is_done {
                true => memory.end_write(self.now, bytes, target.begun, since),
                false => memory.abandon_write(self.now),
            }
        }
        self.change(id, |snapshot| {
            if let Some(copy) = snapshot.copy_mut(from) {
                copy.readers -= 1;
            }
        });
    }

    /// Begins a move to extents that are already allocated.
    pub(crate) fn begin_move(&mut self, id: SnapshotId, from: LayerIndex, to: Site, purpose: Purpose) {
        let snapshot = &self.snapshots[&id];
        let bytes = snapshot.bytes;
        let extents = self.extents(id, snapshot, snapshot.copy(from).expect("a move has a source"));
        let now = self.now;
        self.lane(from, to.layer).begin(now, bytes);
        self.change(id, |snapshot| {
            snapshot.copy_mut(from).expect("a move has a source").readers += 1;
        });
        let begun = match &mut self.layers[to.layer].memory {
            Some(memory) => memory.begin_write(self.now, &to.extents, false),
            None => Begun::default(),
        };
        if to.layer == 0 {
            self.filling_bytes += begun.untouched_bytes();
        }
        self.add_copy(id, to.layer, to.extents.clone(), true, begun);
        self.actions.push_back(Action::Move { id, from: Site { layer: from, extents }, to, purpose });
    }

    /// Whether nothing is moving or growing that could make room or bring a snapshot up.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_coming = |memory: &Memory| memory.is_touching() && !memory.is_wanting();
        let is_growing = |layer: &Layer| layer.memory.as_ref().is_some_and(is_coming) && layer.is_growing();
        self.lanes.values().all(Lane::is_idle) && !self.layers.iter().any(is_growing)
    }

    /// Marks a snapshot as consumed. Its extents are freed once nothing uses them.
    pub(crate) fn consume(&mut self, id: SnapshotId) {
        self.change(id, |snapshot| snapshot.phase = Phase::Consumed);
        self.forget_key(id);
    }

    /// Frees the extents of a consumed snapshot that nothing uses any more.
    pub(crate) fn reap(&mut self, id: SnapshotId) {
        let snapshot = &self.snapshots[&id];
        if snapshot.phase != Phase::Consumed {
            return;
        }
        let is_held = snapshot.holders > 0;
        let idle: Vec<_> = snapshot
            .copies
            .iter()
            .filter(|copy| !copy.is_arriving && copy.readers == 0 && !(copy.layer() == 0 && is_held))
            .map(Copy::layer)
            .collect();
        for layer in idle {
            self.evict(id, layer);
        }
        if self.snapshots[&id].copies.is_empty() && !is_held {
            self.snapshots.remove(&id);
        }
    }

    pub(crate) fn add_copy(
        &mut self,
        id: SnapshotId,
        layer: LayerIndex,
        extents: Extents,
        is_arriving: bool,
        begun: Begun,
    ) {
        if layer == 0 {
            self.front.insert(extents[0].start, id);
        }
        let place = &mut self.layers[layer];
        place.used_bytes_max = place.used_bytes_max.max(place.used());
        let copy = Copy::new(layer, extents[0].start, extents.len() > 1, is_arriving);
        self.filling.insert((id, layer), Filling { since: self.now, begun });
        if copy.is_split {
            self.pieces.insert((id, layer), extents);
        }
        self.further_copies += u64::from(!self.snapshots[&id].copies.is_empty());
        self.change(id, |snapshot| snapshot.copies.push(copy));
    }

    /// Where a copy of a snapshot lies.
    fn extents(&self, id: SnapshotId, snapshot: &Snapshot, copy: &Copy) -> Extents {
        match copy.is_split {
            true => self.pieces[&(id, copy.layer())].clone(),
            false => Extents::from_elem(copy.start..copy.start + snapshot.bytes, 1),
        }
    }

    /// Forgets a copy and frees its extents. If the copy was complete, a layer that keeps bytes
    /// still holds it.
    pub(crate) fn drop_copy(&mut self, id: SnapshotId, layer: LayerIndex) {
        let is_complete = self.snapshots[&id].copy(layer).is_some_and(|copy| !copy.is_arriving);
        // A loop over the option would be the same, but compilers then look at extents that are not
        // there, without using them, and valgrind tells users so.
        let Some(extents) = self.remove_copy(id, layer) else { return };
        for piece in extents {
            if let Some(kept) = self.layers[layer].kept_bytes.as_mut().filter(|_| is_complete) {
                *kept += piece.end - piece.start;
            }
            self.layers[layer].space.give(piece);
        }
    }

    fn remove_copy(&mut self, id: SnapshotId, layer: LayerIndex) -> Option<Extents> {
        let snapshot = &self.snapshots[&id];
        let extents = self.extents(id, snapshot, snapshot.copy(layer)?);
        self.pieces.remove(&(id, layer));
        if layer == 0 {
            self.front.remove(&extents[0].start);
        }
        self.further_copies -= u64::from(snapshot.copies.len() > 1);
        self.change(id, |snapshot| {
            snapshot.copies.retain(|copy| copy.layer() != layer);
            snapshot.copies.shrink_to_fit();
        });
        Some(extents)
    }

    pub(crate) fn forget_key(&mut self, id: SnapshotId) {
        let key = self.snapshots[&id].key;
        if self.keys.get(&key) == Some(&id) {
            self.keys.remove(&key);
        }
    }
}

impl Layer {
    fn new(settings: &LayerSettings) -> Self {
        let addresses = settings.capacity_bytes.unwrap_or(ADDRESSES).min(ADDRESSES);
        Self {
            space: match settings.memory {
                Some(memory) if memory.needs_touch => Space::growing(addresses),
                _ => Space::new(addresses),
            },
            limit_bytes: settings.capacity_bytes,
            kept_bytes: settings.keeps.then_some(0),
            memory: settings.memory.map(Memory::new),
            drain_above_bytes: settings.drain_above_bytes,
            is_writable: true,
            used_bytes_max: 0,
            sets: Sets::default(),
        }
    }

    /// Whether bytes stay on it when the plan forgets a snapshot, so that eviction makes no room.
    pub(crate) fn keeps(&self) -> bool {
        self.kept_bytes.is_some()
    }

    /// Bytes in use, kept ones included.
    fn used(&self) -> u64 {
        self.space.used() + self.kept_bytes.unwrap_or(0)
    }

    /// Bytes that are free now.
    pub(crate) fn free(&self) -> u64 {
        match self.limit_bytes.filter(|_| self.keeps()) {
            Some(limit) => limit.saturating_sub(self.used()).min(self.space.free()),
            None => self.space.free(),
        }
    }

    /// Bytes that are free once all clean snapshots have been evicted.
    pub(crate) fn free_at_most(&self) -> u64 {
        self.free() + if self.keeps() { 0 } else { self.sets.clean_bytes }
    }

    /// Handles `Event::Kept`.
    fn keep(&mut self, bytes: u64) {
        if let Some(kept) = &mut self.kept_bytes {
            *kept = bytes.min(ADDRESSES);
        }
        self.used_bytes_max = self.used_bytes_max.max(self.used());
    }

    /// Whether the layer will get more room from touching.
    pub(crate) fn is_growing(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_growing(self.space.limit()))
    }
}
