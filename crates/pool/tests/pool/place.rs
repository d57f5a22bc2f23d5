//! Working data in DRAM, or on the medium alone.

use std::path::Path;

use outcrop_pool::{Array, Block, Home, Options, Pool, Usage};
use outcrop_testing::{alone, of_process};

/// So many elements are a page, and a block.
const PAGE: usize = 512;

fn open(dir: &Path, options: Options, blocks: usize) -> (Pool, Array<u64>) {
    let pool = Pool::open(dir.join("a.pool"), options).unwrap();
    let array = pool.array::<u64>("a", blocks * PAGE, Block::elements(PAGE)).unwrap();
    (pool, array)
}

/// A program that changes some blocks all the time, and all others one after the other, with DRAM
/// for a few.
fn program(place: impl FnOnce(&mut Array<u64>)) -> Usage {
    const HOT: usize = 8;
    const BLOCKS: usize = 128;
    let dir = tempfile::tempdir().unwrap();
    let (pool, mut array) = open(dir.path(), Options::versions(2).dram(12 * 4096), BLOCKS);
    array[..].fill(1);
    pool.persist(&mut [&mut array]).unwrap();
    place(&mut array);
    let mut expected = array.to_vec();
    for (step, cold) in (HOT..BLOCKS).cycle().step_by(6).take(100).enumerate() {
        // Half of what is changed often, in turns, and six of the others.
        let hot = (step % 2 * HOT / 2..).take(HOT / 2);
        let cold = (cold..cold + 6).map(|block| if block < BLOCKS { block } else { HOT });
        for block in hot.chain(cold) {
            array[block * PAGE + step % PAGE] += 1;
            expected[block * PAGE + step % PAGE] += 1;
        }
        pool.persist(&mut [&mut array]).unwrap();
        assert!(array[..] == expected[..], "step {step}");
    }
    assert!(pool.usage().dram_bytes <= 12 * 4096, "{:?}", pool.usage());
    pool.usage()
}

#[test]
fn a_good_hint_costs_fewer_copies_than_none() {
    let none = program(|_| {});
    let good = program(|array| {
        array.place(8 * PAGE..array.len(), Home::Nvm);
        array.place(0..8 * PAGE, Home::Dram);
    });
    let bad = program(|array| {
        array.place(8 * PAGE..array.len(), Home::Dram);
        array.place(0..8 * PAGE, Home::Nvm);
    });
    let copies = [good, none, bad].map(|usage| usage.copied_bytes / 4096);
    // The blocks that are changed often are not copied again, four of them in each step.
    assert!(copies[0] + 300 < copies[1] && copies[1] <= copies[2], "{copies:?}");
    // What is written is what has changed, wherever it is.
    assert_eq!((good.written_bytes, bad.written_bytes), (none.written_bytes, none.written_bytes));
    assert_eq!(good.dram_bytes, 8 * 4096);
}

#[test]
fn dram_is_given_back_and_values_stay() {
    if alone("place::dram_is_given_back_and_values_stay") {
        return;
    }
    const BLOCKS: usize = 16 << 10;
    let dir = tempfile::tempdir().unwrap();
    let (pool, mut array) = open(dir.path(), Options::versions(2), BLOCKS);
    array.place(0..BLOCKS / 2 * PAGE, Home::Nvm);
    array.iter().for_each(|value| assert_eq!(*value, 0));
    array[..].fill(3);
    let own_kib = || of_process("status", "RssAnon").unwrap();
    let before = own_kib();
    pool.persist(&mut [&mut array]).unwrap();
    let after = own_kib();
    let half = BLOCKS as u64 * 4 / 2;
    assert!(after + half * 9 / 10 < before, "{after} of {before} KiB");
    assert_eq!((pool.usage().dram_bytes, pool.usage().copied_bytes), (half * 1024, 0));
    assert!(array.iter().all(|value| *value == 3));
    // Blocks of zeros have no place on the medium.
    array[..].fill(0);
    pool.persist(&mut [&mut array]).unwrap();
    assert!(own_kib() < before - half / 10 * 9);
    assert_eq!(pool.usage().copied_bytes, half * 1024);
    assert!(array.iter().all(|value| *value == 0));
    // The hint stays, also for what is restored.
    array[7] = 9;
    pool.persist(&mut [&mut array]).unwrap();
    assert_eq!((array[7], array[8], pool.usage().dram_bytes), (9, 0, half * 1024));
}

