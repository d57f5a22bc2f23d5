//! The errors of a store.

use outcrop_error::{Error, ErrorKind, OfKind};

/// What failed, on what, and what to do. Calls of the program return it as an [`Error`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// A call that this session cannot carry out.
    #[error("session {session}: {problem}")]
    Session { session: String, problem: String },
    /// This version, or a newer one, exists already.
    #[error(
        "session {session} has saved version {newest} already, or tried to; save a higher one than {newest}, or rewind first"
    )]
    VersionExists { session: String, newest: u64 },
    /// The version does not exist.
    #[error("session {session} has no version {version}: it was never complete on all ranks, or is not kept any more")]
    VersionMissing { session: String, version: u64 },
    /// A version does not fit the regions that it is restored to.
    #[error("version {version} of {session} cannot be restored here: {problem}; nothing was changed")]
    Mismatch { session: String, version: u64, problem: String },
    /// The shape of a region is not possible.
    #[error(transparent)]
    Shape(outcrop_region::ShapeError),
    /// No version has an undamaged copy.
    #[error("no version of {session} can be restored: {detail}")]
    NothingWhole { session: String, detail: String },
    /// A version has not reached a layer, and will not.
    #[error("version {version} of {session} has not reached {layer}: {reason}; it is not durable there")]
    NotReached { session: String, version: u64, layer: String, reason: String },
    /// Several versions have failed, or one on several layers.
    #[error("{}", all(.0))]
    Several(Vec<Problem>),
    /// Another process uses the same directory.
    #[error("{what} is in use by another process; end it, or use another directory")]
    InUse { what: String },
    /// This process does.
    #[error("{what} is in use by this process; end the session that is open, or use that one")]
    InUseHere { what: String },
    /// The files of a store cannot be used.
    #[error("cannot {attempt} in {location}: {source}")]
    StoreFiles { attempt: String, location: String, source: std::io::Error },
}

impl OfKind for Problem {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::VersionExists { .. } => ErrorKind::Exists,
            Self::VersionMissing { .. } => ErrorKind::Missing,
            Self::Session { .. } | Self::Mismatch { .. } | Self::Shape(_) => ErrorKind::Usage,
            Self::NothingWhole { .. } => ErrorKind::Damaged,
            Self::NotReached { .. } | Self::Several(_) | Self::StoreFiles { .. } => ErrorKind::Storage,
            Self::InUse { .. } | Self::InUseHere { .. } => ErrorKind::Busy,
        }
    }

    fn failed_version(&self) -> Option<u64> {
        match self {
            Self::NotReached { version, .. } => Some(*version),
            Self::Several(problems) => problems.first()?.failed_version(),
            _ => None,
        }
    }
}

fn all(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// An error of the ranks: they do not agree, or one is missing.
pub(crate) fn apart(detail: impl Into<String>) -> Error {
    outcrop_ranks::Error::apart(detail).into()
}

/// The error if host memory has no room for a pack. The engine's own message speaks of a tape and
/// its snapshots.
pub(crate) fn no_room(error: outcrop_engine::Error) -> Error {
    use outcrop_engine::Error as Engine;
    let message = match &error {
        Engine::TooLarge { bytes, capacity, .. } => format!(
            "{bytes} bytes have to pass through the store's host memory at once, which has {capacity}; give it more, or \
             save smaller regions"
        ),
        Engine::Full { detail, .. } => {
            format!("no room in the store's host memory: {detail}; raise a limit, or make room in the directories")
        }
        _ => return error.into(),
    };
    Error::new(error.kind(), message)
}
