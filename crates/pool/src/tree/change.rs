//! Refining, coarsening and balancing.

use super::{
    Cell, Children, Face, LEVEL_MAX, Place, Tree, TreeView,
    links::{EMPTY, FREE, LEVEL, PARENT, POSITION, STAMP, State, stamp_of},
};
use crate::Versioned;

/// Indexes of cells fit into 32 bits.
const fn groups_max<const D: usize>() -> usize {
    1 << (32 - D)
}

impl<T: Versioned, const D: usize> Tree<T, D> {
    /// Changes the values of all leaves, in the order in which they lie in memory: faster than one
    /// after the other by their handles.
    #[inline]
    pub fn update_leaves(&mut self, mut change: impl FnMut(Cell, &mut T)) {
        let TreeView { links, cells, .. } = &mut self.read;
        let cells = cells.list();
        for (group, record) in links.iter().enumerate().filter(|(_, record)| record[FREE] == 0) {
            // The first group has the root only.
            let count = if group == 0 { 1 } else { 1 << D };
            let first = group << D;
            let stamp = stamp_of(record);
            for (number, value) in cells[first..first + count].iter_mut().enumerate() {
                if record[number] == 0 {
                    change(Cell { index: (first + number) as u32, stamp }, value);
                }
            }
        }
    }

    /// Gives a leaf 2^D children. `child` makes the value of each from that of the parent and its
    /// place, in Morton order. The parent keeps its value.
    ///
    /// # Panics
    ///
    /// If the cell is gone, has children, or is at [`LEVEL_MAX`]; or if there is no memory for
    /// more. Nothing has changed then.
    pub fn refine(&mut self, cell: Cell, mut child: impl FnMut(&T, Place<D>) -> T) -> Children<D> {
        let place = self.place(cell);
        assert!(self.is_leaf(cell), "{cell:?} of \"{}\" has children", self.read.name);
        assert!(place.level < LEVEL_MAX, "{cell:?} of \"{}\" is at the deepest level", self.read.name);
        // Before anything changes: it may panic.
        let parent = self[cell];
        let mut values = [parent; 8];
        for number in 0..1u32 << D {
            values[number as usize] = child(&parent, place.child(number));
        }
        let group = self.take_group(cell.index >> D);
        let stamp = self.next_stamp();
        let mut record = EMPTY;
        record[PARENT] = cell.index;
        record[LEVEL] = place.level + 1;
        record[POSITION..POSITION + D].copy_from_slice(&place.child(0).position);
        (record[STAMP], record[STAMP + 1]) = (stamp as u32, (stamp >> 32) as u32);
        let links = self.read.links.list();
        links[group as usize] = record;
        links[(cell.index >> D) as usize][(cell.index & ((1 << D) - 1)) as usize] = group;
        let first = group << D;
        self.read.cells.list()[first as usize..(first + (1 << D)) as usize].copy_from_slice(&values[..1 << D]);
        Children { left: first..first + (1 << D), stamp }
    }

    /// Removes the children of a cell. `parent` makes its value from those of the children, in
    /// Morton order.
    ///
    /// # Panics
    ///
    /// If the cell is gone, or its children are not leaves. Nothing has changed then.
    pub fn coarsen(&mut self, cell: Cell, parent: impl FnOnce(&[T]) -> T) {
        assert!(self.can_coarsen(cell), "the children of {cell:?} of \"{}\" are not leaves", self.read.name);
        let Some(children) = self.children(cell) else { return };
        let (first, end) = (children.left.start as usize, children.left.end as usize);
        let value = parent(&self.read.cells[first..end]);
        self[cell] = value;
        let group = (first >> D) as u32;
        self.free_groups().insert(group);
        let mut state = State::read(self.read.cells.state());
        state.free += 1;
        self.set_state(state);
        let links = self.read.links.list();
        links[group as usize] = EMPTY;
        links[group as usize][FREE] = 1;
        links[(cell.index >> D) as usize][(cell.index & ((1 << D) - 1)) as usize] = 0;
    }

    /// Whether a cell has children, and all of them are leaves.
    pub fn can_coarsen(&self, cell: Cell) -> bool {
        self.children(cell).is_some_and(|mut children| children.all(|child| self.is_leaf(child)))
    }

    /// Refines leaves until those that share a face differ by at most one level (2:1). `child` is
    /// that of [`refine`](Self::refine). Says how many cells were refined.
    ///
    /// Leaves that share only an edge or a corner may differ by more.
    pub fn balance(&mut self, mut child: impl FnMut(&T, Place<D>) -> T) -> usize {
        let mut left: Vec<Cell> = self.leaves().collect();
        let mut refined = 0;
        while let Some(cell) = left.pop() {
            // Those that have children by now are balanced if the children are.
            if !self.is_leaf(cell) {
                continue;
            }
            let level = self.place(cell).level;
            for face in Face::all::<D>() {
                while let Some(other) = self.neighbour(cell, face)
                    && self.place(other).level + 1 < level
                {
                    left.extend(self.refine(other, &mut child));
                    refined += 1;
                }
            }
        }
        refined
    }

    /// Takes the free group that is nearest to another, or a new one.
    fn take_group(&mut self, near: u32) -> u32 {
        let free = self.free_groups();
        let (below, above) = (free.range(..near).next_back().copied(), free.range(near..).next().copied());
        let nearest = match (below, above) {
            (Some(below), Some(above)) if near - below <= above - near => Some(below),
            (below, above) => above.or(below),
        };
        if let Some(group) = nearest {
            free.remove(&group);
            let mut state = State::read(self.read.cells.state());
            state.free = state.free.saturating_sub(1);
            self.set_state(state);
            return group;
        }
        let group = self.read.links.len();
        assert!(group < groups_max::<D>(), "the tree \"{}\" has too many cells", self.read.name);
        // If one of them panics, what is longer does no harm.
        self.read.cells.list().set_len((group + 1) << D);
        self.read.links.list().set_len(group + 1);
        group as u32
    }

    /// The groups that are free. A version that was opened or restored has others.
    fn free_groups(&mut self) -> &mut std::collections::BTreeSet<u32> {
        let loads = self.read.links.loads();
        if self.free.0 != loads {
            let is_any = State::read(self.read.cells.state()).free > 0;
            let groups = self.read.links.iter().enumerate().skip(1).filter(|(_, record)| is_any && record[FREE] != 0);
            self.free = (loads, groups.map(|(group, _)| group as u32).collect());
        }
        &mut self.free.1
    }

    /// A stamp that no cell has had that this program has seen, in whatever version.
    fn next_stamp(&mut self) -> u64 {
        let mut state = State::read(self.read.cells.state());
        state.stamp = state.stamp.max(self.stamp).wrapping_add(1);
        self.stamp = state.stamp;
        self.set_state(state);
        state.stamp
    }

    fn set_state(&mut self, state: State) {
        self.read.cells.list().part_mut().set_state(&state.bytes());
    }
}
