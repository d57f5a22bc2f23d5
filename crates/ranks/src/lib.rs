//! The processes of a run, and what they have to agree on.
//!
//! A version exists when all of them have it. All communication goes through [`Ranks`], so a
//! program with a message layer of its own can use that instead of files.

#![forbid(unsafe_code)]

mod directory;
mod error;
mod exchange;
mod mailbox;
mod medium;
mod pace;
mod rehearsal;
mod rendezvous;
#[cfg(test)]
mod simulated;
mod talk;
mod tree;

pub use directory::{SharedDirectory, rand_bytes};
pub use error::{Error, Result};
pub use rehearsal::{Cost, Rehearsal, Rehearsed};
pub use rendezvous::{Gathered, Rendezvous};

/// The processes of a run, numbered from 0, as seen by one of them.
pub trait Ranks: Send + Sync {
    /// The number of this process.
    fn rank(&self) -> u32;

    /// The number of processes.
    fn count(&self) -> u32;

    /// An allgather: every rank gets the contributions of all ranks, by rank. For each topic, all
    /// ranks must call it equally often and in the same order. Several topics may be under way at
    /// once, on different threads. It waits for the slowest rank, and fails if one is gone.
    ///
    /// A call that fails does not count: if it is repeated, it is the same exchange, and matches
    /// the call of the others. The first contribution of this rank counts, because others may have
    /// continued with it. The result contains it.
    fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Sends a message to all other ranks, without waiting for them.
    fn announce(&self, message: &[u8]) -> Result<()>;

    /// The messages of other ranks since the last call, with their ranks. Does not wait. Fails if a
    /// rank is gone.
    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>>;
}

/// A run of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn count(&self) -> u32 {
        1
    }

    fn gather(&self, _topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }

    fn announce(&self, _message: &[u8]) -> Result<()> {
        Ok(())
    }

    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>> {
        Ok(Vec::new())
    }
}
