//! The commit protocol with real directories: many versions, damaged copies, missing or swapped
//! directories, late failures.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use outcrop::{
    ErrorKind, Part, PartMut, Reached, Retention, Session, Store, StoreBuilder,
    catalog::Catalog,
    layers::files::DiskFiles,
    store::{Ranks, SharedDirectory},
};
use outcrop_crash::{Errno, Failing, Fault, Operation, Options, Recording};
use outcrop_testing::{alone, amount, covered, say, until};

const COUNT: usize = 5_000;

fn builder() -> StoreBuilder {
    Store::builder().host("4 MiB").pin(false).threads(1).block(1024)
}

/// Each version changes another piece.
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
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The cost of a save.
#[derive(Debug)]
struct Cost {
    operations: u64,
    open_files: usize,
    per_save: Duration,
}

/// Saves these versions. Returns the cost of the last 100 of them.
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

/// With all versions kept, a save needs as few file operations after thousands of versions as after
/// a few hundred, and has as few files open.
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
    for end in [200, 600, 1_000, 10_000, 100_000] {
        let end = end.min(amount(600, 100_000) as u64);
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

const NEAR_AND_FAR: [&str; 2] = ["near", "far"];

fn two_layers(dir: &Path) -> Session {
    let [near, far] = NEAR_AND_FAR.map(|layer| dir.join(layer));
    builder().dir(near, None).dir(far, None).open().unwrap().session("heat").unwrap()
}

fn save(session: &mut Session, version: u64) {
    session.save(version, &[Part::new("field", &field(version))]).unwrap();
}

/// Restores the newest version. Returns its number, and how many copies were passed over.
fn restore(session: &mut Session) -> (u64, usize) {
    let mut found = vec![0; COUNT];
    let restored = session.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap().unwrap();
    assert_eq!(found, field(restored.version));
    (restored.version, restored.skipped.len())
}

fn pack(dir: &Path, layer: &str, number: u64) -> PathBuf {
    dir.join(format!("{layer}/heat/rank-00000/pack-{number:020}"))
}

/// Checks that each layer alone has this version.
fn check_alone(dir: &Path, version: u64, what: &str) {
    for layer in NEAR_AND_FAR {
        let mut session = builder().dir(dir.join(layer), None).open().unwrap().session("heat").unwrap();
        let mut found = vec![0; COUNT];
        let restored = session.restore(version, &mut [PartMut::new("field", &mut found)]);
        restored.unwrap_or_else(|error| panic!("{what}: {layer} alone: {error}"));
        assert_eq!(found, field(version), "{what}: {layer}");
    }
}

/// A name, and a function that damages a file.
type Damage = (&'static str, fn(&Path));

/// The kinds of damage to a pack of one layer.
const DAMAGES: [Damage; 4] = [
    ("a bit of a block", |path| flip(path, 4096 + 20 * 1024)),
    ("a bit of the header", |path| flip(path, 9)),
    ("cut off", |path| {
        let pack = fs::File::options().write(true).open(path).unwrap();
        pack.set_len(pack.metadata().unwrap().len() - 1024).unwrap();
    }),
    ("missing", |path| fs::remove_file(path).unwrap()),
];

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn nothing_is_built_upon_what_is_damaged_on_one_layer() {
    for (what, damage) in DAMAGES {
        for layer in NEAR_AND_FAR {
            if (what, layer) == ("a bit of a block", "far") {
                // Nobody reads it while the copy on the first layer is undamaged.
                continue;
            }
            let what = format!("{what}, {layer}");
            let dir = tempfile::tempdir().unwrap();
            let mut session = two_layers(dir.path());
            (1..=2).for_each(|version| save(&mut session, version));
            session.finish().unwrap();
            damage(&pack(dir.path(), layer, 0));
            let mut session = two_layers(dir.path());
            assert_eq!(restore(&mut session), (2, usize::from(layer == "near")), "{what}");
            save(&mut session, 3);
            session.wait(3, Reached::All).unwrap();
            session.finish().unwrap();
            check_alone(dir.path(), 3, &what);
        }
    }
}

#[test]
fn what_is_damaged_while_a_session_is_open_is_not_built_upon() {
    for (what, damage) in &DAMAGES[1..] {
        let dir = tempfile::tempdir().unwrap();
        let mut session = two_layers(dir.path());
        (1..=2).for_each(|version| save(&mut session, version));
        session.flush().unwrap();
        damage(&pack(dir.path(), "far", 0));
        assert_eq!(restore(&mut session).0, 2, "{what}: from host memory");
        save(&mut session, 3);
        session.wait(3, Reached::All).unwrap();
        drop(session);
        check_alone(dir.path(), 3, what);
    }
}

#[test]
fn what_somebody_cuts_or_removes_while_a_session_is_open_is_not_built_upon() {
    for (what, damage) in &DAMAGES[2..] {
        for layer in NEAR_AND_FAR {
            let what = format!("{what}, {layer}");
            let dir = tempfile::tempdir().unwrap();
            let mut session = two_layers(dir.path());
            (1..=2).for_each(|version| save(&mut session, version));
            session.flush().unwrap();
            damage(&pack(dir.path(), layer, 0));
            save(&mut session, 3);
            // It can be read where nothing is damaged, and is not said to be where it cannot.
            let error = session.flush().unwrap_err().to_string();
            assert!(error.contains("version 3") && error.contains("pack-"), "{what}: {error}");
            let is_near = layer == "near";
            assert_eq!(session.has_reached(3, Reached::Layer(1)).is_err(), is_near, "{what}");
            assert_eq!(session.has_reached(3, Reached::Layer(2)).is_err(), !is_near, "{what}");
            // The next one needs none of it.
            save(&mut session, 4);
            session.wait(4, Reached::All).unwrap();
            drop(session);
            check_alone(dir.path(), 4, &what);
        }
    }
}

#[test]
fn what_the_next_version_builds_upon_stays_while_a_later_one_is_written() {
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    let dir = tempfile::tempdir().unwrap();
    let store = builder().keep(keep).dir(dir.path(), None).open().unwrap();
    for round in 0..amount(8, 2_000) {
        let mut session = store.session(&format!("heat-{round}")).unwrap();
        save(&mut session, 1);
        session.wait(1, Reached::All).unwrap();
        // The next one is a full one, and replaces the first as soon as it is durable.
        session.rewind(Some(1)).unwrap();
        save(&mut session, 2);
        // Unless it has replaced it by now.
        if session.go_on_after(1).is_ok() {
            session.wait(2, Reached::All).unwrap();
            save(&mut session, 3);
            session.wait(3, Reached::All).unwrap();
            assert_eq!(restore(&mut session), (3, 0));
        }
        session.finish().unwrap();
        fs::remove_dir_all(dir.path().join(format!("heat-{round}"))).unwrap();
    }
}

#[test]
fn damage_that_a_look_finds_is_not_built_upon() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = two_layers(dir.path());
    (1..=2).for_each(|version| save(&mut session, version));
    session.finish().unwrap();
    let mut session = two_layers(dir.path());
    session.go_on_after(2).unwrap();
    flip(&pack(dir.path(), "near", 0), 4096 + 20 * 1024);
    let mut found = vec![0; COUNT];
    session.read(1, &mut [PartMut::new("field", &mut found)]).unwrap();
    assert_eq!(found, field(1));
    save(&mut session, 3);
    session.wait(3, Reached::All).unwrap();
    drop(session);
    check_alone(dir.path(), 3, "read");
}

/// Runs something on all ranks at once. Rank `n` has the disk of node `nodes[n]`.
fn on_nodes<T: Send>(dir: &Path, nodes: &[usize], program: impl Fn(u32, &mut Session) -> T + Sync) -> Vec<T> {
    let (program, count) = (&program, nodes.len() as u32);
    thread::scope(|scope| {
        let start = |(rank, node): (usize, &usize)| {
            let disk = dir.join(format!("node-{node}"));
            scope.spawn(move || {
                let patience = Duration::from_secs(30);
                let ranks = SharedDirectory::open_with(dir.join("talk"), rank as u32, count, patience).unwrap();
                let rank = ranks.rank();
                let store = builder().ranks(ranks).dir(disk, None).open().unwrap();
                let mut session = store.session("heat").unwrap();
                program(rank, &mut session)
            })
        };
        let ranks: Vec<_> = nodes.iter().enumerate().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn save_and_wait(session: &mut Session, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        save(session, version);
        session.wait(version, Reached::All).unwrap();
    }
}

/// The newest version, if there is one.
fn newest(session: &mut Session) -> Option<u64> {
    let mut found = vec![0; COUNT];
    let restored = session.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap()?;
    assert_eq!(found, field(restored.version));
    Some(restored.version)
}

/// The number of manifests of a rank on the disk of a node.
fn manifests(dir: &Path, node: usize, rank: u32) -> usize {
    let names = fs::read_dir(dir.join(format!("node-{node}/heat/rank-{rank:05}"))).unwrap();
    names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("version-")).count()
}

#[test]
fn a_directory_that_is_mounted_late_costs_no_version() {
    let dir = tempfile::tempdir().unwrap();
    on_nodes(dir.path(), &[0, 1], |_, session| save_and_wait(session, 1..=3));
    let (disk, away) = (dir.path().join("node-1"), dir.path().join("away"));
    fs::rename(&disk, &away).unwrap();
    // Nothing can be restored, the old numbers are refused, and each rank's save reports that at
    // once.
    let saved = on_nodes(dir.path(), &[0, 1], |_, session| {
        assert_eq!(newest(session), None);
        session.save(2, &[Part::new("field", &field(2))]).unwrap_err()
    });
    for error in saved {
        assert!(error.to_string().contains("directory with its part seems to be missing"), "{error}");
    }
    assert_eq!(manifests(dir.path(), 0, 0), 3);
    fs::remove_dir_all(&disk).unwrap();
    fs::rename(&away, &disk).unwrap();
    let found = on_nodes(dir.path(), &[0, 1], |_, session| {
        let found = newest(session);
        save_and_wait(session, 4..=5);
        found
    });
    assert_eq!(found, [Some(3); 2]);
    assert_eq!([manifests(dir.path(), 0, 0), manifests(dir.path(), 1, 1)], [5, 5]);
}

#[test]
fn ranks_that_find_each_others_disks_lose_no_version() {
    let dir = tempfile::tempdir().unwrap();
    on_nodes(dir.path(), &[0, 1, 2], |_, session| save_and_wait(session, 1..=3));
    // Only rank 2 finds its own disk.
    on_nodes(dir.path(), &[1, 0, 2], |_, session| {
        assert_eq!(newest(session), None);
        assert!(session.save(3, &[Part::new("field", &field(3))]).is_err());
    });
    // No rank finds its own disk, and what is saved now is another series.
    on_nodes(dir.path(), &[1, 2, 0], |_, session| {
        assert_eq!(newest(session), None);
        save_and_wait(session, 1..=2);
    });
    let found = on_nodes(dir.path(), &[0, 1, 2], |_, session| {
        let found = newest(session);
        save_and_wait(session, 4..=4);
        found
    });
    assert_eq!(found, [Some(3); 3]);
    assert_eq!(on_nodes(dir.path(), &[1, 2, 0], |_, session| newest(session)), [Some(2); 3]);
    assert_eq!(on_nodes(dir.path(), &[0, 1, 2], |_, session| newest(session)), [Some(4); 3]);
}

#[test]
fn a_manifest_that_cannot_be_read_for_a_moment_costs_no_version() {
    let dir = tempfile::tempdir().unwrap();
    on_nodes(dir.path(), &[0, 1], |_, session| save_and_wait(session, 1..=3));
    let manifest = |version: u64| dir.path().join(format!("node-1/heat/rank-00001/version-{version:020}"));
    let hidden = [2, 3].map(|version| (manifest(version), fs::read(manifest(version)).unwrap()));
    hidden.iter().for_each(|(path, _)| fs::write(path, "rubbish").unwrap());
    on_nodes(dir.path(), &[0, 1], |_, session| {
        assert_eq!(newest(session), Some(1));
        assert!(session.save(3, &[Part::new("field", &field(3))]).is_err(), "it may be whole again");
        save_and_wait(session, 4..=6);
    });
    hidden.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    let found = on_nodes(dir.path(), &[0, 1], |_, session| session.versions());
    assert_eq!(found, [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]]);

    // A rewind also removes manifests that cannot be read.
    fs::write(manifest(6), "rubbish").unwrap();
    on_nodes(dir.path(), &[0, 1], |_, session| session.rewind(Some(5)).unwrap());
    assert!(!manifest(6).exists());
}

#[test]
fn what_only_some_ranks_have_can_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    on_nodes(dir.path(), &[0, 1], |_, session| save_and_wait(session, 1..=3));
    fs::remove_dir_all(dir.path().join("node-1")).unwrap();
    on_nodes(dir.path(), &[0, 1], |_, session| {
        session.forget_incomplete().unwrap();
        save_and_wait(session, 2..=2);
    });
    assert_eq!([manifests(dir.path(), 0, 0), manifests(dir.path(), 1, 1)], [1, 1]);
    let packs = fs::read_dir(dir.path().join("node-0/heat/rank-00000")).unwrap();
    let packs = packs.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("pack-"));
    assert_eq!(packs.count(), 1, "nothing stays for versions that were forgotten");
    assert_eq!(on_nodes(dir.path(), &[0, 1], |_, session| newest(session)), [Some(2); 2]);
}

