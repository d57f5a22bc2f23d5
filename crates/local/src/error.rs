//! What can go wrong between processes of one machine.

use std::{io, path::PathBuf};

use outcrop_error::{ErrorKind, OfKind};
/// The outcome of what was tried.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, where, and what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be used.
    #[error("cannot use directory {}: {attempt}: {source}; {remedy}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        attempt: &'static str,
        /// What can be done.
        remedy: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A buffer that processes share cannot be used.
    #[error("cannot share memory through {}: {reason}", path.display())]
    Segment {
        /// Its file.
        path: PathBuf,
        /// Why, and what can be done.
        reason: String,
    },
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Storage
    }
}
