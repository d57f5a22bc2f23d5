//! Every kind of structure beside a plain model of it.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use outcrop_pool::{
    Array, Block, Cell, Face, Graph, GraphView, Home, List, Octree, Place, Pool, Quadtree, Structure, Tree, TreeView,
    View,
};

/// So many elements of arrays are a page.
pub(crate) const PAGE: usize = 512;

/// What a structure is to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    Array(Vec<u64>),
    List(Vec<u64>),
    Quadtree(Cells<2>),
    Octree(Cells<3>),
    Graph(Web),
}

/// All cells of a tree, with their values.
pub(crate) type Cells<const D: usize> = BTreeMap<Place<D>, u64>;

/// The nodes and edges of a graph.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Web {
    nodes: Vec<u64>,
    edges: Vec<(u32, u32, u64)>,
}

/// A structure that a program has open.
pub(crate) enum Opened {
    Array(Array<u64>),
    List(List<u64>),
    Quadtree(Quadtree<u64>),
    Octree(Octree<u64>),
    Graph(Box<Graph<u64, u64>>),
}

impl Content {
    /// What a new structure is. The first word of the name says what kind that is.
    pub(crate) fn new(name: &str, rng: &mut Rng) -> Self {
        match name.split(' ').next().unwrap() {
            "list" => Self::List(Vec::new()),
            "quadtree" => Self::Quadtree([(Place::ROOT, 0)].into()),
            "octree" => Self::Octree([(Place::ROOT, 0)].into()),
            "graph" => Self::Graph(Web::default()),
            // Sometimes with several levels of entries.
            _ if rng.u8(..100) == 0 => Self::Array(vec![0; rng.usize(256 * PAGE..300 * PAGE)]),
            _ => Self::Array(vec![0; rng.usize(1..9 * PAGE)]),
        }
    }

    /// That a version has it.
    pub(crate) fn check_view(&self, view: &View, name: &str) {
        match self {
            Self::Array(values) => assert!(view.array::<u64>(name).unwrap()[..] == values[..], "{name}"),
            Self::List(values) => assert!(view.list::<u64>(name).unwrap()[..] == values[..], "{name}"),
            Self::Quadtree(cells) => check_tree(&view.quadtree(name).unwrap(), cells),
            Self::Octree(cells) => check_tree(&view.octree(name).unwrap(), cells),
            Self::Graph(web) => check_graph(&view.graph(name).unwrap(), web),
        }
    }
}

impl Opened {
    pub(crate) fn open(pool: &Pool, name: &str, content: &Content, rng: &mut Rng) -> Self {
        let block = Block::elements(rng.usize(1..3 * PAGE));
        match content {
            Content::Array(values) => Self::Array(pool.array(name, values.len(), block).unwrap()),
            Content::List(_) => Self::List(pool.list(name, block).unwrap()),
            Content::Quadtree(_) => Self::Quadtree(pool.quadtree(name).unwrap()),
            Content::Octree(_) => Self::Octree(pool.octree(name).unwrap()),
            Content::Graph(_) => Self::Graph(Box::new(pool.graph(name).unwrap())),
        }
    }

    pub(crate) fn structure(&mut self) -> &mut dyn Structure {
        match self {
            Self::Array(it) => it,
            Self::List(it) => it,
            Self::Quadtree(it) => it,
            Self::Octree(it) => it,
            Self::Graph(it) => &mut **it,
        }
    }

    pub(crate) fn check(&self, content: &Content) {
        match (self, content) {
            (Self::Array(it), Content::Array(values)) => assert!(it[..] == values[..], "{it:?}"),
            (Self::List(it), Content::List(values)) => assert!(it[..] == values[..], "{it:?}"),
            (Self::Quadtree(it), Content::Quadtree(cells)) => check_tree(it, cells),
            (Self::Octree(it), Content::Octree(cells)) => check_tree(it, cells),
            (Self::Graph(it), Content::Graph(web)) => check_graph(it, web),
            _ => panic!("{content:?} is of another kind"),
        }
    }

