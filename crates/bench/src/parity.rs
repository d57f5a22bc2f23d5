//! What it costs that nodes may be lost: the wall time of a program that computes and saves, with
//! and without parity, and how fast a lost node's versions are made again.
//!
//! Nodes are directories of one disk here, and ranks are threads: the disk takes what several
//! would, and the processor sends and receives everything.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use outcrop::{
    Part, PartMut, Reached, Retention, Session, Store,
    store::{Code, SharedDirectory},
};
use serde_json::{Value, json};

use crate::pool::median;

/// One rank on each of so many nodes.
const RANKS: u32 = 3;
/// How long others may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often the state is computed between two saves.
const STEPS: usize = 60;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the state of a rank.
    pub bytes: usize,
    /// How many versions are saved.
    pub saves: u64,
    /// How often everything is repeated.
    pub rounds: usize,
}

/// Measures. Returns what is measured once, and the ratios.
pub fn run(directory: &Path, options: Options) -> Result<(Vec<Value>, BTreeMap<&'static str, f64>)> {
    let (mut walls, mut rebuilds) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..options.rounds {
        for (way, code) in [None, Some(Code::new(2, 1)?)].into_iter().enumerate() {
            let scratch = tempfile::tempdir_in(directory)?;
            let seconds =
                together(scratch.path(), 0, |rank, ranks| loop_of(scratch.path(), rank, ranks, code, options))?;
            walls[way].push(seconds.into_iter().fold(0.0, f64::max));
            if let Some(code) = code {
                let [copied, rebuilt] = rebuild(scratch.path(), code, options)?;
                rebuilds[0].push(copied);
                rebuilds[1].push(rebuilt);
            }
        }
    }
    let [none, parity] = walls.map(|seconds| median(&seconds));
    let [copied, rebuilt] = rebuilds.map(|seconds| median(&seconds));
    let part = format!("{RANKS} ranks that compute and save {} versions of {} MiB", options.saves, options.bytes >> 20);
    let line = |part: &str, way: &str, seconds: f64| json!({ "part": part, "ranks": RANKS, "way": way, "takes_seconds": seconds });
    let runs = vec![
        line(&part, "without parity", none),
        line(&part, "with parity 2+1", parity),
        line("a lost node", "the same bytes are copied", copied),
        line("a lost node", "its versions are made again", rebuilt),
    ];
    Ok((runs, BTreeMap::from([("parity_wall_over_none", parity / none), ("rebuild_over_copy", copied / rebuilt)])))
}

/// Runs something on all ranks, each a thread.
fn together<T: Send>(
    directory: &Path,
    run: u32,
    program: impl Fn(u32, SharedDirectory) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (talk, program) = (directory.join(format!("talk-{run}")), &program);
    fs::create_dir(&talk)?;
    let talk = &talk;
    thread::scope(|scope| {
        let start = |rank| {
            let begun = move || program(rank, SharedDirectory::open_with(talk, rank, RANKS, PATIENCE)?);
            scope.spawn(begun)
        };
        let ranks: Vec<_> = (0..RANKS).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().map_err(|_| anyhow!("a rank has panicked"))?).collect()
    })
}

fn node(directory: &Path, rank: u32) -> std::path::PathBuf {
    directory.join(format!("node-{rank}"))
}

fn open(directory: &Path, rank: u32, ranks: SharedDirectory, code: Option<Code>, bytes: usize) -> Result<Session> {
    let keep = Retention { keep_last: Some(2), ..Retention::default() };
    let store = Store::builder().host(3 * bytes as u64).threads(1).keep(keep).ranks(ranks).pin(false);
    let mut store = store.dir(node(directory, rank), None).incremental(false);
    if let Some(code) = code {
        store = store.parity(code).parity_domain(format!("node-{rank}"));
        store = store.parity_network(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    Ok(store.open()?.session("bench")?)
}

/// Computes and saves. Returns the seconds until everything was durable.
fn loop_of(directory: &Path, rank: u32, ranks: SharedDirectory, code: Option<Code>, options: Options) -> Result<f64> {
    let mut state = vec![1.0 + f64::from(rank); options.bytes / 8];
    let mut session = open(directory, rank, ranks, code, options.bytes)?;
    // The first version touches memory; it is not measured.
    session.save(1, &[Part::new("state", &state)])?;
    session.wait(1, Reached::All)?;
    let start = Instant::now();
    for version in 2..2 + options.saves {
        for _ in 0..STEPS {
            state.iter_mut().for_each(|value| *value = *value * 0.999_9 + 0.001);
        }
        session.save(version, &[Part::new("state", &state)])?;
    }
    session.finish()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Loses a node. Returns the seconds in which its bytes are copied, and made again.
fn rebuild(directory: &Path, code: Code, options: Options) -> Result<[f64; 2]> {
    let of_rank = node(directory, 0).join("bench").join("rank-00000");
    let (copy, start) = (directory.join("copy"), Instant::now());
    fs::create_dir(&copy)?;
    for entry in fs::read_dir(&of_rank)? {
        let (from, to) = entry.map(|entry| (entry.path(), copy.join(entry.file_name())))?;
        fs::copy(&from, &to)?;
        fs::File::open(&to)?.sync_all()?;
    }
    let copied = start.elapsed().as_secs_f64();
    fs::remove_dir_all(node(directory, 0))?;
    let seconds = together(directory, 1, |rank, ranks| {
        let mut state = vec![0.0; options.bytes / 8];
        let start = Instant::now();
        let mut session = open(directory, rank, ranks, Some(code), options.bytes)?;
        let seconds = start.elapsed().as_secs_f64();
        let restored = session.restore_latest(&mut [PartMut::new("state", &mut state)])?;
        let restored = restored.context("nothing was restored")?;
        (rank > 0 || restored.rebuilt.contains(&restored.version))
            .then_some(seconds)
            .context("the versions of the lost node were not made again")
    })?;
    Ok([copied, seconds[0]])
}
