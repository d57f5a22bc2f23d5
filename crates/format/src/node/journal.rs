//! The journal: what the next daemon needs to finish the work of a dead one.
//!
//! A journal has a header and two halves. Records are appended to one half. When it is full, the
//! whole state is written to the other one, as records, and then its epoch, which is one higher. A
//! reader takes the half with the highest epoch. The checksum of a record covers the epoch, so what
//! an earlier epoch has left in a half is never taken for a record.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{NODE_PATH_BYTES_MAX, NodePart, Reader, Writer, node_pieces};
use crate::{
    cursor::{Cursor, check_start},
    error::{Error, Result, Structure},
    hash::checksum,
};

/// The length of the header, of which only the first bytes are used.
pub const JOURNAL_HEADER_BYTES: u64 = 4096;
/// The longest record, with its head.
pub const JOURNAL_RECORD_BYTES_MAX: usize = 64 << 10;
/// The largest number of pieces in one record.
pub const JOURNAL_PIECES_MAX: usize = 4096;

const MAGIC: [u8; 8] = *b"OUTCNODE";
const FORMAT: u32 = 1;
const RECORD_HEAD_BYTES: usize = 16;

/// The header of a journal, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalHeader {
    /// The identity of the reserve that it belongs to.
    pub nonce: u64,
    /// The length of the reserve.
    pub reserve_bytes: u64,
    /// The length of each half.
    pub half_bytes: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    zero: U32,
    nonce: U64,
    reserve_bytes: U64,
    half_bytes: U64,
    check: U128,
}

impl JournalHeader {
    /// Where the number of daemons that have served the reserve lies: eight bytes that change.
    pub const GENERATION_AT: u64 = 128;
    /// Where the number of failures to drain lies, of all files, since this daemon serves: eight
    /// bytes that change.
    pub const FAILURES_AT: u64 = 136;
    /// Where the epoch of each half lies: eight bytes that change, and their checksum.
    pub const EPOCHS_AT: [u64; 2] = [192, 256];

    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            zero: 0.into(),
            nonce: self.nonce.into(),
            reserve_bytes: self.reserve_bytes.into(),
            half_bytes: self.half_bytes.into(),
            check: 0.into(),
        };
        raw.check = checksum(&raw.as_bytes()[..size_of::<Raw>() - 16]).into();
        raw.as_bytes().to_vec()
    }

    /// Decodes it. Ignores what follows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Journal;
        check_start(structure, MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &Raw = cursor.value()?;
        let (written, computed) = (raw.check.get(), checksum(&raw.as_bytes()[..size_of::<Raw>() - 16]));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        let half_bytes = raw.half_bytes.get();
        if raw.zero.get() != 0 || half_bytes < JOURNAL_RECORD_BYTES_MAX as u64 || half_bytes > 1 << 40 {
            return Err(cursor.wrong_at(12, format!("halves of {half_bytes} bytes cannot be")));
        }
        Ok(Self { nonce: raw.nonce.get(), reserve_bytes: raw.reserve_bytes.get(), half_bytes })
    }

    /// Where a half begins.
    pub fn half_at(&self, half: usize) -> u64 {
        JOURNAL_HEADER_BYTES + half as u64 * self.half_bytes
    }

    /// Encodes the epoch of a half.
    pub fn encode_epoch(epoch: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&epoch.to_le_bytes());
        bytes[8..].copy_from_slice(&(checksum(&epoch.to_le_bytes()) as u64).to_le_bytes());
        bytes
    }

    /// Decodes the epoch of a half; `None` if it was never written.
    pub fn decode_epoch(bytes: &[u8]) -> Option<u64> {
        let epoch = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        (bytes.get(..16)? == Self::encode_epoch(epoch)).then_some(epoch)
    }
}

/// Bytes of a file that were filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFill {
    /// The number of the first piece. The others follow.
    pub piece: u64,
    /// The file.
    pub file: u64,
    /// Where the bytes belong, and where they lie.
    pub part: NodePart,
    /// When they were written: nanoseconds since 1970.
    pub modified_ns: i64,
    /// The connection that has filled them.
    pub line: u64,
    /// The checksum of each piece.
    pub sums: Vec<u64>,
}

