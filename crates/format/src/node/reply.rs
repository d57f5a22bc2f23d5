//! What the daemon answers.

use super::{NODE_MESSAGE_BYTES_MAX, NODE_PROTOCOL, NODE_RANGES_MAX, NODE_TEXT_BYTES_MAX, NodePart, Reader, Writer};
use crate::error::{Error, Result, Structure};

/// The latest failure to drain a file. Every reply about the file has it, and the client tells the
/// program once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeFailure {
    /// How many drains of the file have failed so far.
    pub serial: u64,
    /// The system's error number of the latest; 0 if there was none.
    pub errno: u32,
}

/// An answer of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReply {
    /// The latest failure of the file that was asked about.
    pub failure: NodeFailure,
    /// The answer.
    pub kind: NodeReplyKind,
}

/// An answer by its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeReplyKind {
    /// To `Hello`. The reserve and the journal come with it, as descriptors.
    Welcome {
        /// How many daemons have served this reserve so far.
        generation: u64,
        /// The identity of the reserve.
        nonce: u64,
        /// The length of the reserve.
        reserve_bytes: u64,
        /// What was granted to this connection before it was made again: offsets and lengths.
        granted: Vec<(u64, u64)>,
    },
    /// The connection is refused, and closed.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// To `Open`.
    Opened {
        /// The number of the file.
        file: u64,
    },
    /// To `Ask`, and to `Fill` if more memory was asked for and is there. 0 bytes are none.
    Granted {
        /// Where it begins in the reserve.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// To `Read`.
    Cached {
        /// The end of what is cached of the file.
        end: u64,
        /// The answer is about the range up to this offset.
        known_to: u64,
        /// What is cached, in ascending order. The rest is in the file.
        parts: Vec<NodePart>,
    },
    /// To `Length`.
    Length {
        /// The end of what is cached.
        end: u64,
        /// Whether nothing is.
        is_clean: bool,
    },
    /// It is done.
    Done,
    /// To `Verify`.
    Verified {
        /// How many bytes were compared.
        bytes: u64,
    },
    /// It failed.
    Failed {
        /// The system's error number.
        errno: u32,
        /// What failed.
        reason: String,
    },
}

impl NodeReply {
    /// An answer about no file.
    pub fn plain(kind: NodeReplyKind) -> Self {
        Self { failure: NodeFailure::default(), kind }
    }

    /// Encodes a message.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.short(u32::from(NODE_PROTOCOL) << 16 | self.kind.number());
        writer.long(self.failure.serial).short(self.failure.errno);
        match &self.kind {
            NodeReplyKind::Welcome { generation, nonce, reserve_bytes, granted } => {
                writer.long(*generation).long(*nonce).long(*reserve_bytes).short(granted.len() as u32);
                granted.iter().fold(&mut writer, |writer, (at, bytes)| writer.long(*at).long(*bytes))
            }
            NodeReplyKind::Refused { reason } => writer.bytes(shortened(reason)),
            NodeReplyKind::Opened { file } => writer.long(*file),
            NodeReplyKind::Granted { at, bytes } => writer.long(*at).long(*bytes),
            NodeReplyKind::Cached { end, known_to, parts } => {
                writer.long(*end).long(*known_to).short(parts.len() as u32);
                parts.iter().fold(&mut writer, |writer, part| writer.long(part.offset).long(part.bytes).long(part.at))
            }
            NodeReplyKind::Length { end, is_clean } => writer.long(*end).byte((*is_clean).into()),
            NodeReplyKind::Done => &mut writer,
            NodeReplyKind::Verified { bytes } => writer.long(*bytes),
            NodeReplyKind::Failed { errno, reason } => writer.short(*errno).bytes(shortened(reason)),
        };
        Self::decode(&writer.0).map_err(|error| Error::unfit(Structure::NodeMessage, error.to_string()))?;
        Ok(writer.0)
    }

    /// Decodes a message.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(Structure::NodeMessage, bytes);
        if bytes.len() > NODE_MESSAGE_BYTES_MAX {
            return Err(reader.cursor.wrong(format!("it has more than {NODE_MESSAGE_BYTES_MAX} bytes")));
        }
        let head = reader.short()?;
        let found = head >> 16;
        if found != u32::from(NODE_PROTOCOL) {
            return Err(Error::Format { structure: Structure::NodeMessage, found, newest: NODE_PROTOCOL.into() });
        }
        let failure = NodeFailure { serial: reader.long()?, errno: reader.short()? };
        let kind = NodeReplyKind::decode(head & 0xffff, &mut reader)?;
        reader.end()?;
        Ok(Self { failure, kind })
    }
}

/// As much of a text as a message may have.
fn shortened(text: &str) -> &[u8] {
    let mut end = text.len().min(NODE_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text.as_bytes()[..end]
}

impl NodeReplyKind {
    fn number(&self) -> u32 {
        match self {
            Self::Welcome { .. } => 101,
            Self::Refused { .. } => 102,
            Self::Opened { .. } => 103,
            Self::Granted { .. } => 104,
            Self::Cached { .. } => 105,
            Self::Length { .. } => 106,
            Self::Done => 107,
            Self::Verified { .. } => 108,
            Self::Failed { .. } => 109,
        }
    }

    fn decode(number: u32, reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match number {
            101 => {
                let (generation, nonce, reserve_bytes) = (reader.long()?, reader.long()?, reader.long()?);
                let count = reader.count(NODE_RANGES_MAX, "ranges")?;
                let granted = (0..count).map(|_| Ok((reader.long()?, reader.long()?))).collect::<Result<_>>()?;
                Self::Welcome { generation, nonce, reserve_bytes, granted }
            }
            102 => Self::Refused { reason: reader.text(NODE_TEXT_BYTES_MAX)? },
            103 => Self::Opened { file: reader.long()? },
            104 => Self::Granted { at: reader.long()?, bytes: reader.long()? },
            105 => {
                let (end, known_to) = (reader.long()?, reader.long()?);
                let count = reader.count(NODE_RANGES_MAX, "ranges")?;
                let parts = (0..count).map(|_| reader.part()).collect::<Result<_>>()?;
                Self::Cached { end, known_to, parts }
            }
            106 => Self::Length { end: reader.long()?, is_clean: reader.is()? },
            107 => Self::Done,
            108 => Self::Verified { bytes: reader.long()? },
            109 => Self::Failed { errno: reader.short()?, reason: reader.text(NODE_TEXT_BYTES_MAX)? },
            _ => return Err(reader.cursor.wrong_at(0, format!("a reply of kind {number} is not known"))),
        })
    }
}
