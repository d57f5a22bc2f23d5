//! Arrays that can grow: their length is part of a version.

use std::{
    fmt,
    ops::{Deref, Index, IndexMut, Range},
};

use outcrop_format::PoolKind;

use crate::{Array, ArrayView, Block, Home, Part, Parts, Pool, Result, Structure, Versioned};

/// An array of one dimension that can grow and shrink. It is a slice to readers; writing marks the
/// blocks that change.
///
/// Its length is part of a version: [`Pool::restore`] brings it back, too, and so does opening the
/// pool after a crash. Versions of different lengths share the blocks that are the same. Addresses
/// of elements stay until the list has grown by 64 GiB, or has doubled where the system limits
/// address space.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use outcrop_pool::{Block, Options, Pool};
/// let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2))?;
/// let mut times = pool.list::<f64>("times", Block::default())?;
/// times.push(0.5);
/// times.extend([1.0, 1.5]);
/// let version = pool.persist(&mut [&mut times])?;
/// times[1] = 7.0;
/// times.truncate(2);
/// assert_eq!(times[..], [0.5, 7.0]);
/// assert_eq!(pool.view(version)?.list::<f64>("times")?[..], [0.5, 1.0, 1.5]);
/// pool.restore(version, &mut [&mut times])?;
/// assert_eq!(times.len(), 3);
/// # Ok::<(), outcrop_pool::Error>(())
/// ```
///
/// # Panics
///
/// Methods that make it longer panic if the system has no address space for that. Nothing has
/// changed then.
pub struct List<T> {
    /// Its number of elements is that of the last access; see `array_mut`.
    array: Array<T>,
}

impl Pool {
    /// Opens a list, with its elements as they are in the newest version, or in the one that was
    /// restored. One that is not there is made, and is empty.
    #[inline]
    pub fn list<T: Versioned>(&self, name: &str, block: Block) -> Result<List<T>> {
        List::open(self, name, block, PoolKind::List, 0)
    }
}

impl<T: Versioned> List<T> {
    /// A list that is a part of a structure.
    pub(crate) fn open(pool: &Pool, name: &str, block: Block, kind: PoolKind, part: u8) -> Result<Self> {
        let part = pool.part::<T>(name, None, block, &[kind as u8, part])?;
        Ok(Self { array: Array::new(part) })
    }

    #[inline]
    pub(crate) fn part(&self) -> &Part {
        &self.array.part
    }

    #[inline]
    pub(crate) fn part_mut(&mut self) -> &mut Part {
        &mut self.array.part
    }

    /// The array with all elements that there are now: the part may have become another version
    /// since the last access.
    #[inline]
    fn array_mut(&mut self) -> &mut Array<T> {
        self.array.len = self.array.part.described.shape[0] as usize;
        &mut self.array
    }

    /// The number of elements of a block: what is written when one of them changes.
    pub fn block_len(&self) -> usize {
        self.array.block_len()
    }

    /// Says where these elements are to be kept: see [`Array::place`].
    ///
    /// # Panics
    ///
    /// If the range is not inside the list.
    pub fn place(&mut self, elements: Range<usize>, home: Home) {
        self.array_mut().place(elements, home);
    }

    /// Adds an element at the end.
    pub fn push(&mut self, value: T) {
        let len = self.len();
        self.set_len(len + 1);
        self[len] = value;
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<T> {
        let last = *self.last()?;
        self.set_len(self.len() - 1);
        Some(last)
    }

    /// Adds elements at the end.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        let len = self.len();
        self.set_len(len + values.len());
        self[len..].copy_from_slice(values);
    }

    /// Removes all elements from this index on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.set_len(len);
        }
    }

    /// Has so many elements; new ones have this value.
    pub fn resize(&mut self, len: usize, value: T) {
        let before = self.len();
        self.set_len(len);
        if len > before {
            self[before..].fill(value);
        }
    }

    /// Has so many elements; new ones are zeros.
    pub(crate) fn set_len(&mut self, len: usize) {
        let part = &mut self.array.part;
        if let Err(error) = part.resize(len) {
            panic!("the list \"{}\" cannot have {len} elements: {error}", part.described.name);
        }
    }
}

impl<T: Versioned> Extend<T> for List<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

