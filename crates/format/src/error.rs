//! What can be wrong with bytes, where, and what to do about it.

use std::{borrow::Cow, fmt};

use outcrop_error::{ErrorKind, OfKind};
/// The outcome of encoding or decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong, for use in an [`Error`] that knows where.
pub(crate) type Problem = Cow<'static, str>;

/// What bytes are meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// The first page of a pack.
    PackHeader,
    /// The index of a pack.
    PackIndex,
    /// A manifest.
    Manifest,
    /// The stored bytes of one coded block.
    Block,
    /// The beginning of the file through which a rank talks.
    Mailbox,
    /// What a rank says in it.
    MailboxRecord,
    /// The beginning of a file in which processes share memory, and its tables.
    Segment,
    /// A message between ranks, or the mark of a rank.
    Message,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PackHeader => "pack's header",
            Self::PackIndex => "pack's index",
            Self::Manifest => "manifest",
            Self::Block => "coded block",
            Self::Mailbox => "mailbox of a rank",
            Self::MailboxRecord => "record in a mailbox",
            Self::Segment => "segment of shared memory",
            Self::Message => "message of a rank",
        })
    }
}

/// What failed, on what, and what can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is something else.
    #[error("this is no {structure}: it begins with \"{}\", not with \"{}\"", found.escape_ascii(), expected.escape_ascii())]
    Magic {
        /// What it should have been.
        structure: Structure,
        /// How it begins.
        found: [u8; 8],
        /// How it should have begun.
        expected: [u8; 8],
    },
    /// It was written by another Outcrop.
    #[error(
        "the {structure} has format {found}, and this Outcrop reads formats up to {newest}: use the Outcrop that wrote it, or a newer one"
    )]
    Format {
        /// What it is.
        structure: Structure,
        /// The number of its format.
        found: u32,
        /// The newest that can be read.
        newest: u32,
    },
    /// It ends too early.
    #[error(
        "the {structure} is cut off: {needed} bytes are needed at byte {at}, and {available} are there; use another copy of it"
    )]
    Short {
        /// What it is.
        structure: Structure,
        /// The byte, counted from the start of the structure.
        at: u64,
        /// So many bytes should follow.
        needed: u64,
        /// So many do.
        available: u64,
    },
    /// These are not the bytes that were written.
    #[error(
        "the {structure} was changed: its checksum is {computed:x}, and {written:x} was written; use another copy of it"
    )]
    Changed {
        /// What it is.
        structure: Structure,
        /// The checksum that was written.
        written: u128,
        /// The checksum that the bytes have.
        computed: u128,
    },
    /// The bytes are as they were written, or have no checksum, but make no sense.
    #[error("the {structure} is wrong at byte {at}: {problem}; use another copy of it")]
    Wrong {
        /// What it is.
        structure: Structure,
        /// The byte, counted from the start of the structure.
        at: u64,
        /// What is wrong.
        problem: Cow<'static, str>,
    },
    /// A coded block cannot be made plain.
    #[error("a block coded with {coding} cannot be decoded: {problem}; use another copy of it")]
    Undecodable {
        /// How it was said to be coded.
        coding: crate::Coding,
        /// What is wrong.
        problem: Cow<'static, str>,
    },
    /// This cannot be written.
    #[error("cannot write this {structure}: {problem}")]
    Unfit {
        /// What was to be written.
        structure: Structure,
        /// Why it cannot be, and what could.
        problem: Cow<'static, str>,
    },
    /// A region cannot be cut into such blocks.
    #[error("a region cannot be cut like this: {0}")]
    Cut(Cow<'static, str>),
    /// Not a name.
    #[error("\"{}\" cannot be the name of a {what}: {problem}", name.escape_debug())]
    Name {
        /// What was to be named.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it, and what is allowed.
        problem: &'static str,
    },
}

impl Error {
    pub(crate) fn unfit(structure: Structure, problem: impl Into<Problem>) -> Self {
        Self::Unfit { structure, problem: problem.into() }
    }
}

impl OfKind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::Unfit { .. } => ErrorKind::Usage,
            _ => ErrorKind::Damaged,
        }
    }
}
