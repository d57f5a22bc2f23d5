//! Files that cannot be read for reasons that prove nothing about what is stored. That is reported,
//! and nothing is concluded from it.

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use outcrop_catalog::{Catalog, Error, FindingKind, Removal, verify};
use outcrop_format::{MARK_NAME, Mark, RunId, version_name};
use outcrop_layers::files::{DiskFiles, File, FileLock, Files};
use rustix::io::Errno;

use crate::fixture::{Region, Writer, pattern};

fn field(seed: u64) -> [Region; 1] {
    [Region::new("field", 256, pattern(seed, 2000))]
}

/// Files whose n-th call to list or open fails, alone or with all calls after it.
struct Lacking {
    files: DiskFiles,
    calls: AtomicU64,
    /// How many calls succeed, whether all later calls fail, and with which error.
    lack: Mutex<(u64, bool, Errno)>,
}

impl Lacking {
    fn new(root: &Path, after: u64, is_lasting: bool, errno: Errno) -> Arc<Self> {
        let files = DiskFiles::open(root).unwrap();
        Arc::new(Self { files, calls: AtomicU64::new(0), lack: Mutex::new((after, is_lasting, errno)) })
    }

    fn pass(&self) -> io::Result<()> {
        let nth = self.calls.fetch_add(1, Ordering::Relaxed);
        let (after, is_lasting, errno) = *self.lack.lock().unwrap();
        match nth == after || (is_lasting && nth > after) {
            true => Err(errno.into()),
            false => Ok(()),
        }
    }
}

impl Files for Lacking {
    fn location(&self) -> String {
        self.files.location()
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.pass()?;
        self.files.list(dir)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.pass()?;
        self.files.open(name)
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        unreachable!("nothing is removed")
    }

