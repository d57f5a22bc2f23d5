//! What can go wrong with memory.

use std::{io, ops::Range};

/// The outcome of what was asked of memory.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system gives no address space, or there never was as much memory.
    #[error("cannot reserve {bytes} bytes of host memory: {source}; set a lower limit")]
    NoMemory {
        /// The bytes asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is no more memory now. What has been touched before can be used as before.
    #[error("no memory for {bytes} more bytes: {limit}; free some, or set a lower limit")]
    Exhausted {
        /// The bytes asked for.
        bytes: u64,
        /// What there is, and why not more.
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
        /// The bytes that may be.
        limit_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A range outside of the mapping.
    #[error("bytes {} to {} are not all in a mapping of {bytes} bytes", range.start, range.end)]
    OutOfRange {
        /// The bytes asked for.
        range: Range<u64>,
        /// The bytes there are.
        bytes: u64,
    },
    /// Write access to a mapping that was opened read-only.
    #[error("the mapping is read-only; open it for reading and writing")]
    ReadOnly,
    /// The file does not lie on persistent memory that can be mapped directly.
    #[error(
        "cannot map the file with DAX: {source}; put it on a file system on persistent memory that \
         is mounted with `-o dax`, or map it as an ordinary file"
    )]
    NoDax {
        /// What the system said.
        source: io::Error,
    },
    /// A memfd that its owner could shrink, which would end every process that uses it.
    #[error("the memfd is not sealed against shrinking; it must not be trusted")]
    Unsealed,
    /// An earlier flush failed: the system may have dropped what was written, and would not say so
    /// again.
    #[error("an earlier flush of this mapping failed; close it and check the file")]
    Distrusted,
    /// A call failed.
    #[error("cannot {attempt}: {source}")]
    Failed {
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
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
