//! What can go wrong with a frozen image.

use std::{io, time::Duration};

use outcrop_error::{ErrorKind, OfKind};
/// The outcome of freezing memory or reading an image.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, with which part of the memory, and what can be done about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Others can write to this memory in ways that cannot be intercepted.
    #[error(
        "part {part} cannot be frozen: it is not private anonymous memory, and others may change it; copy it instead"
    )]
    NotPrivate {
        /// Which of the parts.
        part: usize,
    },
    /// A byte was to be frozen twice.
    #[error("parts {part} and {other} cannot be frozen together: they overlap; copy them instead")]
    Overlap {
        /// One of the parts.
        part: usize,
        /// The other one.
        other: usize,
    },
    /// The image could grow beyond what it may take.
    #[error("cannot freeze {bytes} bytes: {reason}; allow more than {bytes_max} extra bytes, or copy instead")]
    Bound {
        /// The bytes to freeze, in whole pages.
        bytes: u64,
        /// What was allowed.
        bytes_max: u64,
        /// Why that is too little.
        reason: String,
    },
    /// The system refused something that this way of freezing needs.
    #[error("cannot freeze memory by {way}: cannot {attempt}: {source}; {remedy}")]
    Refused {
        /// The way.
        way: crate::FreezeWay,
        /// What was tried.
        attempt: &'static str,
        /// What can be done.
        remedy: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// More was asked for than there is.
    #[error("part {part} of the image does not have {bytes} bytes at {at}")]
    OutOfRange {
        /// Which of the parts.
        part: usize,
        /// The first byte asked for.
        at: usize,
        /// How many bytes.
        bytes: usize,
    },
    /// The bytes were given back before.
    #[error("bytes of part {part} at {at} were released before they were read")]
    Released {
        /// Which of the parts.
        part: usize,
        /// The first byte asked for.
        at: usize,
    },
    /// The program took the memory away before it was read.
    #[error(
        "part {part} at {at} was unmapped, moved or discarded before it was read; keep the memory until the image is dropped"
    )]
    Vanished {
        /// Which of the parts.
        part: usize,
        /// Near which byte.
        at: usize,
    },
    /// The image took all the memory that it may, and nobody released any of it.
    #[error(
        "the image was given up: its extra memory was full and nothing was released for {} s while the program waited to \
         write; allow more, or release sooner",
        waited.as_secs_f64()
    )]
    GivenUp {
        /// How long it waited.
        waited: Duration,
    },
    /// The process that holds the image has ended.
    #[error("the process that held the image is gone: {source}; was it killed for want of memory?")]
    Lost {
        /// What the system said.
        source: io::Error,
    },
    /// An image is of use only to the process that made it.
    #[error("the image belongs to the process that this one was forked from; freeze the memory again")]
    OtherProcess,
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Storage
    }
}
