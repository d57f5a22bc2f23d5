//! Quadtrees and octrees, as a program uses them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use outcrop_pool::{Cell, Face, LEVEL_MAX, Options, Place, Pool, Tree};
use outcrop_testing::amount;
use tempfile::tempdir;

/// The message of a panic, if there is one.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(call)).err()?;
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
}

/// The message of a panic.
pub(crate) fn panic_of<T>(call: impl FnOnce() -> T) -> String {
    caught(call).expect("it should have panicked")
}

fn pool(dir: &tempfile::TempDir, versions: u64) -> Pool {
    Pool::open(dir.path().join("a.pool"), Options::versions(versions)).unwrap()
}

/// Refines all leaves.
fn refine_all<const D: usize>(tree: &mut Tree<u64, D>) {
    for leaf in tree.leaves().collect::<Vec<_>>() {
        tree.refine(leaf, |parent, place| parent + u64::from(place.position[0]));
    }
}

#[test]
fn cells_are_where_they_should_be() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, 2);
    let mut tree = pool.quadtree::<u64>("mesh").unwrap();
    assert_eq!((tree.cell_count(), tree.leaf_count(), tree.is_leaf(tree.root())), (1, 1, true));
    let first: Vec<Cell> =
        tree.refine(tree.root(), |_, place| u64::from(place.position[0] + 2 * place.position[1])).collect();
    // Morton order: the first axis varies fastest.
    assert_eq!(first.iter().map(|cell| tree[*cell]).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(tree.place(first[2]), Place { level: 1, position: [0, 1] });
    let fine: Vec<Cell> = tree.refine(first[1], |parent, _| *parent).collect();
    let (left, right) = (Face { axis: 0, is_upper: false }, Face { axis: 0, is_upper: true });
    let up = Face { axis: 1, is_upper: true };
    // Of the same level, with children; finer; coarser; and the border.
    assert_eq!(tree.neighbour(first[0], right), Some(first[1]));
    assert_eq!(tree.neighbours(first[0], right).collect::<Vec<_>>(), [fine[0], fine[2]]);
    assert_eq!(tree.neighbour(fine[0], left), Some(first[0]));
    assert_eq!(tree.neighbours(fine[2], up).collect::<Vec<_>>(), [first[3]]);
    assert_eq!((tree.neighbour(fine[1], right), tree.neighbours(fine[1], right).count()), (None, 0));
    assert_eq!(tree.find([0.75, 0.25]), Some(fine[3]));
    assert_eq!(tree.find([0.5, 0.0]), Some(fine[0]), "a face belongs to the cell above it");
    for outside in [[1.0, 0.5], [-0.1, 0.5], [f64::NAN, 0.5], [0.5, f64::INFINITY]] {
        assert_eq!(tree.find(outside), None);
    }
    assert_eq!(tree.at(Place { level: 1, position: [1, 0] }), Some(first[1]));
    assert_eq!(tree.at(Place { level: 2, position: [0, 0] }), None);
    assert_eq!(tree.at(Place { level: 1, position: [2, 0] }), None);
    assert_eq!(tree.at(Place { level: 99, position: [0, 0] }), None);
    // Pruned: without the cells below.
    let mut seen = Vec::new();
    tree.traverse(tree.root(), |cell| {
        seen.push(cell);
        cell != first[1]
    });
    assert_eq!(seen, [tree.root(), first[0], first[1], first[2], first[3]]);
    // As deep as it goes.
    let mut corner = fine[0];
    while tree.place(corner).level < LEVEL_MAX {
        corner = tree.refine(corner, |parent, _| *parent).last().unwrap();
    }
    assert_eq!(tree.find(tree.place(corner).centre()), Some(corner));
    assert!(panic_of(|| tree.refine(corner, |parent, _| *parent)).contains("deepest level"));
    assert!(tree.balance(|parent, _| *parent) > 0 && tree.is_balanced());
    let version = pool.persist(&mut [&mut tree]).unwrap();
    pool.view(version).unwrap().verify().unwrap();
}

