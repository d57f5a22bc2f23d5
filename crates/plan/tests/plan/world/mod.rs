//! A simulated stack: carries out the planner's actions and checks each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use outcrop_plan::{
    Action, Event, Extents, Fault, LayerIndex, LayerSettings, MemorySettings, Order, Planner, Purpose, Refusal,
    Settings, Site, SnapshotId, Timestamp,
};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Lent,
    Handed,
    Refused(Refusal),
}

#[derive(Debug, Clone)]
pub(crate) struct PendingMove {
    pub(crate) id: SnapshotId,
    pub(crate) from: Site,
    pub(crate) to: Site,
}

#[derive(Debug, Default, Clone)]
struct Saved {
    key: u64,
    bytes: u64,
    /// Complete copies by layer.
    complete: BTreeMap<LayerIndex, Extents>,
    arriving: BTreeMap<LayerIndex, Extents>,
    doubtful: BTreeSet<LayerIndex>,
    moves: u32,
    holders: u32,
    is_live: bool,
    /// The program is filling its slot.
    is_lent: bool,
    /// The program has asked for it for the last time.
    is_consumed: bool,
}

pub(crate) struct World {
    pub(crate) planner: Planner,
    capacities: Vec<u64>,
    saved: BTreeMap<SnapshotId, Saved>,
    pub(crate) pending: Vec<PendingMove>,
    answers: BTreeMap<SnapshotId, Answer>,
    next_id: u64,
    now: u64,
    pub(crate) moves: u64,
}

impl World {
    pub(crate) fn new(capacities: &[u64], order: Order) -> Self {
        let memory = MemorySettings { piece_bytes: 2, ahead_bytes: 4, pins: true, ..MemorySettings::new() };
        let mut layers: Vec<_> = capacities.iter().map(|&bytes| LayerSettings::new(bytes)).collect();
        let needs_touch = capacities[0].is_multiple_of(3);
        layers[0] = layers[0].with_memory(MemorySettings { needs_touch, is_shared: needs_touch, ..memory });
        let mut settings = Settings::new(layers, order);
        settings.lane_bytes_max = 8;
        Self {
            planner: Planner::new(settings),
            capacities: capacities.to_vec(),
            saved: BTreeMap::new(),
            pending: Vec::new(),
            answers: BTreeMap::new(),
            next_id: 0,
            now: 0,
            moves: 0,
        }
    }

    /// Saves a snapshot and lets moves end, in the order that `pick` chooses, until the save is
    /// answered.
    pub(crate) fn save(&mut self, key: u64, bytes: u64, pick: &mut dyn FnMut(usize) -> usize) -> Answer {
        self.save_and_keep(key, bytes, false, pick).1
    }

