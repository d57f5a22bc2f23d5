//! What can go wrong on a layer.

use std::{io, ops::Range, path::PathBuf};

/// The outcome of what a layer was asked to do.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, on which layer, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The medium has no room left, although the limit is not reached.
    #[error("{layer}: no space left on the medium: {source}; free some, or set a lower limit")]
    Full {
        /// The layer's name.
        layer: String,
        /// What the system said.
        source: io::Error,
    },
    /// A transfer failed.
    #[error("{layer}: cannot {attempt}: {source}")]
    Broken {
        /// The layer's name.
        layer: String,
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A transfer beyond the limit, or not at a multiple of the alignment.
    #[error("{layer}: bytes {} to {} are not an aligned part of its {capacity} bytes", range.start, range.end)]
    OutOfRange {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
        /// The bytes there are.
        capacity: u64,
    },
    /// Memory was asked for that is in use.
    #[error("{layer}: bytes {} to {} are in use", range.start, range.end)]
    InUse {
        /// The layer's name.
        layer: String,
        /// The bytes asked for.
        range: Range<u64>,
    },
    /// The host gives no memory.
    #[error("cannot reserve {bytes} bytes of host memory: {source}; set a lower limit")]
    NoMemory {
        /// The bytes asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// This user may not pin that much memory.
    #[error(
        "cannot pin {bytes} bytes of host memory: {source}; at most {limit_bytes} bytes may be locked: raise the limit \
         (`ulimit -l {}`, memlock in /etc/security/limits.conf, or LimitMEMLOCK= of the service) or grant CAP_IPC_LOCK",
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
}

impl Error {
    /// A failed transfer, sorted into "no room left" and all others.
    pub fn transfer(layer: &str, attempt: &'static str, source: io::Error) -> Self {
        let layer = layer.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { layer, source },
            _ => Self::Broken { layer, attempt, source },
        }
    }
}
