//! Crashes at every moment, with everything that they can leave behind: what was reported as
//! durable is found again.
//!
//! A store works on recordings. The test looks at every image that a crash could have left of them.
//! Each version must be complete, with the bytes that were saved, or absent. It may be absent only
//! if it was not reported or is not to be kept. Of images that a reader cannot distinguish, one is
//! opened: all ranks restore what is there, save further versions that build upon it, end, open
//! again, restore again and read all versions. For some images the recovery itself is recorded and
//! crashed.
//!
//! The same seed gives the same scenario, but threads make every log different. So a failure leaves
//! the files of its image behind, besides its name and story.

mod program;
mod scenario;

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use fastrand::Rng;
use outcrop::layers::files::{DiskFiles, Files};
use outcrop_crash::{
    Classes, Errno, Failing, Fault, Image, Log, Mirror, Operation, Options, Recording, Report, check, check_classes,
};
use outcrop_testing::{amount, covered, does_not_apply, say};

use self::{
    program::Program,
    scenario::{SESSIONS, Scenario},
};
use crate::common::{
    history::{History, Promises},
    observed::{Observer, Place, judge},
    trees::{Forgets, forgetful},
};

/// The smallest number of classes of images to open.
fn observable_min() -> u64 {
    amount(10_000, 100_000)
}
/// The smallest number of scenarios, so that all kinds occur.
const SCENARIOS_MIN: u64 = 48;
/// For one of this many opened images, the recovery is crashed too.
const CRASHED_EVERY: u64 = 50;
/// Recording, opening and restoring mostly wait for threads.
const THREADS: usize = 6;
/// The number of versions that are saved after a crash.
const SAVES: u64 = 3;
/// More than the number of saves between two crashes.
const STAMPS: u64 = 1000;

/// A recording of a scenario, and what was saved in it.
struct Recorded {
    scenario: Scenario,
    places: Vec<Place>,
    recording: Recording,
    history: History,
    /// The next save after a crash has this stamp, or a higher one.
    stamp: AtomicU64,
}

/// Wraps files so that they misbehave.
type Worse<'a> = &'a (dyn Fn(Arc<dyn Files>) -> Arc<dyn Files> + Sync);

/// Runs a scenario on files that may misbehave.
fn record(scenario: Scenario, worse: Worse<'_>) -> Recorded {
    let recorded = Recorded::new(scenario);
    let ended = recorded.together(&recorded.scenario, &recorded.recording, worse, &|program| program.run());
    ended.unwrap_or_else(|error| panic!("{:?}: {error}", recorded.scenario));
    recorded
}

