//! What the ways of interception see of the daemon: files whose newest bytes may be in memory.

use std::{io, path::Path, sync::Arc, time::SystemTime};

/// Hands out files whose bytes are kept in memory first.
pub trait Cache: Send + Sync {
    /// The file `file`, which is open for reading and writing. `path` is for messages and for
    /// recovery.
    fn open(&self, file: std::fs::File, path: &Path) -> io::Result<Arc<dyn Cached>>;
}

/// A file whose newest bytes may be in memory of the node.
pub trait Cached: Send + Sync {
    /// Returns when the bytes are in the daemon's memory. Waits for memory if there is none left.
    /// Reports an earlier failure to drain this file, once.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads what is newest, wherever it is. The result is short at the end of the file.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// The length of the file, what is cached included.
    fn bytes(&self) -> io::Result<u64>;

    /// Cuts the file off, or extends it with zeros.
    fn set_bytes(&self, bytes: u64) -> io::Result<()>;

    /// What the times of last access and modification shall be. Draining changes them, so they are
    /// set again after it.
    fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> io::Result<()>;

    /// Waits until everything that was written so far is in the file.
    fn drain(&self) -> io::Result<()>;

    /// Drains, and makes the file durable.
    fn sync(&self) -> io::Result<()>;

    /// Reports an earlier failure to drain this file, once, and waits for nothing. For `close`.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Whether nothing is cached now.
    fn is_clean(&self) -> bool;
}
