//! The commands on pools from a user's view.

use std::{fs, path::Path};

use outcrop::{
    Store,
    pool::{Block, Options, Pool, SpillStore, Versioned},
};
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
    assert_eq!(json["flush"], "msync");
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
fn structures_of_every_kind_are_shown_verified_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::open(dir.path().join("sim.pool"), Options::versions(2)).unwrap();
    let mut times = pool.list::<f64>("times", Block::default()).unwrap();
    let mut mesh = pool.octree::<Cell>("mesh").unwrap();
    let mut web = pool.graph::<f64, f32>("web").unwrap();
    times.extend([1.0, 2.0, 3.0]);
    mesh.refine(mesh.root(), |_, place| Cell { rho: place.size(), level: place.level, flag: 0 });
    web.add_nodes([0.5; 4]);
    web.add_edges(&[(0, 1, 1.0), (3, 2, 1.0)]);
    pool.persist(&mut [&mut times, &mut mesh, &mut web]).unwrap();
    drop((times, mesh, web, pool));

    let shown = outcrop(dir.path(), &["pool", "show", "--json", "sim.pool"]);
    let json: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let parts = json["versions"][0]["structures"].as_array().unwrap();
    let parts: Vec<_> = parts.iter().map(|it| (it["name"].as_str().unwrap(), it["kind"].as_str().unwrap())).collect();
    let web = ["web", "web.offsets", "web.rows", "web.targets", "web.values"].map(|name| (name, "graph"));
    assert_eq!(parts[..3], [("mesh", "octree"), ("mesh.links", "octree"), ("times", "list")]);
    assert_eq!(parts[3..], web);
    let shown = text(&outcrop(dir.path(), &["pool", "show", "sim.pool"]).stdout);
    assert!(["octree", "list", "graph", "2 x 16"].iter().all(|word| shown.contains(word)), "{shown}");
    let verified = outcrop(dir.path(), &["pool", "verify", "sim.pool"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stdout));
    let exported = outcrop(dir.path(), &["pool", "export", "sim.pool", "--to", "out"]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    let names = ["mesh.bin", "mesh.links.npy", "times.npy", "web.npy", "web.offsets.npy", "web.rows.npy"];
    assert_eq!(entries(&dir.path().join("out"))[..6], names);
    let links = fs::read(dir.path().join("out/mesh.links.npy")).unwrap();
    assert!(text(&links[..100]).contains("'descr': '<u4', 'fortran_order': False, 'shape': (2, 16)"));
    let times = fs::read(dir.path().join("out/times.npy")).unwrap();
    assert_eq!(times[times.len() - 8..], 3f64.to_le_bytes());
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

#[test]
fn versions_that_were_spilled_are_read_as_those_of_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder().host("8 MiB").dir(dir.path().join("old"), None).pin(false).open().unwrap();
    let pool = Pool::open(dir.path().join("sim.pool"), Options::versions(20).limit(1 << 20)).unwrap();
    pool.spill_to(SpillStore::new(store.session("sim").unwrap()));
    let mut heat = pool.array::<f64>("heat", [300, 100], Block::default()).unwrap();
    for version in 1..=6 {
        heat[..].fill(f64::from(version));
        pool.persist(&mut [&mut heat]).unwrap();
    }
    drop((heat, pool, store));
    let listed = text(&outcrop(dir.path(), &["ls", "old"]).stdout);
    assert!(listed.contains("sim"), "{listed}");
    let shown = text(&outcrop(dir.path(), &["show", "old", "sim", "2"]).stdout);
    assert!(shown.contains("heat") && shown.contains("f64") && shown.contains("300 x 100"), "{shown}");
    let restored = outcrop(dir.path(), &["restore", "old", "sim", "2", "--to", "out"]);
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    let bytes = fs::read(dir.path().join("out/rank-00000/heat.bin")).unwrap();
    assert!(bytes.len() == 240_000 && bytes.chunks(8).all(|value| value == 2f64.to_le_bytes()));
}
