//! Files that fail: whatever fails, at any time, the program is told, nothing hangs, and what was
//! reported as durable stays.

use std::{
    fs, io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fastrand::Rng;
use outcrop::{
    ErrorKind, Part, PartMut, Reached, Result, Retention, Session, Store, StoreBuilder,
    catalog::Catalog,
    layers::files::{DiskFiles, Files},
    store::{Dedup, SharedDirectory},
};
use outcrop_crash::{Errno, Failing, Fault, Image, Log, Operation, Options, Recording, check};
use outcrop_testing::{amount, child, child_directory, covered, mount_memory, skip, with_own_mounts};

use crate::common::{
    State,
    history::{History, Promises, durable},
    observed::{Observer, Place, judge},
    trees::{below, tree_of},
};

const LAYERS: [&str; 2] = ["near", "far"];

/// The number of ranks in tests with several.
const RANKS: u32 = 2;

/// Longer than any scenario takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const KEEP: Retention = Retention { keep_last: Some(2), keep_every: None, keep_for_ns: None };

fn builder() -> StoreBuilder {
    Store::builder().host("1 MiB").block(256).keep(KEEP).chain_max(2).threads(1).pin(false)
}

/// The result of a scenario.
#[derive(Debug, Default)]
struct Outcome {
    /// The errors that the program got, in order.
    errors: Vec<String>,
    /// Versions that were saved and not reported as failed, and those among them that were reported
    /// as durable on a layer.
    saved: Vec<u64>,
    durable: Vec<(usize, u64)>,
}

impl Outcome {
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.errors.push(error.to_string())).ok()
    }
}

/// A program that saves versions, opens the store again halfway, and continues after any failure.
struct Scenario {
    recording: Recording,
    layers: Vec<Arc<dyn Files>>,
    history: Arc<History>,
    /// With several ranks: their shared directory, and the number of this one.
    ranks: Option<(PathBuf, u32)>,
    /// The versions that it saves each time it opens the store.
    lives: Vec<Range<u64>>,
}

impl Scenario {
    /// A scenario with these files as layers, both in the recording.
    fn new(recording: &Recording, layers: Vec<Arc<dyn Files>>) -> Self {
        Self { recording: recording.clone(), layers, history: Arc::default(), ranks: None, lives: vec![1..6, 6..10] }
    }

    fn rank(&self) -> u32 {
        self.ranks.as_ref().map_or(0, |(_, rank)| *rank)
    }

    fn places(&self) -> Vec<Place> {
        let ranks = if self.ranks.is_some() { RANKS } else { 1 };
        let place = |layer: usize, rank| Place { layer, rank, medium: LAYERS[layer].to_owned() };
        (0..self.layers.len()).flat_map(|layer| (0..ranks).map(move |rank| place(layer, rank))).collect()
    }

    fn open(&self) -> Result<Session> {
        let mut builder = self.layers.iter().fold(builder(), |builder, layer| builder.files(Arc::clone(layer), None));
        if let Some((talk, rank)) = &self.ranks {
            let ranks = SharedDirectory::open_with(talk, *rank, RANKS, PATIENCE / 4)?;
            builder = builder.ranks(ranks).dedup(Dedup::Ranks);
        }
        builder.open()?.session("heat")
    }

