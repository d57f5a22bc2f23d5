//! A pack: its header page, and the layout of the file.

use std::{fmt, ops::Range};

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use crate::{
    HashKind, Index, PACK_FORMAT, RunId,
    cursor::{Cursor, check_start},
    error::{Error, Problem, Result, Structure},
    hash::checksum,
};

/// The size of a page. The header of a pack is one page, and its length is a multiple of it.
pub const PAGE_BYTES: usize = 4096;
/// The largest pack.
pub const FILE_BYTES_MAX: u64 = 1 << 56;
/// The largest index.
pub const INDEX_BYTES_MAX: u64 = 1 << 32;

const MAGIC: [u8; 8] = *b"OUTCPACK";
const PAGE: u64 = PAGE_BYTES as u64;
/// How many bytes the checksum of a header page covers.
const CHECKED_BYTES: usize = PAGE_BYTES - size_of::<U128>();

/// The identifier of a pack in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackId {
    /// The rank that wrote it.
    pub rank: u32,
    /// Its number among the packs of that rank.
    pub number: u64,
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack {} of rank {}", self.number, self.rank)
    }
}

/// Where a pack comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackOrigin {
    /// The run that wrote it.
    pub run: RunId,
    /// Its rank and number.
    pub id: PackId,
    /// The version for which it was made.
    pub version: u64,
    /// How its blocks are hashed.
    pub hash_kind: HashKind,
}

/// The header of a pack: its first page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackHeader {
    origin: PackOrigin,
    payload_bytes: u64,
    index_at: u64,
    index_bytes: u64,
    index_check: u128,
}

/// The first page of a pack, byte by byte.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Page {
    magic: [u8; 8],
    format: U32,
    rank: U32,
    run: U128,
    number: U64,
    version: U64,
    payload_bytes: U64,
    index_at: U64,
    index_bytes: U64,
    index_check: U128,
    hash_kind: u8,
    zero: [u8; CHECKED_BYTES - 89],
    check: U128,
}

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);

impl PackHeader {
    /// The header of a pack with a payload of `payload_bytes` bytes, and with the encoded `index`
    /// at offset `index_at` of the file.
    ///
    /// [`seal`](Self::seal) does this, and everything else, for a pack that is in one piece of
    /// memory.
    pub fn new(origin: PackOrigin, payload_bytes: u64, index_at: u64, index: &[u8]) -> Result<Self> {
        let index_bytes = index.len() as u64;
        check_layout(payload_bytes, index_at, index_bytes).map_err(|(_, problem)| unfit(problem))?;
        Ok(Self { origin, payload_bytes, index_at, index_bytes, index_check: checksum(index) })
    }

    /// Completes a pack in memory. The caller has put the payload at [`PAGE_BYTES`]. This writes
    /// the index after it, zeros up to a whole number of pages, and the header. The pack is the
    /// first [`file_bytes`](Self::file_bytes) of `file`; what follows stays unchanged.
    pub fn seal(origin: PackOrigin, payload_bytes: u64, index: &Index, file: &mut [u8]) -> Result<Self> {
        let size = index.size();
        let (file_bytes, room) = (size.file_bytes(payload_bytes), file.len());
        let Some(file) = usize::try_from(file_bytes).ok().and_then(|file_bytes| file.get_mut(..file_bytes)) else {
            return Err(unfit(format!("it has {file_bytes} bytes, and there is room for {room}")));
        };
        index.check_own(origin.id, payload_bytes)?;
        // Both are inside the slice.
        let index_start = PAGE_BYTES + payload_bytes as usize;
        let index_end = index_start + size.bytes() as usize;
        index.encode_into(&mut file[index_start..index_end])?;
        file[index_end..].fill(0);
        let header = Self::new(origin, payload_bytes, index_start as u64, &file[index_start..index_end])?;
        file[..PAGE_BYTES].copy_from_slice(&header.encode());
        Ok(header)
    }

