//! Regions of a program's memory, borrowed for one call.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Element, LIST, MemoryOrder, Shape, ShapeError};

/// What a program says of the shape of a region; it is checked when the region is used.
#[derive(Debug, Clone, Default)]
struct Form {
    dimensions: Option<Vec<usize>>,
    order: MemoryOrder,
    /// The dimensions of the global array, and where the region begins in it.
    global: Option<(Vec<usize>, Vec<usize>)>,
}

impl Form {
    /// One element.
    fn scalar() -> Self {
        Self { dimensions: Some(Vec::new()), ..Self::default() }
    }

    /// The shape of so many bytes.
    fn shape(&self, name: &str, element_bytes: usize, bytes: usize) -> Result<Shape, ShapeError> {
        self.checked(element_bytes, bytes).map_err(|error| error.of_region(name))
    }

    fn checked(&self, element_bytes: usize, bytes: usize) -> Result<Shape, ShapeError> {
        let element_bytes = element_bytes.max(1);
        let dimensions = match (&self.dimensions, &self.global) {
            (Some(dimensions), _) => dimensions.clone(),
            (None, Some((global, _))) => whole_rows(global, bytes / element_bytes),
            (None, None) => vec![bytes / element_bytes],
        };
        let mut shape = Shape::new(&dimensions, self.order)?;
        if let Some((global, offset)) = &self.global {
            shape = shape.in_box(global, offset)?;
        }
        shape.check_bytes(element_bytes, bytes as u64)?;
        Ok(shape)
    }
}

impl From<&Shape> for Form {
    fn from(shape: &Shape) -> Self {
        let global = shape.global().map(|global| (global.shape().to_vec(), global.offset().to_vec()));
        Self { dimensions: Some(shape.dimensions().to_vec()), order: shape.order(), global }
    }
}

/// The dimensions of so many elements of a global array that are all of it but for the first
/// dimension.
fn whole_rows(global: &[usize], count: usize) -> Vec<usize> {
    let mut dimensions = global.to_vec();
    if let Some((first, others)) = dimensions.split_first_mut() {
        let row = others.iter().copied().fold(1, usize::saturating_mul);
        *first = count.checked_div(row).unwrap_or(*first);
    }
    dimensions
}

/// The methods by which a program says what shape a region has.
macro_rules! shaped {
    () => {
        /// Says its dimensions, in the order of the indices. Default: one dimension.
        #[must_use]
        pub fn shaped(mut self, dimensions: &[usize]) -> Self {
            self.form.dimensions = Some(dimensions.to_vec());
            self
        }

        /// Says which index runs fastest in memory. Default: the last one.
        #[must_use]
        pub fn in_order(mut self, order: MemoryOrder) -> Self {
            self.form.order = order;
            self
        }

        /// Says that it is a part (a box) of a global array of these dimensions, and the index of
        /// its first element there. Unless [`shaped`](Self::shaped) says otherwise, it has all of
        /// the global array but for the first dimension: whole rows.
        #[must_use]
        pub fn in_box(mut self, global: &[usize], offset: &[usize]) -> Self {
            self.form.global = Some((global.to_vec(), offset.to_vec()));
            self
        }

        /// Gives it this shape.
        #[must_use]
        pub fn like(mut self, shape: &Shape) -> Self {
            self.form = shape.into();
            self
        }
    };
}

/// A named region to be saved.
///
/// ```
/// use outcrop_region::Part;
///
/// let (nz, ny, nx) = (4, 5, 6);
/// let field = vec![0f32; nz * ny * nx];
/// let whole = Part::new("field", &field).shaped(&[nz, ny, nx]);
/// assert_eq!(whole.shape().unwrap().to_string(), "4 x 5 x 6");
/// // Planes 8 to 12 of a global array of 16 planes.
/// let part = Part::boxed("field", &field, &[16, ny, nx], &[8, 0, 0]);
/// assert_eq!(part.shape().unwrap().to_string(), "4 x 5 x 6 at (8, 0, 0) of 16 x 5 x 6");
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Part<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is made of.
    pub element: Element,
    /// Its bytes.
    pub bytes: &'a [u8],
    form: Form,
}

impl<'a> Part<'a> {
    /// `values` under `name`.
    pub fn new<T: IntoBytes + Immutable>(name: &'a str, values: &'a [T]) -> Self {
        Self::of(name, Element::of::<T>(), values.as_bytes())
    }

    /// The bytes of some elements under `name`.
    pub fn of(name: &'a str, element: Element, bytes: &'a [u8]) -> Self {
        Self { name, element, bytes, form: Form::default() }
    }

    /// One value under `name`: an array without dimensions.
    pub fn one<T: IntoBytes + Immutable>(name: &'a str, value: &'a T) -> Self {
        Self { form: Form::scalar(), ..Self::new(name, std::slice::from_ref(value)) }
    }

    /// `values` under `name`, which are a part of a global array of shape `global` and begin there
    /// at `offset`: [`in_box`](Self::in_box).
    pub fn boxed<T: IntoBytes + Immutable>(name: &'a str, values: &'a [T], global: &[usize], offset: &[usize]) -> Self {
        Self::new(name, values).in_box(global, offset)
    }

    /// `values` under `name`, which are this rank's part of a list: the parts of all ranks, in the
    /// order of the ranks. Their number may differ between ranks and versions.
    pub fn list<T: IntoBytes + Immutable>(name: &'a str, values: &'a [T]) -> Self {
        Self::boxed(name, values, &[LIST], &[0])
    }

    shaped!();

    /// How its elements form an array, if what was said of it makes sense.
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        self.form.shape(self.name, self.element.bytes(), self.bytes.len())
    }
}

