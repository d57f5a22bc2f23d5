//! Several ranks of the commit protocol, on disks that exist only on paper: every seed is a world
//! of its own, and replays exactly.
//!
//! A world has one to four ranks and one to three layers. Programs save in full and in increments,
//! merge, share packs, leave versions out, fail to save, try again, rewind and restore. Steps,
//! transfers and messages take any time; messages of different ranks overtake each other, come
//! twice, or are lost; every step may fail, a manifest also after it has got its name. Ranks die,
//! and the whole run is started again: after a crash each name that was not synced is as it was at
//! some moment since the last sync. Directories are missing in one run and back in the next.
//!
//! After every event the promises of `docs/store.md` are checked (`checks`).

mod checks;
mod disk;
mod open;
mod program;
mod world;

use std::ops::Range;

use crate::fuzz::{Coverage, Failure, caught, try_all};
use world::World;

/// Tries these seeds with some threads; `progress` is told what has been tried, after each.
///
/// # Errors
/// With the lowest seed that found something wrong before all stopped.
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
