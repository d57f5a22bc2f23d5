//! Which bytes of a list are in use: ranges, of which the smallest that is large enough is taken.

use std::collections::{BTreeMap, BTreeSet};

/// Ranges begin at multiples of this.
const ALIGN: u64 = 8;

/// The ranges that are free, and where the list ends.
#[derive(Debug, Default)]
pub(super) struct Room {
    lengths: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    pub(super) end: u64,
}

impl Room {
    /// What is left when these ranges are in use; nothing if two of them overlap. They are given by
    /// where they begin and how long they are.
    pub(super) fn around(mut used: Vec<(u64, u64)>) -> Option<Self> {
        used.sort_unstable();
        let mut room = Self::default();
        for (at, bytes) in used {
            if at < room.end || !at.is_multiple_of(ALIGN) {
                return None;
            }
            let gap = room.end;
            if at > gap {
                room.put(gap, at - gap);
            }
            room.end = at.checked_add(rounded(bytes)?)?;
        }
        Some(room)
    }

    /// Takes so many bytes, and says where.
    pub(super) fn take(&mut self, bytes: usize) -> u64 {
        let bytes = rounded(bytes as u64).unwrap_or(u64::MAX);
        let Some(&(length, at)) = self.by_length.range((bytes, 0)..).next() else {
            let at = self.end;
            self.end += bytes;
            return at;
        };
        self.remove(at, length);
        if length > bytes {
            self.put(at + bytes, length - bytes);
        }
        at
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, mut at: u64, bytes: usize) {
        let mut length = rounded(bytes as u64).unwrap_or(0);
        if let Some((&before, &its)) = self.lengths.range(..at).next_back()
            && before + its == at
        {
            self.remove(before, its);
            (at, length) = (before, its + length);
        }
        if let Some(&its) = self.lengths.get(&(at + length)) {
            self.remove(at + length, its);
            length += its;
        }
        self.put(at, length);
    }

    fn put(&mut self, at: u64, length: u64) {
        if length > 0 {
            self.lengths.insert(at, length);
            self.by_length.insert((length, at));
        }
    }

    fn remove(&mut self, at: u64, length: u64) {
        self.lengths.remove(&at);
        self.by_length.remove(&(length, at));
    }
}

fn rounded(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_have_the_same_bytes_and_what_is_given_back_is_used() {
        let mut room = Room::default();
        let mut used: Vec<(u64, usize)> = Vec::new();
        let mut random = 1u64;
        for round in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 33) as usize;
            if round % 3 == 2 && !used.is_empty() {
                let (at, bytes) = used.swap_remove(number % used.len());
                room.give(at, bytes);
            } else {
                let bytes = number % 100 + 1;
                used.push((room.take(bytes), bytes));
            }
            let ranges: Vec<(u64, u64)> = used.iter().map(|&(at, bytes)| (at, bytes as u64)).collect();
            let again = Room::around(ranges).expect("none overlap");
            assert!(again.end <= room.end);
        }
        let all: u64 = used.iter().map(|&(_, bytes)| rounded(bytes as u64).unwrap()).sum();
        assert!(room.end < 2 * all, "{} for {all}", room.end);
        for (at, bytes) in used {
            room.give(at, bytes);
        }
        assert_eq!(room.lengths.into_iter().collect::<Vec<_>>(), [(0, room.end)]);
        assert!(Room::around(vec![(0, 16), (8, 8)]).is_none());
    }
}
