//! What becomes of the directories of ranks that are nobody's any more.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio, thread, time::Duration};

use fastrand::Rng;
use outcrop::{
    Part, PartMut, Reached, Retention, Session, Store,
    store::{Dedup, Ranks, SharedDirectory},
};
use outcrop_testing::{amount, child, child_directory, covered, names};

use super::{MIB, builder};
use crate::store_ranks::run;

const ALL: usize = 6000;

/// The part of a rank, and its first element.
fn share(rank: u32, count: u32) -> std::ops::Range<usize> {
    let at = |rank: u32| ALL * rank as usize / count as usize;
    at(rank)..at(rank + 1)
}

/// Some elements change from version to version.
fn content(version: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..ALL as u64).map(|value| value / 100).collect();
    for step in 0..=version {
        all[(step * 977) as usize % ALL] = step + 1000;
    }
    all
}

fn save(session: &mut Session, (rank, count): (u32, u32), version: u64) -> outcrop::Result<()> {
    let mine = share(rank, count);
    let field = &content(version)[mine.clone()];
    session.save(version, &[Part::boxed("field", field, &[ALL], &[mine.start]), Part::one("version", &version)])
}

fn restore(session: &mut Session, (rank, count): (u32, u32)) -> outcrop::Result<u64> {
    let mine = share(rank, count);
    let (mut field, mut version) = (vec![0; mine.len()], 0);
    let mut parts = [PartMut::boxed("field", &mut field, &[ALL], &[mine.start]), PartMut::one("version", &mut version)];
    let Some(restored) = session.restore_latest(&mut parts)? else { return Ok(0) };
    assert_eq!(restored.version, version);
    assert!(field == content(version)[mine], "version {version} on rank {rank} of {count}");
    Ok(version)
}

/// The files of a rank, by kind: versions and packs.
fn files(dir: &Path, rank: u32) -> [usize; 2] {
    let names = names(&dir.join(format!("heat/rank-{rank:05}")));
    ["version-", "pack-"].map(|kind| names.iter().filter(|name| name.starts_with(kind)).count())
}

fn keep(last: u32) -> Retention {
    Retention { keep_last: Some(last), ..Retention::default() }
}

#[test]
fn versions_of_former_ranks_stay_for_as_long_as_the_settings_say() {
    for dedup in [Dedup::Versions, Dedup::Ranks] {
        let dir = tempfile::tempdir().unwrap();
        let talk = dir.path().join("talk");
        let open = |ranks: SharedDirectory| {
            builder(dir.path(), ranks).dedup(dedup).chain_max(2).keep(keep(3)).open().unwrap().session("heat").unwrap()
        };
        let near = dir.path().join("near");
        run(&talk, 4, |ranks| {
            let me = (ranks.rank(), 4);
            let mut session = open(ranks);
            (1..=3).for_each(|version| save(&mut session, me, version).unwrap());
            session.finish().unwrap();
        });
        // Nothing is removed by opening, nor before a newer version is complete.
        run(&talk, 1, |ranks| {
            let mut session = open(ranks);
            assert_eq!(restore(&mut session, (0, 1)).unwrap(), 3);
            assert_eq!(session.restorable().unwrap(), [1, 2, 3]);
        });
        (1..4).for_each(|rank| assert_eq!(files(&near, rank)[0], 3, "of rank {rank}"));
        run(&talk, 2, |ranks| {
            let me = (ranks.rank(), 2);
            let mut session = open(ranks);
            assert_eq!(restore(&mut session, me).unwrap(), 3);
            save(&mut session, me, 4).unwrap();
            session.wait(4, Reached::All).unwrap();
            session.finish().unwrap();
        });
        (2..4).for_each(|rank| assert_eq!(files(&near, rank)[0], 2, "versions 2 and 3 of rank {rank}"));
        // All of them can still be restored, by any number of ranks.
        run(&talk, 3, |ranks| {
            let me = (ranks.rank(), 3);
            let mut session = open(ranks);
            assert_eq!(session.restorable().unwrap(), [2, 3, 4]);
            let mine = share(me.0, 3);
            for version in [2, 3, 4] {
                let mut field = vec![0; mine.len()];
                let mut parts = [PartMut::boxed("field", &mut field, &[ALL], &[mine.start])];
                session.restore(version, &mut parts).unwrap();
                assert!(field == content(version)[mine.clone()]);
            }
        });
        run(&talk, 1, |ranks| {
            let mut session = open(ranks);
            assert_eq!(restore(&mut session, (0, 1)).unwrap(), 4);
            for version in 5..=8 {
                save(&mut session, (0, 1), version).unwrap();
                session.wait(version, Reached::All).unwrap();
            }
            session.finish().unwrap();
        });
        for layer in ["near", "far"] {
            (1..4).for_each(|rank| assert_eq!(files(&dir.path().join(layer), rank), [0, 0], "{layer}, rank {rank}"));
        }
        // More ranks than before use their directories again.
        run(&talk, 4, |ranks| {
            let me = (ranks.rank(), 4);
            let mut session = open(ranks);
            assert_eq!(restore(&mut session, me).unwrap(), 8);
            save(&mut session, me, 9).unwrap();
            session.finish().unwrap();
        });
        assert_eq!(files(&near, 3)[0], 1);
    }
}

