//! Differences between versions, and the removal of versions.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
};

use outcrop_catalog::{Catalog, Change, Error, FindingKind, RegionDiff, Removal, diff, lock_session, verify};
use outcrop_format::{HashKind, pack_name, version_name};
use outcrop_layers::files::{DiskFiles, File, FileLock, Files};

use crate::fixture::{Region, Writer, pattern};

fn compared(catalog: &Catalog, before: u64, after: u64, is_certain: bool) -> Vec<RegionDiff> {
    let reader = |version| catalog.reader(&catalog.version("heat", Some(version)).unwrap().manifests[&0]).unwrap();
    diff(&reader(before), &reader(after), is_certain, &|_| {}).unwrap()
}

#[test]
fn changes_are_counted_in_blocks_and_bytes_by_hashes_as_by_reading() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    let mut field = Region::new("field", 256, pattern(1, 2000)).without(512..1024);
    let same = Region::new("same", 256, pattern(2, 999));
    let mut longer = Region::new("longer", 256, pattern(3, 1000));
    writer.save(0, 1, &[field.clone(), same.clone(), longer.clone(), Region::new("gone", 256, vec![1; 300])]);
    field.bytes[0] ^= 1;
    field.bytes[600] ^= 1;
    field.bytes[1999] ^= 1;
    longer.bytes.resize(1300, 0);
    writer.save(0, 2, &[Region::new("new", 512, vec![1; 600]), field, same, longer]);
    let catalog = Catalog::open(directory.path()).unwrap();
    for is_certain in [false, true] {
        let diffs = compared(&catalog, 1, 2, is_certain);
        let seen: Vec<_> = diffs
            .iter()
            .map(|diff| (&*diff.region, diff.change, diff.blocks, diff.blocks_changed, diff.bytes_changed))
            .collect();
        assert_eq!(
            seen,
            [
                ("field", Change::Changed, 8, 2, 256 + 208),
                ("same", Change::Same, 4, 0, 0),
                ("longer", Change::Changed, 6, 3, 256 + 256 + 20),
                ("gone", Change::Removed, 2, 2, 300),
                ("new", Change::Added, 2, 2, 600),
            ]
        );
        assert!(compared(&catalog, 2, 2, is_certain).iter().all(|diff| diff.change == Change::Same));
    }
}

#[test]
fn versions_with_other_blocks_or_hashes_are_compared_by_reading() {
    for (block_bytes, hash_kind) in [(256, HashKind::Blake3), (1024, HashKind::Xxh3)] {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(directory.path(), "heat", 1);
        let mut region = Region::new("field", 256, pattern(1, 20 << 20));
        writer.save(0, 1, std::slice::from_ref(&region));
        writer.start_anew();
        writer.hash_kind = hash_kind;
        region.block_bytes = block_bytes;
        writer.save(0, 2, std::slice::from_ref(&region));
        region.bytes[12_345_678] ^= 1;
        writer.save(0, 3, std::slice::from_ref(&region));
        let catalog = Catalog::open(directory.path()).unwrap();
        assert_eq!(compared(&catalog, 1, 2, false)[0].change, Change::Same);
        let changed = &compared(&catalog, 1, 3, false)[0];
        assert_eq!((changed.blocks_changed, changed.bytes_changed), (1, u64::from(block_bytes)));
    }
}

/// Five versions of two ranks that share blocks. Each version needs packs of earlier ones.
fn history(directory: &Path) -> (Catalog, Vec<Vec<u8>>) {
    let mut writer = Writer::new(directory, "heat", 2);
    writer.is_deduplicating = true;
    let mut saved = Vec::new();
    for version in 1..=5 {
        let mut bytes = pattern(1, 4000);
        bytes[(version * 300) as usize] ^= 0x55;
        for rank in 0..2 {
            writer.save(rank, version, &[Region::new("field", 256, bytes.clone())]);
        }
        saved.push(bytes);
    }
    (Catalog::open(directory).unwrap(), saved)
}