#[test]
fn hints_are_for_whole_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, mut array) = open(dir.path(), Options::versions(2), 4);
    let mut held = |start: usize, end: usize, place| {
        array.place(0..array.len(), if place == Home::Dram { Home::Nvm } else { Home::Dram });
        array.place(start..end, place);
        array[..].iter_mut().for_each(|value| *value += 1);
        pool.persist(&mut [&mut array]).unwrap();
        pool.usage().dram_bytes / 4096
    };
    assert_eq!(held(0, 4 * PAGE, Home::Nvm), 0);
    assert_eq!(held(0, 2 * PAGE - 1, Home::Nvm), 3);
    assert_eq!(held(PAGE - 1, 2 * PAGE, Home::Nvm), 3);
    assert_eq!(held(PAGE, PAGE, Home::Nvm), 4);
    assert_eq!(held(PAGE - 1, PAGE + 1, Home::Dram), 2);
    assert_eq!(held(PAGE, 2 * PAGE, Home::Dram), 1);
    drop((array, pool));
    // The last block need not be full.
    let pool = Pool::open(dir.path().join("b.pool"), Options::versions(2)).unwrap();
    let mut short = pool.array::<u64>("b", PAGE + 7, Block::elements(PAGE)).unwrap();
    short.place(0..PAGE + 7, Home::Nvm);
    short[..].fill(1);
    pool.persist(&mut [&mut short]).unwrap();
    assert_eq!(pool.usage().dram_bytes, 0);
}

#[test]
fn cells_and_nodes_are_placed_by_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut mesh = pool.octree::<[u64; 64]>("mesh").unwrap();
    let root = mesh.root();
    // One of the children is refined, and is to be near. A page has 8 cells, as many as a cell has
    // children.
    let children: Vec<_> = mesh.refine(root, |_, _| [1; 64]).collect();
    mesh.refine(children[3], |_, _| [2; 64]);
    mesh.place_cells(|tree, cell| if tree[cell][0] == 2 { Home::Dram } else { Home::Nvm });
    pool.persist(&mut [&mut mesh]).unwrap();
    let links = 4096;
    assert_eq!(pool.usage().dram_bytes, 4096 + links);
    mesh.place_cells(|_, _| Home::Nvm);
    mesh[children[0]] = [3; 64];
    mesh[children[3]] = [4; 64];
    pool.persist(&mut [&mut mesh]).unwrap();
    assert_eq!((pool.usage().dram_bytes, pool.usage().copied_bytes), (4096 + links, 4096));
    assert_eq!((mesh[children[0]][63], mesh[children[3]][0], mesh[root][0]), (3, 4, 0));
    drop((mesh, pool));

    let pool = Pool::open(dir.path().join("b.pool"), Options::versions(2)).unwrap();
    let mut web = pool.graph::<[u64; 64], u64>("web").unwrap();
    web.add_nodes((0..32).map(|_| [7; 64]));
    // Nodes 0 to 7, which are a page, are central.
    web.add_edges(&(0..8).flat_map(|from| (8..12).map(move |to| (from, to, 1))).collect::<Vec<_>>());
    pool.persist(&mut [&mut web]).unwrap();
    let before = pool.usage().dram_bytes;
    web.place_nodes(4);
    (0..32).for_each(|node| web[node][0] = 8);
    pool.persist(&mut [&mut web]).unwrap();
    assert_eq!(pool.usage().dram_bytes, before - 3 * 4096);
    assert!(web.nodes().iter().all(|state| *state.first().unwrap() == 8 && state[63] == 7));
}

#[test]
fn what_has_left_dram_is_not_expected_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, mut array) = open(dir.path(), Options::versions(2).dram(10 * 4096), 100);
    array[..].fill(1);
    pool.persist(&mut [&mut array]).unwrap();
    pool.persist(&mut [&mut array]).unwrap();
    assert_eq!(pool.usage().copied_bytes, 0, "nothing was written");
    array[99 * 512] = 2;
    array[0] = 2;
    pool.persist(&mut [&mut array]).unwrap();
    assert!((1..=2).contains(&(pool.usage().copied_bytes / 4096)));
}
