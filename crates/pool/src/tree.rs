//! Quadtrees and octrees: cells that are refined into 2^D children, in lists of which versions are
//! durable.

mod change;
mod check;
mod links;
mod place;

use std::{
    collections::BTreeSet,
    fmt,
    ops::{Deref, Index, IndexMut},
};

use outcrop_cost::Kind;
use outcrop_format::PoolKind;

pub(crate) use self::check::{check, lengths};
use self::links::{Links, Record, State};
pub use self::place::{Face, Place};
use crate::{Block, Error, Home, List, Parts, Pool, Result, Structure, Versioned, View, list::Source};

/// The deepest level of a cell. The root has level 0.
pub const LEVEL_MAX: u32 = 30;

/// A cell of a tree. It refers to one life of the cell: when the cell is gone, because its parent
/// was coarsened or an older version was restored, this refers to nothing, also if another cell
/// has its place in memory by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    index: u32,
    stamp: u64,
}

/// A tree of the working version over the unit square (D = 2) or the unit cube (D = 3), whose cells
/// have a value each. Reading is that of a [`TreeView`]; `tree[cell]` changes a value.
///
/// The children of a cell are next to each other in memory, and a cell that is refined takes the
/// free place that is nearest. So a change in one region of space changes few blocks, and a version
/// costs what has changed: unchanged subtrees are shared.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use outcrop_pool::{Options, Pool};
/// let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2))?;
/// let mut mesh = pool.octree::<f64>("mesh")?;
/// let root = mesh.root();
/// mesh[root] = 8.0;
/// // Each child gets an eighth.
/// mesh.refine(root, |parent, _place| parent / 8.0);
/// let corner = mesh.find([0.1, 0.1, 0.9]).unwrap();
/// mesh.refine(corner, |parent, place| if place.centre()[0] < 0.25 { parent / 4.0 } else { 0.0 });
/// assert_eq!((mesh.cell_count(), mesh.leaf_count()), (17, 15));
/// assert_eq!(mesh.leaves().map(|leaf| mesh[leaf]).sum::<f64>(), 8.0);
/// let version = pool.persist(&mut [&mut mesh])?;
///
/// mesh.coarsen(corner, |children| children.iter().sum());
/// assert_eq!(mesh.leaf_count(), 8);
/// let old = pool.view(version)?.octree::<f64>("mesh")?;
/// assert_eq!(old.leaf_count(), 15);
/// # Ok::<(), outcrop_pool::Error>(())
/// ```
///
/// # Panics
///
/// Methods that take a [`Cell`] panic if it is gone, except [`get`](TreeView::get) and
/// [`contains`](TreeView::contains); all panic if the tree in the pool is damaged, which
/// [`View::verify`] finds.
pub struct Tree<T, const D: usize> {
    read: TreeView<T, D>,
    /// Groups that are free, as of this number of loads.
    free: (u64, BTreeSet<u32>),
    /// The last stamp of this program: no other cell gets one, also after a restore.
    stamp: u64,
}

/// A tree whose cells have four children.
pub type Quadtree<T> = Tree<T, 2>;
/// A tree whose cells have eight children.
pub type Octree<T> = Tree<T, 3>;

/// A tree of a version, and what can be read of any tree.
pub struct TreeView<T, const D: usize> {
    name: String,
    links: Source<Record>,
    cells: Source<T>,
}

/// The children of a cell, in Morton order: the first axis varies fastest.
#[derive(Debug, Clone)]
pub struct Children<const D: usize> {
    left: std::ops::Range<u32>,
    stamp: u64,
}

impl Pool {
    /// Opens a quadtree, as it is in the newest version, or in the one that was restored. One that
    /// is not there is made, with a root of zeros.
    pub fn quadtree<T: Versioned>(&self, name: &str) -> Result<Quadtree<T>> {
        Tree::open(self, name)
    }

    /// Opens an octree, as it is in the newest version, or in the one that was restored. One that
    /// is not there is made, with a root of zeros.
    pub fn octree<T: Versioned>(&self, name: &str) -> Result<Octree<T>> {
        Tree::open(self, name)
    }
}

impl View {
    /// A quadtree of the version.
    pub fn quadtree<T: Versioned>(&self, name: &str) -> Result<TreeView<T, 2>> {
        TreeView::of(self, name)
    }

    /// An octree of the version.
    pub fn octree<T: Versioned>(&self, name: &str) -> Result<TreeView<T, 3>> {
        TreeView::of(self, name)
    }
}

/// What the name of the part with the links between cells ends with.
pub(crate) const LINKS: &str = ".links";

pub(crate) fn links_name(name: &str) -> String {
    format!("{name}{LINKS}")
}

