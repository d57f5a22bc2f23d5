//! Graphs, as a program uses them.

use fastrand::Rng;
use outcrop_pool::{Options, Pool};
use tempfile::tempdir;

use crate::trees::panic_of;

fn pool(dir: &tempfile::TempDir) -> Pool {
    Pool::open(dir.path().join("a.pool"), Options::versions(3)).unwrap()
}

#[test]
fn edges_are_sorted_and_all_of_them_are_kept() {
    let dir = tempdir().unwrap();
    let mut pool = pool(&dir);
    let mut web = pool.graph::<u64, f32>("web").unwrap();
    assert_eq!((web.node_count(), web.edge_count(), web.all_edges().count()), (0, 0, 0));
    assert_eq!(web.add_nodes(0..5), 0..5);
    web.add_edges(&[(3, 1, 1.0), (0, 4, 2.0), (0, 2, 3.0), (0, 4, 4.0), (0, 2, 5.0)]);
    // Parallel edges, and an edge from a node to itself.
    assert_eq!(web.edges(0).collect::<Vec<_>>(), [(2, &3.0), (2, &5.0), (4, &2.0), (4, &4.0)]);
    assert_eq!(web.slices(0).collect::<Vec<_>>(), [(&[2, 2, 4, 4][..], &[3.0, 5.0, 2.0, 4.0][..])]);
    assert_eq!((web.degree(0), web.degree(1), web.slices(1).count()), (4, 0, 0));
    let one = web.add_node(5);
    web.add_edges(&[(one, one, 6.0)]);
    assert_eq!(web.edges(one).collect::<Vec<_>>(), [(5, &6.0)]);
    let first = pool.persist(&mut [&mut web]).unwrap();
    web.update_edges(0, |to, weight| *weight += to as f32);
    web.nodes_mut().iter_mut().for_each(|state| *state += 10);
    web.merge();
    assert_eq!(web.slices(one).count(), 1);
    pool.persist(&mut [&mut web]).unwrap();
    drop((web, pool));
    pool = self::pool(&dir);
    let mut web = pool.graph::<u64, f32>("web").unwrap();
    assert_eq!(web.edges(0).collect::<Vec<_>>(), [(2, &5.0), (2, &7.0), (4, &6.0), (4, &8.0)]);
    assert_eq!(web.nodes(), [10, 11, 12, 13, 14, 15]);
    pool.restore(first, &mut [&mut web]).unwrap();
    assert_eq!((web[5], web.edges(0).next()), (5, Some((2, &3.0))));

    for bad in [(6, 0, 0.0), (0, 6, 0.0), (u32::MAX, 0, 0.0)] {
        assert!(panic_of(|| web.add_edges(&[(0, 1, 9.0), bad])).contains("which has 6 nodes"));
    }
    assert!(panic_of(|| web.degree(6)).contains("node 6 of 6"));
    assert_eq!(web.edge_count(), 6);
    drop(web);
    let message = |error: outcrop_pool::Error| error.to_string();
    assert!(message(pool.graph::<u64, f64>("web").unwrap_err()).contains("another layout"));
    assert!(message(pool.octree::<u64>("web").unwrap_err()).contains("(graph, not octree)"));
    let view = pool.view(first).unwrap();
    assert_eq!(view.names().collect::<Vec<_>>(), ["web"]);
    let parts: Vec<_> = view.structures().map(|it| (it.name, it.kind, it.element.unwrap())).collect();
    let expected =
        [("web", "u64"), ("web.offsets", "u64"), ("web.rows", "u64"), ("web.targets", "u32"), ("web.values", "f32")];
    assert_eq!(parts, expected.map(|(name, element)| (name.to_owned(), "graph", element)));
}

#[test]
fn views_of_all_structures_may_go_to_other_threads() {
    fn check<T: Send + Sync>() {}
    check::<outcrop_pool::View>();
    check::<outcrop_pool::ArrayView<f64>>();
    check::<outcrop_pool::TreeView<f64, 2>>();
    check::<outcrop_pool::TreeView<f64, 3>>();
    check::<outcrop_pool::GraphView<f64, f32>>();
}

/// A batch costs what it has, and a little for merging; not what the graph has.
#[test]
fn a_batch_costs_what_it_has() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir);
    let mut web = pool.graph::<f64, f64>("web").unwrap();
    let (nodes, mut rng) = (20_000, Rng::with_seed(1));
    web.add_nodes((0..nodes).map(f64::from));
    let mut batch = |count: usize| -> Vec<(u32, u32, f64)> {
        (0..count).map(|_| (rng.u32(..nodes), rng.u32(..nodes), rng.f64())).collect()
    };
    web.add_edges(&batch(400_000));
    let all = pool.persist_counted(&mut [&mut web]).unwrap();
    assert!(all.bytes > 400_000 * 12, "{all:?}");
    let mut bytes = 0;
    for _ in 0..64 {
        web.add_edges(&batch(1000));
        let slices = (0..nodes).map(|node| web.slices(node).count()).max().unwrap();
        assert!(slices <= 8, "{slices}");
        bytes += pool.persist_counted(&mut [&mut web]).unwrap().bytes;
    }
    // 28 bytes per edge, written once for each of up to six merges; and some pages per version.
    assert!(bytes < 64 * (1000 * 28 * 4 + 16 * 4096), "{bytes}");
    assert!(bytes < all.bytes * 2, "{bytes}");
    // A quarter more: a new base.
    web.add_edges(&batch(60_000));
    assert!((0..nodes).all(|node| web.slices(node).count() <= 1));
    assert_eq!(web.edge_count(), 524_000);
    // The weights of one node.
    pool.persist(&mut [&mut web]).unwrap();
    web.update_edges(7, |_, weight| *weight = 0.5);
    let one = pool.persist_counted(&mut [&mut web]).unwrap();
    assert!(one.bytes <= 4096 * 5, "{one:?}");
}