fn check_kept(catalog: &Catalog, saved: &[Vec<u8>], kept: &[u64]) {
    let versions: Vec<_> = catalog.versions("heat").unwrap().iter().map(|version| version.version).collect();
    assert_eq!(versions, kept);
    for &version in kept {
        for manifest in catalog.version("heat", Some(version)).unwrap().manifests.values() {
            let read = catalog.reader(manifest).unwrap().read_region("field").unwrap();
            assert!(read == saved[version as usize - 1], "version {version}");
        }
    }
    assert_eq!(verify(catalog, None, None, &|_, _| {}).unwrap().findings, []);
}

#[test]
fn removing_versions_keeps_all_that_others_need() {
    for dropped in [vec![], vec![1], vec![5], vec![1, 2, 3, 4], vec![2, 4, 77]] {
        let directory = tempfile::tempdir().unwrap();
        let (catalog, saved) = history(directory.path());
        let removal = Removal::plan(&catalog, "heat", &dropped).unwrap();
        let locks = lock_session(&catalog, "heat").unwrap();
        removal.carry_out(catalog.files()).unwrap();
        drop(locks);
        let kept: Vec<_> = (1..=5).filter(|version| !dropped.contains(version)).collect();
        check_kept(&catalog, &saved, &kept);
        assert!(Removal::plan(&catalog, "heat", &dropped).unwrap().is_empty());
    }
}

#[test]
fn what_crashes_have_left_goes_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let (catalog, saved) = history(directory.path());
    let rank = directory.path().join("heat/rank-00001");
    fs::write(rank.join(pack_name(50)), [1; 100]).unwrap();
    fs::write(rank.join(format!("{}.draft", version_name(9))), "half").unwrap();
    fs::remove_file(rank.join(version_name(2))).unwrap();
    fs::remove_file(rank.join(version_name(5))).unwrap();
    let removal = Removal::plan(&catalog, "heat", &[]).unwrap();
    assert_eq!(removal.versions, [2], "5 is not complete either, but there is no newer one");
    assert_eq!((removal.manifests.len(), removal.drafts.len()), (1, 1));
    assert!(removal.packs.iter().any(|pack| pack.ends_with(&pack_name(50))) && removal.bytes >= 100, "{removal:?}");
    removal.carry_out(catalog.files()).unwrap();
    fs::remove_file(directory.path().join("heat/rank-00000").join(version_name(5))).unwrap();
    Removal::plan(&catalog, "heat", &[]).unwrap().carry_out(catalog.files()).unwrap();
    check_kept(&catalog, &saved, &[1, 3, 4]);
}

#[test]
fn nothing_is_removed_while_the_directory_of_a_rank_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let (catalog, saved) = history(directory.path());
    let (there, away) = (directory.path().join("heat/rank-00001"), directory.path().join("heat-away"));
    fs::rename(&there, &away).unwrap();
    let error = Removal::plan(&catalog, "heat", &[1]).unwrap_err().to_string();
    assert!(error.contains("rank-00001") && error.contains("nothing was removed"), "{error}");
    fs::rename(&away, &there).unwrap();
    check_kept(&catalog, &saved, &[1, 2, 3, 4, 5]);
}

#[test]
fn a_session_that_is_written_to_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (catalog, _) = history(directory.path());
    let lock = catalog.files().lock("heat/rank-00001/lock").unwrap().unwrap();
    assert!(matches!(lock_session(&catalog, "heat"), Err(Error::Held { rank: 1, .. })));
    drop(lock);
    let locks = lock_session(&catalog, "heat").unwrap();
    assert_eq!(locks.len(), 2);
    assert!(matches!(lock_session(&catalog, "heat"), Err(Error::Held { rank: 0, .. })));
}

