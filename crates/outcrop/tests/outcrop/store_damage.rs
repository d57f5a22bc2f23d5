//! Changes every byte of a small store, one by one, and truncates every file at every length. The
//! damage is found or harmless: never a panic, never wrong bytes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use fastrand::Rng;
use outcrop::{
    Part, PartMut, Reached, Session, Store,
    catalog::{Catalog, verify},
    layers::files::Files,
    store::{Compression, Restored},
};
use outcrop_crash::{Recording, Tree};
use outcrop_testing::{amount, covered};

use crate::common::{State, trees::counted};

/// For one of this many changes the store is opened, and not only read.
const OPENED_EVERY: usize = 101;

/// A store, and what was saved in it. All states have the same shape.
struct Saved {
    tree: Tree,
    states: BTreeMap<u64, State>,
}

/// The damage to a file.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip { at: usize, bit: u8 },
    Cut { bytes: usize },
    Longer { by: usize },
}

fn open(files: &Arc<dyn Files>) -> outcrop::Result<Session> {
    let store = Store::builder().host("1 MiB").block(256).chain_max(8).threads(1).pin(false);
    store.compression(Compression::Lz4).files(Arc::clone(files), None).open()?.session("heat")
}

fn saved() -> Saved {
    let recording = Recording::new();
    let files: Arc<dyn Files> = Arc::new(recording.clone());
    let mut session = open(&files).unwrap();
    let mut random = Rng::with_seed(5);
    let mut state = State::new(&mut random, 2500);
    // Some blocks are compressible, and some are not.
    state.field[..600].iter_mut().for_each(|byte| *byte = random.u8(..));
    let mut states = BTreeMap::new();
    for version in 1..=4 {
        state.stamp = version;
        let at = version as usize * 500;
        state.field[at..at + 100].fill(version as u8);
        session.save(version, &state.parts()).unwrap();
        session.wait(version, Reached::Layer(1)).unwrap();
        states.insert(version, state.clone());
    }
    session.finish().unwrap();
    let tree = recording.tree();
    let bytes: usize = tree.files().map(|(_, bytes)| bytes.len()).sum();
    assert!((20_000..60_000).contains(&bytes), "{bytes}");
    Saved { tree, states }
}

/// All cases.
fn damages(saved: &Saved) -> Vec<(String, Damage)> {
    let mut random = Rng::with_seed(9);
    let mut damages = Vec::new();
    for (name, bytes) in saved.tree.files() {
        // Manifests are small, so every bit of them is changed.
        let is_small = bytes.len() < 1000;
        for at in (0..bytes.len()).step_by(if is_small { 1 } else { amount(5, 1) }) {
            let bits = if is_small { 0..8 } else { Some(random.u8(..8)).map_or(0..0, |bit| bit..bit + 1) };
            damages.extend(bits.map(|bit| (name.to_owned(), Damage::Flip { at, bit })));
            damages.push((name.to_owned(), Damage::Cut { bytes: at }));
        }
        if !bytes.is_empty() {
            damages.extend([1, 512, 4096].map(|by| (name.to_owned(), Damage::Longer { by })));
        }
    }
    damages
}

impl Saved {
    fn damaged(&self, name: &str, damage: Damage) -> Tree {
        let mut bytes = self.tree.bytes(name).unwrap().to_vec();
        match damage {
            Damage::Flip { at, bit } => bytes[at] ^= 1 << bit,
            Damage::Cut { bytes: length } => bytes.truncate(length),
            Damage::Longer { by } => bytes.resize(bytes.len() + by, 0),
        }
        let mut tree = self.tree.clone();
        tree.put(name, bytes);
        tree
    }

