//! Real processes that are killed at any moment: the next ones find what was reported, and continue
//! from there.
//!
//! The test starts this program again, as one rank or several. The ranks save one version after the
//! other as fast as they can. Each records in a file which version it finds when it starts, and
//! which versions are reported as durable to it. The content of a version follows from its number
//! and the rank.

mod gluster;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use outcrop::{
    Error, ErrorKind, Part, PartMut, Reached, Result, Retention, Session, Store,
    store::{Compression, Dedup, SharedDirectory},
};
use outcrop_testing::{amount, child, child_directory, covered, say};

/// Longer than anything takes here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const RANK: &str = "OUTCROP_TEST_RANK";
const RANKS: &str = "OUTCROP_TEST_RANKS";
const LANE: &str = "OUTCROP_TEST_LANE";
/// Where the files of the store are.
const FILES: &str = "OUTCROP_TEST_FILES";

/// The number of stores at once, each with its own settings. Most of the time is spent waiting.
const LANES: u32 = 3;

/// The state of a rank: a field in which a few elements change from version to version, and a
/// region whose length changes.
fn state(rank: u32, version: u64) -> (Vec<u64>, Vec<u8>) {
    let mut field: Vec<u64> = (0..3000).collect();
    for step in version.saturating_sub(9000)..=version {
        field[(step * 977 + u64::from(rank)) as usize % 3000] = step;
    }
    (field, vec![version as u8; (version % 5 * 300) as usize])
}

fn open(dir: &Path, lane: u32, rank: u32, ranks: u32) -> Result<Session> {
    let keep = Retention { keep_last: Some(2), keep_every: Some(64), ..Retention::default() };
    let store = Store::builder().host("4 MiB").block(512).keep(keep).chain_max(3).threads(1).pin(false);
    let store = store.dir(dir.join("near"), None);
    let mut store = match lane {
        0 => store.compression(Compression::Lz4).dir(dir.join("far"), None),
        1 if ranks > 1 => {
            store.dedup(Dedup::Ranks).dir(dir.join("far"), None).keep_on(2, Retention { keep_last: Some(1), ..keep })
        }
        1 => store.dedup(Dedup::Inside).certain(true).chain_max(1),
        _ => store.keep_on(1, Retention { keep_for_ns: Some(50_000_000), ..keep }).in_flight(4),
    };
    if ranks > 1 {
        store = store.ranks(SharedDirectory::open_with(dir.join("talk"), rank, ranks, PATIENCE)?);
    }
    store.open()?.session("heat")
}

/// Restores the newest version, which must be what was saved under its number.
fn restore(session: &mut Session, rank: u32) -> Result<u64> {
    let mut number = 0;
    let Some(restored) = session.restore_latest(&mut [PartMut::one("version", &mut number)])? else { return Ok(0) };
    assert!(restored.skipped.is_empty(), "nothing is damaged by a kill: {restored:?}");
    assert_eq!(restored.version, number);
    let (field, tail) = state(rank, number);
    let (mut found, mut found_tail) = (vec![0; field.len()], vec![0; tail.len()]);
    session.restore(number, &mut [PartMut::new("field", &mut found), PartMut::new("tail", &mut found_tail)])?;
    assert!(found == field && found_tail == tail, "version {number} is not what rank {rank} saved");
    Ok(number)
}

/// In a child: saves without end.
#[test]
fn child_saves() {
    let Some(dir) = child_directory() else { return };
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    let (rank, ranks, lane) = (number(RANK), number(RANKS), number(LANE));
    let files = PathBuf::from(std::env::var_os(FILES).unwrap());
    match save_for_ever(&dir, &files, lane, rank, ranks) {
        // Another rank was killed first.
        Err(error) if ranks > 1 && is_of_others(&error) => {}
        outcome => panic!("rank {rank} has ended: {outcome:?}"),
    }
}

