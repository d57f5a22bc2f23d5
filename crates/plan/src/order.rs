//! The order in which snapshots will be read, and from it which snapshot is read soonest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Packed, SnapshotId};

/// The order in which the program reads what it has saved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// The newest first, as adjoint codes do.
    #[default]
    Reverse,
    /// The oldest first.
    Forward,
    /// These keys, one after the other. A key may occur more than once.
    Schedule(Vec<u64>),
    /// Not known. Nothing is prefetched, and eviction is least recently used first.
    Unknown,
}

/// The place of a snapshot in the announced order. [`Positions::due`] turns it into a distance.
pub(crate) type Position = u64;

/// The position of a snapshot that the rest of the schedule does not name.
const NEVER: Position = Position::MAX;

/// Snapshots sorted by position, to find the one that is read soonest or last.
pub(crate) type PositionSet = Packed<(Position, SnapshotId), ()>;

/// Where the program is in the announced order.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    /// The position of the next new snapshot, in the orders that number snapshots as they are
    /// saved.
    head: Position,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// The positions below the cursor are read next, in descending order; after them the rest, from
    /// the highest down.
    Reverse {
        cursor: Position,
    },
    /// The positions from the cursor on are read next, in ascending order; after them the rest,
    /// from the lowest up.
    Forward {
        cursor: Position,
    },
    /// A position is an index into `keys`.
    Schedule {
        cursor: Position,
        keys: Vec<u64>,
        /// For each position, the next one with the same key.
        following: Vec<Position>,
        /// For each key, its first position from the cursor on.
        ahead: Packed<u64, Position>,
    },
    Unknown,
}

impl Positions {
    pub(crate) fn new(order: Order) -> Self {
        let kind = match order {
            Order::Reverse => Kind::Reverse { cursor: 0 },
            Order::Forward => Kind::Forward { cursor: 0 },
            Order::Schedule(keys) => {
                // Keys in ascending order fill the map best.
                let mut first = BTreeMap::new();
                let mut following = vec![NEVER; keys.len()];
                for (position, &key) in keys.iter().enumerate().rev() {
                    following[position] = first.insert(key, position as Position).unwrap_or(NEVER);
                }
                let mut ahead = Packed::new();
                for (key, position) in first {
                    ahead.insert(key, position);
                }
                Kind::Schedule { cursor: 0, keys, following, ahead }
            }
            Order::Unknown => Kind::Unknown,
        };
        Self { head: 0, kind }
    }

    /// Assigns a position to a snapshot that has just been saved.
    pub(crate) fn of_new(&mut self, key: u64) -> Position {
        let position = self.head;
        self.head += 1;
        match &mut self.kind {
            Kind::Reverse { cursor } => *cursor = self.head,
            Kind::Schedule { ahead, .. } => return next_in(ahead, key),
            Kind::Forward { .. } | Kind::Unknown => {}
        }
        position
    }

    /// How far off the next read is: smaller means sooner.
    pub(crate) fn due(&self, position: Position) -> u64 {
        match &self.kind {
            Kind::Reverse { cursor } if position < *cursor => cursor - position,
            Kind::Reverse { cursor } => cursor + (self.head - position),
            Kind::Forward { cursor } if position >= *cursor => position - cursor,
            Kind::Forward { cursor } => (self.head - cursor) + position,
            Kind::Schedule { .. } => position,
            Kind::Unknown => self.head - position,
        }
    }

    /// The member of `set` that is read soonest.
    pub(crate) fn nearest(&self, set: &PositionSet) -> Option<(Position, SnapshotId)> {
        match &self.kind {
            Kind::Reverse { cursor } => set.below(from(*cursor)).next_back().or(set.last()),
            Kind::Forward { cursor } => set.from(from(*cursor)).next().or(set.first()),
            Kind::Schedule { .. } => set.first(),
            Kind::Unknown => set.last(),
        }
        .map(|(entry, ())| *entry)
    }

