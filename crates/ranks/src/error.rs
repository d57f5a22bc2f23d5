//! The errors between the processes of a job.

use outcrop_error::{ErrorKind, OfKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed between ranks, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The ranks of a run do not agree, or one is missing.
    #[error("the ranks of this run: {detail}")]
    Apart {
        /// What is wrong, and what to do.
        detail: String,
    },
    /// The program no longer wants to wait.
    #[error(transparent)]
    Interrupted(outcrop_error::Error),
    /// The files through which ranks communicate cannot be used.
    #[error(
        "cannot talk to other ranks through {path}: {source}; all ranks need the same directory, and may write there"
    )]
    Files {
        /// Where.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl Error {
    /// The ranks do not agree, or one is missing: why.
    pub fn apart(detail: impl Into<String>) -> Self {
        Self::Apart { detail: detail.into() }
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Apart { .. } => ErrorKind::Busy,
            Self::Interrupted(error) => error.kind(),
            Self::Files { .. } => ErrorKind::Storage,
        }
    }
}
