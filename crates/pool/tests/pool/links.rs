//! Trees and graphs that were made to do harm: all checksums are right, and the links are not.

use fastrand::Rng;
use outcrop_format::{POOL_ROOT_BYTES, PoolContents, PoolEntry, PoolKind, PoolRoot, PoolStructure, pool_check};
use outcrop_pool::{Block, Options, Pool, Structure, Versioned, View};
use outcrop_testing::{amount, covered};

use crate::{
    hostile::{FIRST, PAGE, file, open},
    medium::Recorded,
    trees::caught,
};

/// A part of a structure, of at most one page.
#[derive(Clone)]
struct Raw {
    name: &'static str,
    kind: PoolKind,
    part: u8,
    layout: u64,
    element_bytes: u32,
    state: Vec<u8>,
    bytes: Vec<u8>,
}

impl Raw {
    fn new<T: Versioned>(view: &View, name: &'static str, kind: PoolKind, part: u8, state: Vec<u8>) -> Self {
        let bytes = view.bytes(name).unwrap().to_vec();
        Self { name, kind, part, layout: T::LAYOUT, element_bytes: size_of::<T>() as u32, state, bytes }
    }

    /// Changes some words, to numbers that are small, large, or nearly right.
    fn damage(&mut self, rng: &mut Rng) {
        let bytes = if rng.u8(..6) == 0 { &mut self.state } else { &mut self.bytes };
        if bytes.len() < 4 {
            return;
        }
        let at = rng.usize(..bytes.len() / 4) * 4;
        let before = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let value = match rng.u8(..6) {
            0 => rng.u32(..),
            1 => rng.u32(..70),
            2 => before.wrapping_add(1),
            3 => before.wrapping_sub(1),
            4 => u32::MAX,
            _ => 0,
        };
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// A pool with one version of these parts.
fn pool_of(parts: &[Raw]) -> Pool {
    let mut pages = Vec::new();
    let mut structures = Vec::new();
    for part in parts {
        let mut page = [0; PAGE];
        page[..part.bytes.len()].copy_from_slice(&part.bytes);
        let mut top = PoolEntry::ZEROS;
        if !part.bytes.is_empty() {
            top = PoolEntry::new(FIRST + 1 + pages.len() as u64, pool_check(&page));
            pages.push(page);
        }
        let mut state = vec![part.kind as u8, part.part];
        state.extend_from_slice(&part.state);
        structures.push(PoolStructure {
            name: part.name.to_owned(),
            layout: part.layout,
            element_bytes: part.element_bytes,
            shape: [part.bytes.len() as u64 / u64::from(part.element_bytes), 1, 1],
            block_bytes: PAGE as u64,
            state,
            levels: 0,
            top,
        });
    }
    structures.sort_by(|a, b| a.name.cmp(&b.name));
    open(file(structures, &pages))
}

/// A version with a structure.
fn made(make: impl FnOnce(&Pool) -> Box<dyn Structure>) -> View {
    let pool = Pool::on(Recorded::new(Vec::new()), Options::versions(2)).unwrap();
    let mut structure = make(&pool);
    pool.persist(&mut [&mut *structure]).unwrap();
    pool.view(1).unwrap()
}

/// Carries out a call that may panic, because of damage.
fn attempt(call: impl FnOnce()) {
    let clear = ["is damaged", "is gone", "too many", "out of bounds", "cannot have"];
    if let Some(message) = caught(call) {
        assert!(clear.iter().any(|text| message.contains(text)), "{message}");
    }
}

/// An octree of 40 groups, of which 5 are free.
fn tree() -> [Raw; 2] {
    let view = made(|pool| {
        let mut tree = pool.octree::<u64>("mesh").unwrap();
        let mut rng = Rng::with_seed(1);
        while tree.leaf_count() < 7 * 39 {
            let leaves: Vec<_> = tree.leaves().collect();
            tree.refine(*rng.choice(&leaves).unwrap(), |parent, _| parent + 1);
        }
        for _ in 0..5 {
            let parents: Vec<_> = tree.leaves().filter_map(|leaf| tree.parent(leaf)).collect();
            tree.coarsen(*parents.iter().find(|parent| tree.can_coarsen(**parent)).unwrap(), |values| values[0]);
        }
        Box::new(tree)
    });
    let mut state = 39u64.to_le_bytes().to_vec();
    state.extend(5u32.to_le_bytes());
    [
        Raw::new::<u64>(&view, "mesh", PoolKind::Octree, 0, state),
        Raw::new::<[u32; 16]>(&view, "mesh.links", PoolKind::Octree, 1, Vec::new()),
    ]
}

#[test]
fn damaged_links_of_trees_are_found_and_harmless() {
    let good = tree();
    pool_of(&good).view(1).unwrap().verify().unwrap();
    let (rounds, mut found) = (amount(1000, 100_000), 0);
    for seed in 0..rounds {
        let mut rng = Rng::with_seed(seed);
        let mut parts = good.clone();
        (0..rng.usize(1..4)).for_each(|_| parts[1 - usize::from(rng.u8(..8) == 0)].damage(&mut rng));
        let pool = pool_of(&parts);
        let view = pool.view(1).unwrap();
        let is_tree = view.verify().is_ok();
        found += u64::from(!is_tree);
        let Ok(read) = view.octree::<u64>("mesh") else {
            assert!(!is_tree);
            continue;
        };
        let look = || {
            let mut seen = 0;
            read.traverse(read.root(), |_| {
                seen += 1;
                true
            });
            assert!(seen <= 8 * 40, "{seen}");
            let leaves: Vec<_> = read.leaves().collect();
            for leaf in &leaves {
                let centre = read.place(*leaf).centre();
                assert_eq!(read.find(centre), Some(*leaf));
                read.parent(*leaf);
            }
            if is_tree {
                assert_eq!((seen, leaves.len()), (read.cell_count(), read.leaf_count()));
            }
        };
        if is_tree {
            look();
        } else {
            attempt(look);
        }
        let mut tree = pool.octree::<u64>("mesh").unwrap();
        attempt(|| {
            for _ in 0..20 {
                let leaves: Vec<_> = tree.leaves().collect();
                let leaf = *rng.choice(&leaves).unwrap();
                tree.refine(leaf, |_, _| 1);
            }
            tree.balance(|parent, _| *parent);
        });
        drop(pool.persist(&mut [&mut tree]));
    }
    assert!(found > rounds / 2, "{found} of {rounds}");
    covered("trees with damaged links", rounds);
}

fn graph() -> [Raw; 5] {
    let view = made(|pool| {
        let mut graph = pool.graph::<u64, u32>("web").unwrap();
        let mut rng = Rng::with_seed(1);
        graph.add_nodes(0..60);
        let mut edges = |count| (0..count).map(|_| (rng.u32(..60), rng.u32(..60), 7)).collect::<Vec<_>>();
        graph.add_edges(&edges(300));
        graph.add_edges(&edges(30));
        graph.add_edges(&edges(10));
        Box::new(graph)
    });
    let bound = |row: u64, edge: u64| [row.to_le_bytes(), edge.to_le_bytes()].concat();
    let rows = view.bytes("web.rows").unwrap().len() as u64 / 16;
    // The rows of the second segment begin where nodes begin to rise again.
    let all = view.bytes("web.rows").unwrap();
    let node = |row: u64| u64::from_le_bytes(all[row as usize * 16..][..8].try_into().unwrap());
    let second = (1..rows).find(|row| node(*row) <= node(*row - 1)).unwrap();
    let state = [bound(0, 300), bound(second, 330), bound(rows, 340)].concat();
    [
        Raw::new::<u64>(&view, "web", PoolKind::Graph, 0, state),
        Raw::new::<u64>(&view, "web.offsets", PoolKind::Graph, 1, Vec::new()),
        Raw::new::<u32>(&view, "web.targets", PoolKind::Graph, 2, Vec::new()),
        Raw::new::<u32>(&view, "web.values", PoolKind::Graph, 3, Vec::new()),
        Raw::new::<[u64; 2]>(&view, "web.rows", PoolKind::Graph, 4, Vec::new()),
    ]
}

#[test]
fn damaged_offsets_of_graphs_are_found_and_harmless() {
    let good = graph();
    pool_of(&good).view(1).unwrap().verify().unwrap();
    let (rounds, mut found) = (amount(1000, 100_000), 0);
    for seed in 0..rounds {
        let mut rng = Rng::with_seed(seed);
        let mut parts = good.clone();
        (0..rng.usize(1..4)).for_each(|_| parts[*rng.choice(&[0, 1, 1, 2, 4, 4]).unwrap()].damage(&mut rng));
        let pool = pool_of(&parts);
        let view = pool.view(1).unwrap();
        let is_graph = view.verify().is_ok();
        found += u64::from(!is_graph);
        let Ok(read) = view.graph::<u64, u32>("web") else {
            assert!(!is_graph);
            continue;
        };
        let look = || {
            let edges = read.all_edges().count();
            let ends = read.all_edges().fold(0u64, |all, (_, to, _)| all.wrapping_add(read[to]));
            assert!(edges == read.edge_count() && ends > 0 || !is_graph);
        };
        if is_graph {
            look();
        } else {
            attempt(look);
        }
        let mut graph = pool.graph::<u64, u32>("web").unwrap();
        attempt(|| {
            graph.add_edges(&[(0, 1, 1), (59, 3, 2)]);
            graph.update_edges(0, |_, value| *value += 1);
            graph.merge();
        });
        drop(pool.persist(&mut [&mut graph]));
    }
    assert!(found > rounds / 3, "{found} of {rounds}");
    covered("graphs with damaged offsets", rounds);
}

#[test]
fn structures_without_all_their_parts_are_refused() {
    let [mesh, links] = tree();
    let refused = |parts: &[Raw]| {
        let pool = pool_of(parts);
        let view = pool.view(1).unwrap();
        assert!(view.verify().is_err());
        let read = view.octree::<u64>("mesh").unwrap_err().to_string();
        (read, pool.octree::<u64>("mesh").unwrap_err().to_string())
    };
    let (read, opened) = refused(std::slice::from_ref(&mesh));
    assert!(read.contains("no \"mesh.links\"") && opened.contains("is damaged"), "{read}: {opened}");
    // Without a root, with too few values, with more free groups than there are.
    let [empty, short, free] = [(64, 0), (8, 4096), (4096, 4096)];
    for (number, (cells, records)) in [empty, short, free].into_iter().enumerate() {
        let (mut mesh, mut links) = (mesh.clone(), links.clone());
        mesh.bytes.truncate(cells);
        links.bytes.truncate(records);
        if number == 2 {
            mesh.state[8..12].copy_from_slice(&99u32.to_le_bytes());
        }
        let (read, opened) = refused(&[mesh, links]);
        assert!(read.contains("is damaged") && opened.contains("is damaged"), "{read}: {opened}");
    }
    // A part that says it is something else, and a kind that nobody knows.
    let other = Raw { kind: PoolKind::Quadtree, ..links.clone() };
    let (read, opened) = refused(&[mesh.clone(), other]);
    assert!(read.contains("another kind") && opened.contains("another kind"), "{read}: {opened}");
    for state in [vec![9, 0], vec![1]] {
        let structure = PoolStructure {
            name: "a".to_owned(),
            layout: u64::LAYOUT,
            element_bytes: 8,
            shape: [0, 1, 1],
            block_bytes: PAGE as u64,
            state,
            levels: 0,
            top: PoolEntry::ZEROS,
        };
        let pool = open(file(vec![structure], &[]));
        assert!(pool.view(1).unwrap().verify().is_err());
        assert!(pool.list::<u64>("a", Block::default()).is_err());
        assert_eq!(pool.view(1).unwrap().structures().next().unwrap().kind, "unknown");
    }
}

/// A pool of which a version says something else of its structures, with the right checksums.
fn retold(mut bytes: Vec<u8>, version: usize, tell: impl FnOnce(&mut PoolContents)) -> Vec<u8> {
    let slot = (1 + version) * PAGE;
    let mut root = PoolRoot::decode(&bytes[slot..slot + POOL_ROOT_BYTES]).unwrap();
    let at = root.contents_page as usize * PAGE;
    let mut contents = PoolContents::decode(&bytes[at..at + root.contents_bytes as usize]).unwrap();
    tell(&mut contents);
    let told = contents.encode().unwrap();
    (root.contents_bytes, root.contents_check) = (told.len() as u64, pool_check(&told));
    bytes[at..at + told.len()].copy_from_slice(&told);
    bytes[slot..slot + POOL_ROOT_BYTES].copy_from_slice(&root.encode());
    bytes
}

/// Restores the first of two versions, which says something else of a part than what it is.
fn restored<S: Structure>(
    open: impl Fn(&Pool) -> S,
    grow: impl Fn(&mut S),
    name: &str,
    tell: impl Fn(&mut PoolStructure),
) -> String {
    let medium = Recorded::new(Vec::new());
    let pool = Pool::on(medium.clone(), Options::versions(3)).unwrap();
    let mut structure = open(&pool);
    for _ in 0..2 {
        grow(&mut structure);
        pool.persist(&mut [&mut structure]).unwrap();
    }
    drop((structure, pool));
    let told = retold(medium.stores.bytes(), 1, |contents| {
        tell(contents.structures.iter_mut().find(|it| it.name == name).unwrap());
    });
    let pool = self::open(told);
    let mut structure = open(&pool);
    let refused = pool.restore(1, &mut [&mut structure]).unwrap_err().to_string();
    // It is the second version as before.
    grow(&mut structure);
    pool.persist(&mut [&mut structure]).unwrap();
    pool.view(3).unwrap().verify().unwrap();
    assert!(pool.view(1).unwrap().verify().is_err());
    refused
}

#[test]
fn a_version_whose_parts_do_not_fit_together_is_not_restored() {
    let octree = |pool: &Pool| pool.octree::<u64>("mesh").unwrap();
    let refine = |tree: &mut outcrop_pool::Octree<u64>| {
        let leaf = tree.leaves().next().unwrap();
        tree.refine(leaf, |parent, _| parent + 1);
    };
    let shorter = |len: u64| move |it: &mut PoolStructure| it.shape[0] = len;
    let none = |it: &mut PoolStructure| (it.shape[0], it.top) = (0, PoolEntry::ZEROS);
    for refused in [
        restored(octree, refine, "mesh", shorter(8)),
        restored(octree, refine, "mesh.links", none),
        restored(octree, refine, "mesh", |it| it.state[10] = 99),
    ] {
        assert!(refused.contains("\"mesh\" is damaged in version 1"), "{refused}");
    }
    let graph = |pool: &Pool| pool.graph::<u64, u32>("web").unwrap();
    let connect = |graph: &mut outcrop_pool::Graph<u64, u32>| {
        graph.add_nodes(0..30);
        graph.add_edges(&(0..100).map(|nth| (nth % 30, nth % 7, nth)).collect::<Vec<_>>());
        graph.add_edges(&[(0, 1, 1)]);
    };
    for refused in [
        restored(graph, connect, "web.targets", shorter(50)),
        restored(graph, connect, "web.values", shorter(50)),
        restored(graph, connect, "web.rows", none),
        restored(graph, connect, "web.offsets", none),
        restored(graph, connect, "web", |it| it.state.truncate(9)),
    ] {
        assert!(refused.contains("\"web\" is damaged in version 1"), "{refused}");
    }
}
