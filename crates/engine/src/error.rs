//! The errors of a tape: what failed, and what to do about it.

use outcrop_error::{ErrorKind, OfKind};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is in use.
    #[error("snapshot {key} exists already; take or discard it before saving another one under this key")]
    Exists {
        /// The key.
        key: u64,
    },
    /// There is no such snapshot.
    #[error("there is no snapshot {key}: it was never saved, or has been taken or discarded")]
    Missing {
        /// The key.
        key: u64,
    },
    /// It is larger than the front.
    #[error(
        "snapshot {key} of {bytes} bytes is larger than the {capacity} bytes of this tape's first memory layer; \
         give it more host memory, or device memory if it is a device, or save smaller snapshots"
    )]
    TooLarge {
        /// The key.
        key: u64,
        /// Its size.
        bytes: u64,
        /// The size of the front.
        capacity: u64,
    },
    /// No layer has room, and nothing can make any.
    #[error("no room for snapshot {key}: {detail}; raise a limit or add a layer, or take or discard snapshots first")]
    Full {
        /// The key.
        key: u64,
        /// What the layers hold, and which of them failed.
        detail: String,
    },
    /// The program itself holds the slots that it waits for.
    #[error(
        "no room for snapshot {key}: the program holds {held} slots of this tape's host memory; \
         drop what was taken, got or lent, or give the tape more host memory"
    )]
    Held {
        /// The key.
        key: u64,
        /// How many slots the program holds.
        held: usize,
    },
    /// The call yields to others, and others wait for room.
    #[error("no room for snapshot {key} while others wait for some; try again later")]
    GaveWay {
        /// The key.
        key: u64,
    },
    /// The bytes on a layer are not those that were written.
    #[error(
        "snapshot {key} came back from {layer} with other bytes than were written; it is still listed, but do not trust \
         that medium"
    )]
    Damaged {
        /// The key.
        key: u64,
        /// The layer's name.
        layer: String,
    },
    /// A layer cannot be read.
    #[error("snapshot {key} cannot be read: {detail}; it is still listed and can be asked for again")]
    Unreadable {
        /// The key.
        key: u64,
        /// The layer and its last error.
        detail: String,
    },
    /// A helper thread has panicked, so no move can end any more.
    #[error(
        "a helper thread of this tape has panicked while it moved bytes; only what is in memory can still be read; please report this"
    )]
    Stopped,
    /// Sliding snapshots together in the front failed, and their bytes may be lost.
    #[error(
        "snapshots in this tape's first memory layer could not be moved together: {detail}; do not trust any snapshot of this tape"
    )]
    Displaced {
        /// The layer's error.
        detail: String,
    },
    /// The program has lost patience.
    #[error(transparent)]
    Interrupted(#[from] outcrop_error::Error),
    /// A layer cannot be used at all.
    #[error(transparent)]
    Layer(#[from] outcrop_layers::Error),
    /// The stack is invalid, or cannot do what was asked.
    #[error("{0}")]
    Stack(String),
    /// The engine's log cannot be written or read.
    #[error("cannot {attempt} {path}: {source}")]
    File {
        /// What was attempted.
        attempt: &'static str,
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::Exists,
            Self::Missing { .. } => ErrorKind::Missing,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Full { .. } => ErrorKind::Full,
            Self::GaveWay { .. } => ErrorKind::Busy,
            Self::Held { .. } => ErrorKind::Held,
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Stack(_) => ErrorKind::Usage,
            Self::Layer(error) => error.kind(),
            Self::Interrupted(error) => error.kind(),
            Self::Unreadable { .. } | Self::Stopped | Self::Displaced { .. } | Self::File { .. } => ErrorKind::Storage,
        }
    }
}