    /// Reads all versions. Each is what was saved, or an error. Verification must report damage.
    fn read(&self, tree: Tree) {
        let catalog = Catalog::new(Arc::new(Recording::from_tree(tree)));
        let versions = catalog.versions("heat").unwrap();
        let mut whole = 0;
        for version in versions.iter().filter(|version| version.is_complete()) {
            let state = &self.states[&version.version];
            let Ok(reader) = catalog.reader(&version.manifests[&0]) else { continue };
            let regions = ["stamp", "field", "tail"].map(|name| reader.read_region(name));
            let expected = [state.stamp.to_le_bytes().to_vec(), state.field.clone(), state.tail.clone()];
            for (found, expected) in regions.iter().zip(&expected) {
                assert!(found.as_ref().is_err() || found.as_ref().ok() == Some(expected), "wrong bytes");
            }
            whole += usize::from(regions.iter().all(Result::is_ok));
        }
        let verified = verify(&catalog, None, None, &|_, _| {}).unwrap();
        assert!(verified.has_damage(), "nobody has noticed");
        let harmed = verified.findings.iter().flat_map(|finding| &finding.harms).map(|harm| harm.version);
        let harmed: std::collections::BTreeSet<u64> = harmed.collect();
        assert_eq!(
            whole + harmed.len(),
            self.states.len(),
            "it is said exactly which versions are harmed: {verified:?}"
        );
    }

    /// Opens the store. It restores what was saved, or reports that nothing can be restored.
    fn restore(&self, tree: Tree) -> Option<Restored> {
        let files: Arc<dyn Files> = Arc::new(Recording::from_tree(tree));
        let mut session = open(&files).unwrap();
        let mut found = self.states[&1].empty();
        let State { stamp, field, tail } = &mut found;
        let mut parts = [PartMut::one("stamp", stamp), PartMut::new("field", field), PartMut::new("tail", tail)];
        let restored = session.restore_latest(&mut parts).ok()?.expect("there is a version");
        assert_eq!(found, self.states[&restored.version]);
        Some(restored)
    }

