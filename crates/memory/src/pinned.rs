//! Memory of this process that is pinned for direct access: buffers registered with io_uring or for
//! RDMA.
//!
//! The system counts such memory for the whole process (`VmPin` in /proc/self/status), and does not
//! report where it is. What Outcrop itself has registered is subtracted: nobody else writes there.

use std::{
    fs, io,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::page_bytes;

/// The bytes of all [`Pinned`] of this process. At no time more than the system counts for them.
static OURS: AtomicU64 = AtomicU64::new(0);

/// How many times `OURS` has changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How many times to try to read two consistent numbers.
const TRIES: usize = 8;

/// Memory that Outcrop has pinned, and that [`pinned_by_others`] does not count.
#[derive(Debug, Default)]
pub struct Pinned(u64);

impl Pinned {
    /// Counts `bytes` as pinned. Call it after pinning them.
    pub fn add(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(page_bytes() as u64);
        self.0 += bytes;
        OURS.fetch_add(bytes, SeqCst);
        CHANGES.fetch_add(1, SeqCst);
    }

    /// Counts nothing as pinned any more. Call it before unpinning.
    pub fn clear(&mut self) {
        OURS.fetch_sub(std::mem::take(&mut self.0), SeqCst);
        CHANGES.fetch_add(1, SeqCst);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.clear();
    }
}

/// How many bytes of this process are pinned by others than Outcrop. While Outcrop pins or unpins
/// memory, the result can be too large, but never too small.
pub fn pinned_by_others() -> io::Result<u64> {
    for _ in 0..TRIES {
        let changes = CHANGES.load(SeqCst);
        let ours = OURS.load(SeqCst);
        let all = pinned_bytes()?;
        if all == 0 || changes == CHANGES.load(SeqCst) {
            return Ok(all.saturating_sub(ours));
        }
    }
    pinned_bytes()
}

/// How many bytes of this process are pinned, according to the system.
fn pinned_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map(|count| count << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmPin"))
}
