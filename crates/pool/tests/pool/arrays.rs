//! Arrays, as a program uses them.

use outcrop_pool::{Block, Error, Options, Pool, Versioned};
use tempfile::tempdir;

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