    fn sync_dir(&self, _dir: &str) -> io::Result<()> {
        unreachable!("nothing is written")
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

/// Two ranks, three versions, blocks that one rank borrows from the other, and marks.
fn history(root: &Path) {
    let mut writer = Writer::new(root, "heat", 2);
    writer.is_deduplicating = true;
    for version in 1..=3 {
        for rank in 0..2 {
            writer.save(rank, version, &field(version));
        }
    }
    for rank in 0..2 {
        fs::write(writer.rank_dir(rank).join(MARK_NAME), Mark([RunId(7)].into()).encode().unwrap()).unwrap();
    }
}

/// Calls `look` repeatedly. Each time another call of the files fails, alone or with all calls
/// after it. Returns the number of calls.
fn sweep(root: &Path, errno: Errno, look: impl Fn(&Catalog, bool)) -> u64 {
    let all = Lacking::new(root, u64::MAX, false, errno);
    look(&Catalog::new(all.clone()), false);
    let calls = all.calls.load(Ordering::Relaxed);
    for after in 0..calls {
        for is_lasting in [false, true] {
            look(&Catalog::new(Lacking::new(root, after, is_lasting, errno)), true);
        }
    }
    calls
}

#[test]
fn whatever_cannot_be_read_is_not_verified_and_is_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    history(directory.path());
    for errno in [Errno::MFILE, Errno::IO, Errno::ACCESS] {
        let calls =
            sweep(directory.path(), errno, |catalog, is_lacking| match verify(catalog, None, None, &|_, _| {}) {
                Ok(verified) => {
                    assert!(!verified.has_damage(), "{errno}: {verified:?}");
                    // With `EMFILE`, packs are opened again after unused descriptors have been
                    // closed.
                    assert!(verified.is_whole() != is_lacking || errno == Errno::MFILE, "{errno}: {verified:?}");
                    assert!(verified.is_whole() || verified.has(FindingKind::Unread), "{errno}: {verified:?}");
                }
                Err(error) => assert!(is_lacking && !error.is_damage(), "{error}"),
            });
        assert!(calls >= 20, "{calls}");
    }
    // If every call from one on fails, not everything can be read.
    let lacking = Lacking::new(directory.path(), 12, true, Errno::MFILE);
    assert!(!verify(&Catalog::new(lacking), None, None, &|_, _| {}).unwrap().is_whole());
}

#[test]
fn the_newest_version_is_never_an_older_one_because_something_could_not_be_read() {
    let directory = tempfile::tempdir().unwrap();
    history(directory.path());
    sweep(directory.path(), Errno::MFILE, |catalog, is_lacking| {
        for version in [None, Some(3)] {
            match catalog.version("heat", version) {
                Ok(found) => assert_eq!(found.version, 3),
                Err(error) => assert!(is_lacking && error.is_shortage(), "{error}"),
            }
        }
    });
    // A damaged manifest is different: the newest undamaged version is found.
    fs::write(directory.path().join("heat/rank-00001").join(version_name(3)), "nonsense").unwrap();
    assert_eq!(Catalog::open(directory.path()).unwrap().version("heat", None).unwrap().version, 2);
}

#[test]
fn listings_and_removals_say_what_they_could_not_read() {
    let directory = tempfile::tempdir().unwrap();
    history(directory.path());
    let usage = Catalog::open(directory.path()).unwrap().usage("heat").unwrap();
    let planned = Removal::plan(&Catalog::open(directory.path()).unwrap(), "heat", &[1]).unwrap();
    for errno in [Errno::MFILE, Errno::IO] {
        sweep(directory.path(), errno, |catalog, _| match catalog.look() {
            Ok(sessions) => assert_eq!(sessions.names.len() + sessions.unread.len(), 1),
            Err(error) => assert!(!error.is_damage()),
        });
        sweep(directory.path(), errno, |catalog, is_lacking| match catalog.sessions() {
            Ok(names) => assert_eq!(names, ["heat"]),
            Err(error) => assert!(is_lacking && !error.is_damage()),
        });
        sweep(directory.path(), errno, |catalog, is_lacking| match catalog.complete_versions("heat") {
            Ok(found) => assert_eq!(found.iter().map(|found| found.version).collect::<Vec<_>>(), [1, 2, 3]),
            Err(error) => assert!(is_lacking && !error.is_damage(), "{error}"),
        });
        sweep(directory.path(), errno, |catalog, is_lacking| match catalog.usage("heat") {
            Ok(found) => assert_eq!(found.pack_bytes, usage.pack_bytes),
            Err(error) => assert!(is_lacking && !error.is_damage()),
        });
        sweep(directory.path(), errno, |catalog, is_lacking| match Removal::plan(catalog, "heat", &[1]) {
            Ok(removal) => assert_eq!(removal, planned),
            Err(error) => assert!(is_lacking && !error.is_damage(), "{error}"),
        });
    }
}

#[test]
fn a_mark_of_a_newer_format_is_not_damaged() {
    let directory = tempfile::tempdir().unwrap();
    history(directory.path());
    let path = directory.path().join("heat/rank-00000").join(MARK_NAME);
    let mut mark = Mark([RunId(7)].into()).encode().unwrap();
    mark[4] = 2;
    let end = mark.len() - 8;
    let check = twox_hash::XxHash3_64::oneshot(&mark[..end]);
    mark[end..].copy_from_slice(&check.to_le_bytes());
    fs::write(&path, mark).unwrap();
    let catalog = Catalog::open(directory.path()).unwrap();
    let verified = verify(&catalog, None, None, &|_, _| {}).unwrap();
    assert!(!verified.has_damage() && !verified.is_whole(), "{verified:?}");
    assert!(verified.findings.iter().any(|finding| finding.file.ends_with(MARK_NAME)), "{verified:?}");
    assert!(matches!(catalog.mark("heat", 0), Err(Error::Newer { .. })));
    fs::write(&path, "nonsense").unwrap();
    assert!(verify(&catalog, None, None, &|_, _| {}).unwrap().has_damage());
}