fn kind<const D: usize>() -> PoolKind {
    if D == 2 { PoolKind::Quadtree } else { PoolKind::Octree }
}

impl<T: Versioned, const D: usize> Tree<T, D> {
    fn open(pool: &Pool, name: &str) -> Result<Self> {
        // A change near one place is to change few bytes.
        let block = Block::elements(1);
        let mut cells = List::open(pool, name, block, kind::<D>(), 0)?;
        let mut links = List::open(pool, &links_name(name), block, kind::<D>(), 1)?;
        if links.is_empty() && cells.is_empty() {
            links.push(links::EMPTY);
            cells.set_len(1 << D);
            cells.part_mut().set_state(&State::default().bytes());
        }
        let read = TreeView { name: name.to_owned(), links: Source::Working(links), cells: Source::Working(cells) };
        read.check_lengths()?;
        Ok(Self { read, free: (u64::MAX, BTreeSet::new()), stamp: 0 })
    }

    /// Says where the values of cells are to be kept: see [`Array::place`](crate::Array::place). A
    /// function that refines, or a part of it, tells which cells change soon. Cells that are made
    /// later have no hint, or that of their neighbours in memory.
    pub fn place_cells(&mut self, home: impl Fn(&TreeView<T, D>, Cell) -> Home) {
        let mut near = Vec::new();
        self.read.traverse(self.read.root(), |cell| {
            near.extend((home(&self.read, cell) == Home::Dram).then_some(cell.index as usize));
            true
        });
        let cells = self.read.cells.list();
        cells.place(0..cells.len(), Home::Nvm);
        near.into_iter().for_each(|index| cells.place(index..index + 1, Home::Dram));
    }
}

impl<T: Versioned, const D: usize> TreeView<T, D> {
    fn of(view: &View, name: &str) -> Result<Self> {
        let cells = Source::Version(view.part(name, kind::<D>(), 0)?);
        let links = Source::Version(view.part(&links_name(name), kind::<D>(), 1)?);
        let read = Self { name: name.to_owned(), links, cells };
        read.check_lengths()?;
        Ok(read)
    }

    fn check_lengths(&self) -> Result<()> {
        let checked = lengths::<D>(self.links.len(), self.cells.len(), self.cells.state());
        checked.map_err(|problem| Error::Misfit(format!("\"{}\" is damaged: {problem}", self.name)))
    }

