//! Several ranks: a version exists when all of them have it.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use outcrop::{
    ErrorKind, Part, PartMut, Reached, Retention, Session, Store, StoreBuilder,
    layers::files::DiskFiles,
    store::{Dedup, Ranks, SharedDirectory},
};
use outcrop_crash::{Errno, Failing, Fault, Operation};

const MIB: u64 = 1 << 20;

/// Runs something on each of `count` ranks at once.
pub(crate) fn run<T: Send>(dir: &Path, count: u32, program: impl Fn(SharedDirectory) -> T + Sync) -> Vec<T> {
    let program = &program;
    thread::scope(|scope| {
        let ranks = (0..count).map(|rank| {
            scope.spawn(move || program(SharedDirectory::open_with(dir, rank, count, Duration::from_secs(30)).unwrap()))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn builder(dir: &Path, ranks: SharedDirectory) -> StoreBuilder {
    let store = Store::builder().host(4 * MIB).pin(false).ranks(ranks);
    store.dir(dir.join("near"), None).dir(dir.join("far"), None)
}

fn session(dir: &Path, ranks: SharedDirectory) -> Session {
    builder(dir, ranks).open().unwrap().session("heat").unwrap()
}

fn state(rank: u32, version: u64) -> Vec<u64> {
    (0..20_000).map(|index| if index % 1000 == version % 1000 { version } else { index + u64::from(rank) }).collect()
}

fn save(session: &mut Session, rank: u32, version: u64) {
    session.save(version, &[Part::new("state", &state(rank, version))]).unwrap();
}

fn restore(session: &mut Session, rank: u32) -> Option<u64> {
    let mut found = vec![0; 20_000];
    let restored = session.restore_latest(&mut [PartMut::new("state", &mut found)]).unwrap()?;
    assert_eq!(found, state(rank, restored.version));
    Some(restored.version)
}

#[test]
fn all_ranks_go_on_from_the_same_version() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let keep = Retention { keep_last: Some(2), ..Retention::default() };
    for round in 0..3u64 {
        let found = run(&talk, 3, |ranks| {
            let rank = ranks.rank();
            let mut session =
                builder(dir.path(), ranks).keep(keep).chain_max(3).open().unwrap().session("heat").unwrap();
            let found = restore(&mut session, rank);
            for version in round * 10..round * 10 + 10 {
                save(&mut session, rank, version);
            }
            session.wait(round * 10 + 9, Reached::All).unwrap();
            session.finish().unwrap();
            found
        });
        assert_eq!(found, [round.checked_sub(1).map(|before| before * 10 + 9); 3]);
    }
}

#[test]
fn a_version_that_one_rank_lacks_does_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        (1..=3).for_each(|version| save(&mut session, rank, version));
        session.finish().unwrap();
    });
    let manifest = |layer: &str, rank: u32, version: u64| {
        dir.path().join(format!("{layer}/heat/rank-{rank:05}/version-{version:020}"))
    };
    // It is enough that all ranks have it on one layer.
    std::fs::remove_file(manifest("near", 1, 3)).unwrap();
    let reopened = || {
        run(&talk, 2, |ranks| {
            let rank = ranks.rank();
            restore(&mut session(dir.path(), ranks), rank)
        })
    };
    assert_eq!(reopened(), [Some(3), Some(3)]);
    std::fs::remove_file(manifest("far", 1, 3)).unwrap();
    assert_eq!(reopened(), [Some(2), Some(2)]);
    assert!(manifest("near", 0, 3).exists(), "opening removes no version");
    // A manifest that cannot be read might be repaired, so nothing is removed because of it.
    for layer in ["near", "far"] {
        std::fs::write(manifest(layer, 1, 2), "rubbish").unwrap();
    }
    assert_eq!(reopened(), [Some(1), Some(1)]);
    assert!(manifest("near", 0, 2).exists());
    // A version that not all ranks have is removed when a newer one is complete. A version that all
    // ranks have and one cannot read stays for as long as the settings say.
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        save(&mut session, rank, 4);
        session.finish().unwrap();
    });
    for layer in ["near", "far"] {
        assert!(!manifest(layer, 0, 3).exists() && manifest(layer, 0, 2).exists() && manifest(layer, 0, 1).exists());
    }
}

