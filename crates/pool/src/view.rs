//! Older versions, read while the program goes on.

use std::{fmt, marker::PhantomData, ops::Deref, sync::Arc};

use outcrop_format::PoolStructure;
use outcrop_memory::Overlay;

use crate::{
    Error, Result, Versioned, layout, open,
    part::shown,
    pool::{Held, Shared},
    table::Table,
};

/// A version of a pool. Its pages stay until this and its arrays are dropped.
#[derive(Clone)]
pub struct View {
    pub(crate) shared: Arc<Shared>,
    pub(crate) held: Held,
}

/// A structure of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// Its name.
    pub name: String,
    /// The number type of its elements, as in `f64`, if they are numbers.
    pub element: Option<&'static str>,
    /// The length of an element.
    pub element_bytes: u32,
    /// The number of elements in each dimension; 1 beyond the last one.
    pub shape: [u64; 3],
    /// The length of a block.
    pub block_bytes: u64,
}

/// An array of a version: a slice.
pub struct ArrayView<T> {
    memory: Overlay,
    len: usize,
    shape: [usize; 3],
    element: PhantomData<T>,
    /// Keeps the pages.
    _view: View,
}

impl View {
    /// The number of the version.
    pub fn version(&self) -> u64 {
        self.held.root.version
    }

    /// When it was persisted, in nanoseconds since 1970.
    pub fn saved_at_unix_ns(&self) -> u64 {
        self.held.root.saved_at_unix_ns
    }

    /// The names of its structures.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.held.contents.structures.iter().map(|structure| structure.name.as_str())
    }

    /// Its structures, in the order of their names.
    pub fn structures(&self) -> impl Iterator<Item = Described> {
        self.held.contents.structures.iter().map(|it| Described {
            name: it.name.clone(),
            element: layout::number(it.layout),
            element_bytes: it.element_bytes,
            shape: it.shape,
            block_bytes: it.block_bytes,
        })
    }

    /// An array of the version.
    pub fn array<T: Versioned>(&self, name: &str) -> Result<ArrayView<T>> {
        let found = self.find(name)?;
        if (found.layout, found.element_bytes as usize) != (T::LAYOUT, size_of::<T>()) {
            return Err(Error::Misfit(format!("the elements of \"{name}\" are not of this type")));
        }
        self.show(found, found.elements() as usize)
    }

    /// The bytes of an array, whatever its elements are.
    pub fn bytes(&self, name: &str) -> Result<ArrayView<u8>> {
        let found = self.find(name)?;
        self.show(found, found.bytes() as usize)
    }

    fn show<T: Versioned>(&self, found: &PoolStructure, len: usize) -> Result<ArrayView<T>> {
        let state = self.shared.state();
        let table = Table::read(&state.file, found)?;
        let (memory, _) = shown(&state.file, found, table.blocks())?;
        let shape = found.shape.map(|count| count as usize);
        Ok(ArrayView { memory, len, shape, element: PhantomData, _view: self.clone() })
    }

    fn find(&self, name: &str) -> Result<&PoolStructure> {
        let found = self.held.contents.find(name);
        found.ok_or_else(|| {
            let names = self.names().collect::<Vec<_>>().join(", ");
            Error::Misfit(format!("version {} has no \"{name}\"; it has {names}", self.version()))
        })
    }

    /// Compares all blocks of the version with their checksums. An error names the first that is
    /// damaged.
    pub fn verify(&self) -> Result<()> {
        let state = self.shared.state();
        self.held.contents.structures.iter().try_for_each(|structure| open::verify(&state.file, structure))
    }

    /// How many blocks of a structure two versions share, and how many it has, zeros not counted.
    pub fn shared_blocks(&self, other: &View, name: &str) -> Result<(usize, usize)> {
        let state = self.shared.state();
        let table = |view: &View| Table::read(&state.file, view.find(name)?);
        let (mine, others) = (table(self)?.blocks().to_vec(), table(other)?.blocks().to_vec());
        let same = mine.iter().zip(&others).filter(|(a, b)| a == b && !a.is_zeros()).count();
        Ok((same, mine.iter().filter(|entry| !entry.is_zeros()).count()))
    }
}

impl<T: Versioned> ArrayView<T> {
    /// The number of elements in each dimension; 1 beyond the last one.
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }
}

impl<T: Versioned> Deref for ArrayView<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory has so many elements from the start of a page, every pattern of bytes
        // is a valid element, and nobody changes the pages while the view is there.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), self.len) }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ArrayView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayView").field("shape", &self.shape).finish_non_exhaustive()
    }
}