    /// Says where parts of it are to be kept.
    pub(crate) fn place(&mut self, rng: &mut Rng) {
        let home = if rng.bool() { Home::Dram } else { Home::Nvm };
        let range = |len: usize, rng: &mut Rng| {
            let start = rng.usize(..=len);
            start..if rng.bool() { len } else { rng.usize(start..=len) }
        };
        match self {
            Self::Array(it) => it.place(range(it.len(), rng), home),
            Self::List(it) => it.place(range(it.len(), rng), home),
            Self::Quadtree(it) => it.place_cells(|tree, cell| if tree.is_leaf(cell) { home } else { Home::Nvm }),
            Self::Octree(it) => it.place_cells(|tree, cell| if tree.is_leaf(cell) { Home::Dram } else { home }),
            Self::Graph(it) => it.place_nodes(rng.usize(..4)),
        }
    }

    /// Changes some of it at random, as its model.
    pub(crate) fn change(&mut self, content: &mut Content, rng: &mut Rng) {
        for _ in 0..rng.usize(..4) {
            match (&mut *self, &mut *content) {
                (Self::Array(it), Content::Array(values)) => {
                    let (at, len) = (rng.usize(..values.len()), values.len());
                    match rng.u8(..4) {
                        0 => {
                            let end = (at + rng.usize(..2 * PAGE)).min(len);
                            let value = if rng.bool() { 0 } else { rng.u64(..) };
                            it[at..end].fill(value);
                            values[at..end].fill(value);
                        }
                        // Marked, and the same.
                        1 => it[at] = values[at],
                        _ => {
                            it[at] = rng.u64(..);
                            values[at] = it[at];
                        }
                    }
                }
                (Self::List(it), Content::List(values)) => change_list(it, values, rng),
                (Self::Quadtree(it), Content::Quadtree(cells)) => change_tree(it, cells, rng),
                (Self::Octree(it), Content::Octree(cells)) => change_tree(it, cells, rng),
                (Self::Graph(it), Content::Graph(web)) => change_graph(it, web, rng),
                _ => panic!("{content:?} is of another kind"),
            }
        }
    }
}

fn change_list(list: &mut List<u64>, values: &mut Vec<u64>, rng: &mut Rng) {
    match rng.u8(..7) {
        0 | 1 => {
            // Sometimes to another number of levels of entries.
            let most = if rng.u8(..100) == 0 { 300 * PAGE } else { 3 * PAGE };
            let count = rng.usize(..most);
            let more: Vec<u64> = std::iter::repeat_with(|| rng.u64(1..)).take(count).collect();
            list.extend_from_slice(&more);
            values.extend(more);
        }
        2 => {
            values.truncate(rng.usize(..=values.len()));
            list.truncate(values.len());
        }
        3 => {
            let (len, value) = (rng.usize(..4 * PAGE), if rng.bool() { 0 } else { rng.u64(..) });
            values.resize(len, value);
            list.resize(len, value);
        }
        4 => {
            values.push(rng.u64(..));
            list.push(values[values.len() - 1]);
        }
        5 => assert_eq!(list.pop(), values.pop()),
        _ if values.is_empty() => {}
        _ => {
            let at = rng.usize(..values.len());
            values[at] = rng.u64(..);
            list[at] = values[at];
        }
    }
}

/// The value of a child.
fn child<const D: usize>(parent: &u64, place: Place<D>) -> u64 {
    place.position.iter().fold(parent.wrapping_mul(31), |value, at| value.wrapping_mul(7) + u64::from(*at))
}

fn children<const D: usize>(place: Place<D>) -> impl Iterator<Item = Place<D>> {
    (0..1u32 << D).map(move |number| Place {
        level: place.level + 1,
        position: std::array::from_fn(|axis| place.position[axis] * 2 + (number >> axis & 1)),
    })
}

fn refine_model<const D: usize>(cells: &mut Cells<D>, place: Place<D>) {
    let parent = cells[&place];
    cells.extend(children(place).map(|it| (it, child(&parent, it))));
}

