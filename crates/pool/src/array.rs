//! Versioned arrays: ordinary memory to the program.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, Index, IndexMut, Range, RangeFrom, RangeFull, RangeTo},
};

use outcrop_cost::Kind;

use crate::{Home, Part, Parts, Structure, Versioned};

/// An array of up to three dimensions, the last of which varies fastest. It is a slice to readers;
/// writing marks the blocks that change.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use outcrop_pool::{Block, Options, Pool};
/// let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2))?;
/// let mut heat = pool.array::<f64>("heat", [100, 200], Block::default())?;
/// heat[[3, 4]] = 1.5;
/// heat[0..200].fill(20.0);
/// assert_eq!(heat[3 * 200 + 4], 1.5);
/// assert_eq!(heat.iter().sum::<f64>(), 4001.5);
/// # Ok::<(), outcrop_pool::Error>(())
/// ```
pub struct Array<T> {
    pub(crate) part: Part,
    pub(crate) len: usize,
    /// The number of elements of a block is two to the power of this.
    shift: u32,
    element: PhantomData<T>,
}

impl<T: Versioned> Array<T> {
    pub(crate) fn new(part: Part) -> Self {
        let elements = part.described.block_bytes as usize / size_of::<T>();
        let len = part.described.elements() as usize;
        Self { part, len, shift: elements.trailing_zeros(), element: PhantomData }
    }

    /// The number of elements in each dimension; 1 beyond the last one.
    #[inline]
    pub fn shape(&self) -> [usize; 3] {
        self.part.described.shape.map(|count| count as usize)
    }

    /// The number of elements of a block: what is written when one of them changes.
    #[inline]
    pub fn block_len(&self) -> usize {
        1 << self.shift
    }

    /// Says where these elements are to be kept after the next time that they are persisted, until
    /// something else is said. What is changed again soon belongs into DRAM. Values do not depend
    /// on it.
    ///
    /// Without a hint, DRAM keeps what was changed, up to [`Options::dram`](crate::Options::dram).
    ///
    /// # Panics
    ///
    /// If the range is not inside the array.
    pub fn place(&mut self, elements: Range<usize>, place: Home) {
        let Range { start, end } = elements;
        assert!(start <= end && end <= self.len, "{start}..{end} of {} elements", self.len);
        self.part.place(start * size_of::<T>()..end * size_of::<T>(), place);
    }

    /// An element that may be changed.
    #[inline]
    fn element_mut(&mut self, index: usize) -> &mut T {
        if index >= self.len {
            outside(index, self.len);
        }
        // SAFETY: there is such an element, and it is inside the memory, as for a range.
        unsafe { &mut *self.part.element(index, self.shift).cast::<T>().add(index) }
    }

    #[inline]
    fn at(&self, index: [usize; 3]) -> usize {
        let shape = self.shape();
        assert!((0..3).all(|axis| index[axis] < shape[axis]), "element {index:?} of {shape:?}");
        (index[0] * shape[1] + index[1]) * shape[2] + index[2]
    }
}

#[cold]
fn outside(index: usize, len: usize) -> ! {
    panic!("element {index} of {len}")
}

impl<T: Versioned> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: as for a range.
        unsafe { std::slice::from_raw_parts(self.part.memory.as_ptr().cast(), self.len) }
    }
}

impl<T: Versioned> Index<usize> for Array<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &(**self)[index]
    }
}

impl<T: Versioned> IndexMut<usize> for Array<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.element_mut(index)
    }
}

impl<T: Versioned> Index<Range<usize>> for Array<T> {
    type Output = [T];

    #[inline]
    fn index(&self, range: Range<usize>) -> &[T] {
        &(**self)[range]
    }
}

/// All blocks of the range count as changed; what turns out to be the same is not written.
impl<T: Versioned> IndexMut<Range<usize>> for Array<T> {
    #[inline]
    fn index_mut(&mut self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        let bytes = self.part.write(range.start * size_of::<T>()..range.end * size_of::<T>());
        // SAFETY: the bytes are whole elements, at a multiple of an element from the start of a
        // page, and every pattern of bytes is a valid element.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), range.len()) }
    }
}

/// Other ranges: as one with both ends.
macro_rules! ranges {
    ($($range:ty, |$it:pat_param, $len:ident| $as:expr;)*) => {
        $(
            impl<T: Versioned> Index<$range> for Array<T> {
                type Output = [T];

                #[inline]
                fn index(&self, range: $range) -> &[T] {
                    &(**self)[range]
                }
            }

            impl<T: Versioned> IndexMut<$range> for Array<T> {
                #[inline]
                fn index_mut(&mut self, $it: $range) -> &mut [T] {
                    let $len = self.len;
                    &mut self[$as]
                }
            }
        )*
    };
}

ranges! {
    RangeFull, |_, len| 0..len;
    RangeFrom<usize>, |it, len| it.start..len;
    RangeTo<usize>, |it, _len| 0..it.end;
}

impl<T: Versioned> Index<[usize; 2]> for Array<T> {
    type Output = T;

    #[inline]
    fn index(&self, [row, column]: [usize; 2]) -> &T {
        &(**self)[self.at([row, column, 0])]
    }
}

impl<T: Versioned> IndexMut<[usize; 2]> for Array<T> {
    #[inline]
    fn index_mut(&mut self, [row, column]: [usize; 2]) -> &mut T {
        self.element_mut(self.at([row, column, 0]))
    }
}

impl<T: Versioned> Index<[usize; 3]> for Array<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: [usize; 3]) -> &T {
        &(**self)[self.at(index)]
    }
}

impl<T: Versioned> IndexMut<[usize; 3]> for Array<T> {
    #[inline]
    fn index_mut(&mut self, index: [usize; 3]) -> &mut T {
        self.element_mut(self.at(index))
    }
}

impl<T: Versioned> Structure for Array<T> {
    fn parts(&mut self) -> Parts<'_> {
        Parts(vec![&mut self.part])
    }

    fn kind(&self) -> Kind {
        Kind::Array { dimensions: self.shape().iter().rposition(|count| *count != 1).map_or(1, |last| last as u32 + 1) }
    }
}

impl<T: Versioned> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array").field("name", &self.part.described.name).field("shape", &self.shape()).finish()
    }
}

/// The shape of an array: a number of elements, or one for each of up to three dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape(pub(crate) [u64; 3]);

impl From<usize> for Shape {
    fn from(count: usize) -> Self {
        Self([count as u64, 1, 1])
    }
}

impl From<[usize; 1]> for Shape {
    fn from([count]: [usize; 1]) -> Self {
        Self([count as u64, 1, 1])
    }
}

impl From<[usize; 2]> for Shape {
    fn from([rows, columns]: [usize; 2]) -> Self {
        Self([rows as u64, columns as u64, 1])
    }
}

impl From<[usize; 3]> for Shape {
    fn from(shape: [usize; 3]) -> Self {
        Self(shape.map(|count| count as u64))
    }
}
