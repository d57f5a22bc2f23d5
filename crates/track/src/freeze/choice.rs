//! Estimates which way of freezing is cheaper.
//!
//! A fork copies the page tables of the whole process. Protection walks those of the frozen memory.
//! Later, each page that the program writes to is copied. With protection, that takes a message to
//! a thread and back, which is measured once per process. The cost of making an image is measured
//! each time.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::Instant,
};

use super::{FreezeOptions, FreezeWay, protect::Protected};
use crate::ranges::page_bytes;

/// The fraction of the frozen pages that is expected to be written while the image exists.
const WRITTEN: f64 = 0.1;

/// The time in which the system copies a page that is shared with a child.
const FORK_PAGE_NS: f64 = 3_000.0;

/// How many pages a calibration writes.
const CALIBRATION_PAGES: usize = 16;

/// The recent costs of making an image.
#[derive(Debug, Clone, Copy)]
struct Costs {
    fork_ns_per_table_byte: f64,
    protect_ns_per_byte: f64,
}

/// Initial values, until an image has been made.
const START: Costs = Costs { fork_ns_per_table_byte: 12.0, protect_ns_per_byte: 0.02 };

/// The cost of a child process with empty page tables.
const FORK_NS: f64 = 200_000.0;

static COSTS: Mutex<Costs> = Mutex::new(START);

impl Costs {
    fn choose(self, bytes: u64, table_bytes: u64, protect_page_ns: f64) -> FreezeWay {
        let written = bytes as f64 / page_bytes() as f64 * WRITTEN;
        let fork_ns = FORK_NS + table_bytes as f64 * self.fork_ns_per_table_byte + written * FORK_PAGE_NS;
        let protect_ns = bytes as f64 * self.protect_ns_per_byte + written * protect_page_ns;
        if protect_ns < fork_ns { FreezeWay::Protect } else { FreezeWay::Fork }
    }
}

fn costs(change: impl FnOnce(&mut Costs)) -> Costs {
    let mut costs = COSTS.lock().unwrap_or_else(PoisonError::into_inner);
    change(&mut costs);
    *costs
}

/// The way with the lower estimated cost, for this many frozen bytes in a process with page tables
/// of this size.
pub(super) fn choose(bytes: u64, table_bytes: u64) -> FreezeWay {
    costs(|_| ()).choose(bytes, table_bytes, protect_page_ns())
}

/// The time of a write to a protected page. Infinite if memory cannot be protected.
fn protect_page_ns() -> f64 {
    static MEASURED: OnceLock<f64> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        // At least this many whole pages, all of which have memory.
        let mut memory = vec![1u8; (CALIBRATION_PAGES + 1) * page_bytes()];
        let Ok(mut image) = Protected::new(&[&memory], &FreezeOptions::default()) else { return f64::INFINITY };
        let begin = Instant::now();
        memory.fill(2);
        let took = begin.elapsed();
        image.end(true);
        took.as_nanos() as f64 / CALIBRATION_PAGES as f64
    })
}

/// Records how long a fork has taken.
pub(super) fn forked(table_bytes: u64, ns: f64) {
    // Measurements of a small process are too inaccurate.
    if table_bytes >= 1 << 16 {
        costs(|costs| costs.fork_ns_per_table_byte = (costs.fork_ns_per_table_byte + ns / table_bytes as f64) / 2.0);
    }
}

/// Records how long protecting has taken.
pub(super) fn protected(bytes: u64, ns: f64) {
    if bytes >= 1 << 24 {
        costs(|costs| costs.protect_ns_per_byte = (costs.protect_ns_per_byte + ns / bytes as f64) / 2.0);
    }
}

/// The size of this process's page tables; 0 if it cannot be read.
pub(super) fn page_table_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_of_a_large_process_is_protected_and_all_of_it_forked() {
        let table_bytes = (32u64 << 30) / 512;
        assert_eq!(START.choose(1 << 20, table_bytes, 9_000.0), FreezeWay::Protect);
        assert_eq!(START.choose(32 << 30, table_bytes, 9_000.0), FreezeWay::Fork);
    }

    #[test]
    fn what_is_measured_counts() {
        let slow_fork = Costs { fork_ns_per_table_byte: 1e6, ..START };
        let slow_protect = Costs { protect_ns_per_byte: 100.0, ..START };
        assert_eq!(slow_fork.choose(1 << 30, 1 << 21, 9_000.0), FreezeWay::Protect);
        assert_eq!(slow_protect.choose(1 << 20, 1 << 21, 9_000.0), FreezeWay::Fork);
        assert_eq!(slow_fork.choose(1 << 30, 1 << 21, f64::INFINITY), FreezeWay::Fork);
    }

    #[test]
    fn page_tables_have_a_size() {
        assert!(page_table_bytes() > 0);
    }
}
