//! The processes of a run, and what they have to agree on.
//!
//! A version exists when all of them have it. Everything that they tell each other goes through
//! [`Ranks`], so that a program with a message layer of its own can put that in place of files.

#![forbid(unsafe_code)]

mod directory;
mod error;
mod exchange;
mod mailbox;
mod medium;
mod pace;
#[cfg(test)]
mod simulated;
mod talk;

pub use directory::{SharedDirectory, rand_bytes};
pub use error::{Error, Result};

/// The processes of a run, numbered from 0, as one of them sees them.
pub trait Ranks: Send + Sync {
    /// The number of this one.
    fn rank(&self) -> u32;

    /// How many there are.
    fn count(&self) -> u32;

    /// Gives everybody's contribution to everybody, by rank. Of each topic every rank must call it
    /// equally often and in the same order; several topics may be under way at once, on different
    /// threads. It waits for the slowest, and fails if one of them is gone.
    ///
    /// A call that fails does not count: if it is repeated, it is the same exchange, and lines up
    /// with that of the others. What this rank contributed first stands, because others may have
    /// gone on with it. The result says what counted.
    fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Tells all others something, without waiting for them.
    fn announce(&self, message: &[u8]) -> Result<()>;

    /// What others have announced since the last call, with their ranks. Does not wait; fails if
    /// one of them is gone.
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
