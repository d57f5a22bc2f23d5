//! What a catalog lists: sessions and versions, complete or not, and any other files in a
//! directory.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use outcrop_catalog::{Catalog, Error, FindingKind, Removal, Version, diff, lock_session, verify};
use outcrop_format::{Blocks, Manifest, RunId, pack_name, version_name};
use outcrop_layers::files::{DiskFiles, File, FileLock, Files};
use outcrop_region::Shape;

use crate::fixture::{MemoryFiles, Region, Writer, pattern};

fn field(seed: u64) -> [Region; 1] {
    [Region::new("field", 256, pattern(seed, 2000))]
}

fn open(directory: &Path) -> Catalog {
    Catalog::open(directory).unwrap()
}

fn damage_of(catalog: &Catalog) -> Vec<String> {
    let findings = verify(catalog, None, None, &|_, _| {}).unwrap().findings;
    let damaged = findings.into_iter().filter(|finding| finding.kind == FindingKind::Damage);
    damaged.map(|finding| finding.file).collect()
}

#[test]
fn sessions_and_versions_are_listed_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    assert_eq!(open(path).sessions().unwrap(), Vec::<String>::new());
    for session in ["heat", "cold"] {
        let mut writer = Writer::new(path, session, 2);
        for version in [3, 1, 20] {
            for rank in 0..2 {
                writer.save(rank, version, &field(version + u64::from(rank)));
            }
        }
    }
    fs::create_dir(path.join("other")).unwrap();
    fs::create_dir_all(path.join(".hidden/rank-00000")).unwrap();
    fs::write(path.join("note"), "").unwrap();
    let catalog = open(path);
    assert_eq!(catalog.sessions().unwrap(), ["cold", "heat"]);
    let versions = catalog.versions("heat").unwrap();
    assert_eq!(versions.iter().map(|version| version.version).collect::<Vec<_>>(), [1, 3, 20]);
    let newest = catalog.version("heat", None).unwrap();
    assert_eq!((newest.version, newest.ranks, newest.run), (20, 2, Some(RunId(7))));
    assert!(versions.iter().all(Version::is_complete));
    assert_eq!(newest.full_bytes(), 4000);
    assert!(newest.stored_bytes() >= 2 * 8192);
    let saved: Vec<_> = newest.manifests.values().map(|manifest| manifest.saved_at_unix_ns).collect();
    assert_eq!(newest.saved_at_unix_ns(), saved[1].max(saved[0]));
}

#[test]
fn a_version_counts_only_when_all_ranks_of_one_run_have_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 2);
    for version in 1..=3 {
        writer.save(0, version, &field(version));
        if version < 3 {
            writer.save(1, version, &field(version));
        }
    }
    // Another run saves version 2 again, and is killed after its first rank.
    writer.run = RunId(8);
    writer.start_anew();
    writer.save(0, 2, &field(9));
    let catalog = open(directory.path());
    let versions = catalog.versions("heat").unwrap();
    let seen: Vec<_> =
        versions.iter().map(|v| (v.version, v.run.unwrap().0, v.manifests.len(), v.is_complete())).collect();
    assert_eq!(seen, [(1, 7, 2, true), (2, 7, 1, false), (2, 8, 1, false), (3, 7, 1, false)]);
    assert_eq!(catalog.version("heat", None).unwrap().version, 1);
    let findings = verify(&catalog, None, None, &|_, _| {}).unwrap().findings;
    let incomplete = findings.iter().filter(|finding| finding.kind == FindingKind::Incomplete).count();
    assert_eq!(incomplete, 3, "{findings:?}");
    assert!(findings.iter().all(|finding| finding.kind != FindingKind::Damage), "{findings:?}");
}

