//! The node daemon: messages between it and its clients, and its journal.
//!
//! A message is one packet: a head, and a body by its kind. Only processes of one machine and user
//! exchange messages, so they have no checksum. A journal survives the daemon that wrote it, so its
//! records have.

mod journal;
mod reply;
mod request;

use zerocopy::little_endian::{U32, U64};

use crate::{
    cursor::Cursor,
    error::{Result, Structure},
};

pub use journal::{
    JOURNAL_HEADER_BYTES, JOURNAL_PIECES_MAX, JOURNAL_RECORD_BYTES_MAX, JournalFill, JournalHeader, JournalKept,
    JournalPart, JournalRecord,
};
pub use reply::{NodeFailure, NodeReply, NodeReplyKind};
pub use request::{NodeFill, NodeRequest};

/// The version of the messages. A daemon and its clients have the same one.
pub const NODE_PROTOCOL: u16 = 1;
/// The longest message.
pub const NODE_MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The largest grant.
pub const GRANT_BYTES_MAX: u64 = 16 << 20;
/// What is filled is cut at multiples of this offset of its file, and each piece has a checksum.
pub const PIECE_BYTES_MAX: u64 = 64 << 10;
/// The largest number of ranges in one message.
pub const NODE_RANGES_MAX: usize = 1024;
/// The longest path in a message.
pub const NODE_PATH_BYTES_MAX: usize = 4096;
/// The longest other text in a message.
pub const NODE_TEXT_BYTES_MAX: usize = 4096;
/// No file is longer.
pub const NODE_FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// A range of a file, and where its bytes lie in the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePart {
    /// The offset in the file.
    pub offset: u64,
    /// The offset in the reserve.
    pub at: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// How many pieces a range of a file has.
pub const fn node_pieces(offset: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return 0;
    }
    (offset + bytes - 1) / PIECE_BYTES_MAX - offset / PIECE_BYTES_MAX + 1
}

/// The checksum of a piece.
pub fn node_checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// The checksum of a piece that is seen block by block.
#[derive(Default)]
pub struct NodeChecksum(twox_hash::XxHash3_64);

impl NodeChecksum {
    /// The next block.
    pub fn update(&mut self, bytes: &[u8]) {
        std::hash::Hasher::write(&mut self.0, bytes);
    }

    /// What [`node_checksum`] gives for all blocks together.
    pub fn finish(&self) -> u64 {
        std::hash::Hasher::finish(&self.0)
    }
}

/// Writes a structure from front to back.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn short(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn long(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn longs(&mut self, values: &[u64]) -> &mut Self {
        self.short(values.len() as u32);
        for value in values {
            self.long(*value);
        }
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.short(value.len() as u32);
        self.0.extend_from_slice(value);
        self
    }

    /// A time, or none.
    fn time(&mut self, value: Option<i64>) -> &mut Self {
        self.byte(value.is_some().into());
        self.long(value.unwrap_or(0) as u64)
    }
}

/// The other direction.
struct Reader<'a> {
    cursor: Cursor<'a>,
}

impl<'a> Reader<'a> {
    fn new(structure: Structure, bytes: &'a [u8]) -> Self {
        Self { cursor: Cursor::new(structure, bytes) }
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(*self.cursor.value::<u8>()?)
    }

    fn is(&mut self) -> Result<bool> {
        let at = self.cursor.at();
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.cursor.wrong_at(at, format!("{other} is neither yes nor no"))),
        }
    }

    fn short(&mut self) -> Result<u32> {
        Ok(self.cursor.value::<U32>()?.get())
    }

    fn long(&mut self) -> Result<u64> {
        Ok(self.cursor.value::<U64>()?.get())
    }

    fn count(&mut self, most: usize, what: &str) -> Result<u32> {
        let at = self.cursor.at();
        let count = self.short()?;
        if count as usize > most {
            return Err(self.cursor.wrong_at(at, format!("{count} {what}; at most {most} are possible")));
        }
        Ok(count)
    }

    fn longs(&mut self, most: usize) -> Result<Vec<u64>> {
        let count = self.count(most, "numbers")?;
        let numbers: &[U64] = self.cursor.slice(count.into())?;
        Ok(numbers.iter().map(|number| number.get()).collect())
    }

    fn bytes(&mut self, most: usize) -> Result<Vec<u8>> {
        let count = self.count(most, "bytes")?;
        Ok(self.cursor.slice::<u8>(count.into())?.to_vec())
    }

    fn text(&mut self, most: usize) -> Result<String> {
        let count = self.count(most, "bytes of text")?;
        Ok(self.cursor.text(count.into())?.to_owned())
    }

    fn time(&mut self) -> Result<Option<i64>> {
        let at = self.cursor.at();
        let (is_some, value) = (self.is()?, self.long()? as i64);
        match (is_some, value) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err(self.cursor.wrong_at(at, "a time that is none has a value")),
        }
    }

    /// A range of a file: its offset and length.
    fn range(&mut self) -> Result<(u64, u64)> {
        let at = self.cursor.at();
        let (offset, bytes) = (self.long()?, self.long()?);
        match offset.checked_add(bytes) {
            Some(end) if end <= NODE_FILE_BYTES_MAX => Ok((offset, bytes)),
            _ => Err(self.cursor.wrong_at(at, format!("{bytes} bytes at {offset} are beyond the end of every file"))),
        }
    }

    fn part(&mut self) -> Result<NodePart> {
        let (offset, bytes) = self.range()?;
        let at = self.cursor.at();
        let place = self.long()?;
        if place.checked_add(bytes).is_none() {
            return Err(self.cursor.wrong_at(at, "a place beyond the end of every reserve"));
        }
        Ok(NodePart { offset, at: place, bytes })
    }

    fn end(&self) -> Result<()> {
        self.cursor.end()
    }
}