    fn run(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut random = Rng::with_seed(1);
        let mut state = State::new(&mut random, 3000);
        for versions in self.lives.clone() {
            let Some(mut session) = outcome.note(self.open()) else { return outcome };
            if self.ranks.is_none() {
                let found = Promises::default().check_latest(&self.history, &mut session, 0);
                let found = found.map_err(|error| outcome.errors.push(error)).ok().flatten();
                state = found.map_or(state, |(_, restored)| restored);
            } else {
                // All ranks call it once, whatever the result is on one of them.
                outcome.note(session.restore_latest(&mut [PartMut::one("stamp", &mut 0u64)]));
            }
            for version in versions {
                state.step(&mut random, version);
                // The ranks save different states, but not all blocks differ.
                state.field[..100].fill(self.rank() as u8 + 1);
                self.history.note("heat", self.rank(), version, &state);
                // The failure of an earlier version is reported once. Then saving continues.
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

    /// Checks that everything that was reported is there: now, and after a crash that loses
    /// everything that can be lost.
    fn check(&self) -> std::result::Result<(), String> {
        let log = self.recording.log();
        let promises = Promises::of(log.marks());
        for tree in [self.recording.tree(), worst(&log).tree().clone()] {
            let keep = vec![KEEP; self.layers.len()];
            judge(&mut Observer::new(&self.history, &self.places()), &tree, &["heat"], &promises, &keep)?;
            if self.ranks.is_some() {
                continue;
            }
            let files: Arc<dyn Files> = Arc::new(Recording::from_tree(tree));
            let layers = LAYERS[..self.layers.len()].iter().map(|layer| below(&files, layer)).collect();
            let healed = Scenario::new(&self.recording, layers);
            let mut session = healed.open().map_err(|error| error.to_string())?;
            promises.check_latest(&self.history, &mut session, 0)?;
        }
        Ok(())
    }
}

/// The image of a crash at the end that loses everything that was not durable.
fn worst(log: &Log) -> Image<'_> {
    let any = log.images(&Options::default()).next().expect("an image").id().to_string();
    let digest = any.rsplit('/').next().expect("the name of a log");
    log.image(format!("{}/none/{digest}", log.steps()).parse().expect("the name of an image")).expect("an image")
}

/// Runs a scenario on another thread, so that the test ends even if the scenario hangs.
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

/// Runs a scenario in which one layer has a fault.
fn run_with(fault: Option<Fault>, layers: usize, failing_layer: usize) -> (Scenario, Outcome, Failing) {
    run_lives(vec![1..6, 6..10], fault.as_slice(), layers, failing_layer)
}

fn run_lives(
    lives: Vec<Range<u64>>,
    faults: &[Fault],
    layers: usize,
    failing_layer: usize,
) -> (Scenario, Outcome, Failing) {
    let recording = Recording::from_tree(tree_of(&LAYERS));
    let plain: Arc<dyn Files> = Arc::new(recording.clone());
    let failing = Failing::over(recording.clone());
    faults.iter().for_each(|fault| failing.inject(*fault));
    let of_layer = |layer: usize| {
        let files = if layer == failing_layer { Arc::new(failing.clone()) } else { Arc::clone(&plain) };
        below(&files, LAYERS[layer])
    };
    let scenario = Scenario { lives, ..Scenario::new(&recording, (0..layers).map(of_layer).collect()) };
    let (scenario, outcome) = within_patience(scenario, format!("{faults:?} on layer {failing_layer} of {layers}"));
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
            for after in (0..operations).step_by(amount(4, 1)) {
                let fault = Fault { after, is_lasting, leaves_half, ..Fault::new(errno) };
                let (scenario, outcome, _) = run_with(Some(fault), 1, 0);
                let is_told = !outcome.errors.is_empty() || outcome.durable.len() == 9;
                assert!(is_told, "{fault:?}: {outcome:?}");
                scenario.check().unwrap_or_else(|error| panic!("{fault:?}: {error}\n{outcome:?}"));
                runs += 1;
            }
        }
    }
    covered("failures of an operation of a store", runs);
}

#[test]
fn a_removal_that_is_not_durable_leaves_no_half_version() {
    let (_, _, failing) = run_with(None, 1, 0);
    let fault = |after| Fault { of: Some(Operation::SyncDir), after, ..Fault::new(Errno::IO) };
    let syncs = 0..failing.calls(Some(Operation::SyncDir));
    let (anew, once) = (vec![1..6, 6..10], std::iter::once(1..10).collect::<Vec<_>>());
    // The reaction to the first failure may fail too, as long as the store stays open.
    let runs = syncs.flat_map(|after| [(&anew, vec![fault(after)]), (&once, vec![fault(after), fault(after + 1)])]);
    for (lives, faults) in runs {
        let (scenario, outcome, _) = run_lives(lives.clone(), &faults, 1, 0);
        let (places, options) = (scenario.places(), Options { subset_operations_max: 4, samples: 0, seed: 0 });
        let mut observer = Observer::new(&scenario.history, &places);
        let report = check(&scenario.recording.log(), &options, |image, marks| {
            judge(&mut observer, image.tree(), &["heat"], &Promises::of(marks), &[KEEP]).map(drop)
        });
        if let Some(failure) = report.failure {
            panic!("{faults:?}: {failure}\n{outcome:?}");
        }
    }
}

#[test]
fn a_layer_that_fails_keeps_no_other_from_working() {
    for (failing_layer, name) in LAYERS.iter().enumerate() {
        let healthy = 1 - failing_layer;
        for of in [Operation::Create, Operation::Write, Operation::Sync, Operation::Rename] {
            for after in [0, 1, 2, 5, 9] {
                let fault = Fault { of: Some(of), after, is_lasting: true, ..Fault::new(Errno::IO) };
                let (scenario, outcome, _) = run_with(Some(fault), 2, failing_layer);
                let what = format!("{fault:?} on layer {failing_layer}: {outcome:?}");
                let on_healthy = outcome.durable.iter().filter(|(layer, _)| *layer == healthy).count();
                assert_eq!(on_healthy, 9, "{what}");
                assert!(outcome.durable.len() < 18 && !outcome.errors.is_empty(), "{what}");
                let names_it = |error: &String| error.contains(name);
                assert!(outcome.errors.iter().all(names_it), "{what}");
                scenario.check().unwrap_or_else(|error| panic!("{error}\n{what}"));
            }
        }
    }
}