/// A handle refers to one life of a cell, whatever became of the tree: the value that a cell gets
/// when it is made says which life it is.
#[test]
fn a_handle_never_gives_another_cell() {
    for seed in 0..amount(30, 600) {
        let mut rng = Rng::with_seed(seed);
        let dir = tempdir().unwrap();
        let pool = pool(&dir, 3);
        let mut tree = pool.octree::<u64>("mesh").unwrap();
        let (mut lives, mut handles) = (1, Vec::<(Cell, u64)>::new());
        for _ in 0..80 {
            let leaves: Vec<Cell> = tree.leaves().collect();
            let leaf = *rng.choice(&leaves).unwrap();
            match rng.u8(..8) {
                0..=3 if tree.place(leaf).level < LEVEL_MAX => {
                    let made = tree.refine(leaf, |_, _| {
                        lives += 1;
                        lives
                    });
                    handles.extend(made.map(|cell| (cell, tree[cell])));
                }
                4..=5 => {
                    let Some(parent) = tree.parent(leaf).filter(|parent| tree.can_coarsen(*parent)) else { continue };
                    let value = tree[parent];
                    tree.coarsen(parent, |_| value);
                }
                6 => drop(pool.persist(&mut [&mut tree]).unwrap()),
                _ => {
                    let Some(version) = rng.choice(pool.versions()) else { continue };
                    pool.restore(version, &mut [&mut tree]).unwrap();
                    let view = pool.view(version).unwrap().octree::<u64>("mesh").unwrap();
                    assert!(handles.iter().all(|(cell, life)| view.get(*cell).is_none_or(|value| value == life)));
                }
            }
            assert!(handles.iter().all(|(cell, life)| tree.get(*cell).is_none_or(|value| value == life)));
        }
        assert!(handles.iter().any(|(cell, _)| tree.get(*cell).is_none()));
    }
}

#[test]
fn misuse_says_what_is_wrong_and_changes_nothing() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, 3);
    let mut tree = pool.octree::<u64>("mesh").unwrap();
    let root = tree.root();
    let child = tree.refine(root, |_, _| 7).next().unwrap();
    let fine = tree.refine(child, |_, _| 8).next().unwrap();
    assert!(panic_of(|| tree.refine(child, |_, _| 0)).contains("has children"));
    assert!(panic_of(|| tree.coarsen(root, |_| 0)).contains("are not leaves"));
    assert!(panic_of(|| tree.coarsen(fine, |_| 0)).contains("are not leaves"));
    let used = (tree.cell_count(), tree.leaf_count());
    assert_eq!(
        panic_of(|| tree.refine(fine, |_, place| if place.position[0] > 0 { panic!("stop") } else { 1 })),
        "stop"
    );
    assert_eq!(panic_of(|| tree.coarsen(child, |_| panic!("stop"))), "stop");
    assert_eq!(((tree.cell_count(), tree.leaf_count()), tree[child], tree.is_leaf(fine)), (used, 7, true));
    let version = pool.persist(&mut [&mut tree]).unwrap();
    pool.view(version).unwrap().verify().unwrap();
    tree.coarsen(child, |_| 1);
    assert!(panic_of(|| tree[fine]).contains("is gone"));
    assert!(panic_of(|| tree[fine] = 1).contains("is gone"));
    assert!(panic_of(|| tree.refine(fine, |_, _| 0)).contains("is gone"));
    assert!(panic_of(|| tree.neighbour(fine, Face { axis: 0, is_upper: true })).contains("is gone"));
    drop(tree);
    // Another kind of structure with the name, or with that of a part.
    let message = |error: outcrop_pool::Error| error.to_string();
    assert!(message(pool.quadtree::<u64>("mesh").unwrap_err()).contains("(octree, not quadtree)"));
    assert!(message(pool.octree::<f64>("mesh").unwrap_err()).contains("another layout"));
    assert!(
        message(pool.list::<u64>("mesh", outcrop_pool::Block::default()).unwrap_err()).contains("(octree, not list)")
    );
    let links = pool.array::<[u32; 16]>("mesh.links", 3, outcrop_pool::Block::default());
    assert!(message(links.unwrap_err()).contains("part of a structure (octree)"));
    let view = pool.view(version).unwrap();
    assert!(message(view.quadtree::<u64>("mesh").unwrap_err()).contains("(octree, not quadtree)"));
    assert!(message(view.array::<u64>("mesh").unwrap_err()).contains("(octree, not array)"));
    assert_eq!(view.names().collect::<Vec<_>>(), ["mesh"]);
    let kinds = view.structures().map(|it| (it.name, it.kind, it.element, it.shape)).collect::<Vec<_>>();
    let expected = [("mesh", [24, 1, 1], Some("u64")), ("mesh.links", [3, 16, 1], Some("u32"))];
    assert_eq!(kinds, expected.map(|(name, shape, element)| (name.to_owned(), "octree", element, shape)));
}

