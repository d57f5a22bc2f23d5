//! Decides what to do next: serve waiting saves and reads, prefetch what is read soon, drain what
//! is read late.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    Action, Event, Extents, LayerIndex, Purpose, Refusal, Site, SnapshotId, Timestamp,
    memory::Memory,
    order::Position,
    planner::{LAYERS_MAX, Layer, Planner},
    sets::Sets,
    snapshot::{Copy, Phase},
};

/// The largest number of moves between two layers at one time, however small the moves are.
const LANE_MOVES_MAX: u64 = 256;

/// This many moves are always allowed, so that one can be prepared while another runs.
const LANE_MOVES_MIN: u64 = 2;

/// After a search for room that failed, the next one waits for this share of as many events as
/// snapshots were looked at.
const SEARCH_SHARE: u64 = 8;

/// Why a layer should drain, apart from holding more dirty bytes than it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pressure {
    None,
    /// A snapshot that is due at this distance should come up, and finds no room.
    From(u64),
    /// A save, a read or a move waits for room.
    Full,
}

/// The result of an attempt to move a snapshot down.
enum Sunk {
    /// The move has begun.
    Yes,
    /// The lane is busy: try again when a move has ended.
    Later,
    /// No layer below has room.
    NoRoom,
}

/// Whether a save should reuse touched memory instead of untouched memory.
enum Reuse {
    /// No: untouched memory is no slower, or nothing can be reused.
    No,
    /// Reuse this place.
    Place(Extents),
    /// Wait: touched memory becomes free before untouched memory could be filled.
    Wait,
}

