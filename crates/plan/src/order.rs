//! In which order snapshots will be read, and so which one is needed soonest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::SnapshotId;

/// The order in which the program reads what it has saved.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Order {
    /// The newest first, as adjoint codes do.
    #[default]
    Reverse,
    /// The oldest first.
    Forward,
    /// These keys, one after the other; a key may come several times.
    Schedule(Vec<u64>),
    /// Not known: nothing is fetched before it is asked for, and what was used last stays longest.
    Unknown,
}

/// When a snapshot is read next, in the terms of the order: see [`Positions::due`].
pub(crate) type Position = u64;

/// The position of a snapshot that the schedule does not name any more.
const NEVER: Position = Position::MAX;

/// A set of snapshots that knows which of them is read soonest.
pub(crate) type PositionSet = BTreeSet<(Position, SnapshotId)>;

/// Keeps track of where the program is in its order.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    /// The next position that a new snapshot gets, where positions are numbers in the order of
    /// saving.
    head: Position,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Everything below the cursor comes next, downwards; then the rest from the top.
    Reverse {
        cursor: Position,
    },
    /// Everything from the cursor on comes next, upwards; then the rest from the bottom.
    Forward {
        cursor: Position,
    },
    /// A position is an index into `keys`.
    Schedule {
        cursor: Position,
        keys: Vec<u64>,
        ahead: BTreeMap<u64, VecDeque<Position>>,
    },
    Unknown,
}

impl Positions {
    pub(crate) fn new(order: Order) -> Self {
        let kind = match order {
            Order::Reverse => Kind::Reverse { cursor: 0 },
            Order::Forward => Kind::Forward { cursor: 0 },
            Order::Schedule(keys) => {
                let mut ahead = BTreeMap::<u64, VecDeque<Position>>::new();
                for (position, &key) in keys.iter().enumerate() {
                    ahead.entry(key).or_default().push_back(position as Position);
                }
                Kind::Schedule { cursor: 0, keys, ahead }
            }
            Order::Unknown => Kind::Unknown,
        };
        Self { head: 0, kind }
    }

    /// The position of a snapshot that has just been saved.
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

