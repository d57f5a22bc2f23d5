//! How the elements of a region form an array.

use std::fmt;

/// The most dimensions that an array can have.
pub const DIMENSIONS_MAX: usize = 32;

/// Which index of an array runs fastest in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MemoryOrder {
    /// The last one, as in C, C++, Rust and NumPy.
    #[default]
    RowMajor,
    /// The first one, as in Fortran, Julia and MATLAB.
    ColumnMajor,
}

/// The shape of an array: its dimensions, which of them runs fastest in memory, and, if it is a
/// part of a global array, which part.
///
/// An array without dimensions is one element (a scalar). A dimension may be 0. Where the memory
/// order makes no difference, as with one dimension, it is row-major.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    dimensions: Vec<usize>,
    order: MemoryOrder,
    global: Option<GlobalBox>,
}

/// The box of a global array that a region holds: where it begins there, and how large the whole
/// is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GlobalBox {
    shape: Vec<usize>,
    offset: Vec<usize>,
}

/// Why dimensions are no shape, or not the shape of these bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ShapeError(pub(crate) String);

impl ShapeError {
    /// The same, with the name of the region.
    pub(crate) fn of_region(self, name: &str) -> Self {
        Self(format!("region {name:?} cannot have this shape: {}", self.0))
    }
}

impl Shape {
    /// An array of these dimensions.
    pub fn new(dimensions: &[usize], order: MemoryOrder) -> Result<Self, ShapeError> {
        if dimensions.len() > DIMENSIONS_MAX {
            let count = dimensions.len();
            return Err(ShapeError(format!("an array of {count} dimensions; at most {DIMENSIONS_MAX} are possible")));
        }
        // Without those that are 0, so that no stride overflows either.
        let others = dimensions.iter().filter(|dimension| **dimension > 0);
        if others.copied().try_fold(1, usize::checked_mul).is_none() {
            return Err(ShapeError(format!("an array of {} has more elements than can be counted", Sizes(dimensions))));
        }
        let mut shape = Self { dimensions: dimensions.to_vec(), order, global: None };
        if shape.has_one_order() {
            shape.order = MemoryOrder::RowMajor;
        }
        Ok(shape)
    }

    /// An array of one dimension.
    pub fn flat(count: usize) -> Self {
        Self { dimensions: vec![count], order: MemoryOrder::RowMajor, global: None }
    }

    /// One element.
    pub fn scalar() -> Self {
        Self { dimensions: Vec::new(), order: MemoryOrder::RowMajor, global: None }
    }

    /// The same as the part of a global array of shape `global` that begins at `offset`.
    pub fn in_box(mut self, global: &[usize], offset: &[usize]) -> Result<Self, ShapeError> {
        let count = self.dimensions.len();
        if (global.len(), offset.len()) != (count, count) {
            return Err(ShapeError(format!(
                "a box of {count} dimensions in a global array of {}, at an offset of {}; all three must be equal",
                global.len(),
                offset.len()
            )));
        }
        Self::new(global, self.order)?;
        for (nth, ((&length, &start), &all)) in self.dimensions.iter().zip(offset).zip(global).enumerate() {
            if start.checked_add(length).is_none_or(|end| end > all) {
                return Err(ShapeError(format!(
                    "the box is not inside its global array: dimension {nth} has {length} from {start} on, of {all}"
                )));
            }
        }
        self.check_list(global, offset)?;
        self.global = Some(GlobalBox { shape: global.to_vec(), offset: offset.to_vec() });
        Ok(self)
    }

    /// The parts of a list follow each other in the slowest dimension, and have all of the others.
    fn check_list(&self, global: &[usize], offset: &[usize]) -> Result<(), ShapeError> {
        let Some(at) = global.iter().position(|length| *length == crate::LIST) else { return Ok(()) };
        let is_first = self.order == MemoryOrder::RowMajor || self.has_one_order();
        let is_last = self.order == MemoryOrder::ColumnMajor || self.has_one_order();
        let is_slowest = (at == 0 && is_first) || (at + 1 == global.len() && is_last);
        let is_whole = |nth: usize| nth == at || (offset[nth] == 0 && self.dimensions[nth] == global[nth]);
        match is_slowest && (0..global.len()).all(is_whole) {
            true => Ok(()),
            false => Err(ShapeError(
                "a list is as long as its parts together in its slowest dimension only, and its parts are whole in the \
                 others"
                    .to_owned(),
            )),
        }
    }