/// Opens an image, given the marks before the crash.
type Open<'a> = &'a mut dyn FnMut(&Image<'_>, &[String]) -> Result<(), String>;

impl Recorded {
    /// The state before anything is done.
    fn new(scenario: Scenario) -> Self {
        let (recording, places, stamp) = (scenario.recording(), scenario.places(), AtomicU64::new(STAMPS));
        Self { scenario, places, recording, history: History::default(), stamp }
    }

    /// Runs the same work on all ranks.
    fn together(
        &self,
        scenario: &Scenario,
        recording: &Recording,
        worse: Worse<'_>,
        act: &(dyn Fn(&mut Program<'_>) -> Result<(), String> + Sync),
    ) -> Result<(), String> {
        let meeting = scenario.meeting();
        let files = scenario.files(recording, &meeting).into_iter().enumerate();
        let program = |(rank, files): (usize, Vec<Arc<dyn Files>>)| {
            let files = files.into_iter().map(worse).collect();
            Program::new(scenario, recording, &self.history, &meeting, (rank as u32, files))
        };
        let mut programs: Vec<_> = files.map(program).collect();
        if let [program] = &mut programs[..] {
            return act(program);
        }
        thread::scope(|scope| {
            let ranks: Vec<_> =
                programs.into_iter().map(|mut program| scope.spawn(move || act(&mut program))).collect();
            let outcomes: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
            // A rank that fails ends, and the others report that it is gone.
            let errors: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
            if errors.is_empty() { Ok(()) } else { Err(errors.join("; another rank: ")) }
        })
    }

    fn sessions(&self) -> &'static [&'static str] {
        &SESSIONS[..self.scenario.sessions]
    }

    /// Looks at every image, and opens one of each class.
    fn check(&self, options: &Options, classes: &Classes) -> Report {
        let recoveries = RefCell::new(Report::default());
        let mut nth = 0;
        let mut report = self.check_log(&self.recording.log(), &[], options, classes, &mut |image, marks| {
            nth += 1;
            let recovered = self.open(image, marks)?;
            if nth % CRASHED_EVERY == 0 {
                let options = Options { subset_operations_max: 3, samples: 2, ..*options };
                let mut open = |image: &Image<'_>, marks: &[String]| self.open(image, marks).map(drop);
                let report = self.check_log(&recovered.log(), marks, &options, classes, &mut open);
                let failure = report.failure.as_ref().map(ToString::to_string);
                recoveries.borrow_mut().add(report);
                failure.map_or(Ok(()), |failure| Err(format!("in a crash of the recovery, {failure}")))?;
            }
            Ok(())
        });
        report.add(Report { failure: None, ..recoveries.into_inner() });
        report
    }

    fn check_log(
        &self,
        log: &Log,
        marks_before: &[String],
        options: &Options,
        classes: &Classes,
        open: Open<'_>,
    ) -> Report {
        let mut observer = Observer::new(&self.history, &self.places);
        let mut known = (usize::MAX, Promises::default());
        let mut look = |image: &Image<'_>| {
            if known.0 != image.marks().len() {
                known = (image.marks().len(), Promises::of(&[marks_before, image.marks()].concat()));
            }
            judge(&mut observer, image.tree(), self.sessions(), &known.1, &self.scenario.keep)
        };
        check_classes(log, options, classes, &mut look, |image| open(image, &[marks_before, image.marks()].concat()))
    }

    /// Opens an image, continues from what is found, saves, and checks that it can be restored.
    /// Returns the recording of all this.
    fn open(&self, image: &Image<'_>, marks_before: &[String]) -> Result<Recording, String> {
        let recording = Recording::from_tree(image.tree().clone());
        self.go_on_and_find(&recording, marks_before)?;
        Ok(recording)
    }

    /// Continues from what is there, and checks that what is saved then can be restored. Earlier
    /// promises still hold.
    fn go_on_and_find(&self, recording: &Recording, marks_before: &[String]) -> Result<(), String> {
        let promises = || Promises::of(&[marks_before, recording.log().marks()].concat());
        let (healed, as_they_are): (_, Worse<'_>) = (self.scenario.healed(), &|files| files);
        let (before, stamp) = (promises(), self.stamp.fetch_add(STAMPS, Relaxed));
        self.together(&healed, recording, as_they_are, &|program| program.go_on(&before, stamp, SAVES))?;
        let after = promises();
        let mut observer = Observer::new(&self.history, &self.places);
        judge(&mut observer, &recording.tree(), self.sessions(), &after, &self.scenario.keep)?;
        self.together(&healed, recording, as_they_are, &|program| program.find_again(&after, stamp))
    }
}

/// Keeps the files of the failing image for inspection, and panics.
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

/// The first seed: always the same, unless one is given.
fn first_seed() -> u64 {
    let text = std::env::var("OUTCROP_CRASH_SEED").unwrap_or_else(|_| "1".to_owned());
    text.parse().expect("OUTCROP_CRASH_SEED is a number")
}

#[test]
fn no_crash_loses_what_was_durable() {
    let (first, taken) = (first_seed(), AtomicU64::new(0));
    let (classes, total) = (Classes::default(), Mutex::new(Report::default()));
    say(format_args!("crash images: the first seed is {first}"));
    let next = || {
        let nth = taken.fetch_add(1, Relaxed);
        let is_wanted = nth < SCENARIOS_MIN || classes.count() < observable_min();
        let is_wanted = is_wanted && total.lock().unwrap().failure.is_none();
        is_wanted.then(|| Scenario::new(first + nth))
    };
    let work = || {
        while let Some(scenario) = next() {
            let options = Options { subset_operations_max: 5, samples: 6, seed: scenario.seed };
            let recorded = record(scenario, &|files| files);
            let report = recorded.check(&options, &classes);
            let has_failed = report.failure.is_some();
            total.lock().unwrap().add(report.clone());
            if has_failed {
                return Some((recorded, report));
            }
        }
        None
    };
    let failed = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).next()
    });
    if let Some((recorded, report)) = failed {
        give_up(&recorded, &report);
    }
    let total = total.into_inner().unwrap();
    assert!(total.opened == total.observable && total.opened == classes.count(), "{total}");
    let line = total.to_string();
    let (what, counts) = line.split_once(": ").expect("a colon");
    covered(what, counts);
    say(format_args!("in {} scenarios", taken.into_inner() - THREADS as u64));
}