#[test]
fn free_cells_are_used_again_and_survive() {
    let dir = tempdir().unwrap();
    let mut pool = pool(&dir, 3);
    let mut tree = pool.octree::<u64>("mesh").unwrap();
    (0..4).for_each(|_| refine_all(&mut tree));
    let version = pool.persist(&mut [&mut tree]).unwrap();
    let used = pool.usage().used_bytes;
    let mut rng = Rng::with_seed(2);
    for round in 0..40 {
        // As many cells as before, elsewhere.
        for _ in 0..50 {
            let leaf = *rng.choice(tree.leaves().collect::<Vec<_>>().as_slice()).unwrap();
            tree.refine(leaf, |parent, _| *parent);
        }
        while tree.cell_count() > 4681 {
            let leaf = *rng.choice(tree.leaves().collect::<Vec<_>>().as_slice()).unwrap();
            let parent = tree.parent(leaf).filter(|parent| tree.can_coarsen(*parent));
            parent.into_iter().for_each(|parent| tree.coarsen(parent, |values| values[0]));
        }
        pool.persist(&mut [&mut tree]).unwrap();
        if round == 20 {
            pool.restore(pool.versions()[0], &mut [&mut tree]).unwrap();
        }
        if round == 30 {
            drop((tree, pool));
            pool = self::pool(&dir, 3);
            tree = pool.octree::<u64>("mesh").unwrap();
        }
        let links = pool.view(*pool.versions().last().unwrap()).unwrap().structures().nth(1).unwrap();
        assert!(links.shape[0] <= 585 + 51, "{links:?}");
    }
    assert!(pool.view(version).is_err() && pool.usage().used_bytes < 4 * used);
    pool.view(*pool.versions().last().unwrap()).unwrap().verify().unwrap();
}

/// What a version costs depends on what has changed, not on how large the tree is.
#[test]
fn a_version_costs_what_has_changed() {
    let costs = [3u32, 5].map(|depth| {
        let dir = tempdir().unwrap();
        let pool = pool(&dir, 2);
        let mut tree = pool.octree::<[f64; 4]>("mesh").unwrap();
        for _ in 0..depth {
            for leaf in tree.leaves().collect::<Vec<_>>() {
                tree.refine(leaf, |_, place| [place.size(), 1.0, 2.0, 3.0]);
            }
        }
        let all = pool.persist_counted(&mut [&mut tree]).unwrap();
        assert!(all.bytes >= tree.cell_count() as u64 * 40, "{all:?}");
        // Around one point: each of these cells has its own place in the lists.
        let mut cell = tree.find([0.3, 0.6, 0.2]).unwrap();
        for _ in 0..3 {
            cell = tree.refine(cell, |parent, _| *parent).next().unwrap();
        }
        let refined = pool.persist_counted(&mut [&mut tree]).unwrap();
        // A block with the new groups and one with their parent, a page of entries and perhaps one
        // above it, for both lists; the list of structures.
        assert!(refined.bytes <= 4096 * (2 * 4 + 1), "{refined:?}");
        for _ in 0..3 {
            cell = tree.parent(cell).unwrap();
            tree.coarsen(cell, |values| values[0]);
        }
        let coarsened = pool.persist_counted(&mut [&mut tree]).unwrap();
        assert!(coarsened.bytes <= 4096 * (2 * 4 + 1), "{coarsened:?}");
        // The free places near it are used again.
        tree.refine(cell, |parent, _| *parent);
        let again = pool.persist_counted(&mut [&mut tree]).unwrap();
        assert!(again.bytes <= 4096 * (2 * 4 + 1), "{again:?}");
        tree[cell][1] = 7.0;
        let value = pool.persist_counted(&mut [&mut tree]).unwrap();
        assert!(value.bytes <= 4096 * 4, "{value:?}");
        let versions: Vec<_> = pool.versions().into_iter().map(|version| pool.view(version).unwrap()).collect();
        let (shared, all) = versions[1].shared_blocks(&versions[0], "mesh").unwrap();
        assert_eq!(shared + 1, all);
        (refined.bytes, all)
    });
    // Sixty times as many cells.
    assert!(costs[1].1 > 50 * costs[0].1 && costs[1].0 <= costs[0].0 + 4 * 4096, "{costs:?}");
}

