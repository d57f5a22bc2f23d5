//! Errors of frozen images: what failed, and what to do about it.

use std::{io, time::Duration};

use outcrop_error::{ErrorKind, OfKind};
/// The result of freezing memory or of reading an image.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, with which part of the memory, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Others can write to this memory in ways that cannot be intercepted.
    #[error(
        "part {part} cannot be frozen: it is not private anonymous memory, and others may change it; copy it instead"
    )]
    NotPrivate {
        /// The index of the part.
        part: usize,
    },
    /// Two parts contain the same byte.
    #[error("parts {part} and {other} cannot be frozen together: they overlap; copy them instead")]
    Overlap {
        /// One of the parts.
        part: usize,
        /// The other one.
        other: usize,
    },
    /// The image could need more extra memory than allowed.
    #[error("cannot freeze {bytes} bytes: {reason}; allow more than {bytes_max} extra bytes, or copy instead")]
    Bound {
        /// The bytes to freeze, in whole pages.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
        /// Why that is too little.
        reason: String,
    },
    /// The system refused something that this way of freezing needs.
    #[error("cannot freeze memory by {way}: cannot {attempt}: {source}; {remedy}")]
    Refused {
        /// The way.
        way: crate::FreezeWay,
        /// What was attempted.
        attempt: &'static str,
        /// What to do.
        remedy: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The requested range is outside of the part.
    #[error("part {part} of the image does not have {bytes} bytes at {at}")]
    OutOfRange {
        /// The index of the part.
        part: usize,
        /// The first byte requested.
        at: usize,
        /// How many bytes.
        bytes: usize,
    },
    /// The bytes were released before.
    #[error("bytes of part {part} at {at} were released before they were read")]
    Released {
        /// The index of the part.
        part: usize,
        /// The first byte requested.
        at: usize,
    },
    /// The program unmapped, moved or discarded the memory before it was read.
    #[error(
        "part {part} at {at} was unmapped, moved or discarded before it was read; keep the memory until the image is dropped"
    )]
    Vanished {
        /// The index of the part.
        part: usize,
        /// Near this byte.
        at: usize,
    },
    /// The image used all the memory that it may, and nothing was released.
    #[error(
        "the image was given up: its extra memory was full and nothing was released for {} s while the program waited to \
         write; allow more, or release sooner",
        waited.as_secs_f64()
    )]
    GivenUp {
        /// How long a write waited.
        waited: Duration,
    },
    /// The process that holds the image has ended.
    #[error("the process that held the image is gone: {source}; was it killed because memory ran out?")]
    Lost {
        /// The system's error.
        source: io::Error,
    },
    /// An image can be used only by the process that made it.
    #[error("the image belongs to the process that this one was forked from; freeze the memory again")]
    OtherProcess,
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Storage
    }
}
