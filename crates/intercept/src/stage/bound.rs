//! Keeps staged files within the limit of the user, and from taking the last memory of the machine,
//! or of its control group.
//!
//! Small writes and mappings are not looked at, so a file can outgrow the limit unseen. So what all
//! files take is counted, the more often the less room there is. When there is none, the largest
//! file that somebody writes to leaves the memory: its user is made to make a call that is looked
//! at, and gets the real file in that. If that is not possible, the file is sealed when memory runs
//! short, but not before: writes beyond its end fail. Otherwise the system would kill a process.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use outcrop_memory::limits::Limits;

use super::{FileId, Shared, Staged};

/// How fast programs can fill memory at most, in bytes per second.
const FASTEST: u64 = 8 << 30;

/// This share of all memory is not for staged files, and at least what can be filled in a moment,
/// but no more than half: a busy machine may look late.
const KEPT_SHARE: u64 = 8;
const KEPT_BYTES: u64 = FASTEST / 50;

/// How often memory is looked at, at least and at most, while something is staged.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Counting takes at most this share of the time.
const COUNTING_SHARE: u32 = 20;

/// A file that could not leave the memory is tried again after the first of these, and then after
/// twice as long, up to the second.
const AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(2));

/// How many files leave the memory at once.
const MOST_AT_ONCE: usize = 16;

/// When to try again with a file, and how long that is after the last time.
type Tried = HashMap<FileId, (Instant, Duration)>;

impl Shared {
    /// Looks at the memory that is left until it is over.
    pub(super) fn keep_memory_free(&self) {
        let mut tried = Tried::new();
        let mut files = self.files();
        while !self.is_over.load(Ordering::SeqCst) {
            if files.places.is_empty() {
                tried.clear();
                files = self.staged.wait(files).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            drop(files);
            let began = Instant::now();
            self.count_all();
            let room = self.settings.memory.saturating_sub(self.bytes.load(Ordering::SeqCst));
            let left = spare();
            self.is_short.store(left == 0, Ordering::SeqCst);
            let took = began.elapsed();
            if room == 0 || left == 0 {
                self.shrink(left == 0, &mut tried);
            }
            thread::sleep(pause(left.min(room)).max(took * COUNTING_SHARE));
            files = self.files();
        }
    }

    /// Has the largest file leave the memory, or if memory is short all that are large. If none can
    /// and memory is short, seals the largest.
    fn shrink(&self, is_short: bool, tried: &mut Tried) {
        let mut growing = self.all();
        growing.retain(|staged| !staged.is_sealed() && staged.has_writers());
        growing.sort_by_key(|staged| std::cmp::Reverse(staged.bytes()));
        growing.truncate(MOST_AT_ONCE);
        let is_any_out = self.move_out(&growing, if is_short { MOST_AT_ONCE } else { 1 }, tried);
        if let Some(staged) = growing.first().filter(|_| is_short && !is_any_out) {
            seal(staged);
        }
    }

    /// Has up to `most` files leave the memory. Returns whether any has.
    fn move_out(&self, growing: &[Arc<Staged>], most: usize, tried: &mut Tried) -> bool {
        let Some(move_out) = self.move_out.get() else { return false };
        let now = Instant::now();
        let is_due = |staged: &&Arc<Staged>| tried.get(&staged.id).is_none_or(|(at, _)| *at <= now);
        let due: Vec<_> = growing.iter().filter(is_due).take(most).cloned().collect();
        if let Err(error) = move_out(self, &due) {
            tracing::debug!("what outgrows the memory stays there: {error}");
        }
        let (out, left): (Vec<_>, Vec<_>) = due.into_iter().partition(|staged| staged.real().is_none());
        for staged in left {
            let pause = tried.get(&staged.id).map_or(AGAIN.0, |(_, pause)| (*pause * 2).min(AGAIN.1));
            tried.insert(staged.id, (Instant::now() + pause, pause));
        }
        !out.is_empty()
    }
}

fn seal(staged: &Staged) {
    let path = staged.path();
    match staged.seal() {
        Ok(()) => tracing::error!("{} cannot grow any more: there is no memory left", path.display()),
        Err(error) => tracing::warn!("cannot keep {} from growing: {error}", path.display()),
    }
}

/// How many bytes staged files may still take of what the machine and its control groups have left.
fn spare() -> u64 {
    // What cannot be read cannot be respected.
    Limits::read().map_or(u64::MAX, |limits| limits.left.bytes.saturating_sub(kept(limits.most.bytes)))
}

/// How many bytes of these are not for staged files.
fn kept(most: u64) -> u64 {
    (most / KEPT_SHARE).max(KEPT_BYTES).min(most / 2)
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

    #[test]
    fn a_part_of_all_memory_is_kept_in_small_groups_and_on_large_machines() {
        assert_eq!(kept(64 << 30), 8 << 30);
        assert_eq!(kept(512 << 20), KEPT_BYTES);
        assert_eq!(kept(64 << 20), 32 << 20);
    }
}
