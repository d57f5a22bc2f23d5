//! What a program in safe Rust may try with structures and views.

use std::{
    mem::{align_of_val, swap},
    thread,
};

use outcrop_pool::{Block, Error, Options, Pool, Versioned};
use outcrop_testing::alone;
use rayon::prelude::*;
use tempfile::{TempDir, tempdir};

use crate::trees::panic_of;

fn pool(dir: &TempDir, name: &str) -> Pool {
    Pool::open(dir.path().join(name), Options::versions(2)).unwrap()
}

#[derive(Versioned, Clone, Copy, PartialEq, Debug)]
#[repr(C, packed)]
struct Packed {
    flag: u8,
    value: u32,
}

#[derive(Versioned, Clone, Copy)]
#[repr(align(4096))]
struct Aligned([u64; 512]);

#[derive(Versioned, Clone, Copy)]
struct Nested {
    pairs: [Pair; 3],
    none: [u16; 0],
}

#[derive(Versioned, Clone, Copy)]
struct Pair(f32, i32);

#[test]
fn elements_are_where_their_types_want_them() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, "a.pool");
    let mut packed = pool.array::<Packed>("packed", 10_000, Block::elements(1)).unwrap();
    let mut aligned = pool.list::<Aligned>("aligned", Block::elements(1)).unwrap();
    let mut nested = pool.array::<Nested>("nested", [7, 8, 9], Block::default()).unwrap();
    (0..packed.len()).for_each(|index| packed[index].value = index as u32);
    aligned.extend((0..9).map(|number| Aligned([number; 512])));
    nested[[6, 7, 8]].pairs[2] = Pair(1.5, -7);
    let version = pool.persist(&mut [&mut packed, &mut aligned, &mut nested]).unwrap();
    let view = pool.view(version).unwrap();
    let old = view.list::<Aligned>("aligned").unwrap();
    for element in aligned.iter().chain(&*old) {
        assert!(std::ptr::from_ref(element).addr().is_multiple_of(align_of_val(element)));
    }
    assert!(old.iter().enumerate().all(|(number, element)| element.0 == [number as u64; 512]));
    let old = view.array::<Packed>("packed").unwrap();
    assert!(old.iter().enumerate().all(|(index, element)| *element == Packed { flag: 0, value: index as u32 }));
    let last = view.array::<Nested>("nested").unwrap()[7 * 8 * 9 - 1];
    assert_eq!((last.pairs[2].0, last.pairs[2].1, last.none), (1.5, -7, []));
    // Elements without bytes are none.
    let refused = pool.array::<[u64; 0]>("nothing", 7, Block::default()).map(drop);
    assert!(matches!(refused, Err(Error::Misfit(_))), "{refused:?}");
    assert!(view.array::<[u64; 0]>("nested").is_err());
}

#[test]
fn indexes_are_compared_in_each_dimension() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, "a.pool");
    let mut line = pool.array::<u64>("line", 60, Block::default()).unwrap();
    let mut plane = pool.array::<u64>("plane", [12, 5], Block::default()).unwrap();
    let mut room = pool.array::<u64>("room", [3, 4, 5], Block::default()).unwrap();
    for at in 0..60 {
        line[at] = at as u64;
        plane[[at / 5, at % 5]] = at as u64;
        room[[at / 20, at / 5 % 4, at % 5]] = at as u64;
    }
    assert!(line[..] == plane[..] && line[..] == room[..]);
    // Inside the memory, and outside the shape.
    panic_of(|| plane[[0, 5]]);
    panic_of(|| plane[[0, 5]] = 1);
    panic_of(|| room[[0, 4, 0]]);
    panic_of(|| room[[0, 0, 5]] = 1);
    panic_of(|| room[[3, 0, 0]]);
    panic_of(|| line[60] = 1);
    panic_of(|| line[7..61].fill(1));
    panic_of(|| line[61..].fill(1));
    assert!(line[..] == plane[..] && line[..] == room[..]);
    // Chunks of a slice go to the threads of rayon, with all dimensions.
    let rows = room[..].par_chunks_mut(5).enumerate();
    rows.for_each(|(row, values)| values.iter_mut().for_each(|value| *value += row as u64));
    let version = pool.persist(&mut [&mut line, &mut plane, &mut room]).unwrap();
    let old = pool.view(version).unwrap().array::<u64>("room").unwrap();
    assert_eq!((old.shape(), old[59], old.par_iter().sum::<u64>()), ([3, 4, 5], 70, 59 * 30 + 66 * 5));
}

/// Some processors tell lines of their caches apart by the lower bits of an address only.
#[test]
fn structures_of_one_length_are_not_a_power_of_two_apart() {
    if alone("safe::structures_of_one_length_are_not_a_power_of_two_apart") {
        return;
    }
    let dir = tempdir().unwrap();
    let pool = pool(&dir, "a.pool");
    let arrays = ["a", "b", "c"].map(|name| pool.array::<u64>(name, 1 << 20, Block::default()).unwrap());
    let mut web = pool.graph::<u64, u32>("web").unwrap();
    web.add_nodes([0; 2]);
    web.add_edges(&[(0, 1, 7)]);
    let (targets, values) = web.slices(0).next().unwrap();
    let mut starts: Vec<usize> = arrays.iter().map(|array| array.as_ptr().addr()).collect();
    starts.extend([targets.as_ptr().addr(), values.as_ptr().addr(), web.nodes().as_ptr().addr()]);
    let lower: std::collections::BTreeSet<usize> = starts.iter().map(|start| start % (1 << 20)).collect();
    assert_eq!(lower.len(), starts.len(), "{starts:x?}");
}

