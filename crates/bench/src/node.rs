//! `outcrop bench node`: what programs perceive when they write to files, plainly and through the
//! node daemon (figures 4 to 7 of the paper, scaled to this machine).
//!
//! What a ratio compares is measured in turns, in the same state: memory is touched and has huge
//! pages on both sides, files are new, and what the daemon still has to drain is drained before the
//! next turn, outside of the time. A ratio is the median over all turns.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use outcrop_intercept::{
    Fsync, Paths,
    fuse::{self, Mount, Mounting},
};
use outcrop_memory::{Pages, Private};
use outcrop_node::{Client, Connect, ServeOptions};
use serde_json::json;

use crate::{
    Needs, Report, Scratch,
    disk::{aligned, open_direct},
};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How much one rank writes in a burst.
    pub burst_bytes: u64,
    /// The lengths of single writes.
    pub writes: Vec<u64>,
    /// How many ranks write at once.
    pub ranks: Vec<usize>,
    /// How many drains are under way at once.
    pub threads: Vec<usize>,
    /// How many small files are made.
    pub files: usize,
    /// How many times everything is measured.
    pub rounds: usize,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// The program that serves as the daemon, and its arguments.
    pub program: (PathBuf, Vec<String>),
}

/// Writes of at least this length are compared with copies.
const LARGE: u64 = 4 << 20;
/// How often in each round what a ratio compares takes turns.
const TURNS: usize = 5;
/// How long an idle daemon is watched.
const IDLE: Duration = Duration::from_secs(1);

impl Options {
    fn ranks_max(&self) -> u64 {
        self.ranks.iter().copied().max().unwrap_or(1) as u64
    }

    /// The memory and space that it needs.
    pub fn needs(&self) -> Needs {
        let bytes = self.burst_bytes * self.ranks_max();
        Needs { file_bytes: 2 * bytes + self.burst_bytes * 4, memory_bytes: 3 * bytes }
    }
}

/// A way to write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// A copy to touched memory: the limit.
    Copy,
    Plain,
    PlainAndSync,
    /// Through the client, with this many drains at once.
    Client(usize),
    /// A plain write below a mount.
    Fuse,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Copy => "copy to touched memory".to_owned(),
            Self::Plain => "plain write".to_owned(),
            Self::PlainAndSync => "plain write, fsync".to_owned(),
            Self::Client(1) => "client, 1 drain at once".to_owned(),
            Self::Client(threads) => format!("client, {threads} drains at once"),
            Self::Fuse => "below a mount (fuse)".to_owned(),
        }
    }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(options.rounds > 0 && options.burst_bytes > 0, "at least one round and one byte");
    let fits = |list: &[usize]| !list.is_empty() && list.iter().all(|count| (1..=64).contains(count));
    ensure!(fits(&options.ranks) && fits(&options.threads), "give 1 to 64 ranks and drain threads");
    ensure!(options.writes.iter().all(|bytes| *bytes > 0), "a write of nothing cannot be measured");
    let _scratch = Scratch::new(&options.directory)?;
    options.needs().check(&options.directory)?;
    let inside = tempfile::tempdir_in(&options.directory)?;
    let mut ways = vec![Way::Copy, Way::Plain, Way::PlainAndSync];
    ways.extend(options.threads.iter().map(|&threads| Way::Client(threads)));
    match fuse::possible() {
        Ok(()) => ways.push(Way::Fuse),
        Err(reason) => progress(&format!("no mount can be measured here: {reason}")),
    }
    let bench = Bench { options, directory: inside.path().canonicalize()? };
    let mut rates: BTreeMap<(usize, Way, u64), Vec<f64>> = BTreeMap::new();
    let mut ratios: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for round in 0..options.rounds {
        for &way in &ways {
            progress(&format!("{}, round {} of {}", way.name(), round + 1, options.rounds));
            for (ranks, bytes, rate) in bench.bursts(way)? {
                rates.entry((ranks, way, bytes)).or_default().push(rate);
            }
        }
        progress(&format!("the ratios, round {}", round + 1));
        bench.compare(ways.contains(&Way::Fuse), &mut |key, ratio| ratios.entry(key).or_default().push(ratio))?;
    }
    progress("an idle daemon");
    let idle = bench.idle()?;
    let rates: BTreeMap<_, _> = rates.into_iter().map(|(key, rates)| (key, median(rates))).collect();
    let ratios: BTreeMap<_, _> = ratios.into_iter().map(|(key, ratios)| (key, median(ratios))).collect();
    let runs = rates.iter().map(|((ranks, way, bytes), rate)| {
        json!({ "way": way.name(), "ranks": ranks, "write_bytes": bytes, "gb_per_second": rate / 1e9 })
    });
    let settings = json!({
        "burst_bytes": options.burst_bytes, "files": options.files, "rounds": options.rounds, "memory": "touched",
        "idle_daemon_resident_bytes": idle.resident_bytes, "idle_daemon_processor_ms": idle.processor_ms,
    });
    Ok(Report::new("node", settings, runs.collect(), ratios))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

