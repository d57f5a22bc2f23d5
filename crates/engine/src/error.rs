//! What can go wrong with a tape, and what to do about it.

use outcrop_error::{ErrorKind, OfKind};

/// The outcome of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, on what, and what can be done.
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
    /// It does not fit, now or ever.
    #[error(
        "snapshot {key} of {bytes} bytes is larger than the {capacity} bytes of memory that this tape begins in; \
         give it more host memory, or device memory if it begins there, or save smaller snapshots"
    )]
    TooLarge {
        /// The key.
        key: u64,
        /// Its size.
        bytes: u64,
        /// The size of the front.
        capacity: u64,
    },
    /// Nothing can make room any more.
    #[error("no room for snapshot {key}: {detail}; raise a limit or add a layer, or take or discard snapshots first")]
    Full {
        /// The key.
        key: u64,
        /// What the layers hold, and which of them failed.
        detail: String,
    },
    /// The program holds what it needs to give back.
    #[error(
        "no room for snapshot {key}: the program holds {held} slots of this tape's host memory; \
         drop what was taken, got or lent, or give the tape more host memory"
    )]
    Held {
        /// The key.
        key: u64,
        /// Slots in the program's hands.
        held: usize,
    },
    /// It could be done later as well, and others wait for room.
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
    /// A helper thread has panicked, so that nothing moves any more.
    #[error(
        "a helper thread of this tape has panicked while it moved bytes; what is in memory can be taken no more, please report this"
    )]
    Stopped,
    /// Snapshots in the front were lost while they were moved together.
    #[error(
        "the memory that this tape begins in could not be moved together: {detail}; nothing on this tape can be trusted any more"
    )]
    Displaced {
        /// What the layer said.
        detail: String,
    },
    /// A layer cannot be used at all.
    #[error(transparent)]
    Layer(#[from] outcrop_layers::Error),
    /// The stack makes no sense.
    #[error("{0}")]
    Stack(String),
    /// A file of the engine's own cannot be written or read.
    #[error("cannot {attempt} {path}: {source}")]
    File {
        /// What was tried.
        attempt: &'static str,
        /// The file.
        path: String,
        /// What the system said.
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
            Self::Unreadable { .. } | Self::Stopped | Self::Displaced { .. } | Self::File { .. } => ErrorKind::Storage,
        }
    }
}
