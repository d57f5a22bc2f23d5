//! The structures that a model is trained with, and how they change between two versions.

use fastrand::Rng;
use outcrop::pool::{Array, Block, Cell, Graph, List, Pool, Result, Structure, Tree, Versioned};

use super::between;

/// A structure that programs change.
pub(super) trait Changing {
    fn structure(&mut self) -> &mut dyn Structure;

    /// Makes it as large as it is to be.
    fn fill(&mut self, random: &mut Rng);

    /// Changes a part of it, to values that come from `seed`.
    fn change(&mut self, random: &mut Rng, seed: u64);
}

/// What a pool has: the features of the paper's table 1, and the length of a block.
pub(super) struct Case {
    kind: Kind,
    bytes: usize,
    block_bytes: usize,
    element: Element,
}

enum Kind {
    Array { dimensions: usize },
    List,
    Quadtree,
    Octree,
    Graph { degree: usize },
}

#[derive(Clone, Copy)]
enum Element {
    Byte,
    Number,
    Numbers,
}

/// An element of which all numbers are the same.
trait Filled: Versioned {
    fn filled(seed: u64) -> Self;
}

impl Filled for u8 {
    fn filled(seed: u64) -> Self {
        seed as u8
    }
}

impl Filled for f64 {
    fn filled(seed: u64) -> Self {
        seed as f64
    }
}

impl Filled for [f64; 4] {
    fn filled(seed: u64) -> Self {
        [seed as f64; 4]
    }
}

impl Case {
    /// The structure of the nth pool.
    pub(super) fn drawn(nth: usize, bytes: u64, random: &mut Rng) -> Self {
        let kind = match nth % 4 {
            0 => Kind::Array { dimensions: random.usize(1..4) },
            1 if random.bool() => Kind::Quadtree,
            1 => Kind::Octree,
            2 => Kind::Graph { degree: between(random, 1.0, 64.0) as usize },
            _ => Kind::List,
        };
        let element = match random.u8(0..3) {
            0 => Element::Byte,
            1 => Element::Number,
            _ => Element::Numbers,
        };
        Self { kind, bytes: bytes as usize, block_bytes: 4096 << random.u32(0..7), element }
    }

    pub(super) fn open(&self, pool: &Pool) -> Result<Box<dyn Changing>> {
        match self.element {
            Element::Byte => self.open_of::<u8>(pool),
            Element::Number => self.open_of::<f64>(pool),
            Element::Numbers => self.open_of::<[f64; 4]>(pool),
        }
    }

    fn open_of<T: Filled>(&self, pool: &Pool) -> Result<Box<dyn Changing>> {
        let len = (self.bytes / size_of::<T>()).max(64);
        let block = Block::elements((self.block_bytes / size_of::<T>()).max(1));
        let shape = |dimensions| match dimensions {
            1 => [len, 1, 1],
            2 => [len / 8, 8, 1],
            _ => [len / 32, 8, 4],
        };
        // A cell has its share of a record of links; an edge has where it leads, and a value.
        let cells = |fanout: usize| self.bytes / (size_of::<T>() + 64 / fanout);
        Ok(match self.kind {
            Kind::Array { dimensions } => Box::new(pool.array::<T>("array", shape(dimensions), block)?),
            Kind::List => Box::new(Drawn { structure: pool.list::<T>("list", block)?, len }),
            Kind::Quadtree => Box::new(Drawn { structure: pool.quadtree::<T>("tree")?, len: cells(4) }),
            Kind::Octree => Box::new(Drawn { structure: pool.octree::<T>("tree")?, len: cells(8) }),
            Kind::Graph { degree } => {
                let nodes = self.bytes / (size_of::<T>() + 8 + degree * 8);
                let structure = Connected { graph: pool.graph::<T, f32>("graph")?, degree };
                Box::new(Drawn { structure, len: nodes.max(64) })
            }
        })
    }
}

/// A structure, and how many elements it is to have.
struct Drawn<S> {
    structure: S,
    len: usize,
}

struct Connected<T> {
    graph: Graph<T, f32>,
    degree: usize,
}

impl<T: Filled> Changing for Array<T> {
    fn structure(&mut self) -> &mut dyn Structure {
        self
    }

    fn fill(&mut self, _: &mut Rng) {}

    fn change(&mut self, random: &mut Rng, seed: u64) {
        let (len, elements) = (self.len(), self.block_len());
        let value = T::filled(seed);
        match Part::drawn(random, len, elements) {
            Part::Stretch(range) => self[range].fill(value),
            Part::Scattered(count) => (0..count).for_each(|_| self[random.usize(0..len)] = value),
        }
    }
}

impl<T: Filled> Changing for Drawn<List<T>> {
    fn structure(&mut self) -> &mut dyn Structure {
        &mut self.structure
    }

    fn fill(&mut self, _: &mut Rng) {
        self.structure.resize(self.len, T::filled(1));
    }