fn change_tree<const D: usize>(tree: &mut Tree<u64, D>, cells: &mut Cells<D>, rng: &mut Rng) {
    let all: Vec<Cell> = {
        let mut all = Vec::new();
        tree.traverse(tree.root(), |cell| {
            all.push(cell);
            true
        });
        all
    };
    let cell = *rng.choice(&all).unwrap();
    let place = tree.place(cell);
    match rng.u8(..10) {
        0..=4 if tree.is_leaf(cell) && place.level < 7 && cells.len() < 300 => {
            let made: Vec<Cell> = tree.refine(cell, child).collect();
            assert!(made.iter().map(|cell| tree.place(*cell)).eq(children(place)));
            refine_model(cells, place);
        }
        5 | 6 => {
            // Above the cell.
            let Some(parent) = tree.parent(cell).filter(|parent| tree.can_coarsen(*parent)) else { return };
            let gone: Vec<Cell> = tree.children(parent).unwrap().collect();
            tree.coarsen(parent, |values| values.iter().fold(1, |all, value| all.wrapping_add(*value)));
            let place = tree.place(parent);
            let sum = children(place).fold(1u64, |all, it| all.wrapping_add(cells.remove(&it).unwrap()));
            cells.insert(place, sum);
            assert!(gone.iter().all(|cell| !tree.contains(*cell) && tree.get(*cell).is_none()));
        }
        7 if cells.len() < 300 => {
            tree.balance(child);
            assert!(tree.is_balanced());
            balance_model(cells);
        }
        _ => {
            tree[cell] = rng.u64(..);
            cells.insert(place, tree[cell]);
        }
    }
}

fn is_leaf<const D: usize>(cells: &Cells<D>, place: Place<D>) -> bool {
    !cells.contains_key(&children(place).next().unwrap())
}

/// The leaf of a model that covers a place, or the place itself if there is something below.
fn covering<const D: usize>(cells: &Cells<D>, mut place: Place<D>) -> Place<D> {
    while !cells.contains_key(&place) {
        place = Place { level: place.level - 1, position: place.position.map(|at| at / 2) };
    }
    place
}

fn beyond<const D: usize>(place: Place<D>, face: Face) -> Option<Place<D>> {
    let at = i64::from(place.position[face.axis]) + if face.is_upper { 1 } else { -1 };
    let mut other = place;
    other.position[face.axis] = u32::try_from(at).ok().filter(|at| *at < 1 << place.level)?;
    Some(other)
}

/// Refines leaves beside those that are two levels deeper, until there are none: the smallest
/// balanced tree with these leaves.
fn balance_model<const D: usize>(cells: &mut Cells<D>) {
    loop {
        let leaves: Vec<Place<D>> = cells.keys().copied().filter(|place| is_leaf(cells, *place)).collect();
        let coarse = leaves.iter().flat_map(|leaf| {
            let others = Face::all::<D>().filter_map(|face| beyond(*leaf, face));
            others.map(|other| covering(cells, other)).filter(|other| other.level + 1 < leaf.level).collect::<Vec<_>>()
        });
        let coarse: BTreeSet<Place<D>> = coarse.collect();
        if coarse.is_empty() {
            return;
        }
        coarse.iter().for_each(|place| refine_model(cells, *place));
    }
}

/// Where a cell comes in Morton order: its position with all bits, the last axis first.
fn morton<const D: usize>(place: &Place<D>) -> u64 {
    let depth = 16;
    let bit = |number: usize| {
        let (level, axis) = (number / D, number % D);
        u64::from(place.position[axis] << (depth - place.level) >> level & 1) << number
    };
    (0..depth as usize * D).map(bit).sum()
}

fn check_tree<const D: usize>(tree: &TreeView<u64, D>, cells: &Cells<D>) {
    let mut found = Cells::new();
    tree.traverse(tree.root(), |cell| {
        assert_eq!(tree.parent(cell).is_none(), tree.place(cell) == Place::ROOT);
        found.insert(tree.place(cell), tree[cell]).is_none()
    });
    assert!(found == *cells, "{tree:?} is something else");
    let mut leaves: Vec<Place<D>> = cells.keys().copied().filter(|place| is_leaf(cells, *place)).collect();
    leaves.sort_by_key(morton);
    assert!(tree.leaves().map(|leaf| tree.place(leaf)).eq(leaves.iter().copied()), "leaves of {tree:?}");
    assert_eq!((tree.cell_count(), tree.leaf_count()), (cells.len(), leaves.len()));
    // A few of them from all sides.
    for leaf in leaves.iter().step_by(leaves.len().div_ceil(5)) {
        let cell = tree.find(leaf.centre()).unwrap();
        assert_eq!((tree.place(cell), tree.at(*leaf), tree.find(leaf.corner())), (*leaf, Some(cell), Some(cell)));
        for face in Face::all::<D>() {
            let other = beyond(*leaf, face);
            let expected = other.map(|other| covering(cells, other));
            assert_eq!(tree.neighbour(cell, face).map(|other| tree.place(other)), expected);
            let touching = leaves.iter().copied().filter(|it| touches(*leaf, *it, face));
            assert!(tree.neighbours(cell, face).map(|other| tree.place(other)).eq(touching), "{leaf:?} {face:?}");
        }
    }
}

