//! Shards: what a node keeps of a file of another node.
//!
//! A file is cut into **stripes** of `data` chunks each. From the chunks of a stripe, further ones
//! are computed (Reed-Solomon), so that a stripe has `count` chunks, any `data` of which give all
//! bytes back. A shard is a file with one chunk of each stripe: a header, and then the chunks, each
//! with a checksum that also depends on the file and on the place.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64, U128},
};

use crate::{
    FILE_BYTES_MAX, MARK_NAME,
    cursor::{Cursor, check_start},
    error::{Error, Result, Structure},
    hash::checksum,
    names::{parse_pack_name, parse_version_name},
};

/// The directory, beside the sessions of a store, with the shards of other nodes.
pub const SHARDS_DIR: &str = ".shards";
/// The length of the header of a shard.
pub const SHARD_HEADER_BYTES: usize = size_of::<Raw>();
/// The length of a chunk in all stripes of a file but the last.
pub const SHARD_CHUNK_BYTES: u32 = 64 << 10;
/// The length of a checksum after a chunk.
pub const SHARD_CHECK_BYTES: u32 = 16;
/// The largest number of shards of a file.
pub const SHARDS_MAX: u16 = 254;

const MAGIC: [u8; 8] = *b"OUTCSHRD";
const FORMAT: u32 = 1;
/// Chunks have lengths that are multiples of this.
const CHUNK_UNIT_BYTES: u64 = 64;
const CHECK_BYTES: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U32,
    owner: U32,
    id: U128,
    generation: U64,
    bytes: U64,
    check: U128,
    data: U16,
    count: U16,
    index: U16,
    zero: U16,
    header_check: U128,
}

/// A file that is kept as shards. Shards belong together if all of this is equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardedFile {
    /// Files of one name and owner that are written later have a higher one.
    pub generation: u64,
    /// A random number, chosen when it was written.
    pub id: u128,
    /// The rank that it belongs to.
    pub owner: u32,
    /// Its length.
    pub bytes: u64,
    /// The checksum of all its bytes.
    pub check: u128,
    /// How many chunks of a stripe are its own bytes; as many shards give it back.
    pub data: u16,
    /// How many shards it has.
    pub count: u16,
}

/// The header of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardHeader {
    /// The file.
    pub file: ShardedFile,
    /// Which of its shards this is, from 0. The first ones have its own bytes.
    pub index: u16,
}

impl ShardedFile {
    /// The length of a full stripe.
    pub fn stripe_bytes(&self) -> u64 {
        u64::from(self.data) * u64::from(SHARD_CHUNK_BYTES)
    }

    /// How many stripes it has.
    pub fn stripes(&self) -> u64 {
        self.bytes.div_ceil(self.stripe_bytes())
    }

    /// How many bytes of the file are in a stripe.
    pub fn bytes_in(&self, stripe: u64) -> u64 {
        self.bytes.saturating_sub(stripe.saturating_mul(self.stripe_bytes())).min(self.stripe_bytes())
    }

    /// The length of the chunks of a stripe. Beyond the end of the file they have zeros.
    pub fn chunk_bytes(&self, stripe: u64) -> usize {
        let shortest = self.bytes_in(stripe).div_ceil(u64::from(self.data));
        shortest.next_multiple_of(CHUNK_UNIT_BYTES) as usize
    }

    /// Where a chunk begins in its shard. Its checksum follows it.
    pub fn chunk_at(&self, stripe: u64) -> u64 {
        SHARD_HEADER_BYTES as u64 + stripe * u64::from(SHARD_CHUNK_BYTES + SHARD_CHECK_BYTES)
    }

    /// The length of a shard.
    pub fn shard_bytes(&self) -> u64 {
        match self.stripes().checked_sub(1) {
            None => SHARD_HEADER_BYTES as u64,
            Some(last) => self.chunk_at(last) + self.chunk_bytes(last) as u64 + u64::from(SHARD_CHECK_BYTES),
        }
    }