/// A named region to be restored.
#[derive(Debug)]
#[non_exhaustive]
pub struct PartMut<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is made of.
    pub element: Element,
    /// Its bytes.
    pub bytes: &'a mut [u8],
    form: Form,
    /// The dimensions that the saved region must have, in whatever memory order.
    dimensions: Option<Vec<usize>>,
}

impl<'a> PartMut<'a> {
    /// The region `name`, to be put into `values`.
    pub fn new<T: FromBytes + IntoBytes>(name: &'a str, values: &'a mut [T]) -> Self {
        Self::of(name, Element::of::<T>(), values.as_mut_bytes())
    }

    /// The region `name`, to be put into the bytes of some elements.
    pub fn of(name: &'a str, element: Element, bytes: &'a mut [u8]) -> Self {
        Self { name, element, bytes, form: Form::default(), dimensions: None }
    }

    /// The region `name`, to be put into one value.
    pub fn one<T: FromBytes + IntoBytes>(name: &'a str, value: &'a mut T) -> Self {
        Self { form: Form::scalar(), ..Self::new(name, std::slice::from_mut(value)) }
    }

    /// The region `name`, to be put into `values`, which are a part of a global array:
    /// [`Part::boxed`].
    pub fn boxed<T: FromBytes + IntoBytes>(
        name: &'a str,
        values: &'a mut [T],
        global: &[usize],
        offset: &[usize],
    ) -> Self {
        Self::new(name, values).in_box(global, offset)
    }

    /// The elements of the list `name` from number `first` on, to be put into `values`:
    /// [`Part::list`].
    pub fn list<T: FromBytes + IntoBytes>(name: &'a str, values: &'a mut [T], first: usize) -> Self {
        Self::boxed(name, values, &[LIST], &[first])
    }

    shaped!();

    /// How its elements form an array, if what was said of it makes sense.
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        self.form.shape(self.name, self.element.bytes(), self.bytes.len())
    }

    /// It was saved with these dimensions, in whatever memory order: its elements come in the order
    /// in which they lay in memory, and the program puts them in its own.
    #[must_use]
    pub fn of_dimensions(mut self, dimensions: &[usize]) -> Self {
        self.dimensions = Some(dimensions.to_vec());
        self
    }

    /// An error if a region that was saved with this shape does not fit.
    pub fn check(&self, saved: &Shape) -> Result<(), ShapeError> {
        let shape = self.shape()?;
        match &self.dimensions {
            Some(dimensions) if saved.dimensions() != dimensions => {
                let asked = Shape::new(dimensions, MemoryOrder::RowMajor)?;
                Err(ShapeError(format!("holds {saved} and not {asked}")))
            }
            Some(_) => Ok(()),
            None => saved.fits(&shape),
        }
    }
}

/// A named region that is to be lent: what a program will fill.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Blank<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is made of.
    pub element: Element,
    /// How many elements it has.
    pub count: usize,
    form: Form,
}

impl<'a> Blank<'a> {
    /// `count` values of `T` under `name`.
    pub fn new<T: FromBytes + IntoBytes>(name: &'a str, count: usize) -> Self {
        Self::of(name, Element::of::<T>(), count)
    }

    /// `count` of these elements under `name`.
    pub fn of(name: &'a str, element: Element, count: usize) -> Self {
        Self { name, element, count, form: Form::default() }
    }

    shaped!();

    /// Its length; nothing if that is larger than memory can be.
    pub fn bytes(&self) -> Option<usize> {
        self.count.checked_mul(self.element.bytes())
    }

    /// How its elements form an array, if what was said of it makes sense.
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        self.form.shape(self.name, self.element.bytes(), self.bytes().unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_one_dimension_unless_said_otherwise() {
        let values = [0f64; 12];
        assert_eq!(Part::new("a", &values).shape().unwrap(), Shape::flat(12));
        assert_eq!(Part::one("a", &1u64).shape().unwrap(), Shape::scalar());
        let shaped = Part::new("a", &values).shaped(&[3, 4]).in_order(MemoryOrder::ColumnMajor).shape().unwrap();
        assert_eq!(shaped.to_string(), "3 x 4, column-major");
        assert_eq!(Part::new("a", &values).like(&shaped).shape().unwrap(), shaped);
        let error = Part::new("a", &values).shaped(&[3, 5]).shape().unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("cannot have this shape: an array of 3 x 5 with elements of 8 bytes does not have 96 bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_box_has_whole_rows_unless_said_otherwise() {
        let values = [0f32; 12];
        let rows = Part::boxed("a", &values, &[9, 4], &[6, 0]).shape().unwrap();
        assert_eq!(rows.to_string(), "3 x 4 at (6, 0) of 9 x 4");
        let tile = Part::boxed("a", &values, &[9, 4], &[0, 2]).shaped(&[6, 2]).shape().unwrap();
        assert_eq!(tile.to_string(), "6 x 2 at (0, 2) of 9 x 4");
        // 12 elements are no rows of 5.
        assert!(Part::boxed("a", &values, &[9, 5], &[0, 0]).shape().is_err());
        assert!(Part::boxed("a", &values, &[9, 4], &[7, 0]).shape().is_err());
        assert!(Part::boxed::<f32>("a", &[], &[9, 0], &[0, 0]).shape().is_ok());
    }

    #[test]
    fn a_blank_is_not_larger_than_memory() {
        assert_eq!(Blank::new::<f64>("a", 6).shaped(&[2, 3]).shape().unwrap().count(), 6);
        assert_eq!(Blank::new::<f64>("a", usize::MAX).bytes(), None);
        assert!(Blank::new::<f64>("a", usize::MAX).shape().is_err());
    }
}
