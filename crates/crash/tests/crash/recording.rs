//! Files in memory behave like those of a real directory, and their log is correct.

use std::sync::Arc;

use outcrop_crash::{Failing, Options, Recording, Tree, contract};
use outcrop_layers::files::{DiskFiles, Files, write_whole};
use tempfile::{TempDir, tempdir};

/// A directory that lives as long as the test.
fn disk(given: &TempDir, name: &str) -> Arc<DiskFiles> {
    Arc::new(DiskFiles::create(&given.path().join(name)).unwrap())
}

#[test]
fn a_recording_fulfils_the_contract() {
    contract::check(&|| Arc::new(Recording::new()));
}

#[test]
fn a_real_directory_fulfils_the_contract() {
    let given = tempdir().unwrap();
    let made = std::cell::Cell::new(0);
    contract::check(&|| {
        made.set(made.get() + 1);
        disk(&given, &made.get().to_string())
    });
}

#[test]
fn files_without_a_fault_fulfil_the_contract() {
    contract::check(&|| Arc::new(Failing::over(Recording::new())));
    let given = tempdir().unwrap();
    let made = std::cell::Cell::new(0);
    contract::check(&|| {
        made.set(made.get() + 1);
        Arc::new(Failing::new(disk(&given, &made.get().to_string())))
    });
}

/// The same random operations on both give the same results, and the same files.
#[test]
fn a_recording_and_a_real_directory_agree() {
    let given = tempdir().unwrap();
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (recording, real) = (Recording::new(), disk(&given, &seed.to_string()));
        for step in 0..120 {
            let mut name = || ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"][random.usize(..7)];
            let (name, other) = (name(), name());
            let choice = random.u8(0..8);
            let (at, bytes) = (random.u64(0..3000), vec![random.u8(..); random.usize(0..3000)]);
            let act = |files: &dyn Files| -> std::io::Result<()> {
                match choice {
                    0 => files.make_dir(name),
                    1..=3 => files.create(name, bytes.len() as u64)?.write_at(at, &bytes),
                    // Leaves out renames of directories, and renames to a directory above: a real
                    // directory behaves differently there, and nobody needs it.
                    4 if files.list(name).is_err() && !name.starts_with(other) => files.rename(name, other),
                    5 => files.remove(name),
                    6 => files.remove_dir(name),
                    _ => files.lock(name).map(drop),
                }
            };
            let [in_memory, on_disk] =
                [act(&recording), act(&*real)].map(|outcome| outcome.map_err(|error| error.kind()));
            assert_eq!(in_memory, on_disk, "seed {seed}, step {step}: {choice} {name} {other}");
        }
        let (in_memory, on_disk) = (recording.tree(), Tree::copy_of(&*real).unwrap());
        assert!(in_memory == on_disk, "seed {seed}: {in_memory:?} {on_disk:?}");
        assert!(Tree::copy_of(&recording).unwrap() == in_memory);
        assert!(Recording::from_tree(in_memory.clone()).tree() == in_memory);
        assert!(in_memory.files().count() > 0, "something is left to compare");
    }
}

#[test]
fn threads_leave_a_log_that_is_true() {
    const THREADS: u64 = 6;
    let recording = Recording::new();
    let shared = recording.create("shared", 0).unwrap();
    std::thread::scope(|scope| {
        for index in 0..THREADS {
            let (recording, shared) = (recording.clone(), &shared);
            scope.spawn(move || {
                let dir = format!("dir-{index}");
                recording.make_dir(&dir).unwrap();
                recording.sync_dir("").unwrap();
                for round in 0..20 {
                    shared.write_at(index * 100, &[round as u8; 100]).unwrap();
                    write_whole(&recording, &dir, "file", format!("{index} {round}").as_bytes()).unwrap();
                    recording.mark(format!("{index} {round}"));
                }
            });
        }
    });
    shared.sync().unwrap();
    recording.sync_dir("").unwrap();
    recording.mark("end");
    let log = recording.log();
    // Each round has six operations and a mark.
    assert_eq!(log.steps() as u64, 1 + THREADS * (2 + 20 * 7) + 3);
    let last = log.images(&Options { samples: 0, subset_operations_max: 0, seed: 0 }).last().unwrap();
    assert!(*last.tree() == recording.tree());
    assert_eq!(last.tree().bytes("dir-3/file"), Some(&b"3 19"[..]));
    for index in 0..THREADS {
        let prefix = format!("{index} ");
        let rounds: Vec<_> = last.marks().iter().filter(|mark| mark.starts_with(&prefix)).collect();
        assert_eq!(rounds.len(), 20);
        assert_eq!(*rounds[19], format!("{index} 19"), "marks of one thread keep their order");
    }
}

#[test]
fn a_clone_is_the_same_recording_and_a_tree_is_not() {
    let recording = Recording::new();
    let clone = recording.clone();
    let lock = clone.lock("lock").unwrap().unwrap();
    assert!(recording.lock("lock").unwrap().is_none());
    write_whole_in(&recording, "one");
    let tree = recording.tree();
    let other = Recording::from_tree(tree.clone());
    assert!(other.lock("lock").unwrap().is_some(), "who held it is gone");
    write_whole_in(&other, "two");
    assert!(recording.tree() == tree, "the trees share bytes, not changes");
    assert_eq!(other.tree().bytes("dir/file"), Some(&b"two"[..]));
    assert_eq!(other.log().steps(), 5, "the log begins with the tree");
    // A lock belongs to a file, not to a name.
    recording.remove("lock").unwrap();
    let another = recording.lock("lock").unwrap().unwrap();
    drop(lock);
    assert!(recording.lock("lock").unwrap().is_none(), "another one has it");
    drop(another);
    assert!(recording.lock("lock").unwrap().is_some());
}

fn write_whole_in(files: &dyn Files, text: &str) {
    files.make_dir("dir").unwrap();
    write_whole(files, "dir", "file", text.as_bytes()).unwrap();
}

#[test]
fn a_tree_can_be_damaged_by_hand() {
    let mut tree = Tree::default();
    tree.put("dir/deep/file", *b"bytes");
    let before = tree.clone();
    tree.put("dir/deep/file", *b"bYtes");
    assert!(tree != before);
    assert_eq!(before.bytes("dir/deep/file"), Some(&b"bytes"[..]));
    assert_eq!(tree.files().collect::<Vec<_>>(), [("dir/deep/file", &b"bYtes"[..])]);
    assert_eq!((tree.bytes("dir/deep"), tree.bytes("missing")), (None, None));
    assert_eq!(Recording::from_tree(tree).list("dir").unwrap(), ["deep"]);
}

#[test]
fn files_too_long_for_memory_are_refused() {
    let file = Recording::new().create("file", 0).unwrap();
    for at in [1 << 40, u64::MAX] {
        assert_eq!(file.write_at(at, b"x").unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    }
    assert_eq!(file.bytes().unwrap(), 0);
}
