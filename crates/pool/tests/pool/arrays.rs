//! Arrays, as a program uses them.

use std::sync::atomic::Ordering::Relaxed;

use outcrop_pool::{Array, Block, Error, Options, Pool, Structure, Versioned};
use outcrop_testing::{alone, amount, mount_memory, with_own_mounts};
use rayon::prelude::*;
use tempfile::tempdir;

use crate::medium::Recorded;

#[derive(Versioned, Clone, Copy, Debug, PartialEq)]
struct Cell {
    rho: f64,
    level: u32,
    flag: u32,
}

#[test]
fn a_version_is_what_was_persisted_and_the_next_run_continues_with_it() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(3)).unwrap();
    let mut grid = pool.array::<Cell>("grid", 100_000, Block::elements(4096)).unwrap();
    let mut ids = pool.array::<u32>("ids", [30, 40, 50], Block::default()).unwrap();
    assert!(pool.versions().is_empty());
    grid[99_999] = Cell { rho: 1.5, level: 2, flag: 3 };
    ids[[29, 39, 49]] = 7;
    assert_eq!(pool.persist(&mut [&mut grid, &mut ids]).unwrap(), 1);
    grid[5].level = 8;
    assert_eq!(pool.persist(&mut [&mut grid, &mut ids]).unwrap(), 2);
    grid[5].level = 9;
    drop((grid, ids, pool));

    let pool = Pool::open(&path, Options::versions(3)).unwrap();
    assert_eq!(pool.versions(), [1, 2]);
    let mut grid = pool.array::<Cell>("grid", 100_000, Block::default()).unwrap();
    assert_eq!(grid.block_len(), 4096);
    assert_eq!((grid[99_999].rho, grid[5].level, grid[4]), (1.5, 8, Cell { rho: 0.0, level: 0, flag: 0 }));
    let ids = pool.array::<u32>("ids", [30, 40, 50], Block::default()).unwrap();
    assert_eq!((ids[30 * 40 * 50 - 1], ids.iter().sum::<u32>()), (7, 7));
    // What is not open stays as it was.
    drop(ids);
    grid[6].level = 1;
    assert_eq!(pool.persist(&mut [&mut grid]).unwrap(), 3);
    let view = pool.view(3).unwrap();
    assert_eq!(view.array::<u32>("ids").unwrap()[30 * 40 * 50 - 1], 7);
    assert_eq!(view.shared_blocks(&pool.view(1).unwrap(), "grid").unwrap(), (1, 2));
}

#[test]
fn threads_of_rayon_share_an_array() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let mut heat = pool.array::<f64>("heat", [100, 1000], Block::elements(512)).unwrap();
    heat[..].par_chunks_mut(1000).enumerate().for_each(|(row, values)| values.fill(row as f64));
    let version = pool.persist(&mut [&mut heat]).unwrap();
    heat[..].par_iter_mut().for_each(|value| *value += 1.0);
    // Readers of an older version are in other threads meanwhile.
    let old = pool.view(version).unwrap().array::<f64>("heat").unwrap();
    let sums: (f64, f64) = rayon::join(|| old.par_iter().sum(), || heat[..].par_iter().sum());
    assert_eq!(sums, (4_950_000.0, 5_050_000.0));
    pool.persist(&mut [&mut heat]).unwrap();
    drop((old, heat, pool));
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let heat = pool.array::<f64>("heat", [100, 1000], Block::default()).unwrap();
    assert!((0..100_000).all(|index| heat[index] == (index / 1000 + 1) as f64));
}

#[test]
fn a_panic_in_the_middle_of_an_update_persists_nothing() {
    /// Persists when it is dropped, as a careless program would.
    struct Careless(Pool, Array<u64>, std::sync::mpsc::Sender<Result<u64, Error>>);

    impl Drop for Careless {
        fn drop(&mut self) {
            let _ = self.2.send(self.0.persist(&mut [&mut self.1]));
        }
    }

    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let (outcome, outcomes) = std::sync::mpsc::channel();
    let program = {
        let path = path.clone();
        std::thread::spawn(move || {
            let pool = Pool::open(&path, Options::versions(2)).unwrap();
            let array = pool.array::<u64>("pair", 2, Block::default()).unwrap();
            let mut careless = Careless(pool, array, outcome);
            careless.1[..].fill(1);
            careless.0.persist(&mut [&mut careless.1]).unwrap();
            careless.1[0] = 2;
            panic!("before the other half of the pair is written");
        })
    };
    program.join().unwrap_err();
    let refused = outcomes.recv().unwrap().unwrap_err();
    assert!(refused.to_string().contains("in the middle of an update"), "{refused}");
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let array = pool.array::<u64>("pair", 2, Block::default()).unwrap();
    assert_eq!((pool.versions(), array[0], array[1]), (vec![1], 1, 1));
}

