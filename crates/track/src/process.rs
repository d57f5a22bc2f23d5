//! Distinguishes a process from those forked from it: a child inherits copies of all state, and
//! none of it is valid there.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use outcrop_memory::{Pages, Private};
use rustix::mm::{Advice, madvise};

/// How many numbers were assigned so far, in this process and in its ancestors.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// A number that differs between a process and all that are forked from it. A process id is not
/// enough, because the system reuses it.
pub(crate) fn generation() -> u64 {
    static PAGE: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    let Some(here) = PAGE.get_or_init(wiped_on_fork) else {
        return u64::from(std::process::id());
    };
    match here.load(Ordering::Acquire) {
        0 => {
            let mine = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
            here.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| mine)
        }
        generation => generation,
    }
}

/// A number in memory that is 0 in a forked process.
fn wiped_on_fork() -> Option<&'static AtomicU64> {
    let page = Private::new(size_of::<AtomicU64>(), Pages::Small).ok()?.leak();
    // SAFETY: memory of our own. If it cannot be wiped on fork, it is not used.
    unsafe { madvise(page.as_mut_ptr().cast(), page.len(), Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: page-aligned, zeroed, never unmapped, and not used in any other way.
    Some(unsafe { AtomicU64::from_ptr(page.as_mut_ptr().cast()) })
}