#[test]
fn a_rewind_also_removes_versions_of_former_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let open = |ranks: SharedDirectory| builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
    run(&talk, 3, |ranks| {
        let me = (ranks.rank(), 3);
        let mut session = open(ranks);
        (1..=4).for_each(|version| save(&mut session, me, version).unwrap());
        session.finish().unwrap();
    });
    run(&talk, 2, |ranks| {
        let me = (ranks.rank(), 2);
        let mut session = open(ranks);
        session.rewind(Some(2)).unwrap();
        assert_eq!(restore(&mut session, me).unwrap(), 2);
        save(&mut session, me, 3).unwrap();
        session.finish().unwrap();
    });
    assert_eq!(files(&dir.path().join("near"), 2)[0], 2);
    let found = run(&talk, 3, |ranks| {
        let me = (ranks.rank(), 3);
        restore(&mut open(ranks), me).unwrap()
    });
    assert_eq!(found, [3; 3]);
}

#[test]
fn a_former_rank_that_is_still_running_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 3, |ranks| {
        let me = (ranks.rank(), 3);
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        save(&mut session, me, 1).unwrap();
        session.finish().unwrap();
    });
    let files = outcrop::layers::files::DiskFiles::create(&dir.path().join("near")).unwrap();
    let lock = outcrop::layers::files::Files::lock(&files, "heat/rank-00002/lock").unwrap().unwrap();
    let told = run(&talk, 2, |ranks| {
        builder(dir.path(), ranks).open().unwrap().session("heat").map(drop).unwrap_err().to_string()
    });
    assert!(told.iter().all(|told| told.contains("heat/rank-00002 in ")), "{told:?}");
    drop(lock);
    run(&talk, 2, |ranks| {
        let me = (ranks.rank(), 2);
        assert_eq!(restore(&mut builder(dir.path(), ranks).open().unwrap().session("heat").unwrap(), me).unwrap(), 1);
    });
}

const COUNT: &str = "OUTCROP_TEST_RANKS";

/// In a child: all ranks of a run restore, and save without end.
#[test]
fn child_saves_boxes() {
    let Some(dir) = child_directory() else { return };
    let count: u32 = std::env::var(COUNT).unwrap().parse().unwrap();
    run(&dir.join("talk"), count, |ranks| {
        let me = (ranks.rank(), count);
        let store = Store::builder().host(4 * MIB).pin(false).threads(1).block(256).ranks(ranks).keep(keep(2));
        let store = store.chain_max(2).dir(dir.join("near"), None).dir(dir.join("far"), None);
        let mut session = store.open().unwrap().session("heat").unwrap();
        let mut version = restore(&mut session, me).unwrap();
        // Whoever sees it sees what it says.
        let draft = dir.join(format!("finds-{}", me.0));
        fs::write(&draft, version.to_string()).unwrap();
        fs::rename(draft, dir.join(format!("found-{}", me.0))).unwrap();
        loop {
            version += 1;
            save(&mut session, me, version).unwrap();
            session.wait(version, Reached::Layer(1)).unwrap();
            fs::write(dir.join(format!("durable-{}", me.0)), version.to_string()).unwrap();
        }
    });
}

#[test]
fn ranks_of_changing_number_lose_nothing_when_they_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Rng::with_seed(3);
    let number = |name: String| -> u64 {
        fs::read_to_string(dir.path().join(name)).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let (rounds, mut durable) = (amount(6, 60), 0);
    let mut counts = BTreeMap::new();
    for round in 0..rounds {
        let count = random.u32(1..5);
        *counts.entry(count).or_insert(0) += 1;
        (0..5).for_each(|rank| drop(fs::remove_file(dir.path().join(format!("found-{rank}")))));
        let mut child = child("store_boxes::former::child_saves_boxes", dir.path());
        let mut child =
            child.env(COUNT, count.to_string()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let is_ready = || (0..count).all(|rank| dir.path().join(format!("found-{rank}")).exists());
        outcrop_testing::until("all ranks have restored", is_ready);
        thread::sleep(Duration::from_millis(random.u64(..150)));
        child.kill().unwrap();
        child.wait().unwrap();
        for rank in 0..count {
            let found = number(format!("found-{rank}"));
            assert!(found >= durable, "round {round}: rank {rank} of {count} found {found}, and {durable} was durable");
        }
        durable = (0..5).map(|rank| number(format!("durable-{rank}"))).max().unwrap_or(0).max(durable);
    }
    covered("runs of changing numbers of ranks that were killed", rounds);
}