#[test]
fn old_versions_go_and_their_room_is_used_again() {
    let dir = tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut grid = pool.array::<u64>("grid", 1 << 16, Block::elements(512)).unwrap();
    let mut sizes = Vec::new();
    for round in 1..=40u64 {
        grid[..].fill(round);
        let persisted = pool.persist_counted(&mut [&mut grid]).unwrap();
        assert!(persisted.bytes < (1 << 19) + (8 << 12), "{persisted:?}");
        sizes.push(pool.usage());
    }
    assert_eq!(pool.versions(), [39, 40]);
    assert!(sizes[39].file_bytes <= 5 << 19, "{:?}", sizes[39]);
    assert_eq!(sizes[39].used_bytes, sizes[2].used_bytes);
    assert!(matches!(pool.view(38), Err(Error::NoVersion { .. })));
    // A view keeps what it reads.
    let view = pool.view(39).unwrap();
    let old = view.array::<u64>("grid").unwrap();
    for round in 41..=50u64 {
        grid[..].fill(round);
        pool.persist(&mut [&mut grid]).unwrap();
    }
    assert!(old.iter().all(|value| *value == 39));
    let used = pool.usage().used_bytes;
    drop((old, view));
    pool.persist(&mut [&mut grid]).unwrap();
    assert!(pool.usage().used_bytes < used);
}

/// Each time takes a flush.
#[test]
fn a_pool_grows_once_for_all_that_has_changed() {
    let medium = Recorded::new(Vec::new());
    let pool = Pool::on(medium.clone(), Options::versions(2)).unwrap();
    let mut grid = pool.array::<u64>("grid", 1 << 18, Block::elements(512)).unwrap();
    let mut times = pool.list::<u64>("times", Block::default()).unwrap();
    let grown: Vec<u64> = (1..=8)
        .map(|round| {
            let before = medium.grown.load(Relaxed);
            grid[..].fill(round);
            times.resize(100_000, round);
            times[..].fill(round);
            pool.persist(&mut [&mut grid, &mut times]).unwrap();
            medium.grown.load(Relaxed) - before
        })
        .collect();
    assert_eq!(grown, [1, 1, 1, 0, 0, 0, 0, 0]);
    assert!(pool.usage().file_bytes < 9 << 20, "{:?}", pool.usage());
}

