//! Keeps staged files from taking the last memory of the machine, or of its control group.
//!
//! Small writes and mappings are not looked at, so a file can outgrow the limit of the user. When
//! little is left, the largest file that somebody writes to is sealed: writes beyond its end fail.
//! Otherwise the system would kill a process.

use std::{sync::atomic::Ordering, thread, time::Duration};

use outcrop_memory::limits::Limits;

use super::Shared;

/// How fast programs can fill memory at most, in bytes per second.
const FASTEST: u64 = 8 << 30;

/// This share of all memory is not for staged files. A busy machine may look late.
const KEPT_SHARE: u64 = 8;

/// How often memory is looked at, at least and at most, while something is staged.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl Shared {
    /// Looks at the memory that is left until it is over.
    pub(super) fn keep_memory_free(&self) {
        let mut files = self.files();
        while !self.is_over.load(Ordering::SeqCst) {
            if files.places.is_empty() {
                files = self.staged.wait(files).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            drop(files);
            let left = spare();
            self.is_short.store(left == 0, Ordering::SeqCst);
            if left == 0 {
                self.seal_largest();
            }
            thread::sleep(pause(left));
            files = self.files();
        }
    }

    fn seal_largest(&self) {
        let grows = |staged: &std::sync::Arc<super::Staged>| staged.has_writers() && !staged.is_sealed();
        let Some(staged) = self.all().into_iter().filter(grows).max_by_key(|staged| staged.bytes()) else { return };
        let path = staged.path();
        match staged.seal() {
            Ok(()) => tracing::error!("{} cannot grow any more: there is no memory left", path.display()),
            Err(error) => tracing::warn!("cannot keep {} from growing: {error}", path.display()),
        }
    }
}

/// How many bytes staged files may still take of what the machine and its control groups have left.
fn spare() -> u64 {
    // What cannot be read cannot be respected.
    Limits::read().map_or(u64::MAX, |limits| limits.left.bytes.saturating_sub(limits.most.bytes / KEPT_SHARE))
}

/// So long that no program can fill what is left.
fn pause(left: u64) -> Duration {
    let (shortest, longest) = PAUSES;
    Duration::from_secs_f64(left as f64 / FASTEST as f64).clamp(shortest, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_looked_at_before_it_can_be_full() {
        assert_eq!(pause(0), PAUSES.0);
        assert_eq!(pause(u64::MAX), PAUSES.1);
        let left = 256 << 20;
        assert!(pause(left).as_secs_f64() * FASTEST as f64 <= left as f64 * 1.001);
    }
}
