//! What a program saves: named regions, which are arrays of elements.

#![forbid(unsafe_code)]

mod element;
mod part;
mod shape;

pub use element::Element;
pub use part::{Blank, Part, PartMut};
pub use shape::{DIMENSIONS_MAX, GlobalBox, MemoryOrder, Shape, ShapeError};
