//! Arrays that are written through a pointer, as other languages do it.

use fastrand::Rng;
use outcrop_pool::{Block, Foreign, Options, Pool};
use outcrop_testing::amount;

use crate::medium::Recorded;

/// Elements of a page.
const PAGE: usize = 512;

/// The elements, to be written without the pool's knowledge.
fn elements(array: &mut Foreign) -> &mut [u64] {
    let len = array.bytes() / 8;
    // SAFETY: the array has so many, and is borrowed.
    unsafe { std::slice::from_raw_parts_mut(array.address().cast(), len) }
}

#[test]
fn what_was_written_through_a_pointer_is_in_the_version() {
    for seed in 0..amount(40, 4000) {
        let mut rng = Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let versions = 1 + seed % 4;
        let pool = match seed % 4 {
            0 => Pool::on(Recorded::new(Vec::new()), Options::versions(versions)),
            _ => Pool::open(dir.path().join("a.pool"), Options::versions(versions)),
        };
        let pool = pool.unwrap();
        let len = rng.usize(1..40 * PAGE);
        let mut array = pool.foreign("a", "u64", len, Block::elements(PAGE << rng.u32(..3))).unwrap();
        let address = array.address();
        let (mut now, mut durable) = (vec![0; len], vec![(0, vec![0; len])]);
        for _ in 0..40 {
            match rng.u8(..6) {
                0..=2 => {
                    let at = rng.usize(..len);
                    let end = (at + rng.usize(1..3 * PAGE)).min(len);
                    let value = if rng.u8(..4) == 0 { 0 } else { rng.u64(..) };
                    elements(&mut array)[at..end].fill(value);
                    now[at..end].fill(value);
                }
                3 | 4 => durable.push((pool.persist(&mut [&mut array]).unwrap(), now.clone())),
                _ => {
                    let Some(&version) = rng.choice(&pool.versions()) else { continue };
                    pool.restore(version, &mut [&mut array]).unwrap();
                    now = durable.iter().find(|(known, _)| *known == version).unwrap().1.clone();
                }
            }
            assert_eq!(array.address(), address);
            assert!(*elements(&mut array) == now[..], "seed {seed}");
            for version in pool.versions() {
                let expected = &durable.iter().find(|(known, _)| *known == version).unwrap().1;
                assert!(pool.view(version).unwrap().array::<u64>("a").unwrap()[..] == expected[..], "seed {seed}");
            }
        }
    }
}

#[test]
fn only_pages_that_were_written_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut array = pool.foreign("a", "u64", 1000 * PAGE, Block::elements(PAGE)).unwrap();
    elements(&mut array).fill(1);
    let all = pool.persist_counted(&mut [&mut array]).unwrap();
    assert!(all.bytes > 4096 * 1000);
    // Read, and written with the same.
    let sum: u64 = elements(&mut array).iter().sum();
    assert_eq!(sum, 1000 * PAGE as u64);
    elements(&mut array)[77 * PAGE] = 1;
    let before = pool.usage().copied_bytes;
    let same = pool.persist_counted(&mut [&mut array]).unwrap();
    assert_eq!((same.bytes, pool.usage().copied_bytes - before), (4096, 4096), "the list of structures, and one block");
    elements(&mut array)[500 * PAGE] = 2;
    let one = pool.persist_counted(&mut [&mut array]).unwrap();
    assert!(one.bytes <= 5 * 4096, "{one:?}");
}

#[test]
fn arrays_of_other_languages_are_those_of_rust() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let error = pool.foreign("a", "text", 10, Block::default()).unwrap_err().to_string();
    assert!(error.contains("such as f64 or i32, and not text"), "{error}");
    let mut array = pool.foreign("a", "c64", [3, 4], Block::default()).unwrap();
    assert_eq!((array.shape(), array.bytes()), ([3, 4, 1], 96));
    pool.persist(&mut [&mut array]).unwrap();
    drop(array);
    let pairs = pool.array::<[f32; 2]>("a", [3, 4], Block::default()).unwrap();
    assert_eq!(pairs[[2, 3]], [0.0, 0.0]);
    assert!(pool.foreign("b", "f64", usize::MAX, Block::default()).is_err());
}
