//! Saves with all ways of tracking: a version has all bytes that its manifest does not exclude.

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

use outcrop::{
    Part, PartMut, Reached, Session, Store, StoreBuilder, Way,
    catalog::Catalog,
    layers::files::DiskFiles,
    store::{Compression, Dedup, RegionOptions},
};
use outcrop_crash::{Failing, Operation};
use outcrop_testing::{
    Registered, alone, amount, child, child_directory, covered, expect_success, layer::Gate, skip, until,
};
use outcrop_track::{FreezeOptions, FreezeWay, freeze};

const WAYS: [Way; 4] = [Way::Chosen, Way::Pages, Way::Protection, Way::Everything];

fn builder(dir: &Path) -> StoreBuilder {
    Store::builder().host("4 MiB").dir(dir, None).pin(false).threads(1)
}

fn excluding(excluded: &[Range<u64>]) -> RegionOptions {
    RegionOptions { excluded: excluded.to_vec(), ..RegionOptions::default() }
}

#[test]
fn bytes_that_are_no_longer_excluded_are_in_the_next_version() {
    for (way, is_certain) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let open = || builder(dir.path()).tracking(way).certain(is_certain).open().unwrap().session("heat").unwrap();
        let mut session = open();
        // Whole blocks, and a part of one.
        session.region("field", excluding(&[8192..16_384, 20_000..20_100]));
        session.save(1, &[Part::new("field", &vec![1u8; 64 << 10])]).unwrap();
        session.finish().unwrap();

        let mut session = open();
        let mut field = vec![7u8; 64 << 10];
        session.restore_latest(&mut [PartMut::new("field", &mut field)]).unwrap().unwrap();
        assert_eq!((field[8191], field[8192], field[20_050]), (1, 7, 7));
        session.save(2, &[Part::new("field", &field)]).unwrap();
        session.wait(2, Reached::All).unwrap();
        let mut found = vec![0u8; 64 << 10];
        session.read(2, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert!(found == field, "{way}, certain: {is_certain}");
        session.finish().unwrap();
        let catalog = Catalog::open(dir.path()).unwrap();
        let version = catalog.version("heat", Some(2)).unwrap();
        let reader = catalog.reader(&version.manifests[&0]).unwrap();
        assert!(reader.read_region("field").unwrap() == field, "{way}, certain: {is_certain}");
    }
}

#[test]
fn what_is_changed_back_after_a_restore_is_saved() {
    for (way, is_certain) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let store = builder(dir.path()).tracking(way).certain(is_certain).open().unwrap();
        let mut session = store.session("heat").unwrap();
        let mut field = vec![0u8; 64 << 10];
        for version in 1..=2 {
            field.fill(version);
            session.save(u64::from(version), &[Part::new("field", &field)]).unwrap();
            session.wait(u64::from(version), Reached::All).unwrap();
        }
        session.restore(1, &mut [PartMut::new("field", &mut field)]).unwrap();
        // As the last version that was saved has it, and not as the one that was restored.
        field[..32 << 10].fill(2);
        session.save(3, &[Part::new("field", &field)]).unwrap();
        session.finish().unwrap();
        let mut found = vec![0u8; 64 << 10];
        let mut session = store.session("heat").unwrap();
        session.restore(3, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert!(found == field, "{way}, certain: {is_certain}");
    }
}

/// A region of a program, as a version has it or as the program has it.
#[derive(Clone, Default)]
struct Region {
    bytes: Vec<u8>,
    excluded: Vec<Range<u64>>,
}

impl Region {
    fn is_excluded(&self, at: usize) -> bool {
        self.excluded.iter().any(|range| range.contains(&(at as u64)))
    }

    /// Checks that `found`, which was filled with 0xee, has all bytes that are not excluded.
    fn check(&self, found: &[u8], what: &str) {
        for (at, byte) in self.bytes.iter().enumerate() {
            let expected = if self.is_excluded(at) { 0xee } else { *byte };
            assert_eq!(found[at], expected, "{what}: byte {at} of {}", self.bytes.len());
        }
    }
}

