//! What to do next: serve who waits, bring up what will be read, let sink what will not be read
//! soon.

use std::collections::BTreeMap;

use crate::{
    Action, Event, Extents, LayerIndex, Purpose, Refusal, Site, SnapshotId, Timestamp,
    memory::Memory,
    order::Position,
    planner::{LAYERS_MAX, Layer, Planner},
    snapshot::Phase,
};

/// At most so many moves are under way between two layers, however small they are.
const LANE_MOVES_MAX: u64 = 256;

/// Two may always be, so that one can be prepared while the other runs.
const LANE_MOVES_MIN: u64 = 2;

/// Why a layer should get rid of snapshots, beyond having many that are nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    None,
    /// Something that is due so soon would like to come up.
    From(u64),
    /// Somebody waits for room.
    Full,
}

/// What has become of the wish to move a snapshot down.
enum Sunk {
    /// It is on its way.
    Yes,
    /// Enough is on its way already.
    Later,
    /// It fits nowhere.
    NoRoom,
}

/// What memory that was used before has to offer to a save.
enum Reuse {
    /// New memory is as good.
    No,
    /// A place.
    Place(Extents),
    /// A place, before new memory could be filled.
    Wait,
}

impl Planner {
    /// Brings the actions up to date with the state. Called after every event.
    pub(crate) fn decide(&mut self) {
        let mut is_patient = true;
        loop {
            let is_starved = self.serve_wants() | self.serve_rooms(is_patient);
            let mut pressure = [Pressure::None; LAYERS_MAX];
            if is_starved {
                pressure[0] = Pressure::Full;
            } else {
                self.prefetch(&mut pressure);
            }
            match self.settings.persists {
                true => self.persist(),
                false => self.drain(&mut pressure),
            }
            self.touch();
            if is_starved && self.rooms.len() + self.wants.len() > 1 && self.give_way() {
                continue;
            }
            if !is_starved || !self.is_quiet() {
                self.patience_until = None;
                break;
            }
            // Waiting for something better has come to an end.
            if std::mem::take(&mut is_patient) {
                continue;
            }
            // Somebody waits and nothing is under way: either this makes a difference, or nothing
            // will.
            if !self.compact() && !self.refuse() {
                break;
            }
        }
    }

    /// Hands over what is in the front and fetches what is not. Says whether one finds no room to
    /// come to.
    fn serve_wants(&mut self) -> bool {
        let mut is_starved = false;
        for _ in 0..self.wants.len() {
            let Some((id, consume)) = self.wants.pop_front() else { break };
            let snapshot = &self.snapshots[&id];
            match (snapshot.copy(0), snapshot.lost) {
                (Some(copy), _) if !copy.is_arriving => {
                    self.hand(id, consume);
                    continue;
                }
                (Some(_), _) => {}
                (None, Some(why)) => {
                    self.refuse_want(id, consume, why);
                    continue;
                }
                (None, None) => is_starved |= !self.fetch(id),
            }
            self.wants.push_back((id, consume));
        }
        is_starved
    }

    fn hand(&mut self, id: SnapshotId, consume: bool) {
        self.held += 1;
        self.change(id, |snapshot| {
            snapshot.wants -= 1;
            snapshot.holders += 1;
        });
        self.actions.push_back(Action::Hand(id));
        if consume {
            self.consume(id);
            self.reap(id);
        }
    }

    pub(crate) fn refuse_want(&mut self, id: SnapshotId, consume: bool, why: Refusal) {
        self.change(id, |snapshot| {
            snapshot.wants -= 1;
            snapshot.is_claimed &= !consume;
        });
        self.actions.push_back(Action::Refuse { id, why });
    }

    fn fetch(&mut self, id: SnapshotId) -> bool {
        let snapshot = &self.snapshots[&id];
        let Some(from) = self.source(snapshot, 0).map(|copy| copy.layer) else { return true };
        // What is on its way up already would only be read twice.
        if snapshot.copies.iter().any(|copy| copy.is_arriving && copy.layer < from) {
            return true;
        }
        let bytes = snapshot.bytes;
        let extents = self.used_room(bytes, |_, _| true).or_else(|| self.room(0, bytes, |_, _| true));
        let Some(extents) = extents else { return false };
        self.begin_move(id, from, Site { layer: 0, extents }, Purpose::Fetch);
        true
    }

