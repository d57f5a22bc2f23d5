//! The errors of programs that use MPI.

use outcrop_error::{ErrorKind, OfKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// MPI cannot be used, or not in this way.
    Mpi(String),
    /// The library for this MPI cannot be compiled or loaded.
    Library(String),
    /// The ranks cannot come together.
    Ranks(outcrop_ranks::Error),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mpi(what) => write!(f, "ranks over MPI: {what}"),
            Self::Library(what) => write!(f, "liboutcrop-mpi.so: {what}"),
            Self::Ranks(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<outcrop_ranks::Error> for Error {
    fn from(error: outcrop_ranks::Error) -> Self {
        Self::Ranks(error)
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Mpi(_) | Self::Library(_) => ErrorKind::Usage,
            Self::Ranks(error) => error.kind(),
        }
    }
}