    /// The checksum of a chunk.
    pub fn chunk_check(&self, stripe: u64, index: u16, chunk: &[u8]) -> u128 {
        let seed = (self.id as u64) ^ (stripe << 16 | u64::from(index)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        twox_hash::XxHash3_128::oneshot_with_seed(seed, chunk)
    }
}

impl ShardHeader {
    /// Encodes it.
    pub fn encode(&self) -> [u8; SHARD_HEADER_BYTES] {
        let ShardedFile { generation, id, owner, bytes, check, data, count } = self.file;
        let mut raw = Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            owner: owner.into(),
            id: id.into(),
            generation: generation.into(),
            bytes: bytes.into(),
            check: check.into(),
            data: data.into(),
            count: count.into(),
            index: self.index.into(),
            zero: 0.into(),
            header_check: 0.into(),
        };
        raw.header_check = checksum(&raw.as_bytes()[..SHARD_HEADER_BYTES - CHECK_BYTES]).into();
        let mut bytes = [0; SHARD_HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// Decodes the beginning of a shard.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Shard;
        check_start(structure, MAGIC, FORMAT, bytes)?;
        let mut cursor = Cursor::new(structure, bytes);
        let raw: &Raw = cursor.value()?;
        let computed = checksum(&raw.as_bytes()[..SHARD_HEADER_BYTES - CHECK_BYTES]);
        let written = raw.header_check.get();
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        let file = ShardedFile {
            generation: raw.generation.get(),
            id: raw.id.get(),
            owner: raw.owner.get(),
            bytes: raw.bytes.get(),
            check: raw.check.get(),
            data: raw.data.get(),
            count: raw.count.get(),
        };
        let index = raw.index.get();
        if file.data == 0 || file.count < file.data || file.count > SHARDS_MAX || index >= file.count {
            let problem = format!("shard {index} of {}, of which {} are needed", file.count, file.data);
            return Err(cursor.wrong_at(64, problem));
        }
        if file.bytes > FILE_BYTES_MAX || raw.zero.get() != 0 {
            return Err(cursor.wrong_at(40, format!("a file of {} bytes, or something that is not zero", file.bytes)));
        }
        Ok(Self { file, index })
    }
}

/// The name of a shard of a file.
pub fn shard_name(name: &str, index: u16) -> String {
    format!("{name}.{index:03}")
}

/// The name of a file and the index of the shard with this name. Only packs, manifests and marks
/// have shards.
pub fn parse_shard_name(shard: &str) -> Option<(&str, u16)> {
    let (name, index) = shard.rsplit_once('.')?;
    let is_number = index.len() == 3 && index.bytes().all(|byte| byte.is_ascii_digit());
    let index = index.parse().ok().filter(|index| is_number && *index < SHARDS_MAX)?;
    let is_known = parse_pack_name(name).is_some() || parse_version_name(name).is_some() || name == MARK_NAME;
    is_known.then_some((name, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: u64, data: u16) -> ShardedFile {
        ShardedFile { generation: 1, id: 2, owner: 3, bytes, check: 4, data, count: data + 1 }
    }

    #[test]
    fn chunks_hold_all_bytes_and_little_more() {
        for data in [1, 2, 3, 7, 200] {
            let stripe = file(0, data).stripe_bytes();
            for bytes in [0, 1, 63, 64, 65, stripe - 1, stripe, stripe + 1, 5 * stripe + 12_345] {
                let file = file(bytes, data);
                let held: u64 = (0..file.stripes()).map(|it| file.chunk_bytes(it) as u64 * u64::from(data)).sum();
                assert!(held >= bytes && held < bytes + 64 * u64::from(data), "{bytes} in {held}");
                let all: u64 = (0..file.stripes()).map(|it| file.chunk_bytes(it) as u64 + 16).sum();
                assert_eq!(file.shard_bytes(), SHARD_HEADER_BYTES as u64 + all);
                assert_eq!((0..file.stripes()).map(|it| file.bytes_in(it)).sum::<u64>(), bytes);
            }
        }
    }

    #[test]
    fn a_chunk_in_another_place_has_another_checksum() {
        let (file, other) = (file(1 << 20, 2), ShardedFile { id: 3, ..file(1 << 20, 2) });
        let checks = [
            file.chunk_check(0, 0, b"chunk"),
            file.chunk_check(1, 0, b"chunk"),
            file.chunk_check(0, 1, b"chunk"),
            other.chunk_check(0, 0, b"chunk"),
        ];
        assert!((0..4).all(|at| (0..at).all(|before| checks[at] != checks[before])));
    }

    #[test]
    fn only_files_of_a_store_have_shards() {
        for name in ["pack-00000000000000000007", "version-00000000000000000042", "runs"] {
            assert_eq!(parse_shard_name(&shard_name(name, 7)), Some((name, 7)));
        }
        for name in ["lock.000", "pack-7.000", "runs", "runs.1", "runs.0001", "runs.254", "runs.+01", "../runs.000"] {
            assert_eq!(parse_shard_name(name), None, "{name}");
        }
    }
}
