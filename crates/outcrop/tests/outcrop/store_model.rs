//! Random histories of a store, compared with a model of what must be in it.
//!
//! Ranks in threads save, wait, restore and rewind, with all kinds of settings. In between, files
//! are damaged, calls fail, processes are killed, and directories go missing, come back or are
//! swapped. After every step the test compares what the store reports and contains with the model:
//!
//! - A version that was reported as durable can be restored bit by bit, as long as it is to be kept
//!   and not every copy was damaged.
//! - Nothing but what was saved is ever restored, and all ranks restore the same version.
//! - Opening removes no version.
//! - Verification finds exactly what was damaged.
//! - Nothing fails, hangs or panics without a cause that the test has given.
//!
//! A seed determines a history. If one fails, it is shrunk and printed with its seed.
//! `OUTCROP_MODEL_SEED` runs it again.

mod case;
mod disks;
mod inspect;
mod memory;
mod model;
mod shrink;
mod steps;
mod world;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use case::{Case, Operation, Settings};
use outcrop_testing::{amount, covered, say};
use world::World;

/// The session of all cases.
const SESSION: &str = "heat";

/// The seed of the only case to run, or of the first one in `cargo xtask soak`.
const SEED: &str = "OUTCROP_MODEL_SEED";

/// Longer than any case takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// The result of a check: what is wrong, if anything.
type Checked<T = ()> = Result<T, String>;

/// Runs a case in an empty directory.
fn carry_out(case: &Case, root: &Path, step: &Mutex<String>) -> Checked {
    let mut world = World::new(root, case);
    for (nth, operation) in case.operations.iter().enumerate() {
        *step.lock().unwrap_or_else(PoisonError::into_inner) = format!("operation {nth}, {operation:?}");
        world.carry_out(operation).map_err(|error| format!("operation {nth}, {operation:?}: {error}"))?;
    }
    "the end".clone_into(&mut step.lock().unwrap_or_else(PoisonError::into_inner));
    finish(&mut world).map_err(|error| format!("at the end: {error}"))
}

/// At the end, restores everything that must be there.
fn finish(world: &mut World) -> Checked {
    if world.running.is_some() {
        world.carry_out(&Operation::Close { is_dropped: false })?;
    }
    world.open_checked(&Settings::plain(world.case.layers))?;
    world.restore_latest(false)?;
    for (version, _) in world.required() {
        world.restore(version)?;
    }
    world.carry_out(&Operation::Close { is_dropped: false })
}

/// How a case fails, if it does. A case that hangs is abandoned.
fn failure(case: &Case) -> Option<String> {
    // In memory, where syncs cost nothing. Only direct transfers need a real disk.
    let is_direct = |operation: &Operation| matches!(operation, Operation::Open(settings) if settings.is_direct);
    let memory = Path::new("/dev/shm");
    let root = match memory.is_dir() && !case.operations.iter().any(is_direct) {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let (root, case) = (root.unwrap(), case.clone());
    let step = Arc::new(Mutex::new(String::new()));
    let (ended, end) = mpsc::channel();
    let path = root.path().to_owned();
    let of_case = Arc::clone(&step);
    thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| carry_out(&case, &path, &of_case)));
        let outcome = outcome.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("a panic: {}", text.unwrap_or_default()))
        });
        // This fails if the test has given up waiting.
        let _ = ended.send(outcome);
    });
    let at = || step.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match end.recv_timeout(PATIENCE) {
        Ok(outcome) => outcome.err(),
        Err(_) => {
            // A case that hangs still uses its files.
            let _ = root.keep();
            Some(format!("it hangs at {}", at()))
        }
    }
}

/// Runs a case, and shrinks it if it fails.
fn check(seed: Option<u64>, case: &Case) -> Checked {
    let Some(why) = failure(case) else { return Ok(()) };
    if why.starts_with("it hangs") {
        return Err(format!("{}{why}\n{case}", named(seed)));
    }
    let (smallest, why) = shrink::shrink(case.clone(), why, failure);
    Err(format!("{}{why}\n{smallest}", named(seed)))
}

fn named(seed: Option<u64>) -> String {
    seed.map_or_else(String::new, |seed| format!("{SEED}={seed}: "))
}

#[test]
fn random_histories_keep_every_promise() {
    let given: Option<u64> = std::env::var(SEED).ok().map(|seed| seed.parse().unwrap());
    let count = if given.is_some() { 1 } else { amount(150, 20_000) };
    // A soak starts with another seed each time. The default run is always the same.
    let first = given.unwrap_or_else(|| amount(0, fastrand::u64(..1 << 40)));
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while failed.lock().unwrap().is_none() {
                    let nth = next.fetch_add(1, Relaxed);
                    if nth >= count {
                        return;
                    }
                    let seed = first + nth;
                    if let Err(why) = check(Some(seed), &Case::random(seed)) {
                        say(&why);
                        failed.lock().unwrap().get_or_insert(why);
                    }
                }
            });
        }
    });
    if let Some(why) = failed.into_inner().unwrap() {
        panic!("{why}");
    }
    covered("random histories of a store", count);
}