/// Whether a leaf lies on the other side of a face.
fn touches<const D: usize>(leaf: Place<D>, other: Place<D>, face: Face) -> bool {
    let range = |place: Place<D>, axis: usize| {
        let size = 1u32 << (16 - place.level);
        place.position[axis] * size..(place.position[axis] + 1) * size
    };
    (0..D).all(|axis| {
        let (mine, others) = (range(leaf, axis), range(other, axis));
        match axis == face.axis {
            true if face.is_upper => mine.end == others.start,
            true => others.end == mine.start,
            false => mine.start < others.end && others.start < mine.end,
        }
    })
}

fn change_graph(graph: &mut Graph<u64, u64>, web: &mut Web, rng: &mut Rng) {
    let nodes = web.nodes.len() as u32;
    match rng.u8(..8) {
        0 | 1 if nodes < 300 => {
            let count = rng.usize(..20);
            let states: Vec<u64> = std::iter::repeat_with(|| rng.u64(..)).take(count).collect();
            let made = graph.add_nodes(states.clone());
            web.nodes.extend(states);
            assert_eq!(made, nodes..web.nodes.len() as u32);
        }
        _ if nodes == 0 => {
            assert_eq!(graph.add_node(7), 0);
            web.nodes.push(7);
        }
        2..=4 if web.edges.len() < 3000 => {
            let most = if rng.u8(..5) == 0 { 300 } else { 20 };
            let count = rng.usize(..most);
            let edge = || (rng.u32(..nodes), rng.u32(..nodes), rng.u64(..));
            let edges: Vec<_> = std::iter::repeat_with(edge).take(count).collect();
            graph.add_edges(&edges);
            web.edges.extend(edges);
        }
        5 => {
            let node = rng.u32(..nodes);
            graph.update_edges(node, |to, value| *value = value.wrapping_mul(3) + u64::from(to));
            for (_, to, value) in web.edges.iter_mut().filter(|(from, ..)| *from == node) {
                *value = value.wrapping_mul(3) + u64::from(*to);
            }
        }
        6 if rng.u8(..4) == 0 => graph.merge(),
        _ => {
            let node = rng.u32(..nodes);
            graph[node] = rng.u64(..);
            web.nodes[node as usize] = graph[node];
        }
    }
}

fn check_graph(graph: &GraphView<u64, u64>, web: &Web) {
    assert!(graph.nodes() == web.nodes, "nodes of {graph:?}");
    assert_eq!((graph.node_count(), graph.edge_count()), (web.nodes.len(), web.edges.len()));
    let mut found: Vec<(u32, u32, u64)> = graph.all_edges().map(|(from, to, value)| (from, to, *value)).collect();
    let mut expected = web.edges.clone();
    // Within a slice they are sorted, and those that are alike are in the order of the batches.
    expected.sort_by_key(|(from, to, _)| (*from, *to));
    found.sort_by_key(|(from, to, _)| (*from, *to));
    assert!(found == expected, "edges of {graph:?}");
    for node in (0..web.nodes.len() as u32).step_by(7) {
        assert_eq!(graph.degree(node), web.edges.iter().filter(|(from, ..)| *from == node).count());
        assert!(graph.slices(node).all(|(targets, _)| targets.is_sorted()));
    }
    let one_by_one = (0..graph.node_count() as u32).flat_map(|node| graph.slices(node).map(move |it| (node, it)));
    let mut swept = Vec::new();
    graph.sweep(|node, targets, values| swept.push((node, (targets, values))));
    assert!(one_by_one.eq(swept));
}
