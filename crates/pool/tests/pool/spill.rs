//! Old versions that leave a full pool.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use fastrand::Rng;
use outcrop_pool::{Array, Block, Error, Options, Pool, Spill, View};
use outcrop_testing::{amount, mount_memory, with_own_mounts};

use crate::medium::Recorded;

/// So many elements are a page.
const PAGE: usize = 512;
/// The elements of the array.
const LEN: usize = 20 * PAGE;

/// What was spilled, in memory.
#[derive(Default)]
struct Spilled {
    versions: BTreeMap<u64, Vec<u64>>,
    /// Whether the next one fails.
    fails: bool,
}

#[derive(Clone, Default)]
struct Elsewhere(Arc<Mutex<Spilled>>);

impl Elsewhere {
    fn state(&self) -> MutexGuard<'_, Spilled> {
        self.0.lock().unwrap()
    }

    fn versions(&self) -> Vec<u64> {
        self.state().versions.keys().copied().collect()
    }
}

impl Spill for Elsewhere {
    fn spill(&self, version: &View) -> Result<(), Box<dyn StdError + Send + Sync>> {
        version.verify()?;
        let content = version.array::<u64>("a")?.to_vec();
        let mut state = self.state();
        if state.fails {
            return Err("the store is full".into());
        }
        assert!(state.versions.keys().next_back().is_none_or(|last| *last <= version.version()), "out of order");
        let before = state.versions.insert(version.version(), content.clone());
        assert!(before.is_none_or(|before| before == content), "another version {}", version.version());
        Ok(())
    }
}

fn value(version: u64, index: usize) -> u64 {
    version << 32 | index as u64
}

/// All elements change with each version.
fn change(array: &mut Array<u64>, version: u64) {
    array[..].iter_mut().enumerate().for_each(|(index, element)| *element = value(version, index));
}

fn is_version(elements: &[u64], version: u64) -> bool {
    elements.len() == LEN && elements.iter().enumerate().all(|(index, element)| *element == value(version, index))
}

/// For the header, the slots, and somewhat more than three versions.
const LIMIT: u64 = (33 + 3 * 23 + 5) * 4096;

fn pool_with(medium: Recorded, elsewhere: &Elsewhere) -> (Pool, Array<u64>) {
    let pool = Pool::on(medium, Options::versions(10).limit(LIMIT)).unwrap();
    pool.spill_to(elsewhere.clone());
    let array = pool.array::<u64>("a", LEN, Block::elements(PAGE)).unwrap();
    (pool, array)
}

#[test]
fn old_versions_leave_a_full_pool_and_are_the_same_elsewhere() {
    let elsewhere = Elsewhere::default();
    let (pool, mut array) = pool_with(Recorded::new(Vec::new()), &elsewhere);
    for version in 1..=9 {
        change(&mut array, version);
        assert_eq!(pool.persist(&mut [&mut array]).unwrap(), version);
        assert!(pool.usage().file_bytes <= LIMIT);
    }
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![7, 8, 9], vec![1, 2, 3, 4, 5, 6]));
    for (version, elements) in &elsewhere.state().versions {
        assert!(is_version(elements, *version), "version {version}");
    }
    // Without anywhere to go, the pool is full.
    let alone = Pool::on(Recorded::new(Vec::new()), Options::versions(10).limit(LIMIT)).unwrap();
    let mut array = alone.array::<u64>("a", LEN, Block::elements(PAGE)).unwrap();
    for version in 1..=4 {
        change(&mut array, version);
        let persisted = alone.persist(&mut [&mut array]);
        match version {
            1..=3 => assert_eq!(persisted.unwrap(), version),
            _ => assert!(matches!(persisted, Err(Error::Full { .. }))),
        }
    }
    assert!(is_version(&array, 4) && alone.versions() == [1, 2, 3]);
}

#[test]
fn what_is_restored_or_read_stays_and_is_spilled_in_order() {
    let elsewhere = Elsewhere::default();
    let (pool, mut array) = pool_with(Recorded::new(Vec::new()), &elsewhere);
    for version in 1..=3 {
        change(&mut array, version);
        pool.persist(&mut [&mut array]).unwrap();
    }
    pool.restore(1, &mut [&mut array]).unwrap();
    change(&mut array, 4);
    // The working version shows the first one, which is spilled and stays.
    assert_eq!(pool.persist(&mut [&mut array]).unwrap(), 4);
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![1, 3, 4], vec![1, 2]));
    let reader = pool.view(1).unwrap();
    change(&mut array, 5);
    pool.persist(&mut [&mut array]).unwrap();
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![1, 4, 5], vec![1, 2, 3]));
    assert!(is_version(&reader.array::<u64>("a").unwrap(), 1));
    let newest = pool.view(4).unwrap();
    change(&mut array, 6);
    // The newest never leaves, and the others are read.
    let full = pool.persist(&mut [&mut array]).unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(is_version(&array, 6) && pool.versions() == [1, 4, 5]);
    drop((reader, newest));
    assert_eq!(pool.persist(&mut [&mut array]).unwrap(), 6);
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![4, 5, 6], vec![1, 2, 3]));
}