#[test]
fn a_damaged_manifest_is_reported_and_hides_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 2);
    for version in 1..=3 {
        for rank in 0..2 {
            writer.save(rank, version, &field(version));
        }
    }
    fs::write(writer.rank_dir(1).join(version_name(2)), "nonsense").unwrap();
    fs::write(writer.rank_dir(0).join(version_name(9)), "").unwrap();
    let catalog = open(directory.path());
    let versions = catalog.versions("heat").unwrap();
    let seen: Vec<_> = versions.iter().map(|v| (v.version, v.is_complete(), v.damaged.len())).collect();
    assert_eq!(seen, [(1, true, 0), (2, false, 1), (3, true, 0), (9, false, 1)]);
    assert!(versions[1].damaged[&1].is_damage());
    let found = damage_of(&catalog);
    assert_eq!(
        found,
        [format!("heat/rank-00000/{}", version_name(9)), format!("heat/rank-00001/{}", version_name(2)),]
    );
    let error = Removal::plan(&catalog, "heat", &[1]).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("nothing was removed"), "{error}");
}

#[test]
fn what_a_crash_leaves_is_garbage_and_what_is_strange_is_foreign() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 1, &field(1));
    let rank = writer.rank_dir(0);
    fs::write(rank.join(pack_name(50)), "half a pack").unwrap();
    fs::write(rank.join(format!("{}.draft", version_name(2))), "half a manifest").unwrap();
    fs::write(rank.join("notes.txt"), "").unwrap();
    fs::write(directory.path().join("heat/rank-00001"), "not a directory").unwrap();
    fs::create_dir(directory.path().join("heat/plots")).unwrap();
    let catalog = open(directory.path());
    let findings = verify(&catalog, None, None, &|_, _| {}).unwrap().findings;
    let seen: Vec<_> =
        findings.iter().map(|finding| (finding.kind, finding.file.rsplit('/').next().unwrap())).collect();
    assert_eq!(
        seen,
        [
            (FindingKind::Foreign, "plots"),
            (FindingKind::Foreign, "notes.txt"),
            (FindingKind::Garbage, &*pack_name(50)),
            (FindingKind::Garbage, &*format!("{}.draft", version_name(2))),
            (FindingKind::Foreign, "rank-00001"),
        ]
    );
    assert_eq!(catalog.version("heat", None).unwrap().version, 1);
    let usage = catalog.usage("heat").unwrap();
    let garbage_bytes = ("half a pack".len() + "half a manifest".len()) as u64;
    assert_eq!((usage.manifests, usage.garbage, usage.garbage_bytes), (1, 2, garbage_bytes));
}

#[test]
fn pipes_links_and_directories_in_place_of_files_are_damage_and_nobody_waits_for_them() {
    for name in [pack_name(1), version_name(1)] {
        for kind in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            let mut writer = Writer::new(directory.path(), "heat", 1);
            writer.save(0, 1, &field(1));
            writer.save(0, 2, &field(1));
            let path = writer.rank_dir(0).join(&name);
            let elsewhere = directory.path().join("elsewhere");
            fs::rename(&path, &elsewhere).unwrap();
            match kind {
                0 => rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
                1 => symlink(&elsewhere, &path).unwrap(),
                _ => fs::create_dir(&path).unwrap(),
            }
            let catalog = open(directory.path());
            assert_eq!(damage_of(&catalog), [format!("heat/rank-00000/{name}")], "kind {kind}");
            let newest = catalog.version("heat", None).unwrap();
            assert_eq!(newest.version, 2);
            let read = catalog.reader(&newest.manifests[&0]).and_then(|reader| reader.read_region("field"));
            match name == version_name(1) {
                true => assert!(read.unwrap() == field(1)[0].bytes),
                false => assert!(read.unwrap_err().is_damage()),
            }
        }
    }
}

#[test]
fn a_pipe_in_place_of_a_lock_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 1, &field(1));
    let path = writer.rank_dir(0).join("lock");
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(lock_session(&open(directory.path()), "heat").is_err());
    fs::remove_file(&path).unwrap();
    assert_eq!(lock_session(&open(directory.path()), "heat").unwrap().len(), 1, "a lock that is missing is made");
}