#[test]
fn only_what_has_changed_is_written() {
    let dir = tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut grid = pool.array::<u64>("grid", 1 << 20, Block::elements(512)).unwrap();
    grid[..].iter_mut().enumerate().for_each(|(index, value)| *value = index as u64);
    let full = pool.persist_counted(&mut [&mut grid]).unwrap();
    assert!(full.bytes > 8 << 20, "{full:?}");
    // Marked, and the same.
    grid[3] = 3;
    let same = pool.persist_counted(&mut [&mut grid]).unwrap();
    assert_eq!(same.bytes, 4096, "only the list of structures");
    grid[700] = 1;
    let one = pool.persist_counted(&mut [&mut grid]).unwrap();
    assert_eq!(one.bytes, 4096 * 4, "a block, two levels of entries and the list of structures");
    grid[512..1024].fill(0);
    let zeros = pool.persist_counted(&mut [&mut grid]).unwrap();
    assert_eq!(zeros.bytes, 4096 * 3, "zeros take no room");
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let message = |error: Error| error.to_string();
    assert!(message(Pool::open(&path, Options::versions(2)).unwrap_err()).contains("open already"));
    assert!(message(Pool::open(dir.path().join("b"), Options::versions(0)).unwrap_err()).contains("1 to 31 versions"));
    assert!(!dir.path().join("b").exists());
    let mut grid = pool.array::<u64>("grid", 100, Block::default()).unwrap();
    assert!(message(pool.array::<u64>("grid", 100, Block::default()).unwrap_err()).contains("open already"));
    pool.persist(&mut [&mut grid]).unwrap();
    assert!(message(pool.persist(&mut []).unwrap_err()).contains("was not named"));
    assert!(message(pool.restore(9, &mut [&mut grid]).unwrap_err()).contains("has no version 9; it has 1"));
    drop(grid);
    assert!(message(pool.array::<i64>("grid", 100, Block::default()).unwrap_err()).contains("another layout"));
    assert!(message(pool.array::<u64>("grid", 99, Block::default()).unwrap_err()).contains("has the shape"));
    assert!(message(pool.array::<u64>(&"n".repeat(5000), 99, Block::default()).unwrap_err()).contains("name"));
    assert!(message(pool.array::<u64>("big", [1 << 40, 1 << 40], Block::default()).unwrap_err()).contains("too large"));
    assert!(message(pool.array::<u64>("odd", 9, Block::elements(usize::MAX)).unwrap_err()).contains("too large"));
    let other = Pool::open(dir.path().join("c.pool"), Options::versions(2)).unwrap();
    let mut foreign = other.array::<u64>("grid", 100, Block::default()).unwrap();
    assert!(message(pool.persist(&mut [&mut foreign]).unwrap_err()).contains("another pool"));
    std::fs::write(dir.path().join("text"), "this is no pool").unwrap();
    let error = Pool::open(dir.path().join("text"), Options::default()).unwrap_err();
    assert!(message(error).contains("is damaged"));
    assert_eq!(std::fs::read_to_string(dir.path().join("text")).unwrap(), "this is no pool");
}

#[test]
fn structures_keep_the_pool_locked() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let mut grid = pool.array::<u64>("grid", 100, Block::default()).unwrap();
    pool.persist(&mut [&mut grid]).unwrap();
    let view = pool.view(1).unwrap();
    drop(pool);
    assert!(matches!(Pool::open(&path, Options::default()), Err(Error::InUse { .. })));
    drop(grid);
    assert!(matches!(Pool::open(&path, Options::default()), Err(Error::InUse { .. })));
    drop(view);
    Pool::open(&path, Options::default()).unwrap();
}

#[test]
fn damage_is_not_hidden_by_saving_on() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let open = || Pool::open(&path, Options::versions(3)).unwrap();
    let pool = open();
    let mut grid = pool.array::<u64>("grid", 4096, Block::elements(1024)).unwrap();
    grid[..].iter_mut().enumerate().for_each(|(index, value)| *value = 7_000_000 + index as u64);
    pool.persist(&mut [&mut grid]).unwrap();
    drop((grid, pool));
    // A bit of element 100.
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == 7_000_100u64.to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let pool = open();
    let mut grid = pool.array::<u64>("grid", 4096, Block::default()).unwrap();
    // Another block can be saved, and the damage can still be found.
    grid[2000] = 1;
    assert_eq!(pool.persist(&mut [&mut grid]).unwrap(), 2);
    assert!(pool.view(2).unwrap().verify().is_err());
    // The same block: its other elements would be saved with a new checksum.
    grid[101] = 1;
    let error = pool.persist(&mut [&mut grid]).unwrap_err().to_string();
    assert!(error.contains("is damaged") && error.contains("have changed"), "{error}");
    assert_eq!(pool.versions(), [1, 2]);
}

#[test]
fn a_pool_works_with_little_address_space() {
    if alone("arrays::a_pool_works_with_little_address_space") {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(4 << 30), maximum: Some(4 << 30) };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut grid = pool.array::<u64>("grid", 1_000_000, Block::default()).unwrap();
    let mut times = pool.list::<u64>("times", Block::default()).unwrap();
    grid[..].fill(7);
    times.extend(0..1000);
    let version = pool.persist(&mut [&mut grid, &mut times]).unwrap();
    assert_eq!(pool.view(version).unwrap().array::<u64>("grid").unwrap()[999_999], 7);
}