#[test]
fn ranks_that_share_no_blocks_do_not_read_each_others_manifests_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let (reads, others) = (Arc::new(AtomicU64::new(0)), format!("heat/rank-{:05}/version-", 1 - rank));
        let files = Failing::new(Arc::new(DiskFiles::create(dir.path()).unwrap()));
        let files = files.watched({
            let reads = Arc::clone(&reads);
            move |operation, name| {
                reads.fetch_add(u64::from(operation == Operation::Open && name.starts_with(&others)), SeqCst);
            }
        });
        let store = Store::builder().host(4 * MIB).pin(false).keep(keep).chain_max(1).ranks(ranks);
        let mut session = store.files(Arc::new(files), None).open().unwrap().session("heat").unwrap();
        let mut save_until = |last: u64| {
            for version in last - 7..=last {
                save(&mut session, rank, version);
                session.wait(version, Reached::All).unwrap();
            }
        };
        save_until(8);
        // What an earlier run may have borrowed is looked up when packs are removed for the first
        // time.
        assert!(reads.swap(0, SeqCst) > 0);
        save_until(16);
        assert_eq!(reads.load(SeqCst), 0);
        session.finish().unwrap();
    });
    for rank in 0..2 {
        let names = outcrop_testing::names(&dir.path().join(format!("heat/rank-{rank:05}")));
        let packs = names.iter().filter(|name| name.starts_with("pack-")).count();
        assert!((1..8).contains(&packs), "{names:?}");
    }
}

#[test]
fn blocks_that_several_ranks_have_are_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let same: Vec<u64> = (0..50_000).collect();
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    let written = run(&talk, 3, |ranks| {
        let rank = u64::from(ranks.rank());
        let store = builder(dir.path(), ranks).dedup(Dedup::Ranks).keep(keep).open().unwrap();
        let mut session = store.session("heat").unwrap();
        let mut mine = same.clone();
        mine[7] = rank;
        session.save(1, &[Part::new("state", &mine)]).unwrap();
        session.wait(1, Reached::All).unwrap();
        let written = store.stats().layers[1].written_bytes;
        // Later versions change little, and the blocks of other ranks must stay although version 1
        // is dropped.
        for version in 2..6 {
            mine[40_000] = version * 10 + rank;
            session.save(version, &[Part::new("state", &mine)]).unwrap();
        }
        session.finish().unwrap();
        written
    });
    assert!(written[0] > 390_000, "{written:?}");
    assert!(written[1] < 40_000 && written[2] < 40_000, "{written:?}");
    run(&talk, 3, |ranks| {
        let rank = u64::from(ranks.rank());
        let mut session = session(dir.path(), ranks);
        assert_eq!(session.versions(), [5]);
        let mut found = vec![0; same.len()];
        assert_eq!(session.restore_latest(&mut [PartMut::new("state", &mut found)]).unwrap().unwrap().version, 5);
        let mut mine = same.clone();
        (mine[7], mine[40_000]) = (rank, 50 + rank);
        assert_eq!(found, mine);
    });
}

#[test]
fn damage_on_one_rank_sends_all_back() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let store = builder(dir.path(), ranks).incremental(false).open().unwrap();
        let mut session = store.session("heat").unwrap();
        (1..=2).for_each(|version| save(&mut session, rank, version));
        session.finish().unwrap();
    });
    for layer in ["near", "far"] {
        let path = dir.path().join(layer).join("heat/rank-00001").join(format!("pack-{:020}", 1));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[5000] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }
    let restored = run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        let mut found = vec![0; 20_000];
        let restored = session.restore_latest(&mut [PartMut::new("state", &mut found)]).unwrap().unwrap();
        assert_eq!(found, state(rank, 1));
        (restored.version, restored.skipped.len())
    });
    assert_eq!(restored, [(1, 1), (1, 2)]);
}