#[test]
fn one_fault_of_two_layers_anywhere() {
    let (_, outcome, failing) = run_with(None, 2, 0);
    assert!(outcome.errors.is_empty(), "{outcome:?}");
    for failing_layer in 0..2 {
        for after in (0..failing.calls(None)).step_by(3) {
            let fault = Fault { after, ..Fault::new(Errno::IO) };
            let (scenario, outcome, _) = run_with(Some(fault), 2, failing_layer);
            let is_told = !outcome.errors.is_empty() || outcome.durable.len() == 18;
            assert!(is_told, "{fault:?} on layer {failing_layer}: {outcome:?}");
            scenario.check().unwrap_or_else(|error| panic!("{fault:?} on layer {failing_layer}: {error}\n{outcome:?}"));
        }
    }
}

#[test]
fn a_fault_of_one_rank_harms_no_version_that_all_have() {
    let run = |fault: Option<Fault>| {
        let talk = tempfile::tempdir().unwrap();
        let recording = Recording::from_tree(tree_of(&LAYERS));
        let failing = Failing::over(recording.clone());
        fault.into_iter().for_each(|fault| failing.inject(fault));
        let history = Arc::<History>::default();
        let start = |rank| {
            let files: Arc<dyn Files> = if rank == 0 { Arc::new(failing.clone()) } else { Arc::new(recording.clone()) };
            let scenario = Scenario::new(&recording, vec![below(&files, "near")]);
            let ranks = Some((talk.path().to_owned(), rank));
            let scenario = Scenario { ranks, history: Arc::clone(&history), ..scenario };
            thread::spawn(move || within_patience(scenario, format!("{fault:?}, rank {rank}")))
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let outcomes: Vec<_> = ended.iter().map(|(_, outcome)| outcome).collect();
        let checked = ended[0].0.check();
        checked.unwrap_or_else(|error| panic!("{fault:?}: {error}\n{outcomes:?}"));
        for outcome in outcomes {
            let is_told = !outcome.errors.is_empty() || outcome.durable.len() == 9;
            assert!(is_told && (fault.is_some() || outcome.errors.is_empty()), "{fault:?}: {outcome:?}");
        }
        failing.calls(None)
    };
    let operations = run(None);
    for after in (0..operations).step_by(7) {
        for is_lasting in [false, true] {
            run(Some(Fault { after, is_lasting, ..Fault::new(Errno::IO) }));
        }
    }
}

#[test]
fn what_could_not_be_synced_is_not_reported_durable() {
    for of in [Operation::Sync, Operation::SyncDir] {
        // For each version, the pack and the manifest are synced, and the directory is synced
        // before and after the manifest.
        for after in 0..2 {
            let recording = Recording::from_tree(tree_of(&LAYERS));
            let failing = Failing::over(recording.clone());
            let files: Arc<dyn Files> = Arc::new(failing.clone());
            let scenario = Scenario::new(&recording, vec![below(&files, "near")]);
            let mut session = scenario.open().unwrap();
            let mut state = State::new(&mut Rng::with_seed(1), 3000);
            for version in 1..=3 {
                state.step(&mut Rng::with_seed(version), version);
                scenario.history.note("heat", 0, version, &state);
                if version == 2 {
                    failing.inject(Fault { of: Some(of), after, ..Fault::new(Errno::IO) });
                }
                session.save(version, &state.parts()).unwrap();
                let result = session.wait(version, Reached::Layer(1));
                assert_eq!(result.is_err(), version == 2, "{of:?} {after}, version {version}: {result:?}");
                if result.is_ok() {
                    recording.mark(durable("heat", 0, version, version));
                }
            }
            session.finish().unwrap();
            scenario.check().unwrap_or_else(|error| panic!("{of:?} {after}: {error}"));
        }
    }
}

#[test]
fn a_limit_is_kept_and_room_can_be_made() {
    let files: Arc<dyn Files> = Arc::new(Recording::new());
    let open = |keep_last| {
        let keep = Retention { keep_last, ..Retention::default() };
        let store = Store::builder().host("1 MiB").pin(false).threads(1).keep(keep).incremental(false);
        store.files(Arc::clone(&files), Some("64 KiB")).open().unwrap().session("heat").unwrap()
    };
    let field: Vec<u8> = (0..20_000).map(|index| (index % 251) as u8).collect();
    let mut session = open(None);
    let save = |session: &mut Session, version: u64| {
        session.save(version, &[Part::new("field", &field), Part::one("version", &version)])?;
        session.wait(version, Reached::Layer(1))
    };
    save(&mut session, 1).unwrap();
    save(&mut session, 2).unwrap();
    let error = save(&mut session, 3).unwrap_err();
    assert!(error.to_string().contains("of the limit are used"), "{error}");
    session.rewind(Some(1)).unwrap();
    save(&mut session, 4).unwrap();
    assert!(save(&mut session, 5).is_err());
    session.finish().unwrap();
    let mut session = open(Some(1));
    // Files that were there before count.
    assert!(save(&mut session, 6).is_err());
    session.rewind(Some(1)).unwrap();
    (7..20).for_each(|version| save(&mut session, version).unwrap());
    let mut found = 0u64;
    session.restore_latest(&mut [PartMut::one("version", &mut found)]).unwrap();
    assert_eq!(found, 19);
}

#[test]
fn what_is_there_counts_once_however_often_a_session_is_opened() {
    let files: Arc<dyn Files> = Arc::new(Recording::new());
    let store = Store::builder().host("1 MiB").pin(false).threads(1).incremental(false);
    let store = store.files(files, Some("80 KiB")).open().unwrap();
    let save = |session: &mut Session, version: u64| {
        session.save(version, &[Part::new("field", &[version as u8; 20_000])])?;
        session.wait(version, Reached::Layer(1))
    };
    for _ in 0..10 {
        let mut session = store.session("heat").unwrap();
        session.rewind(None).unwrap();
        save(&mut session, 1).unwrap();
        session.finish().unwrap();
    }
    // Files of sessions that have ended count too.
    let mut other = store.session("other").unwrap();
    save(&mut other, 1).unwrap();
    save(&mut other, 2).unwrap();
    assert!(save(&mut other, 3).unwrap_err().to_string().contains("of the limit are used"));
}

/// In a child: saves until the medium is full, makes room, and continues.
#[test]
fn child_fills_a_disk() {
    let Some(path) = child_directory() else { return };
    let ballast = path.join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let open = || {
        let store = Store::builder().host("8 MiB").pin(false).incremental(false).dir(path.join("store"), None);
        store.open().unwrap().session("heat").unwrap()
    };
    let field = |version: u64| vec![version; 60_000];
    let mut session = open();
    let save = |session: &mut Session, version: u64| {
        session.save(version, &[Part::new("field", &field(version))])?;
        session.wait(version, Reached::Layer(1))
    };
    let mut version = 1;
    let error = loop {
        assert!(version < 100, "the medium never fills up");
        match save(&mut session, version) {
            Ok(()) => version += 1,
            Err(error) => break error,
        }
    };
    assert!(version > 2, "{error}");
    assert!(error.to_string().contains("pace"), "it says that there is no space: {error}");
    let check = |session: &mut Session, newest: u64| {
        let mut found = field(0);
        let restored = session.restore_latest(&mut [PartMut::new("field", &mut found)]).unwrap().unwrap();
        assert_eq!((restored.version, found), (newest, field(newest)));
    };
    drop(session);
    let mut session = open();
    check(&mut session, version - 1);
    fs::remove_file(&ballast).unwrap();
    save(&mut session, version + 1).unwrap();
    session.finish().unwrap();
    check(&mut open(), version + 1);
}

/// Saves several versions that may all be in flight. Returns those that exist then, and the bytes
/// that they take.
fn save_at_once(medium: &Path, versions: u64) -> (Vec<u64>, u64) {
    let free_bytes = || DiskFiles::open(medium).unwrap().free_bytes().unwrap().unwrap();
    let before_bytes = free_bytes();
    let dir = medium.join("store");
    let store = Store::builder().host("32 MiB").pin(false).incremental(false).in_flight(4).dir(&dir, None);
    let mut session = store.open().unwrap().session("heat").unwrap();
    let field: Vec<u64> = (0..190_000).map(|nth: u64| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    for version in 1..=versions {
        let _ = session.save(version, &[Part::new("field", &field)]);
    }
    assert_eq!(session.finish().is_err(), versions > 1);
    let found = Catalog::open(&dir).unwrap().versions("heat").unwrap();
    let taken_bytes = before_bytes - free_bytes();
    fs::remove_dir_all(&dir).unwrap();
    (found.iter().filter(|it| it.is_complete()).map(|it| it.version).collect(), taken_bytes)
}

#[test]
fn newer_versions_do_not_take_the_room_of_the_oldest() {
    with_own_mounts(|path| {
        mount_memory(path, c"size=8m");
        let (_, bytes) = save_at_once(path, 1);
        // Room for two packs, and for no manifest beside them.
        let ballast_bytes = DiskFiles::open(path).unwrap().free_bytes().unwrap().unwrap() - 2 * bytes + 8192;
        fs::write(path.join("ballast"), vec![1; ballast_bytes as usize]).unwrap();
        for round in 0..20 {
            assert_eq!(save_at_once(path, 4).0, [1], "round {round}");
        }
    });
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    let media = [
        ("a file system in memory", "mount -t tmpfs -o size=8m none $medium"),
        ("a disk", "truncate -s 16M $0/image && mkfs.ext4 -q -m 0 $0/image && mount -o loop $0/image $medium"),
    ];
    for (name, mount) in media {
        let dir = tempfile::tempdir().unwrap();
        let medium = dir.path().join("medium");
        fs::create_dir(&medium).unwrap();
        // The mount ends with the process.
        let test = child("store_faults::child_fills_a_disk", &medium);
        let script = format!("medium=$0/medium; {mount} || exit 77; exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).arg(dir.path()).arg(test.get_program()).args(test.get_args());
        command.envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))));
        match command.output() {
            Ok(output) if output.status.code() == Some(77) || !is_test(&output.stdout) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                skip(format_args!("{name} cannot be mounted here: {errors}"));
            }
            Ok(output) => assert_success(&output),
            Err(error) => skip(format_args!("{name} cannot be mounted here: {error}")),
        }
    }
}