fn is_of_others(error: &Error) -> bool {
    // Ranks that notice it first end in good order, before others notice.
    error.kind() == ErrorKind::Busy || ["is gone", "it has ended"].iter().any(|why| error.to_string().contains(why))
}

fn save_for_ever(dir: &Path, files: &Path, lane: u32, rank: u32, ranks: u32) -> Result<()> {
    let mut log = OpenOptions::new().create(true).append(true).open(log_path(dir, rank)).unwrap();
    let mut session = open(files, lane, rank, ranks)?;
    let layers = if files.join("far").exists() { 2 } else { 1 };
    let mut version = restore(&mut session, rank)?;
    note(&mut log, "found", version);
    loop {
        version += 1;
        let (field, tail) = state(rank, version);
        session
            .save(version, &[Part::new("field", &field), Part::one("version", &version), Part::new("tail", &tail)])?;
        // Sometimes several versions are in flight.
        if version % 3 != 0 {
            session.wait(version, Reached::Layer(1 + (version % layers) as usize))?;
            note(&mut log, "durable", version);
        }
    }
}

fn log_path(dir: &Path, rank: u32) -> std::path::PathBuf {
    dir.join(format!("log-{rank}"))
}

fn note(log: &mut File, what: &str, version: u64) {
    log.write_all(format!("{what} {version}\n").as_bytes()).unwrap();
}

/// The notes of a rank so far, without the first `before` ones.
fn notes(dir: &Path, rank: u32, before: usize) -> Vec<(String, u64)> {
    let text = fs::read_to_string(log_path(dir, rank)).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let note = |line: &str| line.split_once(' ').map(|(what, version)| (what.to_owned(), version.parse().unwrap()));
    whole.lines().filter_map(note).skip(before).collect()
}

/// Processes that are killed when they are dropped.
struct Running {
    children: Vec<Child>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            // This fails if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The rounds of a test, and their results.
struct Rounds<'a> {
    dir: &'a Path,
    /// Where ranks find the files of the store; they take turns.
    files: &'a [PathBuf],
    lane: u32,
    ranks: u32,
    random: Rng,
    /// By rank: the number of notes read so far.
    known: Vec<usize>,
    /// The newest version that was reported as durable to any rank.
    durable: u64,
    kills: u32,
    finds: u32,
}

impl Rounds<'_> {
    fn start(&self) -> Running {
        let start = |rank: u32| {
            let errors = File::create(self.dir.join(format!("errors-{rank}"))).unwrap();
            let mut command = child("store_kill::child_saves", self.dir);
            command.env(RANK, rank.to_string()).env(RANKS, self.ranks.to_string()).env(LANE, self.lane.to_string());
            command.env(FILES, files_of(self.files, rank));
            command.stdout(Stdio::null()).stderr(errors).spawn().unwrap()
        };
        Running { children: (0..self.ranks).map(start).collect() }
    }

    fn round(&mut self) {
        let mut running = self.start();
        // Some are killed while they start, most while they save, and some only after a new version
        // is durable.
        let wanted = [0, 1, 1, 2][self.random.usize(..4)];
        let begin = Instant::now();
        let last = self.ranks - 1;
        while notes(self.dir, last, self.known[last as usize]).len() < wanted && self.is_running(&mut running) {
            assert!(begin.elapsed() < PATIENCE, "nothing begins");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(self.random.u64(1000..40_000)));
        self.kill(&mut running);
        self.take_notes();
    }

    fn is_running(&self, running: &mut Running) -> bool {
        running.children.iter_mut().all(|child| child.try_wait().unwrap().is_none())
    }

    /// Kills all processes, or one. In the second case the others must end by themselves.
    fn kill(&mut self, running: &mut Running) {
        let count = running.children.len();
        let first = self.random.usize(..count);
        // A rank that has not joined yet would wait for the dead one for a while.
        let have_met = (0..self.ranks).all(|rank| !notes(self.dir, rank, self.known[rank as usize]).is_empty());
        let is_only_one = self.random.u8(..3) == 0 && have_met;
        for nth in 0..count {
            let rank = (first + nth) % count;
            let child = &mut running.children[rank];
            if nth == 0 || !is_only_one {
                child.kill().unwrap();
            }
            let begin = Instant::now();
            let status = loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status,
                    None => assert!(begin.elapsed() < PATIENCE, "rank {rank} waits for one that is gone"),
                }
                thread::sleep(Duration::from_micros(300));
            };
            let is_killed = status.signal() == Some(9);
            self.kills += u32::from(is_killed);
            let errors = fs::read_to_string(self.dir.join(format!("errors-{rank}"))).unwrap();
            assert!(is_killed || status.success(), "rank {rank} of {count}: {status}\n{errors}");
        }
    }

    /// Checks that what was found is not older than what was durable before.
    fn take_notes(&mut self) {
        let durable_before = self.durable;
        for rank in 0..self.ranks {
            for (what, version) in notes(self.dir, rank, self.known[rank as usize]) {
                self.known[rank as usize] += 1;
                match what.as_str() {
                    "found" => {
                        assert!(version >= durable_before, "rank {rank} found {version}, {durable_before} was durable");
                        self.finds += 1;
                    }
                    _ => self.durable = self.durable.max(version),
                }
            }
        }
    }
}

