//! Memory of this process that is pinned for direct access: buffers that are registered with
//! io_uring, and what RDMA has registered.
//!
//! The system counts such memory for the whole process (`VmPin` in /proc/self/status), and does not
//! say where it is. What Outcrop itself has registered is subtracted: nobody else writes there.

use std::{
    fs, io,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::page_bytes;

/// What all [`Pinned`] of this process have. Never more than the system counts for them.
static OURS: AtomicU64 = AtomicU64::new(0);

/// How often that has changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// How often to try to read two numbers that belong together.
const TRIES: usize = 8;

/// Memory that Outcrop has pinned: [`pinned_by_others`] does not count it.
#[derive(Debug, Default)]
pub struct Pinned(u64);

impl Pinned {
    /// So many bytes more are pinned. To be called after that was done.
    pub fn add(&mut self, bytes: u64) {
        let bytes = bytes.next_multiple_of(page_bytes() as u64);
        self.0 += bytes;
        OURS.fetch_add(bytes, SeqCst);
        CHANGES.fetch_add(1, SeqCst);
    }

    /// Nothing of it is pinned any more. To be called before that is done.
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

/// How many bytes of this process somebody else than Outcrop has pinned. More than there are, but
/// never less, while Outcrop pins or unpins memory.
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

/// How many bytes of this process are pinned, as the system counts them.
fn pinned_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map(|count| count << 10).ok_or_else(|| io::Error::other("/proc/self/status has no VmPin"))
}
