//! Graphs: nodes with a state each, and edges with a value each, sorted by where they begin (CSR,
//! compressed sparse rows), in lists of which versions are durable.

mod change;
mod check;

use std::{
    fmt,
    ops::{Deref, Index, IndexMut, Range},
};

use outcrop_cost::Kind;
use outcrop_format::PoolKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

pub(crate) use self::check::{check, lengths};
use crate::{Block, Error, Home, List, Parts, Pool, Result, Structure, Versioned, View, list::Source};

/// A graph of the working version. Its nodes are numbered from 0, and have a state `N` each. Edges
/// lead from one node to another, and have a value `E` each, as a weight. Several edges may lead
/// from one node to the same other one. Reading is that of a [`GraphView`]; `graph[node]` changes a
/// state.
///
/// Edges are kept as a base in CSR form, and at most some twenty segments with those of later
/// batches, each in the same form for the nodes that have edges in it. To add a batch writes that
/// batch: 4 bytes and a value per edge, 16 bytes per node that has edges in it, and a block of each
/// list. A segment that is less than twice as large as what follows it is merged with that, so an
/// edge is written a few times more, by the logarithm of the number of batches at most. When all
/// segments have more than a quarter of the edges of the base, everything is merged into a new
/// base.
///
/// ```
/// # let dir = tempfile::tempdir().unwrap();
/// use outcrop_pool::{Options, Pool};
/// let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2))?;
/// let mut web = pool.graph::<f64, f32>("web")?;
/// web.add_nodes([0.25; 4]);
/// web.add_edges(&[(0, 1, 0.5), (0, 3, 0.5), (2, 0, 1.0)]);
/// web[1] = 0.75;
/// assert_eq!(web.edges(0).collect::<Vec<_>>(), [(1, &0.5), (3, &0.5)]);
/// let version = pool.persist(&mut [&mut web])?;
///
/// web.add_edges(&[(0, 2, 1.0), (3, 0, 1.0)]);
/// web.update_edges(0, |_to, weight| *weight = 1.0 / 3.0);
/// assert_eq!((web.degree(0), web.edge_count()), (3, 5));
/// let old = pool.view(version)?.graph::<f64, f32>("web")?;
/// assert_eq!((old.degree(0), old[1]), (2, 0.75));
/// # Ok::<(), outcrop_pool::Error>(())
/// ```
///
/// # Panics
///
/// Methods panic if there is no such node, if the system has no memory for more, or if the graph in
/// the pool is damaged, which [`View::verify`] finds.
pub struct Graph<N, E> {
    read: GraphView<N, E>,
}

/// A graph of a version, and what can be read of any graph.
pub struct GraphView<N, E> {
    name: String,
    nodes: Source<N>,
    /// For each node of the base, where its edges begin; and where the base ends.
    offsets: Source<u64>,
    /// For each edge, where it leads: the base, and then the segments.
    targets: Source<u32>,
    values: Source<E>,
    /// For each segment, the nodes that have edges in it, and where these begin.
    rows: Source<Row>,
}

/// A node, and the first of its edges in a segment.
pub(crate) type Row = [u64; 2];

/// Where a segment begins, in the rows and in the edges. The last one is where everything ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Bound {
    row: U64,
    edge: U64,
}

/// The names of the parts, after that of the structure, in the order of their numbers.
pub(crate) const PARTS: [&str; 5] = ["", ".offsets", ".targets", ".values", ".rows"];

impl Pool {
    /// Opens a graph, as it is in the newest version, or in the one that was restored. One that is
    /// not there is made, and is empty.
    pub fn graph<N: Versioned, E: Versioned>(&self, name: &str) -> Result<Graph<N, E>> {
        fn list<T: Versioned>(pool: &Pool, name: &str, part: usize) -> Result<Source<T>> {
            let (name, block) = (format!("{name}{}", PARTS[part]), Block::elements(1));
            Ok(Source::Working(List::open(pool, &name, block, PoolKind::Graph, part as u8)?))
        }
        let read = GraphView {
            name: name.to_owned(),
            nodes: list(self, name, 0)?,
            offsets: list(self, name, 1)?,
            targets: list(self, name, 2)?,
            values: list(self, name, 3)?,
            rows: list(self, name, 4)?,
        };
        read.check_lengths()?;
        Ok(Graph { read })
    }
}