/// A gate that blocks until it is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        drop(self.opened.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Opens a gate when the test ends in any way, so that nothing waits for it.
struct Opener(Arc<Gate>);

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A session whose second layer takes no pack until the gate is open, and whose first layer keeps
/// only the last version. Two versions have been saved, and the first layer has dropped one.
fn held_up(dir: &Path) -> (Session, Failing, Opener) {
    let gate = Opener(Arc::default());
    let far = Failing::new(Arc::new(DiskFiles::create(&dir.join("far")).unwrap()));
    let waits = Arc::clone(&gate.0);
    let watched = far.clone().watched(move |operation, name| {
        if operation == Operation::Create && name.contains("pack-") {
            waits.pass();
        }
    });
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    let store = builder().dir(dir.join("near"), None).files(Arc::new(watched), None).keep_on(1, keep).in_flight(2);
    let mut session = store.open().unwrap().session("heat").unwrap();
    (1..=2).for_each(|version| save(&mut session, version));
    let first = dir.join("near/heat/rank-00000/version-00000000000000000001");
    until("version 1 is dropped from the first layer", || {
        session.wait(2, Reached::Layer(1)).unwrap();
        !first.exists()
    });
    (session, far, gate)
}

#[test]
fn a_version_that_one_layer_has_dropped_is_known_until_it_is_on_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mut session, _, gate) = held_up(dir.path());
    assert!(!session.has_reached(1, Reached::Layer(2)).unwrap());
    // Two versions are in flight, so a third save waits.
    let (is_opened, is_saved) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let patience = Instant::now();
            while !is_saved.load(SeqCst) && patience.elapsed() < Duration::from_millis(300) {
                thread::sleep(Duration::from_millis(5));
            }
            is_opened.store(true, SeqCst);
            gate.0.open();
        });
        save(&mut session, 3);
        let was_opened = is_opened.load(SeqCst);
        is_saved.store(true, SeqCst);
        assert!(was_opened, "three versions are on their way");
    });
    session.wait(1, Reached::Layer(2)).unwrap();
    session.wait(3, Reached::All).unwrap();
    session.finish().unwrap();
}