    /// Saves a snapshot. If `keep`, the program continues to read it.
    pub(crate) fn save_and_keep(
        &mut self,
        key: u64,
        bytes: u64,
        keep: bool,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> (SnapshotId, Answer) {
        let id = SnapshotId(self.next_id);
        self.next_id += 1;
        self.saved.insert(id, Saved { key, bytes, ..Saved::default() });
        self.tell(Event::RoomWanted { id, key, bytes, is_copy: key.is_multiple_of(2), yields: false });
        let answer = self.wait(id, pick);
        if answer == Answer::Lent {
            let saved = self.saved.get_mut(&id).unwrap();
            saved.is_lent = false;
            saved.is_live = true;
            saved.holders += u32::from(keep);
            self.tell(Event::Sealed { id, keep });
        }
        (id, answer)
    }

    pub(crate) fn read(
        &mut self,
        key: u64,
        consume: bool,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> (SnapshotId, Answer) {
        let id = self.planner.find(key).expect("the test reads what is there");
        self.saved.get_mut(&id).unwrap().is_consumed = consume;
        self.tell(Event::Wanted { id, consume });
        let answer = self.wait(id, pick);
        self.saved.get_mut(&id).unwrap().is_consumed = false;
        (id, answer)
    }

    pub(crate) fn release(&mut self, id: SnapshotId) {
        self.saved.get_mut(&id).unwrap().holders -= 1;
        self.tell(Event::Released(id));
    }

    pub(crate) fn discard(&mut self, key: u64) {
        let id = self.planner.find(key).expect("the test discards what is there");
        self.saved.get_mut(&id).unwrap().is_live = false;
        self.tell(Event::Discarded(id));
    }

    /// Ends pending move `index`, successfully or with a fault.
    pub(crate) fn end_move(&mut self, index: usize, fault: Option<Fault>) {
        let PendingMove { id, from, to } = self.pending.swap_remove(index);
        let saved = self.saved.get_mut(&id).unwrap();
        saved.moves -= 1;
        let extents = saved.arriving.remove(&to.layer).expect("it was arriving");
        let (from, to) = (from.layer, to.layer);
        match fault {
            None => {
                saved.complete.insert(to, extents);
                self.tell(Event::Moved { id, from, to });
            }
            Some(fault) => {
                if matches!(fault, Fault::SourceUnreadable | Fault::SourceDamaged) {
                    saved.doubtful.insert(from);
                }
                self.tell(Event::Failed { id, from, to, fault });
            }
        }
    }

    pub(crate) fn live_keys(&self) -> Vec<u64> {
        self.saved.values().filter(|saved| saved.is_live).map(|saved| saved.key).collect()
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.saved.values().filter(|saved| saved.is_live).map(|saved| saved.bytes).sum()
    }

    pub(crate) fn size(&self, key: u64) -> u64 {
        self.saved.values().find(|saved| saved.is_live && saved.key == key).map_or(0, |saved| saved.bytes)
    }

    pub(crate) fn is_in_front(&self, key: u64) -> bool {
        self.saved.values().any(|saved| saved.is_live && saved.key == key && saved.complete.contains_key(&0))
    }

    /// The largest unused piece of the front.
    pub(crate) fn largest_hole(&self) -> u64 {
        let mut used: Vec<_> = self.occupied(0).into_iter().map(|(range, _)| range).collect();
        used.sort_by_key(|range| range.start);
        let mut largest = 0;
        let mut end = 0;
        for range in used {
            largest = largest.max(range.start.saturating_sub(end));
            end = end.max(range.end);
        }
        largest.max(self.capacities[0] - end)
    }

    fn wait(&mut self, id: SnapshotId, pick: &mut dyn FnMut(usize) -> usize) -> Answer {
        loop {
            if let Some(answer) = self.answers.remove(&id) {
                return answer;
            }
            if !self.pending.is_empty() {
                let index = pick(self.pending.len());
                self.end_move(index, None);
            } else {
                let timeout = self.planner.poll_timeout();
                let Timestamp(at) = timeout.expect("no answer, no move and no timeout: a deadlock");
                self.now = self.now.max(at);
                self.tell(Event::Tick);
            }
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.now += 1;
        self.planner.handle(Timestamp(self.now), event);
        while let Some(action) = self.planner.poll() {
            self.carry_out(action);
        }
        for layer in 0..self.capacities.len() {
            let (used, most) = self.planner.used_bytes(layer);
            assert!(used <= most && most <= self.capacities[layer], "layer {layer} over its limit");
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Lend { id, at } => {
                let range = at..at + self.saved[&id].bytes;
                self.occupy(0, &Extents::from_elem(range.clone(), 1));
                let saved = self.saved.get_mut(&id).unwrap();
                saved.complete.insert(0, Extents::from_elem(range, 1));
                saved.is_lent = true;
                self.answers.insert(id, Answer::Lent);
            }
            Action::Move { id, from, to, purpose } => {
                self.moves += 1;
                assert!(self.moves < 10_000, "moves without end");
                assert_eq!(self.saved[&id].complete.get(&from.layer), Some(&from.extents), "{id:?} is not there");
                assert_eq!(purpose == Purpose::Drain, to.layer > from.layer);
                let bytes: u64 = to.extents.iter().map(|piece| piece.end - piece.start).sum();
                assert_eq!(bytes, self.saved[&id].bytes);
                assert!(to.layer > 0 || to.extents.len() == 1, "the front holds snapshots in one piece");
                self.occupy(to.layer, &to.extents);
                let saved = self.saved.get_mut(&id).unwrap();
                saved.moves += 1;
                assert!(saved.arriving.insert(to.layer, to.extents.clone()).is_none());
                self.pending.push(PendingMove { id, from, to });
            }
            Action::LeaveOut { id, layer } => panic!("{id:?} is left out on {layer}, which keeps nothing"),
            Action::Evict { id, layer } => {
                let saved = self.saved.get_mut(&id).unwrap();
                assert!(saved.complete.remove(&layer).is_some(), "{id:?} is not on {layer}");
                assert!(!saved.is_live || !saved.complete.is_empty(), "{id:?} is lost");
                assert!(layer > 0 || saved.holders == 0, "{id:?} is in the program's hands");
            }
            Action::Slide { id, from, to } => {
                let saved = self.saved.get_mut(&id).unwrap();
                assert!(to < from && saved.complete[&0][0].start == from);
                assert!(saved.holders == 0 && saved.moves == 0, "{id:?} is in use");
                saved.complete.remove(&0).expect("it is in the front");
                let target = Extents::from_elem(to..to + saved.bytes, 1);
                self.occupy(0, &target);
                self.saved.get_mut(&id).unwrap().complete.insert(0, target);
            }
            Action::Hand { id, .. } => {
                let saved = self.saved.get_mut(&id).unwrap();
                assert!(saved.complete.contains_key(&0), "{id:?} is not in the front");
                saved.holders += 1;
                saved.is_live &= !saved.is_consumed;
                self.answers.insert(id, Answer::Handed);
            }
            Action::Refuse { id, why, .. } => {
                self.answers.insert(id, Answer::Refused(why));
            }
            Action::Touch { layer, range } => {
                assert!(range.end <= self.capacities[layer]);
                self.planner.handle(Timestamp(self.now), Event::Touched { layer, is_done: true });
            }
            Action::Release { layer, range } => {
                assert!(self.occupied(layer).iter().all(|(used, _)| used.end <= range.start), "{range:?} is in use");
            }
            Action::Pin { layer } => {
                self.planner.handle(Timestamp(self.now), Event::Pinned { layer, is_done: true });
            }
        }
    }

    /// All ranges on a layer that are still needed.
    fn occupied(&self, layer: LayerIndex) -> Vec<(Range<u64>, SnapshotId)> {
        let mut all = Vec::new();
        for (&id, saved) in &self.saved {
            let is_needed = saved.is_live || saved.is_lent || (layer == 0 && saved.holders > 0);
            // A copy that could not be read may be given up if there is another.
            let is_doubtful = saved.doubtful.contains(&layer) && saved.complete.len() > 1;
            if let Some(extents) = saved.complete.get(&layer).filter(|_| is_needed && !is_doubtful) {
                all.extend(extents.iter().map(|piece| (piece.clone(), id)));
            }
        }
        for PendingMove { id, from, to } in &self.pending {
            let from = from.extents.iter().filter(|_| from.layer == layer);
            let to = to.extents.iter().filter(|_| to.layer == layer);
            all.extend(from.chain(to).map(|piece| (piece.clone(), *id)));
        }
        all
    }

    fn occupy(&self, layer: LayerIndex, extents: &Extents) {
        for piece in extents {
            assert!(piece.start < piece.end && piece.end <= self.capacities[layer], "{piece:?} outside layer {layer}");
            for (other, id) in self.occupied(layer) {
                assert!(
                    piece.end <= other.start || other.end <= piece.start,
                    "{piece:?} on layer {layer} overlaps {other:?} of {id:?}"
                );
            }
        }
        let starts: BTreeSet<_> = extents.iter().map(|piece| piece.start).collect();
        assert_eq!(starts.len(), extents.len());
    }
}