impl Planner {
    /// Decides which actions follow from the present state. Called after every event.
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
            // Nothing is moving, so waiting for touched memory would never end: try without it.
            if std::mem::take(&mut is_patient) {
                continue;
            }
            // Something waits and nothing is moving. If sliding the snapshots together does not
            // help, nothing will.
            if !self.compact() && !self.refuse() {
                break;
            }
        }
    }

    /// Hands over the wanted snapshots that are in the front, and fetches the others. Returns
    /// whether one of them found no room in the front.
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
                    self.refuse_want(id, consume, why.into());
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
        self.actions.push_back(Action::Hand { id, consume });
        if consume {
            self.consume(id);
            self.reap(id);
        }
    }

    pub(crate) fn forget_want(&mut self, id: SnapshotId, consume: bool) {
        self.change(id, |snapshot| {
            snapshot.wants -= 1;
            snapshot.is_claimed &= !consume;
        });
    }

    pub(crate) fn refuse_want(&mut self, id: SnapshotId, consume: bool, why: Refusal) {
        self.forget_want(id, consume);
        self.actions.push_back(Action::Refuse { id, consume, why });
    }

    fn fetch(&mut self, id: SnapshotId) -> bool {
        let snapshot = &self.snapshots[&id];
        let Some(from) = self.source(snapshot, 0).map(Copy::layer) else { return true };
        // It is already on its way up: a second move would read it twice.
        if snapshot.copies.iter().any(|copy| copy.is_arriving && copy.layer() < from) {
            return true;
        }
        let bytes = snapshot.bytes;
        let extents = self.used_room(bytes, |_, _| true).or_else(|| self.room(0, bytes, |_, _| true));
        let Some(extents) = extents else { return false };
        self.begin_move(id, from, Site { layer: 0, extents }, Purpose::Fetch);
        true
    }

    /// Lends slots to saves, first come first served. Returns whether a save has to wait. If
    /// `is_patient`, a save also waits when that is faster than writing to untouched memory.
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

    /// If writing to untouched memory is slow, finds touched memory for a save: evicts clean
    /// snapshots, or advises to wait until a drain has made some clean.
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

    /// Room in the front for a snapshot that comes up, in touched memory only. The engine has
    /// checked the free memory of the machine for saves, but checks it for reads only if
    /// `wants_growth`.
    fn used_room(&mut self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> Option<Extents> {
        let Layer { space, memory, is_writable, .. } = &self.layers[0];
        let is_untouched = |place| memory.as_ref().is_some_and(|memory| memory.untouched_bytes(&place) > 0);
        match *is_writable && space.place(bytes).is_some_and(is_untouched) {
            true => self.evict_in_a_row(bytes, may_evict),
            false => self.room(0, bytes, may_evict),
        }
    }

    /// Makes room in one piece by evicting snapshots that lie side by side in the front.
    fn evict_in_a_row(&mut self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> Option<Extents> {
        let victims = self.victims_in_a_row(bytes, may_evict)?;
        victims.into_iter().for_each(|victim| self.evict(victim, 0));
        self.layers[0].space.take_whole(bytes).map(|range| Extents::from_elem(range, 1))
    }

    /// Whether handling `event` can begin a fetch, which may take untouched memory in the front.
    pub fn wants_growth(&self, event: &Event) -> bool {
        !self.below.is_empty() && (matches!(event, Event::Wanted { .. }) || !self.wants.is_empty())
    }

    /// Whether there is something to do with room that becomes free in the front: somebody waits
    /// for it, something will be prefetched, or it is shared with other processes.
    pub fn can_use_room(&self) -> bool {
        let is_awaited = !self.rooms.is_empty() || !self.wants.is_empty();
        let is_shared = self.layers[0].memory.as_ref().is_some_and(|memory| memory.settings().is_shared);
        is_awaited || is_shared || (1..self.layers.len()).any(|layer| self.soonest_below(layer - 1).is_some())
    }

    /// Whether the front may hold `bytes` more that have no copy elsewhere. The largest snapshot
    /// below must still be able to come up, also when one of size `evicted` joins those below:
    /// either its room in the front stays free, or a drain can make that room.
    fn may_stay(&self, bytes: u64, evicted: u64) -> bool {
        let capacity = self.layers[0].space.capacity();
        let largest_below = self.below.last_key_value().map_or(0, |(&bytes, _)| bytes).max(evicted);
        if self.stuck_bytes + bytes + largest_below <= capacity {
            return true;
        }
        // With several layers below, keep the room free in the front rather than rely on room on
        // one of them.
        let is_only_way = self.layers.len() == 2 || bytes + largest_below > capacity;
        is_only_way && self.can_absorb(self.stuck_bytes + bytes, None)
    }

    /// Whether a single layer below has room for `bytes` from the front, after the move `other`
    /// (target layer, bytes) has taken its share.
    fn can_absorb(&self, bytes: u64, other: Option<(LayerIndex, u64)>) -> bool {
        let room = |(index, layer): (LayerIndex, &Layer)| {
            let taken = other.filter(|&(to, _)| to == index).map_or(0, |(_, bytes)| bytes);
            layer.is_writable && layer.free_at_most() >= bytes + taken
        };
        self.layers.iter().enumerate().skip(1).any(room)
    }

    /// Whether a move between deeper layers leaves enough room there for the front to drain.
    fn leaves_a_way_out(&self, from: LayerIndex, to: LayerIndex, bytes: u64) -> bool {
        let largest_below = self.below.last_key_value().map_or(0, |(&bytes, _)| bytes);
        let has_kept_room = self.stuck_bytes + largest_below <= self.layers[0].space.capacity();
        from == 0 || has_kept_room || self.can_absorb(self.stuck_bytes, Some((to, bytes)))
    }

    /// Finds a place on a layer. If necessary, evicts snapshots there, those that are read last
    /// first, as far as `may_evict` allows. Evicts nothing if that would not be enough.
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
        // Fill a growing layer before evicting anything from it.
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

    /// The snapshots to evict so that `bytes` are free, in any number of pieces.
    fn victims(
        &self,
        layer: LayerIndex,
        bytes: u64,
        may_evict: impl Fn(&Self, SnapshotId) -> bool,
    ) -> Option<Vec<SnapshotId>> {
        let Layer { space, sets: Sets { clean, clean_bytes, .. }, .. } = &self.layers[layer];
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

    /// Snapshots that lie side by side in the front, and whose eviction leaves a hole of `bytes`.
    ///
    /// If small snapshots are scattered, a search looks at many of them and still fails. So the
    /// next search waits for as many events as a share of that number, unless nothing moves.
    fn victims_in_a_row(
        &mut self,
        bytes: u64,
        may_evict: impl Fn(&Self, SnapshotId) -> bool,
    ) -> Option<Vec<SnapshotId>> {
        let Layer { space, sets, .. } = &self.layers[0];
        if space.free() + sets.clean_bytes < bytes || (self.search_pause > 0 && !self.is_quiet()) {
            return None;
        }
        let (hole, looks) = self.hole_in_a_row(bytes, may_evict);
        #[cfg(test)]
        tests::LOOKS.set(tests::LOOKS.get() + looks);
        self.search_pause = if hole.is_some() { 0 } else { looks / SEARCH_SHARE };
        // All snapshots in it can be evicted.
        hole.map(|hole| self.front.range(hole).map(|(_, id)| *id).collect())
    }

    /// A hole of at least `bytes` that evictions would leave, those that are read last first, and
    /// how many snapshots were looked at.
    fn hole_in_a_row(&self, bytes: u64, may_evict: impl Fn(&Self, SnapshotId) -> bool) -> (Option<Range<u64>>, u64) {
        let Layer { space, sets, .. } = &self.layers[0];
        let mut holes = BTreeMap::<u64, u64>::new();
        let mut looks = 0;
        for (_, id) in self.positions.farthest_first(&sets.clean).take_while(|&(_, id)| may_evict(self, id)) {
            looks += 1;
            let range = self.snapshots[&id].range_in_front().expect("what is clean in the front has a copy there");
            let mut hole = space.hole_around(&range);
            // Holes next to this one already include the free bytes in between.
            let before = holes.range(..range.start).next_back().map(|(&start, &end)| (start, end));
            if let Some((start, _)) = before.filter(|&(_, end)| end == range.start) {
                holes.remove(&start);
                hole.start = start;
            }
            if let Some(end) = holes.remove(&range.end) {
                hole.end = end;
            }
            if hole.end - hole.start >= bytes {
                return (Some(hole), looks);
            }
            holes.insert(hole.start, hole.end);
        }
        (None, looks)
    }

    pub(crate) fn evict(&mut self, id: SnapshotId, layer: LayerIndex) {
        self.drop_copy(id, layer);
        self.actions.push_back(Action::Evict { id, layer });
    }

    /// For every layer with room, prefetches the snapshots that are read soonest and lie deeper.
    fn prefetch(&mut self, pressure: &mut [Pressure; LAYERS_MAX]) {
        for (to, pressure) in pressure[..self.layers.len() - 1].iter_mut().enumerate() {
            // On a layer that keeps bytes nothing can be evicted, so nothing is prefetched to it.
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

    /// Of the announced snapshots with no copy on `to` or above, the one that is read soonest, and
    /// the layer to read it from.
    fn soonest_below(&self, to: LayerIndex) -> Option<(u64, SnapshotId, LayerIndex)> {
        let (due, position, id) = self.layers[to + 1..]
            .iter()
            .filter_map(|layer| self.positions.nearest(&layer.sets.top))
            .map(|(position, id)| (self.positions.due(position), position, id))
            .min()?;
        let snapshot = &self.snapshots[&id];
        let source = self.source(snapshot, to)?;
        // If it is on its way to a layer in between, read it from there once it has arrived.
        let is_arriving = snapshot.copies.iter().any(|copy| copy.is_arriving && copy.layer() < source.layer());
        (self.positions.is_announced(position) && !is_arriving).then_some((due, id, source.layer()))
    }

    /// Starts moves of snapshots to the layers that they have to reach, oldest first.
    fn persist(&mut self) {
        for to in 1..self.layers.len() {
            loop {
                let oldest = self.positions.farthest_first(&self.layers[to].sets.missing).next();
                let Some((_, id)) = oldest else { break };
                let snapshot = &self.snapshots[&id];
                let complete = snapshot.copies.iter().filter(|copy| !copy.is_arriving);
                let Some(from) = complete.map(Copy::layer).min() else { break };
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

    /// Gives up on a snapshot that does not fit on a layer. The plan cannot make room there, and
    /// does not know when the owner of the files will.
    fn leave_out(&mut self, id: SnapshotId, layer: LayerIndex) {
        self.change(id, |snapshot| snapshot.persists_on &= !(1 << layer));
        self.actions.push_back(Action::LeaveOut { id, layer });
    }

    /// Drains every layer but the last: dirty snapshots sink, those that are read last first. If
    /// one fits nowhere, it stays; if something waits for the room, a smaller one sinks instead.
    fn drain(&mut self, pressure: &mut [Pressure; LAYERS_MAX]) {
        for from in 0..self.layers.len() - 1 {
            let mut too_large = u64::MAX;
            while let Some((position, id)) = self.farthest_dirty(from, too_large) {
                let is_many =
                    self.positions.is_filling() && self.layers[from].sets.dirty_bytes > self.drain_above_bytes(from);
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

    /// How many dirty bytes a layer may hold before it drains. Fewer if untouched memory is slow:
    /// then touched memory must become free early, to be reused.
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
        let mut dirty = self.positions.farthest_first(&self.layers[layer].sets.dirty);
        dirty.find(|(_, id)| self.snapshots[id].bytes < too_large)
    }

    /// Moves a snapshot down to the preferred layer that has room.
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

    /// Whether the lane can take one more move of `bytes`.
    fn has_lane(&self, from: LayerIndex, to: LayerIndex, bytes: u64) -> bool {
        let (moves, under_way) = self.lanes.get(&(from, to)).map_or((0, 0), |lane| (lane.moves, lane.bytes));
        let is_small = moves < LANE_MOVES_MAX && under_way + bytes <= self.settings.lane_bytes_max;
        moves < LANE_MOVES_MIN || is_small
    }

    /// Slides snapshots in the front together until the save or read that waits fits. Returns
    /// whether it does.
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
        let front: Vec<_> = self.front.iter().map(|(start, id)| (*start, *id)).collect();
        for (start, id) in front {
            let snapshot = &self.snapshots[&id];
            let copy = snapshot.copy(0).expect("what is in the front has a copy there");
            let range = start..start + snapshot.bytes;
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

    fn slide(&mut self, id: SnapshotId, range: Range<u64>, to: u64) -> u64 {
        let from = range.start;
        self.front.remove(&from);
        let target = self.layers[0].space.slide(range, to);
        self.front.insert(to, id);
        let end = target.end;
        self.change(id, |snapshot| {
            if let Some(copy) = snapshot.copy_mut(0) {
                copy.start = target.start;
            }
        });
        self.actions.push_back(Action::Slide { id, from, to });
        end
    }

    /// Refuses the first waiting save that yields to others, if there is one.
    fn give_way(&mut self) -> bool {
        let Some(place) = self.rooms.iter().position(|id| self.snapshots[id].yields()) else { return false };
        let id = self.rooms.remove(place).expect("it was just found there");
        self.forget_key(id);
        self.snapshots.remove(&id);
        self.actions.push_back(Action::Refuse { id, consume: false, why: Refusal::GaveWay });
        true
    }

    /// Refuses a save or read for which nothing can change any more. Returns whether it refused
    /// one.
    fn refuse(&mut self) -> bool {
        if self.give_way() {
            return true;
        }
        let waiting = self.wants.len() + self.rooms.len();
        if waiting < self.handles as usize {
            // A handle that does not wait may still make room, at any time.
            self.patience_until = None;
            return false;
        }
        let why = if self.held > 0 { Refusal::Held } else { Refusal::Full };
        // Another process may give back shared memory.
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
            self.actions.push_back(Action::Refuse { id, consume: false, why });
        } else if let Some((id, consume)) = self.wants.pop_front() {
            self.refuse_want(id, consume, why);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{LayerSettings, Order, Settings};

    thread_local! {
        /// How many snapshots searches for a row have looked at.
        pub(super) static LOOKS: Cell<u64> = const { Cell::new(0) };
    }

    const SMALL: u64 = 4096;

    /// A planner, and the moves that it has asked for.
    struct Stack {
        planner: Planner,
        moves: std::collections::VecDeque<(SnapshotId, LayerIndex, LayerIndex)>,
        lent: Vec<SnapshotId>,
    }

    impl Stack {
        fn tell(&mut self, event: Event) {
            self.planner.handle(Timestamp(0), event);
            while let Some(action) = self.planner.poll() {
                match action {
                    Action::Lend { id, .. } => self.lent.push(id),
                    Action::Move { id, from, to, .. } => self.moves.push_back((id, from.layer, to.layer)),
                    Action::Refuse { id, why, .. } => panic!("{id:?} is refused: {why:?}"),
                    _ => {}
                }
            }
        }

        /// Saves a snapshot; moves end one by one until it has its room.
        fn save(&mut self, key: u64, bytes: u64) {
            let id = SnapshotId(key);
            self.tell(Event::RoomWanted { id, key, bytes, is_copy: false, yields: false });
            while !self.lent.contains(&id) {
                let (id, from, to) = self.moves.pop_front().expect("it waits for a move");
                self.tell(Event::Moved { id, from, to });
            }
            self.lent.clear();
            self.tell(Event::Sealed { id, keep: false });
        }
    }

    #[test]
    fn room_among_many_small_snapshots_is_not_searched_for_at_every_event() {
        let count = 4000;
        // What is read last is scattered over the front.
        let schedule: Vec<u64> = (0..count).map(|nth| nth * 1597 % count).collect();
        let layers = vec![LayerSettings::new(count * SMALL), LayerSettings::unlimited()];
        let planner = Planner::new(Settings::new(layers, Order::Schedule(schedule)));
        let mut stack = Stack { planner, moves: std::collections::VecDeque::new(), lent: Vec::new() };
        (0..count).for_each(|key| stack.save(key, SMALL));
        LOOKS.set(0);
        stack.save(count, count / 3 * SMALL);
        assert!(LOOKS.get() < 40 * count, "{} looks at {count} snapshots", LOOKS.get());
    }
}
