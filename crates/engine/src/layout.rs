//! The layout of a snapshot: where its regions lie in the slot.

use std::{collections::HashMap, ops::Range, sync::Arc};

use outcrop_region::{Element, Shape};

/// Regions start at multiples of this, or of what their elements may need.
const REGION_ALIGN: usize = 64;

/// Slots start at multiples of this, so elements cannot be aligned to more.
pub const ELEMENT_ALIGN_MAX: usize = outcrop_layers::ALIGN as usize;

/// The named regions of one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Layout {
    regions: Vec<Region>,
    bytes: usize,
}

/// A part of a snapshot with a name and an element type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
        // The length of an element is a multiple of its alignment.
        let align = 1 << element.bytes().trailing_zeros().min(ELEMENT_ALIGN_MAX.trailing_zeros());
        let start = self.bytes.checked_next_multiple_of(align.max(REGION_ALIGN))?;
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

/// The layouts of all snapshots, each only once: most snapshots of a program are alike.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    /// How many snapshots have each.
    users: HashMap<Arc<Layout>, u64>,
    bytes: u64,
}

impl Layouts {
    /// One more snapshot has this layout. Returns the one that all of them share.
    pub(crate) fn add(&mut self, layout: Arc<Layout>) -> Arc<Layout> {
        if let Some((known, _)) = self.users.get_key_value(&layout) {
            let known = Arc::clone(known);
            *self.users.entry(Arc::clone(&known)).or_default() += 1;
            return known;
        }
        self.bytes += layout.bookkeeping_bytes();
        self.users.insert(Arc::clone(&layout), 1);
        layout
    }

    /// One snapshot less has this layout.
    pub(crate) fn remove(&mut self, layout: &Arc<Layout>) {
        let Some(users) = self.users.get_mut(layout) else { return };
        *users -= 1;
        if *users == 0 {
            self.users.remove(layout);
            self.bytes -= layout.bookkeeping_bytes();
        }
    }

    /// How many bytes they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Layout {
    /// About how many bytes it takes, with its place in `Layouts`.
    fn bookkeeping_bytes(&self) -> u64 {
        let of_region = |region: &Region| {
            let shape = &region.shape;
            let dimensions = shape.dimensions().len() * if shape.global().is_some() { 3 } else { 1 };
            size_of::<Region>() + region.name.len() + region.element.name().len() + dimensions * size_of::<usize>() + 64
        };
        (128 + self.regions.iter().map(of_region).sum::<usize>()) as u64
    }
}
