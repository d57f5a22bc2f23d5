//! Real power cuts: the disk of a store is shut down at any moment, and the store continues with
//! what is there when the power is back. Nothing is between the store and the disk: packs are
//! written with direct I/O and io_uring.

use std::{path::Path, sync::Arc, thread, time::Duration};

use fastrand::Rng;
use outcrop::{
    Reached, Retention, Session, Store,
    layers::files::{DiskFiles, Files},
    store::Compression,
};
use outcrop_crash::Tree;
use outcrop_testing::{Cut, Disk, FileSystem, alone, amount, covered, skip, with_own_mounts};

use crate::common::{
    State,
    history::{History, Promises, begun, durable},
    observed::{Observer, Place, judge},
    trees::{Forgets, forgetful},
};

const LAYERS: [&str; 2] = ["near", "far"];
const KEEP: Retention = Retention { keep_last: Some(2), keep_every: Some(8), keep_for_ns: None };

/// A machine whose power is cut again and again, and what was reported on it.
struct Machine<'a> {
    disk: &'a Disk,
    forgets: Option<Forgets>,
    history: History,
    marks: Vec<String>,
    random: Rng,
    state: State,
    version: u64,
    stamp: u64,
    /// Versions that were durable somewhere before a cut.
    reported: u64,
}

impl<'a> Machine<'a> {
    fn new(disk: &'a Disk, seed: u64, forgets: Option<Forgets>) -> Self {
        let mut random = Rng::with_seed(seed);
        let state = State::new(&mut random, 30_000);
        Self {
            disk,
            forgets,
            history: History::default(),
            marks: Vec::new(),
            random,
            state,
            version: 0,
            stamp: 0,
            reported: 0,
        }
    }

    fn open(&self) -> outcrop::Result<Session> {
        let store = Store::builder().host("4 MiB").block(1024).keep(KEEP).chain_max(3).threads(1).pin(false);
        let store = LAYERS.iter().fold(store.compression(Compression::Lz4), |store, layer| {
            let path = self.disk.path().join(layer);
            match self.forgets {
                None => store.dir(path, None),
                Some(forgets) => {
                    let files: Arc<dyn Files> = Arc::new(DiskFiles::create(&path).unwrap());
                    store.files(forgetful(files, forgets), None)
                }
            }
        });
        store.open()?.session("heat")
    }

    /// Saves until the power is cut.
    fn save(&mut self, cut: Cut) {
        let mut session = self.open().unwrap();
        let (before, pause) = (self.random.u64(..6), Duration::from_micros(self.random.u64(..20_000)));
        let disk = self.disk;
        // However slow the disk is, some versions exist when the power is cut.
        (0..before).for_each(|_| self.save_one(&mut session).unwrap());
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(pause);
                disk.cut(cut);
            });
            while self.save_one(&mut session).is_ok() {}
        });
        // The result does not matter: the power is off.
        let _ = session.finish();
    }

    fn save_one(&mut self, session: &mut Session) -> outcrop::Result<()> {
        self.version += 1;
        self.stamp += 1;
        let (version, stamp) = (self.version, self.stamp);
        self.state.step(&mut self.random, stamp);
        self.history.note("heat", 0, version, &self.state);
        self.marks.push(begun("heat", version, stamp));
        session.save(version, &self.state.parts())?;
        // Sometimes several versions are in flight.
        if self.random.u8(..3) > 0 {
            for layer in 0..LAYERS.len() {
                session.wait(version, Reached::Layer(layer + 1))?;
                self.marks.push(durable("heat", layer, version, stamp));
                self.reported += 1;
            }
        }
        Ok(())
    }

    /// Checks what is left, and continues from there.
    fn recover(&mut self) -> Result<(), String> {
        let promises = Promises::of(&self.marks);
        let tree = Tree::copy_of(&DiskFiles::open(self.disk.path()).unwrap()).map_err(|error| error.to_string())?;
        let places = [0, 1].map(|layer| Place { layer, rank: 0, medium: LAYERS[layer].to_owned() });
        judge(&mut Observer::new(&self.history, &places), &tree, &["heat"], &promises, &[KEEP; 2])?;
        let mut session = self.open().map_err(|error| error.to_string())?;
        match promises.check_latest(&self.history, &mut session, 0)? {
            Some((version, state)) => (self.version, self.state) = (version, state),
            None => self.version = 0,
        }
        session.finish().map_err(|error| error.to_string())
    }

    fn round(&mut self) -> Result<(), String> {
        let cut = [Cut::WithJournal, Cut::Sudden][self.random.usize(..2)];
        self.save(cut);
        self.disk.power_up();
        self.recover().map_err(|error| format!("{cut:?}: {error}"))
    }
}

fn with_disk(given: &Path, file_system: FileSystem, test: impl FnOnce(&Disk)) {
    match Disk::make(given, file_system) {
        Ok(disk) => test(&disk),
        Err(reason) => skip(format_args!("no {file_system:?} that could be shut down: {reason}")),
    }
}

fn cuts(file_system: FileSystem, count: u64) {
    let seed = std::env::var("OUTCROP_CRASH_SEED").ok().map_or(1, |seed| seed.parse().expect("a number"));
    with_own_mounts(|given| {
        with_disk(given, file_system, |disk| {
            let mut machine = Machine::new(disk, seed, None);
            for nth in 0..count {
                machine.round().unwrap_or_else(|error| panic!("seed {seed}, cut {nth} of {file_system:?}: {error}"));
            }
            assert!(machine.reported > count / 2, "the store hardly ever got to work");
            covered(&format!("power cuts of {file_system:?}"), format_args!("{count}, lost: 0"));
        });
    });
}

#[test]
fn no_power_cut_of_ext4_loses_what_was_durable() {
    if alone("store_power::no_power_cut_of_ext4_loses_what_was_durable") {
        return;
    }
    cuts(FileSystem::Ext4, amount(40, 1_000));
}

#[test]
fn no_power_cut_of_xfs_loses_what_was_durable() {
    if alone("store_power::no_power_cut_of_xfs_loses_what_was_durable") {
        return;
    }
    cuts(FileSystem::Xfs, amount(25, 500));
}

#[test]
fn a_sync_that_is_forgotten_shows_on_a_real_disk() {
    if alone("store_power::a_sync_that_is_forgotten_shows_on_a_real_disk") {
        return;
    }
    with_own_mounts(|given| {
        for forgets in [Forgets::SyncOfFiles, Forgets::SyncOfDirectories] {
            let given = given.join(format!("{forgets:?}"));
            std::fs::create_dir(&given).unwrap();
            with_disk(&given, FileSystem::Ext4, |disk| {
                let mut machine = Machine::new(disk, 1, Some(forgets));
                // Mostly one of the first few. But a later sync of a file also commits what the
                // journal has of directories, so that it depends on when the cut comes.
                assert!(
                    (0..2_000).any(|_| machine.round().is_err()),
                    "{forgets:?} lost nothing: these cuts prove nothing"
                );
            });
        }
    });
}