/// A program that saves, drops, moves, excludes and restores regions at random.
struct Program {
    random: fastrand::Rng,
    dir: tempfile::TempDir,
    settings: (Way, bool, Option<&'static str>, Dedup, Compression),
    session: Option<Session>,
    regions: BTreeMap<&'static str, Region>,
    /// Every version that was saved.
    saved: BTreeMap<u64, BTreeMap<&'static str, Region>>,
    what: String,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let way = WAYS[random.usize(..WAYS.len())];
        let live = random.choice([None, None, Some("4 MiB"), Some("64 KiB")]).unwrap();
        let dedup = random.choice([Dedup::Versions, Dedup::Inside]).unwrap();
        let compression = random.choice([Compression::None, Compression::Lz4]).unwrap();
        let settings = (way, random.bool(), live, dedup, compression);
        let what = format!("seed {seed}, {settings:?}");
        let dir = tempfile::tempdir().unwrap();
        let mut program =
            Self { random, dir, settings, session: None, regions: BTreeMap::new(), saved: BTreeMap::new(), what };
        for name in NAMES {
            let bytes = vec![1; program.some_length()];
            program.regions.insert(name, Region { bytes, excluded: Vec::new() });
        }
        program.open();
        program
    }

    fn some_length(&mut self) -> usize {
        self.random.choice([0, 1, 300, 4096, 10_000, 40_960, 70_001]).unwrap()
    }

    fn open(&mut self) {
        let (way, is_certain, live, dedup, compression) = self.settings;
        let mut builder = builder(self.dir.path()).tracking(way).certain(is_certain).dedup(dedup);
        builder = builder.compression(compression).chain_max(self.random.usize(1..5));
        if let Some(live) = live {
            builder = builder.live(live);
        }
        self.session = Some(builder.open().unwrap().session("heat").unwrap());
        // A new session does not know what was excluded.
        self.regions.values_mut().for_each(|region| region.excluded.clear());
    }

    fn session(&mut self) -> &mut Session {
        self.session.as_mut().unwrap()
    }

    fn step(&mut self) {
        let name = NAMES[self.random.usize(..NAMES.len())];
        match self.random.u32(..100) {
            0..30 => self.write(name),
            30..70 => self.save(),
            70..80 => self.set_options(name),
            // Moves it to another address, or changes its length.
            80..84 => self.region(name).bytes = self.regions[name].bytes.clone(),
            84..88 => {
                let (length, byte) = (self.some_length(), self.random.u8(..));
                self.region(name).bytes = vec![byte; length];
            }
            88..92 => {
                self.session.take().unwrap().finish().unwrap();
                self.open();
                self.restore();
            }
            92..97 => self.restore(),
            _ => {
                let first = self.saved.keys().copied().next_back();
                if let Some(version) = first.filter(|_| self.settings.1 || self.random.bool()) {
                    self.session().go_on_after(version).unwrap();
                }
            }
        }
    }

    fn region(&mut self, name: &str) -> &mut Region {
        self.regions.get_mut(name).unwrap()
    }

    fn some_range(&mut self, bytes: usize) -> Range<usize> {
        let start = self.random.usize(..=bytes);
        let length = self.random.choice([1, 100, 5000, 30_000]).unwrap();
        start..bytes.min(start + length)
    }

    fn write(&mut self, name: &str) {
        let range = self.some_range(self.regions[name].bytes.len());
        let byte = self.random.u8(..);
        self.region(name).bytes[range].fill(byte);
    }

    fn set_options(&mut self, name: &str) {
        let bytes = self.regions[name].bytes.len();
        let ranges: Vec<_> = (0..self.random.usize(..3)).map(|_| self.some_range(bytes)).collect();
        let excluded: Vec<_> = ranges.into_iter().map(|range| range.start as u64..range.end as u64).collect();
        let block_bytes = self.random.choice([None, None, Some(256), Some(8192)]).unwrap();
        let compression = self.random.choice([None, Some(Compression::None), Some(Compression::Lz4)]).unwrap();
        let options = RegionOptions { excluded: excluded.clone(), block_bytes, compression };
        self.session().region(name, options);
        self.region(name).excluded = excluded;
    }

    fn save(&mut self) {
        let version = self.saved.keys().next_back().map_or(1, |newest| newest + 1);
        let mut regions = self.regions.clone();
        regions.retain(|_, _| self.random.u32(..5) > 0);
        let parts: Vec<_> = regions.keys().map(|name| Part::new(name, &self.regions[name].bytes)).collect();
        self.session.as_mut().unwrap().save(version, &parts).unwrap_or_else(|error| panic!("{}: {error}", self.what));
        self.saved.insert(version, regions);
    }

