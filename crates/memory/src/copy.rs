//! The fastest copy between two places in memory.
//!
//! A snapshot is copied once and then not read for a while. Stores that bypass the caches
//! (non-temporal stores) suit that: the target is not read before it is overwritten, and the
//! program's data stays in the caches. Long copies are shared between threads if that is faster.
//! This depends on the machine and its load, so it is measured continuously.
//!
//! Measured between two touched buffers of 1 GiB in huge pages, in GB/s:
//!
//! | bytes per copy | copy_from_slice | past the caches, one thread |
//! |---|---|---|
//! | 16 KiB | 6.7 | (not used) |
//! | 64 KiB | 6.9 | 10.0 |
//! | 1 MiB | 6.7 | 10.2 |
//! | 32 MiB | 6.7 | 10.2 |
//! | 128 MiB | 10.2-11.4 (the C library bypasses the caches here too) | 10.3 |
//!
//! A second thread made no difference in that run, during which other programs used the two cores
//! as well. On the same machine without other load, it made copies of 32 MiB 1.8 times as fast
//! (18.5 against 10.2), with threads that were started for each copy.

mod crew;
mod stores;
mod summed;

use std::{
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use crew::Crew;
pub use summed::{SUMMED_BYTES, copy_and_sum};

/// Copies of at least this length bypass the caches.
const BYPASS_BYTES_MIN: usize = 64 << 10;
/// Copies of at least this length may use several threads. Waking one takes some 10 microseconds,
/// in which one thread copies 0.1 MB.
const SHARED_BYTES_MIN: usize = 4 << 20;
/// How much a thread copies at a time. A thread that gets less of its core then takes fewer shares.
pub const SHARE_BYTES: usize = 1 << 20;
/// The number of length classes, each of twice the length of the previous one, that are measured
/// separately.
const CLASSES: usize = 8;
/// The slower way is tried again after this many copies, then after twice as many, and so on.
const COPIES_PER_TRIAL_MIN: u32 = 4;
/// But after this many at the latest.
const COPIES_PER_TRIAL_MAX: u32 = 64;
/// A way is much slower if it takes this many times as long.
const MUCH: f64 = 1.5;

/// Copies one share: its number, its target, its source.
pub type Share<'a> = &'a (dyn Fn(usize, &mut [u8], &[u8]) + Sync);

/// Copies bytes in the way that is fastest for their number, on this machine, at present.
#[derive(Debug)]
pub struct Copier {
    threads_max: usize,
    threads_used: AtomicUsize,
    classes: Mutex<[Class; CLASSES]>,
    /// Started by the first copy that needs it.
    crew: OnceLock<Crew>,
}

/// The measurements of copies in one length class.
#[derive(Debug, Default, Clone, Copy)]
struct Class {
    /// Bytes per second, as a moving average, with one thread and with several.
    alone: Option<f64>,
    shared: Option<f64>,
    copies_since_trial: u32,
    /// How many consecutive trials have not changed the choice.
    trials_in_vain: u32,
}

impl Copier {
    /// A copier that uses up to `threads_max` threads.
    pub fn new(threads_max: usize) -> Self {
        Self {
            threads_max: threads_max.max(1),
            threads_used: AtomicUsize::new(1),
            classes: Mutex::default(),
            crew: OnceLock::new(),
        }
    }

    /// Copies `source` to `target`. Panics if they are not of the same length.
    pub fn copy(&self, target: &mut [u8], source: &[u8]) {
        self.copy_shares(target, source, &|_, target, source| copy_alone(target, source));
    }

    /// As `copy`, but `share` copies each share of [`SHARE_BYTES`] of the source. It is told the
    /// number of the share, and may look at the bytes while they are in the cache.
    pub fn copy_shares(&self, target: &mut [u8], source: &[u8], share: Share<'_>) {
        assert_eq!(target.len(), source.len(), "a copy needs as much room as it has bytes");
        let bytes = source.len();
        if self.threads_max == 1 || bytes < SHARED_BYTES_MIN {
            self.threads_used.store(1, Relaxed);
            return copy_in_turn(target, source, share);
        }
        let class = (bytes / SHARED_BYTES_MIN).ilog2() as usize;
        let class = class.min(CLASSES - 1);
        let is_shared = self.classes()[class].choose();
        self.threads_used.store(if is_shared { self.threads_max } else { 1 }, Relaxed);
        // Start the crew before the clock: it costs later copies nothing.
        let crew = is_shared.then(|| self.crew.get_or_init(|| Crew::new(self.threads_max - 1)));
        let start = Instant::now();
        match crew {
            Some(crew) => crew.copy(target, source, share),
            None => copy_in_turn(target, source, share),
        }
        let bytes_per_second = bytes as f64 / start.elapsed().as_secs_f64().max(1e-9);
        self.classes()[class].measured(is_shared, bytes_per_second);
    }

    /// How many threads the latest copy used.
    pub fn threads_used(&self) -> usize {
        self.threads_used.load(Relaxed)
    }

    fn classes(&self) -> std::sync::MutexGuard<'_, [Class; CLASSES]> {
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Copier {
    fn default() -> Self {
        Self::new(thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Class {
    /// Whether to share the next copy between threads.
    fn choose(&mut self) -> bool {
        self.copies_since_trial += 1;
        let is_trial = self.copies_since_trial > self.copies_until_trial();
        if is_trial {
            self.copies_since_trial = 0;
            self.trials_in_vain += 1;
        }
        // Try sharing first: it is more likely to be faster.
        let is_shared_faster = self.is_shared_faster().unwrap_or(true);
        is_shared_faster != is_trial
    }

    /// The way that is not in use is tried again soon at first, then more and more rarely; rarely
    /// from the start if it was much slower.
    fn copies_until_trial(&self) -> u32 {
        let is_close = |(alone, shared): (f64, f64)| alone.min(shared) * MUCH > alone.max(shared);
        match self.alone.zip(self.shared).is_none_or(is_close) {
            true => COPIES_PER_TRIAL_MIN.saturating_mul(1 << self.trials_in_vain.min(16)).min(COPIES_PER_TRIAL_MAX),
            false => COPIES_PER_TRIAL_MAX,
        }
    }

    fn is_shared_faster(&self) -> Option<bool> {
        Some(self.shared? > self.alone?)
    }

    fn measured(&mut self, is_shared: bool, bytes_per_second: f64) {
        let before = self.is_shared_faster();
        let is_in_use = before.is_none_or(|is_shared_faster| is_shared_faster == is_shared);
        // The way in use is measured often, so its noise is averaged out. The other one is measured
        // rarely and its old rate is out of date, so a trial replaces it.
        let weight = if is_in_use { 0.25 } else { 1.0 };
        let rate = if is_shared { &mut self.shared } else { &mut self.alone };
        *rate = Some(rate.map_or(bytes_per_second, |known| (1.0 - weight) * known + weight * bytes_per_second));
        if self.is_shared_faster() != before {
            self.trials_in_vain = 0;
        }
    }
}

/// How much is copied before it is shown: it is still in the first-level cache then.
const SEEN_BYTES: usize = 8 << 10;

/// Copies `source` to `target` past the caches, block by block, and shows each block of the source
/// to `see` while it is in the cache: a checksum then costs little more than the copy. Panics if
/// they are not of the same length.
///
/// Measured in GB/s, between huge pages, with XXH3 of every 64 KiB, for a source of 4 and of 64
/// MiB:
///
/// | | 4 MiB | 64 MiB |
/// |---|---|---|
/// | `copy_from_slice` of all, without checksums | 19.6 | 10.0 |
/// | 64 KiB by `copy_from_slice`, then the checksum | 9.4 | 7.5 |
/// | 64 KiB past the caches, then the checksum | 12.1 | 9.3 |
/// | 4, 8, 12, 16, 32 KiB past the caches, then that part of the checksum | 10.2, 13.4, 13.8, 11.6, 11.5 | 9.0, 10.7, 10.6, 8.3, 9.0 |
/// | 1 MiB by `copy_from_slice`, then the checksums | 14.9 | 8.5 |
pub fn copy_and_see(target: &mut [u8], source: &[u8], mut see: impl FnMut(&[u8])) {
    assert_eq!(target.len(), source.len(), "a copy needs as much room as it has bytes");
    if source.len() < BYPASS_BYTES_MIN {
        target.copy_from_slice(source);
        return see(source);
    }
    for (target, source) in target.chunks_mut(SEEN_BYTES).zip(source.chunks(SEEN_BYTES)) {
        stores::copy(target, source);
        see(source);
    }
}

fn copy_in_turn(target: &mut [u8], source: &[u8], share: Share<'_>) {
    for (number, (target, source)) in target.chunks_mut(SHARE_BYTES).zip(source.chunks(SHARE_BYTES)).enumerate() {
        share(number, target, source);
    }
}

fn copy_alone(target: &mut [u8], source: &[u8]) {
    if source.len() < BYPASS_BYTES_MIN {
        target.copy_from_slice(source);
    } else {
        stores::copy(target, source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_one_is_kept() {
        let mut class = Class::default();
        let trials = |class: &mut Class, copies: u32| {
            let mut trials = Vec::new();
            for copy in 1..=copies {
                let is_shared = class.choose();
                trials.extend((!is_shared).then_some(copy));
                class.measured(is_shared, if is_shared { 20.0 } else { 15.0 });
            }
            trials
        };
        assert_eq!(trials(&mut class, 210), [5, 10, 19, 36, 69, 134, 199], "ever more rarely, but not too rarely");
    }

    #[test]
    fn a_way_that_is_much_slower_is_left_alone_for_long() {
        let mut class = Class::default();
        let mut copies = (1..=100).filter(|_| {
            let is_shared = class.choose();
            class.measured(is_shared, if is_shared { 20.0 } else { 10.0 });
            !is_shared
        });
        assert_eq!((copies.next(), copies.next(), copies.next()), (Some(5), Some(70), None));
    }

    #[test]
    fn the_choice_follows_a_machine_that_changes() {
        let mut class = Class::default();
        class.measured(true, 20.0);
        class.measured(false, 10.0);
        for _ in 0..20 {
            class.measured(true, 1.0);
        }
        assert!(!class.choose(), "the other core is busy now");
        class.measured(true, 20.0);
        assert!(class.choose(), "one trial is enough to see that it is free again");
    }
}