    /// The dimensions, in the order of the indices.
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }

    /// Which index runs fastest in memory.
    pub fn order(&self) -> MemoryOrder {
        self.order
    }

    /// Which part of a global array it is, if it is one.
    pub fn global(&self) -> Option<&GlobalBox> {
        self.global.as_ref()
    }

    /// Whether it is a part of a [list](crate::LIST).
    pub fn is_list(&self) -> bool {
        self.global.as_ref().is_some_and(|global| global.shape.contains(&crate::LIST))
    }

    /// How many elements it has.
    pub fn count(&self) -> usize {
        self.dimensions.iter().product()
    }

    /// Whether so many bytes are an array of this shape.
    pub fn check_bytes(&self, element_bytes: usize, bytes: u64) -> Result<(), ShapeError> {
        let needed = self.count().checked_mul(element_bytes);
        if needed.is_some_and(|needed| needed as u64 == bytes) {
            return Ok(());
        }
        Err(ShapeError(format!(
            "an array of {self} with elements of {element_bytes} bytes does not have {bytes} bytes"
        )))
    }

    /// Whether an array of this shape that was saved can be restored into one of shape `into`.
    ///
    /// One dimension says nothing but how many elements there are: it fits every shape of so many,
    /// so that a program that knows no shapes can restore what another one has saved, and the other
    /// way round. Otherwise each element must come to lie where it was in memory: 3 x 4 in
    /// row-major order fits 3 x 4 in row-major and 4 x 3 in column-major order.
    pub fn fits(&self, into: &Self) -> Result<(), ShapeError> {
        let is_flat = |shape: &Self| shape.dimensions.len() == 1;
        let is_same = match is_flat(self) || is_flat(into) || self.dimensions.len() + into.dimensions.len() == 0 {
            true => self.count() == into.count(),
            false => self.is_same_memory(into),
        };
        if !is_same {
            return Err(ShapeError(format!("holds {self} and not {into}")));
        }
        match (&self.global, &into.global) {
            (Some(saved), Some(asked)) if !self.is_same_box(saved, into, asked) => {
                Err(ShapeError(format!("holds {self} and not {into}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether two boxes are the same part. In the other memory order the same array has its
    /// indices in reverse, and so has its box.
    fn is_same_box(&self, saved: &GlobalBox, into: &Self, asked: &GlobalBox) -> bool {
        let is_reversed = || {
            let numbers = |global: &GlobalBox| [global.shape.clone(), global.offset.clone()];
            let [shape, offset] = numbers(asked).map(|numbers| numbers.into_iter().rev().collect::<Vec<_>>());
            saved.shape == shape && saved.offset == offset
        };
        match self.order == into.order {
            true => saved == asked || (self.has_one_order() && is_reversed()),
            false => is_reversed(),
        }
    }

    /// The index of the element that is the `nth` in memory.
    pub fn index_of(&self, mut nth: usize) -> Vec<usize> {
        let mut index = vec![0; self.dimensions.len()];
        let mut step = |at: usize| {
            let dimension = self.dimensions[at].max(1);
            index[at] = nth % dimension;
            nth /= dimension;
        };
        match self.order {
            MemoryOrder::RowMajor => (0..self.dimensions.len()).rev().for_each(&mut step),
            MemoryOrder::ColumnMajor => (0..self.dimensions.len()).for_each(&mut step),
        }
        index
    }

    /// Whether row-major and column-major order are the same.
    pub(crate) fn has_one_order(&self) -> bool {
        self.dimensions.contains(&0) || self.dimensions.iter().filter(|dimension| **dimension > 1).count() < 2
    }

    fn is_same_memory(&self, other: &Self) -> bool {
        let is_reversed = self.dimensions.iter().eq(other.dimensions.iter().rev());
        match self.order == other.order {
            true => self.dimensions == other.dimensions || (self.has_one_order() && is_reversed),
            false => is_reversed,
        }
    }
}

impl GlobalBox {
    /// The dimensions of the global array.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The index of the box's first element in it.
    pub fn offset(&self) -> &[usize] {
        &self.offset
    }
}

/// For example `512 x 512`, `3 x 4, column-major`, `128 x 512 at (256, 0) of 512 x 512` or
/// `scalar`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Sizes(&self.dimensions).fmt(f)?;
        if let Some(GlobalBox { shape, offset }) = &self.global {
            let offset: Vec<_> = offset.iter().map(ToString::to_string).collect();
            match self.is_list() {
                true => f.write_str(" of a list")?,
                false => write!(f, " at ({}) of {}", offset.join(", "), Sizes(shape))?,
            }
        }
        match self.order {
            MemoryOrder::RowMajor => Ok(()),
            MemoryOrder::ColumnMajor => f.write_str(", column-major"),
        }
    }
}

/// Dimensions as text.
struct Sizes<'a>(&'a [usize]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(if texts.is_empty() { "scalar" } else { "" })?;
        f.write_str(&texts.join(" x "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryOrder::{ColumnMajor, RowMajor};

    fn shape(dimensions: &[usize], order: MemoryOrder) -> Shape {
        Shape::new(dimensions, order).unwrap()
    }

    #[test]
    fn dimensions_that_cannot_be_are_refused() {
        assert_eq!(
            Shape::new(&[1; 33], RowMajor).unwrap_err().to_string().split(';').next().unwrap(),
            "an array of 33 dimensions"
        );
        assert!(Shape::new(&[1; 32], RowMajor).is_ok());
        assert!(Shape::new(&[usize::MAX, 2], RowMajor).is_err());
        // Nothing overflows because one of them is 0.
        assert!(Shape::new(&[0, usize::MAX, 2], RowMajor).is_err());
        assert_eq!(shape(&[3, 0, 4], ColumnMajor).count(), 0);
        assert_eq!((Shape::scalar().count(), Shape::flat(7).count()), (1, 7));
    }

    #[test]
    fn a_shape_has_as_many_bytes_as_its_elements() {
        assert!(shape(&[3, 4], RowMajor).check_bytes(8, 96).is_ok());
        assert!(shape(&[0, 4], RowMajor).check_bytes(8, 0).is_ok());
        let error = shape(&[3, 4], RowMajor).check_bytes(8, 95).unwrap_err().to_string();
        assert_eq!(error, "an array of 3 x 4 with elements of 8 bytes does not have 95 bytes");
        assert!(Shape::flat(usize::MAX).check_bytes(8, usize::MAX as u64 - 7).is_err());
    }

    #[test]
    fn a_box_lies_inside_its_global_array() {
        let local = || shape(&[2, 3], RowMajor);
        assert!(local().in_box(&[4, 3], &[2, 0]).is_ok());
        for (global, offset) in [(&[4, 3][..], &[3, 0][..]), (&[4, 3], &[2, 1]), (&[4, 3], &[usize::MAX, 0])] {
            let error = local().in_box(global, offset).unwrap_err().to_string();
            assert!(error.starts_with("the box is not inside its global array"), "{error}");
        }
        assert!(local().in_box(&[4, 3, 1], &[2, 0, 0]).is_err());
        assert!(local().in_box(&[usize::MAX, 3], &[0, 0]).is_err());
        // A rank may have nothing of an array.
        assert!(shape(&[0, 3], RowMajor).in_box(&[4, 3], &[4, 0]).is_ok());
    }

    #[test]
    fn shapes_fit_if_every_element_comes_to_lie_where_it_was() {
        let fits = |saved: &Shape, into: &Shape| saved.fits(into).is_ok();
        let (c, f) = (shape(&[3, 4], RowMajor), shape(&[4, 3], ColumnMajor));
        assert!(fits(&c, &c) && fits(&c, &f) && fits(&f, &c));
        assert!(!fits(&c, &shape(&[4, 3], RowMajor)) && !fits(&c, &shape(&[3, 4], ColumnMajor)));
        assert!(!fits(&c, &shape(&[3, 4, 1], RowMajor)));
        assert!(fits(&c, &Shape::flat(12)) && fits(&Shape::flat(12), &c) && !fits(&c, &Shape::flat(11)));
        assert!(fits(&Shape::scalar(), &Shape::flat(1)) && fits(&Shape::scalar(), &Shape::scalar()));
        assert!(!fits(&Shape::scalar(), &shape(&[1, 1], RowMajor)));
        assert!(fits(&shape(&[1, 9], RowMajor), &shape(&[9, 1], ColumnMajor)));
        let error = c.fits(&shape(&[3, 4], ColumnMajor)).unwrap_err().to_string();
        assert_eq!(error, "holds 3 x 4 and not 3 x 4, column-major");
    }

    #[test]
    fn two_different_boxes_do_not_fit_but_one_and_none_do() {
        let boxed = |offset| shape(&[2, 3], RowMajor).in_box(&[6, 3], &[offset, 0]).unwrap();
        assert!(boxed(2).fits(&boxed(2)).is_ok());
        assert!(boxed(2).fits(&shape(&[2, 3], RowMajor)).is_ok() && shape(&[2, 3], RowMajor).fits(&boxed(2)).is_ok());
        let error = boxed(2).fits(&boxed(4)).unwrap_err().to_string();
        assert_eq!(error, "holds 2 x 3 at (2, 0) of 6 x 3 and not 2 x 3 at (4, 0) of 6 x 3");
    }

    #[test]
    fn a_box_has_its_indices_in_reverse_in_the_other_memory_order() {
        let boxed = |dimensions, order, global: &[usize], offset: &[usize]| {
            shape(dimensions, order).in_box(global, offset).unwrap()
        };
        let saved = boxed(&[2, 3], RowMajor, &[6, 3], &[2, 0]);
        assert!(saved.fits(&boxed(&[3, 2], ColumnMajor, &[3, 6], &[0, 2])).is_ok());
        assert!(saved.fits(&boxed(&[3, 2], ColumnMajor, &[3, 6], &[0, 4])).is_err());
        // The same numbers, and yet another part: rows here, columns there.
        let square = boxed(&[2, 2], RowMajor, &[6, 6], &[2, 0]);
        assert!(square.fits(&boxed(&[2, 2], ColumnMajor, &[6, 6], &[2, 0])).is_err());
        assert!(square.fits(&boxed(&[2, 2], ColumnMajor, &[6, 6], &[0, 2])).is_ok());
        // One row is one column, whatever the order was.
        let row = boxed(&[1, 9], RowMajor, &[5, 9], &[3, 0]);
        assert!(row.fits(&boxed(&[9, 1], ColumnMajor, &[9, 5], &[0, 3])).is_ok());
    }

    #[test]
    fn the_order_is_row_major_where_it_makes_no_difference() {
        for dimensions in [&[][..], &[7], &[1, 7, 1], &[0, 7, 7]] {
            assert_eq!(shape(dimensions, ColumnMajor), shape(dimensions, RowMajor), "{dimensions:?}");
        }
        assert_ne!(shape(&[2, 2], ColumnMajor), shape(&[2, 2], RowMajor));
    }

    #[test]
    fn elements_are_counted_in_the_order_of_memory() {
        assert_eq!(shape(&[2, 3], RowMajor).index_of(4), [1, 1]);
        assert_eq!(shape(&[2, 3], ColumnMajor).index_of(4), [0, 2]);
        assert_eq!(Shape::flat(9).index_of(4), [4]);
        assert!(Shape::scalar().index_of(0).is_empty());
    }

    #[test]
    fn shapes_can_be_read() {
        assert_eq!(Shape::scalar().to_string(), "scalar");
        assert_eq!(shape(&[512, 512], RowMajor).to_string(), "512 x 512");
        let boxed = shape(&[2, 3], ColumnMajor).in_box(&[4, 3], &[2, 0]).unwrap();
        assert_eq!(boxed.to_string(), "2 x 3 at (2, 0) of 4 x 3, column-major");
    }
}
