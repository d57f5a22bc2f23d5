//! The layout of a snapshot: where its regions lie in the slot.

use std::ops::Range;

use outcrop_region::{Element, Shape};

/// Regions start at multiples of this, so that a view of any element type is aligned.
const REGION_ALIGN: usize = 64;

/// The named regions of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    regions: Vec<Region>,
    bytes: usize,
}

/// A part of a snapshot with a name and an element type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// The program's name for it; empty if it is the only region.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// How its elements form an array.
    pub shape: Shape,
    /// Where it lies in the slot.
    pub range: Range<usize>,
}

impl Layout {
    /// One region without a name, of one dimension.
    pub fn single(element: Element, bytes: usize) -> Self {
        let shape = Shape::flat(bytes / element.bytes().max(1));
        let region = Region { name: String::new(), element, shape, range: 0..bytes };
        Self { regions: vec![region], bytes }
    }

    /// Appends a region. Returns `None` if the size would overflow.
    pub fn with(mut self, name: &str, element: Element, shape: Shape) -> Option<Self> {
        let bytes = shape.count().checked_mul(element.bytes())?;
        let start = self.bytes.checked_next_multiple_of(REGION_ALIGN)?;
        let range = start..start.checked_add(bytes)?;
        self.bytes = range.end;
        self.regions.push(Region { name: name.to_owned(), element, shape, range });
        Some(self)
    }

    /// The region of this name.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// All regions, in the order in which they were saved.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The size of the slot.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
