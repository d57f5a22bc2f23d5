//! The errors of reading a store.

use std::{io, ops::Range};

use outcrop_error::{ErrorKind, OfKind};
use outcrop_layers::files::Files;

use crate::open::{again, is_shortage};

/// The result of reading a store.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory cannot be opened.
    #[error("cannot open the store {path}: {source}")]
    Open {
        /// The directory.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A file or directory of the store cannot be read or removed.
    #[error("cannot {attempt} {path}: {source}")]
    Storage {
        /// What was tried.
        attempt: &'static str,
        /// On which file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The directory does not contain a store.
    #[error("{location} has no sessions: it is not the directory of a store, or nothing has been saved to it yet")]
    Empty {
        /// The directory, or several.
        location: String,
    },
    /// The session does not exist.
    #[error("{location} has no session {session}; {}", there_is("sessions", known))]
    NoSession {
        /// The store.
        location: String,
        /// The session asked for.
        session: String,
        /// The sessions that exist.
        known: Vec<String>,
    },
    /// The version does not exist, or is not complete.
    #[error("{location} has no complete version {version} of {session}; {}", there_is("complete versions", known))]
    NoVersion {
        /// The store.
        location: String,
        /// The session.
        session: String,
        /// The version asked for, a number or `latest`.
        version: String,
        /// The complete versions that exist.
        known: Vec<String>,
    },
    /// The region does not exist.
    #[error("version {version} of {session} has no region {region:?} on rank {rank}; {}", there_is("regions", known))]
    NoRegion {
        /// The session.
        session: String,
        /// The version.
        version: u64,
        /// The rank.
        rank: u32,
        /// The region asked for.
        region: String,
        /// The regions that exist.
        known: Vec<String>,
    },
    /// A read beyond the end of a region.
    #[error("bytes {} to {} of region {region:?} were asked for, which has {available} bytes", bytes.start, bytes.end)]
    OutOfRange {
        /// The region.
        region: String,
        /// The bytes asked for.
        bytes: Range<u64>,
        /// The length of the region.
        available: u64,
    },
    /// There is not enough memory.
    #[error("region {region:?} has {bytes} bytes, for which there is no memory; read a part of it at a time")]
    TooLarge {
        /// The region.
        region: String,
        /// Its length.
        bytes: u64,
    },
    /// A file is not what was written.
    #[error("{path} is damaged: {reason}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A mark has a format that this version of Outcrop does not know. It need not be damaged.
    #[error("{path} cannot be used: {reason}")]
    Newer {
        /// The file.
        path: String,
        /// Which format it has.
        reason: String,
    },
    /// Bytes of a region came back changed, or not at all.
    #[error(
        "version {version} of {session} is damaged: rank {rank}, region {region:?}, bytes {} to {}: {reason}; restore an older \
         version, or this one from another layer",
        bytes.start,
        bytes.end
    )]
    Lost {
        /// The session.
        session: String,
        /// The version.
        version: u64,
        /// The rank.
        rank: u32,
        /// The region.
        region: String,
        /// Which of its bytes.
        bytes: Range<u64>,
        /// Which file, and what is wrong with it.
        reason: String,
    },
    /// A running program has locked the session.
    #[error("rank {rank} of session {session} in {location} is in use by a running program; wait until it has ended")]
    Held {
        /// The store.
        location: String,
        /// The session.
        session: String,
        /// The rank.
        rank: u32,
    },
}

impl Error {
    /// Whether stored bytes are damaged, as opposed to a wrong call or a failing medium.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Lost { .. })
    }

    /// Whether this process or the system lacks descriptors or memory. Such an error proves nothing
    /// about what is stored.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Open { source, .. } | Self::Storage { source, .. } if is_shortage(source))
    }

    /// A copy of this error, for a file that cannot be used.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Storage { attempt, path, source } => {
                Self::Storage { attempt, path: path.clone(), source: again(source) }
            }
            Self::Newer { path, reason } => Self::Newer { path: path.clone(), reason: reason.clone() },
            Self::Damaged { path, reason } => Self::Damaged { path: path.clone(), reason: reason.clone() },
            other => Self::Damaged { path: String::new(), reason: other.to_string() },
        }
    }

    /// The error if a file or directory cannot be listed.
    pub(crate) fn listing(files: &dyn Files, name: &str, source: io::Error) -> Self {
        Self::Storage { attempt: "list", path: format!("{}/{name}", files.location()), source }
    }
}

/// A list of names for a message: `the sessions are: a, b`.
fn there_is(what: &str, names: &[String]) -> String {
    /// How many names a message lists.
    const SHOWN_MAX: usize = 20;
    match names.len() {
        0 => format!("there are no {what}"),
        count if count > SHOWN_MAX => {
            format!("there are {count} {what}, the last ones are: {}", names[count - SHOWN_MAX..].join(", "))
        }
        _ => format!("the {what} are: {}", names.join(", ")),
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSession { .. } | Self::NoVersion { .. } | Self::NoRegion { .. } | Self::Empty { .. } => {
                ErrorKind::Missing
            }
            Self::Damaged { .. } | Self::Lost { .. } => ErrorKind::Damaged,
            Self::OutOfRange { .. } | Self::Newer { .. } => ErrorKind::Usage,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Held { .. } => ErrorKind::Busy,
            Self::Open { .. } | Self::Storage { .. } => ErrorKind::Storage,
        }
    }
}