    /// Elements here and there or in a row, and a few more or fewer of them.
    fn change(&mut self, random: &mut Rng, seed: u64) {
        let (list, value) = (&mut self.structure, T::filled(seed));
        let most = list.len() / 100 + 1;
        match random.u8(0..3) {
            0 => list.extend((0..random.usize(0..=most)).map(|_| value)),
            1 if list.len() > self.len => list.truncate(self.len),
            _ => {}
        }
        let (len, elements) = (list.len(), list.block_len());
        match Part::drawn(random, len, elements) {
            Part::Stretch(range) => list[range].fill(value),
            Part::Scattered(count) => (0..count).for_each(|_| list[random.usize(0..len)] = value),
        }
    }
}

impl<T: Filled, const D: usize> Changing for Drawn<Tree<T, D>> {
    fn structure(&mut self) -> &mut dyn Structure {
        &mut self.structure
    }

    /// Cells of one level, and some that are deeper.
    fn fill(&mut self, random: &mut Rng) {
        let tree = &mut self.structure;
        while tree.cell_count() < self.len {
            let leaves: Vec<Cell> = tree.leaves().collect();
            let is_last = tree.cell_count() + (leaves.len() << D) > self.len;
            let first = if is_last { random.usize(0..leaves.len()) } else { 0 };
            for leaf in &leaves[first..] {
                if tree.cell_count() >= self.len {
                    break;
                }
                tree.refine(*leaf, |_, place| T::filled(u64::from(place.level)));
            }
        }
    }

    /// Values of leaves that are near each other or anywhere, and a mesh that moves.
    fn change(&mut self, random: &mut Rng, seed: u64) {
        let tree = &mut self.structure;
        let leaves: Vec<Cell> = tree.leaves().collect();
        let near = 4096 / size_of::<T>();
        match Part::drawn(random, leaves.len(), near) {
            Part::Stretch(range) => leaves[range].iter().for_each(|leaf| tree[*leaf] = T::filled(seed)),
            Part::Scattered(count) => {
                (0..count).for_each(|_| tree[leaves[random.usize(0..leaves.len())]] = T::filled(seed));
            }
        }
        let first = random.usize(0..leaves.len());
        for leaf in &leaves[first..(first + random.usize(0..50)).min(leaves.len())] {
            let parent = tree.contains(*leaf).then(|| tree.parent(*leaf)).flatten();
            match parent.filter(|parent| random.bool() && tree.can_coarsen(*parent)) {
                Some(parent) => tree.coarsen(parent, |children| children[0]),
                None if tree.contains(*leaf) && tree.place(*leaf).level < 20 => {
                    tree.refine(*leaf, |value, _| *value);
                }
                None => {}
            }
        }
    }
}

impl<T: Filled> Changing for Drawn<Connected<T>> {
    fn structure(&mut self) -> &mut dyn Structure {
        &mut self.structure.graph
    }

    fn fill(&mut self, random: &mut Rng) {
        let Connected { graph, degree } = &mut self.structure;
        graph.add_nodes((0..self.len).map(|_| T::filled(1)));
        let edges = random_edges(random, self.len as u32, self.len * *degree);
        graph.add_edges(&edges);
    }

    /// States of nodes that are near each other or anywhere, values of edges, and a few new edges.
    fn change(&mut self, random: &mut Rng, seed: u64) {
        let graph = &mut self.structure.graph;
        let (nodes, near) = (graph.node_count(), 4096 / size_of::<T>());
        match Part::drawn(random, nodes, near) {
            Part::Stretch(range) => range.for_each(|node| graph[node as u32] = T::filled(seed)),
            Part::Scattered(count) => {
                (0..count).for_each(|_| graph[random.u32(0..nodes as u32)] = T::filled(seed));
            }
        }
        if random.u8(0..3) == 0 {
            let most = graph.edge_count() / 200 + 1;
            let count = random.usize(1..=most);
            graph.add_edges(&random_edges(random, nodes as u32, count));
        }
        if random.u8(0..3) == 0 {
            for _ in 0..random.usize(0..1000) {
                graph.update_edges(random.u32(0..nodes as u32), |_, value| *value = seed as f32);
            }
        }
    }
}

fn random_edges(random: &mut Rng, nodes: u32, count: usize) -> Vec<(u32, u32, f32)> {
    (0..count).map(|_| (random.u32(0..nodes), random.u32(0..nodes), random.f32())).collect()
}

/// What of a structure changes.
enum Part {
    Stretch(std::ops::Range<usize>),
    Scattered(usize),
}

impl Part {
    /// A share of so many elements: a stretch of them, or one in as many blocks.
    fn drawn(random: &mut Rng, len: usize, block_len: usize) -> Self {
        let share = between(random, 1e-3, 1.0);
        if random.bool() {
            let count = ((len as f64 * share) as usize).clamp(1, len);
            let first = random.usize(0..=len - count);
            return Self::Stretch(first..first + count);
        }
        let blocks = len.div_ceil(block_len);
        Self::Scattered(((blocks as f64 * share) as usize).max(1))
    }
}
