//! Whether what is in a file is a tree.

use std::collections::HashSet;

use super::{
    LEVEL_MAX,
    links::{FREE, LEVEL, PARENT, POSITION, Record, State},
};
use crate::error::Checked;

/// That there is a root, and a value for each cell.
pub(crate) fn lengths<const D: usize>(groups: usize, cells: usize, state: &[u8]) -> Checked {
    let free = State::read(state).free as usize;
    match groups > 0 && cells >> D >= groups && free < groups {
        true => Ok(()),
        false => Err(format!("it has {groups} groups, {free} of them free, and {cells} values")),
    }
}

/// Follows all links from the root: each group is free or has one parent, which is one level above
/// and where it should be.
pub(crate) fn check<const D: usize>(records: &[Record], cells: usize, state: &[u8]) -> Checked {
    lengths::<D>(records.len(), cells, state)?;
    let mut seen = HashSet::from([0]);
    let mut left = vec![0];
    while let Some(group) = left.pop() {
        let record = &records[group as usize];
        let cells = if group == 0 { 1 } else { 1u32 << D };
        for number in (0..cells).filter(|number| record[*number as usize] != 0) {
            let (child, parent) = (record[number as usize], (group << D) + number);
            let Some(below) = records.get(child as usize) else {
                return Err(format!("cell {parent} has children in group {child}, which is not there"));
            };
            let level = if group == 0 { 1 } else { record[LEVEL].saturating_add(1) };
            let at = |axis: usize| match group {
                0 => 0,
                _ => (record[POSITION + axis] | (number >> axis & 1)) << 1,
            };
            let is_placed = (0..D).all(|axis| below[POSITION + axis] == at(axis));
            let is_right = (below[FREE], below[PARENT], below[LEVEL]) == (0, parent, level);
            if !is_right || !is_placed || level > LEVEL_MAX || !seen.insert(child) {
                return Err(format!("group {child} is not that of the children of cell {parent}"));
            }
            left.push(child);
        }
    }
    let free = records.iter().filter(|record| record[FREE] != 0).count();
    match seen.len() + free == records.len() && free == State::read(state).free as usize {
        true => Ok(()),
        false => Err(format!("of {} groups {} are in use and {free} are free", records.len(), seen.len())),
    }
}