impl View {
    /// A graph of the version.
    pub fn graph<N: Versioned, E: Versioned>(&self, name: &str) -> Result<GraphView<N, E>> {
        fn part<T: Versioned>(view: &View, name: &str, part: usize) -> Result<Source<T>> {
            Ok(Source::Version(view.part(&format!("{name}{}", PARTS[part]), PoolKind::Graph, part as u8)?))
        }
        let read = GraphView {
            name: name.to_owned(),
            nodes: part(self, name, 0)?,
            offsets: part(self, name, 1)?,
            targets: part(self, name, 2)?,
            values: part(self, name, 3)?,
            rows: part(self, name, 4)?,
        };
        read.check_lengths()?;
        Ok(read)
    }
}

/// Where segments begin, and where everything ends.
#[inline]
pub(crate) fn bounds(state: &[u8]) -> Option<&[Bound]> {
    const NEW: &[Bound] = &[Bound { row: U64::ZERO, edge: U64::ZERO }];
    if state.is_empty() { Some(NEW) } else { <[Bound]>::ref_from_bytes(state).ok() }
}

impl Bound {
    fn new(row: usize, edge: usize) -> Self {
        Self { row: (row as u64).into(), edge: (edge as u64).into() }
    }

    #[inline]
    fn row(&self) -> usize {
        self.row.get() as usize
    }

    #[inline]
    fn edge(&self) -> usize {
        self.edge.get() as usize
    }
}

impl<N: Versioned, E: Versioned> GraphView<N, E> {
    fn check_lengths(&self) -> Result<()> {
        let (edges, rows) = (self.targets.len().min(self.values.len()), self.rows.len());
        let checked = lengths(self.nodes.state(), edges, rows, self.offsets.len());
        checked.map_err(|problem| Error::Misfit(format!("\"{}\" is damaged: {problem}", self.name)))
    }

    #[inline]
    fn bounds(&self) -> &[Bound] {
        bounds(self.nodes.state()).unwrap_or_else(|| self.damaged("its segments"))
    }

    #[cold]
    fn damaged(&self, what: &str) -> ! {
        panic!("the graph \"{}\" is damaged ({what}): see `outcrop pool verify`", self.name)
    }

    /// The number of nodes.
    #[inline]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The number of edges.
    pub fn edge_count(&self) -> usize {
        self.bounds().last().map_or(0, Bound::edge)
    }

    /// The states of all nodes.
    #[inline]
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// How many edges begin at a node.
    #[inline]
    pub fn degree(&self, node: u32) -> usize {
        self.ranges(node).map(|range| range.len()).sum()
    }

    /// The edges that begin at a node: where they lead, and their values. First those of the base,
    /// sorted by where they lead, then those of each segment.
    #[inline]
    pub fn edges(&self, node: u32) -> impl Iterator<Item = (u32, &E)> {
        self.slices(node).flat_map(|(targets, values)| targets.iter().copied().zip(values))
    }

    /// The edges that begin at a node, as slices: where they lead, and their values. There is one
    /// pair of slices for the base, and one for each segment in which the node has edges.
    #[inline]
    pub fn slices(&self, node: u32) -> impl Iterator<Item = (&[u32], &[E])> {
        let (targets, values) = (&*self.targets, &*self.values);
        self.ranges(node).map(move |range| (&targets[range.clone()], &values[range]))
    }

    /// All edges: where they begin, where they lead, and their values.
    pub fn all_edges(&self) -> impl Iterator<Item = (u32, u32, &E)> {
        (0..self.node_count() as u32).flat_map(|from| self.edges(from).map(move |(to, value)| (from, to, value)))
    }

