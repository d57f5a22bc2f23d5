//! Crashes at every moment, with everything that they can leave behind: what was reported durable
//! is found again.
//!
//! A store works on recordings. For each image of what a crash could have left of them, what is
//! there must be a version that was saved, whole, and not older than what had been reported. Most
//! images are looked at without being changed; some are opened, saved to, and opened again; and of
//! some the recovery itself is recorded and crashed.
//!
//! Threads make every log another one, though its scenario is the same for the same seed: a failure
//! therefore leaves the files of its image behind, besides its name and story.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fastrand::Rng;
use outcrop::{
    Reached, Retention, Session, Store, StoreBuilder, Way,
    layers::files::Files,
    store::{Compression, Dedup, SharedDirectory},
};
use outcrop_crash::{Errno, Failing, Fault, Image, Options, Recording, Report, Tree, check};
use outcrop_testing::{amount, covered, say};

use crate::common::{
    State,
    history::{History, Promises, durable, forgotten, rewinding},
    trees::{Forgets, below, forgetful, tree_of},
};

const LAYERS: [&str; 2] = ["near", "far"];
const SESSIONS: [&str; 2] = ["heat", "flow"];

/// So many images are tried at least, of which no two are the same.
fn images_min() -> u64 {
    amount(20_000, 200_000)
}
/// Of so many images one is opened as a store, and saved to.
const OPENED_EVERY: u64 = 60;
/// Of so many images that are opened, the recovery of one is crashed as well.
const CRASHED_EVERY: u64 = 12;

/// What a store is like, and what is done with it; drawn from a seed.
#[derive(Debug, Clone)]
struct Scenario {
    seed: u64,
    layers: usize,
    sessions: usize,
    ranks: u32,
    steps: u64,
    field_bytes: usize,
    block_bytes: u64,
    keep_last: u32,
    chain_max: usize,
    in_flight: usize,
    compression: Compression,
    dedup: Dedup,
    tracking: Way,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        Self {
            seed,
            layers: 1 + seed as usize % 2,
            sessions: random.usize(1..=2),
            ranks: 1,
            steps: 14,
            field_bytes: [3000, 9000, 40_000, 150_000][random.usize(..4)],
            block_bytes: [256, 1024, 4096][random.usize(..3)],
            keep_last: random.u32(2..=3),
            chain_max: random.usize(2..=3),
            in_flight: random.usize(1..=3),
            compression: [Compression::None, Compression::Lz4, Compression::Zstd(3)][random.usize(..3)],
            dedup: [Dedup::Versions, Dedup::Inside][random.usize(..2)],
            tracking: [Way::Everything, Way::Chosen][random.usize(..2)],
        }
    }

    fn of_ranks(seed: u64) -> Self {
        let dedup = [Dedup::Versions, Dedup::Ranks][seed as usize % 2];
        Self { ranks: 2, steps: 8, dedup, sessions: 1, ..Self::new(seed) }
    }

    fn keep(&self) -> Retention {
        Retention { keep_last: Some(self.keep_last), ..Retention::default() }
    }

    fn builder(&self, files: &Arc<dyn Files>) -> StoreBuilder {
        let builder = Store::builder()
            .host("1 MiB")
            .block(self.block_bytes)
            .keep(self.keep())
            .chain_max(self.chain_max)
            .in_flight(self.in_flight)
            .compression(self.compression)
            .dedup(self.dedup)
            .tracking(self.tracking)
            .threads(1)
            .pin(false);
        let layers = LAYERS[..self.layers].iter();
        layers.fold(builder, |builder, layer| builder.files(below(files, layer), None))
    }

    fn recording(&self) -> Recording {
        Recording::from_tree(tree_of(&LAYERS[..self.layers]))
    }
}

/// A program that saves, as one rank.
struct Program<'a> {
    scenario: &'a Scenario,
    files: Arc<dyn Files>,
    recording: &'a Recording,
    history: &'a History,
    ranks: Option<(&'a Path, u32)>,
    /// The same on all ranks, so that all do the same.
    random: Rng,
    stamp: u64,
    sessions: Vec<Session>,
    states: Vec<State>,
    versions: Vec<u64>,
}

