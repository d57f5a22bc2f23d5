//! The memory that this process has had in use.

use std::fs;

use outcrop::layers::{Host, Layer};

/// Has the system provide `bytes` of memory and give them back at once.
///
/// On a virtual machine, memory that nobody has used for a while must first come from the machine below, which is slower
/// than any disk. Done before each way, this gives all of them the same start.
pub(crate) fn warm(bytes: u64) {
    if let Ok(host) = Host::new(bytes) {
        let _ = host.touch(0..host.capacity());
    }
}

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
