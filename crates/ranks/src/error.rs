//! What can go wrong between the processes of a job.

use outcrop_error::{ErrorKind, OfKind};

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed between ranks, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The processes of a run do not come together.
    #[error("the ranks of this run: {detail}")]
    Apart {
        /// What is wrong, and what can be done.
        detail: String,
    },
    /// The program has lost patience.
    #[error(transparent)]
    Interrupted(outcrop_error::Error),
    /// The files through which processes talk cannot be used.
    #[error(
        "cannot talk to other ranks through {path}: {source}; all ranks need the same directory, and may write there"
    )]
    Files {
        /// Where.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// Ranks that do not come together, and why.
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
