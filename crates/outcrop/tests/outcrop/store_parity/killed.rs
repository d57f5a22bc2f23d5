//! All processes are killed at any moment, also while they make versions again, and some nodes are
//! lost with all they have.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use outcrop::{Reached, Result, layers::files::DiskFiles, store::SharedDirectory};
use outcrop_testing::{amount, child, child_directory, covered, say};

use super::{Machine, restore, save};

const PATIENCE: Duration = Duration::from_secs(120);
const RANKS: u32 = 4;
const CODE: (u16, u16) = (2, 2);
const RANK: &str = "OUTCROP_TEST_RANK";
const NODES: &str = "OUTCROP_TEST_NODES";
const ROUND: &str = "OUTCROP_TEST_ROUND";

/// In a child: saves without end.
#[test]
fn child_saves_with_parity() {
    let Some(dir) = child_directory() else { return };
    let rank = std::env::var(RANK).unwrap().parse().unwrap();
    let mut machine = Machine::new(&dir, RANKS, CODE);
    machine.nodes = std::env::var(NODES).unwrap().split(' ').map(str::to_owned).collect();
    let talk = dir.join("talk").join(std::env::var(ROUND).unwrap());
    panic!("it has ended: {:?}", save_for_ever(&machine, rank, &talk));
}

fn save_for_ever(machine: &Machine, rank: u32, talk: &Path) -> Result<()> {
    let mut log = OpenOptions::new().create(true).append(true).open(log_path(&machine.root, rank)).unwrap();
    let mut note = |what: &str, version: u64| log.write_all(format!("{what} {version}\n").as_bytes()).unwrap();
    let ranks = SharedDirectory::open_with(talk, rank, RANKS, PATIENCE)?;
    let files = DiskFiles::create(&machine.dir(rank)).unwrap();
    let store = machine.builder(rank, ranks).files(std::sync::Arc::new(files), None).open()?;
    let mut session = store.session("heat")?;
    let mut version = restore(&mut session, rank)?.map_or(0, |restored| restored.version);
    note("found", version);
    loop {
        version += 1;
        save(&mut session, rank, version)?;
        if version % 3 != 0 {
            session.wait(version, Reached::Parity)?;
            note("kept", version);
        }
    }
}

fn log_path(dir: &Path, rank: u32) -> std::path::PathBuf {
    dir.join("talk").join(format!("log-{rank}"))
}

/// The versions that a rank has noted with this word.
fn noted(dir: &Path, rank: u32, word: &str) -> Vec<u64> {
    let text = fs::read_to_string(log_path(dir, rank)).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // This fails if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn processes_are_killed_and_their_nodes_lost_again_and_again() {
    let seed = std::env::var("OUTCROP_KILL_SEED").ok().map_or_else(|| Rng::new().u64(..), |seed| seed.parse().unwrap());
    say(format_args!("OUTCROP_KILL_SEED={seed}"));
    let (mut random, dir) = (Rng::with_seed(seed), tempfile::tempdir().unwrap());
    let mut machine = Machine::new(dir.path(), RANKS, CODE);
    let rounds: u32 = amount(8, 300);
    let (mut kept, mut finds, mut unhealed) = (0, 0, Vec::new());
    for round in 0..rounds {
        fs::create_dir_all(dir.path().join("talk").join(round.to_string())).unwrap();
        let start = |rank: u32| {
            let errors = File::create(dir.path().join("talk").join(format!("errors-{rank}"))).unwrap();
            let mut command = child("store_parity::killed::child_saves_with_parity", dir.path());
            command.env(RANK, rank.to_string()).env(NODES, machine.nodes.join(" ")).env(ROUND, round.to_string());
            command.stdout(Stdio::null()).stderr(errors).spawn().unwrap()
        };
        let mut running = Running((0..RANKS).map(start).collect());
        let count = |word: &str| noted(dir.path(), 0, word).len();
        // Some are killed while they make versions again, most while they save.
        let founds = || -> Vec<usize> { (0..RANKS).map(|rank| noted(dir.path(), rank, "found").len()).collect() };
        let (before, more) = (founds(), count("kept") + random.usize(1..4));
        let is_early = round > 0 && random.u8(..4) == 0;
        let begin = Instant::now();
        while !is_early && (count("found") == before[0] || count("kept") < more) {
            let ended = running.0.iter_mut().position(|child| child.try_wait().unwrap().is_some());
            if let Some(rank) = ended {
                let errors = fs::read_to_string(dir.path().join("talk").join(format!("errors-{rank}"))).unwrap();
                panic!("round {round}: rank {rank} has ended\n{errors}");
            }
            assert!(begin.elapsed() < PATIENCE, "nothing begins");
            thread::sleep(Duration::from_millis(2));
        }
        thread::sleep(Duration::from_millis(if is_early { random.u64(20..1500) } else { random.u64(0..60) }));
        drop(running);
        let after = founds();
        for rank in (0..RANKS).filter(|rank| after[*rank as usize] > before[*rank as usize]) {
            let newest = noted(dir.path(), rank, "found").last().copied();
            assert!(newest.unwrap_or(0) >= kept, "rank {rank} found {newest:?}, {kept} was kept");
            finds += 1;
        }
        kept = (0..RANKS).flat_map(|rank| noted(dir.path(), rank, "kept")).max().unwrap_or(0).max(kept);
        if (0..RANKS as usize).all(|rank| after[rank] > before[rank]) {
            // Everything was made again: as many may be lost as at the beginning.
            unhealed.clear();
        }
        if unhealed.is_empty() {
            unhealed = (0..RANKS).collect();
            random.shuffle(&mut unhealed);
            unhealed.truncate(CODE.1.into());
        } else {
            let first = random.usize(..unhealed.len());
            unhealed.rotate_left(first);
        }
        machine.lose(&unhealed[..random.usize(0..=unhealed.len())]);
    }
    let found = machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).unwrap().map_or(0, |restored| restored.version)
    });
    assert!(found.iter().all(|version| *version >= kept), "{found:?} is there, {kept} was kept");
    assert!(kept > 0 && finds > 0, "the processes hardly ever got to work");
    covered("runs killed and nodes lost", format_args!("{rounds}, lost: 0"));
}
