//! Which cells of a mesh are refined and coarsened: as fine as possible near the surface, and
//! neighbours differ by at most one level.

use std::collections::BTreeSet;

use super::leaves::{Leaf, Leaves, size, span};

/// Levels of a mesh.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    pub(super) least: u64,
    pub(super) most: u64,
}

/// So many of the finest cells on each side of the surface are fine, too.
const MARGIN: i64 = 2;

impl Levels {
    /// The codes of all leaves that have to be refined.
    pub(super) fn refined(self, leaves: &[Leaf]) -> Vec<usize> {
        let all = Leaves(leaves);
        let mut wanted: BTreeSet<usize> = self.near(leaves);
        wanted.retain(|leaf| leaves[*leaf].level < self.most);
        for leaf in leaves {
            // A coarse leaf beside one that is two levels finer, or will be.
            for other in all.around(leaf.corner(), leaf.size()) {
                if leaves[other].level + 1 < leaf.level {
                    wanted.insert(other);
                }
            }
        }
        wanted.into_iter().collect()
    }

    /// Leaves that the surface goes through, or that are close to it.
    fn near(self, leaves: &[Leaf]) -> BTreeSet<usize> {
        let all = Leaves(leaves);
        let reach = MARGIN * size(self.most);
        let mut near = BTreeSet::new();
        for (number, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.is_mixed()) {
            near.insert(number);
            let corner = leaf.corner();
            // A leaf is larger than one of the finest, or lies next to it: every second one is
            // looked at.
            let steps = |axis: usize| {
                let last = corner[axis] + leaf.size() - 1 + reach;
                (corner[axis] - reach..=last).step_by(reach as usize)
            };
            for x in steps(0) {
                for y in steps(1) {
                    for z in steps(2) {
                        near.extend(all.at([x, y, z]));
                    }
                }
            }
        }
        near
    }

    /// The first of every eight leaves that can become one.
    pub(super) fn coarsened(self, leaves: &[Leaf]) -> Vec<usize> {
        let (all, near) = (Leaves(leaves), self.near(leaves));
        let mut first = 0;
        let mut found = Vec::new();
        while first + 8 <= leaves.len() {
            let leaf = leaves[first];
            let eight = &leaves[first..first + 8];
            let is_family = leaf.level > self.least && leaf.code == leaf.parent();
            let is_family = is_family && eight.iter().all(|other| other.level == leaf.level);
            let is_calm = is_family && (first..first + 8).all(|number| !near.contains(&number));
            if is_calm && self.may_be_coarser(&all, &leaf) {
                found.push(first);
                first += 8;
            } else {
                first += 1;
            }
        }
        found
    }

    /// Whether no neighbour of the parent of a leaf is finer than the leaf.
    fn may_be_coarser(self, all: &Leaves<'_>, leaf: &Leaf) -> bool {
        let (corner, edge) = (leaf.corner(), leaf.size());
        // All cells of the size of the leaf around its parent.
        (0..64).all(|number: i64| {
            let steps = [number % 4 - 1, number / 4 % 4 - 1, number / 16 - 1];
            let point = [0, 1, 2].map(|axis| corner[axis] + steps[axis] * edge);
            all.at(point).is_none_or(|other| all.0[other].level <= leaf.level)
        })
    }
}

/// What eight leaves have together.
pub(super) fn joined(eight: &[Leaf]) -> Leaf {
    let fraction = eight.iter().map(|leaf| leaf.fraction).sum::<f64>() / 8.0;
    Leaf { code: eight[0].code, level: eight[0].level - 1, fraction }
}

/// That leaves fill the domain, in order, and that neighbours differ by at most one level.
pub(super) fn check(leaves: &[Leaf]) -> Result<(), String> {
    let mut next = 0;
    for leaf in leaves {
        if leaf.code != next || leaf.code % span(leaf.level) != 0 {
            return Err(format!("there is a gap or an overlap at {leaf:?}"));
        }
        next += span(leaf.level);
    }
    if next != span(0) {
        return Err(format!("the leaves end at {next}"));
    }
    let all = Leaves(leaves);
    for leaf in leaves {
        for other in all.around(leaf.corner(), leaf.size()) {
            if leaves[other].level + 1 < leaf.level {
                return Err(format!("{leaf:?} is beside {:?}", leaves[other]));
            }
        }
    }
    Ok(())
}
