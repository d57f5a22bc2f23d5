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

/// When a snapshot is read next, in the terms of the order: see [`Turns::due`].
pub(crate) type Turn = u64;

/// The turn of a snapshot that the schedule does not name any more.
const NEVER: Turn = Turn::MAX;

/// A set of snapshots that knows which of them is read soonest.
pub(crate) type TurnSet = BTreeSet<(Turn, SnapshotId)>;

/// Keeps track of where the program is in its order.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    /// The next turn that a new snapshot gets, where turns are numbers in the order of saving.
    head: Turn,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Everything below the cursor comes next, downwards; then the rest from the top.
    Reverse {
        cursor: Turn,
    },
    /// Everything from the cursor on comes next, upwards; then the rest from the bottom.
    Forward {
        cursor: Turn,
    },
    /// The position in the list is the turn.
    Schedule {
        cursor: Turn,
        keys: Vec<u64>,
        ahead: BTreeMap<u64, VecDeque<Turn>>,
    },
    Unknown,
}

impl Turns {
    pub(crate) fn new(order: Order) -> Self {
        let kind = match order {
            Order::Reverse => Kind::Reverse { cursor: 0 },
            Order::Forward => Kind::Forward { cursor: 0 },
            Order::Schedule(keys) => {
                let mut ahead = BTreeMap::<u64, VecDeque<Turn>>::new();
                for (position, &key) in keys.iter().enumerate() {
                    ahead.entry(key).or_default().push_back(position as Turn);
                }
                Kind::Schedule { cursor: 0, keys, ahead }
            }
            Order::Unknown => Kind::Unknown,
        };
        Self { head: 0, kind }
    }

    /// The turn of a snapshot that has just been saved.
    pub(crate) fn of_new(&mut self, key: u64) -> Turn {
        let turn = self.head;
        self.head += 1;
        match &mut self.kind {
            Kind::Reverse { cursor } => *cursor = self.head,
            Kind::Schedule { ahead, .. } => return next_in(ahead, key),
            Kind::Forward { .. } | Kind::Unknown => {}
        }
        turn
    }

    /// How far off a turn is: the smaller, the sooner.
    pub(crate) fn due(&self, turn: Turn) -> u64 {
        match &self.kind {
            Kind::Reverse { cursor } if turn < *cursor => cursor - turn,
            Kind::Reverse { cursor } => cursor + (self.head - turn),
            Kind::Forward { cursor } if turn >= *cursor => turn - cursor,
            Kind::Forward { cursor } => (self.head - cursor) + turn,
            Kind::Schedule { .. } => turn,
            Kind::Unknown => self.head - turn,
        }
    }

    /// The member of `set` that is read soonest.
    pub(crate) fn nearest(&self, set: &TurnSet) -> Option<(Turn, SnapshotId)> {
        match &self.kind {
            Kind::Reverse { cursor } => set.range(..from(*cursor)).next_back().or(set.last()),
            Kind::Forward { cursor } => set.range(from(*cursor)..).next().or(set.first()),
            Kind::Schedule { .. } => set.first(),
            Kind::Unknown => set.last(),
        }
        .copied()
    }

