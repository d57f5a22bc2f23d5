//! Where cells are. Pure.

use super::LEVEL_MAX;

/// Where a cell is: its level, and its position among the 2^level cells of that level along each
/// axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place<const D: usize> {
    /// 0 for the root; each level halves the size.
    pub level: u32,
    /// Less than 2^level along each axis.
    pub position: [u32; D],
}

/// A face of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Face {
    /// The axis that it is perpendicular to.
    pub axis: usize,
    /// Whether it is that at the larger coordinate.
    pub is_upper: bool,
}

impl<const D: usize> Place<D> {
    /// The place of the root.
    pub const ROOT: Self = Self { level: 0, position: [0; D] };

    /// The length of an edge; that of the root is 1.
    pub fn size(&self) -> f64 {
        1.0 / f64::from(1u32 << self.level.min(LEVEL_MAX))
    }

    /// The coordinates of the centre.
    pub fn centre(&self) -> [f64; D] {
        self.position.map(|at| (f64::from(at) + 0.5) * self.size())
    }

    /// The coordinates of the corner with the smallest ones.
    pub fn corner(&self) -> [f64; D] {
        self.position.map(|at| f64::from(at) * self.size())
    }

    /// The place of a child. Bit `axis` of the number says whether it is in the upper half.
    pub(crate) fn child(&self, number: u32) -> Self {
        let position = std::array::from_fn(|axis| self.position[axis] << 1 | (number >> axis & 1));
        Self { level: self.level + 1, position }
    }

    /// The number of the child that leads to a place below this level.
    pub(super) fn number_at(&self, level: u32) -> u32 {
        let bit = |axis: usize| (self.position[axis] >> (self.level - level - 1) & 1) << axis;
        (0..D).map(bit).sum()
    }

    /// The deepest place at a point.
    pub(super) fn of_point(point: [f64; D]) -> Option<Self> {
        let is_inside = point.iter().all(|at| (0.0..1.0).contains(at));
        let position = point.map(|at| (at * f64::from(1u32 << LEVEL_MAX)) as u32);
        is_inside.then_some(Self { level: LEVEL_MAX, position })
    }

    /// Whether there can be a cell.
    pub(super) fn is_inside(&self) -> bool {
        self.level <= LEVEL_MAX && self.position.iter().all(|at| *at < 1 << self.level)
    }

    /// The place of the same level on the other side of a face.
    pub(super) fn beyond(&self, face: Face) -> Option<Self> {
        let mut place = *self;
        let at = place.position.get_mut(face.axis)?;
        *at = if face.is_upper { at.checked_add(1)? } else { at.checked_sub(1)? };
        place.is_inside().then_some(place)
    }
}

impl Face {
    /// All faces of a cell of `D` dimensions.
    pub fn all<const D: usize>() -> impl Iterator<Item = Self> {
        (0..D).flat_map(|axis| [false, true].map(|is_upper| Self { axis, is_upper }))
    }

    /// The same face as the cell on the other side has it.
    pub fn opposite(self) -> Self {
        Self { is_upper: !self.is_upper, ..self }
    }

    /// Whether the child with this number touches the face.
    pub(super) fn touches(self, number: u32) -> bool {
        (number >> self.axis & 1 == 1) == self.is_upper
    }
}
