//! How the cells of a tree refer to each other. Nothing in a file is trusted: a link is compared
//! with what it leads to, so that following links ends, and reaches each cell once.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{LEVEL_MAX, Place};

/// Describes a group: the 2^D children of one cell, which lie next to each other. The cells of
/// group g are those from g * 2^D on. The root is the only cell of group 0.
///
/// - 0 to 7: for each cell, the group of its children, or 0
/// - 8: the cell that is their parent
/// - 9: their level
/// - 10 to 12: the position of the first of them
/// - 13, 14: the stamp of this life of the group, which no other life has
/// - 15: 1 if the group is free
pub(crate) type Record = [u32; 16];

pub(super) const PARENT: usize = 8;
pub(super) const LEVEL: usize = 9;
pub(super) const POSITION: usize = 10;
pub(super) const STAMP: usize = 13;
pub(super) const FREE: usize = 15;

/// A group without children below it, as that of a new root.
pub(super) const EMPTY: Record = [0; 16];

/// What a tree has besides its lists.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct State {
    /// The last stamp.
    pub(crate) stamp: u64,
    /// The number of groups that are free.
    pub(crate) free: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawState {
    stamp: U64,
    free: U32,
}

impl State {
    /// A state that is too short is that of a new tree; the lengths of the lists show that it is
    /// none.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let raw = RawState::read_from_bytes(bytes);
        raw.map(|raw| Self { stamp: raw.stamp.get(), free: raw.free.get() }).unwrap_or_default()
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        RawState { stamp: self.stamp.into(), free: self.free.into() }.as_bytes().to_vec()
    }
}

/// The links of a tree.
#[derive(Clone, Copy)]
pub(crate) struct Links<'a, const D: usize> {
    pub(crate) name: &'a str,
    pub(crate) records: &'a [Record],
}

impl<const D: usize> Links<'_, D> {
    /// The record with a cell, and which of its cells that is.
    #[inline]
    fn record(&self, index: u32) -> (&Record, u32) {
        match self.records.get((index >> D) as usize) {
            Some(record) => (record, index & ((1 << D) - 1)),
            None => self.damaged(index),
        }
    }

    fn damaged(&self, index: u32) -> ! {
        panic!("the tree \"{}\" is damaged at its cell {index}: see `outcrop pool verify`", self.name)
    }

    /// Whether this life of a cell is there.
    #[inline]
    pub(super) fn find(&self, index: u32, stamp: u64) -> bool {
        let is_life = |record: &Record| record[FREE] == 0 && stamp_of(record) == stamp;
        let found = self.records.get((index >> D) as usize).is_some_and(is_life);
        found && (index >> D != 0 || index == 0)
    }

    #[inline]
    pub(super) fn stamp(&self, index: u32) -> u64 {
        stamp_of(self.record(index).0)
    }

    #[inline]
    pub(super) fn place(&self, index: u32) -> Place<D> {
        let (record, number) = self.record(index);
        if index == 0 {
            return Place::ROOT;
        }
        let position = std::array::from_fn(|axis| record[POSITION + axis] | (number >> axis & 1));
        let place = Place { level: record[LEVEL], position };
        if place.is_inside() { place } else { self.damaged(index) }
    }

    /// The first child of a cell.
    #[inline]
    pub(super) fn children(&self, index: u32) -> Option<u32> {
        let (record, number) = self.record(index);
        let group = record[number as usize];
        if group == 0 {
            return None;
        }
        let place = self.place(index).child(0);
        let is_right = |below: &&Record| {
            let position = (0..D).all(|axis| below[POSITION + axis] == place.position[axis]);
            (below[FREE], below[PARENT], below[LEVEL]) == (0, index, place.level) && position
        };
        match self.records.get(group as usize).filter(is_right) {
            Some(_) if place.level <= LEVEL_MAX && group < 1 << (32 - D) => Some(group << D),
            _ => self.damaged(index),
        }
    }

    pub(super) fn parent(&self, index: u32) -> Option<u32> {
        let parent = self.record(index).0[PARENT];
        match index {
            0 => None,
            _ if self.children(parent) == Some(index >> D << D) => Some(parent),
            _ => self.damaged(index),
        }
    }

    /// The deepest cell with this place in it, which is not deeper than the place.
    pub(super) fn deepest(&self, place: Place<D>) -> u32 {
        let mut index = 0;
        for level in 0..place.level {
            let Some(first) = self.children(index) else { break };
            index = first + place.number_at(level);
        }
        index
    }
}

/// The stamp of the life of a group.
#[inline]
pub(super) fn stamp_of(record: &Record) -> u64 {
    u64::from(record[STAMP]) | u64::from(record[STAMP + 1]) << 32
}
