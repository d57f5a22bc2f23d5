//! An octree and a graph of a pool against a tree of boxes and CSR in plain vectors.

use std::{collections::BTreeMap, hint::black_box, path::Path, time::Instant};

use anyhow::Result;
use fastrand::Rng;
use outcrop::pool::{Graph, Octree, Options as PoolOptions, Pool, Structure};
use serde_json::{Value, json};

use super::{MIB, median};

/// The edges of a node.
const DEGREE: usize = 8;

type Value4 = [f64; 4];

/// A tree as a program has it without a pool.
struct Node {
    value: Value4,
    children: Option<Box<[Node; 8]>>,
}

impl Node {
    fn full(levels: u32) -> Self {
        let children = (levels > 0).then(|| Box::new(std::array::from_fn(|_| Self::full(levels - 1))));
        Self { value: [1.0; 4], children }
    }

    fn sweep(&mut self) {
        match &mut self.children {
            Some(children) => children.iter_mut().for_each(Self::sweep),
            None => update(&mut self.value),
        }
    }
}

fn update(value: &mut Value4) {
    value.iter_mut().for_each(|number| *number = *number * 0.99 + 0.5);
}

/// CSR as a program has it without a pool.
struct Csr {
    ranks: Vec<f64>,
    offsets: Vec<usize>,
    targets: Vec<u32>,
    weights: Vec<f32>,
}

impl Csr {
    /// Sorted by where edges begin, as they are here.
    fn new(nodes: usize, edges: &[(u32, u32, f32)]) -> Self {
        let offsets = (0..=nodes).map(|node| node * DEGREE).collect();
        let targets = edges.iter().map(|edge| edge.1).collect();
        Self { ranks: vec![1.0; nodes], offsets, targets, weights: edges.iter().map(|edge| edge.2).collect() }
    }

    fn sweep(&mut self) {
        let mut next = vec![0.15; self.ranks.len()];
        for (node, rank) in self.ranks.iter().enumerate() {
            let edges = self.offsets[node]..self.offsets[node + 1];
            spread(*rank, &self.targets[edges.clone()], &self.weights[edges], &mut next);
        }
        self.ranks.copy_from_slice(&next);
    }
}

fn sweep_graph(graph: &mut Graph<f64, f32>) {
    let mut next = vec![0.15; graph.node_count()];
    let ranks = graph.nodes();
    graph.sweep(|node, targets, weights| spread(ranks[node as usize], targets, weights, &mut next));
    graph.nodes_mut().copy_from_slice(&next);
}

/// Inlined in both: otherwise it depends on the units that the compiler makes of this crate.
#[inline]
fn spread(rank: f64, targets: &[u32], weights: &[f32], next: &mut [f64]) {
    for (target, weight) in targets.iter().zip(weights) {
        next[*target as usize] += rank * f64::from(*weight);
    }
}

fn sweep_tree(tree: &mut Octree<Value4>) {
    tree.update_leaves(|_, value| update(value));
}

fn refine_all(tree: &mut Octree<Value4>, levels: u32) {
    for _ in 0..levels {
        for leaf in tree.leaves().collect::<Vec<_>>() {
            tree.refine(leaf, |_, _| [1.0; 4]);
        }
    }
}

/// Edges that lead anywhere, sorted.
fn edges_of(nodes: usize) -> Vec<(u32, u32, f32)> {
    let mut rng = Rng::with_seed(1);
    let edge = |number: usize| ((number / DEGREE) as u32, rng.u32(..nodes as u32), 0.85 / DEGREE as f32);
    let mut edges: Vec<_> = (0..nodes * DEGREE).map(edge).collect();
    edges.sort_by_key(|edge| (edge.0, edge.1));
    edges
}

