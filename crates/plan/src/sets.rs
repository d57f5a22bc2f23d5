//! The sets of snapshots from which decisions choose.

use crate::{
    SnapshotId,
    order::{Position, PositionSet},
    planner::Planner,
    snapshot::{Snapshot, Standing},
};

/// The sets of one layer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sets {
    /// What may be drained from here. Empty on the last layer.
    pub(crate) dirty: PositionSet,
    pub(crate) dirty_bytes: u64,
    /// What may be evicted here.
    pub(crate) clean: PositionSet,
    pub(crate) clean_bytes: u64,
    /// What can be read, and is on no layer above. In the front only what is neither dirty nor
    /// clean: each set costs memory for every snapshot.
    pub(crate) top: PositionSet,
    /// What has to reach this layer.
    pub(crate) missing: PositionSet,
}

impl Sets {
    /// How many bytes the sets take.
    pub(crate) fn bytes(&self) -> u64 {
        [&self.dirty, &self.clean, &self.top, &self.missing].into_iter().map(PositionSet::bytes).sum()
    }
}

impl Planner {
    /// Changes a snapshot, and updates all sets that it belongs to. Every change goes through here.
    pub(crate) fn change(&mut self, id: SnapshotId, edit: impl FnOnce(&mut Snapshot)) {
        let last = self.layers.len() - 1;
        let snapshot = self.snapshots.get_mut(&id).expect("a snapshot that is spoken of exists");
        let before = (snapshot.bytes, snapshot.position, snapshot.standing().in_sets(last));
        let was_live = snapshot.is_live();
        edit(snapshot);
        self.live = self.live + usize::from(snapshot.is_live()) - usize::from(was_live);
        let after = (snapshot.bytes, snapshot.position, snapshot.standing().in_sets(last));
        if before != after {
            self.leave_sets(id, before);
            self.join_sets(id, after);
        }
    }

    /// Of the snapshots that the program can ask for, the one that is read soonest.
    pub(crate) fn nearest_live(&self) -> Option<SnapshotId> {
        let is_live = |(_, id): &(Position, SnapshotId)| self.snapshots[id].is_live();
        let nearest = |set| {
            let found = self.positions.nearest(set).filter(is_live);
            // A read may wait for what is dirty, and will consume it.
            found.or_else(|| self.positions.farthest_first(set).rev().find(is_live))
        };
        let front = &self.layers[0].sets;
        let tops = self.layers.iter().map(|layer| &layer.sets.top);
        let all = tops.chain([&front.dirty, &front.clean, &self.lost]).filter_map(nearest);
        all.min_by_key(|&(position, id)| (self.positions.due(position), id)).map(|(_, id)| id)
    }

    fn leave_sets(&mut self, id: SnapshotId, (bytes, position, standing): (u64, Position, Standing)) {
        let entry = (position, id);
        if standing.is_lost {
            self.lost.remove(&entry);
        }
        if standing.is_stuck {
            self.stuck_bytes -= bytes;
        }
        if standing.is_below
            && let Some(count) = self.below.get_mut(&bytes)
        {
            *count -= 1;
            if *count == 0 {
                self.below.remove(&bytes);
            }
        }
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let (bit, sets) = (1 << index, &mut layer.sets);
            if standing.dirty & bit != 0 {
                sets.dirty.remove(&entry);
                sets.dirty_bytes -= bytes;
            }
            if standing.clean & bit != 0 {
                sets.clean.remove(&entry);
                sets.clean_bytes -= bytes;
            }
            if standing.top == Some(index) {
                sets.top.remove(&entry);
            }
            if standing.missing & bit != 0 {
                sets.missing.remove(&entry);
            }
        }
    }

    fn join_sets(&mut self, id: SnapshotId, (bytes, position, standing): (u64, Position, Standing)) {
        let entry = (position, id);
        if standing.is_lost {
            self.lost.insert(entry, ());
        }
        if standing.is_stuck {
            self.stuck_bytes += bytes;
        }
        if standing.is_below {
            *self.below.entry(bytes).or_default() += 1;
        }
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let (bit, sets) = (1 << index, &mut layer.sets);
            if standing.dirty & bit != 0 {
                sets.dirty.insert(entry, ());
                sets.dirty_bytes += bytes;
            }
            if standing.clean & bit != 0 {
                sets.clean.insert(entry, ());
                sets.clean_bytes += bytes;
            }
            if standing.top == Some(index) {
                sets.top.insert(entry, ());
            }
            if standing.missing & bit != 0 {
                sets.missing.insert(entry, ());
            }
        }
    }
}