/// Whether a child has run a test.
fn is_test(output: &[u8]) -> bool {
    String::from_utf8_lossy(output).contains("running 1 test")
}

fn assert_success(output: &std::process::Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// In a child, as a user without write permission: opens a store.
#[test]
fn child_may_not_write() {
    let Some(path) = child_directory() else { return };
    let open = |dir: &Path| Store::builder().host("1 MiB").pin(false).dir(dir, None).open()?.session("heat").map(drop);
    for dir in [path.join("store"), path.join("store/below")] {
        let error = open(&dir).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
        assert!(error.to_string().contains("ermission denied"), "{error}");
    }
}

#[test]
fn a_directory_of_somebody_else_is_refused() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("store")).unwrap();
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Another user may not access the directory of the program.
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let test = child("store_faults::child_may_not_write", dir.path());
    let mut command = Command::new(program);
    command.args(test.get_args()).envs(test.get_envs().filter_map(|(name, value)| Some((name, value?))));
    match command.uid(65_534).gid(65_534).current_dir("/").output() {
        Ok(output) if is_test(&output.stdout) => assert_success(&output),
        outcome => skip(format_args!("this user cannot become another one: {outcome:?}")),
    }
}

#[test]
fn what_may_not_be_done_is_said() {
    let (_, outcome, failing) = run_with(None, 1, 0);
    assert!(outcome.errors.is_empty());
    for of in [Operation::MakeDir, Operation::List, Operation::Lock, Operation::Create, Operation::Rename] {
        assert!(failing.calls(Some(of)) > 0, "{of:?}");
        let fault = Fault { of: Some(of), is_lasting: true, ..Fault::new(Errno::ACCESS) };
        let (_, outcome, _) = run_with(Some(fault), 1, 0);
        assert!(outcome.durable.is_empty(), "{of:?}: {outcome:?}");
        assert!(outcome.errors.iter().any(|error| error.contains("ermission denied")), "{of:?}: {outcome:?}");
    }
}

#[test]
fn nothing_waits_for_a_save_that_has_panicked() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = builder().live("1 MiB").dir(dir.path(), None).open().unwrap().session("heat").unwrap();
    // Bytes that are in two regions cannot be frozen. This is logged, by a log that panics.
    let field = vec![1u8; 5000];
    let log = tracing_subscriber::fmt().with_writer(|| -> io::Sink { panic!("the log is full") }).finish();
    let parts = [Part::new("field", &field), Part::new("again", &field)];
    let save = || tracing::subscriber::with_default(log, || session.save(1, &parts));
    let panic = catch_unwind(AssertUnwindSafe(save)).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the log is full"));
    let (end, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let gone = session.wait(1, Reached::All).unwrap_err().kind();
        session.save(1, &[Part::new("field", &field)]).unwrap();
        session.finish().unwrap();
        end.send(gone).unwrap();
    });
    assert_eq!(has_ended.recv_timeout(PATIENCE).expect("nothing hangs"), ErrorKind::Missing);
}