#[test]
fn a_version_that_one_layer_has_dropped_may_fail_on_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (mut session, far, gate) = held_up(dir.path());
    far.inject(Fault { of: Some(Operation::Write), ..Fault::new(Errno::IO) });
    gate.0.open();
    let error = session.save(3, &[Part::new("field", &field(3))]).unwrap_err();
    assert!(error.to_string().contains("version 1") && error.to_string().contains("far"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Storage);
}

#[test]
fn a_version_whose_name_could_not_be_synced_is_there_or_not() {
    let mut images = 0;
    // For each version, the directory is synced before and after the manifest gets its name.
    for after in 0..2 {
        let recording = Recording::new();
        let failing = Failing::over(recording.clone());
        let keep = Retention { keep_last: Some(1), ..Retention::default() };
        let store = builder().files(Arc::new(failing.clone()), None).keep(keep).open().unwrap();
        let mut session = store.session("heat").unwrap();
        for version in 1..=4 {
            if version == 2 {
                failing.inject(Fault { of: Some(Operation::SyncDir), after, ..Fault::new(Errno::IO) });
            }
            save(&mut session, version);
            let result = session.wait(version, Reached::All);
            assert_eq!(result.is_err(), version == 2, "{result:?}");
            if result.is_ok() {
                recording.mark(version.to_string());
            }
        }
        session.finish().unwrap();
        let options = Options { subset_operations_max: 6, samples: 4, seed: 1 };
        for image in recording.log().images(&options) {
            let Some(durable) = image.marks().last() else { continue };
            let catalog = Catalog::new(Arc::new(Recording::from_tree(image.tree().clone())));
            let mut newest = 0;
            for version in catalog.versions("heat").unwrap() {
                let read = catalog.reader(&version.manifests[&0]).and_then(|reader| reader.read_region("field"));
                let bytes: Vec<u8> = field(version.version).iter().flat_map(|value| value.to_le_bytes()).collect();
                let id = image.id();
                assert!(read.as_ref().is_ok_and(|read| *read == bytes), "{id}, version {}: {read:?}", version.version);
                newest = version.version;
            }
            assert!(newest >= durable.parse().unwrap(), "{}: {newest} is older than {durable}", image.id());
            images += 1;
        }
    }
    assert!(images > 100, "{images}");
}

