//! `outcrop bench store`: the cost of a durable checkpoint, compared with a copy, files, and the
//! disk.

mod rivals;
mod saves;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use outcrop::{Part, PartMut, Reached, Store, StoreBuilder};
use serde_json::{Value, json};

use self::{rivals::Rivals, saves::other_saves};
use crate::{
    Needs, Report, Scratch,
    clock::Calls,
    memory,
    workload::{bytes, check_state_bytes},
};

/// Saves before the first measured one. After them, the store has all memory that it needs.
const WARM_UP: u64 = 3;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The size of the state that is saved.
    pub state_bytes: u64,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// Rounds of everything, interleaved.
    pub rounds: usize,
}

impl Options {
    /// Room for the version being saved, the one before, and their overhead.
    fn host_bytes(&self) -> u64 {
        self.state_bytes * 5 / 2 + (64 << 20)
    }

    /// The most that it needs: all versions of two kinds, or those of one kind and two files of
    /// rivals.
    pub fn needs(&self) -> Needs {
        let file_bytes = 2 * (self.versions() + 1) * self.state_bytes;
        Needs { file_bytes, memory_bytes: self.host_bytes() + self.state_bytes * 5 / 2 }
    }

    /// All versions are kept, so that no file is removed during a measurement.
    fn builder(&self, directory: &Path) -> StoreBuilder {
        Store::builder().host(self.host_bytes()).dir(directory.join("store"), None)
    }

    /// The number of versions of each kind.
    fn versions(&self) -> u64 {
        WARM_UP + self.rounds.max(1) as u64
    }
}

/// How long one kind of save blocked the program, and how long until the version was durable.
#[derive(Default)]
struct Saves {
    blocked: Calls,
    durable: Calls,
}

impl Saves {
    fn time(&mut self, session: &mut outcrop::Session, version: u64, state: &[f32]) -> Result<()> {
        let start = Instant::now();
        session.save(version, &[Part::new("state", state)])?;
        let blocked = start.elapsed();
        session.wait(version, Reached::Layer(1))?;
        self.blocked.add(blocked);
        self.durable.add(start.elapsed());
        Ok(())
    }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let bytes = options.state_bytes;
    check_state_bytes(bytes)?;
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    let scratch = tempfile::tempdir_in(&options.directory)?;
    memory::warm(options.host_bytes() + 2 * bytes);
    let state = noise(bytes);
    let mut rivals = Rivals::new(scratch.path(), bytes)?;
    let full = full_saves(options, scratch.path(), &state, &mut rivals, progress)?;
    let restores = restores(options, scratch.path(), &state, &mut rivals, progress)?;
    let others = other_saves(options, scratch.path(), state, progress)?;
    let ratios = BTreeMap::from([
        ("blocked_over_memcpy", full.blocked.quantile(0.5) / rivals.copy.quantile(0.5)),
        ("durable_over_direct_write", rivals.best_write() / full.durable.quantile(0.5)),
        ("restore_over_direct_read", rivals.best_read() / restores.reading.quantile(0.5)),
    ]);
    let line = |part: &str, way: &str, calls: &Calls| {
        let mut row = row(part, way, calls);
        row["gb_per_second"] = (bytes as f64 / calls.quantile(0.5) / 1e9).into();
        row
    };
    let mut runs = vec![line("blocked", "store: save returns", &full.blocked)];
    runs.extend(rivals.blocked_rows(&line));
    runs.push(line("durable", "store: save and wait", &full.durable));
    runs.extend(rivals.write_rows(&line));
    runs.push(line("restore", "store: restore_latest", &restores.reading));
    runs.push(line("restore", "store: open, session, restore_latest", &restores.all));
    runs.extend(rivals.read_rows(&line));
    runs.extend(others);
    let settings = json!({
        "state_bytes": bytes,
        "host_bytes": options.host_bytes(),
        "rounds": options.rounds,
        "memory": "everything is touched: the state in pages of the usual size, what it is copied to in huge pages",
        "ratios": "of medians; of the direct transfers the block size with the best median",
    });
    Ok(Report::new("store", settings, runs, ratios))
}

/// A state that cannot be compressed.
fn noise(bytes: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..bytes / 4).map(|_| random.f32()).collect()
}

/// One line of the table.
fn row(part: &str, way: &str, calls: &Calls) -> Value {
    let (median, best) = (calls.quantile(0.5), calls.quantile(0.0));
    let rounds: Vec<f64> = calls.all_seconds().map(|seconds| seconds * 1e3).collect();
    json!({ "part": part, "way": way, "ms_median": median * 1e3, "ms_best": best * 1e3, "ms_median_rounds": rounds })
}

/// Full checkpoints, interleaved with their rivals. The last version stays.
fn full_saves(
    options: &Options,
    directory: &Path,
    state: &[f32],
    rivals: &mut Rivals,
    progress: &mut dyn FnMut(&str),
) -> Result<Saves> {
    let store = options.builder(directory).incremental(false).open()?;
    let mut session = store.session("bench")?;
    progress("full checkpoints: the first ones, which do not count");
    let mut warm_up = Saves::default();
    for version in 0..WARM_UP {
        warm_up.time(&mut session, version, state)?;
    }
    let mut saves = Saves::default();
    for round in 0..options.rounds.max(1) {
        progress(&format!("full checkpoints, round {}", round + 1));
        rivals.save(bytes(state))?;
        saves.time(&mut session, WARM_UP + round as u64, state)?;
    }
    session.finish()?;
    Ok(saves)
}

/// How long a restore takes.
#[derive(Default)]
struct Restores {
    /// The call alone.
    reading: Calls,
    /// Including opening the store and the session.
    all: Calls,
}

/// Restores the newest version in a freshly opened store, interleaved with reading one file.
fn restores(
    options: &Options,
    directory: &Path,
    state: &[f32],
    rivals: &mut Rivals,
    progress: &mut dyn FnMut(&str),
) -> Result<Restores> {
    let mut restores = Restores::default();
    let mut found = vec![1f32; state.len()];
    for round in 0..options.rounds.max(1) {
        progress(&format!("restoring, round {}", round + 1));
        rivals.read()?;
        let start = Instant::now();
        let mut session = options.builder(directory).open()?.session("bench")?;
        let mut parts = [PartMut::new("state", &mut found)];
        restores.reading.time(|| session.restore_latest(&mut parts))?.context("there is a version")?;
        restores.all.add(start.elapsed());
        ensure!(found == state, "what was restored is not what was saved");
        found.fill(1.0);
    }
    Ok(restores)
}