impl<'a> Program<'a> {
    fn new(scenario: &'a Scenario, files: Arc<dyn Files>, recording: &'a Recording, history: &'a History) -> Self {
        let mut random = Rng::with_seed(scenario.seed);
        let states = (0..scenario.sessions).map(|_| State::new(&mut random, scenario.field_bytes)).collect();
        let versions = vec![0; scenario.sessions];
        Self {
            scenario,
            files,
            recording,
            history,
            ranks: None,
            random,
            stamp: 1,
            sessions: Vec::new(),
            states,
            versions,
        }
    }

    fn rank(&self) -> u32 {
        self.ranks.map_or(0, |(_, rank)| rank)
    }

    fn open(&mut self) -> outcrop::Result<()> {
        self.sessions.clear();
        let mut builder = self.scenario.builder(&self.files);
        if let Some((talk, rank)) = self.ranks {
            let patience = Duration::from_secs(60);
            builder = builder.ranks(SharedDirectory::open_with(talk, rank, self.scenario.ranks, patience)?);
        }
        let store = builder.open()?;
        let names = &SESSIONS[..self.scenario.sessions];
        self.sessions = names.iter().map(|name| store.session(name)).collect::<outcrop::Result<_>>()?;
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        self.open().map_err(text)?;
        for _ in 0..self.scenario.steps {
            let which = self.random.usize(..self.sessions.len());
            match self.random.u8(..12) {
                0 => self.reopen()?,
                1 => self.rewind(which)?,
                _ => self.save(which).map_err(text)?,
            }
        }
        (0..self.sessions.len()).try_for_each(|which| self.wait(which)).map_err(text)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<(), String> {
        self.sessions.drain(..).try_for_each(Session::finish).map_err(text)
    }

    fn save(&mut self, which: usize) -> outcrop::Result<()> {
        let version = self.versions[which] + self.random.u64(1..3);
        self.states[which].step(&mut self.random, self.stamp);
        self.stamp += 1;
        let mut state = self.states[which].clone();
        // What ranks save differs, but not in all blocks.
        state.field[..100].fill(self.rank() as u8 + 1);
        self.history.note(SESSIONS[which], self.rank(), version, &state);
        self.sessions[which].save(version, &state.parts())?;
        self.versions[which] = version;
        if self.random.u8(..3) > 0 { self.wait(which) } else { Ok(()) }
    }

    /// Waits for the newest version, and says so.
    fn wait(&mut self, which: usize) -> outcrop::Result<()> {
        let (session, version) = (&self.sessions[which], self.versions[which]);
        if !session.versions().contains(&version) {
            return Ok(());
        }
        for layer in 0..self.scenario.layers {
            session.wait(version, Reached::Layer(layer + 1))?;
            self.say_durable(which, layer);
        }
        Ok(())
    }

    fn say_durable(&self, which: usize, layer: usize) {
        let (version, stamp) = (self.versions[which], self.states[which].stamp);
        self.recording.mark(durable(SESSIONS[which], layer, version, stamp));
    }

    /// Ends all sessions, and goes on with what is found.
    fn reopen(&mut self) -> Result<(), String> {
        self.finish()?;
        self.open().map_err(text)?;
        (0..self.sessions.len()).try_for_each(|which| self.take_up(which))
    }

    /// Restores the newest version, which must be the one that was saved last.
    fn take_up(&mut self, which: usize) -> Result<(), String> {
        let (rank, expected) = (self.rank(), self.versions[which]);
        match Promises::default().check_latest(self.history, &mut self.sessions[which], rank)? {
            Some((version, state)) if version == expected => self.states[which] = state,
            None if expected == 0 => {}
            found => return Err(format!("version {expected} was saved last, and there is {found:?}")),
        }
        Ok(())
    }

    fn rewind(&mut self, which: usize) -> Result<(), String> {
        self.sessions[which].flush().map_err(text)?;
        let versions = self.sessions[which].versions();
        let Some(&version) = versions.iter().rev().nth(self.random.usize(..2)) else { return Ok(()) };
        self.recording.mark(rewinding(SESSIONS[which], version, self.stamp));
        self.sessions[which].rewind(Some(version)).map_err(text)?;
        self.recording.mark(forgotten(SESSIONS[which], version, self.stamp));
        self.versions[which] = version;
        self.take_up(which)
    }
}

fn text(error: outcrop::Error) -> String {
    error.to_string()
}

/// A recording of a scenario, and what was saved in it.
struct Recorded {
    scenario: Scenario,
    recording: Recording,
    history: History,
}

/// Carries out a scenario on files that may be made worse than they are.
fn record(scenario: Scenario, worse: impl Fn(Arc<dyn Files>) -> Arc<dyn Files>) -> Recorded {
    let (recording, history) = (scenario.recording(), History::default());
    let files = worse(Arc::new(recording.clone()));
    if scenario.ranks == 1 {
        let mut program = Program::new(&scenario, files, &recording, &history);
        program.run().unwrap_or_else(|error| panic!("{scenario:?}: {error}"));
    } else {
        let talk = tempfile::tempdir().unwrap();
        thread::scope(|scope| {
            for rank in 0..scenario.ranks {
                let mut program = Program::new(&scenario, Arc::clone(&files), &recording, &history);
                program.ranks = Some((talk.path(), rank));
                let scenario = &scenario;
                scope.spawn(move || {
                    program.run().unwrap_or_else(|error| panic!("rank {rank} of {scenario:?}: {error}"))
                });
            }
        });
    }
    Recorded { scenario, recording, history }
}

/// How many images were tried, by the way in which they were.
#[derive(Default)]
struct Counts {
    images: AtomicU64,
    distinct: AtomicU64,
    opened: AtomicU64,
    recoveries: AtomicU64,
}

impl Counts {
    fn add(&self, report: &Report) {
        self.images.fetch_add(report.images, Relaxed);
        self.distinct.fetch_add(report.distinct, Relaxed);
    }
}

impl Recorded {
    /// Tries all images.
    fn check(&self, options: &Options, counts: &Counts) -> Report {
        let mut nth = 0;
        let report = check(&self.recording.log(), options, |image, marks| {
            nth += 1;
            self.look(image.tree(), &Promises::of(marks), nth % 8 == 0)?;
            if nth % OPENED_EVERY == 0 {
                let is_crashed = nth % (OPENED_EVERY * CRASHED_EVERY) == 0;
                self.open(image, marks, is_crashed.then_some(counts))?;
                counts.opened.fetch_add(1, Relaxed);
            }
            Ok(())
        });
        counts.add(&report);
        report
    }