    /// Encodes the first page of the file.
    pub fn encode(&self) -> [u8; PAGE_BYTES] {
        let mut page = Page::new_zeroed();
        page.magic = MAGIC;
        page.format = PACK_FORMAT.into();
        page.rank = self.origin.id.rank.into();
        page.run = self.origin.run.0.into();
        page.number = self.origin.id.number.into();
        page.version = self.origin.version.into();
        page.payload_bytes = self.payload_bytes.into();
        page.index_at = self.index_at.into();
        page.index_bytes = self.index_bytes.into();
        page.index_check = self.index_check.into();
        page.hash_kind = self.origin.hash_kind.code();
        page.check = checksum(&page.as_bytes()[..CHECKED_BYTES]).into();
        zerocopy::transmute!(page)
    }

    /// Decodes the first page of a file. Ignores what follows.
    ///
    /// The caller must compare the length of the file with [`file_bytes`](Self::file_bytes), and
    /// its name with [`origin`](Self::origin).
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::PackHeader;
        check_start(structure, MAGIC, PACK_FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let page: &Page = cursor.value()?;
        let (written, computed) = (page.check.get(), checksum(&page.as_bytes()[..CHECKED_BYTES]));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        let hash_kind = HashKind::from_code(page.hash_kind)
            .ok_or_else(|| cursor.wrong_at(88, format!("hash kind {} is not known", page.hash_kind)))?;
        if let Some(first) = page.zero.iter().position(|&byte| byte != 0) {
            return Err(cursor.wrong_at(89 + first as u64, "an unused byte is not zero"));
        }
        let header = Self {
            origin: PackOrigin {
                run: RunId(page.run.get()),
                id: PackId { rank: page.rank.get(), number: page.number.get() },
                version: page.version.get(),
                hash_kind,
            },
            payload_bytes: page.payload_bytes.get(),
            index_at: page.index_at.get(),
            index_bytes: page.index_bytes.get(),
            index_check: page.index_check.get(),
        };
        check_layout(header.payload_bytes, header.index_at, header.index_bytes)
            .map_err(|(at, problem)| cursor.wrong_at(at, problem))?;
        Ok(header)
    }

    /// Decodes the index, which is at [`index_range`](Self::index_range) of the file.
    pub fn decode_index(&self, bytes: &[u8]) -> Result<Index> {
        let structure = Structure::PackIndex;
        if (bytes.len() as u64) < self.index_bytes {
            return Err(Error::Short { structure, at: 0, needed: self.index_bytes, available: bytes.len() as u64 });
        }
        let computed = checksum(bytes);
        if computed != self.index_check {
            return Err(Error::Changed { structure, written: self.index_check, computed });
        }
        Index::decode(bytes, self.origin.id, self.payload_bytes)
    }

    /// Where it comes from.
    pub const fn origin(&self) -> &PackOrigin {
        &self.origin
    }

    /// The range of the file that contains the stored blocks.
    pub const fn payload_range(&self) -> Range<u64> {
        PAGE..PAGE + self.payload_bytes
    }

    /// The range of the file that contains the index.
    pub const fn index_range(&self) -> Range<u64> {
        self.index_at..self.index_at + self.index_bytes
    }

    /// The checksum of the index. Manifests identify a pack by it.
    pub const fn index_check(&self) -> u128 {
        self.index_check
    }

    /// The length of the file.
    pub const fn file_bytes(&self) -> u64 {
        (self.index_at + self.index_bytes).next_multiple_of(PAGE)
    }

    /// The ranges of the file that are not in use, in ascending order: no block of `index`, the
    /// index of this pack, lies there. In an undamaged pack they are zero.
    pub fn zero_ranges(&self, index: &Index) -> Vec<Range<u64>> {
        let mut used = index.own_ranges(self.origin.id);
        used.push(self.index_range());
        used.push(self.file_bytes()..self.file_bytes());
        used.sort_unstable_by_key(|range| range.start);
        let mut covered = PAGE;
        let mut unused = Vec::new();
        for range in used {
            if covered < range.start {
                unused.push(covered..range.start);
            }
            covered = covered.max(range.end);
        }
        unused
    }
}