    /// Restores some regions of some version, and continues from there.
    fn restore(&mut self) {
        let Some(version) = self.some_version() else { return };
        let mut regions = self.saved[&version].clone();
        regions.retain(|_, _| self.random.u32(..4) > 0);
        for (name, saved) in &regions {
            if self.regions[name].bytes.len() != saved.bytes.len() {
                self.region(name).bytes = vec![0xdd; saved.bytes.len()];
            }
        }
        let parts = self.regions.iter_mut().filter(|(name, _)| regions.contains_key(*name));
        let mut parts: Vec<_> = parts.map(|(name, region)| PartMut::new(name, &mut region.bytes)).collect();
        self.session.as_mut().unwrap().restore(version, &mut parts).unwrap();
        for (name, saved) in &regions {
            let now = &self.regions[name].bytes;
            let differs = |at: &usize| !saved.is_excluded(*at) && now[*at] != saved.bytes[*at];
            let first = (0..now.len()).find(differs);
            assert_eq!(first, None, "{}: version {version}, region {name}", self.what);
        }
    }

    fn some_version(&mut self) -> Option<u64> {
        let versions: Vec<_> = self.saved.keys().copied().collect();
        self.random.choice(versions)
    }

    fn check(mut self) {
        self.session.take().unwrap().finish().unwrap();
        let what = self.what.clone();
        self.open();
        let saved = std::mem::take(&mut self.saved);
        for (version, regions) in saved {
            let mut found: BTreeMap<_, _> =
                regions.iter().map(|(name, region)| (*name, vec![0xee; region.bytes.len()])).collect();
            let mut parts: Vec<_> = found.iter_mut().map(|(name, bytes)| PartMut::new(name, bytes)).collect();
            let outcome = self.session().read(version, &mut parts);
            outcome.unwrap_or_else(|error| panic!("{what}: version {version}: {error}"));
            for (name, region) in &regions {
                region.check(&found[name], &format!("{what}: version {version}, region {name}"));
            }
        }
    }
}

#[test]
fn every_version_has_what_was_saved_whatever_the_regions_do() {
    let programs = amount(40, 3000);
    for seed in 0..programs {
        let mut program = Program::new(seed);
        (0..60).for_each(|_| program.step());
        program.check();
    }
    covered("programs that change regions and options at random", programs);
}

/// Saves more than the extra memory of live saves while the program keeps writing, and restores it.
fn live_saves_of_much(dir: &Path, way: Way) {
    const BYTES: usize = 24 << 20;
    let store = builder(dir).host("16 MiB").tracking(way).live("2 MiB").open().unwrap();
    let mut session = store.session("heat").unwrap();
    let mut field = vec![0u8; BYTES];
    let fill = |field: &mut [u8], version: u8| {
        field.iter_mut().step_by(4096).for_each(|byte| *byte = version);
        field[version as usize * 100_000..][..50_000].fill(version);
    };
    for version in 1..=6 {
        fill(&mut field, version);
        session.save(version.into(), &[Part::new("field", &field), Part::one("step", &version)]).unwrap();
    }
    session.flush().unwrap();
    let mut expected = vec![0u8; BYTES];
    for version in 1..=6 {
        fill(&mut expected, version);
        session.read(version.into(), &mut [PartMut::new("field", &mut field)]).unwrap();
        assert!(field == expected, "{way}: version {version}");
    }
    session.finish().unwrap();
}

#[test]
fn a_live_save_works_with_less_extra_memory_than_state() {
    for way in WAYS {
        live_saves_of_much(tempfile::tempdir().unwrap().path(), way);
    }
}

#[test]
fn a_live_save_with_less_extra_memory_than_state_waits_for_no_directory() {
    // While other tests register or release memory, nothing can be frozen by write protection.
    if alone("store_track::a_live_save_with_less_extra_memory_than_state_waits_for_no_directory") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut field = vec![1u8; 24 << 20];
    let unlimited = FreezeOptions { way: FreezeWay::Protect, ..FreezeOptions::default() };
    if let Err(error) = freeze(&[&field], unlimited) {
        return skip(error);
    }
    let gate = Gate::closed();
    let passed = Arc::clone(&gate);
    let files = Failing::new(Arc::new(DiskFiles::create(dir.path()).unwrap())).watched(move |operation, name| {
        if operation == Operation::Write && name.contains("pack") {
            passed.pass();
        }
    });
    let store = Store::builder().host("4 MiB").files(Arc::new(files), None).pin(false).live("1 MiB");
    let mut session = store.open().unwrap().session("heat").unwrap();
    // Far more than host memory, and nothing can drain yet.
    let saver = std::thread::spawn(move || {
        session.save(1, &[Part::new("field", &field)]).unwrap();
        (session, field)
    });
    until("the save has returned", || saver.is_finished());
    (session, field) = saver.join().unwrap();
    gate.open();
    field.fill(2);
    session.flush().unwrap();
    session.read(1, &mut [PartMut::new("field", &mut field)]).unwrap();
    assert!(field.iter().all(|byte| *byte == 1));
}