    /// The members of `set`, from the one that is read last to the one that is read soonest.
    pub(crate) fn farthest_first<'a>(
        &self,
        set: &'a PositionSet,
    ) -> Box<dyn DoubleEndedIterator<Item = (Position, SnapshotId)> + 'a> {
        let entry = |(entry, ()): (&'a (Position, SnapshotId), &'a ())| *entry;
        match &self.kind {
            Kind::Reverse { cursor } => Box::new(set.from(from(*cursor)).chain(set.below(from(*cursor))).map(entry)),
            Kind::Forward { cursor } => {
                Box::new(set.below(from(*cursor)).rev().chain(set.from(from(*cursor)).rev()).map(entry))
            }
            Kind::Schedule { .. } => Box::new(set.iter().rev().map(entry)),
            Kind::Unknown => Box::new(set.iter().map(entry)),
        }
    }

    /// How many bytes the announced order takes.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.kind {
            Kind::Schedule { keys, following, ahead, .. } => {
                size_of_val(keys.as_slice()) as u64 + size_of_val(following.as_slice()) as u64 + ahead.bytes()
            }
            Kind::Reverse { .. } | Kind::Forward { .. } | Kind::Unknown => 0,
        }
    }

    /// Whether a snapshot with this position should be prefetched.
    pub(crate) fn is_announced(&self, position: Position) -> bool {
        match self.kind {
            // While a reverse pass still saves, the newest snapshots are read soonest, and they are
            // at the top already.
            Kind::Reverse { cursor } => cursor < self.head,
            Kind::Forward { .. } => true,
            Kind::Schedule { .. } => position != NEVER,
            Kind::Unknown => false,
        }
    }

    /// Whether more saves are likely, so that draining ahead helps. Not once a reverse pass has
    /// turned around and reads.
    pub(crate) fn is_filling(&self) -> bool {
        match self.kind {
            Kind::Reverse { cursor } => cursor == self.head,
            _ => true,
        }
    }

    /// Records a read of the snapshot with `key` and `position`; `is_nearest` says whether it was
    /// the nearest of all that can be read. Returns whether it was the announced one, and the keys
    /// whose positions have changed, with the new positions.
    pub(crate) fn read(&mut self, key: u64, position: Position, is_nearest: bool) -> (bool, Vec<(u64, Position)>) {
        match &mut self.kind {
            Kind::Reverse { cursor } => {
                *cursor = position;
                (is_nearest, Vec::new())
            }
            Kind::Forward { cursor } => {
                *cursor = position + 1;
                (is_nearest, Vec::new())
            }
            Kind::Schedule { cursor, keys, following, ahead } => {
                if position == NEVER {
                    return (false, Vec::new());
                }
                // A read of a later position means that the program has skipped those in between.
                let is_next = position == *cursor;
                let passed = *cursor as usize..=position as usize;
                let skipped = &keys[passed.clone()];
                for (&key, &next) in skipped.iter().zip(&following[passed]) {
                    ahead.insert(key, next);
                }
                *cursor = position + 1;
                let mut changed: Vec<_> = skipped.iter().map(|&key| (key, next_in(ahead, key))).collect();
                changed.dedup();
                (is_next, changed)
            }
            Kind::Unknown => {
                let latest = self.head;
                self.head += 1;
                (true, vec![(key, latest)])
            }
        }
    }
}

/// The smallest possible entry with this position: the lower bound for a range of a position set.
fn from(position: Position) -> (Position, SnapshotId) {
    (position, SnapshotId(0))
}

fn next_in(ahead: &Packed<u64, Position>, key: u64) -> Position {
    ahead.get(&key).copied().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saves `keys` in order and returns the set of their positions. A snapshot's id is its index
    /// in `keys`.
    fn saved(positions: &mut Positions, keys: &[u64]) -> PositionSet {
        let mut set = PositionSet::new();
        for (id, &key) in (0..).zip(keys) {
            set.insert((positions.of_new(key), SnapshotId(id)), ());
        }
        set
    }

    fn by_due(positions: &Positions, set: &PositionSet) -> Vec<u64> {
        let mut all: Vec<_> = set.iter().map(|(entry, ())| *entry).collect();
        all.sort_by_key(|&(position, _)| positions.due(position));
        assert_eq!(positions.nearest(set), all.first().copied());
        assert!(positions.farthest_first(set).eq(all.iter().rev().copied()));
        all.into_iter().map(|(_, id)| id.0).collect()
    }

    fn read(
        positions: &mut Positions,
        key: u64,
        entry: (Position, u64),
        live: &PositionSet,
    ) -> (bool, Vec<(u64, u64)>) {
        let is_nearest = positions.nearest(live).is_some_and(|(_, id)| id.0 == entry.1);
        positions.read(key, entry.0, is_nearest)
    }

    #[test]
    fn reverse_reads_downwards_then_from_the_top() {
        let mut positions = Positions::new(Order::Reverse);
        let live = saved(&mut positions, &[10, 11, 12, 13]);
        assert_eq!(by_due(&positions, &live), [3, 2, 1, 0]);
        assert!(read(&mut positions, 13, (3, 3), &live).0);
        assert_eq!(by_due(&positions, &live), [2, 1, 0, 3]);
        assert!(!read(&mut positions, 11, (1, 1), &live).0, "12 was next");
        assert_eq!(by_due(&positions, &live), [0, 3, 2, 1]);
    }

    #[test]
    fn forward_reads_upwards_then_from_the_bottom() {
        let mut positions = Positions::new(Order::Forward);
        let live = saved(&mut positions, &[10, 11, 12, 13]);
        assert!(read(&mut positions, 10, (0, 0), &live).0);
        assert_eq!(by_due(&positions, &live), [1, 2, 3, 0]);
        assert!(!read(&mut positions, 12, (2, 2), &live).0);
        assert_eq!(by_due(&positions, &live), [3, 0, 1, 2]);
    }

    #[test]
    fn a_schedule_knows_each_next_read() {
        let mut positions = Positions::new(Order::Schedule(vec![7, 8, 7, 9]));
        let live = saved(&mut positions, &[9, 8, 7, 6]);
        assert_eq!(by_due(&positions, &live), [2, 1, 0, 3]);
        assert_eq!(read(&mut positions, 7, (0, 2), &live), (true, vec![(7, 2)]));
        assert_eq!(read(&mut positions, 7, (2, 2), &live), (false, vec![(8, NEVER), (7, NEVER)]));
        assert_eq!(read(&mut positions, 6, (NEVER, 3), &live), (false, vec![]));
        assert!(!positions.is_announced(NEVER) && positions.is_announced(3));
    }

    #[test]
    fn unknown_keeps_what_was_used_last() {
        let mut positions = Positions::new(Order::Unknown);
        let live = saved(&mut positions, &[1, 2, 3]);
        assert_eq!(by_due(&positions, &live), [2, 1, 0]);
        assert_eq!(read(&mut positions, 1, (0, 0), &live), (true, vec![(1, 3)]));
        assert!(!positions.is_announced(0));
    }
}
