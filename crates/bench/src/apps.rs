//! `outcrop bench apps`: four scientific programs with their state in memory, in emulated
//! non-volatile memory, in checkpoint files and in pools, as in the figures of NV-Checkpoint.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Result;
use outcrop_science::{
    Job, Program, Stop, Way,
    crack::{self, Crack},
    droplet::{self, Droplet},
    lu::{self, Lu},
    pagerank::{self, PageRank},
};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use crate::{Needs, Report, Scratch, hand_written::over_hand_written_lu, pool::median};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The size of all problems: 1 is the usual one.
    pub scale: f64,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
    /// How many times each is measured; the medians count.
    pub rounds: usize,
}

impl Options {
    /// The memory and space that it needs.
    pub fn needs(&self) -> Needs {
        let bytes = (self.scale * f64::from(512 << 20)) as u64;
        Needs { file_bytes: bytes, memory_bytes: bytes }
    }
}

/// Sizes of the problems, of which all grow with the number of cells, atoms or pages.
struct Sizes {
    lu: lu::Settings,
    crack: crack::Settings,
    pagerank: pagerank::Settings,
    droplet: droplet::Settings,
}

impl Sizes {
    fn new(scale: f64) -> Self {
        let along = |usual: f64| (usual * scale.sqrt()).round().max(16.0) as u64;
        let pages = (17.0 + scale.log2()).round().clamp(6.0, 24.0) as u64;
        let level = if scale >= 0.9 { 6 } else { 5 };
        Self {
            lu: lu::Settings { order: along(1536.0), block: (along(1536.0) / 16).clamp(1, 64), seed: 1 },
            crack: crack::Settings {
                columns: along(200.0),
                rows: along(160.0),
                steps: 100,
                dt: 0.005,
                strain_rate: 0.005,
                notch: 0.25,
                temperature: 0.002,
                seed: 1,
            },
            pagerank: pagerank::Settings {
                scale: pages,
                degree: 14,
                damping: 0.85,
                tolerance: 1e-6,
                iterations: 30,
                seed: 1,
            },
            // Its mesh grows with the square of what a level halves.
            droplet: droplet::Settings {
                level: if scale < 0.1 { 4 } else { level },
                coarsest: 3,
                steps: Some(20),
                period: 2.0,
                radius: (0.15 * scale.sqrt() / if level == 6 { 1.0 } else { 0.5 }).clamp(0.1, 0.3),
            },
        }
    }
}

/// One run of a program.
struct Run {
    seconds: f64,
    written_bytes: u64,
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let _scratch = Scratch::with_room(&options.directory, options.needs())?;
    let inside = tempfile::tempdir_in(&options.directory)?;
    let mut bench = Bench { options, directory: inside.path(), progress, runs: Vec::new(), ratios: BTreeMap::new() };
    let sizes = Sizes::new(options.scale);
    bench.strong::<Lu>(&sizes.lu, 1, ["lu_pool_over_memory", "lu_file_over_pool"])?;
    bench.strong::<Crack>(&sizes.crack, 10, ["crack_pool_over_memory", "crack_file_over_pool"])?;
    bench.strong::<PageRank>(&sizes.pagerank, 1, ["pagerank_pool_over_memory", "pagerank_file_over_pool"])?;
    bench.strong::<Droplet>(&sizes.droplet, 2, ["droplet_pool_over_memory", "droplet_file_over_pool"])?;
    bench.weak()?;
    bench.restore::<Lu>(&sizes.lu, "lu_restore_speedup")?;
    bench.restore::<Crack>(&sizes.crack, "crack_restore_speedup")?;
    bench.restore::<PageRank>(&sizes.pagerank, "pagerank_restore_speedup")?;
    bench.restore::<Droplet>(&sizes.droplet, "droplet_restore_speedup")?;
    (bench.progress)("LU in a pool and written by hand");
    let ratio = over_hand_written_lu(sizes.lu.order, options.rounds + 2, bench.directory, &mut bench.runs)?;
    bench.ratios.insert("over_hand_written_lu", ratio);
    let of_programs = ["lu", "crack", "pagerank", "droplet"].map(|name| bench.ratios[over_memory(name)]);
    bench.ratios.insert("pool_over_memory_mean", of_programs.iter().sum::<f64>() / 4.0);
    let settings = json!({
        "scale": options.scale,
        "rounds": options.rounds,
        "lu": Lu::describe(&sizes.lu)?,
        "crack": Crack::describe(&sizes.crack)?,
        "pagerank": PageRank::describe(&sizes.pagerank)?,
        "droplet": Droplet::describe(&sizes.droplet)?,
    });
    Ok(Report::new("apps", settings, bench.runs, bench.ratios))
}

fn over_memory(program: &str) -> &'static str {
    match program {
        "lu" => "lu_pool_over_memory",
        "crack" => "crack_pool_over_memory",
        "pagerank" => "pagerank_pool_over_memory",
        _ => "droplet_pool_over_memory",
    }
}

struct Bench<'a> {
    options: &'a Options,
    directory: &'a Path,
    progress: &'a mut dyn FnMut(&str),
    runs: Vec<Value>,
    ratios: BTreeMap<&'static str, f64>,
}