/// Whatever takes the square of their number takes hours.
#[test]
fn a_pool_may_have_a_hundred_thousand_structures() {
    // Each has a mapping of its own, and the system allows some 65,000 in a process: other tests
    // need theirs.
    if alone("arrays::a_pool_may_have_a_hundred_thousand_structures") {
        return;
    }
    let count = amount(2_000, 100_000) as usize;
    let pool = Pool::on(Recorded::new(Vec::new()), Options::versions(2)).unwrap();
    let open = |nth: usize| pool.array::<u64>(&format!("array {nth}"), 4, Block::elements(1)).unwrap();
    let mut arrays: Vec<Array<u64>> = (0..count).map(open).collect();
    for round in 1..3 {
        arrays.iter_mut().enumerate().for_each(|(nth, array)| array[3] = nth as u64 * round + 1);
        let mut all: Vec<&mut dyn Structure> = arrays.iter_mut().map(|array| array as &mut dyn Structure).collect();
        assert_eq!(pool.persist(&mut all).unwrap(), round);
    }
    drop(arrays);
    let mut last = open(count - 1);
    assert_eq!(last[3], (count as u64 - 1) * 2 + 1);
    last[0] = 7;
    // The others stay as they were.
    let version = pool.persist(&mut [&mut last]).unwrap();
    let view = pool.view(version).unwrap();
    assert_eq!(view.names().count(), count);
    assert_eq!(view.array::<u64>("array 0").unwrap()[3], 1);
}

/// Blocks of eight pages: 24 MiB of them.
const MANY: usize = 3 << 20;

fn value(seed: u64, index: usize) -> u64 {
    (seed << 32) + index as u64 + 1
}

fn fill(array: &mut Array<u64>, seed: u64) {
    array[..].iter_mut().enumerate().for_each(|(index, element)| *element = value(seed, index));
}

fn is_filled(elements: &[u64], seed: u64) -> bool {
    elements.len() == MANY && elements.iter().enumerate().all(|(index, it)| *it == value(seed, index))
}

#[test]
fn what_several_threads_write_is_what_was_there() {
    let dir = tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut array = pool.array::<u64>("a", MANY, Block::elements(4096)).unwrap();
    for seed in 1..4 {
        fill(&mut array, seed);
        // Some blocks are zeros, and some are as they were.
        array[8192..3 * 4096].fill(0);
        let bytes = pool.persist_counted(&mut [&mut array]).unwrap().bytes;
        assert!((8 * (MANY as u64 - 4096)..8 * MANY as u64 + (64 << 10)).contains(&bytes), "{bytes}");
        let view = pool.view(seed).unwrap();
        view.verify().unwrap();
        assert!(view.array::<u64>("a").unwrap()[..] == array[..]);
    }
    assert_eq!(pool.persist_counted(&mut [&mut array]).unwrap().bytes, 4096, "the list of structures");
}

#[test]
fn what_fails_in_one_of_several_threads_loses_nothing() {
    for calls in [0, 1, 2, 7, 60] {
        let medium = Recorded::new(Vec::new());
        let pool = Pool::on(medium.clone(), Options::versions(2)).unwrap();
        let mut array = pool.array::<u64>("a", MANY, Block::elements(4096)).unwrap();
        fill(&mut array, 1);
        pool.persist(&mut [&mut array]).unwrap();
        let used = pool.usage().used_bytes;
        fill(&mut array, 2);
        medium.fail_after(calls);
        let failed = pool.persist(&mut [&mut array]);
        assert!(matches!(failed, Err(Error::File { .. })), "{failed:?}");
        assert_eq!((pool.versions(), pool.usage().used_bytes), (vec![1], used));
        assert!(is_filled(&pool.view(1).unwrap().array::<u64>("a").unwrap(), 1));
        assert_eq!(pool.persist(&mut [&mut array]).unwrap(), 2);
        assert!(is_filled(&pool.view(2).unwrap().array::<u64>("a").unwrap(), 2));
    }
}

