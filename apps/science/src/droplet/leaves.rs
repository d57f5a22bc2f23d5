//! The leaves of an octree in Morton order, and how they lie to each other.

use outcrop_pool::Versioned;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The finest level: codes have ten bits for each axis.
pub(super) const LEVEL_MAX: u32 = 10;

/// A leaf: where it is, and what it has.
#[derive(Debug, Versioned, FromBytes, IntoBytes, Immutable, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Leaf {
    /// The Morton code of its lowest corner, in units of the finest level there can be.
    pub code: u64,
    /// Its level: an edge is one half to this power.
    pub level: u64,
    /// The part of it that is liquid.
    pub fraction: f64,
}

impl Leaf {
    /// Its edge, in units of the finest level.
    pub(super) fn size(&self) -> i64 {
        size(self.level)
    }

    /// Its lowest corner.
    pub(super) fn corner(&self) -> [i64; 3] {
        [0, 1, 2].map(|axis| gather(self.code >> axis))
    }

    /// Its volume.
    pub(super) fn volume(&self) -> f64 {
        edge(self.level).powi(3)
    }

    /// Whether the surface goes through it.
    pub(super) fn is_mixed(&self) -> bool {
        (MIXED..=1.0 - MIXED).contains(&self.fraction)
    }

    /// The code of its parent.
    pub(super) fn parent(&self) -> u64 {
        self.code & !(span(self.level.saturating_sub(1)) - 1)
    }

    /// Its eight children, each with what it has.
    pub(super) fn children(&self) -> impl Iterator<Item = Leaf> {
        let (code, level, fraction) = (self.code, self.level + 1, self.fraction);
        (0..8).map(move |child| Leaf { code: code + child * span(level), level, fraction })
    }
}

/// Less than this part of a cell is a rounding error.
const MIXED: f64 = 1e-6;

pub(super) fn size(level: u64) -> i64 {
    1 << (u64::from(LEVEL_MAX) - level)
}

/// The edge of a cell.
pub(super) fn edge(level: u64) -> f64 {
    1.0 / (1u64 << level) as f64
}

/// The number of codes in a cell.
pub(super) fn span(level: u64) -> u64 {
    1 << (3 * (u64::from(LEVEL_MAX) - level))
}

/// Every third bit, as a number.
fn gather(code: u64) -> i64 {
    let mut bits = code & 0x0924_9249;
    bits = (bits | bits >> 2) & 0x030c_30c3;
    bits = (bits | bits >> 4) & 0x0300_f00f;
    bits = (bits | bits >> 8) & 0xff00_00ff;
    ((bits | bits >> 16) & 0x3ff) as i64
}

/// The code of a point.
pub(super) fn code(at: [i64; 3]) -> u64 {
    let spread = |number: i64| {
        let mut bits = number as u64 & 0x3ff;
        bits = (bits | bits << 16) & 0xff00_00ff;
        bits = (bits | bits << 8) & 0x0300_f00f;
        bits = (bits | bits << 4) & 0x030c_30c3;
        (bits | bits << 2) & 0x0924_9249
    };
    spread(at[0]) | spread(at[1]) << 1 | spread(at[2]) << 2
}

/// All leaves of a tree, in Morton order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leaves<'a>(pub(super) &'a [Leaf]);

impl Leaves<'_> {
    /// The number of the leaf at a point; `None` outside of the domain.
    pub(super) fn at(&self, point: [i64; 3]) -> Option<usize> {
        let is_inside = point.iter().all(|x| (0..size(0)).contains(x));
        is_inside.then(|| {
            let code = code(point);
            self.0.partition_point(|leaf| leaf.code <= code) - 1
        })
    }

    /// The number of the leaf beyond a face, at the lowest corner of a cell of the same size.
    pub(super) fn beyond(&self, leaf: &Leaf, axis: usize, is_upper: bool) -> Option<usize> {
        let mut point = leaf.corner();
        point[axis] += if is_upper { leaf.size() } else { -1 };
        self.at(point)
    }

    /// The numbers of the leaves at the middles of the 26 cells of the same size around a cell,
    /// as far as they are inside.
    pub(super) fn around(&self, corner: [i64; 3], size: i64) -> impl Iterator<Item = usize> {
        (0..27).filter(|offset| *offset != 13).filter_map(move |offset: i64| {
            let steps = [offset % 3 - 1, offset / 3 % 3 - 1, offset / 9 - 1];
            self.at([0, 1, 2].map(|axis| corner[axis] + steps[axis] * size))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_the_bits_of_its_point_in_turn() {
        let mut random = crate::Random::new(3);
        for _ in 0..1000 {
            let point = [0; 3].map(|_| (random.number() % size(0) as u64) as i64);
            let bits = |axis: usize| (0..LEVEL_MAX).map(move |bit| (point[axis] as u64 >> bit & 1) << (3 * bit));
            let expected: u64 = (0..3).map(|axis| bits(axis).sum::<u64>() << axis).sum();
            assert_eq!(code(point), expected, "{point:?}");
            assert_eq!(Leaf { code: expected, level: 0, fraction: 0.0 }.corner(), point);
        }
    }
}
