//! Older versions, read while the program goes on.

use std::{fmt, marker::PhantomData, ops::Deref, sync::Arc};

use outcrop_format::{PoolKind, PoolStructure};
use outcrop_memory::Overlay;

use crate::{
    Error, Result, Versioned,
    error::Checked,
    graph, layout, open,
    part::{is_line, memory, shown, state},
    pool::{Held, Shared},
    table::Table,
    tree, whole,
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
    /// What it is, or what it is part of: `array`, `list`, `quadtree`, `octree` or `graph`.
    pub kind: &'static str,
    /// The number type of its elements, as in `f64`, if they are numbers, or rows of numbers.
    pub element: Option<&'static str>,
    /// The hash of the layout of its elements: see [`Versioned::LAYOUT`].
    pub layout: u64,
    /// The length of an element.
    pub element_bytes: u32,
    /// The number of elements in each dimension; 1 beyond the last one. Rows are a dimension.
    pub shape: [u64; 3],
    /// The length of a block.
    pub block_bytes: u64,
}

/// An array of a version: a slice.
pub struct ArrayView<T> {
    memory: Overlay,
    len: usize,
    shape: [usize; 3],
    /// The bytes of the owner of the structure.
    pub(crate) state: Vec<u8>,
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
        let is_part = |it: &&PoolStructure| it.kind().is_some_and(|(_, part)| part > 0);
        self.held.contents.structures.iter().filter(move |it| !is_part(it)).map(|it| it.name.as_str())
    }

    /// Its structures with all their parts, in the order of their names.
    pub fn structures(&self) -> impl Iterator<Item = Described> {
        self.held.contents.structures.iter().map(|it| {
            let mut shape = it.shape;
            // Rows are the dimension after the last one, if there is one.
            let row = shape.iter().rposition(|count| *count != 1).map_or(1, |last| last + 1);
            let numbers = layout::numbers(it.layout, it.element_bytes).filter(|(.., count)| *count == 1 || row < 3);
            if let Some((.., count)) = numbers.filter(|(.., count)| *count > 1) {
                shape[row] = count;
            }
            Described {
                name: it.name.clone(),
                kind: it.kind().map_or("unknown", |(kind, _)| kind.name()),
                element: numbers.map(|(name, ..)| name),
                layout: it.layout,
                element_bytes: numbers.map_or(it.element_bytes, |(_, bytes, _)| bytes),
                shape,
                block_bytes: it.block_bytes,
            }
        })
    }

    /// An array of the version.
    pub fn array<T: Versioned>(&self, name: &str) -> Result<ArrayView<T>> {
        self.part(name, PoolKind::Array, 0)
    }

    /// A list of the version.
    pub fn list<T: Versioned>(&self, name: &str) -> Result<ArrayView<T>> {
        self.part(name, PoolKind::List, 0)
    }

    /// A part of a structure.
    pub(crate) fn part<T: Versioned>(&self, name: &str, kind: PoolKind, part: u8) -> Result<ArrayView<T>> {
        let found = self.find(name)?;
        if found.kind() != Some((kind, part)) {
            let is = found.kind().map_or("structure of another program", |(kind, _)| kind.name());
            return Err(Error::Misfit(format!("\"{name}\" is another kind of structure ({is}, not {})", kind.name())));
        }
        if (found.layout, found.element_bytes as usize) != (T::LAYOUT, size_of::<T>()) {
            return Err(Error::Misfit(format!("the elements of \"{name}\" are not of this type")));
        }
        if kind != PoolKind::Array && !is_line(found) {
            return Err(Error::Misfit(format!(
                "\"{name}\" has the shape {:?}, and should have one dimension",
                found.shape
            )));
        }
        self.show(found, found.elements() as usize)
    }

    /// As [`bytes`](Self::bytes), after all blocks were compared with their checksums: for copies,
    /// which would hide damage.
    pub fn bytes_verified(&self, name: &str) -> Result<ArrayView<u8>> {
        open::verify(&self.shared.owned_state()?.file, self.find(name)?)?;
        self.bytes(name)
    }

    /// The bytes of a structure, whatever its elements are.
    pub fn bytes(&self, name: &str) -> Result<ArrayView<u8>> {
        let found = self.find(name)?;
        self.show(found, found.bytes() as usize)
    }

    fn show<T: Versioned>(&self, found: &PoolStructure, len: usize) -> Result<ArrayView<T>> {
        let pool = self.shared.owned_state()?;
        let table = Table::read(&pool.file, found)?;
        let (memory, _) = shown(&pool.file, found, table.blocks(), memory(found, false)?)?;
        let (shape, state) = (found.shape.map(|count| count as usize), state(found).to_vec());
        Ok(ArrayView { memory, len, shape, state, element: PhantomData, _view: self.clone() })
    }

    pub(crate) fn find(&self, name: &str) -> Result<&PoolStructure> {
        let found = self.held.contents.find(name);
        found.ok_or_else(|| {
            let names = self.names().collect::<Vec<_>>().join(", ");
            Error::Misfit(format!("version {} has no \"{name}\"; it has {names}", self.version()))
        })
    }

    /// Compares all blocks of the version with their checksums, and follows all links of trees and
    /// graphs. An error names the first that is damaged.
    pub fn verify(&self) -> Result<()> {
        let structures = &self.held.contents.structures;
        let state = self.shared.owned_state()?;
        structures.iter().try_for_each(|structure| open::verify(&state.file, structure))?;
        let location = state.file.location.clone();
        drop(state);
        for it in structures {
            let checked = match it.kind() {
                Some((PoolKind::Quadtree, 0)) => self.check_tree::<2>(it)?,
                Some((PoolKind::Octree, 0)) => self.check_tree::<3>(it)?,
                Some((PoolKind::Graph, 0)) => self.check_graph(it)?,
                _ => whole::check(&self.held.contents, it),
            };
            checked.map_err(|problem| {
                let problem = format!("\"{}\": {problem}", it.name);
                Error::Wrong { location: location.clone(), problem }
            })?;
        }
        Ok(())
    }

    fn check_tree<const D: usize>(&self, cells: &PoolStructure) -> Result<Checked> {
        let kind = if D == 2 { PoolKind::Quadtree } else { PoolKind::Octree };
        let links = self.part(&tree::links_name(&cells.name), kind, 1)?;
        Ok(tree::check::<D>(&links, cells.elements() as usize, state(cells)))
    }

    fn check_graph(&self, nodes: &PoolStructure) -> Result<Checked> {
        let name = |part: usize| format!("{}{}", nodes.name, graph::PARTS[part]);
        let offsets = self.part(&name(1), PoolKind::Graph, 1)?;
        let targets = self.part(&name(2), PoolKind::Graph, 2)?;
        let values = self.find(&name(3))?.elements() as usize;
        let rows = self.part(&name(4), PoolKind::Graph, 4)?;
        Ok(graph::check(state(nodes), nodes.elements() as usize, &offsets, &targets, values, &rows))
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
