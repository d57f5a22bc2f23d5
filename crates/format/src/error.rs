//! The errors of encoding and decoding: what is wrong, where, and what to do.

use std::{borrow::Cow, fmt};

use outcrop_error::{ErrorKind, OfKind};
/// The result of encoding or decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong, without the position.
pub(crate) type Problem = Cow<'static, str>;

/// The kind of structure that bytes should contain.
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
    /// The header of the file through which a rank communicates.
    Mailbox,
    /// A record in it.
    MailboxRecord,
    /// The header of a file in which processes share memory, and its tables.
    Segment,
    /// A message between ranks, or the mark of a rank.
    Message,
    /// The first page of a pool.
    Pool,
    /// The root of a version of a pool.
    PoolRoot,
    /// The structures of a version of a pool.
    PoolContents,
    /// A page of entries of a pool.
    PoolEntries,
    /// A message between the node daemon and a client.
    NodeMessage,
    /// The header of the node daemon's journal.
    Journal,
    /// A record in it.
    JournalRecord,
    /// The header of a shard.
    Shard,
    /// A request or reply of ranks that keep each other's shards.
    PeerMessage,
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
            Self::Pool => "pool",
            Self::PoolRoot => "root of a pool",
            Self::PoolContents => "list of the structures of a pool",
            Self::PoolEntries => "page of entries of a pool",
            Self::NodeMessage => "message of the node daemon",
            Self::Journal => "journal of the node daemon",
            Self::JournalRecord => "record in the journal of the node daemon",
            Self::Shard => "header of a shard",
            Self::PeerMessage => "message of a rank that keeps shards",
        })
    }
}

/// What failed, on what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is a different kind of file.
    #[error("this is not a {structure}: it begins with \"{}\", not with \"{}\"", found.escape_ascii(), expected.escape_ascii())]
    Magic {
        /// The expected structure.
        structure: Structure,
        /// Its first bytes.
        found: [u8; 8],
        /// The expected first bytes.
        expected: [u8; 8],
    },
    /// It was written by another version of Outcrop.
    #[error(
        "the {structure} has format {found}, and this Outcrop reads formats up to {newest}: use the Outcrop that wrote it, or a newer one"
    )]
    Format {
        /// What it is.
        structure: Structure,
        /// The number of its format.
        found: u32,
        /// The newest format that can be read.
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
        /// How many bytes should follow.
        needed: u64,
        /// How many do follow.
        available: u64,
    },
    /// The checksum does not match.
    #[error(
        "the {structure} was changed: its checksum is {computed:x}, and {written:x} was written; use another copy of it"
    )]
    Changed {
        /// What it is.
        structure: Structure,
        /// The stored checksum.
        written: u128,
        /// The checksum of the bytes.
        computed: u128,
    },
    /// The content is invalid, although its checksum matches or it has none.
    #[error("the {structure} is wrong at byte {at}: {problem}; use another copy of it")]
    Wrong {
        /// What it is.
        structure: Structure,
        /// The byte, counted from the start of the structure.
        at: u64,
        /// What is wrong.
        problem: Cow<'static, str>,
    },
    /// A compressed block cannot be decoded.
    #[error("a block coded with {coding} cannot be decoded: {problem}; use another copy of it")]
    Undecodable {
        /// Its coding, according to the index.
        coding: crate::Coding,
        /// What is wrong.
        problem: Cow<'static, str>,
    },
    /// The value cannot be encoded.
    #[error("cannot write this {structure}: {problem}")]
    Unfit {
        /// The structure.
        structure: Structure,
        /// Why, and what is possible.
        problem: Cow<'static, str>,
    },
    /// A region cannot be cut into such blocks.
    #[error("a region cannot be cut into such blocks: {0}")]
    Cut(Cow<'static, str>),
    /// The name is not valid.
    #[error("\"{}\" cannot be the name of a {what}: {problem}", name.escape_debug())]
    Name {
        /// What has this name.
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
