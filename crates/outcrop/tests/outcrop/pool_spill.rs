//! Old versions of a pool that leave for a store.

use std::{path::Path, sync::Arc};

use outcrop::{
    ErrorKind, Store,
    pool::{Array, Block, Graph, List, Octree, Options, Pool, Quadtree, SpillStore, Versioned, View},
};
use outcrop_testing::{mount_memory, with_own_mounts};

#[derive(Versioned, Clone, Copy, PartialEq, Debug)]
struct Cell {
    rho: f64,
    level: u32,
    flag: u32,
}

const LEN: usize = 10_000;

struct Program {
    pool: Pool,
    heat: Array<f64>,
    grid: Array<Cell>,
}

impl Program {
    fn open(dir: &Path, old: &Arc<SpillStore>) -> Self {
        let pool = Pool::open(dir.join("sim.pool"), Options::versions(20).limit(1 << 20)).unwrap();
        pool.spill_to(Arc::clone(old));
        let heat = pool.array::<f64>("heat", [100, 100], Block::default()).unwrap();
        let grid = pool.array::<Cell>("grid", LEN, Block::elements(512)).unwrap();
        Self { pool, heat, grid }
    }

    fn change(&mut self, version: u64) {
        // Half of the cells change with every other version.
        let cells = cells(version);
        self.grid[..LEN / 2].copy_from_slice(&cells[..LEN / 2]);
        if version % 2 == 1 {
            self.grid[LEN / 2..].copy_from_slice(&cells[LEN / 2..]);
        }
        self.heat[..].copy_from_slice(&temperatures(version));
    }

    fn persist(&mut self) -> outcrop::Result<u64> {
        Ok(self.pool.persist(&mut [&mut self.heat, &mut self.grid])?)
    }
}

fn temperatures(version: u64) -> Vec<f64> {
    (0..LEN).map(|index| (version * 1_000_000) as f64 + index as f64).collect()
}

fn cells(version: u64) -> Vec<Cell> {
    let cell = |index: usize| {
        let level = if index < LEN / 2 { version } else { version.div_ceil(2) * 2 - 1 };
        Cell { rho: level as f64 / 3.0, level: level as u32, flag: 7 }
    };
    (0..LEN).map(cell).collect()
}

fn spill_store(dir: &Path) -> Arc<SpillStore> {
    let store = Store::builder().host("8 MiB").dir(dir, None).block("4 KiB").pin(false).open().unwrap();
    Arc::new(SpillStore::new(store.session("sim").unwrap()))
}

fn check(old: &SpillStore, versions: &[u64]) {
    assert_eq!(old.versions(), versions);
    for &version in versions {
        assert!(old.array::<f64>(version, "heat").unwrap() == temperatures(version), "version {version}");
        assert!(old.array::<Cell>(version, "grid").unwrap() == cells(version), "version {version}");
    }
}

