//! Errors between processes of one machine.

use std::{io, path::PathBuf};

use outcrop_error::{ErrorKind, OfKind};
/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be used.
    #[error("cannot use directory {}: {attempt}: {source}; {remedy}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was attempted.
        attempt: &'static str,
        /// What to do.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A memory segment that processes share cannot be used.
    #[error("cannot share memory through {}: {reason}", path.display())]
    Segment {
        /// Its file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Storage
    }
}
