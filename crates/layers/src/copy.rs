//! The fastest copy between two places in memory.
//!
//! A snapshot is copied once and not looked at for a while. Stores that bypass the caches suit that: the target is not
//! read first only to be overwritten, and what the program has in its caches stays there. Long copies are shared between
//! threads where that is faster, which depends on the machine and on what else it does: so it is measured as it goes.
//!
//! Measured, one thread, touched memory far larger than the caches, two cores of a virtual machine, GB/s:
//!
//! | bytes per copy | copy_from_slice | past the caches | two threads |
//! |---|---|---|---|
//! | MEASURED |

mod stores;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

/// From here on the caches are bypassed.
const BYPASS_BYTES_MIN: usize = 64 << 10;
/// From here on several threads are tried. To start one takes some 40 microseconds, in which one thread copies 0.5 MB.
const SHARED_BYTES_MIN: usize = 8 << 20;
/// What a thread takes at a time, so that one that got less of its core takes less of the work.
const SHARE_BYTES: usize = 1 << 20;
/// Lengths that differ by a factor of two are measured apart, up to this many.
const CLASSES: usize = 8;
/// Every so many copies the slower way is tried again.
const COPIES_PER_TRIAL: u32 = 64;

/// Copies bytes in the way that is fastest for their number on this machine at this time.
#[derive(Debug)]
pub struct Copier {
    threads_max: usize,
    threads_used: AtomicUsize,
    classes: Mutex<[Class; CLASSES]>,
}

/// What has been measured for copies of one order of length.
#[derive(Debug, Default, Clone, Copy)]
struct Class {
    /// Bytes per second, averaged over time, by one thread and by several.
    alone: Option<f64>,
    shared: Option<f64>,
    copies_since_trial: u32,
}

impl Copier {
    /// A copier that uses up to `threads_max` threads.
    pub fn new(threads_max: usize) -> Self {
        Self { threads_max: threads_max.max(1), threads_used: AtomicUsize::new(1), classes: Mutex::default() }
    }

    /// Copies `source` to `target`. Panics if they are not of the same length.
    pub fn copy(&self, target: &mut [u8], source: &[u8]) {
        assert_eq!(target.len(), source.len(), "a copy needs as much room as it has bytes");
        let bytes = source.len();
        if self.threads_max == 1 || bytes < SHARED_BYTES_MIN {
            self.threads_used.store(1, Relaxed);
            return copy_alone(target, source);
        }
        let class = (bytes / SHARED_BYTES_MIN).ilog2() as usize;
        let class = class.min(CLASSES - 1);
        let is_shared = self.classes()[class].choose();
        self.threads_used.store(if is_shared { self.threads_max } else { 1 }, Relaxed);
        let start = Instant::now();
        if is_shared {
            copy_shared(target, source, self.threads_max);
        } else {
            copy_alone(target, source);
        }
        let bytes_per_second = bytes as f64 / start.elapsed().as_secs_f64().max(1e-9);
        self.classes()[class].measured(is_shared, bytes_per_second);
    }

    /// The threads that the latest copy used.
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
    /// Whether the next copy is to be shared between threads.
    fn choose(&mut self) -> bool {
        let (Some(alone), Some(shared)) = (self.alone, self.shared) else { return self.alone.is_some() };
        let is_shared_faster = shared > alone;
        self.copies_since_trial += 1;
        if self.copies_since_trial < COPIES_PER_TRIAL {
            return is_shared_faster;
        }
        self.copies_since_trial = 0;
        !is_shared_faster
    }

    fn measured(&mut self, is_shared: bool, bytes_per_second: f64) {
        let rate = if is_shared { &mut self.shared } else { &mut self.alone };
        // The way that is in use forgets quickly, as it is measured often. The other one is believed at once.
        *rate = Some(rate.map_or(bytes_per_second, |known| 0.75 * known + 0.25 * bytes_per_second));
    }
}

fn copy_alone(target: &mut [u8], source: &[u8]) {
    if source.len() < BYPASS_BYTES_MIN {
        target.copy_from_slice(source);
    } else {
        stores::copy(target, source);
    }
}

/// Copies with this thread and up to `threads - 1` further ones.
fn copy_shared(target: &mut [u8], source: &[u8], threads: usize) {
    let shares = Mutex::new(target.chunks_mut(SHARE_BYTES).zip(source.chunks(SHARE_BYTES)));
    let work = || {
        let take = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((target, source)) = take() {
            copy_alone(target, source);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be had, the others do its part.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_the_faster_one_is_kept() {
        let mut class = Class::default();
        assert!(!class.choose());
        class.measured(false, 10.0);
        assert!(class.choose());
        class.measured(true, 20.0);
        let shared = (0..COPIES_PER_TRIAL * 4).filter(|_| class.choose()).count();
        assert_eq!(shared as u32, (COPIES_PER_TRIAL - 1) * 4, "all but one trial in {COPIES_PER_TRIAL}");
    }

    #[test]
    fn the_choice_follows_a_machine_that_changes() {
        let mut class = Class::default();
        class.measured(false, 10.0);
        class.measured(true, 20.0);
        for _ in 0..20 {
            class.measured(true, 1.0);
        }
        assert!(!class.choose(), "the other core is busy now");
    }
}
