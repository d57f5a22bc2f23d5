//! What a client asks of the daemon.

use super::{
    NODE_FILE_BYTES_MAX, NODE_MESSAGE_BYTES_MAX, NODE_PATH_BYTES_MAX, NODE_PROTOCOL, NODE_TEXT_BYTES_MAX, NodePart,
    Reader, Writer, node_pieces,
};
use crate::error::{Error, Result, Structure};

/// A grant was filled with bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFill {
    /// The file.
    pub file: u64,
    /// Where the bytes belong, and where they lie.
    pub part: NodePart,
    /// When they were written: nanoseconds since 1970.
    pub modified_ns: i64,
    /// How much memory the client would like to have next, if there is plenty.
    pub ask_bytes: u64,
    /// The checksum of each piece.
    pub sums: Vec<u64>,
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeRequest {
    /// The first message of a connection.
    Hello {
        /// Chosen by the process: all its connections have the same one.
        group: u64,
        /// Chosen for this connection, and kept when it is made again.
        line: u64,
        /// What the process is called.
        name: String,
    },
    /// The descriptor of a file comes with this message.
    Open {
        /// Its path.
        path: Vec<u8>,
    },
    /// The file is no longer used by this process. There is no reply.
    Close {
        /// The file.
        file: u64,
    },
    /// Wait for memory.
    Ask {
        /// What it is for.
        file: u64,
        /// How much.
        bytes: u64,
    },
    /// A grant was filled.
    Fill(NodeFill),
    /// Where are the newest bytes of this range? They stay there until `Release`.
    Read {
        /// The file.
        file: u64,
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// What the last `Read` returned is no longer needed. There is no reply.
    Release,
    /// Memory that was granted and is not needed. There is no reply.
    Return {
        /// Where it begins in the reserve.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// How long is the file, with what is cached?
    Length {
        /// The file.
        file: u64,
    },
    /// Cut the file off, or extend it.
    SetBytes {
        /// The file.
        file: u64,
        /// Its new length.
        bytes: u64,
    },
    /// What the times of the file shall be, in nanoseconds since 1970.
    SetTimes {
        /// The file.
        file: u64,
        /// Of the last access.
        accessed_ns: Option<i64>,
        /// Of the last modification.
        modified_ns: Option<i64>,
    },
    /// Wait until all that was written so far is in the file.
    Drain {
        /// The file.
        file: u64,
    },
    /// As `Drain`, and durable.
    Sync {
        /// The file.
        file: u64,
    },
    /// Drain all files.
    DrainAll,
    /// Read back what was drained, and compare checksums.
    Verify {
        /// The file.
        file: u64,
    },
    /// Give up bytes that could not be drained.
    Discard {
        /// The file.
        file: u64,
    },
    /// What is going on? The answer comes as a descriptor.
    Status,
    /// Use at most this much memory from now on.
    Limit {
        /// How much.
        bytes: u64,
    },
    /// Drain everything and end.
    Stop,
}

impl NodeRequest {
    /// Encodes a message.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::default();
        writer.short(u32::from(NODE_PROTOCOL) << 16 | self.kind());
        match self {
            Self::Hello { group, line, name } => writer.long(*group).long(*line).bytes(name.as_bytes()),
            Self::Open { path } => writer.bytes(path),
            Self::Ask { file, bytes } | Self::SetBytes { file, bytes } => writer.long(*file).long(*bytes),
            Self::Fill(fill) => {
                let NodeFill { file, part, modified_ns, ask_bytes, sums } = fill;
                writer.long(*file).long(part.offset).long(part.bytes).long(part.at);
                writer.long(*modified_ns as u64).long(*ask_bytes).longs(sums)
            }
            Self::Read { file, offset, bytes } => writer.long(*file).long(*offset).long(*bytes),
            Self::Return { at, bytes } => writer.long(*at).long(*bytes),
            Self::SetTimes { file, accessed_ns, modified_ns } => {
                writer.long(*file).time(*accessed_ns).time(*modified_ns)
            }
            Self::Close { file }
            | Self::Length { file }
            | Self::Drain { file }
            | Self::Sync { file }
            | Self::Verify { file }
            | Self::Discard { file } => writer.long(*file),
            Self::Limit { bytes } => writer.long(*bytes),
            Self::Release | Self::DrainAll | Self::Status | Self::Stop => &mut writer,
        };
        // What cannot be decoded must not be sent.
        Self::decode(&writer.0).map_err(|error| Error::unfit(Structure::NodeMessage, error.to_string()))?;
        Ok(writer.0)
    }

    fn kind(&self) -> u32 {
        match self {
            Self::Hello { .. } => 1,
            Self::Open { .. } => 2,
            Self::Close { .. } => 3,
            Self::Ask { .. } => 4,
            Self::Fill(_) => 5,
            Self::Read { .. } => 6,
            Self::Release => 7,
            Self::Return { .. } => 8,
            Self::Length { .. } => 9,
            Self::SetBytes { .. } => 10,
            Self::SetTimes { .. } => 11,
            Self::Drain { .. } => 12,
            Self::Sync { .. } => 13,
            Self::DrainAll => 14,
            Self::Verify { .. } => 15,
            Self::Discard { .. } => 16,
            Self::Status => 17,
            Self::Limit { .. } => 18,
            Self::Stop => 19,
        }
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
        let request = Self::decode_body(head & 0xffff, &mut reader)?;
        reader.end()?;
        Ok(request)
    }

    fn decode_body(kind: u32, reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match kind {
            1 => {
                let (group, line) = (reader.long()?, reader.long()?);
                Self::Hello { group, line, name: reader.text(NODE_TEXT_BYTES_MAX)? }
            }
            2 => Self::Open { path: reader.bytes(NODE_PATH_BYTES_MAX)? },
            3 => Self::Close { file: reader.long()? },
            4 => Self::Ask { file: reader.long()?, bytes: reader.long()? },
            5 => {
                let (file, part) = (reader.long()?, reader.part()?);
                let (modified_ns, ask_bytes) = (reader.long()? as i64, reader.long()?);
                let pieces = node_pieces(part.offset, part.bytes);
                let sums = reader.longs(NODE_MESSAGE_BYTES_MAX / 8)?;
                if sums.len() as u64 != pieces {
                    return Err(reader.cursor.wrong(format!("{} checksums of {pieces} pieces", sums.len())));
                }
                Self::Fill(NodeFill { file, part, modified_ns, ask_bytes, sums })
            }
            6 => {
                let file = reader.long()?;
                let (offset, bytes) = reader.range()?;
                Self::Read { file, offset, bytes }
            }
            7 => Self::Release,
            8 => Self::Return { at: reader.long()?, bytes: reader.long()? },
            9 => Self::Length { file: reader.long()? },
            10 => {
                let (file, bytes) = (reader.long()?, reader.long()?);
                if bytes > NODE_FILE_BYTES_MAX {
                    return Err(reader.cursor.wrong("no file is that long"));
                }
                Self::SetBytes { file, bytes }
            }
            11 => Self::SetTimes { file: reader.long()?, accessed_ns: reader.time()?, modified_ns: reader.time()? },
            12 => Self::Drain { file: reader.long()? },
            13 => Self::Sync { file: reader.long()? },
            14 => Self::DrainAll,
            15 => Self::Verify { file: reader.long()? },
            16 => Self::Discard { file: reader.long()? },
            17 => Self::Status,
            18 => Self::Limit { bytes: reader.long()? },
            19 => Self::Stop,
            _ => return Err(reader.cursor.wrong_at(0, format!("a request of kind {kind} is not known"))),
        })
    }
}
