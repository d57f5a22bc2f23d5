//! Many regions: what a version of them costs grows as their number does, and not faster.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use outcrop::{
    Part, PartMut, Reached, Store,
    catalog::{Catalog, verify},
    layers::files::{DiskFiles, File, FileLock, Files},
    store::RegionOptions,
};
use outcrop_testing::{amount, covered};

/// Counts how often something is read.
struct Counting {
    files: DiskFiles,
    reads: Arc<AtomicUsize>,
}

struct CountingFile(Arc<dyn File>, Arc<AtomicUsize>);

impl File for CountingFile {
    fn bytes(&self) -> std::io::Result<u64> {
        self.0.bytes()
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(at, bytes)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.1.fetch_add(1, Relaxed);
        self.0.read_at(at, bytes)
    }

    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

impl Counting {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(CountingFile(file, Arc::clone(&self.reads)))
    }
}

impl Files for Counting {
    fn location(&self) -> String {
        self.files.location()
    }

    fn open(&self, name: &str) -> std::io::Result<Arc<dyn File>> {
        self.files.open(name).map(|file| self.file(file))
    }

    fn list(&self, dir: &str) -> std::io::Result<Vec<String>> {
        self.files.list(dir)
    }

    fn make_dir(&self, dir: &str) -> std::io::Result<()> {
        self.files.make_dir(dir)
    }

    fn create(&self, name: &str, bytes: u64) -> std::io::Result<Arc<dyn File>> {
        self.files.create(name, bytes).map(|file| self.file(file))
    }

    fn rename(&self, from: &str, to: &str) -> std::io::Result<()> {
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        self.files.remove(name)
    }

    fn remove_dir(&self, dir: &str) -> std::io::Result<()> {
        self.files.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &str) -> std::io::Result<()> {
        self.files.sync_dir(dir)
    }

    fn lock(&self, name: &str) -> std::io::Result<Option<FileLock>> {
        self.files.lock(name)
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|nth| format!("particle {nth}")).collect()
}

fn parts<'a>(names: &'a [String], values: &'a [Vec<u64>]) -> Vec<Part<'a>> {
    names.iter().zip(values).map(|(name, values)| Part::new(name, values)).collect()
}

#[test]
fn many_regions_are_saved_and_restored_together() {
    let count = amount(20_000, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let reads = Arc::new(AtomicUsize::new(0));
    let open = || {
        let files = Counting { files: DiskFiles::create(dir.path()).unwrap(), reads: Arc::clone(&reads) };
        let store = Store::builder().host("64 MiB").files(Arc::new(files), None).pin(false).certain(true);
        store.open().unwrap().session("heat").unwrap()
    };
    let names = names(count);
    let mut values: Vec<Vec<u64>> = (0..count as u64).map(|nth| vec![nth; 1 + nth as usize % 40]).collect();
    let mut session = open();
    let excluded = vec![8..16, 24..32];
    session.region(&names[7], RegionOptions { excluded, ..RegionOptions::default() });
    let start = std::time::Instant::now();
    session.save(1, &parts(&names, &values)).unwrap();
    let saved = start.elapsed();
    session.wait(1, Reached::All).unwrap();
    let durable = start.elapsed();
    for nth in (0..count).step_by(100) {
        values[nth][0] += 1;
    }
    session.save(2, &parts(&names, &values)).unwrap();
    session.finish().unwrap();

    let mut session = open();
    reads.store(0, Relaxed);
    let mut found: Vec<Vec<u64>> = values.iter().map(|values| vec![7; values.len()]).collect();
    let mut targets: Vec<_> = names.iter().zip(&mut found).map(|(name, found)| PartMut::new(name, found)).collect();
    let start = std::time::Instant::now();
    assert_eq!(session.restore_latest(&mut targets).unwrap().unwrap().version, 2);
    let restored = start.elapsed();
    let mut expected = values.clone();
    (expected[7][1], expected[7][3]) = (7, 7);
    assert!(found == expected);
    // Headers, indexes and payloads in large pieces, and not each region by itself.
    let reads = reads.load(Relaxed);
    assert!(reads < count / 50, "{reads} reads");
    session.finish().unwrap();
    let verified = verify(&Catalog::open(dir.path()).unwrap(), None, None, &|_, _| {}).unwrap();
    assert!(!verified.has_damage(), "{:?}", verified.findings.first());
    println!("{count} regions: saved {saved:?}, durable {durable:?}, restored {restored:?}, {reads} reads");
    covered("regions of one version", count);
}
