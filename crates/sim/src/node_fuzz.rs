//! Tests the logic of the node daemon with several clients on simulated files. Every seed is a
//! world of its own, and replays exactly.
//!
//! A world has one to six clients, one to four files, and a reserve of some pages. Clients write,
//! read, cut files off, set times, drain and sync. Drains and other work take any time and may
//! fail. Clients die, and come. Memory is touched late, limits change, and free memory is given
//! back. The daemon dies at any point, also between two actions of one event: then the next one
//! begins with the records of the journal, and clients come back to it or have died meanwhile.
//!
//! After every event the promises of the crate `outcrop-grants` are checked (`world`).

mod actor;
mod ends;
mod steps;
mod world;

use std::ops::Range;

use crate::fuzz::{Coverage, Failure, caught, try_all};
use world::World;

/// What a test breaks on purpose, to check that it is detected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sabotage {
    /// A drain is reported as done although nothing was written.
    lies_about_drains: bool,
    /// The journal loses a record.
    loses_records: bool,
}

/// Tests these seeds with several threads. `progress` gets the totals after each seed.
///
/// # Errors
/// The lowest seed that found a problem before all threads stopped.
pub fn fuzz_node(
    seeds: Range<u64>,
    threads: usize,
    progress: impl Fn(&Coverage) + Sync,
) -> Result<Coverage, Box<Failure>> {
    try_all(seeds, threads, progress, |seed| try_seed(seed, Sabotage::default()))
}

fn try_seed(seed: u64, sabotage: Sabotage) -> Result<Coverage, Box<Failure>> {
    let mut world = World::new(seed, sabotage);
    match caught(|| world.run()) {
        Ok(()) => Ok(world.coverage),
        Err(problem) => Err(Box::new(Failure { seed, problem, last: world.last() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sabotage: Sabotage) -> Option<Box<Failure>> {
        (0..300).find_map(|seed| try_seed(seed, sabotage).err())
    }

    #[test]
    fn seeds_differ_and_all_kinds_of_trouble_occur() {
        let coverage = fuzz_node(0..200, 1, |_| {}).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(coverage.faults > 200 && coverage.refusals > 20 && coverage.events > 20_000, "{coverage:?}");
    }

    #[test]
    fn a_lie_about_a_drain_is_found() {
        let sabotage = Sabotage { lies_about_drains: true, ..Sabotage::default() };
        let failure = found(sabotage).expect("lost bytes are noticed");
        assert_eq!(try_seed(failure.seed, sabotage), Err(failure.clone()), "and again");
    }

    #[test]
    fn a_lost_record_is_found() {
        let sabotage = Sabotage { loses_records: true, ..Sabotage::default() };
        assert!(found(sabotage).is_some(), "a daemon that forgets is noticed");
    }
}
