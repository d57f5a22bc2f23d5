//! Segments: the files through which processes of one machine share memory, with the owner of each
//! part.
//!
//! A segment starts with a [`SegmentHeader`], which never changes. Two tables follow, whose entries
//! change one at a time: by owner, how many chunks it waits for; and by chunk, its owner. Then come
//! the chunks. Owners are numbered from 1; 0 means none. The format does not define what an owner
//! is, or who may write when. A reader of the tables must check that an owner is alive before it
//! trusts its entries.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use crate::{
    cursor::{Cursor, check_start},
    error::{Error, Problem, Result, Structure},
    hash::checksum,
};

/// The length of a [`SegmentHeader`].
pub const SEGMENT_HEADER_BYTES: usize = size_of::<Raw>();
/// The largest number of owners of one segment.
pub const SEGMENT_OWNERS_MAX: u32 = 1024;
/// Chunks start at multiples of this size, and their size is a multiple of it: a huge page.
pub const CHUNK_UNIT_BYTES: u64 = 2 << 20;
/// The largest chunk.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;

const MAGIC: [u8; 8] = *b"OUTCSHAR";
/// Its format number.
const FORMAT: u32 = 1;
const WANTED_AT: u64 = 64;
const OWNERS_AT: u64 = WANTED_AT + 4 * (SEGMENT_OWNERS_MAX as u64 + 1);

/// The layout of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    chunk_bytes: u64,
    chunks: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    owners: U32,
    chunk_bytes: U64,
    chunks: U32,
    zero: [u8; 4],
    check: U128,
}

impl SegmentHeader {
    /// The header of a segment of `chunks` chunks of `chunk_bytes` each.
    pub fn new(chunk_bytes: u64, chunks: u32) -> Result<Self> {
        check(chunk_bytes, chunks).map_err(|(_, problem)| Error::unfit(Structure::Segment, problem))?;
        Ok(Self { chunk_bytes, chunks })
    }

    /// Encodes the header of a segment.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            owners: SEGMENT_OWNERS_MAX.into(),
            chunk_bytes: self.chunk_bytes.into(),
            chunks: self.chunks.into(),
            zero: [0; 4],
            check: 0.into(),
        };
        raw.check = checksum(&raw.as_bytes()[..SEGMENT_HEADER_BYTES - 16]).into();
        zerocopy::transmute!(raw)
    }

    /// Decodes the header of a segment. Ignores what follows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Segment;
        check_start(structure, MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &Raw = cursor.value()?;
        let (written, computed) = (raw.check.get(), checksum(&raw.as_bytes()[..SEGMENT_HEADER_BYTES - 16]));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        if raw.owners.get() != SEGMENT_OWNERS_MAX {
            return Err(cursor.wrong_at(12, format!("{} owners and not {SEGMENT_OWNERS_MAX}", raw.owners)));
        }
        let (chunk_bytes, chunks) = (raw.chunk_bytes.get(), raw.chunks.get());
        check(chunk_bytes, chunks).map_err(|(at, problem)| cursor.wrong_at(at, problem))?;
        if raw.zero != [0; 4] {
            return Err(cursor.wrong_at(28, "an unused byte is not zero"));
        }
        Ok(Self { chunk_bytes, chunks })
    }

    /// The length of a chunk.
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The number of chunks.
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The total size of all chunks.
    pub const fn bytes(&self) -> u64 {
        self.chunks as u64 * self.chunk_bytes
    }

    /// The offset of the number of chunks that `owner` waits for.
    pub const fn wanted_at(&self, owner: u32) -> u64 {
        WANTED_AT + 4 * owner as u64
    }

    /// The offset of the owner of a chunk.
    pub const fn owner_at(&self, chunk: u32) -> u64 {
        OWNERS_AT + 4 * chunk as u64
    }

    /// The length of the header and both tables.
    pub const fn table_bytes(&self) -> u64 {
        self.owner_at(self.chunks)
    }

    /// The offset of a chunk.
    pub const fn chunk_at(&self, chunk: u32) -> u64 {
        self.table_bytes().next_multiple_of(CHUNK_UNIT_BYTES) + chunk as u64 * self.chunk_bytes
    }

    /// The length of the file.
    pub const fn file_bytes(&self) -> u64 {
        self.chunk_at(self.chunks)
    }

    /// By owner: how many chunks it waits for, at most as many as there are. `bytes` are those from
    /// [`wanted_at`](Self::wanted_at) 0 up to [`owner_at`](Self::owner_at) 0.
    pub fn decode_wanted(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let wanted = numbers(bytes, SEGMENT_OWNERS_MAX + 1)?;
        Ok(wanted.iter().map(|number| number.get().min(self.chunks)).collect())
    }

    /// By chunk: its owner. An invalid owner counts as none. `bytes` are those from
    /// [`owner_at`](Self::owner_at) 0 up to [`table_bytes`](Self::table_bytes).
    pub fn decode_owners(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let owners = numbers(bytes, self.chunks)?;
        Ok(owners.iter().map(|number| if number.get() > SEGMENT_OWNERS_MAX { 0 } else { number.get() }).collect())
    }
}

/// Encodes one entry of a table.
pub const fn encode_segment_number(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn numbers(bytes: &[u8], count: u32) -> Result<&[U32]> {
    let mut cursor = Cursor::new(Structure::Segment, bytes);
    let numbers = cursor.slice(count.into())?;
    cursor.end()?;
    Ok(numbers)
}

fn check(chunk_bytes: u64, chunks: u32) -> std::result::Result<(), (u64, Problem)> {
    let is_length = chunk_bytes > 0 && chunk_bytes <= CHUNK_BYTES_MAX && chunk_bytes.is_multiple_of(CHUNK_UNIT_BYTES);
    if !is_length {
        return Err((16, format!("a chunk of {chunk_bytes} bytes cannot be").into()));
    }
    if chunks == 0 {
        return Err((24, "there are no chunks".into()));
    }
    Ok(())
}