#[test]
fn if_a_version_cannot_be_spilled_persist_fails_and_nothing_is_lost() {
    let elsewhere = Elsewhere::default();
    let medium = Recorded::new(Vec::new());
    let (pool, mut array) = pool_with(medium.clone(), &elsewhere);
    for version in 1..=3 {
        change(&mut array, version);
        pool.persist(&mut [&mut array]).unwrap();
    }
    elsewhere.state().fails = true;
    change(&mut array, 4);
    let used = pool.usage();
    for _ in 0..2 {
        let error = pool.persist(&mut [&mut array]).unwrap_err();
        assert!(matches!(error, Error::Spill { version: 1, .. }), "{error}");
        assert!(error.to_string().contains("the store is full"), "{error}");
        assert_eq!((pool.versions(), pool.usage().used_bytes), (vec![1, 2, 3], used.used_bytes));
    }
    for version in 1..=3 {
        assert!(is_version(&pool.view(version).unwrap().array::<u64>("a").unwrap(), version));
    }
    elsewhere.state().fails = false;
    assert_eq!(pool.persist(&mut [&mut array]).unwrap(), 4);
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![2, 3, 4], vec![1]));
}

/// Whatever a crash leaves: every version is in the pool, or elsewhere, or in both.
#[test]
fn no_crash_loses_a_version_that_leaves() {
    let mut rng = Rng::with_seed(3);
    let mut opened = 0;
    let elsewhere = Elsewhere::default();
    let medium = Recorded::new(Vec::new());
    let (pool, mut array) = pool_with(medium.clone(), &elsewhere);
    let mut begun = medium.stores.moment();
    for version in 1..=amount(8, 40) {
        change(&mut array, version);
        pool.persist(&mut [&mut array]).unwrap();
        let end = medium.stores.moment();
        let gone = elsewhere.versions();
        medium.stores.images(begun..end + 1, &mut rng, |moment, image| {
            let after = Pool::on(Recorded::new(image), Options::versions(10)).unwrap();
            let versions = after.versions();
            for old in 1..version {
                assert!(versions.contains(&old) || gone.contains(&old), "version {old} at {moment}: {versions:?}");
            }
            assert!(versions.last().is_some_and(|newest| *newest >= version - 1) || version == 1);
            for &old in &versions {
                let view = after.view(old).unwrap();
                view.verify().unwrap();
                assert!(is_version(&view.array::<u64>("a").unwrap(), old), "version {old} at {moment}");
            }
            opened += 1;
        });
        begun = end;
    }
    assert!(opened > 300, "{opened}");
    assert!(elsewhere.versions().len() >= 3);
}

#[test]
fn a_version_that_was_spilled_before_a_crash_may_come_again() {
    let elsewhere = Elsewhere::default();
    let medium = Recorded::new(Vec::new());
    let (pool, mut array) = pool_with(medium.clone(), &elsewhere);
    for version in 1..=3 {
        change(&mut array, version);
        pool.persist(&mut [&mut array]).unwrap();
    }
    let before = medium.stores.bytes();
    change(&mut array, 4);
    pool.persist(&mut [&mut array]).unwrap();
    assert_eq!(elsewhere.versions(), [1]);
    drop((array, pool));
    let (pool, mut array) = pool_with(Recorded::new(before), &elsewhere);
    assert_eq!(pool.versions(), [1, 2, 3]);
    change(&mut array, 4);
    pool.persist(&mut [&mut array]).unwrap();
    assert_eq!((pool.versions(), elsewhere.versions()), (vec![2, 3, 4], vec![1]));
}

#[test]
fn a_full_file_system_spills_too() {
    with_own_mounts(|given: &Path| {
        mount_memory(given, c"size=1m");
        let elsewhere = Elsewhere::default();
        let pool = Pool::open(given.join("a.pool"), Options::versions(30)).unwrap();
        pool.spill_to(elsewhere.clone());
        let mut array = pool.array::<u64>("a", LEN, Block::elements(PAGE)).unwrap();
        for version in 1..=20 {
            change(&mut array, version);
            assert_eq!(pool.persist(&mut [&mut array]).unwrap(), version);
        }
        let (here, there) = (pool.versions(), elsewhere.versions());
        assert_eq!([there, here].concat(), (1..=20).collect::<Vec<u64>>());
        assert!(elsewhere.state().versions.iter().all(|(version, elements)| is_version(elements, *version)));
        assert!(is_version(&array, 20));
    });
}
