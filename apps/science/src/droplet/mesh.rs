//! The mesh of a droplet: an octree, in a pool or in plain memory.

use outcrop_pool::{Cell, Octree, Structure, Versioned};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    leaves::{LEVEL_MAX, Leaf, code},
    regrid::joined,
};
use crate::{Keep, Keeper, Result, checkpoint::Part};

/// An octree. Numerics work on its leaves, in Morton order.
pub(super) struct Mesh {
    name: &'static str,
    leaves: Vec<Leaf>,
    /// In a pool: the tree, and the cells of the leaves.
    tree: Option<(Octree<f64>, Vec<Cell>)>,
}

impl Mesh {
    /// As it was kept, or one cell.
    pub(super) fn open(name: &'static str, keeper: &mut Keeper) -> Result<Self> {
        let mut mesh = Self { name, leaves: Vec::new(), tree: None };
        if let Some(pool) = keeper.pool() {
            mesh.tree = Some((pool.octree(name)?, Vec::new()));
            mesh.list();
            return Ok(mesh);
        }
        let bytes = keeper.take::<Leaf>(name)?.unwrap_or_default();
        mesh.leaves = bytes.chunks_exact(size_of::<Leaf>()).flat_map(Leaf::read_from_bytes).collect();
        if mesh.leaves.is_empty() {
            mesh.leaves.push(Leaf { code: 0, level: 0, fraction: 0.0 });
        }
        Ok(mesh)
    }

    pub(super) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Changes what leaves have.
    pub(super) fn set(&mut self, fractions: &[f64]) {
        for (number, (leaf, fraction)) in self.leaves.iter_mut().zip(fractions).enumerate() {
            if leaf.fraction.to_bits() != fraction.to_bits() {
                leaf.fraction = *fraction;
                if let Some((tree, cells)) = &mut self.tree {
                    tree[cells[number]] = *fraction;
                }
            }
        }
    }

    /// Refines leaves; `numbers` ascend.
    pub(super) fn refine(&mut self, numbers: &[usize]) {
        if let Some((tree, cells)) = &mut self.tree {
            for number in numbers {
                tree.refine(cells[*number], |fraction, _| *fraction);
            }
            self.list();
            return;
        }
        let mut next = numbers.iter().copied().peekable();
        let mut refined = Vec::with_capacity(self.leaves.len() + 7 * numbers.len());
        for (number, leaf) in self.leaves.iter().enumerate() {
            match next.next_if_eq(&number) {
                Some(_) => refined.extend(leaf.children()),
                None => refined.push(*leaf),
            }
        }
        self.leaves = refined;
    }

    /// Makes one of each eight leaves, of which `firsts` are the first; they ascend.
    pub(super) fn coarsen(&mut self, firsts: &[usize]) {
        if let Some((tree, cells)) = &mut self.tree {
            for parent in firsts.iter().filter_map(|first| tree.parent(cells[*first])).collect::<Vec<_>>() {
                // In the same order as `joined`, so that the sum is the same.
                tree.coarsen(parent, |children| children.iter().sum::<f64>() / 8.0);
            }
            self.list();
            return;
        }
        let mut next = firsts.iter().copied().peekable();
        let mut coarsened = Vec::with_capacity(self.leaves.len());
        let mut number = 0;
        while number < self.leaves.len() {
            if next.next_if_eq(&number).is_some() {
                coarsened.push(joined(&self.leaves[number..number + 8]));
                number += 8;
            } else {
                coarsened.push(self.leaves[number]);
                number += 1;
            }
        }
        self.leaves = coarsened;
    }

    /// Lists the leaves of the tree.
    fn list(&mut self) {
        if let Some((tree, cells)) = &mut self.tree {
            *cells = tree.leaves().collect();
            let leaf = |cell: &Cell| {
                let place = tree.place(*cell);
                let corner = place.position.map(|at| i64::from(at) << (LEVEL_MAX - place.level));
                Leaf { code: code(corner), level: u64::from(place.level), fraction: tree[*cell] }
            };
            self.leaves = cells.iter().map(leaf).collect();
        }
    }
}

impl Keep for Mesh {
    fn parts(&self) -> Vec<Part<'_>> {
        vec![Part { name: self.name, layout: Leaf::LAYOUT, bytes: self.leaves.as_bytes() }]
    }

    fn structure(&mut self) -> Option<&mut dyn Structure> {
        self.tree.as_mut().map(|(tree, _)| tree as &mut dyn Structure)
    }
}