impl Bench<'_> {
    /// Figure 7: the same problem with more threads, in every way.
    fn strong<P: Program>(&mut self, settings: &P::Settings, every: u64, keys: [&'static str; 2]) -> Result<()> {
        for threads in threads() {
            let medians = self.compare::<P>(settings, threads, every, "the same problem (figure 7)")?;
            let of = |way: Way| medians.iter().find(|(known, _)| *known == way).map_or(f64::NAN, |(_, median)| *median);
            // The last number of threads counts.
            self.ratios.insert(keys[0], of(Way::Pool) / of(Way::Memory));
            self.ratios.insert(keys[1], of(Way::File) / of(Way::Pool));
        }
        Ok(())
    }

    /// Figure 8: a problem that grows with the number of threads.
    fn weak(&mut self) -> Result<()> {
        for threads in threads() {
            let sizes = Sizes::new(self.options.scale * threads as f64 / 2.0);
            let part = "a problem that grows with the threads (figure 8)";
            self.compare::<Lu>(&sizes.lu, threads, 1, part)?;
            self.compare::<Crack>(&sizes.crack, threads, 10, part)?;
            self.compare::<PageRank>(&sizes.pagerank, threads, 1, part)?;
            self.compare::<Droplet>(&sizes.droplet, threads, 2, part)?;
        }
        Ok(())
    }

    /// The medians of all ways, which take turns.
    fn compare<P: Program>(
        &mut self,
        settings: &P::Settings,
        threads: usize,
        every: u64,
        part: &str,
    ) -> Result<Vec<(Way, f64)>> {
        (self.progress)(&format!("{}, {threads} threads, {part}", P::NAME));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        let mut seconds = BTreeMap::<usize, (Vec<f64>, u64)>::new();
        for _ in 0..self.options.rounds {
            for (number, way) in Way::ALL.into_iter().enumerate() {
                let directory = tempfile::tempdir_in(self.directory)?;
                let run = pool.install(|| timed::<P>(settings, way, every, &directory.path().join("state")))?;
                let entry = seconds.entry(number).or_default();
                entry.0.push(run.seconds);
                entry.1 = run.written_bytes;
            }
        }
        let mut medians = Vec::new();
        for (way, (seconds, written_bytes)) in Way::ALL.into_iter().zip(seconds.into_values()) {
            let median = median(&seconds);
            self.runs.push(json!({
                "part": format!("{}, {part}", P::NAME),
                "way": format!("{}, threads: {threads}", way.name()),
                "program": P::NAME,
                "kept": way.name(),
                "threads": threads,
                "ms_median": 1e3 * median,
                "written_mib": written_bytes as f64 / f64::from(1 << 20),
            }));
            medians.push((way, median));
        }
        Ok(medians)
    }

    /// Figure 11: a SIGTERM comes in iteration 10; how long it takes to go on.
    fn restore<P: Program>(&mut self, settings: &P::Settings, key: &'static str) -> Result<()> {
        (self.progress)(&format!("{}, restoring after a SIGTERM", P::NAME));
        let mut ready = BTreeMap::new();
        for way in [Way::File, Way::Pool] {
            let directory = tempfile::tempdir_in(self.directory)?;
            let path = directory.path().join("state");
            stopped::<P>(settings, way, &path)?;
            let (mut opened, mut went_on) = (Vec::new(), Vec::new());
            for _ in 0..self.options.rounds.max(3) {
                let start = Instant::now();
                let mut job = Job::<P>::open(settings, way, &path)?;
                opened.push(start.elapsed().as_secs_f64());
                job.step();
                went_on.push(start.elapsed().as_secs_f64());
            }
            let part = format!("{}, restoring after a SIGTERM in iteration 10 (figure 11)", P::NAME);
            for (what, seconds) in [("ready", &opened), ("with the next iteration", &went_on)] {
                let name = format!("{}: {what}", way.name());
                self.runs.push(json!({ "part": part, "way": name, "ms_median": 1e3 * median(seconds) }));
            }
            ready.insert(way.name(), median(&opened));
        }
        self.ratios.insert(key, ready["file"] / ready["pool"]);
        Ok(())
    }
}

/// One, and as many as there are cores.
fn threads() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores > 1 { vec![1, cores] } else { vec![1] }
}

/// Runs a program to its end, and keeps its state after every so many iterations.
fn timed<P: Program>(settings: &P::Settings, way: Way, every: u64, path: &Path) -> outcrop_science::Result<Run> {
    let mut job = Job::<P>::open(settings, way, path)?;
    let mut written_bytes = 0;
    let start = Instant::now();
    while !job.is_finished() {
        job.step();
        if job.is_finished() || job.done().is_multiple_of(every) {
            written_bytes += job.persist()?;
        }
    }
    Ok(Run { seconds: start.elapsed().as_secs_f64(), written_bytes })
}

/// Runs a program until a SIGTERM comes in its tenth iteration.
fn stopped<P: Program>(settings: &P::Settings, way: Way, path: &Path) -> Result<()> {
    let stop = Stop::listen()?;
    let mut job = Job::<P>::open(settings, way, path)?;
    while stop.asked().is_none() && !job.is_finished() {
        if job.done() == 9 {
            kill_process(getpid(), Signal::TERM)?;
        }
        job.step();
        job.persist()?;
    }
    Ok(())
}