#[test]
fn spilled_versions_are_the_same_and_the_next_run_goes_on_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let old = spill_store(&dir.path().join("old"));
    let mut program = Program::open(dir.path(), &old);
    let mut version = 0;
    while old.versions().len() < 4 {
        version += 1;
        program.change(version);
        assert_eq!(program.persist().unwrap(), version);
    }
    let here = program.pool.versions();
    check(&old, &[1, 2, 3, 4]);
    assert_eq!(here, (5..=version).collect::<Vec<_>>());
    assert_eq!(old.array::<f32>(1, "heat").unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(old.array::<f64>(1, "cold").unwrap_err().kind(), ErrorKind::Missing);
    assert_eq!(old.array::<f64>(9, "heat").unwrap_err().kind(), ErrorKind::Missing);
    drop((program, old));
    let old = spill_store(&dir.path().join("old"));
    let mut program = Program::open(dir.path(), &old);
    assert!(program.heat[..] == temperatures(version)[..] && program.grid[..] == cells(version)[..]);
    while old.versions().len() < 6 {
        version += 1;
        program.change(version);
        program.persist().unwrap();
    }
    check(&old, &[1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_was_spilled_before_a_crash_is_compared_when_it_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let (old, path) = (spill_store(&dir.path().join("old")), dir.path().join("sim.pool"));
    let mut program = Program::open(dir.path(), &old);
    let mut version = 0;
    let mut before = Vec::new();
    while old.versions().is_empty() {
        before = std::fs::read(&path).unwrap();
        version += 1;
        program.change(version);
        program.persist().unwrap();
    }
    drop(program);
    // As if the machine had stopped after the store had it, and before the pool knew.
    std::fs::write(&path, &before).unwrap();
    let mut program = Program::open(dir.path(), &old);
    assert!(program.pool.versions().contains(&1));
    program.change(version);
    assert_eq!(program.persist().unwrap(), version);
    assert!(!program.pool.versions().contains(&1));
    check(&old, &[1]);
    drop(program);
    // Another pool has another first version: the store's is not replaced, and nothing is lost.
    std::fs::remove_file(&path).unwrap();
    let mut other = Program::open(dir.path(), &old);
    let error = (1..).find_map(|version| {
        other.change(version + 10);
        other.persist().err()
    });
    assert!(error.unwrap().to_string().contains("has another version 1 already"));
    assert_eq!(other.pool.versions()[0], 1);
    check(&old, &[1]);
}

#[test]
fn a_store_that_fails_loses_nothing() {
    with_own_mounts(|given| {
        let near = tempfile::tempdir().unwrap();
        mount_memory(given, c"size=1m");
        let old = spill_store(&given.join("old"));
        // It is full after one or two of them.
        let mut program = Program::open(near.path(), &old);
        let mut version = 0;
        let error = loop {
            version += 1;
            program.change(version);
            if let Err(error) = program.persist() {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Storage);
        assert!(error.to_string().contains("cannot be spilled"), "{error}");
        let (here, there) = (program.pool.versions(), old.versions());
        let all: Vec<u64> = (1..version).collect();
        assert!(all.iter().all(|one| here.contains(one) || there.contains(one)), "{here:?} {there:?}");
        for version in here {
            let view = program.pool.view(version).unwrap();
            assert!(view.array::<f64>("heat").unwrap()[..] == temperatures(version)[..]);
            assert!(view.array::<Cell>("grid").unwrap()[..] == cells(version)[..]);
        }
        assert!(program.heat[..] == temperatures(version)[..]);
    });
}

/// A program with a structure of each kind.
struct Kinds {
    pool: Pool,
    heat: Array<f64>,
    times: List<f64>,
    mesh: Octree<Cell>,
    map: Quadtree<u64>,
    web: Graph<f64, f32>,
}

impl Kinds {
    fn open(dir: &Path, old: &Arc<SpillStore>) -> Self {
        let pool = Pool::open(dir.join("kinds.pool"), Options::versions(20).limit(2 << 20)).unwrap();
        pool.spill_to(Arc::clone(old));
        let heat = pool.array("heat", [30, 20, 10], Block::default()).unwrap();
        let times = pool.list("times", Block::default()).unwrap();
        let (mesh, map) = (pool.octree("mesh").unwrap(), pool.quadtree("map").unwrap());
        let web = pool.graph("web").unwrap();
        Self { pool, heat, times, mesh, map, web }
    }

    fn change(&mut self, version: u64) {
        self.heat[..].fill(version as f64);
        self.times.extend((0..100).map(|nth| (version * 100 + nth) as f64));
        let leaf = self.mesh.leaves().nth(version as usize % 5 * 3 % self.mesh.leaf_count()).unwrap();
        self.mesh.refine(leaf, |_, place| Cell { rho: version as f64, level: place.level, flag: 1 });
        if version.is_multiple_of(3) {
            let parents: Vec<_> = self.mesh.leaves().filter_map(|leaf| self.mesh.parent(leaf)).collect();
            let one = *parents.iter().find(|parent| self.mesh.can_coarsen(**parent)).unwrap();
            self.mesh.coarsen(one, |children| children[0]);
        }
        let corner = self.map.find([0.9, 0.9]).unwrap();
        self.map.refine(corner, |parent, _| parent + version);
        let first = self.web.add_nodes((0..50).map(f64::from)).start;
        self.web.add_edges(&(0..40).map(|nth| (first + nth, nth, version as f32)).collect::<Vec<_>>());
    }

    fn persist(&mut self) -> u64 {
        let Self { pool, heat, times, mesh, map, web } = self;
        pool.persist(&mut [heat, times, mesh, map, web]).unwrap()
    }

    fn restore_from(&mut self, version: &View) -> outcrop::Result<()> {
        let Self { pool, heat, times, mesh, map, web } = self;
        Ok(pool.restore_from(version, &mut [heat, times, mesh, map, web])?)
    }

    /// All that a program can tell apart.
    fn seen(&self) -> String {
        let mesh: Vec<_> = self.mesh.leaves().map(|leaf| (self.mesh.place(leaf), self.mesh[leaf])).collect();
        let map: Vec<_> = self.map.leaves().map(|leaf| (self.map.place(leaf), self.map[leaf])).collect();
        let web: Vec<_> = self.web.all_edges().collect();
        format!("{:?} {:?} {mesh:?} {map:?} {:?} {web:?}", &self.heat[..], &self.times[..], self.web.nodes())
    }
}

/// The same of a view.
fn seen(view: &View) -> String {
    let (heat, times) = (view.array::<f64>("heat").unwrap(), view.list::<f64>("times").unwrap());
    assert_eq!(heat.shape(), [30, 20, 10]);
    let (mesh, map) = (view.octree::<Cell>("mesh").unwrap(), view.quadtree::<u64>("map").unwrap());
    let web = view.graph::<f64, f32>("web").unwrap();
    let mesh: Vec<_> = mesh.leaves().map(|leaf| (mesh.place(leaf), mesh[leaf])).collect();
    let map: Vec<_> = map.leaves().map(|leaf| (map.place(leaf), map[leaf])).collect();
    let edges: Vec<_> = web.all_edges().collect();
    format!("{:?} {:?} {mesh:?} {map:?} {:?} {edges:?}", &heat[..], &times[..], web.nodes())
}

#[test]
fn spilled_lists_trees_and_graphs_are_what_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let old = spill_store(&dir.path().join("old"));
    let mut program = Kinds::open(dir.path(), &old);
    let mut saw = Vec::new();
    while old.versions().len() < 6 {
        program.change(saw.len() as u64 + 1);
        saw.push(program.seen());
        assert_eq!(program.persist(), saw.len() as u64);
    }
    for version in 1..=6 {
        let view = old.view(version).unwrap();
        assert_eq!(view.version(), version);
        view.verify().unwrap();
        assert_eq!(seen(&view), saw[version as usize - 1], "version {version}");
    }
    assert_eq!(old.view(99).unwrap_err().kind(), ErrorKind::Missing);
    // The program goes on from one of them, as from a version of the pool.
    program.restore_from(&old.view(4).unwrap()).unwrap();
    assert_eq!(program.seen(), saw[3]);
    program.change(5);
    assert_eq!(program.seen(), saw[4], "handles, free places and segments are those of version 4");
    let again = program.persist();
    drop(program);
    let program = Kinds::open(dir.path(), &old);
    program.pool.view(again).unwrap().verify().unwrap();
    assert_eq!(program.seen(), saw[4]);
}

#[test]
fn what_a_pool_has_not_spilled_is_no_version_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::builder().host("8 MiB").dir(dir.path().join("old"), None).pin(false).open().unwrap();
    let mut session = store.session("sim").unwrap();
    session.save(1, &[outcrop::Part::new("heat", &[1.0, 2.0])]).unwrap();
    session.save(2, &[outcrop::Part::new("pool.contents", &[7u8; 300])]).unwrap();
    let old = SpillStore::new(session);
    let error = old.view(1).unwrap_err();
    assert!(error.to_string().contains("no pool has spilled version 1"), "{error}");
    assert_eq!(old.view(2).unwrap_err().kind(), ErrorKind::Damaged);
}
