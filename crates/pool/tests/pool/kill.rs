//! Processes that are killed while they persist to a real file, and forked ones.

use std::{path::Path, thread, time::Duration};

use fastrand::Rng;
use outcrop_pool::{Block, Options, Pool};
use outcrop_testing::{Companion, alone, amount, answer, child_directory, covered, in_fork, listen};

const LEN: usize = 20_000;

/// What elements of a version are.
fn value(version: u64, index: usize) -> u64 {
    // A few blocks change with each version.
    let last = version - (version + index as u64 / 512) % 5.min(version);
    last * 1_000_000 + index as u64
}

fn open(dir: &Path) -> Pool {
    Pool::open(dir.join("a.pool"), Options::versions(3)).unwrap()
}

#[test]
fn child_persists() {
    let Some(dir) = child_directory() else { return };
    let pool = open(&dir);
    let mut array = pool.array::<u64>("a", LEN, Block::elements(512)).unwrap();
    let mut version = pool.versions().last().map_or(0, |last| *last);
    answer("ready");
    while listen().is_some() {
        version += 1;
        for index in 0..LEN {
            let new = value(version, index);
            if array[index] != new {
                array[index] = new;
            }
        }
        assert_eq!(pool.persist(&mut [&mut array]).unwrap(), version);
        answer(version);
    }
}

#[test]
fn a_killed_process_leaves_whole_versions() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(1);
    let (rounds, mut durable) = (amount(40, 2000), 0);
    for round in 0..rounds {
        let mut child = Companion::start("kill::child_persists", dir.path());
        child.expect("ready");
        for _ in 0..rng.usize(..4) {
            durable = child.ask("go").parse().unwrap();
        }
        child.say("go");
        thread::sleep(Duration::from_micros(rng.u64(..3000)));
        child.kill();
        let pool = open(dir.path());
        let versions = pool.versions();
        let newest = versions.last().copied().unwrap_or(0);
        assert!(newest == durable || newest == durable + 1, "round {round}: {versions:?} after {durable}");
        for version in versions {
            let view = pool.view(version).unwrap();
            view.verify().unwrap();
            let array = view.array::<u64>("a").unwrap();
            let wrong = (0..LEN).find(|index| array[*index] != value(version, *index));
            assert_eq!(wrong, None, "round {round}, version {version}");
        }
        durable = newest;
    }
    covered("processes killed with a pool", rounds);
}

#[test]
fn a_forked_child_cannot_use_its_parents_pool() {
    if alone("kill::a_forked_child_cannot_use_its_parents_pool") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pool = open(dir.path());
    let mut array = pool.array::<u64>("a", LEN, Block::elements(512)).unwrap();
    array[1] = 1;
    let version = pool.persist(&mut [&mut array]).unwrap();
    let view = pool.view(version).unwrap();
    let status = in_fork(|| {
        // Its memory is its own.
        array[1] = 2;
        let refused = |error: outcrop_pool::Error| error.to_string().contains("was forked");
        pool.persist(&mut [&mut array]).is_err_and(refused)
            && pool.restore(version, &mut [&mut array]).is_err_and(refused)
            && pool.persist_if_worth_it(&mut [&mut array]).is_err_and(refused)
            && pool.view(version).is_err_and(refused)
            // Its parent may drop the view, and use the pages for something else.
            && view.array::<u64>("a").is_err_and(refused)
            && view.bytes_verified("a").is_err_and(refused)
            && view.verify().is_err_and(refused)
            && pool.array::<u64>("b", LEN, Block::default()).is_err_and(refused)
    });
    assert!(status.success());
    assert_eq!(array[1], 1);
    assert_eq!(pool.persist(&mut [&mut array]).unwrap(), version + 1);
}
