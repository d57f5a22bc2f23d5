//! What a program saves: named regions, which are arrays of elements.

#![forbid(unsafe_code)]

mod boxes;
mod element;
mod part;
mod shape;

pub use boxes::{Index, LIST, Moves, Placed, Placement, Uncovered, place, whole};
pub use element::Element;
pub use part::{Blank, Part, PartMut};
pub use shape::{DIMENSIONS_MAX, GlobalBox, MemoryOrder, Shape, ShapeError};