    /// Lends slots to saves, in the order in which they came. Says whether one has to wait, which
    /// it also does if it is `patient` and will be better off.
    fn serve_rooms(&mut self, is_patient: bool) -> bool {
        while let Some(&id) = self.rooms.front() {
            let bytes = self.snapshots[&id].bytes;
            if !self.may_stay(bytes, 0) {
                return true;
            }
            let admits = |planner: &Self, victim| planner.may_stay(bytes, planner.snapshots[&victim].bytes);
            let extents = match self.used_before(bytes, is_patient, admits) {
                Reuse::Place(extents) => Some(extents),
                Reuse::Wait => None,
                Reuse::No => self.room(0, bytes, admits),
            };
            let Some(extents) = extents else { return true };
            self.rooms.pop_front();
            self.held += 1;
            let at = extents[0].start;
            let begun = self.begin_fill(id, &extents);
            self.add_copy(id, 0, extents, false, begun);
            self.actions.push_back(Action::Lend { id, at });
        }
        false
    }

    /// Where new memory would be slower than memory that was used before: a place in that, by
    /// eviction, or the advice to wait until the layers below have taken something over.
    fn used_before(&mut self, bytes: u64, is_patient: bool, admits: impl Fn(&Self, SnapshotId) -> bool) -> Reuse {
        let Some(place) = self.layers[0].space.place(bytes) else { return Reuse::No };
        let untouched = self.layers[0].memory.as_ref().map_or(0, |memory| memory.untouched_bytes(&place));
        if untouched == 0 || !self.is_growth_slow() {
            return Reuse::No;
        }
        let (Some(new_ns), Some(old_ns), Some(sink_ns)) =
            (self.fill_ns(bytes, untouched), self.fill_ns(bytes, 0), self.sink_ns(bytes))
        else {
            return Reuse::No;
        };
        let is_better = (old_ns + sink_ns) * 2.0 < new_ns;
        if !is_better {
            return Reuse::No;
        }
        match self.evict_in_a_row(bytes, admits) {
            Some(extents) => Reuse::Place(extents),
            None if is_patient => Reuse::Wait,
            None => Reuse::No,
        }
    }

