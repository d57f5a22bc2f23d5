//! The memory that this process has had in use.

use std::fs;

/// Forgets the largest amount until now.
pub(crate) fn reset_peak() {
    // Refused by old kernels; the peak is then that of the whole process, which is on the safe side.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The largest amount since the last reset, in bytes.
pub(crate) fn peak_bytes() -> u64 {
    status("VmHWM:")
}

/// The amount now, in bytes.
pub(crate) fn now_bytes() -> u64 {
    status("VmRSS:")
}

fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}