#[test]
fn files_that_promise_too_much_are_refused_without_memory_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 1, &field(1));
    for name in [pack_name(1), version_name(1)] {
        let path = writer.rank_dir(0).join(name);
        let before = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(1 << 42).unwrap();
        let catalog = open(directory.path());
        assert_eq!(damage_of(&catalog).len(), 1);
        drop(file);
        fs::write(&path, before).unwrap();
    }
    // A manifest with valid checksums that lists packs which do not exist, and many more ranks than
    // there are.
    let path = writer.rank_dir(0).join(version_name(1));
    let mut manifest = Manifest::decode(&fs::read(&path).unwrap()).unwrap();
    manifest.ranks = 1 << 24;
    manifest.packs[0].file_bytes = 1 << 50;
    fs::write(&path, manifest.encode().unwrap()).unwrap();
    let catalog = open(directory.path());
    assert!(!catalog.versions("heat").unwrap()[0].is_complete());
    assert_eq!(damage_of(&catalog).len(), 1);
    // A manifest without packs, of a region with the largest possible size.
    let path = writer.rank_dir(0).join(version_name(2));
    manifest = Manifest { version: 2, ranks: 1, packs: Vec::new(), ..manifest };
    manifest.regions[0].blocks = Blocks::new(1 << 48, 256).unwrap();
    manifest.regions[0].shape = Shape::flat(1 << 48);
    assert!(manifest.encode().is_err());
    manifest.regions[0].excluded = std::iter::once(0..1 << 48).collect();
    fs::write(&path, manifest.encode().unwrap()).unwrap();
    let version = catalog.version("heat", Some(2)).unwrap();
    let reader = catalog.reader(&version.manifests[&0]).unwrap();
    assert_eq!(reader.saved("field").unwrap().count(), 0, "which is as good as nothing");
    assert!(matches!(reader.read_region("field"), Err(Error::TooLarge { .. })));
    assert_eq!(diff(&reader, &reader, true, &|_| {}).unwrap()[0].blocks_changed, 0);
}

#[test]
fn names_that_lead_elsewhere_are_no_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 1, &field(1));
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let catalog = Catalog::new(Arc::new(DiskFiles::open(&inner).unwrap()));
    for session in ["../heat", "..", "", "/", "heat/rank-00000"] {
        assert!(catalog.versions(session).is_err(), "{session}");
        assert!(verify(&catalog, Some(session), None, &|_, _| {}).is_err(), "{session}");
    }
}

/// Files that a running program merges and removes while they are read: when the first pack is
/// opened, everything changes at once.
struct Merging {
    before: MemoryFiles,
    after: MemoryFiles,
    is_after: AtomicBool,
}

impl Merging {
    fn now(&self) -> &MemoryFiles {
        if self.is_after.load(Ordering::Relaxed) { &self.after } else { &self.before }
    }
}

impl Files for Merging {
    fn location(&self) -> String {
        self.before.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.now().list(dir)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        if name.contains("/pack-") {
            self.is_after.store(true, Ordering::Relaxed);
        }
        self.now().open(name)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        self.now().make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        self.now().create(name, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.now().rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.now().remove(name)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.now().remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.now().sync_dir(dir)
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.now().lock(name)
    }
}

#[test]
fn what_a_running_program_merges_and_removes_meanwhile_is_not_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 1, &field(1));
    writer.save(0, 2, &field(2));
    let before = MemoryFiles::load(directory.path());
    writer.start_anew();
    writer.save(0, 2, &field(2));
    let mut after = MemoryFiles::load(directory.path());
    let gone = [pack_name(1), pack_name(2), version_name(1)];
    after.0.retain(|name, _| !gone.iter().any(|gone| name.ends_with(gone)));
    let merging = || Merging { before: before.clone(), after: after.clone(), is_after: AtomicBool::new(false) };

    let catalog = Catalog::new(Arc::new(merging()));
    let version = catalog.version("heat", Some(2)).unwrap();
    let reader = catalog.reader(&version.manifests[&0]).unwrap();
    assert!(reader.read_region("field").unwrap() == field(2)[0].bytes, "by the manifest that is there now");

    let catalog = Catalog::new(Arc::new(merging()));
    let findings = verify(&catalog, None, None, &|_, _| {}).unwrap().findings;
    let seen: Vec<_> =
        findings.iter().map(|finding| (finding.kind, finding.file.rsplit('/').next().unwrap())).collect();
    assert_eq!(seen, [(FindingKind::Changing, &*version_name(2))], "what is gone needs no verification: {findings:?}");
}