/// Free places near the cell that is refined are preferred to others.
#[test]
fn the_nearest_free_place_is_taken() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, 2);
    let mut tree = pool.octree::<[f64; 4]>("mesh").unwrap();
    for _ in 0..4 {
        for leaf in tree.leaves().collect::<Vec<_>>() {
            tree.refine(leaf, |_, place| [place.size(); 4]);
        }
    }
    // The leaves are in the order of their groups, 8 to a group. A block of values has 16 groups,
    // one of links 64. One place is free in every third block of values, and some in one.
    let leaves: Vec<Cell> = tree.leaves().collect();
    let parents = |groups: &mut dyn Iterator<Item = usize>| -> Vec<Cell> {
        groups.map(|group| tree.parent(leaves[group * 8]).unwrap()).collect()
    };
    let (far, near) = (parents(&mut (0..512).step_by(48)), parents(&mut (304..316)));
    far.iter().chain(&near).for_each(|parent| tree.coarsen(*parent, |values| values[0]));
    pool.persist(&mut [&mut tree]).unwrap();
    for leaf in &leaves[318 * 8..319 * 8] {
        tree.refine(*leaf, |_, _| [7.0; 4]);
    }
    let persisted = pool.persist_counted(&mut [&mut tree]).unwrap();
    // A block or two of values, two of links, two pages of entries above each, and the list of
    // structures. Far apart, they would change eight blocks of values.
    assert!(persisted.bytes <= 4096 * 9, "{persisted:?}");
}

#[test]
fn views_are_read_by_other_threads_while_the_tree_changes() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, 2);
    let mut tree = pool.octree::<u64>("mesh").unwrap();
    (0..3).for_each(|_| refine_all(&mut tree));
    let expected: Vec<u64> = tree.leaves().map(|leaf| tree[leaf]).collect();
    let version = pool.persist(&mut [&mut tree]).unwrap();
    let view = pool.view(version).unwrap().octree::<u64>("mesh").unwrap();
    std::thread::scope(|scope| {
        scope
            .spawn(|| (0..50).for_each(|_| assert!(view.leaves().map(|leaf| view[leaf]).eq(expected.iter().copied()))));
        for _ in 0..20 {
            let leaf = tree.leaves().nth(100).unwrap();
            tree.refine(leaf, |_, _| 1);
            pool.persist(&mut [&mut tree]).unwrap();
        }
    });
}

#[test]
fn all_leaves_are_updated_once_and_nothing_else() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, 2);
    let mut tree = pool.octree::<u64>("mesh").unwrap();
    let mut rng = Rng::with_seed(3);
    for round in 0..30 {
        let leaves: Vec<Cell> = tree.leaves().collect();
        let leaf = leaves[rng.usize(..leaves.len())];
        tree.refine(leaf, |parent, _| parent + 1000);
        if round % 3 == 2 {
            // Groups become free, among others.
            let parent = tree.parent(leaf).unwrap_or(leaf);
            if tree.can_coarsen(parent) {
                tree.coarsen(parent, |children| children[0]);
            }
        }
        let (mut all, mut expected, mut updated) = (Vec::new(), Vec::new(), Vec::new());
        tree.traverse(tree.root(), |cell| {
            all.push((cell, tree[cell] + u64::from(tree.is_leaf(cell))));
            true
        });
        expected.extend(tree.leaves());
        tree.update_leaves(|cell, value| {
            *value += 1;
            updated.push(cell);
        });
        updated.sort_by_key(|cell| expected.iter().position(|leaf| leaf == cell));
        assert_eq!(updated, expected);
        assert!(all.iter().all(|(cell, value)| tree[*cell] == *value));
        let version = pool.persist(&mut [&mut tree]).unwrap();
        let old = pool.view(version).unwrap().octree::<u64>("mesh").unwrap();
        assert!(all.iter().all(|(cell, value)| old[*cell] == *value));
    }
}
