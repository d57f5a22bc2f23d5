//! What cannot be restored is said so, and changes nothing.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use outcrop::{ErrorKind, Part, PartMut, Session, Store, store::Ranks};

use super::{MIB, builder};
use crate::{common::trees::counted, store_ranks::run};

/// The first element of a rank's rows, of 12 rows in all.
const ROWS: usize = 12;

/// Saves version 1 with these boxes of rows, and what else `more` says of a rank.
fn save_rows(dir: &Path, boxes: &[std::ops::Range<usize>], more: impl Fn(usize) -> Vec<u64> + Sync) {
    run(&dir.join("talk"), boxes.len() as u32, |ranks| {
        let rank = ranks.rank() as usize;
        let mut session = builder(dir, ranks).open().unwrap().session("heat").unwrap();
        let rows = boxes[rank].clone();
        let field: Vec<u64> = (rows.start * 5..rows.end * 5).map(|value| value as u64).collect();
        let others = more(rank);
        let parts = [Part::boxed("field", &field, &[ROWS, 5], &[rows.start, 0]), Part::new("other", &others)];
        session.save(1, &parts).unwrap();
        session.finish().unwrap();
    });
}

/// What each of `count` ranks is told when it tries to restore. Its memory must not have changed.
fn refused(
    dir: &Path,
    count: u32,
    attempt: impl Fn(&mut Session, usize, &mut [u64]) -> outcrop::Error + Sync,
) -> Vec<String> {
    run(&dir.join("talk"), count, |ranks| {
        let rank = ranks.rank() as usize;
        let mut session = builder(dir, ranks).open().unwrap().session("heat").unwrap();
        let mut memory = vec![77; ROWS * 5];
        let error = attempt(&mut session, rank, &mut memory);
        assert!(memory.iter().all(|value| *value == 77), "rank {rank} has got something");
        assert!([ErrorKind::Usage, ErrorKind::Busy].contains(&error.kind()), "{error:?}");
        error.to_string()
    })
}

fn rows(memory: &mut [u64], rows: std::ops::Range<usize>, all: usize) -> PartMut<'_> {
    PartMut::boxed("field", &mut memory[..rows.len() * 5], &[all, 5], &[rows.start, 0])
}

#[test]
fn a_box_that_nobody_has_saved_is_refused_by_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &[0..4, 6..12], |_| vec![1]);
    // Only rank 1 of 3 asks for what is missing: nobody gets anything.
    let told = refused(dir.path(), 3, |session, rank, memory| {
        let asked = [0..4, 3..7, 7..12][rank].clone();
        session.restore_latest(&mut [rows(memory, asked, ROWS)]).unwrap_err()
    });
    assert!(told[1].contains("no rank has saved the element (4, 0); ask for a box"), "{}", told[1]);
    assert!(told[0].contains("rank 1 cannot restore") && told[2].contains("rank 1 cannot restore"), "{told:?}");
}

#[test]
fn boxes_that_overlap_or_do_not_belong_together_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &[0..7, 6..12], |_| vec![1]);
    let whole = |session: &mut Session, _: usize, memory: &mut [u64]| {
        session.restore_latest(&mut [rows(memory, 0..ROWS, ROWS)]).unwrap_err()
    };
    let told = refused(dir.path(), 1, whole);
    assert!(told[0].contains("the boxes of ranks 0 and 1 overlap, at (6, 0)"), "{}", told[0]);
    assert!(told[0].contains("without halos"), "{}", told[0]);
    // What does not touch the overlap can be had.
    run(&dir.path().join("talk"), 1, |ranks| {
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        let mut memory = vec![0; 20];
        session.restore_latest(&mut [rows(&mut memory, 0..4, ROWS)]).unwrap();
        assert!(memory.iter().copied().eq(0..20));
    });
    let told = refused(dir.path(), 1, |session, _, memory| {
        session.restore_latest(&mut [rows(memory, 0..ROWS, ROWS + 1)]).unwrap_err()
    });
    assert!(told[0].contains("is an array of 12 x 5 and not 12 x 5 at (0, 0) of 13 x 5"), "{}", told[0]);
    let told = refused(dir.path(), 1, |session, _, memory| {
        session.restore_latest(&mut [PartMut::boxed("field", memory, &[ROWS, 5], &[1, 0])]).unwrap_err()
    });
    assert!(told[0].contains("the box is not inside its global array"), "{}", told[0]);
    let told = refused(dir.path(), 1, |session, _, memory| {
        session.restore_latest(&mut [PartMut::new("fjeld", memory)]).unwrap_err()
    });
    assert!(told[0].contains("it has no region fjeld, only field, other"), "{}", told[0]);
}

#[test]
fn a_region_without_a_box_must_be_the_same_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    save_rows(dir.path(), &[0..4, 4..8, 8..12], |rank| vec![rank as u64 / 2; 3]);
    let other = |session: &mut Session, _: usize, memory: &mut [u64]| {
        session.restore_latest(&mut [PartMut::new("other", &mut memory[..3])]).unwrap_err()
    };
    let told = refused(dir.path(), 2, other);
    assert!(told.iter().any(|told| told.contains("other is not the same on ranks 0 and 2")), "{told:?}");
    // Who does not ask for it is not concerned.
    run(&dir.path().join("talk"), 2, |ranks| {
        let rank = ranks.rank() as usize;
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        let mut memory = vec![0; 30];
        session.restore_latest(&mut [rows(&mut memory, rank * 6..rank * 6 + 6, ROWS)]).unwrap().unwrap();
        assert!(memory.iter().copied().eq(rank as u64 * 30..rank as u64 * 30 + 30));
    });
    let lengths = tempfile::tempdir().unwrap();
    save_rows(lengths.path(), &[0..6, 6..12], |rank| vec![1; 3 + rank]);
    let told = refused(lengths.path(), 1, other);
    assert!(told[0].contains("other is 3 on one rank and 4 on another: give it a box, or make it a list"), "{told:?}");
}

