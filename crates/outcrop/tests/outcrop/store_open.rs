//! Opening and restoring a session with files that it cannot use.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use outcrop::{ErrorKind, Part, PartMut, Reached, Result, Session, Store};
use outcrop_crash::{Errno, Failing, Fault, Operation, Recording};
use outcrop_format::{Mark, RunId};
use twox_hash::XxHash3_64;

const RANK: &str = "heat/rank-00000";

fn session(dir: &Path) -> Result<Session> {
    Store::builder().host("1 MiB").block(256).pin(false).dir(dir, None).open()?.session("heat")
}

fn save(session: &mut Session, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        session.save(version, &[Part::new("field", &[version; 500])]).unwrap();
        session.wait(version, Reached::All).unwrap();
    }
}

/// Every file of the rank, and its content.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let paths = fs::read_dir(dir.join(RANK)).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

#[test]
fn a_mark_of_a_newer_outcrop_keeps_a_session_closed_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = session(dir.path()).unwrap();
    save(&mut first, 1..=2);
    first.finish().unwrap();
    let mut mark = Mark([RunId(7)].into()).encode().unwrap();
    mark[4] = 2;
    let end = mark.len() - 8;
    let check = XxHash3_64::oneshot(&mark[..end]).to_le_bytes();
    mark[end..].copy_from_slice(&check);
    fs::write(dir.path().join(RANK).join("runs"), &mark).unwrap();
    fs::write(dir.path().join(RANK).join("version-00000000000000000003.draft"), "half").unwrap();
    let before = files(dir.path());
    let error = session(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let message = error.to_string();
    assert!(message.contains("heat/rank-00000/runs") && message.contains("has format 2"), "{message}");
    assert!(message.contains("use the Outcrop that wrote it, or a newer one"), "{message}");
    assert_eq!(files(dir.path()), before, "drafts stay, too");
}

#[test]
fn a_damaged_mark_is_as_good_as_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = session(dir.path()).unwrap();
    save(&mut first, 1..=2);
    first.finish().unwrap();
    let path = dir.path().join(RANK).join("runs");
    let mark = Mark([RunId(7)].into()).encode().unwrap();
    for damaged in [&mark[..9], &[&mark[..], &[0]].concat(), b"", &[&[0], &mark[1..]].concat(), &vec![7; 2 << 20]] {
        fs::write(&path, damaged).unwrap();
        let again = session(dir.path()).unwrap();
        assert_eq!(again.restorable().unwrap(), [1, 2]);
        again.finish().unwrap();
    }
}

/// No number could follow, and pack 0 must not be overwritten.
#[test]
fn a_file_with_the_last_number_of_a_pack_costs_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = session(dir.path()).unwrap();
    save(&mut first, 1..=3);
    first.finish().unwrap();
    let before = files(dir.path());
    let stray = dir.path().join(RANK).join(format!("pack-{}", u64::MAX));
    fs::write(&stray, "not a pack").unwrap();
    let mut again = session(dir.path()).unwrap();
    again.save(4, &[Part::new("field", &[4u64; 500])]).unwrap();
    let error = again.wait(4, Reached::All).unwrap_err();
    assert!(error.to_string().contains("the last number that a pack can have"), "{error}");
    drop(again);
    fs::remove_file(&stray).unwrap();
    assert_eq!(files(dir.path()), before);
    save(&mut session(dir.path()).unwrap(), 4..=4);
}

/// Somebody has removed the lock file of a running program and started it a second time.
#[test]
fn two_that_believe_a_directory_to_be_theirs_do_not_write_over_each_others_versions() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(dir.path()).unwrap();
    save(&mut one, 1..=1);
    fs::remove_file(dir.path().join(RANK).join("lock")).unwrap();
    let mut other = session(dir.path()).unwrap();
    save(&mut one, 2..=3);
    other.save(10, &[Part::new("field", &[10u64; 500])]).unwrap();
    assert!(other.wait(10, Reached::All).is_err());
    drop((one, other));
    let mut again = session(dir.path()).unwrap();
    assert_eq!(again.restorable().unwrap(), [1, 2, 3]);
    for version in 1..=3 {
        let mut found = [0u64; 500];
        again.read(version, &mut [PartMut::new("field", &mut found)]).unwrap();
        assert_eq!(found, [version; 500]);
    }
}

/// A program that lacks descriptors for a moment must not fall back to an older version and
/// continue from there.
#[test]
fn a_version_that_cannot_be_read_for_want_of_descriptors_is_not_passed_over() {
    let recording = Recording::new();
    let open = |files: &Failing| {
        let files = Arc::new(files.clone());
        Store::builder().host("1 MiB").block(256).pin(false).files(files, None).open()?.session("heat")
    };
    let mut first = open(&Failing::over(recording.clone())).unwrap();
    save(&mut first, 1..=3);
    first.finish().unwrap();
    let restore = |files: &Failing| -> Result<Option<u64>> {
        let mut field = [0u64; 500];
        let restored = open(files)?.restore_latest(&mut [PartMut::new("field", &mut field)])?;
        assert!(restored.as_ref().is_none_or(|restored| field == [restored.version; 500]));
        Ok(restored.map(|restored| restored.version))
    };
    let whole = Failing::over(Recording::from_tree(recording.tree()));
    assert_eq!(restore(&whole).unwrap(), Some(3));
    let opened = whole.calls(Some(Operation::Open));
    assert!(opened >= 8, "{opened}");
    for (after, is_lasting) in (0..opened).flat_map(|after| [(after, false), (after, true)]) {
        let files = Failing::over(Recording::from_tree(recording.tree()));
        let of = Some(Operation::Open);
        files.inject(Fault { of, after, is_lasting, ..Fault::new(Errno::MFILE) });
        match restore(&files) {
            Ok(version) => assert_eq!(version, Some(3), "after {after}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Storage, "after {after}: {error}"),
        }
    }
}