    /// The members of `set`, the one that is read last first.
    pub(crate) fn farthest_first<'a>(&self, set: &'a TurnSet) -> Box<dyn Iterator<Item = (Turn, SnapshotId)> + 'a> {
        match &self.kind {
            Kind::Reverse { cursor } => Box::new(set.range(from(*cursor)..).chain(set.range(..from(*cursor))).copied()),
            Kind::Forward { cursor } => {
                Box::new(set.range(..from(*cursor)).rev().chain(set.range(from(*cursor)..).rev()).copied())
            }
            Kind::Schedule { .. } => Box::new(set.iter().rev().copied()),
            Kind::Unknown => Box::new(set.iter().copied()),
        }
    }

    /// Whether a snapshot with this turn should be brought up before it is asked for.
    pub(crate) fn is_announced(&self, turn: Turn) -> bool {
        match self.kind {
            // While a reverse pass still saves, the newest are the soonest and are at the top anyway.
            Kind::Reverse { cursor } => cursor < self.head,
            Kind::Forward { .. } => true,
            Kind::Schedule { .. } => turn != NEVER,
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

    /// Takes note of a read of the snapshot `id` with `key` and `turn`, one of `live`. Gives whether it was the one that
    /// the order announced, and the keys whose turn has changed with their new turns.
    pub(crate) fn read(&mut self, key: u64, turn: Turn, id: SnapshotId, live: &TurnSet) -> (bool, Vec<(u64, Turn)>) {
        let expected = self.nearest(live).map(|(_, id)| id);
        match &mut self.kind {
            Kind::Reverse { cursor } => {
                *cursor = turn;
                (expected == Some(id), Vec::new())
            }
            Kind::Forward { cursor } => {
                *cursor = turn + 1;
                (expected == Some(id), Vec::new())
            }
            Kind::Schedule { cursor, keys, ahead } => {
                if turn == NEVER {
                    return (false, Vec::new());
                }
                // A read from further on means that the program has skipped what lies between.
                let is_next = turn == *cursor;
                let skipped = &keys[*cursor as usize..=turn as usize];
                for &key in skipped {
                    ahead.get_mut(&key).map(VecDeque::pop_front);
                }
                *cursor = turn + 1;
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

/// The first entry of a turn set that has this turn or a later one.
fn from(turn: Turn) -> (Turn, SnapshotId) {
    (turn, SnapshotId(0))
}

fn next_in(ahead: &BTreeMap<u64, VecDeque<Turn>>, key: u64) -> Turn {
    ahead.get(&key).and_then(VecDeque::front).copied().unwrap_or(NEVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Saves `keys` in order and gives the set of their turns; a snapshot's id is its place in `keys`.
    fn saved(turns: &mut Turns, keys: &[u64]) -> TurnSet {
        (0..).zip(keys).map(|(id, &key)| (turns.of_new(key), SnapshotId(id))).collect()
    }

    fn by_due(turns: &Turns, set: &TurnSet) -> Vec<u64> {
        let mut all: Vec<_> = set.iter().copied().collect();
        all.sort_by_key(|&(turn, _)| turns.due(turn));
        assert_eq!(turns.nearest(set), all.first().copied());
        assert!(turns.farthest_first(set).eq(all.iter().rev().copied()));
        all.into_iter().map(|(_, id)| id.0).collect()
    }

    #[test]
    fn reverse_reads_downwards_then_from_the_top() {
        let mut turns = Turns::new(Order::Reverse);
        let live = saved(&mut turns, &[10, 11, 12, 13]);
        assert_eq!(by_due(&turns, &live), [3, 2, 1, 0]);
        assert!(turns.read(13, 3, SnapshotId(3), &live).0);
        assert_eq!(by_due(&turns, &live), [2, 1, 0, 3]);
        assert!(!turns.read(11, 1, SnapshotId(1), &live).0, "12 was next");
        assert_eq!(by_due(&turns, &live), [0, 3, 2, 1]);
    }

    #[test]
    fn forward_reads_upwards_then_from_the_bottom() {
        let mut turns = Turns::new(Order::Forward);
        let live = saved(&mut turns, &[10, 11, 12, 13]);
        assert!(turns.read(10, 0, SnapshotId(0), &live).0);
        assert_eq!(by_due(&turns, &live), [1, 2, 3, 0]);
        assert!(!turns.read(12, 2, SnapshotId(2), &live).0);
        assert_eq!(by_due(&turns, &live), [3, 0, 1, 2]);
    }

    #[test]
    fn a_schedule_knows_each_next_read() {
        let mut turns = Turns::new(Order::Schedule(vec![7, 8, 7, 9]));
        let live = saved(&mut turns, &[9, 8, 7, 6]);
        assert_eq!(by_due(&turns, &live), [2, 1, 0, 3]);
        assert_eq!(turns.read(7, 0, SnapshotId(2), &live), (true, vec![(7, 2)]));
        assert_eq!(turns.read(7, 2, SnapshotId(2), &live), (false, vec![(8, NEVER), (7, NEVER)]));
        assert_eq!(turns.read(6, NEVER, SnapshotId(3), &live), (false, vec![]));
        assert!(!turns.is_announced(NEVER) && turns.is_announced(3));
    }

    #[test]
    fn unknown_keeps_what_was_used_last() {
        let mut turns = Turns::new(Order::Unknown);
        let live = saved(&mut turns, &[1, 2, 3]);
        assert_eq!(by_due(&turns, &live), [2, 1, 0]);
        assert_eq!(turns.read(1, 0, SnapshotId(0), &live), (true, vec![(1, 3)]));
        assert!(!turns.is_announced(0));
    }
}
