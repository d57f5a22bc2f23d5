//! A pool beside a model of it: what every version must be.

use std::collections::BTreeMap;

use fastrand::Rng;
use outcrop_pool::{Array, Block, Error, Options, Pool, Structure};
use outcrop_testing::{amount, covered};

use crate::medium::Recorded;

/// The elements of all arrays of a version, by name.
pub(crate) type Contents = BTreeMap<String, Vec<u64>>;

/// A program with some arrays, and what they should be.
pub(crate) struct Program {
    pub(crate) pool: Pool,
    pub(crate) arrays: BTreeMap<String, Array<u64>>,
    pub(crate) now: Contents,
    /// What was persisted or restored last.
    base: Contents,
    /// What every version that was ever attempted is.
    pub(crate) attempted: BTreeMap<u64, Contents>,
    pub(crate) versions_max: u64,
    rng: Rng,
}

/// So many elements are a page.
const PAGE: usize = 512;

impl Program {
    pub(crate) fn new(pool: Pool, versions_max: u64, seed: u64) -> Self {
        let (arrays, now, base, attempted) = Default::default();
        Self { pool, arrays, now, base, attempted, versions_max, rng: Rng::with_seed(seed) }
    }

    /// Opens an array; a new one has a random length, sometimes with several levels.
    pub(crate) fn open(&mut self, name: &str) {
        let len = match self.now.get(name) {
            Some(known) => known.len(),
            None if self.rng.u8(..30) == 0 => self.rng.usize(256 * PAGE..300 * PAGE),
            None => self.rng.usize(1..9 * PAGE),
        };
        let block = Block::elements(self.rng.usize(1..3 * PAGE));
        let array = self.pool.array::<u64>(name, len, block).unwrap();
        let expected = self.now.entry(name.to_owned()).or_insert_with(|| vec![0; len]);
        assert!(array[..] == expected[..], "{name} is something else");
        self.arrays.insert(name.to_owned(), array);
    }

    /// Goes on with what a pool has.
    pub(crate) fn continue_from(&mut self, contents: Contents) {
        (self.now, self.base) = (contents.clone(), contents);
        self.now.keys().cloned().collect::<Vec<_>>().iter().for_each(|name| self.open(name));
    }

    /// Changes some elements of some arrays.
    pub(crate) fn change(&mut self) {
        let rng = &mut self.rng;
        for (name, array) in &mut self.arrays {
            let expected = self.now.get_mut(name).unwrap();
            for _ in 0..rng.usize(..4) {
                let at = rng.usize(..array.len());
                match rng.u8(..4) {
                    0 => {
                        let end = (at + rng.usize(..2 * PAGE)).min(array.len());
                        let value = if rng.bool() { 0 } else { rng.u64(..) };
                        array[at..end].fill(value);
                        expected[at..end].fill(value);
                    }
                    // Marked, and the same.
                    1 => array[at] = expected[at],
                    _ => {
                        array[at] = rng.u64(..);
                        expected[at] = array[at];
                    }
                }
            }
        }
    }

    pub(crate) fn persist(&mut self) -> Result<u64, Error> {
        let next = self.pool.versions().last().map_or(1, |last| last + 1);
        let before = self.attempted.insert(next, self.now.clone());
        let mut structures: Vec<&mut dyn Structure> =
            self.arrays.values_mut().map(|array| array as &mut dyn Structure).collect();
        let persisted = self.pool.persist(&mut structures);
        if let (Err(Error::Poisoned { .. }), Some(before)) = (&persisted, before) {
            // Nothing was attempted.
            self.attempted.insert(next, before);
        }
        let persisted = persisted?;
        assert_eq!(persisted, next);
        self.base = self.now.clone();
        Ok(persisted)
    }

    /// Goes back to some version, if all open arrays are in it.
    pub(crate) fn restore(&mut self) {
        let versions = self.pool.versions();
        let Some(&version) = self.rng.choice(&versions) else { return };
        let known = &self.attempted[&version];
        let mut structures: Vec<&mut dyn Structure> =
            self.arrays.values_mut().map(|array| array as &mut dyn Structure).collect();
        let restored = self.pool.restore(version, &mut structures);
        match self.arrays.keys().all(|name| known.contains_key(name)) {
            true => {
                restored.unwrap();
                self.now = known.clone();
                self.base = known.clone();
            }
            false => assert!(restored.unwrap_err().to_string().contains("has no")),
        }
        self.check_now();
    }

    pub(crate) fn check_now(&self) {
        for (name, array) in &self.arrays {
            assert!(array[..] == self.now[name][..], "{name} is something else");
        }
    }

    /// Compares all versions that exist.
    pub(crate) fn check_versions(&self) {
        check_versions(&self.pool, &self.attempted);
        assert!(self.pool.versions().len() as u64 <= self.versions_max);
    }

    /// Does something at random.
    pub(crate) fn step(&mut self) {
        let name = format!("array {}", self.rng.u8(..3));
        match self.rng.u8(..12) {
            0 if self.arrays.remove(&name).is_some() => {
                // What was not persisted is lost.
                self.now.remove(&name);
                self.now.extend(self.base.get(&name).map(|durable| (name, durable.clone())));
            }
            0 | 1 if !self.arrays.contains_key(&name) => self.open(&name),
            2 => self.restore(),
            3..=7 => drop(self.persist().unwrap()),
            _ => self.change(),
        }
        self.check_now();
    }
}

/// That all versions that a pool has are what they were to be.
pub(crate) fn check_versions(pool: &Pool, attempted: &BTreeMap<u64, Contents>) {
    for version in pool.versions() {
        let view = pool.view(version).unwrap();
        view.verify().unwrap();
        let expected = &attempted[&version];
        assert!(
            view.names().eq(expected.keys().map(String::as_str)),
            "version {version}: {:?}",
            view.names().collect::<Vec<_>>()
        );
        for (name, values) in expected {
            assert!(view.array::<u64>(name).unwrap()[..] == values[..], "version {version}: {name} is something else");
        }
    }
}

#[test]
fn random_programs_have_what_they_persisted() {
    let programs = amount(60, 6000);
    for seed in 0..programs {
        let versions_max = 1 + seed % 4;
        // On a real file every other time: there blocks are mapped.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pool");
        let medium = Recorded::new(Vec::new());
        let open = || match seed % 2 {
            0 => Pool::open(&path, Options::versions(versions_max)).unwrap(),
            _ => Pool::on(Recorded::new(medium.stores.bytes()), Options::versions(versions_max)).unwrap(),
        };
        let pool = match seed % 2 {
            0 => open(),
            _ => Pool::on(medium.clone(), Options::versions(versions_max)).unwrap(),
        };
        let mut program = Program::new(pool, versions_max, seed);
        for _ in 0..60 {
            program.step();
            program.check_versions();
        }
        let Program { pool, arrays, attempted, .. } = program;
        let versions = pool.versions();
        drop((pool, arrays));
        let pool = open();
        assert_eq!((pool.versions(), pool.skipped()), (versions, Vec::new()), "seed {seed}");
        check_versions(&pool, &attempted);
    }
    covered("random programs with a pool", programs);
}