/// Checks the layout of a file. An error has the offset of the wrong field in the header.
fn check_layout(payload_bytes: u64, index_at: u64, index_bytes: u64) -> std::result::Result<(), (u64, Problem)> {
    if payload_bytes > FILE_BYTES_MAX {
        return Err((48, format!("a payload of {payload_bytes} bytes; at most {FILE_BYTES_MAX} are possible").into()));
    }
    let end = PAGE + payload_bytes;
    if index_at < end || index_at - end >= PAGE {
        return Err((
            56,
            format!("the index is at byte {index_at}; it begins less than a page after byte {end}").into(),
        ));
    }
    if index_bytes > INDEX_BYTES_MAX {
        return Err((64, format!("an index of {index_bytes} bytes; at most {INDEX_BYTES_MAX} are possible").into()));
    }
    if (index_at + index_bytes).next_multiple_of(PAGE) > FILE_BYTES_MAX {
        return Err((
            64,
            format!("the index ends at byte {}; at most {FILE_BYTES_MAX} are possible", index_at + index_bytes).into(),
        ));
    }
    Ok(())
}

fn unfit(problem: impl Into<Problem>) -> Error {
    Error::unfit(Structure::PackHeader, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocks, Coding, Extent, IndexRegion, IndexSize};

    const ORIGIN: PackOrigin =
        PackOrigin { run: RunId(1), id: PackId { rank: 0, number: 7 }, version: 42, hash_kind: HashKind::Xxh3 };

    fn index(at: u64) -> Index {
        let mut region = IndexRegion::new("field", Blocks::new(512, 256).unwrap()).unwrap();
        let extent = Extent { first_block: 0, count: 2, pack: ORIGIN.id, at, coding: Coding::RAW };
        region.push(extent, &[[1; 16], [2; 16]], &[]).unwrap();
        Index::new(vec![region]).unwrap()
    }

    #[test]
    fn the_room_for_a_pack_is_known_before() {
        let size = IndexSize { regions: 1, name_bytes: 5, extents: 1, blocks: 2, coded_blocks: 0 };
        assert_eq!(size, index(PAGE).size());
        let mut file = vec![0; size.file_bytes(512) as usize];
        assert_eq!(PackHeader::seal(ORIGIN, 512, &index(PAGE), &mut file).unwrap().file_bytes(), file.len() as u64);
        let error = PackHeader::seal(ORIGIN, 512, &index(PAGE), &mut file[1..]).unwrap_err();
        assert!(error.to_string().contains("it has 8192 bytes, and there is room for 8191"), "{error}");
        // Any count can be asked for.
        let size = IndexSize { regions: u64::MAX, blocks: u64::MAX, ..size };
        assert_eq!((size.bytes(), size.file_bytes(u64::MAX)), (u64::MAX, u64::MAX));
        assert!(PackHeader::seal(ORIGIN, u64::MAX, &index(PAGE), &mut file).is_err());
    }

    #[test]
    fn blocks_beyond_the_payload_are_not_written() {
        let mut file = vec![0; 3 * PAGE_BYTES];
        assert!(PackHeader::seal(ORIGIN, 512, &index(PAGE), &mut file).is_ok());
        for (payload_bytes, at) in [(511, PAGE), (512, PAGE + 1)] {
            let outcome = PackHeader::seal(ORIGIN, payload_bytes, &index(at), &mut file);
            assert!(matches!(outcome, Err(Error::Unfit { structure: Structure::PackIndex, .. })));
        }
    }

    #[test]
    fn extents_are_refused_that_no_reader_would_take() {
        let mut region = IndexRegion::new("field", Blocks::new(512, 256).unwrap()).unwrap();
        let good = Extent { first_block: 1, count: 1, pack: ORIGIN.id, at: PAGE, coding: Coding::RAW };
        let lz4 = Coding::new(crate::CodingKind::Lz4, 0);
        let hash = [[0; 16]];
        assert!(region.push(good, &[], &[]).is_err());
        assert!(region.push(Extent { coding: lz4, ..good }, &hash, &[]).is_err());
        assert!(region.push(Extent { coding: lz4, ..good }, &hash, &[crate::Stored { bytes: 257, check: 0 }]).is_err());
        assert!(region.push(Extent { first_block: 2, ..good }, &hash, &[]).is_err());
        assert!(region.push(Extent { at: 0, ..good }, &hash, &[]).is_err());
        region.push(good, &hash, &[]).unwrap();
        assert!(region.push(Extent { first_block: 0, ..good }, &hash, &[]).is_err());
        // The refused extent has left nothing behind.
        assert_eq!((region.extents().len(), region.block_count(), region.find(0)), (1, 1, None));
        assert!(Index::new(vec![region.clone(), region]).is_err());
    }
}