#[test]
fn a_version_that_could_not_be_packed_is_not_in_host_memory() {
    let dir = tempfile::tempdir().unwrap();
    // One block is larger than host memory, which the packer detects.
    let store = Store::builder().host("256 KiB").live("16 MiB").block("1 MiB").pin(false).dir(dir.path(), None);
    let mut session = store.open().unwrap().session("heat").unwrap();
    session.save(1, &[Part::new("field", &vec![1u8; 2 << 20])]).unwrap();
    let error = session.wait(1, Reached::Host).unwrap_err();
    assert_eq!(error.kind(), session.wait(1, Reached::All).unwrap_err().kind());
    assert!(session.has_reached(1, Reached::Host).is_err());
}

#[test]
fn the_last_number_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = builder().dir(dir.path(), None).open().unwrap().session("heat").unwrap();
    let error = session.save(u64::MAX, &[Part::new("field", &[1u8])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    session.save(u64::MAX - 1, &[Part::new("field", &[1u8])]).unwrap();
    session.finish().unwrap();
}

#[test]
fn what_is_said_of_a_failed_attempt_is_not_about_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder().host("256 KiB").block("1 MiB").pin(false).dir(dir.path(), None);
    let mut session = store.open().unwrap().session("heat").unwrap();
    let (large, small) = (vec![1u8; 2 << 20], vec![1u8; 1000]);
    for version in 1..=30 {
        session.save(version, &[Part::new("field", &large)]).unwrap_err();
        session.save(version, &[Part::new("field", &small)]).unwrap();
        session.wait(version, Reached::All).unwrap();
    }
    session.finish().unwrap();
}