    /// Looks at an image without changing it.
    fn look(&self, tree: &Tree, promises: &Promises, is_thorough: bool) -> Result<(), String> {
        let files: Arc<dyn Files> = Arc::new(Recording::from_tree(tree.clone()));
        for (index, layer) in LAYERS[..self.scenario.layers].iter().enumerate() {
            let layer_files = below(&files, layer);
            for session in &SESSIONS[..self.scenario.sessions] {
                let kept = (*session, self.scenario.keep_last as usize);
                promises.check_layer(&self.history, &layer_files, index, kept, is_thorough)?;
            }
        }
        Ok(())
    }

    /// Opens an image, goes on from what is found, saves, and looks whether that comes back. All
    /// that can be crashed once more.
    fn open(&self, image: &Image<'_>, marks_before: &[String], crashed: Option<&Counts>) -> Result<(), String> {
        let recording = Recording::from_tree(image.tree().clone());
        self.go_on_and_find(&recording, marks_before)?;
        if let Some(counts) = crashed {
            let options = Options { subset_operations_max: 3, samples: 3, seed: self.scenario.seed };
            let mut nth = 0;
            let report = check(&recording.log(), &options, |image, marks| {
                nth += 1;
                let all = [marks_before, marks].concat();
                self.look(image.tree(), &Promises::of(&all), nth % 4 == 0)
            });
            counts.add(&report);
            counts.recoveries.fetch_add(1, Relaxed);
            if let Some(failure) = report.failure {
                return Err(format!("in a crash of the recovery, {failure}"));
            }
        }
        Ok(())
    }

