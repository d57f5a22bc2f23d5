//! Ten thousand random worlds find nothing wrong with the plan.

#[test]
fn ten_thousand_seeds_find_nothing() {
    match outcrop_sim::fuzz(0..10_000, 2, |_| {}) {
        Ok(coverage) => assert_eq!(coverage.seeds, 10_000),
        Err(failure) => panic!("{failure}"),
    }
}