#[test]
fn a_damaged_block_is_taken_from_another_directory_or_an_older_version_counts() {
    let dir = tempfile::tempdir().unwrap();
    run(&dir.path().join("talk"), 3, |ranks| {
        let rank = ranks.rank() as usize;
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        for version in 1..=2 {
            let field = vec![version; 2000];
            session.save(version, &[Part::boxed("field", &field, &[6000], &[rank * 2000])]).unwrap();
        }
        session.finish().unwrap();
    });
    let restore = || {
        run(&dir.path().join("talk"), 2, |ranks| {
            let rank = ranks.rank() as usize;
            let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
            session.verify_before_restore(true);
            let mut field = vec![0u64; 3000];
            let mut parts = [PartMut::boxed("field", &mut field, &[6000], &[rank * 3000])];
            let restored = session.restore_latest(&mut parts).unwrap().unwrap();
            assert!(field.iter().all(|value| *value == restored.version), "rank {rank}: {restored:?}");
            restored
        })
    };
    // Of rank 1 on the first layer, of rank 2 on the second one.
    damage_newest(&dir.path().join("near/heat/rank-00001"));
    damage_newest(&dir.path().join("far/heat/rank-00002"));
    let restored = restore();
    assert!(restored.iter().all(|it| it.version == 2), "{restored:?}");
    assert!(restored.iter().any(|it| it.skipped.iter().any(|it| it.reason.contains("near"))), "{restored:?}");
    damage_newest(&dir.path().join("far/heat/rank-00001"));
    let restored = restore();
    assert!(restored.iter().all(|it| it.version == 1), "{restored:?}");
    // A rank whose directory is missing everywhere makes all its versions incomplete.
    for layer in ["near", "far"] {
        let path = dir.path().join(layer).join("heat");
        fs::rename(path.join("rank-00002"), path.join("away")).unwrap();
    }
    run(&dir.path().join("talk"), 2, |ranks| {
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        let mut field = vec![0u64; 3000];
        let mut parts = [PartMut::boxed("field", &mut field, &[6000], &[0])];
        assert_eq!(session.restore_latest(&mut parts).unwrap(), None);
        let passed_over = session.passed_over();
        assert!(passed_over.iter().any(|it| it.version == 2) && field[0] == 0, "{passed_over:?}");
        // Its versions may come back, so their numbers are not used.
        let error = session.save(2, &[Part::boxed("field", &field, &[6000], &[0])]).unwrap_err();
        assert!(error.to_string().contains("seems to be missing"), "{error}");
    });
    for layer in ["near", "far"] {
        let path = dir.path().join(layer).join("heat");
        fs::rename(path.join("away"), path.join("rank-00002")).unwrap();
    }
    assert!(restore().iter().all(|it| it.version == 1));
}

/// Changes a byte of a block in the newest pack of a rank.
fn damage_newest(rank: &Path) {
    let packs = outcrop_testing::names(rank).into_iter().filter(|name| name.starts_with("pack-"));
    let path = rank.join(packs.max().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096] ^= 1;
    fs::write(&path, bytes).unwrap();
}

#[test]
fn a_rank_reads_only_the_blocks_that_it_needs() {
    const ALL: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    run(&dir.path().join("talk"), 4, |ranks| {
        let rank = ranks.rank() as usize;
        let store = Store::builder().host(16 * MIB).pin(false).ranks(ranks).dir(dir.path().join("near"), None);
        let mut session = store.open().unwrap().session("heat").unwrap();
        let field: Vec<u64> = (rank * ALL / 4..(rank + 1) * ALL / 4).map(|value| value as u64).collect();
        session.save(1, &[Part::boxed("field", &field, &[ALL], &[rank * ALL / 4])]).unwrap();
        session.finish().unwrap();
    });
    run(&dir.path().join("talk"), 3, |ranks| {
        let rank = ranks.rank() as usize;
        let bytes = Arc::new(AtomicU64::new(0));
        let files = counted(&dir.path().join("near"), &bytes);
        let store = Store::builder().host(4 * MIB).pin(false).ranks(ranks).files(files, None);
        let mut session = store.open().unwrap().session("heat").unwrap();
        let (start, end) = (rank * ALL / 3, (rank + 1) * ALL / 3);
        let mut field = vec![0u64; end - start];
        bytes.store(0, SeqCst);
        let mut parts = [PartMut::boxed("field", &mut field, &[ALL], &[start])];
        session.restore_latest(&mut parts).unwrap().unwrap();
        let read = bytes.load(SeqCst);
        assert!(field.iter().copied().eq(start as u64..end as u64));
        // Two blocks at each end of a piece, and headers and indexes: opened twice, once to see
        // whether it fits.
        let (needed, index) = ((end - start) as u64 * 8, 2 * 2 * (4096 + (512 * 16 + 4096)));
        assert!(read >= needed && read < needed + 4 * 4096 + index, "{read} bytes were read for {needed}");
    });
}
