//! Ranks that are processes of this machine: they join, save, wait and idle.

use std::{
    fs,
    io::{BufRead, BufReader, Lines, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use outcrop::{Part, Reached, Retention, Session, Store, store::SharedDirectory};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Options, Section};
use crate::clock::{Calls, processor_seconds};

/// Long enough for hundreds of processes to start on few cores.
const PATIENCE: Duration = Duration::from_secs(600);

/// The number of elements in the state of one rank.
pub(super) const STATE: usize = 8192;

/// The order for one process.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    directory: PathBuf,
    rank: u32,
    count: u32,
    saves: u64,
    seconds: f64,
}

/// The costs of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Outcome {
    join_seconds: f64,
    session_seconds: f64,
    durable_seconds: f64,
    idle: Effort,
    call: Effort,
    version: Effort,
}

/// The load of a process, per second.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Effort {
    /// Processor time.
    seconds: f64,
    /// How many times a thread went to sleep.
    sleeps: f64,
}

pub(super) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Section> {
    let mut section = Section::default();
    for &count in &options.counts {
        progress(&format!("{count} ranks"));
        let scratch = tempfile::tempdir_in(&options.directory)?;
        let outcomes = together(options, count, scratch.path())?;
        let worst = |value: fn(&Outcome) -> f64| outcomes.iter().map(value).fold(0.0, f64::max);
        let mean = |value: fn(&Outcome) -> f64| outcomes.iter().map(value).sum::<f64>() / outcomes.len() as f64;
        let effort = |way: &str, effort: fn(&Outcome) -> Effort| {
            let seconds = outcomes.iter().map(|outcome| effort(outcome).seconds).sum::<f64>();
            let sleeps = outcomes.iter().map(|outcome| effort(outcome).sleeps).sum::<f64>() / f64::from(count);
            json!({
                "part": format!("{count} ranks that wait"), "ranks": count, "way": way,
                "cores": seconds, "cpu_ms_per_second": 1e3 * seconds / f64::from(count), "sleeps_per_second": sleeps,
            })
        };
        for (way, seconds) in [
            ("all have joined, from their start on", worst(|outcome| outcome.join_seconds)),
            ("all have opened a session", worst(|outcome| outcome.session_seconds)),
            ("a version is durable", mean(|outcome| outcome.durable_seconds)),
        ] {
            let part = format!("{count} ranks");
            section.runs.push(json!({ "part": part, "ranks": count, "way": way, "takes_seconds": seconds }));
        }
        section.runs.push(effort("nobody does anything", |outcome| outcome.idle));
        section.runs.push(effort("all but one wait in a call", |outcome| outcome.call));
        section.runs.push(effort("all but one wait for a version", |outcome| outcome.version));
        // For the last number of ranks.
        let per_rank = |effort: fn(&Outcome) -> Effort| {
            1e3 * outcomes.iter().map(|outcome| effort(outcome).seconds).sum::<f64>() / f64::from(count)
        };
        section.ratios.insert("idle_ms_per_rank_and_second", per_rank(|outcome| outcome.idle));
        section.ratios.insert("call_ms_per_rank_and_second", per_rank(|outcome| outcome.call));
        section.ratios.insert("version_ms_per_rank_and_second", per_rank(|outcome| outcome.version));
    }
    Ok(section)
}

/// A rank in its own process.
struct Member {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Member {
    fn start(order: &Order) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["bench", "ranks-process", &serde_json::to_string(order)?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().context("a pipe")?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        Ok(Self { child, orders, lines })
    }

    fn hear(&mut self) -> Result<String> {
        Ok(self.lines.next().context("a rank has ended early")??)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Killing fails if it has ended, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all ranks, step by step.
fn together(options: &Options, count: u32, directory: &Path) -> Result<Vec<Outcome>> {
    let order =
        |rank| Order { directory: directory.to_owned(), rank, count, saves: options.saves, seconds: options.seconds };
    let mut members = (0..count).map(|rank| Member::start(&order(rank))).collect::<Result<Vec<_>>>()?;
    let steps = ["ready", "saved", "rested", "called", "waited"];
    for step in steps {
        for member in &mut members {
            let line = member.hear()?;
            ensure!(line == step, "a rank says {line} instead of {step}");
        }
        for member in &mut members {
            writeln!(member.orders, "go")?;
        }
    }
    members.iter_mut().map(|member| Ok(serde_json::from_str(&member.hear()?)?)).collect()
}

/// Runs an order that another process of this program has passed as JSON, and prints the result.
pub fn process(order: &str) -> Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let mut outcome = Outcome::default();
    step("ready")?;
    let start = Instant::now();
    let ranks = SharedDirectory::open_with(order.directory.join("ranks"), order.rank, order.count, PATIENCE)?;
    outcome.join_seconds = start.elapsed().as_secs_f64();
    let keep = Retention { keep_last: Some(2), ..Retention::default() };
    let builder = Store::builder().host(4u64 << 20).pin(false).keep(keep).ranks(ranks);
    let store = builder.dir(order.directory.join("store"), None).open()?;
    let start = Instant::now();
    let mut session = store.session("heat")?;
    outcome.session_seconds = start.elapsed().as_secs_f64();
    let mut state: Vec<u64> = (0..STATE as u64).map(|index| index * u64::from(order.rank + 1)).collect();
    let mut durable = Calls::default();
    for version in 1..=order.saves {
        durable.time(|| save(&mut session, version, &mut state))?;
    }
    outcome.durable_seconds = durable.quantile(0.5);
    step("saved")?;

    let period = Duration::from_secs_f64(order.seconds);
    outcome.idle = effort(|| {
        thread::sleep(period);
        Ok(())
    })?;
    step("rested")?;
    let is_late = order.rank + 1 == order.count;
    outcome.call = effort(|| {
        if is_late {
            thread::sleep(period);
        }
        Ok(store.session("other").map(drop)?)
    })?;
    step("called")?;
    outcome.version = effort(|| {
        if is_late {
            thread::sleep(period);
        }
        save(&mut session, order.saves + 1, &mut state)
    })?;
    step("waited")?;
    session.finish()?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

/// Reports a step, and waits for permission to continue.
fn step(name: &str) -> Result<()> {
    println!("{name}");
    std::io::stdout().flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

fn save(session: &mut Session, version: u64, state: &mut [u64]) -> Result<()> {
    state[0] = version;
    session.save(version, &[Part::new("state", &*state)])?;
    Ok(session.wait(version, Reached::All)?)
}

/// The load of this process per second of `work`.
fn effort(work: impl FnOnce() -> Result<()>) -> Result<Effort> {
    let (start, processor, sleeps) = (Instant::now(), processor_seconds(), sleeps()?);
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Effort { seconds: (processor_seconds() - processor) / seconds, sleeps: (self::sleeps()? - sleeps) / seconds })
}

/// How many times the living threads have gone to sleep.
fn sleeps() -> Result<f64> {
    let mut total = 0.0;
    for task in fs::read_dir("/proc/self/task")? {
        // The thread may have ended.
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        total += count.and_then(|count| count.trim().parse::<f64>().ok()).unwrap_or_default();
    }
    Ok(total)
}