/// A piece that is still needed when a half begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalKept {
    /// Its number.
    pub piece: u64,
    /// The number of the oldest piece that it has replaced before that was drained, or its own.
    pub since: u64,
    /// The file.
    pub file: u64,
    /// Where the bytes belong, and where they lie.
    pub part: NodePart,
    /// The checksum.
    pub sum: u64,
    /// Which ranges of the file it still has the newest bytes of: offsets and lengths.
    pub live: Vec<(u64, u64)>,
}

/// Bytes of a file that were drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalPart {
    /// The file.
    pub file: u64,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Pieces with this number and higher ones were not drained.
    pub before: u64,
}

/// A record of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRecord {
    /// A file is used.
    File {
        /// Its number.
        file: u64,
        /// The device that it is on.
        device: u64,
        /// Its number there.
        inode: u64,
        /// Its path when it was opened.
        path: Vec<u8>,
    },
    /// A file is no longer used, and nothing of it is cached.
    Forgotten {
        /// The file.
        file: u64,
    },
    /// Memory was granted.
    Granted {
        /// The connection.
        line: u64,
        /// Its process.
        process: u32,
        /// Where it begins in the reserve.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// A connection has returned memory, or is gone: nothing in this range is granted to it.
    Returned {
        /// The connection.
        line: u64,
        /// Where it begins in the reserve.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// Granted memory was filled.
    Filled(JournalFill),
    /// A piece is still needed. Only at the start of a half.
    Kept(JournalKept),
    /// Bytes were drained.
    Drained(JournalPart),
    /// Everything that is cached beyond this length is dropped, and the file is to be cut off.
    Cut {
        /// The file.
        file: u64,
        /// Its new length.
        bytes: u64,
    },
    /// The file was cut off.
    Truncated {
        /// The file.
        file: u64,
    },
    /// What the times shall be once everything is drained.
    Times {
        /// The file.
        file: u64,
        /// Of the last access.
        accessed_ns: Option<i64>,
        /// Of the last modification.
        modified_ns: Option<i64>,
    },
    /// The times were set.
    Settled {
        /// The file.
        file: u64,
    },
}

impl JournalRecord {
    /// Encodes a record: its length, a checksum, and its body.
    pub fn encode(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut writer = Writer(vec![0; RECORD_HEAD_BYTES]);
        match self {
            Self::File { file, device, inode, path } => {
                writer.byte(1).long(*file).long(*device).long(*inode).bytes(path)
            }
            Self::Forgotten { file } => writer.byte(2).long(*file),
            Self::Granted { line, process, at, bytes } => {
                writer.byte(3).long(*line).short(*process).long(*at).long(*bytes)
            }
            Self::Returned { line, at, bytes } => writer.byte(4).long(*line).long(*at).long(*bytes),
            Self::Filled(JournalFill { piece, file, part, modified_ns, line, sums }) => {
                writer.byte(5).long(*piece).long(*file).long(part.offset).long(part.bytes).long(part.at);
                writer.long(*modified_ns as u64).long(*line).longs(sums)
            }
            Self::Kept(JournalKept { piece, since, file, part, sum, live }) => {
                writer.byte(6).long(*piece).long(*since).long(*file);
                writer.long(part.offset).long(part.bytes).long(part.at).long(*sum).short(live.len() as u32);
                live.iter().fold(&mut writer, |writer, (offset, bytes)| writer.long(*offset).long(*bytes))
            }
            Self::Drained(JournalPart { file, offset, bytes, before }) => {
                writer.byte(7).long(*file).long(*offset).long(*bytes).long(*before)
            }
            Self::Cut { file, bytes } => writer.byte(8).long(*file).long(*bytes),
            Self::Truncated { file } => writer.byte(9).long(*file),
            Self::Times { file, accessed_ns, modified_ns } => {
                writer.byte(10).long(*file).time(*accessed_ns).time(*modified_ns)
            }
            Self::Settled { file } => writer.byte(11).long(*file),
        };
        let mut bytes = writer.0;
        let length = bytes.len() as u64;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        let check = record_check(epoch, &bytes);
        bytes[8..16].copy_from_slice(&check.to_le_bytes());
        Self::decode(epoch, &bytes).map_err(|error| Error::unfit(Structure::JournalRecord, error.to_string()))?;
        Ok(bytes)
    }

    /// Decodes the record at the start of `bytes`, and returns its length. [`Error::Short`] or
    /// [`Error::Changed`] if there is none.
    pub fn decode(epoch: u64, bytes: &[u8]) -> Result<(Self, usize)> {
        let structure = Structure::JournalRecord;
        let mut cursor = Cursor::new(structure, bytes);
        let head: &[U64; 2] = cursor.value()?;
        let (length, written) = (head[0].get(), head[1].get());
        if length > JOURNAL_RECORD_BYTES_MAX as u64 {
            return Err(cursor.wrong_at(0, format!("{length} bytes; at most {JOURNAL_RECORD_BYTES_MAX} are possible")));
        }
        let body_bytes = length.saturating_sub(RECORD_HEAD_BYTES as u64);
        let body: &[u8] = cursor.slice(body_bytes)?;
        let whole = &bytes[..RECORD_HEAD_BYTES + body.len()];
        let computed = record_check(epoch, whole);
        if written != computed || length != whole.len() as u64 {
            return Err(Error::Changed { structure, written: written.into(), computed: computed.into() });
        }
        let mut reader = Reader::new(structure, body);
        let record = Self::decode_body(&mut reader)?;
        reader.end()?;
        Ok((record, whole.len()))
    }

    fn decode_body(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.byte()? {
            1 => {
                let (file, device, inode) = (reader.long()?, reader.long()?, reader.long()?);
                Self::File { file, device, inode, path: reader.bytes(NODE_PATH_BYTES_MAX)? }
            }
            2 => Self::Forgotten { file: reader.long()? },
            3 => {
                let (line, process) = (reader.long()?, reader.short()?);
                Self::Granted { line, process, at: reader.long()?, bytes: reader.long()? }
            }
            4 => Self::Returned { line: reader.long()?, at: reader.long()?, bytes: reader.long()? },
            5 => {
                let (piece, file, part) = (reader.long()?, reader.long()?, reader.part()?);
                let (modified_ns, line) = (reader.long()? as i64, reader.long()?);
                let sums = reader.longs(JOURNAL_PIECES_MAX)?;
                if sums.len() as u64 != node_pieces(part.offset, part.bytes) {
                    return Err(reader.cursor.wrong(format!("{} checksums are not one for each piece", sums.len())));
                }
                Self::Filled(JournalFill { piece, file, part, modified_ns, line, sums })
            }
            6 => {
                let (piece, since, file) = (reader.long()?, reader.long()?, reader.long()?);
                let (part, sum) = (reader.part()?, reader.long()?);
                let count = reader.count(JOURNAL_PIECES_MAX, "ranges")?;
                let live = (0..count).map(|_| reader.range()).collect::<Result<_>>()?;
                Self::Kept(JournalKept { piece, since, file, part, sum, live })
            }
            7 => {
                let file = reader.long()?;
                let (offset, bytes) = reader.range()?;
                Self::Drained(JournalPart { file, offset, bytes, before: reader.long()? })
            }
            8 => Self::Cut { file: reader.long()?, bytes: reader.long()? },
            9 => Self::Truncated { file: reader.long()? },
            10 => Self::Times { file: reader.long()?, accessed_ns: reader.time()?, modified_ns: reader.time()? },
            11 => Self::Settled { file: reader.long()? },
            kind => return Err(reader.cursor.wrong_at(0, format!("a record of kind {kind} is not known"))),
        })
    }
}

/// The checksum of a record without the checksum itself.
fn record_check(epoch: u64, record: &[u8]) -> u64 {
    let mut hasher = twox_hash::XxHash3_64::with_seed(epoch);
    std::hash::Hasher::write(&mut hasher, &record[..8]);
    std::hash::Hasher::write(&mut hasher, &record[RECORD_HEAD_BYTES..]);
    std::hash::Hasher::finish(&hasher)
}