impl<T: Versioned> Deref for List<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        let part = &self.array.part;
        // SAFETY: the memory has all blocks of the part, and so all its elements, from the start of
        // a page on, and every pattern of bytes is a valid element.
        unsafe { std::slice::from_raw_parts(part.memory.as_ptr().cast(), part.described.shape[0] as usize) }
    }
}

impl<T: Versioned, I> Index<I> for List<T>
where
    [T]: Index<I>,
    Array<T>: IndexMut<I>,
{
    type Output = <[T] as Index<I>>::Output;

    #[inline]
    fn index(&self, index: I) -> &Self::Output {
        &(**self)[index]
    }
}

/// As for [`Array`]: all blocks of a range count as changed.
impl<T: Versioned, I, O: ?Sized> IndexMut<I> for List<T>
where
    [T]: Index<I, Output = O>,
    Array<T>: IndexMut<I, Output = O>,
{
    #[inline]
    fn index_mut(&mut self, index: I) -> &mut O {
        &mut self.array_mut()[index]
    }
}

impl<T: Versioned> Structure for List<T> {
    fn parts(&mut self) -> Parts<'_> {
        Parts(vec![&mut self.array.part])
    }
}

impl<T: Versioned> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("name", &self.part().described.name).field("len", &self.len()).finish()
    }
}

/// A part of a structure with several: that of the working version, or of a view.
pub(crate) enum Source<T> {
    Working(List<T>),
    Version(ArrayView<T>),
}

impl<T: Versioned> Source<T> {
    /// The bytes of the owner.
    #[inline]
    pub(crate) fn state(&self) -> &[u8] {
        match self {
            Self::Working(list) => list.part().state(),
            Self::Version(view) => &view.state,
        }
    }

    /// How often the elements have become those of another version.
    pub(crate) fn loads(&self) -> u64 {
        match self {
            Self::Working(list) => list.part().loads(),
            Self::Version(_) => 0,
        }
    }

    /// To be changed.
    ///
    /// # Panics
    ///
    /// If it is part of a view, of which nobody has a structure that can change.
    #[inline]
    pub(crate) fn list(&mut self) -> &mut List<T> {
        match self {
            Self::Working(list) => list,
            Self::Version(_) => unreachable!("a view does not change"),
        }
    }
}

impl<T: Versioned> Deref for Source<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Working(list) => list,
            Self::Version(view) => view,
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::Options;

    /// Lists lie elsewhere after each step.
    #[test]
    fn a_list_that_moves_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pool");
        let mut rng = Rng::with_seed(1);
        let (mut expected, mut versions) = (Vec::new(), Vec::new());
        let mut pool = Pool::open(&path, Options::versions(4)).unwrap();
        let mut list = pool.list::<u64>("a", Block::elements(1)).unwrap();
        for round in 0..200 {
            match rng.u8(..7) {
                6 => {
                    // Zeros, which nobody writes.
                    expected.resize(rng.usize(..9000), 0);
                    list.set_len(expected.len());
                }
                0 => {
                    let more: Vec<u64> = (0..rng.u64(..3000)).map(|index| index + round).collect();
                    list.extend_from_slice(&more);
                    expected.extend(more);
                }
                1 => {
                    expected.truncate(rng.usize(..=expected.len()));
                    list.truncate(expected.len());
                }
                2 => {
                    let version = pool.persist(&mut [&mut list]).unwrap();
                    versions.push((version, expected.clone()));
                }
                3 if versions.len() > 2 => {
                    let (version, known) = versions[versions.len() - 2].clone();
                    pool.restore(version, &mut [&mut list]).unwrap();
                    expected = known;
                }
                4 if versions.len() > 2 => {
                    drop((list, pool));
                    pool = Pool::open(&path, Options::versions(4)).unwrap();
                    list = pool.list("a", Block::default()).unwrap();
                    expected = versions[versions.len() - 1].1.clone();
                }
                _ if !expected.is_empty() => {
                    let at = rng.usize(..expected.len());
                    expected[at] = rng.u64(..);
                    list[at] = expected[at];
                }
                _ => {}
            }
            let part = list.part_mut();
            let bytes = (part.described.blocks() * part.described.block_bytes) as usize;
            part.move_to(outcrop_memory::Overlay::new(bytes).unwrap());
            assert!(list[..] == expected[..], "round {round}");
        }
    }
}