    /// Room in the front for what comes back up, in memory that was used before. The saves asked
    /// the system for that; for more memory somebody has to ask first (`wants_growth`).
    fn used_room(&mut self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> Option<Extents> {
        let Layer { space, memory, is_writable, .. } = &self.layers[0];
        let is_untouched = |place| memory.as_ref().is_some_and(|memory| memory.untouched_bytes(&place) > 0);
        match *is_writable && space.place(bytes).is_some_and(is_untouched) {
            true => self.evict_in_a_row(bytes, may_evict),
            false => self.room(0, bytes, may_evict),
        }
    }

    /// Evicts neighbours in the front to make room in one piece.
    fn evict_in_a_row(&mut self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> Option<Extents> {
        let victims = self.victims_in_a_row(bytes, may_evict)?;
        victims.into_iter().for_each(|victim| self.evict(victim, 0));
        self.layers[0].space.take_whole(bytes).map(|range| Extents::from_elem(range, 1))
    }

    /// Whether a read may bring something up after `event`, if need be to memory that was never
    /// touched.
    pub fn wants_growth(&self, event: &Event) -> bool {
        !self.below.is_empty() && (matches!(event, Event::Wanted { .. }) || !self.wants.is_empty())
    }

    /// Whether `bytes` more may lie in the front with no copy elsewhere, so that what lies below
    /// can still be brought up, with one of size `evicted` among it: into room that is kept for it,
    /// or into room that draining makes.
    fn may_stay(&self, bytes: u64, evicted: u64) -> bool {
        let capacity = self.layers[0].space.capacity();
        let largest_below = self.below.last_key_value().map_or(0, |(&bytes, _)| bytes).max(evicted);
        if self.stuck_bytes + bytes + largest_below <= capacity {
            return true;
        }
        // With several layers below, room that is kept in the front is worth more than room on one
        // of them.
        let is_only_way = self.layers.len() == 2 || bytes + largest_below > capacity;
        is_only_way && self.can_absorb(self.stuck_bytes + bytes, None)
    }

    /// Whether one layer below could take `bytes` from the front, also after it has taken `other`
    /// as well.
    fn can_absorb(&self, bytes: u64, other: Option<(LayerIndex, u64)>) -> bool {
        let room = |(index, layer): (LayerIndex, &Layer)| {
            let taken = other.filter(|&(to, _)| to == index).map_or(0, |(_, bytes)| bytes);
            layer.is_writable && layer.free_at_most() >= bytes + taken
        };
        self.layers.iter().enumerate().skip(1).any(room)
    }

    /// Whether a move between deeper layers leaves room for what may have to leave the front.
    fn leaves_a_way_out(&self, from: LayerIndex, to: LayerIndex, bytes: u64) -> bool {
        let largest_below = self.below.last_key_value().map_or(0, |(&bytes, _)| bytes);
        let has_kept_room = self.stuck_bytes + largest_below <= self.layers[0].space.capacity();
        from == 0 || has_kept_room || self.can_absorb(self.stuck_bytes, Some((to, bytes)))
    }

    /// A place on a layer, made by evicting what is read last as long as `may_evict` agrees.
    /// Without success nothing is evicted.
    fn room(
        &mut self,
        layer: LayerIndex,
        bytes: u64,
        may_evict: impl Fn(&Self, SnapshotId) -> bool,
    ) -> Option<Extents> {
        if !self.layers[layer].is_writable {
            return None;
        }
        let is_there = match layer {
            0 => self.layers[0].space.fits(bytes),
            _ => self.layers[layer].free() >= bytes,
        };
        if !is_there && self.layers[layer].keeps() {
            return None;
        }
        // What grows by itself is filled before anything leaves it.
        if !is_there && self.layers[layer].is_growing() {
            return None;
        }
        if !is_there {
            let victims = match layer {
                0 => self.victims_in_a_row(bytes, may_evict),
                _ => self.victims(layer, bytes, may_evict),
            };
            for victim in victims? {
                self.evict(victim, layer);
            }
        }
        let space = &mut self.layers[layer].space;
        match layer {
            0 => space.take_whole(bytes).map(|range| Extents::from_elem(range, 1)),
            _ => space.take_pieces(bytes),
        }
    }

    /// Snapshots that leave `bytes` free, wherever, when they are evicted.
    fn victims(
        &self,
        layer: LayerIndex,
        bytes: u64,
        may_evict: impl Fn(&Self, SnapshotId) -> bool,
    ) -> Option<Vec<SnapshotId>> {
        let Layer { space, clean, clean_bytes, .. } = &self.layers[layer];
        let mut free = space.free();
        if free + clean_bytes < bytes {
            return None;
        }
        let mut victims = Vec::new();
        for (_, id) in self.positions.farthest_first(clean).take_while(|&(_, id)| may_evict(self, id)) {
            if free >= bytes {
                break;
            }
            victims.push(id);
            free += self.snapshots[&id].bytes;
        }
        (free >= bytes).then_some(victims)
    }

    /// Snapshots that lie side by side in the front and leave a hole of `bytes` when they are
    /// evicted.
    fn victims_in_a_row(&self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> Option<Vec<SnapshotId>> {
        let Layer { space, clean, clean_bytes, .. } = &self.layers[0];
        if space.free() + clean_bytes < bytes {
            return None;
        }
        // The holes that there would be, by start, with their ends and the snapshots in them.
        let mut holes = BTreeMap::<u64, (u64, Vec<SnapshotId>)>::new();
        for (_, id) in self.positions.farthest_first(clean).take_while(|&(_, id)| may_evict(self, id)) {
            let range = &self.snapshots[&id].copy(0)?.extents[0];
            let mut hole = space.hole_around(range);
            let mut members = vec![id];
            // Both neighbours have already grown over what is free between them and this one.
            let before = holes.range(..range.start).next_back().map(|(&start, &(end, _))| (start, end));
            if let Some((start, _)) = before.filter(|&(_, end)| end == range.start) {
                members.extend(holes.remove(&start)?.1);
                hole.start = start;
            }
            if let Some((end, others)) = holes.remove(&range.end) {
                members.extend(others);
                hole.end = end;
            }
            if hole.end - hole.start >= bytes {
                return Some(members);
            }
            holes.insert(hole.start, (hole.end, members));
        }
        None
    }

    pub(crate) fn evict(&mut self, id: SnapshotId, layer: LayerIndex) {
        self.drop_copy(id, layer);
        self.actions.push_back(Action::Evict { id, layer });
    }

    /// Brings up, to every layer that has room, what is read soonest and lies deeper.
    fn prefetch(&mut self, pressure: &mut [Pressure; LAYERS_MAX]) {
        for (to, pressure) in pressure[..self.layers.len() - 1].iter_mut().enumerate() {
            // What comes to a layer that keeps bytes stays there: only its owner sends it there.
            while *pressure == Pressure::None && !self.layers[to].keeps() {
                let Some((due, id, from)) = self.soonest_below(to) else { break };
                if !self.is_worth_staging(from, to) || !self.has_lane(from, to, self.snapshots[&id].bytes) {
                    break;
                }
                let bytes = self.snapshots[&id].bytes;
                let is_later = |planner: &Self, victim: SnapshotId| {
                    planner.positions.due(planner.snapshots[&victim].position) > due
                };
                let extents = if to == 0 { self.used_room(bytes, is_later) } else { self.room(to, bytes, is_later) };
                match extents {
                    Some(extents) => self.begin_move(id, from, Site { layer: to, extents }, Purpose::Prefetch),
                    None => *pressure = Pressure::From(due),
                }
            }
        }
    }

    /// The announced snapshot that is read soonest of those with no copy on `to` or above, and
    /// where it lies.
    fn soonest_below(&self, to: LayerIndex) -> Option<(u64, SnapshotId, LayerIndex)> {
        let (due, position, id) = self.layers[to + 1..]
            .iter()
            .filter_map(|layer| self.positions.nearest(&layer.top))
            .map(|(position, id)| (self.positions.due(position), position, id))
            .min()?;
        let snapshot = &self.snapshots[&id];
        let source = self.source(snapshot, to)?;
        // What is on its way to a layer in between is taken from there when it has arrived.
        let is_arriving = snapshot.copies.iter().any(|copy| copy.is_arriving && copy.layer < source.layer);
        (self.positions.is_announced(position) && !is_arriving).then_some((due, id, source.layer))
    }

    /// Sends on what has to reach layers that it has not reached, the oldest first.
    fn persist(&mut self) {
        for to in 1..self.layers.len() {
            loop {
                let oldest = self.positions.farthest_first(&self.layers[to].missing).next();
                let Some((_, id)) = oldest else { break };
                let snapshot = &self.snapshots[&id];
                let complete = snapshot.copies.iter().filter(|copy| !copy.is_arriving);
                let Some(from) = complete.map(|copy| copy.layer).min() else { break };
                let bytes = snapshot.bytes;
                if !self.has_lane(from, to, bytes) {
                    break;
                }
                match self.room(to, bytes, |_, _| true) {
                    Some(extents) => self.begin_move(id, from, Site { layer: to, extents }, Purpose::Drain),
                    None if self.layers[to].keeps() => self.leave_out(id, to),
                    None => break,
                }
            }
        }
    }

    /// Spares a layer a snapshot that does not fit. Nothing that the plan does makes room there,
    /// and it does not know when somebody else will.
    fn leave_out(&mut self, id: SnapshotId, layer: LayerIndex) {
        self.change(id, |snapshot| snapshot.persists_on &= !(1 << layer));
        self.actions.push_back(Action::LeaveOut { id, layer });
    }

    /// Lets sink, from every layer but the last, what is read last and lies nowhere deeper. What
    /// fits nowhere stays; if somebody waits, something smaller goes in its stead.
    fn drain(&mut self, pressure: &mut [Pressure; LAYERS_MAX]) {
        for from in 0..self.layers.len() - 1 {
            let mut too_large = u64::MAX;
            while let Some((position, id)) = self.farthest_dirty(from, too_large) {
                let is_many =
                    self.positions.is_filling() && self.layers[from].dirty_bytes > self.drain_above_bytes(from);
                let is_wanted = match pressure[from] {
                    Pressure::None => is_many,
                    Pressure::From(due) => is_many || self.positions.due(position) > due,
                    Pressure::Full => true,
                };
                if !is_wanted {
                    break;
                }
                match self.sink(id, from, pressure) {
                    Sunk::Yes => {}
                    Sunk::NoRoom if pressure[from] == Pressure::Full => too_large = self.snapshots[&id].bytes,
                    Sunk::NoRoom | Sunk::Later => break,
                }
            }
        }
    }

    /// How many bytes may be on this layer and nowhere deeper before they begin to sink. Fewer if
    /// new memory is slow: then what is in use must be ready to be used again.
    fn drain_above_bytes(&self, layer: LayerIndex) -> u64 {
        let place = &self.layers[layer];
        match &place.memory {
            Some(memory) if layer == 0 && self.is_growth_slow() => {
                place.drain_above_bytes.min(memory.state().touched_bytes / 2)
            }
            _ => place.drain_above_bytes,
        }
    }

    fn farthest_dirty(&self, layer: LayerIndex, too_large: u64) -> Option<(Position, SnapshotId)> {
        let mut dirty = self.positions.farthest_first(&self.layers[layer].dirty);
        dirty.find(|(_, id)| self.snapshots[id].bytes < too_large)
    }

    /// Moves a snapshot down to the best layer with room.
    fn sink(&mut self, id: SnapshotId, from: LayerIndex, pressure: &mut [Pressure; LAYERS_MAX]) -> Sunk {
        let bytes = self.snapshots[&id].bytes;
        for to in self.targets(from, bytes, pressure[from] == Pressure::Full) {
            if !self.has_lane(from, to, bytes) {
                return Sunk::Later;
            }
            if !self.leaves_a_way_out(from, to, bytes) {
                continue;
            }
            if let Some(extents) = self.room(to, bytes, |_, _| true) {
                self.begin_move(id, from, Site { layer: to, extents }, Purpose::Drain);
                self.chose(from, to);
                return Sunk::Yes;
            }
            if !self.layers[to].is_growing() {
                pressure[to] = Pressure::Full;
            }
        }
        Sunk::NoRoom
    }

    /// Whether one more move of `bytes` may be under way from one layer to another.
    fn has_lane(&self, from: LayerIndex, to: LayerIndex, bytes: u64) -> bool {
        let (moves, under_way) = self.lanes.get(&(from, to)).map_or((0, 0), |lane| (lane.moves, lane.bytes));
        let is_small = moves < LANE_MOVES_MAX && under_way + bytes <= self.settings.lane_bytes_max;
        moves < LANE_MOVES_MIN || is_small
    }

    /// Shifts snapshots in the front together until somebody who waits finds a place. Says whether
    /// that worked.
    fn compact(&mut self) -> bool {
        if !self.layers[0].is_writable {
            return false;
        }
        let want = self.wants.iter().map(|&(id, _)| id).find(|id| self.snapshots[id].copy(0).is_none());
        let room = self.rooms.front().copied().filter(|id| self.may_stay(self.snapshots[id].bytes, 0));
        let Some(bytes) = want.or(room).map(|id| self.snapshots[&id].bytes) else { return false };
        let is_save = want.is_none();
        let admits = |planner: &Self, victim| !is_save || planner.may_stay(bytes, planner.snapshots[&victim].bytes);
        let Some(victims) = self.victims(0, bytes, admits) else { return false };
        for victim in victims {
            self.evict(victim, 0);
        }
        let mut floor = 0;
        for (start, id) in self.front.clone() {
            let snapshot = &self.snapshots[&id];
            let copy = snapshot.copy(0).expect("what is in the front has a copy there");
            let range = copy.extents[0].clone();
            let is_movable = snapshot.holders == 0 && copy.readers == 0 && snapshot.phase == Phase::Live;
            if start > floor && is_movable {
                floor = self.slide(id, range, floor);
            } else {
                floor = range.end;
            }
            if self.layers[0].space.fits(bytes) {
                return true;
            }
        }
        false
    }

    fn slide(&mut self, id: SnapshotId, range: std::ops::Range<u64>, to: u64) -> u64 {
        let from = range.start;
        self.front.remove(&from);
        let target = self.layers[0].space.slide(range, to);
        self.front.insert(to, id);
        let end = target.end;
        self.change(id, |snapshot| {
            if let Some(copy) = snapshot.copy_mut(0) {
                copy.extents = Extents::from_elem(target, 1);
            }
        });
        self.actions.push_back(Action::Slide { id, from, to });
        end
    }

    /// Refuses the first save that gives way to others, if there is one.
    fn give_way(&mut self) -> bool {
        let Some(place) = self.rooms.iter().position(|id| self.snapshots[id].yields) else { return false };
        let id = self.rooms.remove(place).expect("it was just found there");
        self.forget_key(id);
        self.snapshots.remove(&id);
        self.actions.push_back(Action::Refuse { id, why: Refusal::GaveWay });
        true
    }

    /// Ends the wait of somebody for whom nothing can change any more. Says whether it did.
    fn refuse(&mut self) -> bool {
        if self.give_way() {
            return true;
        }
        let waiting = self.wants.len() + self.rooms.len();
        if waiting < self.handles as usize {
            // Somebody else can do something about it, however long that takes.
            self.patience_until = None;
            return false;
        }
        let why = if self.held > 0 { Refusal::Held } else { Refusal::Full };
        // Others may give back what they have of a memory that is shared.
        let is_wanting = self.layers.iter().any(|layer| layer.memory.as_ref().is_some_and(Memory::is_wanting));
        let is_hopeful = why == Refusal::Held || is_wanting;
        if is_hopeful {
            let deadline = Timestamp(self.now.0.saturating_add(self.settings.patience_ns));
            let deadline = *self.patience_until.get_or_insert(deadline);
            if self.now < deadline {
                return false;
            }
        }
        self.patience_until = None;
        if let Some(id) = self.rooms.pop_front() {
            self.forget_key(id);
            self.snapshots.remove(&id);
            self.actions.push_back(Action::Refuse { id, why });
        } else if let Some((id, consume)) = self.wants.pop_front() {
            self.refuse_want(id, consume, why);
        }
        true
    }
}
