//! Segments: the files in which processes of one machine share memory, and who has which part of
//! it.
//!
//! A segment begins with a [`SegmentHeader`], which never changes. Two tables follow, which do, a
//! number at a time: by owner, how many chunks it waits for; by chunk, its owner. Then the chunks.
//! Owners are numbered from 1; 0 is nobody. What an owner is, and who may write when, is not the
//! format's business: whoever reads the tables believes no number without asking whether its owner
//! lives.

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
/// So many owners at most in one segment.
pub const SEGMENT_OWNERS_MAX: u32 = 1024;
/// Chunks begin at, and are, multiples of this: a huge page.
pub const CHUNK_UNIT_BYTES: u64 = 2 << 20;
/// The longest chunk.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;

const MAGIC: [u8; 8] = *b"OUTCSHAR";
/// The number of its format.
const FORMAT: u32 = 1;
const WANTED_AT: u64 = 64;
const OWNERS_AT: u64 = WANTED_AT + 4 * (SEGMENT_OWNERS_MAX as u64 + 1);

/// How a segment is divided.
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

    /// The first bytes of a segment.
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

    /// Reads the first bytes of a segment; what follows them is not looked at.
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

    /// How many chunks there are.
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The bytes of all chunks together.
    pub const fn bytes(&self) -> u64 {
        self.chunks as u64 * self.chunk_bytes
    }

    /// Where the number of chunks lies that `owner` waits for.
    pub const fn wanted_at(&self, owner: u32) -> u64 {
        WANTED_AT + 4 * owner as u64
    }

    /// Where the owner of a chunk lies.
    pub const fn owner_at(&self, chunk: u32) -> u64 {
        OWNERS_AT + 4 * chunk as u64
    }

    /// The bytes of the header and of both tables.
    pub const fn table_bytes(&self) -> u64 {
        self.owner_at(self.chunks)
    }

    /// Where a chunk begins.
    pub const fn chunk_at(&self, chunk: u32) -> u64 {
        self.table_bytes().next_multiple_of(CHUNK_UNIT_BYTES) + chunk as u64 * self.chunk_bytes
    }

    /// The length of the file.
    pub const fn file_bytes(&self) -> u64 {
        self.chunk_at(self.chunks)
    }

    /// By owner the number of chunks that it waits for: at most as many as there are. `bytes` are
    /// those from [`wanted_at`](Self::wanted_at) 0 up to [`owner_at`](Self::owner_at) 0.
    pub fn decode_wanted(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let wanted = numbers(bytes, SEGMENT_OWNERS_MAX + 1)?;
        Ok(wanted.iter().map(|number| number.get().min(self.chunks)).collect())
    }

    /// By chunk its owner; a number that no owner can have is nobody. `bytes` are those from
    /// [`owner_at`](Self::owner_at) 0 up to [`table_bytes`](Self::table_bytes).
    pub fn decode_owners(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let owners = numbers(bytes, self.chunks)?;
        Ok(owners.iter().map(|number| if number.get() > SEGMENT_OWNERS_MAX { 0 } else { number.get() }).collect())
    }
}

/// One entry of a table.
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
