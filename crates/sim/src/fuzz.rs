//! Tests the planner with random stacks, programs and faults. Every seed is a world of its own, and
//! replays exactly.

mod checks;
mod program;
mod stack;
mod trial;

use std::{
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use serde::Serialize;

use trial::Trial;

/// One seed in this many runs twice, to check that both runs are the same.
const REPEATED_EVERY: u64 = 16;

/// What was wrong, and the events before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The seed of the world in which it happened.
    pub seed: u64,
    /// What was wrong.
    pub problem: String,
    /// The last events and actions.
    pub last: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.problem)?;
        self.last.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        write!(f, "to see it again: outcrop sim fuzz --start {} --seeds 1", self.seed)
    }
}

impl std::error::Error for Failure {}

/// How much was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Coverage {
    /// The number of worlds.
    pub seeds: u64,
    /// Events that were sent to the planner.
    pub events: u64,
    /// Faults: failed moves and steps, memory that ran out, pinning that was refused.
    pub faults: u64,
    /// Requests of programs that were refused, and versions that were reported as failed.
    pub refusals: u64,
}

impl Coverage {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            seeds: self.seeds + other.seeds,
            events: self.events + other.events,
            faults: self.faults + other.faults,
            refusals: self.refusals + other.refusals,
        }
    }
}

/// What a test breaks on purpose, to check that it is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sabotage {
    /// The planner is told that a move has succeeded although its target was full.
    lies_about_writes: bool,
    /// The planner is told that memory was touched although there was none.
    lies_about_memory: bool,
}

/// Tests these seeds with several threads. `progress` gets the totals after each seed.
///
/// # Errors
/// The lowest seed that found a problem before all threads stopped.
pub fn fuzz(seeds: Range<u64>, threads: usize, progress: impl Fn(&Coverage) + Sync) -> Result<Coverage, Box<Failure>> {
    try_all(seeds, threads, progress, |seed| try_seed(seed, Sabotage::default()))
}

/// Tests these seeds with `try_seed`, in several threads.
pub(crate) fn try_all(
    seeds: Range<u64>,
    threads: usize,
    progress: impl Fn(&Coverage) + Sync,
    try_seed: impl Fn(u64) -> Result<Coverage, Box<Failure>> + Sync,
) -> Result<Coverage, Box<Failure>> {
    let next = AtomicU64::new(seeds.start);
    let tried = Mutex::new(Coverage::default());
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match try_seed(seed) {
                Ok(coverage) => {
                    let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
                    *tried = tried.plus(coverage);
                    progress(&tried);
                }
                Err(failure) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                }
            }
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(work))));
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failures.into_iter().min_by_key(|failure| failure.seed) {
        Some(failure) => Err(failure),
        None => Ok(tried.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn try_seed(seed: u64, sabotage: Sabotage) -> Result<Coverage, Box<Failure>> {
    let is_repeated = seed.is_multiple_of(REPEATED_EVERY);
    let mut trial = Trial::new(seed, sabotage, is_repeated);
    run(seed, &mut trial)?;
    if is_repeated {
        let mut again = Trial::new(seed, sabotage, true);
        run(seed, &mut again)?;
        if trial.actions() != again.actions() {
            let problem = "the same events gave other actions".to_owned();
            return Err(Box::new(Failure { seed, problem, last: again.last() }));
        }
    }
    Ok(trial.coverage())
}

fn run(seed: u64, trial: &mut Trial) -> Result<(), Box<Failure>> {
    caught(|| trial.run()).map_err(|problem| Box::new(Failure { seed, problem, last: trial.last() }))
}

/// Runs a world. A panic counts as a problem.
pub(crate) fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word");
        Err(format!("it panicked: {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sabotage: Sabotage) -> Option<Box<Failure>> {
        (0..500).find_map(|seed| try_seed(seed, sabotage).err())
    }

    #[test]
    fn a_lie_about_a_write_is_found() {
        let sabotage = Sabotage { lies_about_writes: true, ..Sabotage::default() };
        let failure = found(sabotage).expect("a lost snapshot is noticed");
        assert!(!failure.last.is_empty());
        assert_eq!(try_seed(failure.seed, sabotage), Err(failure.clone()), "and again");
        assert!(failure.to_string().contains(&format!("--start {} --seeds 1", failure.seed)), "{failure}");
    }

    #[test]
    fn a_lie_about_memory_is_found() {
        let sabotage = Sabotage { lies_about_memory: true, ..Sabotage::default() };
        let failure = found(sabotage).expect("an extent in memory that is not there is noticed");
        assert!(failure.problem.contains("touched"), "{failure}");
    }

    #[test]
    fn seeds_differ_and_all_kinds_of_trouble_occur() {
        let coverage = fuzz(0..200, 1, |_| {}).unwrap();
        assert!(coverage.faults > 150 && coverage.refusals > 20 && coverage.events > 10_000, "{coverage:?}");
    }
}
