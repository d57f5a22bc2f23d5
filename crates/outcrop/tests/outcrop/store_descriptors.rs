//! Stores whose versions have far more packs than the process may have open files.

use std::{fs, path::Path};

use outcrop::{
    Part, PartMut, Reached, Session, Store,
    catalog::{Catalog, diff, verify},
};
use outcrop_testing::alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for the process itself, its threads and rings, and the versions in flight.
const DESCRIPTORS: u64 = 200;
/// The size of the state. A version changes a sixth of it.
const COUNT: u64 = 12 << 20;
const STRETCH: u64 = COUNT / 6;

/// A pack has a quarter of host memory.
fn session(dir: &Path, host_bytes: u64) -> Session {
    let store = Store::builder().host(host_bytes).pin(false).block(16_384u64).chain_max(3);
    store.dir(dir.join("near"), None).dir(dir.join("far"), None).open().unwrap().session("heat").unwrap()
}

fn fill(field: &mut [u8], version: u64) {
    let stretch = (version % 6 * STRETCH) as usize;
    for (nth, byte) in field[stretch..stretch + STRETCH as usize].iter_mut().enumerate() {
        *byte = (nth as u64 * version + (nth >> 8) as u64) as u8;
    }
}

fn field(version: u64) -> Vec<u8> {
    let mut field: Vec<u8> = (0..COUNT).map(|nth| (nth ^ (nth >> 9)) as u8).collect();
    (1..=version).for_each(|version| fill(&mut field, version));
    field
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_version_may_have_more_packs_than_files_may_be_open() {
    if alone("store_descriptors::a_version_may_have_more_packs_than_files_may_be_open") {
        return;
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The first version has some fifty packs.
    let mut first = session(dir.path(), 1 << 20);
    let open_at_first = open_descriptors();
    first.save(1, &[Part::new("field", &field(1))]).unwrap();
    first.wait(1, Reached::All).unwrap();
    // Rings and locks. Their number does not depend on what was saved.
    let open = open_descriptors();
    assert!(open < open_at_first + 20, "{open} descriptors are open after a version, {open_at_first} at first");
    first.finish().unwrap();

    // The other versions are increments, which are merged.
    let mut second = session(dir.path(), 8 << 20);
    let mut found = vec![0; COUNT as usize];
    let restored = second.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap().unwrap();
    assert_eq!((restored.version, &*restored.skipped), (1, &[][..]));
    assert!(found == field(1));
    for version in 2..=9 {
        fill(&mut found, version);
        second.save(version, &[Part::new("field", &found)]).unwrap();
        second.wait(version, Reached::All).unwrap();
    }
    assert!(open_descriptors() < open_at_first + 20);
    second.finish().unwrap();

    for place in ["near", "far"] {
        let catalog = Catalog::open(&dir.path().join(place)).unwrap();
        let readers = [1, 9].map(|version| {
            let version = catalog.version("heat", Some(version)).unwrap();
            catalog.reader(&version.manifests[&0]).unwrap()
        });
        let packs = readers[0].manifest().packs.len();
        assert!(packs >= 40, "{place}: {packs} packs are too few for this test");
        for (version, reader) in [1, 9].into_iter().zip(&readers) {
            assert!(reader.read_region("field").unwrap() == field(version), "{place}: version {version}");
        }
        let differences = diff(&readers[0], &readers[1], true, &|_| {}).unwrap();
        assert!(differences[0].blocks_changed > 0);
        assert_eq!(verify(&catalog, None, None, &|_, _| {}).unwrap().findings, []);
    }
}