/// After a version in which all has changed, all counts as changed: loops need no marks then.
#[test]
fn what_was_expected_to_change_and_has_not_is_not_written() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(3)).unwrap();
    let mut array = pool.array::<u64>("a", 100 * 512, Block::elements(512)).unwrap();
    let mut list = pool.list::<u64>("l", Block::elements(512)).unwrap();
    let written = |array: &mut Array<u64>, list: &mut outcrop_pool::List<u64>| {
        pool.persist_counted(&mut [array, list]).unwrap().bytes / 4096
    };
    array[..].fill(1);
    list.resize(100 * 512, 1);
    assert!(written(&mut array, &mut list) >= 200);
    let changed = pool.features(&mut [&mut array, &mut list]).changed_blocks;
    assert_eq!(changed, 200, "all may change again");
    // One block of each, a page of entries of each, and the list of structures.
    (array[7], list[99 * 512]) = (2, 2);
    assert_eq!(written(&mut array, &mut list), 5);
    assert_eq!(pool.features(&mut [&mut array, &mut list]).changed_blocks, 0, "it has not");
    (array[700], list[0]) = (3, 3);
    list.push(4);
    assert_eq!(written(&mut array, &mut list), 6);
    drop((array, list));
    let (array, list) = (
        pool.array::<u64>("a", 100 * 512, Block::default()).unwrap(),
        pool.list::<u64>("l", Block::default()).unwrap(),
    );
    assert_eq!((array[6], array[7], array[700]), (1, 2, 3));
    assert_eq!((list[0], list[1], list[99 * 512], list[100 * 512]), (3, 1, 2, 4));
}

/// A store to a page that is not there would kill the process.
#[test]
fn a_pool_with_holes_in_memory_that_is_full_is_an_error() {
    if alone("arrays::a_pool_with_holes_in_memory_that_is_full_is_an_error") {
        return;
    }
    with_own_mounts(|given| {
        mount_memory(given, c"size=8m");
        let path = given.join("a.pool");
        let open = || {
            let pool = Pool::open(&path, Options::versions(1)).unwrap();
            let array = pool.array::<u64>("a", 128 * 512, Block::elements(512)).unwrap();
            (pool, array)
        };
        let (pool, mut array) = open();
        for seed in 1..5 {
            array[..].fill(seed);
            pool.persist(&mut [&mut array]).unwrap();
        }
        drop((array, pool));
        // As a copy has it that leaves out zeros: the rest of a file of three versions.
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.set_len(bytes + (2 << 20)).unwrap();
        let rest = std::fs::write(given.join("rest"), vec![1; 8 << 20]);
        assert!(rest.is_err(), "the file system is full");
        let (pool, mut array) = open();
        let mut last = 4;
        let error = (5..20).find_map(|seed| {
            array[..].fill(seed);
            // A view keeps the pages, so that further ones are needed.
            std::mem::forget(pool.view(last));
            match pool.persist(&mut [&mut array]) {
                Ok(version) => {
                    last = version;
                    None
                }
                Err(error) => Some(error),
            }
        });
        let error = error.unwrap();
        assert!(matches!(error, Error::File { .. } | Error::Full { .. }), "{error}");
        assert!(pool.view(last).unwrap().verify().is_ok());
    });
}

/// What is persisted to a file without a name is lost with the process.
#[test]
fn a_pool_whose_file_was_removed_or_replaced_persists_nothing() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let open = || {
        let pool = Pool::open(&path, Options::versions(2)).unwrap();
        let array = pool.array::<u64>("a", 1000, Block::default()).unwrap();
        (pool, array)
    };
    let remove = || std::fs::remove_file(&path).unwrap();
    let replace = || {
        std::fs::write(dir.path().join("other"), b"other").unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
    };
    for lose in [&remove as &dyn Fn(), &replace] {
        let _ = std::fs::remove_file(&path);
        let (pool, mut array) = open();
        array[0] = 1;
        pool.persist(&mut [&mut array]).unwrap();
        // Another name does no harm.
        std::fs::rename(&path, dir.path().join("b.pool")).unwrap();
        array[0] = 2;
        pool.persist(&mut [&mut array]).unwrap();
        std::fs::rename(dir.path().join("b.pool"), &path).unwrap();
        lose();
        array[0] = 3;
        let error = pool.persist(&mut [&mut array]).unwrap_err().to_string();
        assert!(error.contains("was removed or replaced"), "{error}");
        assert_eq!((pool.versions(), array[0]), (vec![1, 2], 3));
        assert_eq!(pool.view(2).unwrap().array::<u64>("a").unwrap()[0], 2);
    }
}
