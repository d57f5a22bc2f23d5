//! A pool beside a model of it: what every version must be.

use std::collections::BTreeMap;

use fastrand::Rng;
use outcrop_pool::{Error, Options, Pool, Structure};
use outcrop_testing::{amount, covered};

use crate::{
    kinds::{Content, Opened},
    medium::Recorded,
};

/// All structures of a version, by name.
pub(crate) type Contents = BTreeMap<String, Content>;

/// Names of structures that a program may have.
const NAMES: [&str; 8] = ["array 0", "array 1", "list 0", "list 1", "quadtree 0", "octree 0", "graph 0", "graph 1"];

/// A program with some structures, and what they should be.
pub(crate) struct Program {
    pub(crate) pool: Pool,
    pub(crate) opened: BTreeMap<String, Opened>,
    pub(crate) now: Contents,
    /// What was persisted or restored last.
    base: Contents,
    /// What every version that was ever attempted is.
    pub(crate) attempted: BTreeMap<u64, Contents>,
    pub(crate) versions_max: u64,
    rng: Rng,
}

impl Program {
    pub(crate) fn new(pool: Pool, versions_max: u64, seed: u64) -> Self {
        let (opened, now, base, attempted) = Default::default();
        Self { pool, opened, now, base, attempted, versions_max, rng: Rng::with_seed(seed) }
    }

    /// Opens a structure. The first word of its name says what kind it is.
    pub(crate) fn open(&mut self, name: &str) {
        let rng = &mut self.rng;
        let content = self.now.entry(name.to_owned()).or_insert_with(|| Content::new(name, rng));
        let opened = Opened::open(&self.pool, name, content, rng);
        opened.check(content);
        self.opened.insert(name.to_owned(), opened);
    }

    /// Goes on with what a pool has.
    pub(crate) fn continue_from(&mut self, contents: Contents) {
        (self.now, self.base) = (contents.clone(), contents);
        self.now.keys().cloned().collect::<Vec<_>>().iter().for_each(|name| self.open(name));
    }

    /// Changes some of some structures.
    pub(crate) fn change(&mut self) {
        for (name, opened) in &mut self.opened {
            opened.change(self.now.get_mut(name).unwrap(), &mut self.rng);
        }
    }

    /// Says where parts of structures are to be kept, which changes none.
    fn place(&mut self) {
        self.opened.values_mut().for_each(|opened| opened.place(&mut self.rng));
    }

    pub(crate) fn persist(&mut self) -> Result<u64, Error> {
        let next = self.pool.versions().last().map_or(1, |last| last + 1);
        let before = self.attempted.insert(next, self.now.clone());
        let mut structures: Vec<&mut dyn Structure> = self.opened.values_mut().map(Opened::structure).collect();
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

    /// Goes back to some version, if all open structures are in it.
    pub(crate) fn restore(&mut self) {
        let versions = self.pool.versions();
        let Some(&version) = self.rng.choice(&versions) else { return };
        let known = &self.attempted[&version];
        let mut structures: Vec<&mut dyn Structure> = self.opened.values_mut().map(Opened::structure).collect();
        let restored = self.pool.restore(version, &mut structures);
        match self.opened.keys().all(|name| known.contains_key(name)) {
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
        self.opened.iter().for_each(|(name, opened)| opened.check(&self.now[name]));
    }

    /// Compares all versions that exist.
    pub(crate) fn check_versions(&self) {
        check_versions(&self.pool, &self.attempted);
        assert!(self.pool.versions().len() as u64 <= self.versions_max);
    }

    /// Does something at random.
    pub(crate) fn step(&mut self) {
        let name = (*self.rng.choice(&NAMES).unwrap()).to_owned();
        match self.rng.u8(..13) {
            0 if self.opened.remove(&name).is_some() => {
                // What was not persisted is lost.
                self.now.remove(&name);
                self.now.extend(self.base.get(&name).map(|durable| (name, durable.clone())));
            }
            0 | 1 if !self.opened.contains_key(&name) => self.open(&name),
            2 => self.restore(),
            3..=7 => drop(self.persist().unwrap()),
            8 => self.place(),
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
        expected.iter().for_each(|(name, content)| content.check_view(&view, name));
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
        let options = Options::versions(versions_max);
        // Sometimes there is DRAM for some blocks only, or for none.
        let options = if seed % 3 == 0 { options.dram(seed % 5 * 4096) } else { options };
        let open = || match seed % 2 {
            0 => Pool::open(&path, options.clone()).unwrap(),
            _ => Pool::on(Recorded::new(medium.stores.bytes()), options.clone()).unwrap(),
        };
        let pool = match seed % 2 {
            0 => open(),
            _ => Pool::on(medium.clone(), options.clone()).unwrap(),
        };
        let mut program = Program::new(pool, versions_max, seed);
        for _ in 0..60 {
            program.step();
            program.check_versions();
        }
        let Program { pool, opened, attempted, .. } = program;
        let versions = pool.versions();
        drop((pool, opened));
        let pool = open();
        assert_eq!((pool.versions(), pool.skipped()), (versions, Vec::new()), "seed {seed}");
        check_versions(&pool, &attempted);
    }
    covered("random programs with a pool", programs);
}