    #[inline]
    fn links(&self) -> Links<'_, D> {
        Links { name: &self.name, records: &self.links }
    }

    /// The index of a cell that is there.
    #[inline]
    fn index(&self, cell: Cell) -> u32 {
        match self.links().find(cell.index, cell.stamp) {
            true => cell.index,
            false => panic!("{cell:?} of \"{}\" is gone: its parent was coarsened, or a version restored", self.name),
        }
    }

    #[inline]
    fn cell(&self, index: u32) -> Cell {
        Cell { index, stamp: self.links().stamp(index) }
    }

    /// The cell that covers everything.
    pub fn root(&self) -> Cell {
        self.cell(0)
    }

    /// Whether a cell is there: not if its parent was coarsened.
    #[inline]
    pub fn contains(&self, cell: Cell) -> bool {
        self.links().find(cell.index, cell.stamp)
    }

    /// The value of a cell, if it is there.
    #[inline]
    pub fn get(&self, cell: Cell) -> Option<&T> {
        self.contains(cell).then(|| &self.cells[cell.index as usize])
    }

    /// Where a cell is.
    pub fn place(&self, cell: Cell) -> Place<D> {
        self.links().place(self.index(cell))
    }

    /// Whether a cell has no children.
    #[inline]
    pub fn is_leaf(&self, cell: Cell) -> bool {
        self.links().children(self.index(cell)).is_none()
    }

    /// The parent of a cell; the root has none.
    pub fn parent(&self, cell: Cell) -> Option<Cell> {
        self.links().parent(self.index(cell)).map(|parent| self.cell(parent))
    }

    /// The children of a cell, in Morton order; a leaf has none.
    pub fn children(&self, cell: Cell) -> Option<Children<D>> {
        let first = self.links().children(self.index(cell))?;
        Some(Children { left: first..first + (1 << D), stamp: self.links().stamp(first) })
    }

    /// The number of cells.
    pub fn cell_count(&self) -> usize {
        1 + (self.used_groups() << D)
    }

    /// The number of cells without children.
    pub fn leaf_count(&self) -> usize {
        self.cell_count() - self.used_groups()
    }

    /// How many cells have children.
    fn used_groups(&self) -> usize {
        self.links.len().saturating_sub(1 + State::read(self.cells.state()).free as usize)
    }

    /// The cells without children, in Morton order.
    pub fn leaves(&self) -> impl Iterator<Item = Cell> + '_ {
        self.leaves_below(0, |_| true)
    }

    /// The leaves below a cell, through children with these numbers only.
    fn leaves_below(&self, index: u32, takes: impl Fn(u32) -> bool) -> impl Iterator<Item = Cell> {
        let links = self.links();
        let mut left = vec![index];
        std::iter::from_fn(move || {
            loop {
                let index = left.pop()?;
                let Some(first) = links.children(index) else { return Some(self.cell(index)) };
                left.extend((0..1 << D).rev().filter(|number| takes(*number)).map(|number| first + number));
            }
        })
    }

    /// Visits cells depth first, parents before their children, children in Morton order. If
    /// `visit` says `false`, the cells below are left out.
    pub fn traverse(&self, from: Cell, mut visit: impl FnMut(Cell) -> bool) {
        let links = self.links();
        let mut left = vec![self.index(from)];
        while let Some(index) = left.pop() {
            if visit(self.cell(index))
                && let Some(first) = links.children(index)
            {
                left.extend((first..first + (1 << D)).rev());
            }
        }
    }

    /// The leaf that a point of the unit square or cube lies in. A point on a face belongs to the
    /// cell above it. `None` if it is outside: coordinates are at least 0 and less than 1.
    pub fn find(&self, point: [f64; D]) -> Option<Cell> {
        let place = Place::of_point(point)?;
        Some(self.cell(self.links().deepest(place)))
    }

    /// The cell that is at a place, if there is one.
    pub fn at(&self, place: Place<D>) -> Option<Cell> {
        let found = place.is_inside().then(|| self.links().deepest(place))?;
        (self.links().place(found) == place).then(|| self.cell(found))
    }

    /// The cell on the other side of a face: of the same level if there is one, which may have
    /// children; otherwise a coarser leaf. `None` at the border.
    pub fn neighbour(&self, cell: Cell, face: Face) -> Option<Cell> {
        let place = self.place(cell).beyond(face)?;
        Some(self.cell(self.links().deepest(place)))
    }

    /// The leaves on the other side of a face: one that is as large or larger, or several that are
    /// smaller, in Morton order. None at the border.
    pub fn neighbours(&self, cell: Cell, face: Face) -> impl Iterator<Item = Cell> + '_ {
        let across = self.neighbour(cell, face).into_iter();
        across.flat_map(move |cell| self.leaves_below(cell.index, move |number| face.opposite().touches(number)))
    }

    /// Whether leaves that share a face differ by at most one level.
    pub fn is_balanced(&self) -> bool {
        self.leaves().all(|leaf| {
            let level = self.place(leaf).level;
            let coarser = |face| self.neighbour(leaf, face).is_some_and(|other| self.place(other).level + 1 < level);
            !Face::all::<D>().any(coarser)
        })
    }
}

impl<T: Versioned, const D: usize> Deref for Tree<T, D> {
    type Target = TreeView<T, D>;

    #[inline]
    fn deref(&self) -> &TreeView<T, D> {
        &self.read
    }
}

impl<T: Versioned, const D: usize> Index<Cell> for TreeView<T, D> {
    type Output = T;

    #[inline]
    fn index(&self, cell: Cell) -> &T {
        &self.cells[self.index(cell) as usize]
    }
}

impl<T: Versioned, const D: usize> Index<Cell> for Tree<T, D> {
    type Output = T;

    #[inline]
    fn index(&self, cell: Cell) -> &T {
        &self.read[cell]
    }
}

impl<T: Versioned, const D: usize> IndexMut<Cell> for Tree<T, D> {
    #[inline]
    fn index_mut(&mut self, cell: Cell) -> &mut T {
        let index = self.read.index(cell) as usize;
        &mut self.read.cells.list()[index]
    }
}

impl<T: Versioned, const D: usize> Structure for Tree<T, D> {
    fn parts(&mut self) -> Parts<'_> {
        Parts(vec![self.read.links.list().part_mut(), self.read.cells.list().part_mut()])
    }

    /// The depth is that of a full tree with so many cells.
    fn kind(&self) -> Kind {
        Kind::Tree { depth: self.cell_count().max(1).ilog2() / D as u32 + 1, fanout: 1 << D }
    }
}

impl<const D: usize> Iterator for Children<D> {
    type Item = Cell;

    fn next(&mut self) -> Option<Cell> {
        self.left.next().map(|index| Cell { index, stamp: self.stamp })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl<const D: usize> ExactSizeIterator for Children<D> {}

impl<T: Versioned, const D: usize> fmt::Debug for TreeView<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(kind::<D>().name()).field("name", &self.name).field("cells", &self.cell_count()).finish()
    }
}

impl<T: Versioned, const D: usize> fmt::Debug for Tree<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read.fmt(f)
    }
}
