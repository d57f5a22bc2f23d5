//! Files that fail: whatever fails, and whenever, the program hears of it, nothing hangs, and what was reported durable stays.

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use common::{
    State, child, child_directory,
    history::{History, Promises, durable},
    skip,
    trees::{Below, tree_of},
};
use fastrand::Rng;
use outcrop::{
    ErrorKind, Part, PartMut, Reached, Result, Retention, Session, Store, StoreBuilder,
    catalog::{Catalog, FindingKind, verify},
    layers::files::Files,
};
use outcrop_crash::{Errno, Failing, Fault, Image, Log, Operation, Options, Recording, Tree};

const LAYERS: [&str; 2] = ["near", "far"];

/// Longer than any scenario takes, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn builder() -> StoreBuilder {
    let keep = Retention { keep_last: Some(2), ..Retention::default() };
    Store::builder().host("1 MiB").block(256).keep(keep).chain_max(2).threads(1).pin(false)
}

/// What became of a scenario.
#[derive(Debug, Default)]
struct Outcome {
    /// What the program was told, in its order.
    errors: Vec<String>,
    /// Versions that were saved and of which it was not told that they have failed, and those among them reported durable on a layer.
    saved: Vec<u64>,
    durable: Vec<(usize, u64)>,
}

impl Outcome {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error.to_string())).ok()
    }
}

/// A program that saves, opens the store anew in the middle, and goes on whatever fails.
struct Scenario {
    recording: Recording,
    layers: Vec<Arc<dyn Files>>,
    history: History,
}

impl Scenario {
    /// With these files as layers, both of the recording.
    fn new(recording: &Recording, layers: Vec<Arc<dyn Files>>) -> Self {
        Self { recording: recording.clone(), layers, history: History::default() }
    }

    fn open(&self) -> Result<Session> {
        let builder = self.layers.iter().fold(builder(), |builder, layer| builder.files(Arc::clone(layer), None));
        builder.open()?.session("heat")
    }

    fn run(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut random = Rng::with_seed(1);
        let mut state = State::new(&mut random, 3000);
        for versions in [1..6, 6..10] {
            let Some(mut session) = outcome.note(self.open()) else { return outcome };
            let found = Promises::default().check_latest(&self.history, &mut session, 0);
            let found = found.map_err(|error| outcome.errors.push(error)).ok().flatten();
            if let Some((_, restored)) = found {
                state = restored;
            }
            for version in versions {
                state.step(&mut random, version);
                self.history.note("heat", 0, version, &state);
                // The failure of an earlier one is told once, and then it goes on.
                if outcome.note(session.save(version, &state.parts())).is_none()
                    && outcome.note(session.save(version, &state.parts())).is_none()
                {
                    continue;
                }
                outcome.saved.push(version);
                for layer in 0..self.layers.len() {
                    if outcome.note(session.wait(version, Reached::Layer(layer + 1))).is_some() {
                        outcome.durable.push((layer, version));
                        self.recording.mark(durable("heat", layer, version, version));
                    }
                }
            }
            outcome.note(session.finish());
        }
        outcome
    }

    /// That everything which was reported is there: now, and after a crash that loses all that can be lost.
    fn check(&self) -> std::result::Result<(), String> {
        let log = self.recording.log();
        let promises = Promises::of(log.marks());
        for tree in [self.recording.tree(), worst(&log).tree().clone()] {
            let files: Arc<dyn Files> = Arc::new(Recording::from_tree(tree));
            let layers = LAYERS.map(|layer| Below::new(Arc::clone(&files), layer));
            for (index, layer) in layers[..self.layers.len()].iter().enumerate() {
                promises.check_layer(&self.history, layer, index, ("heat", 1), false)?;
            }
            let healed =
                Scenario { layers: layers[..self.layers.len()].to_vec(), ..Scenario::new(&self.recording, vec![]) };
            let mut session = healed.open().map_err(|error| error.to_string())?;
            promises.check_latest(&self.history, &mut session, 0)?;
        }
        Ok(())
    }
}

/// What is left if the crash comes at the end and everything is lost that was not durable.
fn worst(log: &Log) -> Image<'_> {
    let any = log.images(&Options::default()).next().expect("an image").id().to_string();
    let digest = any.rsplit('/').next().expect("the name of a log");
    log.image(format!("{}/none/{digest}", log.steps()).parse().expect("the name of an image")).expect("an image")
}

/// Runs a scenario on a thread of its own, so that a test ends even if the scenario does not.
fn within_patience(scenario: Scenario, what: String) -> (Scenario, Outcome) {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        let outcome = scenario.run();
        let _ = sender.send((scenario, outcome));
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", thread.join().unwrap_err()),
    }
}

/// Runs a scenario in which one layer, or the only one, has a fault.
fn run_with(fault: Option<Fault>, layers: usize, failing_layer: usize) -> (Scenario, Outcome, Failing) {
    let recording = Recording::from_tree(tree_of(&LAYERS));
    let plain: Arc<dyn Files> = Arc::new(recording.clone());
    let failing = Failing::over(recording.clone());
    fault.into_iter().for_each(|fault| failing.inject(fault));
    let of_layer = |layer: usize| {
        let files = if layer == failing_layer { Arc::new(failing.clone()) } else { Arc::clone(&plain) };
        Below::new(files, LAYERS[layer])
    };
    let scenario = Scenario::new(&recording, (0..layers).map(of_layer).collect());
    let (scenario, outcome) = within_patience(scenario, format!("{fault:?} on layer {failing_layer} of {layers}"));
    (scenario, outcome, failing)
}

#[test]
fn every_operation_may_fail() {
    let (scenario, outcome, failing) = run_with(None, 1, 0);
    assert!(outcome.errors.is_empty(), "{outcome:?}");
    assert_eq!(outcome.durable.len(), 9, "{outcome:?}");
    scenario.check().unwrap();
    let operations = failing.calls(None);
    assert!(failing.calls(Some(Operation::Remove)) > 10, "old versions and merged packs go");
    let mut runs = 0;
    for errno in [Errno::IO, Errno::NOSPC] {
        for (is_lasting, leaves_half) in [(false, false), (false, true), (true, false)] {
            for after in 0..operations {
                let fault = Fault { after, is_lasting, leaves_half, ..Fault::new(errno) };
                let (scenario, outcome, _) = run_with(Some(fault), 1, 0);
                let is_told = !outcome.errors.is_empty() || outcome.durable.len() == 9;
                assert!(is_told, "{fault:?}: {outcome:?}");
                scenario.check().unwrap_or_else(|error| panic!("{fault:?}: {error}\n{outcome:?}"));
                runs += 1;
            }
        }
    }
    println!("{operations} operations, {runs} runs with a fault");
}