fn files_of(files: &[PathBuf], rank: u32) -> &Path {
    &files[rank as usize % files.len()]
}

fn rounds(lane: u32, ranks: u32, count: u32) -> u32 {
    let dir = tempfile::tempdir().unwrap();
    rounds_in(dir.path(), &[dir.path().to_owned()], (lane, ranks, count), &mut |_| {})
}

/// Kills the processes of one store again and again; `between` happens before each round. Returns
/// how many were killed.
fn rounds_in(
    dir: &Path,
    files: &[PathBuf],
    (lane, ranks, count): (u32, u32, u32),
    between: &mut dyn FnMut(u32),
) -> u32 {
    let seed = std::env::var("OUTCROP_KILL_SEED").ok().map_or_else(|| Rng::new().u64(..), |seed| seed.parse().unwrap());
    say(format_args!("{ranks} ranks, lane {lane}: OUTCROP_KILL_SEED={seed}"));
    let known = vec![0; ranks as usize];
    let random = Rng::with_seed(seed);
    let mut rounds = Rounds { dir, files, lane, ranks, random, known, durable: 0, kills: 0, finds: 0 };
    for nth in 0..count {
        between(nth);
        rounds.round();
    }
    thread::scope(|scope| {
        for rank in 0..ranks {
            let (files, durable) = (files_of(files, rank), rounds.durable);
            scope.spawn(move || {
                let mut session = open(files, lane, rank, ranks).unwrap();
                let version = restore(&mut session, rank).unwrap();
                assert!(version >= durable, "{version} is the newest, {durable} was durable");
                for version in session.versions() {
                    let (field, _) = state(rank, version);
                    let mut found = vec![0; field.len()];
                    session.restore(version, &mut [PartMut::new("field", &mut found)]).unwrap();
                    assert!(found == field, "version {version} is not what rank {rank} saved");
                }
            });
        }
    });
    let Rounds { durable, kills, finds, .. } = rounds;
    say(format_args!("lane {lane}: {kills} killed, {finds} found all that was durable, up to version {durable}"));
    assert!(durable > 0 && finds > count / 4, "the processes hardly ever got to work");
    kills
}

fn lanes(ranks: u32, count: u32) {
    let kills: u32 = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|lane| scope.spawn(move || rounds(lane, ranks, count / LANES))).collect();
        lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
    });
    covered(&format!("processes that were killed, {ranks} at a time"), format_args!("{kills}, lost: 0"));
}

#[test]
fn one_process_is_killed_again_and_again() {
    lanes(1, amount(240, 5_400));
}

#[test]
fn three_processes_are_killed_again_and_again() {
    lanes(3, amount(72, 2_400));
}
