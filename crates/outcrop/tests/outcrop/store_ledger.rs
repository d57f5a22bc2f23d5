//! What the commit protocol promises, with real directories: many versions, damaged copies,
//! directories that are missing or swapped, late failures.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use outcrop::{Part, PartMut, Session, Store, StoreBuilder, layers::files::DiskFiles};
use outcrop_crash::Failing;
use outcrop_testing::{alone, amount, covered, say};

const COUNT: usize = 5_000;

fn builder() -> StoreBuilder {
    Store::builder().host("4 MiB").pin(false).threads(1).block(1024)
}

/// Each version changes a piece of its own.
fn field(version: u64) -> Vec<u64> {
    let mut field: Vec<u64> = (0..COUNT as u64).collect();
    change(&mut field, version);
    field
}

fn change(field: &mut [u64], version: u64) {
    let at = (version * 128) as usize % field.len();
    field[0] = version;
    field[at] = version + 1_000_000;
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What one save costs.
#[derive(Debug)]
struct Cost {
    operations: u64,
    open_files: usize,
    per_save: Duration,
}

/// Saves versions up to `end`, and says what the last 100 of them cost.
fn save_until(session: &mut Session, failing: &Failing, versions: std::ops::Range<u64>) -> Cost {
    const LAST: u64 = 100;
    let mut field = field(versions.start);
    let (mut operations, mut start) = (0, Instant::now());
    for version in versions.clone() {
        if version == versions.end - LAST {
            session.flush().unwrap();
            (operations, start) = (failing.calls(None), Instant::now());
        }
        change(&mut field, version);
        session.save(version, &[Part::new("field", &field)]).unwrap();
    }
    session.flush().unwrap();
    let per_save = start.elapsed() / LAST as u32;
    Cost { operations: (failing.calls(None) - operations) / LAST, open_files: open_files(), per_save }
}

/// With all versions kept, a save asks as little of the file system after thousands of versions as
/// after a few hundred, and has as few files open.
#[test]
fn a_save_costs_the_same_however_many_versions_there_are() {
    if alone("store_ledger::a_save_costs_the_same_however_many_versions_there_are") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(Arc::new(DiskFiles::create(dir.path()).unwrap()));
    let open = || {
        let store = builder().files(Arc::new(failing.clone()), None).open().unwrap();
        store.session("heat").unwrap()
    };
    let mut session = open();
    let mut next = 0;
    let mut costs = Vec::new();
    for end in [300, 1_000, 10_000, 100_000] {
        let end = end.min(amount(2_000, 100_000) as u64);
        if end > next {
            let cost = save_until(&mut session, &failing, next..end);
            let Cost { operations, open_files, per_save } = cost;
            say(format_args!(
                "{end} versions: {per_save:?} and {operations} operations a save, {open_files} open files"
            ));
            costs.push(cost);
            next = end;
        }
    }
    let (first, last) = (&costs[0], &costs[costs.len() - 1]);
    assert!(last.operations <= first.operations * 3 / 2, "{costs:?}");
    assert!(last.open_files <= first.open_files + 10, "{costs:?}");
    session.finish().unwrap();
    let start = Instant::now();
    let mut session = open();
    say(format_args!("opened with {next} versions in {:?}", start.elapsed()));
    assert_eq!(session.versions().len() as u64, next);
    for version in [next / 3, next - 1] {
        let mut found = vec![0; COUNT];
        session.restore(version, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert_eq!(found[0], version);
    }
    covered("versions of one session", next as usize);
}