#[test]
fn a_live_save_without_privileges_copies() {
    let dir = tempfile::tempdir().unwrap();
    if let Some(dir) = child_directory() {
        // SAFETY: plain numbers; only this process changes.
        assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
        return live_saves_of_much(&dir.join("store"), Way::Chosen);
    }
    // SAFETY: asks only.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can give up privileges");
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    expect_success(child("store_track::a_live_save_without_privileges_copies", dir.path()));
}

#[test]
fn a_live_save_copies_what_cannot_be_frozen() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = builder(dir.path()).live("64 MiB").open().unwrap().session("heat").unwrap();
    let mut shared = memmap2::MmapOptions::new().len(1 << 20).map_anon().unwrap();
    for version in 1..=3u8 {
        shared.fill(version);
        // Shared memory, and bytes that are in two regions.
        let parts = [Part::new("all", &shared[..]), Part::new("half", &shared[..1 << 19])];
        session.save(version.into(), &parts).unwrap();
        shared.fill(0);
    }
    session.flush().unwrap();
    let overlapping = vec![4u8; 1 << 20];
    for version in 4..=5 {
        let parts = [Part::new("all", &overlapping[..]), Part::new("half", &overlapping[1000..][..1 << 19])];
        session.save(version, &parts).unwrap();
    }
    session.flush().unwrap();
    for version in 1..=5u8 {
        let (mut all, mut half) = (vec![0; 1 << 20], vec![0; 1 << 19]);
        let mut parts = [PartMut::new("all", &mut all), PartMut::new("half", &mut half)];
        session.read(version.into(), &mut parts).unwrap();
        let expected = version.min(4);
        assert!(all.iter().chain(&half).all(|byte| *byte == expected), "version {version}");
    }
}

#[test]
fn what_is_read_into_registered_memory_is_saved() {
    if alone("store_track::what_is_read_into_registered_memory_is_saved") {
        return;
    }
    for (way, is_certain) in [Way::Chosen, Way::Pages].into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::write(&source, vec![9u8; 4096]).unwrap();
        let source = std::fs::File::open(&source).unwrap();
        let mut field = vec![1u8; 8 << 20];
        let mut registered = match Registered::new(&mut field[4 << 20..]) {
            Ok(registered) => registered,
            Err(error) => return skip(format_args!("no memory can be registered with io_uring: {error}")),
        };
        let store = builder(&dir.path().join("store")).host("32 MiB").tracking(way).certain(is_certain);
        let mut session = store.open().unwrap().session("heat").unwrap();
        // Often enough that tracking by pages would be chosen.
        for version in 1..=8 {
            session.save(version, &[Part::new("field", &field)]).unwrap();
            session.flush().unwrap();
        }
        registered.read(&source, &mut field[6 << 20..][..4096]);
        assert_eq!(field[6 << 20], 9);
        session.save(9, &[Part::new("field", &field)]).unwrap();
        let mut found = vec![0u8; 8 << 20];
        session.read(9, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert!(found == field, "{way}, certain: {is_certain}");
        let reason = session.tracking("field").unwrap().reason;
        assert!(reason.contains("VmPin"), "{reason}");
        // Tracking continues when nothing is pinned any more.
        drop(registered);
        until("pages are watched again", || {
            let version = session.versions().last().unwrap() + 1;
            session.save(version, &[Part::new("field", &field)]).unwrap();
            session.flush().unwrap();
            session.tracking("field").unwrap().way == Way::Pages
        });
    }
}

#[test]
fn what_outcrop_registers_itself_does_not_end_tracking() {
    if alone("store_track::what_outcrop_registers_itself_does_not_end_tracking") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tape = outcrop::Tape::builder().host("16 MiB").dir(dir.path().join("tape"), "1 GiB");
    let mut tape = tape.open().unwrap();
    let state = vec![1u8; 4 << 20];
    for step in 0..12 {
        tape.save(step, &state).unwrap();
    }
    let pinned = || outcrop_testing::of_process("status", "VmPin").unwrap();
    if pinned() == 0 {
        return skip("the directory layer registers no memory here");
    }
    let mut session =
        builder(&dir.path().join("store")).tracking(Way::Pages).host("32 MiB").open().unwrap().session("heat").unwrap();
    for version in 1..=3 {
        session.save(version, &[Part::new("state", &state)]).unwrap();
        session.flush().unwrap();
        let stats = session.tracking("state").unwrap();
        assert_eq!(stats.way, Way::Pages, "{} while {} KiB are pinned", stats.reason, pinned());
    }
}