/// Structures know their pools and their names, wherever a program puts them.
#[test]
fn structures_that_are_exchanged_stay_what_they_are() {
    let dir = tempdir().unwrap();
    let (one, other) = (pool(&dir, "one"), pool(&dir, "other"));
    let mut a = one.array::<u64>("a", 1000, Block::default()).unwrap();
    let mut b = other.array::<u64>("b", 10, Block::default()).unwrap();
    (a[999], b[9]) = (1, 2);
    swap(&mut a, &mut b);
    let refused = one.persist(&mut [&mut a]).unwrap_err();
    assert!(refused.to_string().contains("another pool"), "{refused}");
    let (first, second) = (one.persist(&mut [&mut b]).unwrap(), other.persist(&mut [&mut a]).unwrap());
    assert!(one.restore(first, &mut [&mut a]).is_err() && other.restore(second, &mut [&mut b]).is_err());
    assert_eq!(one.view(first).unwrap().array::<u64>("a").unwrap()[999], 1);
    assert_eq!(other.view(second).unwrap().array::<u64>("b").unwrap()[9], 2);
    // Twice in one call is not possible, and one that is not in there is missed.
    let again = one.array::<u64>("a", 1000, Block::default()).unwrap_err();
    assert!(again.to_string().contains("open already"), "{again}");
    assert!(one.persist(&mut []).unwrap_err().to_string().contains("was not named"));
}

#[test]
fn views_outlive_their_pool_and_everything_that_is_done_to_it() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, "a.pool");
    let mut array = pool.array::<u64>("a", 4096, Block::elements(512)).unwrap();
    let mut list = pool.list::<u64>("b", Block::elements(512)).unwrap();
    array[..].fill(1);
    list.resize(4096, 1);
    let first = pool.persist(&mut [&mut array, &mut list]).unwrap();
    let view = pool.view(first).unwrap();
    let (old, old_list) = (view.array::<u64>("a").unwrap(), view.list::<u64>("b").unwrap());
    drop(view);
    let reader = thread::spawn(move || {
        for _ in 0..2000 {
            assert!(old.iter().chain(&*old_list).all(|element| *element == 1));
        }
        (old, old_list)
    });
    // All of it is written anew, grows and shrinks, and goes back.
    for round in 2..40 {
        array[..].fill(round);
        list.resize(4096 * (1 + round as usize % 3), round);
        list[..].fill(round);
        let version = pool.persist(&mut [&mut array, &mut list]).unwrap();
        if round % 5 == 0 {
            pool.restore(version - 1, &mut [&mut array, &mut list]).unwrap();
            assert!(array.iter().chain(&*list).all(|element| *element == round - 1));
        }
    }
    drop((array, list, pool));
    let (old, old_list) = reader.join().unwrap();
    assert!(old.iter().chain(&*old_list).all(|element| *element == 1));
    // They keep the pool locked: nobody else writes what they read.
    assert!(matches!(Pool::open(dir.path().join("a.pool"), Options::versions(2)), Err(Error::InUse { .. })));
    drop((old, old_list));
    Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
}

/// Counts calls, and panics when there are more than this.
fn at_most(limit: u32) -> impl FnMut() -> u64 {
    let mut calls = 0;
    move || {
        calls += 1;
        if calls <= limit { 1 } else { panic!("as a program may") }
    }
}

/// A program that catches the panic and goes on has structures that are whole.
#[test]
fn a_panic_in_a_function_of_the_program_leaves_structures_whole() {
    let dir = tempdir().unwrap();
    let pool = pool(&dir, "a.pool");
    let mut mesh = pool.octree::<u64>("mesh").unwrap();
    let mut web = pool.graph::<u64, u64>("web").unwrap();
    let mut list = pool.list::<u64>("list", Block::default()).unwrap();
    // Small cells beside large ones.
    for _ in 0..5 {
        let leaf = mesh.find([0.49; 3]).unwrap();
        mesh.refine(leaf, |_, _| 1);
    }
    web.add_nodes([1; 10]);
    web.add_edges(&[(0, 1, 1), (0, 2, 1), (5, 0, 1)]);
    for limit in 0..7 {
        let leaf = mesh.leaves().last().unwrap();
        let parent = mesh.parent(mesh.find([0.49; 3]).unwrap()).unwrap();
        let (cells, edges) = (mesh.cell_count(), web.edge_count());
        let mut value = at_most(limit);
        panic_of(|| mesh.refine(leaf, |_, _| value()));
        panic_of(|| mesh.coarsen(parent, |_| panic!("as a program may")));
        assert_eq!(mesh.cell_count(), cells, "nothing has changed");
        let mut value = at_most(limit);
        panic_of(|| mesh.balance(|_, _| value()));
        let mut value = at_most(limit);
        panic_of(|| mesh.update_leaves(|_, leaf| *leaf += value()));
        let mut value = at_most(limit.min(1));
        panic_of(|| web.update_edges(0, |_, edge| *edge += value()));
        let mut value = at_most(limit);
        panic_of(|| web.add_nodes((0..20).map(|_| value())));
        panic_of(|| web.add_edges(&[(0, 1, 1), (0, 4000, 1)]));
        assert_eq!((web.edge_count(), web.node_count()), (edges, 10), "nothing has changed");
        let mut value = at_most(limit);
        panic_of(|| list.extend((0..20).map(|_| value())));
        let version = pool.persist(&mut [&mut mesh, &mut web, &mut list]).unwrap();
        pool.view(version).unwrap().verify().unwrap();
        assert_eq!(mesh.leaves().count(), mesh.leaf_count());
    }
    assert!(list[..] == [1; 21]);
    mesh.balance(|_, _| 3);
    assert!(mesh.is_balanced());
}
