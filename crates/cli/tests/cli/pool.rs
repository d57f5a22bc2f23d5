//! The commands on pools from a user's view.

use std::{fs, path::Path};

use outcrop::pool::{Block, Options, Pool, Versioned};
use serde_json::Value;

use crate::common::{entries, outcrop, text};

#[derive(Versioned, Clone, Copy)]
struct Cell {
    rho: f64,
    level: u32,
    flag: u32,
}

/// Three versions, of which two are kept.
fn make(directory: &Path) {
    let pool = Pool::open(directory.join("sim.pool"), Options::versions(2)).unwrap();
    let mut heat = pool.array::<f64>("heat", [30, 40], Block::default()).unwrap();
    let mut grid = pool.array::<Cell>("grid", 1000, Block::default()).unwrap();
    for version in 1..4 {
        heat[[29, 39]] = f64::from(version);
        grid[999] = Cell { rho: 0.5, level: version, flag: 1 };
        pool.persist(&mut [&mut heat, &mut grid]).unwrap();
    }
}

#[test]
fn versions_are_shown_verified_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let shown = text(&outcrop(dir.path(), &["pool", "show", "sim.pool"]).stdout);
    for expected in ["2 versions", "heat", "f64", "30 x 40", "16 bytes", "15.6 KiB"] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let json: Value =
        serde_json::from_slice(&outcrop(dir.path(), &["pool", "show", "--json", "sim.pool"]).stdout).unwrap();
    assert_eq!((json["versions"][0]["version"].as_u64(), json["versions"][1]["version"].as_u64()), (Some(2), Some(3)));
    assert_eq!(json["versions"][1]["structures"][1]["element"], "f64");
    let verified = outcrop(dir.path(), &["pool", "verify", "sim.pool"]);
    assert_eq!(
        (verified.status.code(), text(&verified.stdout).trim()),
        (Some(0), "2 versions are as they were persisted")
    );

    let exported = outcrop(dir.path(), &["pool", "export", "sim.pool", "2", "--to", "out"]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    assert_eq!(entries(&dir.path().join("out")), ["grid.bin", "heat.npy"]);
    let heat = fs::read(dir.path().join("out/heat.npy")).unwrap();
    assert!(text(&heat[..100]).contains("'descr': '<f8', 'fortran_order': False, 'shape': (30, 40)"));
    assert_eq!(heat[heat.len() - 8..], 2f64.to_le_bytes());
    let grid = fs::read(dir.path().join("out/grid.bin")).unwrap();
    assert_eq!((grid.len(), &grid[16_000 - 8..16_000 - 4]), (16_000, &2u32.to_le_bytes()[..]));
    let again = outcrop(dir.path(), &["pool", "export", "sim.pool", "--to", "out"]);
    assert!(text(&again.stderr).contains("use --force"), "{}", text(&again.stderr));
    assert_eq!(outcrop(dir.path(), &["pool", "export", "sim.pool", "--to", "out", "--force"]).status.code(), Some(0));
    let heat = fs::read(dir.path().join("out/heat.npy")).unwrap();
    assert_eq!(heat[heat.len() - 8..], 3f64.to_le_bytes());
}

#[test]
fn damage_is_said_and_nothing_is_created() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let missing = outcrop(dir.path(), &["pool", "show", "other.pool"]);
    assert_eq!(missing.status.code(), Some(17));
    assert_eq!(entries(dir.path()), ["sim.pool"]);
    let none = outcrop(dir.path(), &["pool", "export", "sim.pool", "9", "--to", "out"]);
    assert_eq!(none.status.code(), Some(12));
    assert!(text(&none.stderr).contains("has no version 9; it has 2, 3"), "{}", text(&none.stderr));
    // A block of the newest version.
    let path = dir.path().join("sim.pool");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(8).rposition(|window| window == 3f64.to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let verified = outcrop(dir.path(), &["pool", "verify", "sim.pool"]);
    assert_eq!(verified.status.code(), Some(16));
    assert!(text(&verified.stdout).contains("version 3 is damaged"), "{}", text(&verified.stdout));
    assert_eq!(outcrop(dir.path(), &["pool", "export", "sim.pool", "--to", "out"]).status.code(), Some(16));
    assert_eq!(outcrop(dir.path(), &["pool", "export", "sim.pool", "2", "--to", "out"]).status.code(), Some(0));
    // A program that has it open.
    let pool = Pool::open(&path, Options::versions(2)).unwrap();
    let busy = outcrop(dir.path(), &["pool", "verify", "sim.pool"]);
    assert_eq!(busy.status.code(), Some(18), "{}", text(&busy.stderr));
    drop(pool);
}