    fn newest(&self) -> u64 {
        *self.states.keys().last().expect("a version")
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_found_or_harmless() {
    let saved = saved();
    let damages = damages(&saved);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            let Some((name, damage)) = damages.get(nth) else { return };
            let tried = std::panic::catch_unwind(|| {
                saved.read(saved.damaged(name, *damage));
                if nth.is_multiple_of(OPENED_EVERY) {
                    let restored = saved.restore(saved.damaged(name, *damage));
                    let has_told = |it: &Restored| it.version == saved.newest() || !it.skipped.is_empty();
                    assert!(restored.as_ref().is_none_or(has_told), "{restored:?}");
                }
            });
            assert!(tried.is_ok(), "{damage:?} of {name}");
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    covered("changes and cuts of a store's files", damages.len());
}

#[test]
fn a_file_that_is_gone_harms_only_what_needs_it() {
    let saved = saved();
    let names: Vec<String> = saved.tree.files().map(|(name, _)| name.to_owned()).collect();
    for name in names.iter().filter(|name| name.contains("pack-") || name.contains("version-")) {
        let files: Arc<dyn Files> = Arc::new(Recording::from_tree(saved.tree.clone()));
        files.remove(name).unwrap();
        let verified = verify(&Catalog::new(Arc::clone(&files)), None, None, &|_, _| {}).unwrap();
        assert_eq!(verified.has_damage(), name.contains("pack-"), "{name}: {verified:?}");
        let restored = saved.restore(Tree::copy_of(&*files).unwrap());
        let is_newest = name.contains("version-") && !name.ends_with(&saved.newest().to_string());
        assert!(!is_newest || restored.is_some_and(|it| it.version == saved.newest()), "{name}");
    }
}

#[test]
fn a_restore_that_verifies_first_changes_nothing_if_anything_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    // More than what is read at once.
    let (small, large) = (vec![1u8; 10_000], (0..5_000_000u32).collect::<Vec<_>>());
    let open =
        || Store::builder().host("64 MiB").pin(false).dir(dir.path(), None).open().unwrap().session("heat").unwrap();
    let mut session = open();
    session.save(1, &[Part::new("small", &small), Part::new("large", &large)]).unwrap();
    session.finish().unwrap();
    let packs = std::fs::read_dir(dir.path().join("heat/rank-00000")).unwrap().map(|entry| entry.unwrap().path());
    let last = packs.filter(|path| path.to_string_lossy().contains("pack-")).max().unwrap();
    let mut bytes = std::fs::read(&last).unwrap();
    let at = bytes.windows(4).rposition(|word| word == 4_999_000u32.to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&last, bytes).unwrap();
    let mut session = open();
    let mut found = vec![7u8; 10_000];
    session.verify_before_restore(true);
    let error = session.restore(1, &mut [PartMut::new("small", &mut found)]).unwrap_err().to_string();
    assert!(error.contains("large") && found == [7; 10_000], "{error}");
    // It is asked for, and nobody reads the rest without.
    session.verify_before_restore(false);
    session.restore(1, &mut [PartMut::new("small", &mut found)]).unwrap();
    assert_eq!(found, small);
}

#[test]
fn untouched_memory_is_filled_by_the_read_that_verifies_and_is_zero_again_if_it_fails() {
    // So much that the allocator asks the system for it, and nobody has touched it.
    const BYTES: usize = 36 << 20;
    let dir = tempfile::tempdir().unwrap();
    let read = Arc::new(AtomicU64::new(0));
    let open = || {
        let store = Store::builder().host("64 MiB").pin(false).files(counted(dir.path(), &read), None);
        let mut session = store.open().unwrap().session("heat").unwrap();
        session.verify_before_restore(true);
        session
    };
    let mut session = open();
    let field: Vec<u8> = (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let small = vec![3u8; 10_000];
    session.save(1, &[Part::new("field", &field), Part::new("small", &small)]).unwrap();
    session.save(2, &[Part::new("field", &field), Part::new("small", &small[..9_999])]).unwrap();
    session.finish().unwrap();
    let restored = |version, field: &mut [u8], small: &mut [u8]| {
        let mut session = open();
        read.store(0, Relaxed);
        let result = session.restore(version, &mut [PartMut::new("field", field), PartMut::new("small", small)]);
        (result.map(|_| ()).map_err(|error| error.to_string()), read.load(Relaxed) as usize)
    };
    let (mut fresh, mut touched, mut found) = (vec![0u8; BYTES], vec![7u8; BYTES], vec![7u8; 10_000]);
    let (result, bytes) = restored(1, &mut fresh, &mut found);
    assert!(result.is_ok() && fresh == field && found == small, "{result:?}");
    assert!(bytes > BYTES && bytes < BYTES * 5 / 4, "{bytes} bytes were read");
    found.fill(7);
    let (result, bytes) = restored(1, &mut touched, &mut found);
    assert!(result.is_ok() && touched == field && found == small, "{result:?}");
    assert!(bytes > 2 * BYTES, "{bytes} bytes were read");
    // A byte of the last region of version 1.
    let packs = std::fs::read_dir(dir.path().join("heat/rank-00000")).unwrap().map(|entry| entry.unwrap().path());
    let mut packs: Vec<_> = packs.filter(|path| path.to_string_lossy().contains("pack-")).collect();
    packs.sort();
    let has_small = |bytes: &Vec<u8>| bytes.windows(1000).rposition(|bytes| bytes == [3; 1000]);
    let read_pack = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
    let first = packs.iter().find(|path| has_small(&read_pack(path)).is_some()).unwrap();
    let mut bytes = read_pack(first);
    let at = has_small(&bytes).unwrap();
    bytes[at] ^= 1;
    std::fs::write(first, bytes).unwrap();
    let (mut fresh, mut found) = (vec![0u8; BYTES], vec![7u8; 10_000]);
    fresh[5_000_000] = 9;
    let (result, _) = restored(1, &mut fresh, &mut found);
    assert!(result.unwrap_err().contains("small") && found == [7; 10_000]);
    assert!(fresh.iter().enumerate().all(|(at, byte)| *byte == if at == 5_000_000 { 9 } else { 0 }));
    touched.fill(7);
    let (result, _) = restored(1, &mut touched, &mut found);
    assert!(result.is_err() && touched.iter().all(|byte| *byte == 7));
}
