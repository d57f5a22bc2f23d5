//! Lists, as a program uses them.

use outcrop_pool::{Block, Options, Pool};
use tempfile::tempdir;

use crate::trees::panic_of;

#[test]
fn the_length_is_part_of_a_version() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(4)).unwrap();
    let mut list = pool.list::<u64>("times", Block::elements(512)).unwrap();
    assert!(list.is_empty() && list.pop().is_none());
    let empty = pool.persist(&mut [&mut list]).unwrap();
    list.extend(0..10_000);
    let long = pool.persist(&mut [&mut list]).unwrap();
    list.truncate(700);
    list.push(5);
    let short = pool.persist(&mut [&mut list]).unwrap();
    list.resize(800, 3);
    assert_eq!((list.len(), list[699], list[700], list[701], list[799]), (800, 699, 5, 3, 3));
    assert!(panic_of(|| list[800]).contains("index out of bounds"));
    assert!(panic_of(|| list[800] = 1).contains("element 800 of 800"));
    assert!(panic_of(|| list[700..801].fill(1)).contains("700..801 of 800"));
    // A version that was restored has its length at once, also for what is out of bounds by then.
    pool.restore(short, &mut [&mut list]).unwrap();
    assert_eq!(list.len(), 701);
    assert!(panic_of(|| list[701] = 1).contains("element 701 of 701"));
    pool.restore(empty, &mut [&mut list]).unwrap();
    assert!(list.is_empty());
    assert!(panic_of(|| list[0] = 1).contains("element 0 of 0"));
    pool.restore(long, &mut [&mut list]).unwrap();
    assert!(list.iter().copied().eq(0..10_000));
    // What was cut off does not come back.
    list.truncate(600);
    list.resize(9_000, 0);
    let zeros = pool.persist(&mut [&mut list]).unwrap();
    drop((list, pool));

    let pool = Pool::open(&path, Options::versions(4)).unwrap();
    let view = |version| pool.view(version).unwrap().list::<u64>("times").unwrap();
    assert_eq!([empty, long, short, zeros].map(|version| view(version).len()), [0, 10_000, 701, 9_000]);
    let list = pool.list::<u64>("times", Block::default()).unwrap();
    assert!(list[..600].iter().copied().eq(0..600) && list[600..].iter().all(|value| *value == 0));
    assert_eq!((list.len(), list.block_len()), (9_000, 512));
    let misfit = |error: outcrop_pool::Error| error.to_string();
    drop(list);
    assert!(misfit(pool.array::<u64>("times", 9_000, Block::default()).unwrap_err()).contains("(list, not array)"));
    assert!(misfit(pool.view(long).unwrap().array::<u64>("times").unwrap_err()).contains("(list, not array)"));
}

#[test]
fn a_longer_version_shares_the_blocks_of_the_one_before() {
    let dir = tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(3)).unwrap();
    let mut list = pool.list::<u64>("times", Block::elements(512)).unwrap();
    let mut next = 1u64..;
    // Through all numbers of levels: 1 block, up to 256, and more; and back.
    for (len, bytes_max) in [(512, 2), (1024, 3), (512 * 256, 257), (512 * 256 + 1, 5), (512 * 300, 50)] {
        list.extend(next.by_ref().take(len - list.len()));
        let persisted = pool.persist_counted(&mut [&mut list]).unwrap();
        assert!(persisted.bytes <= bytes_max * 4096, "{len}: {persisted:?}");
    }
    for (len, bytes_max) in [(512 * 256 + 7, 4), (512 * 256, 1), (512 * 200 + 1, 3), (512, 1), (0, 1)] {
        list.truncate(len);
        let persisted = pool.persist_counted(&mut [&mut list]).unwrap();
        assert!(persisted.bytes <= bytes_max * 4096, "{len}: {persisted:?}");
        let view = pool.view(persisted.version).unwrap();
        view.verify().unwrap();
        assert!(view.list::<u64>("times").unwrap().iter().copied().eq(1..=len as u64), "{len}");
    }
    // Nothing is left behind.
    let used = pool.usage().used_bytes;
    for _ in 0..3 {
        pool.persist(&mut [&mut list]).unwrap();
    }
    assert!(pool.usage().used_bytes < used && pool.usage().used_bytes <= (33 + 3) * 4096, "{:?}", pool.usage());
}

#[test]
fn what_is_cut_off_is_gone_from_the_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("a.pool");
    let pool = Pool::open(&path, Options::versions(1)).unwrap();
    let mut list = pool.list::<u64>("times", Block::elements(512)).unwrap();
    let bytes = |list: &mut outcrop_pool::List<u64>| pool.persist_counted(&mut [list]).unwrap().bytes;
    list.resize(200 * 512, 7);
    bytes(&mut list);
    list.truncate(512);
    list.push(0);
    // The second block is zeros, also beyond the last element, and so takes no room.
    assert_eq!(bytes(&mut list), 2 * 4096, "a page of entries and the list of structures");
    list.truncate(100);
    list.resize(512, 0);
    list.truncate(100);
    list[..100].fill(0);
    assert_eq!(bytes(&mut list), 4096);
    assert!(pool.usage().used_bytes <= (33 + 4) * 4096, "{:?}", pool.usage());
    // Entries of blocks that are gone do not come back with blocks of zeros.
    list.resize(200 * 512, 7);
    bytes(&mut list);
    list.truncate(100 * 512);
    bytes(&mut list);
    list.resize(200 * 512, 0);
    bytes(&mut list);
    drop((list, pool));
    let pool = Pool::open(&path, Options::versions(1)).unwrap();
    let list = pool.list::<u64>("times", Block::default()).unwrap();
    assert!(list[512..100 * 512].iter().all(|value| *value == 7));
    assert!(list[100 * 512..].iter().all(|value| *value == 0));
    pool.view(pool.versions()[0]).unwrap().verify().unwrap();
}

#[test]
fn addresses_stay_while_a_list_grows() {
    let dir = tempdir().unwrap();
    let pool = Pool::open(dir.path().join("a.pool"), Options::versions(2)).unwrap();
    let mut list = pool.list::<u64>("times", Block::default()).unwrap();
    list.push(1);
    let address = list.as_ptr();
    list.resize(1 << 20, 7);
    assert_eq!((list.as_ptr(), list[0], list[(1 << 20) - 1]), (address, 1, 7));
    let error = panic_of(|| list.resize(usize::MAX / 16, 0));
    assert!(error.contains("the list \"times\" cannot have") && error.contains("too large"), "{error}");
    assert_eq!(list.len(), 1 << 20);
}
