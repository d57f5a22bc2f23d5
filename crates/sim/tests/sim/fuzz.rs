//! Thousands of random worlds find no problem in the plan, in the commit protocol and in
//! the logic of the node daemon.

use outcrop_testing::{amount, covered};

#[test]
fn seeds_find_nothing() {
    let seeds = amount(4_000, 200_000);
    match outcrop_sim::fuzz(0..seeds, 2, |_| {}) {
        Ok(coverage) => assert_eq!(coverage.seeds, seeds),
        Err(failure) => panic!("{failure}"),
    }
    covered("seeds of the plan", seeds);
}

#[test]
fn no_world_loses_a_version() {
    let seeds = amount(3_000, 100_000);
    match outcrop_sim::fuzz_commit(0..seeds, 2, |_| {}) {
        Ok(coverage) => assert_eq!(coverage.seeds, seeds),
        Err(failure) => panic!("{failure}"),
    }
    covered("seeds of the commit protocol", seeds);
}

#[test]
fn no_world_loses_what_a_node_has_taken() {
    let seeds = amount(1_000, 20_000);
    match outcrop_sim::fuzz_node(0..seeds, 2, |_| {}) {
        Ok(coverage) => assert_eq!(coverage.seeds, seeds),
        Err(failure) => panic!("{failure}"),
    }
    covered("seeds of the node daemon", seeds);
}