struct Bench<'a> {
    options: &'a Options,
    directory: PathBuf,
}

/// A daemon of this benchmark, which ends with it.
struct Daemon {
    client: Client,
    _place: tempfile::TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.client.stop();
    }
}

/// One who writes: to `offset` of its own file.
type Writer<'a> = Box<dyn FnMut(u64, &[u8]) -> Result<()> + Send + 'a>;

impl Bench<'_> {
    /// A daemon with this much memory, all of it touched.
    fn daemon(&self, memory_bytes: u64, threads: usize) -> Result<Daemon> {
        let place = tempfile::tempdir()?;
        let serve = ServeOptions {
            directory: Some(place.path().join("node")),
            memory_bytes: Some(memory_bytes),
            threads,
            touch_all: true,
            ..ServeOptions::default()
        };
        let daemon = self.started(serve, place)?;
        // Touching goes on in the background; there is no other sign that it has ended.
        let until = Instant::now() + Duration::from_secs(30);
        while daemon.client.status()?.touched_bytes < memory_bytes && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    fn started(&self, serve: ServeOptions, place: tempfile::TempDir) -> Result<Daemon> {
        let (program, arguments) = self.options.program.clone();
        let arguments = arguments.into_iter().map(Into::into).collect();
        let connect = Connect { serve, program: Some(program), arguments, ..Connect::default() };
        let client = Client::connect(&connect).context("cannot start a node daemon")?;
        Ok(Daemon { client, _place: place })
    }

    fn mount(&self, client: &Client, directory: &Path) -> Result<Mount> {
        fs::create_dir_all(directory)?;
        let paths = Paths::new(&[directory.to_owned()], Vec::new(), Vec::new())?;
        let mounting = Mounting { paths, cache: Arc::new(client.clone()), fsync: Fsync::Disk };
        Mount::new(directory, &mounting)?.context("the directory is below another mount")
    }

    /// The bandwidth that each rank perceives, for all numbers of ranks and lengths of writes.
    fn bursts(&self, way: Way) -> Result<Vec<(usize, u64, f64)>> {
        let memory_bytes = self.options.burst_bytes * self.options.ranks_max() * 5 / 4 + (64 << 20);
        let threads = if let Way::Client(threads) = way { threads } else { 2 };
        let daemon = match way {
            Way::Client(_) | Way::Fuse => Some(self.daemon(memory_bytes, threads)?),
            _ => None,
        };
        let mut found = Vec::new();
        for &ranks in &self.options.ranks {
            for &bytes in &self.options.writes {
                found.push((ranks, bytes, self.burst(way, daemon.as_ref(), ranks, bytes)?));
            }
        }
        Ok(found)
    }

    /// One burst: every rank writes its part in writes of `bytes`.
    fn burst(&self, way: Way, daemon: Option<&Daemon>, ranks: usize, bytes: u64) -> Result<f64> {
        let inside = tempfile::tempdir_in(&self.directory)?;
        let mount = match (way, daemon) {
            (Way::Fuse, Some(daemon)) => Some(self.mount(&daemon.client, inside.path())?),
            _ => None,
        };
        let outcome = self.write_burst(way, daemon, ranks, bytes, inside.path());
        if let Some(mut mount) = mount {
            mount.unmount()?;
            ensure!(mount.drain(|_, _| true).is_empty(), "not everything was drained");
        }
        if let Some(daemon) = daemon {
            daemon.client.drain_all()?;
        }
        outcome
    }

    fn write_burst(&self, way: Way, daemon: Option<&Daemon>, ranks: usize, bytes: u64, at: &Path) -> Result<f64> {
        let bytes = bytes.min(self.options.burst_bytes);
        let count = (self.options.burst_bytes / bytes).max(1);
        let barrier = Barrier::new(ranks);
        let seconds = thread::scope(|scope| -> Result<Vec<f64>> {
            let one = |rank: usize| {
                let (barrier, path) = (&barrier, at.join(format!("rank-{rank}")));
                scope.spawn(move || -> Result<f64> {
                    let source = vec![rank as u8 + 1; bytes as usize];
                    let writer = self.writer(way, daemon, &path, count * bytes);
                    barrier.wait();
                    let mut writer = writer?;
                    let start = Instant::now();
                    for nth in 0..count {
                        writer(nth * bytes, &source)?;
                    }
                    if way == Way::PlainAndSync {
                        File::open(&path)?.sync_data()?;
                    }
                    Ok(start.elapsed().as_secs_f64())
                })
            };
            let ranks: Vec<_> = (0..ranks).map(one).collect();
            ranks.into_iter().map(|rank| rank.join().expect("it does not panic")).collect()
        })?;
        Ok((count * bytes) as f64 / (seconds.iter().sum::<f64>() / seconds.len() as f64))
    }

    fn writer<'a>(&'a self, way: Way, daemon: Option<&'a Daemon>, path: &Path, bytes: u64) -> Result<Writer<'a>> {
        if way == Way::Copy {
            let mut touched = Private::new(bytes as usize, Pages::Huge)?;
            touched.fill(1);
            return Ok(Box::new(move |offset, source| {
                touched[offset as usize..][..source.len()].copy_from_slice(source);
                Ok(())
            }));
        }
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        match (way, daemon) {
            (Way::Client(_), Some(daemon)) => {
                let file = daemon.client.open(file, path)?;
                Ok(Box::new(move |offset, source| Ok(outcrop_node::Cached::write(&file, offset, source)?)))
            }
            _ => Ok(Box::new(move |offset, source| Ok(file.write_all_at(source, offset)?))),
        }
    }

    /// Everything that has a ratio.
    fn compare(&self, has_mount: bool, found: &mut dyn FnMut(&'static str, f64)) -> Result<()> {
        let longest = self.options.writes.iter().copied().max().unwrap_or_default();
        let large = self.options.writes.iter().filter(|bytes| **bytes >= LARGE.min(longest));
        let daemon = self.daemon(self.options.burst_bytes * 5 / 4 + (64 << 20), 2)?;
        for &bytes in large {
            for _ in 0..TURNS {
                let copy = self.burst(Way::Copy, None, 1, bytes)?;
                let ours = self.burst(Way::Client(2), Some(&daemon), 1, bytes)?;
                let plain = self.burst(Way::Plain, None, 1, bytes)?;
                found("client_over_memcpy", ours / copy);
                found("burst_over_plain_write", ours / plain);
            }
        }
        drop(daemon);
        self.overflow(found)?;
        self.drain(found)?;
        if has_mount {
            self.small_files(found)?;
        }
        Ok(())
    }

    /// A burst of four times the memory: its bandwidth over that of plain writes.
    fn overflow(&self, found: &mut dyn FnMut(&'static str, f64)) -> Result<()> {
        let options = Options { burst_bytes: self.options.burst_bytes * 4, ..self.options.clone() };
        let bench = Bench { options: &options, directory: self.directory.clone() };
        let daemon = self.daemon(self.options.burst_bytes, 2)?;
        for _ in 0..TURNS {
            let plain = bench.burst(Way::Plain, None, 1, LARGE)?;
            let ours = bench.burst(Way::Client(2), Some(&daemon), 1, LARGE)?;
            found("overflow_over_plain_write", ours / plain);
        }
        Ok(())
    }

    /// The rate of writing and draining, over writing as much with O_DIRECT. Both end with a sync.
    fn drain(&self, found: &mut dyn FnMut(&'static str, f64)) -> Result<()> {
        let (bytes, piece) = (self.options.burst_bytes * 4, 16 << 20);
        let mut buffer = aligned(piece.min(bytes as usize).next_multiple_of(4096))?;
        buffer.fill(1);
        let daemon = self.daemon(bytes * 5 / 4 + (64 << 20), 2)?;
        let count = (bytes / buffer.len() as u64).max(1);
        let offsets = || (0..count).map(|nth| nth * buffer.len() as u64);
        for _ in 0..TURNS {
            let inside = tempfile::tempdir_in(&self.directory)?;
            let file = open_direct(&inside.path().join("direct"))?;
            let start = Instant::now();
            offsets().try_for_each(|offset| file.write_all_at(&buffer, offset))?;
            file.sync_data()?;
            let direct = start.elapsed().as_secs_f64();
            let path = inside.path().join("drained");
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            let file = daemon.client.open(file, &path)?;
            let start = Instant::now();
            // Draining begins with the first write.
            offsets().try_for_each(|offset| outcrop_node::Cached::write(&file, offset, &buffer))?;
            outcrop_node::Cached::sync(&file)?;
            found("drain_over_direct", direct / start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// The time to make, write and close a small file below a mount, over the same without one.
    fn small_files(&self, found: &mut dyn FnMut(&'static str, f64)) -> Result<()> {
        let daemon = self.daemon(256 << 20, 2)?;
        let inside = tempfile::tempdir_in(&self.directory)?;
        let (native, mounted) = (inside.path().join("native"), inside.path().join("mounted"));
        fs::create_dir(&native)?;
        let mut mount = self.mount(&daemon.client, &mounted)?;
        let make = |directory: &Path, turn: usize| -> Result<f64> {
            let start = Instant::now();
            for nth in 0..self.options.files.div_ceil(TURNS) {
                File::create(directory.join(format!("{turn}-{nth}")))?.write_all(&[7; 4096])?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let mut turn = |turn: usize| -> Result<()> {
            let plain = make(&native, turn)?;
            found("small_file_over_native", make(&mounted, turn)? / plain);
            Ok(daemon.client.drain_all()?)
        };
        let outcome = (0..TURNS).try_for_each(&mut turn);
        mount.unmount()?;
        ensure!(mount.drain(|_, _| true).is_empty(), "not every small file was drained");
        outcome
    }

    /// What a daemon with a client takes that does nothing.
    fn idle(&self) -> Result<Idle> {
        let place = tempfile::tempdir()?;
        let serve = ServeOptions { directory: Some(place.path().join("node")), ..ServeOptions::default() };
        let daemon = self.started(serve, place)?;
        let process = daemon.client.status()?.process;
        thread::sleep(IDLE);
        let before = processor_ms(process)?;
        thread::sleep(IDLE);
        let processor_ms = processor_ms(process)? - before;
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(Idle { resident_bytes: resident.trim().trim_end_matches(" kB").parse::<u64>()? << 10, processor_ms })
    }
}

struct Idle {
    resident_bytes: u64,
    processor_ms: u64,
}

/// How much processor time a process has taken.
fn processor_ms(process: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no fields in stat")?;
    // User and system time are fields 14 and 15, in ticks; the first of these fields is the third.
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
