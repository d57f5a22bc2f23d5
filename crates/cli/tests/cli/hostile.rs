//! The commands on stores under hostile conditions: too few descriptors, links and file names that
//! others have placed there, and impossible sizes.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::{Command, Output},
};

use outcrop::{Part, Store, store::RegionOptions};

use crate::common::{entries, outcrop, text};

const MIB: usize = 1 << 20;

/// Versions 1 to 3 of one rank in the directory `store`. Most of the region `sparse` is excluded.
fn store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::builder().host("8 MiB").dir(directory.path().join("store"), None).block("4 KiB").pin(false);
    let mut session = store.open().unwrap().session("heat").unwrap();
    let excluded = std::iter::once(MIB as u64..64 * MIB as u64).collect();
    session.region("sparse", RegionOptions { excluded, ..RegionOptions::default() });
    let sparse = vec![7u8; 64 * MIB];
    for version in 1..=3 {
        session.save(version, &[Part::new("field", &[version; 1000]), Part::new("sparse", &sparse)]).unwrap();
    }
    session.finish().unwrap();
    directory
}

/// Runs the program with so few descriptors that it can list a directory, but not open a file
/// twice.
fn without_descriptors(directory: &Path, arguments: &[&str]) -> Output {
    let script = "ulimit -n 4 && exec \"$0\" \"$@\"";
    let program = env!("CARGO_BIN_EXE_outcrop");
    Command::new("sh").args(["-c", script, program]).args(arguments).current_dir(directory).output().unwrap()
}

#[test]
fn who_could_not_read_says_so_and_does_not_succeed() {
    let directory = store();
    let path = directory.path();
    let before = entries(&path.join("store/heat/rank-00000"));
    let commands: [&[&str]; 12] = [
        &["verify", "store"],
        &["verify", "store", "--json"],
        &["verify", "store", "heat", "3"],
        &["ls", "store"],
        &["ls", "store", "--json"],
        &["show", "store", "heat"],
        &["show", "store", "heat", "3"],
        &["du", "store"],
        &["diff", "store", "heat", "1", "latest"],
        &["restore", "store", "heat", "--to", "out"],
        &["export", "store", "heat", "3", "--to", "out"],
        &["prune", "store", "heat", "--keep-last", "1", "--dry-run"],
    ];
    for arguments in commands {
        let output = without_descriptors(path, arguments);
        let (said, message) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(17), "{arguments:?}: {said}{message}");
        assert!(format!("{said}{message}").contains("Too many open files"), "{arguments:?}: {said}{message}");
        assert!(!said.contains("no damage\n") && !said.contains("\"is_verified\": true"), "{arguments:?}: {said}");
    }
    assert!(!outcrop(path, &["prune", "none", "heat", "--keep-last", "1"]).status.success());
    assert!(!without_descriptors(path, &["prune", "store", "heat", "--keep-last", "1"]).status.success());
    assert_eq!(entries(&path.join("store/heat/rank-00000")), before);
    assert!(!path.join("out").exists());
    // The store itself is fine.
    assert!(text(&outcrop(path, &["verify", "store"]).stdout).contains("no damage\n"));
}

#[test]
fn excluded_bytes_are_holes_in_restored_files() {
    let directory = store();
    let path = directory.path();
    assert!(outcrop(path, &["restore", "store", "heat", "--to", "out"]).status.success());
    let file = path.join("out/rank-00000/sparse.bin");
    let found = fs::metadata(&file).unwrap();
    assert_eq!(found.len(), 64 * MIB as u64);
    assert!(found.blocks() * 512 < 4 * MIB as u64, "{} blocks of 512 bytes", found.blocks());
    let bytes = fs::read(&file).unwrap();
    assert!(bytes[..MIB].iter().all(|&byte| byte == 7) && bytes[MIB..].iter().all(|&byte| byte == 0));
}

#[test]
fn restored_files_go_through_no_link() {
    let directory = store();
    let path = directory.path();
    let victim = path.join("victim");
    fs::create_dir(&victim).unwrap();
    fs::write(victim.join("precious"), "untouched").unwrap();
    let restore = ["restore", "store", "heat", "--to", "out", "--force"];
    // A link in place of a directory.
    fs::create_dir(path.join("out")).unwrap();
    symlink(&victim, path.join("out/rank-00000")).unwrap();
    let output = outcrop(path, &restore);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("is a link"), "{}", text(&output.stderr));
    assert_eq!(entries(&victim), ["precious"]);
    fs::remove_file(path.join("out/rank-00000")).unwrap();
    // A link in place of a file, and of an incomplete file.
    fs::create_dir(path.join("out/rank-00000")).unwrap();
    for name in ["field.bin", "field.bin.draft", "sparse.bin"] {
        symlink(victim.join("precious"), path.join("out/rank-00000").join(name)).unwrap();
    }
    fs::hard_link(victim.join("precious"), path.join("out/rank-00000/sparse.bin.draft")).unwrap();
    let output = outcrop(path, &restore);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::read(victim.join("precious")).unwrap(), b"untouched");
    assert_eq!(entries(&path.join("out/rank-00000")), ["field.bin", "sparse.bin"]);
    for name in ["field.bin", "sparse.bin"] {
        assert!(path.join("out/rank-00000").join(name).symlink_metadata().unwrap().is_file());
    }
    // Without --force, a link is not replaced either.
    symlink(victim.join("precious"), path.join("link")).unwrap();
    fs::rename(path.join("link"), path.join("out/rank-00000/field.bin")).unwrap();
    assert_eq!(outcrop(path, &restore[..5]).status.code(), Some(11));
    assert_eq!(fs::read(victim.join("precious")).unwrap(), b"untouched");
}

#[test]
fn names_that_others_have_chosen_do_not_reach_the_terminal() {
    let directory = store();
    let path = directory.path();
    fs::write(path.join("store/heat/rank-00000/\x1b]0;owned\x07\nno damage"), "").unwrap();
    let output = outcrop(path, &["verify", "store"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("foreign: heat/rank-00000/"), "{said}");
    assert!(!said.contains(['\x1b', '\x07']) && said.lines().count() == 2, "{said:?}");
}
