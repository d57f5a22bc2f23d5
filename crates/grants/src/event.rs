//! The events that the state machine handles, and the actions that it asks for.

use std::ops::Range;

use outcrop_format::{JournalRecord, NodeFailure, NodeFill, NodePart};

/// A moment: nanoseconds since some start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This many nanoseconds later.
    pub fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

/// A connection of a client. It keeps its number when it is made again.
pub type ClientId = u64;
/// A file.
pub type FileId = u64;
/// A piece. Newer pieces have higher numbers.
pub type PieceId = u64;
/// A drain.
pub type JobId = u64;

/// What a client asks for. One request at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Memory.
    Ask {
        /// For which file.
        file: FileId,
        /// How much.
        bytes: u64,
    },
    /// Granted memory was filled.
    Fill(NodeFill),
    /// Where are the newest bytes?
    Read {
        /// Of which file.
        file: FileId,
        /// From which offset.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// How far does the cached part reach?
    Length {
        /// Of which file.
        file: FileId,
    },
    /// Cut off or extend.
    SetBytes {
        /// Which file.
        file: FileId,
        /// Its new length.
        bytes: u64,
    },
    /// Set times.
    SetTimes {
        /// Of which file.
        file: FileId,
        /// Of the last access.
        accessed_ns: Option<i64>,
        /// Of the last modification.
        modified_ns: Option<i64>,
    },
    /// Wait until all that was written so far is in the file.
    Drain {
        /// Which file.
        file: FileId,
    },
    /// As `Drain`, and durable.
    Sync {
        /// Which file.
        file: FileId,
    },
    /// As `Drain`, for all files.
    DrainAll,
    /// Drop what could not be drained.
    Discard {
        /// Of which file.
        file: FileId,
    },
}

impl Request {
    /// The file that it is about.
    pub fn file(&self) -> Option<FileId> {
        match self {
            Self::Ask { file, .. }
            | Self::Read { file, .. }
            | Self::Length { file }
            | Self::SetBytes { file, .. }
            | Self::SetTimes { file, .. }
            | Self::Drain { file }
            | Self::Sync { file }
            | Self::Discard { file } => Some(*file),
            Self::Fill(fill) => Some(fill.file),
            Self::DrainAll => None,
        }
    }
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It may fill this part of the reserve. May be empty, except for an `Ask`.
    Granted(Range<u64>),
    /// Where the newest bytes are.
    Cached {
        /// The end of what is cached of the file.
        end: u64,
        /// The answer is about the range up to this offset.
        known_to: u64,
        /// What is cached, in ascending order. It stays until `Released`.
        parts: Vec<NodePart>,
    },
    /// How far the cached part reaches.
    Length {
        /// Its end.
        end: u64,
        /// Whether nothing is cached.
        is_clean: bool,
    },
    /// It is done.
    Done,
    /// It failed, with this error number of the system.
    Failed(u32),
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client has connected.
    Joined {
        /// The client.
        client: ClientId,
        /// Its process number.
        process: u32,
    },
    /// A client is gone.
    Left {
        /// The client.
        client: ClientId,
    },
    /// A client asks for something. It must not have another request open.
    Requested {
        /// The client.
        client: ClientId,
        /// What it asks for.
        request: Request,
    },
    /// A client has copied what its last `Read` returned.
    Released {
        /// The client.
        client: ClientId,
    },
    /// A client returns memory that it did not fill.
    Returned {
        /// The client.
        client: ClientId,
        /// The memory.
        range: Range<u64>,
    },
    /// A process uses a file. Told once for each process.
    Opened {
        /// The file.
        file: FileId,
        /// The device that it is on.
        device: u64,
        /// Its number there.
        inode: u64,
        /// Its path.
        path: Vec<u8>,
    },
    /// A process uses a file no longer.
    Closed {
        /// The file.
        file: FileId,
    },
    /// A file of a dead daemon is open now.
    Reached {
        /// The file.
        file: FileId,
    },
    /// A file of a dead daemon cannot be opened.
    Unreached {
        /// The file.
        file: FileId,
        /// The system's error number.
        errno: u32,
    },
    /// A drain has ended.
    Drained {
        /// The drain.
        job: JobId,
        /// The system's error number, if it failed.
        outcome: Result<(), u32>,
    },
    /// A file was cut off or extended.
    Truncated {
        /// The file.
        file: FileId,
        /// The system's error number, if it failed.
        outcome: Result<(), u32>,
    },
    /// A file was made durable.
    Synced {
        /// The client that has asked for it.
        client: ClientId,
        /// The system's error number, if it failed.
        outcome: Result<(), u32>,
    },
    /// The times of a file were set, and its mark is gone.
    Settled {
        /// The file.
        file: FileId,
    },
    /// The reserve is touched up to this byte.
    Touched {
        /// The byte.
        to: u64,
    },
    /// Use at most this much memory from now on.
    Limit {
        /// How much.
        bytes: u64,
    },
    /// The machine runs short: give back what is free.
    Short,
    /// Time has passed.
    Tick,
}

/// A piece that a drain needs, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceSum {
    /// Where it belongs in the file.
    pub offset: u64,
    /// Where it lies in the reserve.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
    /// The checksum.
    pub sum: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer the request of a client.
    Reply {
        /// The client.
        client: ClientId,
        /// The latest failure of the file that it asked about.
        failure: NodeFailure,
        /// The answer.
        answer: Answer,
    },
    /// End the connection of a client that does what it may not.
    Drop {
        /// The client.
        client: ClientId,
        /// What it did.
        reason: String,
    },
    /// Write a record to the journal.
    Journal(JournalRecord),
    /// Compare pieces with their checksums, and write parts of them to the file.
    Drain {
        /// The drain.
        job: JobId,
        /// The file.
        file: FileId,
        /// What to write: consecutive ranges of the file.
        parts: Vec<NodePart>,
        /// The pieces that contain them.
        pieces: Vec<PieceSum>,
    },
    /// Cut the file off, or extend it.
    Truncate {
        /// The file.
        file: FileId,
        /// Its new length.
        bytes: u64,
    },
    /// Make the file durable.
    Sync {
        /// The file.
        file: FileId,
        /// For this client.
        client: ClientId,
    },
    /// Mark the file as not drained.
    Mark {
        /// The file.
        file: FileId,
    },
    /// Everything is drained: set the times of the file, and remove the mark if there is one.
    Settle {
        /// The file.
        file: FileId,
        /// The time of the last access.
        accessed_ns: Option<i64>,
        /// The time of the last modification.
        modified_ns: Option<i64>,
        /// Whether it is marked.
        is_marked: bool,
    },
    /// The file is no longer needed.
    Forget {
        /// The file.
        file: FileId,
    },
    /// Return this part of the reserve to the system. It is not touched any more.
    GiveBack {
        /// Which part.
        range: Range<u64>,
    },
}