    /// Goes on with what is there, and looks whether what is saved then comes back. What was
    /// promised before still holds.
    fn go_on_and_find(&self, recording: &Recording, marks_before: &[String]) -> Result<(), String> {
        let files: Arc<dyn Files> = Arc::new(recording.clone());
        let promises = || Promises::of(&[marks_before, recording.log().marks()].concat());
        let before = promises();
        self.together(&|program| program.go_on(&before), recording, &files)?;
        let after = promises();
        self.together(&|program| program.find_again(&after), recording, &files)
    }

    /// Lets all ranks do the same.
    fn together(
        &self,
        act: &(dyn Fn(&mut Program<'_>) -> Result<(), String> + Sync),
        recording: &Recording,
        files: &Arc<dyn Files>,
    ) -> Result<(), String> {
        let program = || {
            let mut program = Program::new(&self.scenario, Arc::clone(files), recording, &self.history);
            // Nothing in the recording has such a stamp.
            program.stamp = 1_000_000;
            program
        };
        if self.scenario.ranks == 1 {
            return act(&mut program());
        }
        let talk = tempfile::tempdir().map_err(|error| error.to_string())?;
        thread::scope(|scope| {
            let start = |rank| {
                let mut program = program();
                program.ranks = Some((talk.path(), rank));
                scope.spawn(move || act(&mut program))
            };
            let ranks: Vec<_> = (0..self.scenario.ranks).map(start).collect();
            let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
            outcomes.into_iter().collect()
        })
    }
}

impl Program<'_> {
    /// After a crash: restores what is there, and saves a version.
    fn go_on(&mut self, promises: &Promises) -> Result<(), String> {
        self.open().map_err(text)?;
        for which in 0..self.sessions.len() {
            let rank = self.rank();
            if let Some((version, state)) = promises.check_latest(self.history, &mut self.sessions[which], rank)? {
                (self.versions[which], self.states[which]) = (version, state);
                // From here on the program relies on it.
                for layer in 0..self.scenario.layers {
                    if self.sessions[which].wait(version, Reached::Layer(layer + 1)).is_ok() {
                        self.say_durable(which, layer);
                    }
                }
            }
            self.save(which).map_err(text)?;
            self.wait(which).map_err(text)?;
        }
        self.finish()
    }

    /// Restores what is there once more.
    fn find_again(&mut self, promises: &Promises) -> Result<(), String> {
        self.open().map_err(text)?;
        let rank = self.rank();
        for session in &mut self.sessions {
            let found = promises.check_latest(self.history, session, rank)?;
            let (version, state) = found.ok_or("what was saved after the crash is gone")?;
            if state.stamp < 1_000_000 {
                return Err(format!("version {version} from before the crash is newer than what was saved after it"));
            }
        }
        self.finish()
    }
}

/// Puts the files of the image that failed where somebody can look at them, and panics.
fn give_up(recorded: &Recorded, report: &Report) -> ! {
    let failure = report.failure.as_ref().expect("a failure");
    let dir = std::env::temp_dir().join(format!("outcrop-crash-image-{}", std::process::id()));
    if let Ok(image) = recorded.recording.log().image(failure.id) {
        for (name, bytes) in image.tree().files() {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
    panic!("{:?}\n{report}\n{failure}\nits files are in {}", recorded.scenario, dir.display());
}

/// The first seed: always the same, unless another one is asked for.
fn first_seed() -> u64 {
    let text = std::env::var("OUTCROP_CRASH_SEED").unwrap_or_else(|_| "1".to_owned());
    text.parse().expect("OUTCROP_CRASH_SEED is a number")
}

#[test]
fn no_crash_loses_what_was_durable() {
    let images_min = images_min();
    let (counts, first, taken) = (Counts::default(), first_seed(), AtomicU64::new(0));
    say(format_args!("crash images: the first seed is {first}"));
    let next = || {
        let nth = taken.fetch_add(1, Relaxed);
        // All kinds of scenarios come, however many images each of them has.
        let is_wanted = nth < 24 || counts.distinct.load(Relaxed) < images_min;
        let make = if nth % 4 == 3 { Scenario::of_ranks } else { Scenario::new };
        is_wanted.then(|| make(first + nth))
    };
    let work = || {
        while let Some(scenario) = next() {
            let options = Options { subset_operations_max: 8, samples: 32, seed: scenario.seed };
            let recorded = record(scenario, |files| files);
            let report = recorded.check(&options, &counts);
            if report.failure.is_some() {
                return Some((recorded, report));
            }
        }
        None
    };
    let failed = thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).next()
    });
    if let Some((recorded, report)) = failed {
        give_up(&recorded, &report);
    }
    let [distinct, images, opened, recoveries] =
        [&counts.distinct, &counts.images, &counts.opened, &counts.recoveries].map(|count| count.load(Relaxed));
    assert!(distinct >= images_min && opened > 0 && recoveries > 0);
    covered("crash images", format_args!("{distinct}, lost: 0"));
    say(format_args!("of {images} that were built, {opened} opened and saved to, {recoveries} recoveries crashed"));
}

#[test]
fn what_a_killed_process_has_left_is_durable_once_it_was_found() {
    let first = first_seed();
    let counts = Counts::default();
    for seed in first..first + amount(2, 12) {
        let scenario = Scenario { steps: 6, ..Scenario::new(seed) };
        let operations = operations_of(&scenario);
        let mut random = Rng::with_seed(seed);
        for _ in 0..12 {
            let (recording, history) = (scenario.recording(), History::default());
            let failing = Failing::new(Arc::new(recording.clone()));
            // From some moment on nothing happens any more.
            let death = random.u64(..operations);
            failing.inject(Fault { after: death, is_lasting: true, ..Fault::new(Errno::IO) });
            // Without an error only if all that was left to do was to remove what is not kept.
            let _ = Program::new(&scenario, Arc::new(failing), &recording, &history).run();
            let recorded = Recorded { scenario: scenario.clone(), recording, history };
            let found = recorded.go_on_and_find(&recorded.recording, &[]);
            found.unwrap_or_else(|error| panic!("seed {seed}, killed at operation {death}: {error}"));
            let options = Options { subset_operations_max: 4, samples: 2, seed };
            let report = check(&recorded.recording.log(), &options, |image, marks| {
                recorded.look(image.tree(), &Promises::of(marks), false)
            });
            counts.add(&report);
            if report.failure.is_some() {
                give_up(&recorded, &report);
            }
        }
    }
    covered("crash images after a kill", counts.distinct.load(Relaxed));
}

/// How many operations a scenario takes.
fn operations_of(scenario: &Scenario) -> u64 {
    let (recording, history) = (scenario.recording(), History::default());
    let counting = Failing::new(Arc::new(recording.clone()));
    Program::new(scenario, Arc::new(counting.clone()), &recording, &history).run().unwrap();
    counting.calls(None)
}

#[test]
fn a_sync_that_is_forgotten_is_noticed() {
    for forgets in [Forgets::SyncOfFiles, Forgets::SyncOfDirectories] {
        let is_noticed = |seed: u64| {
            let recorded = record(Scenario::new(seed), |files| forgetful(files, forgets));
            let report = recorded.check(&Options::default(), &Counts::default());
            report.failure.is_some()
        };
        assert!((1..4).all(is_noticed), "{forgets:?}");
    }
}
