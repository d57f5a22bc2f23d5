//! Small histories of every structure and operation: whatever of the stores that were not flushed
//! a crash leaves, the pool has the version before or the one after, whole.

use std::collections::BTreeSet;

use outcrop_format::{PAGE_BYTES, POOL_FIRST_PAGE, pool_check};
use outcrop_pool::{Array, Block, Graph, List, Options, Pool, Result, Structure, Tree};
use outcrop_testing::{amount, covered, say};

use crate::medium::Recorded;

type Operation<S> = (&'static str, fn(&mut S));

/// The bytes of all parts of the newest version.
fn newest(pool: &Pool) -> Vec<(String, Vec<u8>)> {
    let view = pool.view(*pool.versions().last().unwrap()).unwrap();
    view.structures().map(|part| (part.name.clone(), view.bytes(&part.name).unwrap().to_vec())).collect()
}

/// Carries out operations, each followed by a version, and looks at all images of each.
fn history<S: Structure>(open: impl Fn(&Pool) -> Result<S>, operations: &[Operation<S>]) -> u64 {
    // One version: the pages of the one before are used again by the next.
    let options = Options::versions(1);
    let medium = Recorded::new(Vec::new());
    let pool = Pool::on(medium.clone(), options.clone()).unwrap();
    let mut structure = open(&pool).unwrap();
    pool.persist(&mut [&mut structure]).unwrap();
    let mut images = 0;
    for (number, (name, operation)) in operations.iter().enumerate() {
        let (from, before, was) = (medium.stores.moment(), pool.versions(), newest(&pool));
        operation(&mut structure);
        pool.persist(&mut [&mut structure]).unwrap();
        let (end, after, is) = (medium.stores.moment(), pool.versions(), newest(&pool));
        assert!(was != is, "{name} changes nothing");
        let mut roots = BTreeSet::new();
        // Roots have 12 words. How they are torn does not depend on the operation.
        let words_max = if number % operations.len().min(amount(100, 1)) == 0 { 12 } else { 0 };
        medium.stores.every_image(from..end + 1, words_max, |moment, image| {
            images += 1;
            let is_new = roots.insert(pool_check(&image[..POOL_FIRST_PAGE as usize * PAGE_BYTES]));
            let pool = Pool::on(Recorded::new(image), options.clone()).unwrap();
            let versions = pool.versions();
            assert!(
                versions == after || versions == before && moment < end,
                "{name}: {versions:?} at {moment} of {end}"
            );
            pool.view(versions[0]).unwrap().verify().unwrap();
            // Other images with these roots have the same bytes, by checksums.
            if is_new {
                let expected = if versions == after { &is } else { &was };
                assert!(newest(&pool) == *expected, "{name}: {versions:?}");
                let mut structure = open(&pool).unwrap();
                pool.persist(&mut [&mut structure]).unwrap();
                assert!(newest(&pool) == *expected, "{name}: written on");
            }
        });
    }
    images
}

/// Refines the leaf at a point.
fn refine<const D: usize>(tree: &mut Tree<u64, D>, point: [f64; D]) {
    let leaf = tree.find(point).unwrap();
    tree.refine(leaf, |parent, place| parent + 7 + u64::from(place.level));
}

/// Coarsens the parent of the leaf at a point.
fn coarsen<const D: usize>(tree: &mut Tree<u64, D>, point: [f64; D]) {
    let parent = tree.parent(tree.find(point).unwrap()).unwrap();
    tree.coarsen(parent, |values| values.iter().sum());
}

fn trees<const D: usize>() -> Vec<Operation<Tree<u64, D>>> {
    vec![
        ("refine", |tree| refine(tree, [0.1; D])),
        ("refine again", |tree| refine(tree, [0.4; D])),
        ("refine deeper", |tree| refine(tree, [0.49; D])),
        ("balance", |tree| assert!(tree.balance(|parent, _| *parent) > 0)),
        ("change a value", |tree| {
            let leaf = tree.find([0.9; D]).unwrap();
            tree[leaf] += 100;
        }),
        ("coarsen", |tree| coarsen(tree, [0.49; D])),
        ("refine where a cell was", |tree| refine(tree, [0.9; D])),
    ]
}

#[test]
fn small_histories_leave_one_version_or_the_other() {
    let mut images = history(
        |pool| pool.array::<u64>("it", 2000, Block::elements(512)),
        &[
            ("change an element", |array: &mut Array<u64>| array[7] = 1),
            ("change a slice", |array| array[400..1700].fill(5)),
            ("zeros", |array| array[..1024].fill(0)),
        ],
    );
    images += history(
        |pool| pool.list::<u64>("it", Block::elements(512)),
        &[
            ("push", |list: &mut List<u64>| list.push(1)),
            ("extend", |list| list.extend_from_slice(&[7; 1500])),
            ("change", |list| list[600] = 3),
            ("truncate", |list| list.truncate(700)),
            ("zeros", |list| list.resize(1800, 0)),
            ("empty", |list| list.truncate(0)),
        ],
    );
    images += history(|pool| pool.quadtree::<u64>("it"), &trees::<2>());
    images += history(|pool| pool.octree::<u64>("it"), &trees::<3>());
    images += history(
        |pool| pool.graph::<u64, u64>("it"),
        &[
            ("add nodes", |graph: &mut Graph<u64, u64>| assert_eq!(graph.add_nodes(1..9), 0..8)),
            ("first edges", |graph| graph.add_edges(&[(1, 2, 3), (0, 7, 2), (1, 1, 1), (4, 5, 6), (7, 0, 9)])),
            ("a batch", |graph| graph.add_edges(&[(3, 3, 3)])),
            ("a state", |graph| graph[5] = 50),
            ("values", |graph| graph.update_edges(1, |_, value| *value += 10)),
            ("merge", |graph| {
                graph.add_edges(&[(0, 0, 1)]);
                graph.merge();
            }),
        ],
    );
    say(format_args!("all pool crash images of small histories: {images}, lost: 0"));
    covered("all pool crash images of small histories", images);
}
