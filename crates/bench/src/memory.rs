//! The memory use of processes, and a supply of memory for them.

use std::{
    fs,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use outcrop::layers::Host;

/// A supply is released in pieces of this size.
const PIECE_BYTES: u64 = 64 << 20;
/// How much of it is free in advance.
const FREE_BYTES: u64 = 512 << 20;
/// How often a supply checks what has been taken. In that time a process takes a tenth of what is
/// free.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Has the system provide `bytes` of memory, and releases them at once.
///
/// On a virtual machine, the host must first provide memory that was not used for a while, which is
/// slower than any disk. A call before each way gives all of them the same start.
pub(crate) fn warm(bytes: u64) {
    if let Ok(host) = Host::new(bytes) {
        let _ = host.touch(0..host.capacity());
    }
}

/// Memory for other processes, held until they take it.
///
/// Free memory of a virtual machine may return to its host within seconds. A program that takes its
/// memory at once would not notice. One that takes it as needed would get more and more slow
/// memory. Held here, it is the same for both.
pub(crate) struct Supply {
    bytes: u64,
    held: Vec<Host>,
}

impl Supply {
    /// Holds `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let mut supply = Self { bytes, held: Vec::new() };
        supply.refill();
        supply
    }

    /// Holds the initial amount again. Right after other processes have ended, it gets their
    /// memory.
    pub(crate) fn refill(&mut self) {
        while (self.held.len() as u64) < self.bytes.div_ceil(PIECE_BYTES) {
            let Ok(piece) = Host::new(PIECE_BYTES) else { return };
            if piece.touch(0..piece.capacity()).is_err() {
                return;
            }
            self.held.push(piece);
        }
    }

    /// Releases as much as these processes take, slightly ahead of them, until `over` reports that
    /// they have ended.
    pub(crate) fn give(&mut self, processes: &[u32], over: &Receiver<()>) {
        let before: u64 = processes.iter().map(|&process| bytes_of(process)).sum();
        loop {
            let now: u64 = processes.iter().map(|&process| bytes_of(process)).sum();
            let free_bytes = now.saturating_sub(before) + FREE_BYTES * processes.len() as u64;
            self.held.truncate((self.bytes.saturating_sub(free_bytes)).div_ceil(PIECE_BYTES) as usize);
            if over.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// The resident memory of a process; 0 if it has ended.
fn bytes_of(process: u32) -> u64 {
    let pages = fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Resets the peak.
pub(crate) fn reset_peak() {
    // Old kernels do not support this. Then the peak is that of the whole process, which is an
    // upper bound.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The peak since the last reset, in bytes.
pub(crate) fn peak_bytes() -> u64 {
    status("VmHWM:")
}

/// The present amount, in bytes.
pub(crate) fn now_bytes() -> u64 {
    status("VmRSS:")
}

fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}