#[test]
fn a_rank_that_has_ended_is_an_error_and_not_a_wait() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let errors = run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        save(&mut session, rank, 1);
        session.wait(1, Reached::All).unwrap();
        if rank == 1 {
            return None;
        }
        save(&mut session, rank, 2);
        let error = session.wait(2, Reached::All).unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
        // The save fails at once if it is already known that the version failed on the other layer
        // too. Otherwise the wait fails.
        let saved = session.save(3, &[]);
        Some(saved.and_then(|()| session.wait(3, Reached::All)).is_err())
    });
    assert_eq!(errors, [Some(true), None]);
}

#[test]
fn a_rank_that_computes_for_long_passes_on_what_others_say() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    let has_told = AtomicBool::new(false);
    run(&talk, 3, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        save(&mut session, rank, 1);
        session.wait(1, Reached::All).unwrap();
        match rank {
            // It has nothing to save yet, and waits for nobody.
            0 => {
                let begin = Instant::now();
                while !has_told.load(SeqCst) {
                    assert!(begin.elapsed() < Duration::from_secs(60), "rank 1 does not learn that rank 2 has ended");
                    thread::sleep(Duration::from_millis(10));
                }
            }
            1 => {
                save(&mut session, rank, 2);
                let error = session.wait(2, Reached::All).unwrap_err();
                has_told.store(true, SeqCst);
                assert!(error.to_string().contains("rank 2"), "{error}");
            }
            _ => {}
        }
    });
}

#[test]
fn ranks_do_not_believe_an_earlier_run() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), 3, |ranks| ranks.gather("a", &[7]).unwrap());
    // Rank 0 is alone. It finds the files of all others, and notices that they are not running.
    let error = SharedDirectory::open_with(dir.path(), 0, 3, Duration::from_millis(200)).map(drop).unwrap_err();
    assert!(error.to_string().contains("not all 3 ranks"), "{error}");
    let gathered = run(dir.path(), 3, |ranks| {
        let rank = ranks.rank();
        let twice = [ranks.gather("a", &[rank as u8]).unwrap(), ranks.gather("a", &[10 + rank as u8]).unwrap()];
        ranks.announce(&[20 + rank as u8]).unwrap();
        ranks.gather("b", &[]).unwrap();
        let mut heard = ranks.heard().unwrap_or_default();
        heard.sort();
        ranks.gather("b", &[]).unwrap();
        (twice, heard)
    });
    for (rank, (twice, heard)) in gathered.into_iter().enumerate() {
        assert_eq!(twice, [[[0], [1], [2]], [[10], [11], [12]]]);
        let others = (0..3).filter(|other| *other != rank as u32).map(|other| (other, vec![20 + other as u8]));
        assert_eq!(heard, others.collect::<Vec<_>>());
    }
    let held = Arc::new(SharedDirectory::open_with(dir.path(), 0, 1, Duration::from_secs(1)).unwrap());
    let error = SharedDirectory::open_with(dir.path(), 0, 1, Duration::from_secs(1)).map(drop).unwrap_err();
    assert_eq!(outcrop::Error::from(error).kind(), ErrorKind::Busy);
    drop(held);
}

/// Saves two versions. The second one fails on rank 1.
fn saves_twice_and_fails_once(dir: &Path, ranks: SharedDirectory) -> (u32, Session) {
    let rank = ranks.rank();
    let files = Failing::new(Arc::new(DiskFiles::create(dir).unwrap()));
    let store = Store::builder().host(4 * MIB).pin(false).ranks(ranks).files(Arc::new(files.clone()), None);
    let mut session = store.open().unwrap().session("heat").unwrap();
    save(&mut session, rank, 1);
    session.wait(1, Reached::All).unwrap();
    if rank == 1 {
        files.inject(Fault { of: Some(Operation::Sync), ..Fault::new(Errno::IO) });
    }
    save(&mut session, rank, 2);
    (rank, session)
}