/// Measures both. The worst ratio of computing goes to `compute_over_dram_max`.
pub(super) fn measure(
    (directory, state_bytes, rounds): (&Path, u64, usize),
    runs: &mut Vec<Value>,
    ratios: &mut BTreeMap<&'static str, f64>,
) -> Result<()> {
    let inside = tempfile::tempdir_in(directory)?;
    let path = inside.path().join("structures.pool");
    let pool = Pool::open(&path, PoolOptions::versions(2))?;
    let mut tree = pool.octree::<Value4>("mesh")?;
    let levels = (state_bytes / 1024).max(64).ilog2() / 3;
    refine_all(&mut tree, levels);
    let nodes = (state_bytes / 512).max(1000) as usize;
    let edges = edges_of(nodes);
    let mut graph = pool.graph::<f64, f32>("web")?;
    graph.add_nodes(vec![1.0; nodes]);
    graph.add_edges(&edges);
    pool.persist(&mut [&mut tree, &mut graph])?;
    let (mut boxes, mut csr) = (Node::full(levels), Csr::new(nodes, &edges));

    let mut compared = |name: &str, plain: &str, ours: &mut dyn FnMut(), theirs: &mut dyn FnMut()| {
        let (mut with_pool, mut without) = (Vec::new(), Vec::new());
        for _ in 0..rounds.max(3) {
            with_pool.push(timed(ours));
            without.push(timed(theirs));
        }
        let part = format!("compute: {name}");
        runs.push(json!({ "part": part, "way": "pool", "ms_median": 1e3 * median(&with_pool) }));
        runs.push(json!({ "part": part, "way": plain, "ms_median": 1e3 * median(&without) }));
        median(&with_pool) / median(&without)
    };
    let cells = tree.cell_count();
    let name = format!("all leaves of an octree of {cells} cells");
    let of_tree = compared(&name, "tree of boxes", &mut || sweep_tree(&mut tree), &mut || boxes.sweep());
    let name = format!("PageRank, {nodes} nodes and {} edges", edges.len());
    let of_graph = compared(&name, "CSR in vectors", &mut || sweep_graph(&mut graph), &mut || csr.sweep());
    black_box((boxes.value, csr.ranks.first()));
    ratios.insert("tree_over_dram", of_tree);
    ratios.insert("graph_over_dram", of_graph);
    pool.persist(&mut [&mut tree, &mut graph])?;

    // One percent: cells and nodes near each other.
    let leaves: Vec<_> = tree.leaves().collect();
    let near = leaves.len() / 100;
    let change_tree = |tree: &mut Octree<Value4>, round: usize| {
        leaves[round % 50 * near..].iter().take(near.max(1)).for_each(|leaf| tree[*leaf][0] += 1.0);
    };
    let (mut of_tree, mut of_graph) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        change_tree(&mut tree, round);
        of_tree.push(persisted(&pool, &mut [&mut tree, &mut graph])?);
        let first = round % 50 * (nodes / 100);
        (first..first + nodes / 100).for_each(|node| graph[node as u32] += 1.0);
        of_graph.push(persisted(&pool, &mut [&mut tree, &mut graph])?);
    }
    for (name, persisted) in [("1 % of the leaves of an octree", of_tree), ("1 % of the nodes of a graph", of_graph)] {
        let seconds: Vec<f64> = persisted.iter().map(|it| it.0).collect();
        let written = persisted.last().map_or(0.0, |it| it.1);
        let way = "pool: persist";
        runs.push(json!({ "part": name, "way": way, "ms_median": 1e3 * median(&seconds), "written_mib": written }));
    }
    drop((tree, graph, pool));
    let start = Instant::now();
    let pool = Pool::open(&path, PoolOptions::versions(2))?;
    let (tree, graph) = (pool.octree::<Value4>("mesh")?, pool.graph::<f64, f32>("web")?);
    black_box((tree[tree.root()], graph.degree(1)));
    let ours = start.elapsed().as_secs_f64();
    let rebuilt = timed(&mut || drop(black_box((Node::full(levels), Csr::new(nodes, &edges)))));
    let part = "restore an octree and a graph";
    runs.push(json!({ "part": part, "way": "pool: open and read one element", "ms_median": 1e3 * ours }));
    runs.push(json!({ "part": part, "way": "build them in memory, without reading", "ms_median": 1e3 * rebuilt }));
    Ok(())
}

fn timed(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// How long a version took, and how many MiB it wrote.
fn persisted(pool: &Pool, structures: &mut [&mut dyn Structure]) -> Result<(f64, f64)> {
    let start = Instant::now();
    let persisted = pool.persist_counted(structures)?;
    Ok((start.elapsed().as_secs_f64(), persisted.bytes as f64 / MIB))
}