/// Records removals and syncs. After a number of them it crashes, and nothing more happens.
struct Noting {
    files: DiskFiles,
    notes: Mutex<Vec<String>>,
    operations_max: usize,
}

impl Noting {
    fn note(&self, note: String) -> io::Result<()> {
        let mut notes = self.notes.lock().unwrap();
        if notes.len() >= self.operations_max {
            return Err(io::Error::other("crashed"));
        }
        notes.push(note);
        Ok(())
    }
}

impl Files for Noting {
    fn location(&self) -> String {
        self.files.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.files.open(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.note(format!("remove {name}"))?;
        self.files.remove(name)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.note(format!("sync {dir}"))?;
        self.files.sync_dir(dir)
    }

    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        unreachable!("nothing is made")
    }

    fn create(&self, _name: &str, _bytes: u64) -> io::Result<Arc<dyn File>> {
        unreachable!("nothing is made")
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        unreachable!("nothing is renamed")
    }

    fn remove_dir(&self, _dir: &str) -> io::Result<()> {
        unreachable!("directories stay")
    }

    fn lock(&self, name: &str) -> io::Result<Option<FileLock>> {
        self.files.lock(name)
    }
}

#[test]
fn a_crash_in_the_middle_of_a_removal_harms_no_version_that_stays() {
    let mut operations_max = 0;
    loop {
        let directory = tempfile::tempdir().unwrap();
        let (catalog, saved) = history(directory.path());
        let files = DiskFiles::open(directory.path()).unwrap();
        let noting = Noting { files, notes: Mutex::default(), operations_max };
        let result = Removal::plan(&catalog, "heat", &[4, 5]).unwrap().carry_out(&noting);
        let damage = verify(&catalog, None, None, &|_, _| {}).unwrap();
        assert!(!damage.has_damage(), "{damage:?}");
        for version in catalog.versions("heat").unwrap() {
            for manifest in version.manifests.values() {
                let read = catalog.reader(manifest).unwrap().read_region("field").unwrap();
                assert!(read == saved[version.version as usize - 1]);
            }
        }
        let notes = noting.notes.into_inner().unwrap();
        let last_manifest = notes.iter().rposition(|note| note.contains("/version-"));
        let first_pack = notes.iter().position(|note| note.contains("/pack-"));
        if let Some(first_pack) = first_pack {
            let between = &notes[last_manifest.unwrap()..first_pack];
            assert_eq!(between.iter().filter(|note| note.starts_with("sync")).count(), 2, "{notes:?}");
        }
        if result.is_ok() {
            assert!(first_pack.is_some() && notes.last().unwrap().starts_with("sync"), "{notes:?}");
            break;
        }
        operations_max += 1;
    }
    assert!(operations_max > 8, "{operations_max}");
}

#[test]
fn a_version_can_be_verified_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (catalog, _) = history(directory.path());
    let pack = directory.path().join("heat/rank-00000").join(pack_name(5));
    let mut bytes = fs::read(&pack).unwrap();
    bytes[4100] ^= 1;
    fs::write(&pack, bytes).unwrap();
    assert!(!verify(&catalog, Some("heat"), Some(4), &|_, _| {}).unwrap().has_damage());
    let verified = verify(&catalog, Some("heat"), Some(5), &|_, _| {}).unwrap();
    assert!(verified.has_damage());
    let whole = verify(&catalog, None, None, &|_, _| {}).unwrap();
    let found: Vec<_> = whole.findings.iter().filter(|finding| finding.kind == FindingKind::Damage).collect();
    assert_eq!(found.len(), 1);
    assert!(found[0].harms.iter().all(|harm| harm.version == 5));
    assert_eq!(found[0].harms.iter().map(|harm| harm.rank).collect::<Vec<_>>(), [0, 1], "rank 1 has it from rank 0");
    assert!(matches!(verify(&catalog, Some("heat"), Some(6), &|_, _| {}), Err(Error::NoVersion { .. })));
}
