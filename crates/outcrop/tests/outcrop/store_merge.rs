//! Merging increments, and continuing from saved versions.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use outcrop::{Part, PartMut, Reached, Session, Store, catalog::Catalog, store::Compression};
use outcrop_crash::{Failing, Recording};
use outcrop_testing::amount;

const COUNT: usize = 20_000;

fn session(dir: &Path) -> Session {
    let store = Store::builder().host(4u64 << 20).pin(false).block(4096u64).chain_max(3);
    store.dir(dir.join("near"), None).dir(dir.join("far"), None).open().unwrap().session("heat").unwrap()
}

/// Each version changes other blocks.
fn field(version: u64) -> Vec<u64> {
    let value = |index: u64| if (1..=version).contains(&(index / 1024)) { index / 1024 } else { index };
    (0..COUNT as u64).map(value).collect()
}

fn save(session: &mut Session, version: u64) {
    session.save(version, &[Part::new("field", &field(version))]).unwrap();
    session.wait(version, Reached::All).unwrap();
}

/// Changes a byte in the increment of the second version, in a block that no later version changes.
fn damage(dir: &Path, place: &str) {
    let path = dir.join(place).join("heat/rank-00000/pack-00000000000000000001");
    let pack = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    pack.read_exact_at(&mut byte, 4096 + 5000).unwrap();
    pack.write_all_at(&[byte[0] ^ 4], 4096 + 5000).unwrap();
}

/// Continues from the second of two versions, after these copies of it were damaged. The last of
/// many further versions must be correct, and must not need the damaged copies.
fn go_on_with_damage(dir: &Path, damaged: &[&str]) {
    let mut first = session(dir);
    (1..=2).for_each(|version| save(&mut first, version));
    first.finish().unwrap();
    // From here on the session has the increments only in its directories.
    let mut second = session(dir);
    let mut found = vec![0u64; COUNT];
    let restored = second.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap().unwrap();
    assert_eq!((restored.version, restored.skipped.len()), (2, 0));
    damaged.iter().for_each(|place| damage(dir, place));
    (3..=9).for_each(|version| save(&mut second, version));
    second.finish().unwrap();
    for place in ["near", "far"] {
        let catalog = Catalog::open(&dir.join(place)).unwrap();
        let newest = catalog.version("heat", Some(9)).unwrap();
        let reader = catalog.reader(&newest.manifests[&0]).unwrap();
        assert!(reader.manifest().packs.iter().all(|pack| pack.id.number != 1), "{place}: it was not merged");
        let bytes: Vec<u8> = field(9).iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(reader.read_region("field").unwrap() == bytes, "{place}");
    }
}

#[test]
fn a_merge_takes_every_block_from_a_copy_that_is_undamaged() {
    let dir = tempfile::tempdir().unwrap();
    go_on_with_damage(dir.path(), &["near"]);
    let mut third = session(dir.path());
    let mut found = vec![0u64; COUNT];
    for version in 1..=9 {
        third.restore(version, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert_eq!(found, field(version), "version {version}");
    }
}

#[test]
fn what_is_damaged_everywhere_is_not_built_upon_once_a_merge_has_found_it() {
    let dir = tempfile::tempdir().unwrap();
    go_on_with_damage(dir.path(), &["near", "far"]);
}

#[test]
fn a_program_that_reads_by_itself_goes_on_with_an_increment() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = session(dir.path());
    save(&mut first, 1);
    first.finish().unwrap();
    let mut second = session(dir.path());
    second.go_on_after(1).unwrap();
    // A region that was not saved before, and one in which only a few bytes have changed.
    let extra = [7u8; 100];
    second.save(2, &[Part::new("field", &field(2)), Part::new("extra", &extra)]).unwrap();
    second.wait(2, Reached::All).unwrap();
    let catalog = Catalog::open(&dir.path().join("near")).unwrap();
    let stored = catalog.version("heat", Some(2)).unwrap().stored_bytes();
    assert!(stored <= 6 * 4096, "{stored} bytes are no increment");
    // Back to the first version, in the same process, without reading it: the content of memory is
    // saved.
    second.go_on_after(1).unwrap();
    second.save(3, &[Part::new("field", &field(2)), Part::new("extra", &extra)]).unwrap();
    second.finish().unwrap();
    let mut found = vec![0u64; COUNT];
    session(dir.path()).restore(3, &mut [PartMut::new("field", &mut found)]).unwrap();
    assert_eq!(found, field(2));
}

#[test]
fn nothing_is_merged_after_a_session_has_ended() {
    for _ in 0..amount(150, 3_000) {
        let has_ended = Arc::new(AtomicBool::new(false));
        let late = Arc::new(Mutex::new(Vec::new()));
        let (ended, noted) = (Arc::clone(&has_ended), Arc::clone(&late));
        let files = Failing::new(Arc::new(Recording::new())).watched(move |operation, name| {
            if ended.load(SeqCst) {
                noted.lock().unwrap().push(format!("{operation:?} {name}"));
            }
        });
        let store = Store::builder().host(1u64 << 20).pin(false).threads(1).block(512u64).chain_max(1);
        let store = store.compression(Compression::Lz4).files(Arc::new(files), None).open().unwrap();
        let mut session = store.session("heat").unwrap();
        for version in 1..=2 {
            session.save(version, &[Part::new("field", &[1u8; 40_000]), Part::one("version", &version)]).unwrap();
        }
        session.finish().unwrap();
        // From here on another process may have the session.
        has_ended.store(true, SeqCst);
        drop(store);
        let late = late.lock().unwrap();
        assert!(late.is_empty(), "{late:?}");
    }
}

#[test]
fn a_merge_in_little_memory_gives_way_to_saves() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder().host(1u64 << 20).pin(false).block(16u64 << 10).chain_max(3);
    let store = store.dir(dir.path().join("near"), None).dir(dir.path().join("far"), None).open().unwrap();
    let mut session = store.session("heat").unwrap();
    let mut state = vec![0u64; 3 << 18];
    for version in 1..=12 {
        let part = (version as usize * 7 % 24) << 15;
        state[part..part + (1 << 18).min((3 << 18) - part)].fill(version);
        // Without a pause, a merge is under way when the next save needs room.
        session.save(version, &[Part::new("state", &state)]).unwrap();
    }
    session.wait(12, Reached::All).unwrap();
    let mut found = vec![0u64; 3 << 18];
    session.restore(12, &mut [PartMut::new("state", &mut found)]).unwrap();
    assert!(found == state);
}