    /// Visits the edges of all nodes, in ascending order of the nodes, as slices: where they lead
    /// and their values. A node has one slice for each batch, and none if it has no edges. Faster
    /// than [`slices`](Self::slices) of one node after the other.
    #[inline]
    pub fn sweep<'a>(&'a self, mut visit: impl FnMut(u32, &'a [u32], &'a [E])) {
        let (offsets, targets, values, rows) = (&*self.offsets, &*self.targets, &*self.values, &*self.rows);
        // Of the same length, so that one comparison is enough for both.
        let edges = targets.len().min(values.len());
        let (targets, values) = (&targets[..edges], &values[..edges]);
        let mut show = |node: u32, from: u64, to: u64| {
            let range = from as usize..to as usize;
            match (targets.get(range.clone()), values.get(range)) {
                (Some([]), Some(_)) => {}
                (Some(targets), Some(values)) => visit(node, targets, values),
                _ => self.damaged("where edges begin"),
            }
        };
        // Of each segment: the rows that are left, and where its edges end.
        let segment = |bounds: &[Bound]| {
            let rows = rows.get(bounds[0].row()..bounds[1].row()).unwrap_or_else(|| self.damaged("its segments"));
            (rows, bounds[1].edge.get())
        };
        let mut segments: Vec<_> = self.bounds().windows(2).map(segment).collect();
        let nodes = self.node_count();
        if segments.is_empty() {
            let base = offsets.windows(2).take(nodes);
            return base.enumerate().for_each(|(node, bounds)| show(node as u32, bounds[0], bounds[1]));
        }
        for node in 0..nodes {
            if let Some(&[from, to]) = offsets.get(node..node + 2) {
                show(node as u32, from, to);
            }
            for (rows, end) in &mut segments {
                if let [first, rest @ ..] = *rows
                    && first[0] == node as u64
                {
                    show(node as u32, first[1], rest.first().map_or(*end, |next| next[1]));
                    *rows = rest;
                }
            }
        }
    }

    /// Where the edges of a node are.
    #[inline]
    fn ranges(&self, node: u32) -> impl Iterator<Item = Range<usize>> {
        assert!((node as usize) < self.node_count(), "node {node} of {} in \"{}\"", self.node_count(), self.name);
        let base = match self.offsets.get(node as usize..node as usize + 2) {
            Some(&[from, to]) => Some(self.edge_range(from, to)),
            // A node that came after the base was made.
            _ => None,
        };
        let segments = self.bounds().windows(2).filter_map(move |bounds| self.segment_range(bounds, node));
        base.into_iter().chain(segments).filter(|range| !range.is_empty())
    }

    /// Where the edges of a node are in a segment.
    #[inline]
    fn segment_range(&self, bounds: &[Bound], node: u32) -> Option<Range<usize>> {
        let rows = self.rows.get(bounds[0].row()..bounds[1].row()).unwrap_or_else(|| self.damaged("its segments"));
        let at = rows.partition_point(|row| row[0] < u64::from(node));
        let row = rows.get(at).filter(|row| row[0] == u64::from(node))?;
        Some(self.edge_range(row[1], rows.get(at + 1).map_or(bounds[1].edge.get(), |next| next[1])))
    }

    #[inline]
    fn edge_range(&self, from: u64, to: u64) -> Range<usize> {
        let range = from as usize..to as usize;
        let is_there = from <= to && to <= self.targets.len().min(self.values.len()) as u64;
        if is_there { range } else { self.damaged("where edges begin") }
    }
}

impl<N: Versioned, E: Versioned> Graph<N, E> {
    /// Says where the states of nodes are to be kept: in DRAM if a node is central, which means
    /// that so many edges begin there; otherwise on the medium. See
    /// [`Array::place`](crate::Array::place). Nodes of one page are kept together, so central ones
    /// should have neighbouring numbers.
    pub fn place_nodes(&mut self, degree_min: usize) {
        let nodes = 0..self.node_count() as u32;
        let central: Vec<u32> = nodes.filter(|node| self.degree(*node) >= degree_min).collect();
        let nodes = self.read.nodes.list();
        nodes.place(0..nodes.len(), Home::Nvm);
        central.into_iter().map(|node| node as usize).for_each(|node| nodes.place(node..node + 1, Home::Dram));
    }
}

impl<N: Versioned, E: Versioned> Deref for Graph<N, E> {
    type Target = GraphView<N, E>;

    #[inline]
    fn deref(&self) -> &GraphView<N, E> {
        &self.read
    }
}

impl<N: Versioned, E: Versioned> Index<u32> for GraphView<N, E> {
    type Output = N;

    #[inline]
    fn index(&self, node: u32) -> &N {
        &self.nodes[node as usize]
    }
}

impl<N: Versioned, E: Versioned> Index<u32> for Graph<N, E> {
    type Output = N;

    #[inline]
    fn index(&self, node: u32) -> &N {
        &self.read[node]
    }
}

impl<N: Versioned, E: Versioned> IndexMut<u32> for Graph<N, E> {
    #[inline]
    fn index_mut(&mut self, node: u32) -> &mut N {
        &mut self.read.nodes.list()[node as usize]
    }
}

impl<N: Versioned, E: Versioned> Structure for Graph<N, E> {
    fn parts(&mut self) -> Parts<'_> {
        let read = &mut self.read;
        Parts(vec![
            read.nodes.list().part_mut(),
            read.offsets.list().part_mut(),
            read.targets.list().part_mut(),
            read.values.list().part_mut(),
            read.rows.list().part_mut(),
        ])
    }

    fn kind(&self) -> Kind {
        Kind::Graph { degree: self.edge_count() as f64 / self.node_count().max(1) as f64 }
    }
}

impl<N: Versioned, E: Versioned> fmt::Debug for GraphView<N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, edges) = (self.node_count(), self.edge_count());
        f.debug_struct("Graph").field("name", &self.name).field("nodes", &nodes).field("edges", &edges).finish()
    }
}

impl<N: Versioned, E: Versioned> fmt::Debug for Graph<N, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read.fmt(f)
    }
}