    /// How far off a position is: the smaller, the sooner.
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
            Kind::Reverse { cursor } => set.range(..from(*cursor)).next_back().or(set.last()),
            Kind::Forward { cursor } => set.range(from(*cursor)..).next().or(set.first()),
            Kind::Schedule { .. } => set.first(),
            Kind::Unknown => set.last(),
        }
        .copied()
    }

    /// The members of `set`, the one that is read last first.
    pub(crate) fn farthest_first<'a>(
        &self,
        set: &'a PositionSet,
    ) -> Box<dyn Iterator<Item = (Position, SnapshotId)> + 'a> {
        match &self.kind {
            Kind::Reverse { cursor } => Box::new(set.range(from(*cursor)..).chain(set.range(..from(*cursor))).copied()),
            Kind::Forward { cursor } => {
                Box::new(set.range(..from(*cursor)).rev().chain(set.range(from(*cursor)..).rev()).copied())
            }
            Kind::Schedule { .. } => Box::new(set.iter().rev().copied()),
            Kind::Unknown => Box::new(set.iter().copied()),
        }
    }

    /// Whether a snapshot with this position should be brought up before it is asked for.
    pub(crate) fn is_announced(&self, position: Position) -> bool {
        match self.kind {
            // While a reverse pass still saves, the newest are the soonest and are at the top
            // anyway.
            Kind::Reverse { cursor } => cursor < self.head,
            Kind::Forward { .. } => true,
            Kind::Schedule { .. } => position != NEVER,
            Kind::Unknown => false,
        }
    }

    /// Whether the program is still on the way out, with its snapshots to be read later only.
    pub(crate) fn is_filling(&self) -> bool {
        match self.kind {
            Kind::Reverse { cursor } => cursor == self.head,
            _ => true,
        }
    }

    /// Takes note of a read of the snapshot `id` with `key` and `position`, one of `live`. Gives
    /// whether it was the one that the order announced, and the keys whose position has changed
    /// with their new positions.
    pub(crate) fn read(
        &mut self,
        key: u64,
        position: Position,
        id: SnapshotId,
        live: &PositionSet,
    ) -> (bool, Vec<(u64, Position)>) {
        let expected = self.nearest(live).map(|(_, id)| id);
        match &mut self.kind {
            Kind::Reverse { cursor } => {
                *cursor = position;
                (expected == Some(id), Vec::new())
            }
            Kind::Forward { cursor } => {
                *cursor = position + 1;
                (expected == Some(id), Vec::new())
            }
            Kind::Schedule { cursor, keys, ahead } => {
                if position == NEVER {
                    return (false, Vec::new());
                }
                // A read from further on means that the program has skipped what lies between.
                let is_next = position == *cursor;
                let skipped = &keys[*cursor as usize..=position as usize];
                for &key in skipped {
                    ahead.get_mut(&key).map(VecDeque::pop_front);
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

/// The first entry of a position set that has this position or a later one.
fn from(position: Position) -> (Position, SnapshotId) {
    (position, SnapshotId(0))
}

fn next_in(ahead: &BTreeMap<u64, VecDeque<Position>>, key: u64) -> Position {
    ahead.get(&key).and_then(VecDeque::front).copied().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saves `keys` in order and gives the set of their positions; a snapshot's id is its place in
    /// `keys`.
    fn saved(positions: &mut Positions, keys: &[u64]) -> PositionSet {
        (0..).zip(keys).map(|(id, &key)| (positions.of_new(key), SnapshotId(id))).collect()
    }

    fn by_due(positions: &Positions, set: &PositionSet) -> Vec<u64> {
        let mut all: Vec<_> = set.iter().copied().collect();
        all.sort_by_key(|&(position, _)| positions.due(position));
        assert_eq!(positions.nearest(set), all.first().copied());
        assert!(positions.farthest_first(set).eq(all.iter().rev().copied()));
        all.into_iter().map(|(_, id)| id.0).collect()
    }

    #[test]
    fn reverse_reads_downwards_then_from_the_top() {
        let mut positions = Positions::new(Order::Reverse);
        let live = saved(&mut positions, &[10, 11, 12, 13]);
        assert_eq!(by_due(&positions, &live), [3, 2, 1, 0]);
        assert!(positions.read(13, 3, SnapshotId(3), &live).0);
        assert_eq!(by_due(&positions, &live), [2, 1, 0, 3]);
        assert!(!positions.read(11, 1, SnapshotId(1), &live).0, "12 was next");
        assert_eq!(by_due(&positions, &live), [0, 3, 2, 1]);
    }

    #[test]
    fn forward_reads_upwards_then_from_the_bottom() {
        let mut positions = Positions::new(Order::Forward);
        let live = saved(&mut positions, &[10, 11, 12, 13]);
        assert!(positions.read(10, 0, SnapshotId(0), &live).0);
        assert_eq!(by_due(&positions, &live), [1, 2, 3, 0]);
        assert!(!positions.read(12, 2, SnapshotId(2), &live).0);
        assert_eq!(by_due(&positions, &live), [3, 0, 1, 2]);
    }

    #[test]
    fn a_schedule_knows_each_next_read() {
        let mut positions = Positions::new(Order::Schedule(vec![7, 8, 7, 9]));
        let live = saved(&mut positions, &[9, 8, 7, 6]);
        assert_eq!(by_due(&positions, &live), [2, 1, 0, 3]);
        assert_eq!(positions.read(7, 0, SnapshotId(2), &live), (true, vec![(7, 2)]));
        assert_eq!(positions.read(7, 2, SnapshotId(2), &live), (false, vec![(8, NEVER), (7, NEVER)]));
        assert_eq!(positions.read(6, NEVER, SnapshotId(3), &live), (false, vec![]));
        assert!(!positions.is_announced(NEVER) && positions.is_announced(3));
    }

    #[test]
    fn unknown_keeps_what_was_used_last() {
        let mut positions = Positions::new(Order::Unknown);
        let live = saved(&mut positions, &[1, 2, 3]);
        assert_eq!(by_due(&positions, &live), [2, 1, 0]);
        assert_eq!(positions.read(1, 0, SnapshotId(0), &live), (true, vec![(1, 3)]));
        assert!(!positions.is_announced(0));
    }
}