#[test]
fn what_went_past_the_page_cache_survives_a_crash_too() {
    let first = first_seed();
    let (classes, mut total) = (Classes::default(), Report::default());
    let scenarios = (first..).map(|seed| Scenario::new(seed).healed()).filter(|it| it.ranks == 1 && !it.is_troubled());
    for scenario in scenarios.take(amount(6, 60)) {
        let (given, mirrors) = (tempfile::tempdir().unwrap(), Mutex::new(Vec::new()));
        let recorded = record(scenario, &|files| {
            let mut mirrors = mirrors.lock().unwrap();
            let disk = DiskFiles::create(&given.path().join(mirrors.len().to_string())).unwrap();
            let mirror = Mirror::new(Arc::new(disk), files);
            mirrors.push(mirror.clone());
            Arc::new(mirror)
        });
        for mirror in mirrors.into_inner().unwrap() {
            if mirror.transfers() == 0 {
                return does_not_apply("the directory for temporary files has no direct I/O");
            }
            for session in recorded.sessions() {
                let mut different = mirror.differences(&format!("{session}/rank-00000")).unwrap();
                different.retain(|name| !name.ends_with("/lock"));
                assert_eq!(different, [""; 0], "something was written after it was synced");
            }
        }
        let options = Options { subset_operations_max: 5, samples: 6, seed: recorded.scenario.seed };
        let report = recorded.check(&options, &classes);
        if report.failure.is_some() {
            give_up(&recorded, &report);
        }
        total.add(report);
    }
    covered("crash images of direct I/O", total.to_string().trim_start_matches("crash images: "));
}

#[test]
fn what_a_killed_process_has_left_is_durable_once_it_was_found() {
    let first = first_seed();
    let mut total = Report::default();
    // Scenarios of one rank in which nothing else fails.
    let scenarios = (first..).map(|seed| Scenario::new(seed).healed()).filter(|it| it.ranks == 1 && !it.is_troubled());
    for mut scenario in scenarios.take(amount(2, 12)) {
        scenario.steps = 6;
        let operations = operations_of(&scenario);
        let mut random = Rng::with_seed(scenario.seed);
        for round in 0..12 {
            let recorded = Recorded::new(scenario.clone());
            // From some moment on every operation fails: from any operation, or from a sync that
            // would make a name durable.
            let is_at_sync = round % 2 == 0;
            let death = if is_at_sync { round / 2 } else { random.u64(..operations) };
            let counted = Arc::new(AtomicU64::new(0));
            let dies = |files| {
                let (counted, is_renamed) = (Arc::clone(&counted), AtomicBool::new(false));
                let failing = Failing::new(files);
                failing.clone().watched(move |operation, _| {
                    let was_renamed = is_renamed.swap(operation == Operation::Rename, Relaxed);
                    let counts = !is_at_sync || (was_renamed && operation == Operation::SyncDir);
                    if counts && counted.fetch_add(1, Relaxed) == death {
                        failing.inject(Fault { is_lasting: true, ..Fault::new(Errno::IO) });
                    }
                })
            };
            // There is no error only if nothing was left to do but to remove versions that are not
            // kept.
            let dies = move |files| Arc::new(dies(files)) as Arc<dyn Files>;
            let _ = recorded.together(&scenario, &recorded.recording, &dies, &|program| program.run());
            let found = recorded.go_on_and_find(&recorded.recording, &[]);
            found.unwrap_or_else(|error| panic!("{scenario:?}, killed at operation {death}: {error}"));
            let options = Options { subset_operations_max: 4, samples: 2, seed: scenario.seed };
            let mut observer = Observer::new(&recorded.history, &recorded.places);
            let report = check(&recorded.recording.log(), &options, |image, marks| {
                let promises = Promises::of(marks);
                judge(&mut observer, image.tree(), recorded.sessions(), &promises, &scenario.keep).map(drop)
            });
            if report.failure.is_some() {
                give_up(&recorded, &report);
            }
            total.add(report);
        }
    }
    covered("crash images after a kill", total.images);
}

/// The number of operations of a scenario on its first layer.
fn operations_of(scenario: &Scenario) -> u64 {
    let counted = Arc::new(AtomicU64::new(0));
    let count = |files| {
        let counted = Arc::clone(&counted);
        let watcher = move |_, _: &str| {
            counted.fetch_add(1, Relaxed);
        };
        Arc::new(Failing::new(files).watched(watcher)) as Arc<dyn Files>
    };
    record(scenario.clone(), &count);
    counted.load(Relaxed)
}

#[test]
fn a_sync_that_is_forgotten_is_noticed() {
    for forgets in [Forgets::SyncOfFiles, Forgets::SyncOfDirectories] {
        let is_noticed = |seed: u64| {
            let recorded = record(Scenario::new(seed).healed(), &|files| forgetful(files, forgets));
            recorded.check(&Options::default(), &Classes::default()).failure.is_some()
        };
        assert!((1..5).all(is_noticed), "{forgets:?}");
    }
}