#[test]
fn a_failure_of_one_rank_is_known_to_all_and_the_next_version_is_whole_again() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let (rank, mut session) = saves_twice_and_fails_once(dir.path(), ranks);
        assert_eq!(session.wait(2, Reached::Here(1)).is_ok(), rank == 0, "who has not failed has done its part");
        let error = session.wait(2, Reached::All).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(rank == 1 || error.to_string().contains("rank 1"), "{error}");
        save(&mut session, rank, 3);
        session.wait(3, Reached::All).unwrap();
        session.finish().unwrap();
    });
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let store = Store::builder().host(4 * MIB).pin(false).ranks(ranks).dir(dir.path(), None);
        let mut session = store.open().unwrap().session("heat").unwrap();
        assert_eq!(session.versions(), [1, 3]);
        assert_eq!(restore(&mut session, rank), Some(3));
    });
}

#[test]
fn a_version_that_failed_on_one_rank_may_be_saved_again_after_going_back() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let (rank, mut session) = saves_twice_and_fails_once(dir.path(), ranks);
        session.wait(2, Reached::All).unwrap_err();
        // The other rank may have its part of it.
        let error = session.save(2, &[Part::new("state", &state(rank, 2))]).unwrap_err();
        assert!(error.kind() == ErrorKind::Exists && error.to_string().contains("rewind"), "{error}");
        session.rewind(Some(1)).unwrap();
        save(&mut session, rank, 2);
        session.wait(2, Reached::All).unwrap();
        session.finish().unwrap();
    });
    let found = run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let store = Store::builder().host(4 * MIB).pin(false).ranks(ranks).dir(dir.path(), None);
        restore(&mut store.open().unwrap().session("heat").unwrap(), rank)
    });
    assert_eq!(found, [Some(2), Some(2)]);
}

#[test]
fn nobody_waits_for_a_version_that_another_rank_does_not_save() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let store = builder(dir.path(), ranks).open().unwrap();
        // Twice: messages about a session that has ended must not affect the next one.
        for round in 0..2 {
            let mut session = store.session("heat").unwrap();
            let first = round * 10;
            save(&mut session, rank, first + 1);
            session.wait(first + 1, Reached::All).unwrap();
            if rank == 0 {
                save(&mut session, rank, first + 2);
            }
            save(&mut session, rank, first + 3);
            if rank == 0 {
                let error = session.wait(first + 2, Reached::All).unwrap_err();
                assert!(error.to_string().contains("rank 1: it has not saved this version"), "{error}");
            }
            session.wait(first + 3, Reached::Layer(1)).unwrap();
            if rank == 0 {
                // The failure on the other layer is reported once.
                while session.save(first + 4, &[Part::new("state", &state(rank, 4))]).is_err() {}
                let error = session.wait(first + 4, Reached::All).unwrap_err();
                assert!(error.to_string().contains("rank 1: it has ended"), "{error}");
            }
            drop(session);
        }
    });
    let found = run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        restore(&mut session(dir.path(), ranks), rank)
    });
    assert_eq!(found, [Some(13), Some(13)]);
}

#[test]
fn what_was_said_before_going_back_is_not_about_what_comes_after() {
    let dir = tempfile::tempdir().unwrap();
    let talk = dir.path().join("talk");
    run(&talk, 2, |ranks| {
        let rank = ranks.rank();
        let mut session = session(dir.path(), ranks);
        for _ in 0..5 {
            (1..=4).for_each(|version| save(&mut session, rank, version));
            session.wait(4, Reached::All).unwrap();
            session.rewind(Some(1)).unwrap();
            assert_eq!(session.versions(), [1]);
            (2..=3).for_each(|version| save(&mut session, rank, version));
            session.wait(3, Reached::All).unwrap();
            session.rewind(None).unwrap();
        }
    });
}
