//! Bytes over time, and how to be less misled by noise.

use std::time::{Duration, Instant};

use crate::Options;

/// What is moved by one call, and a multiple of every alignment. Long enough that calls cost
/// nothing.
pub(crate) const BLOCK_BYTES: u64 = 4 << 20;

/// Bytes per second of moving `bytes` by `work`.
pub(crate) fn of<E>(bytes: u64, work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    work()?;
    Ok(per_second(bytes, start.elapsed()))
}

/// Calls `work` with the offset of one block of `bytes` after the other, until all are done or the
/// time is up. Gives the bytes that were done.
pub(crate) fn blocks<E>(bytes: u64, time_max: Duration, mut work: impl FnMut(u64) -> Result<(), E>) -> Result<u64, E> {
    let start = Instant::now();
    let mut done = 0;
    while done < bytes && (done == 0 || start.elapsed() < time_max) {
        work(done)?;
        done += BLOCK_BYTES;
    }
    Ok(done)
}

/// Calls `round` as often as the options say, and less often where that takes long, but at least
/// once.
pub(crate) fn rounds<E>(options: &Options, mut round: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    let count = options.rounds.max(1);
    // A round writes, overwrites and reads. The last block of each may be late.
    let time_max = options.time_max.saturating_mul(3).saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    let start = Instant::now();
    let mut done = 0;
    while done < count && (done == 0 || start.elapsed() < time_max) {
        round()?;
        done += 1;
    }
    Ok(())
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
    fn a_slow_location_gets_fewer_blocks_but_at_least_one() {
        let count = |time_max| blocks(4 * BLOCK_BYTES, time_max, |_| Ok::<(), ()>(())).unwrap() / BLOCK_BYTES;
        assert_eq!(count(Duration::ZERO), 1);
        assert_eq!(count(Duration::from_secs(3600)), 4);
        assert_eq!(blocks(4 * BLOCK_BYTES, Duration::MAX, |_| Err(5)), Err(5));
    }

    #[test]
    fn a_slow_location_gets_fewer_rounds_but_at_least_one() {
        let count = |rounds_wanted, time_max| {
            let mut count = 0;
            let options = Options { rounds: rounds_wanted, time_max, ..Options::default() };
            rounds(&options, || {
                count += 1;
                Ok::<(), ()>(())
            })
            .unwrap();
            count
        };
        assert_eq!(count(3, Duration::ZERO), 1);
        assert_eq!(count(3, Duration::from_secs(3600)), 3);
        assert_eq!(count(0, Duration::MAX), 1);
        assert_eq!(rounds(&Options::default(), || Err(5)), Err(5));
    }
}
