//! Bytes over time, and how to be less misled by noise.

use std::time::{Duration, Instant};

/// What is moved by one call, and a multiple of every alignment. Long enough that calls cost nothing.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes per second of moving `bytes` by `work`.
pub(crate) fn of<E>(bytes: u64, work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    work()?;
    Ok(per_second(bytes, start.elapsed()))
}

/// Calls `work` with the place of one block of `bytes` after the other, until it is done or the time is up.
/// Gives the bytes that were done.
pub(crate) fn blocks<E>(bytes: u64, time_max: Duration, mut work: impl FnMut(u64) -> Result<(), E>) -> Result<u64, E> {
    let start = Instant::now();
    let mut done = 0;
    while done < bytes && (done == 0 || start.elapsed() < time_max) {
        work(done)?;
        done += BLOCK_BYTES;
    }
    Ok(done)
}

pub(crate) fn per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-9)
}

/// The median of rates, of which there must be one at least, as a whole number of bytes per second.
pub(crate) fn median(mut rates: Vec<f64>) -> u64 {
    rates.sort_by(f64::total_cmp);
    (rates[rates.len() / 2] as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_one_of_the_middle() {
        assert_eq!(median(vec![7.0]), 7);
        assert_eq!(median(vec![1000.0, 1.0, 7.0]), 7);
        assert_eq!(median(vec![0.1]), 1, "what is slow is not nothing");
    }

    #[test]
    fn a_slow_place_gets_fewer_blocks_but_at_least_one() {
        let count = |time_max| blocks(4 * BLOCK_BYTES, time_max, |_| Ok::<(), ()>(())).unwrap() / BLOCK_BYTES;
        assert_eq!(count(Duration::ZERO), 1);
        assert_eq!(count(Duration::from_secs(3600)), 4);
        assert_eq!(blocks(4 * BLOCK_BYTES, Duration::MAX, |_| Err(5)), Err(5));
    }
}
