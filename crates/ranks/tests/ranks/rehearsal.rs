//! What a version costs each of many ranks.

use std::time::Duration;

use outcrop_ranks::{Rehearsal, Rehearsed};

fn rehearse(count: u32) -> Rehearsed {
    let ms = Duration::from_millis;
    let (operation, spread) = (Duration::from_micros(100), ms(20));
    Rehearsal { count, versions: 3, operation, spread, listens: (ms(5), ms(80)) }.run().unwrap()
}

#[test]
fn what_a_version_costs_a_rank_grows_like_a_logarithm_of_their_number_at_most() {
    let [four, eight, many, most] = [4, 8, 256, 1024].map(rehearse);
    // From 4 to 256 the logarithm grows fourfold, and from 8 to 1024 from 3 to 10.
    assert!(many.mean.metadata <= 4.0 * four.mean.metadata, "{four:?} {many:?}");
    assert!(many.mean.transfers <= 4.0 * four.mean.transfers, "{four:?} {many:?}");
    assert!(3.0 * most.worst.metadata <= 10.0 * eight.worst.metadata, "{eight:?} {most:?}");
    assert!(3.0 * most.worst.transfers <= 10.0 * eight.worst.transfers, "{eight:?} {most:?}");
    assert_eq!(rehearse(4), four, "it is the same each time");
}
