//! Errors of memory: what failed, and what to do about it.

use std::{io, ops::Range};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system provides no address space, or the machine never has that much memory.
    #[error("cannot reserve {bytes} bytes of host memory: {source}; set a lower limit")]
    NoMemory {
        /// The bytes requested.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// There is no more memory at present. Touched memory remains usable.
    #[error("no memory for {bytes} more bytes: {limit}; free some, or set a lower limit")]
    Exhausted {
        /// The bytes requested.
        bytes: u64,
        /// How much there is, and what limits it.
        limit: String,
    },
    /// This user may not pin that much memory.
    #[error(
        "cannot pin {bytes} bytes of host memory: {source}; at most {limit_bytes} bytes may be \
         locked: raise the limit (`ulimit -l {}`, memlock in /etc/security/limits.conf, or \
         LimitMEMLOCK= of the service) or grant CAP_IPC_LOCK",
        bytes.div_ceil(1024)
    )]
    PinLimit {
        /// The bytes that would be locked.
        bytes: u64,
        /// The bytes that this user may lock.
        limit_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A range outside of the mapping.
    #[error("bytes {} to {} are not all in a mapping of {bytes} bytes", range.start, range.end)]
    OutOfRange {
        /// The range requested.
        range: Range<u64>,
        /// The length of the mapping.
        bytes: u64,
    },
    /// Write access to a mapping that was opened read-only.
    #[error("the mapping is read-only; open it for reading and writing")]
    ReadOnly,
    /// The file is not on persistent memory that can be mapped directly.
    #[error(
        "cannot map the file with DAX: {source}; put it on a file system on persistent memory that \
         is mounted with `-o dax`, or map it as an ordinary file"
    )]
    NoDax {
        /// The system's error.
        source: io::Error,
    },
    /// A memfd that its owner could shrink, which would kill every process that uses it.
    #[error("the memfd is not sealed against shrinking; it must not be trusted")]
    Unsealed,
    /// An earlier flush failed: the system may have dropped what was written, and reports that only
    /// once.
    #[error("an earlier flush of this mapping failed; close it and check the file")]
    Distrusted,
    /// A call failed.
    #[error("cannot {attempt}: {source}")]
    Failed {
        /// What was attempted.
        attempt: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn failed(attempt: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Failed { attempt, source: errno.into() }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NoMemory { .. } | Error::Exhausted { .. } => io::ErrorKind::OutOfMemory,
            Error::OutOfRange { .. } => io::ErrorKind::InvalidInput,
            Error::ReadOnly | Error::Unsealed => io::ErrorKind::PermissionDenied,
            Error::NoDax { .. } => io::ErrorKind::Unsupported,
            Error::PinLimit { source, .. } | Error::Failed { source, .. } => source.kind(),
            Error::Distrusted => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
