//! Versions that survive: saved, restored, kept and dropped.

use std::path::Path;

use outcrop::{
    ErrorKind, HashKind, Part, PartMut, Reached, Retention, Session, Store, StoreBuilder, Way,
    store::{Compression, Dedup, RegionOptions},
};

const MIB: u64 = 1 << 20;

fn builder(dir: &Path) -> StoreBuilder {
    Store::builder().host(8 * MIB).dir(dir.join("near"), None).dir(dir.join("far"), None).pin(false)
}

fn session(builder: StoreBuilder) -> Session {
    builder.open().unwrap().session("heat").unwrap()
}

fn field(step: u64) -> Vec<f64> {
    let mut field: Vec<f64> = (0..50_000).map(f64::from).collect();
    (0..=step).for_each(|step| field[(step * 977 % 50_000) as usize] = -(step as f64) - 1.0);
    field
}

fn save(session: &mut Session, version: u64) {
    session.save(version, &[Part::new("field", &field(version)), Part::one("step", &version)]).unwrap();
}

fn restore(session: &mut Session, version: Option<u64>) -> Option<u64> {
    let mut found = vec![0f64; 50_000];
    let mut step = u64::MAX;
    let mut parts = [PartMut::new("field", &mut found), PartMut::one("step", &mut step)];
    let restored = match version {
        Some(version) => Some(session.restore(version, &mut parts).unwrap()),
        None => session.restore_latest(&mut parts).unwrap(),
    }?;
    assert!(restored.skipped.is_empty(), "{restored:?}");
    assert_eq!(step, restored.version);
    assert_eq!(found, field(step));
    Some(step)
}

#[test]
fn the_newest_version_comes_back_in_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(builder(dir.path()));
    assert_eq!(restore(&mut one, None), None);
    (0..20).for_each(|version| save(&mut one, version));
    one.wait(19, Reached::All).unwrap();
    assert_eq!(restore(&mut one, None), Some(19), "from host memory");
    one.finish().unwrap();
    let mut two = session(builder(dir.path()));
    assert_eq!(restore(&mut two, None), Some(19));
    for version in [0, 3, 12, 18] {
        assert_eq!(restore(&mut two, Some(version)), Some(version));
    }
    assert_eq!(restore(&mut two, None), Some(19));
    (20..25).for_each(|version| save(&mut two, version));
    two.finish().unwrap();
    let mut three = session(builder(dir.path()));
    assert_eq!(restore(&mut three, None), Some(24));
    assert_eq!(three.versions(), (0..25).collect::<Vec<_>>());
}

#[test]
fn only_changed_blocks_are_written() {
    let dir = tempfile::tempdir().unwrap();
    for way in [Way::Chosen, Way::Pages, Way::Everything] {
        let store = builder(&dir.path().join(way.to_string())).tracking(way).open().unwrap();
        let mut session = store.session("heat").unwrap();
        let mut values = field(0);
        session.save(0, &[Part::new("field", &values)]).unwrap();
        session.wait(0, Reached::All).unwrap();
        let full = store.stats().layers[1].written_bytes;
        assert!(full > 400_000, "{full}");
        values[777] += 1.0;
        values[40_000] += 1.0;
        session.save(1, &[Part::new("field", &values)]).unwrap();
        session.wait(1, Reached::All).unwrap();
        let added = store.stats().layers[1].written_bytes - full;
        assert!(added <= 4 * 4096, "{way}: {added} bytes for two changed blocks, a header and an index");
        session.save(2, &[Part::new("field", &values)]).unwrap();
        session.wait(2, Reached::All).unwrap();
        assert_eq!(store.stats().layers[1].written_bytes - full, added, "nothing has changed");
        let mut found = vec![0f64; values.len()];
        session.restore(2, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert_eq!(found, values);
    }
}