#[test]
fn a_version_that_failed_everywhere_may_be_saved_again() {
    let faults = [Operation::Create, Operation::Write, Operation::Sync, Operation::Rename, Operation::SyncDir];
    for (layers, of) in (1..=2).flat_map(|layers| faults.map(|of| (layers, of))) {
        let dir = tempfile::tempdir().unwrap();
        let place = |layer: usize| dir.path().join(layer.to_string());
        let failing: Vec<Failing> =
            (0..layers).map(|layer| Failing::new(Arc::new(DiskFiles::create(&place(layer)).unwrap()))).collect();
        let store = failing.iter().fold(builder(), |store, files| store.files(Arc::new(files.clone()), None));
        let mut session = store.open().unwrap().session("heat").unwrap();
        session.save(1, &[Part::new("field", &field(1))]).unwrap();
        session.wait(1, Reached::All).unwrap();
        let fault = Fault { of: Some(of), is_lasting: true, ..Fault::new(Errno::IO) };
        failing.iter().for_each(|files| files.inject(fault));
        session.save(2, &[Part::new("field", &field(7))]).unwrap();
        // It has failed, and the program does not know yet. Then it does.
        until("it has failed", || session.versions() == [1]);
        assert_eq!(session.newest_number(), Some(1));
        // It is gone from host memory too, and nobody waits for it.
        assert_eq!(session.regions(2).unwrap_err().kind(), ErrorKind::Missing, "{of:?}");
        for _ in 0..layers {
            let error = session.save(2, &[Part::new("field", &field(8))]).unwrap_err();
            assert_eq!((error.kind(), error.failed_version()), (ErrorKind::Storage, Some(2)), "{of:?}: {error}");
        }
        session.save(2, &[Part::new("field", &field(9))]).unwrap();
        session.flush().unwrap_err();
        failing.iter().for_each(Failing::heal);
        session.save(2, &[Part::new("field", &field(2))]).unwrap_or_else(|error| panic!("{layers} {of:?}: {error}"));
        session.wait(2, Reached::All).unwrap();
        assert_eq!(session.save(2, &[Part::new("field", &field(3))]).unwrap_err().kind(), ErrorKind::Exists);
        session.finish().unwrap();
        for layer in 0..layers {
            let mut session = builder().dir(place(layer), None).open().unwrap().session("heat").unwrap();
            assert_eq!(session.versions(), [1, 2]);
            for version in 1..=2 {
                let mut found = vec![0; COUNT];
                session.read(version, &mut [PartMut::new("field", &mut found)]).unwrap();
                assert_eq!(found, field(version), "{of:?}");
            }
        }
    }
}
