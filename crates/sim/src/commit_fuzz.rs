//! Tests the commit protocol with several ranks on simulated disks. Every seed is a world of its
//! own, and replays exactly.
//!
//! A world has one to four ranks and one to three layers. Programs save in full and in increments,
//! merge, share packs, leave versions out, fail to save, try again, rewind and restore. Steps,
//! transfers and messages take any time. Messages of different ranks overtake each other, arrive
//! twice, or are lost. Every step may fail, a manifest even after it has got its name. Ranks die,
//! and the whole run is restarted: after a crash, each name that was not synced has one of its
//! states since the last sync. Directories are missing in one run and back in the next, and nodes
//! are lost and made again from parity. A restart may have another number of ranks.
//!
//! After every event the promises of `docs/store.md` are checked (`checks`).

mod checks;
mod disk;
mod former;
mod open;
mod program;
mod world;

use std::ops::Range;

use crate::fuzz::{Coverage, Failure, caught, try_all};
use world::World;

/// Tests these seeds with several threads. `progress` gets the totals after each seed.
///
/// # Errors
/// The lowest seed that found a problem before all threads stopped.
pub fn fuzz_commit(
    seeds: Range<u64>,
    threads: usize,
    progress: impl Fn(&Coverage) + Sync,
) -> Result<Coverage, Box<Failure>> {
    try_all(seeds, threads, progress, try_seed)
}

fn try_seed(seed: u64) -> Result<Coverage, Box<Failure>> {
    let mut world = World::new(seed);
    match caught(|| world.run()) {
        Ok(()) => Ok(world.coverage),
        Err(problem) => Err(Box::new(Failure { seed, problem, last: world.last() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_all_kinds_of_trouble_occur() {
        let coverage = fuzz_commit(0..300, 1, |_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(coverage.faults > 300 && coverage.refusals > 300 && coverage.events > 30_000, "{coverage:?}");
    }
}
