//! What can go wrong with a pool, and what to do about it.

use std::io;

use outcrop_error::{ErrorKind, OfKind};

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a structure, if anything.
pub(crate) type Checked = std::result::Result<(), String>;

/// What failed, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be used.
    #[error("cannot {attempt} the pool {location}: {source}")]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// Which pool.
        location: String,
        /// The system's error.
        source: io::Error,
    },
    /// The memory of a structure cannot be provided.
    #[error(transparent)]
    Memory(#[from] outcrop_memory::Error),
    /// Bytes of the pool are not what was written.
    #[error("the pool {location} is damaged: {source}")]
    Damaged {
        /// Which pool.
        location: String,
        /// What is wrong.
        source: outcrop_format::Error,
    },
    /// Bytes of the pool are not what was written, and no decoder says so.
    #[error("the pool {location} is damaged: {problem}")]
    Wrong {
        /// Which pool.
        location: String,
        /// What is wrong.
        problem: String,
    },
    /// Another process, or another part of this one, has opened the pool.
    #[error("the pool {location} is open already, in this process or in another one; close it there first")]
    InUse {
        /// Which pool.
        location: String,
    },
    /// There is no such version.
    #[error("the pool {location} has no version {version}; it has {}", listed(versions))]
    NoVersion {
        /// Which pool.
        location: String,
        /// The version that was asked for.
        version: u64,
        /// The versions that there are.
        versions: Vec<u64>,
    },
    /// There is no room for another version.
    #[error(
        "cannot grow the pool {location}: {reason}; make room, or have old versions spilled, or keep fewer; nothing was lost"
    )]
    Full {
        /// Which pool.
        location: String,
        /// What is full.
        reason: String,
    },
    /// An old version cannot be spilled, and the pool has no room for a new one.
    #[error("the pool {location} is full, and its version {version} cannot be spilled: {source}; nothing was lost")]
    Spill {
        /// Which pool.
        location: String,
        /// Which version.
        version: u64,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A version that was copied elsewhere cannot be read there.
    #[error("cannot read \"{name}\" of version {version}, which was copied elsewhere: {source}")]
    Copy {
        /// Which version.
        version: u64,
        /// Which of its structures.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something that was asked for does not fit the pool, or the call.
    #[error("{0}")]
    Misfit(String),
    /// The cost model cannot be used.
    #[error("cannot use the model {path}: {problem}")]
    Model {
        /// Its file.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// What was written last may not be durable, and nothing more is written.
    #[error(
        "an earlier write to the pool {location} failed, so it accepts no more; open it again and continue from its newest version"
    )]
    Poisoned {
        /// Which pool.
        location: String,
    },
}

fn listed(versions: &[u64]) -> String {
    match versions {
        [] => "none".to_owned(),
        _ => versions.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { .. } | Self::Poisoned { .. } | Self::Spill { .. } | Self::Copy { .. } => ErrorKind::Storage,
            Self::Full { .. } => ErrorKind::Full,
            Self::Memory(_) => ErrorKind::TooLarge,
            Self::Damaged { .. } | Self::Wrong { .. } => ErrorKind::Damaged,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::NoVersion { .. } => ErrorKind::Missing,
            Self::Misfit(_) | Self::Model { .. } => ErrorKind::Usage,
        }
    }
}
