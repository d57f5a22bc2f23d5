//! Messages by which ranks share the blocks of one version, so that each block is written once.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end};
use crate::{Coding, Hash, Stored, error::Result};

/// Whether a rank can share the blocks of a version, and whether others may build upon its packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Whether the new blocks of this rank fit into host memory.
    pub fits: bool,
    /// How often this rank has lost packs.
    pub losses: u64,
}

/// The blocks that a rank is about to write: the hash and the length of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedBlocks(pub Vec<(Hash, u32)>);

/// The places of blocks in packs of the sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLocations(pub Vec<SharedLocation>);

/// The place of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLocation {
    /// Its hash.
    pub hash: Hash,
    /// Its length.
    pub bytes: u32,
    /// The number of the pack.
    pub number: u64,
    /// Its offset in that pack.
    pub at: u64,
    /// Its stored length and checksum.
    pub stored: Stored,
    /// How it is stored.
    pub coding: Coding,
}

/// The packs that the sender has made for a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPacks(pub Vec<SharedPack>);

/// A pack of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SharedPack {
    /// Its number.
    pub number: U64,
    /// The length of its file.
    pub file_bytes: U64,
    /// The checksum of its index.
    pub index_check: U128,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSharing {
    fits: u8,
    losses: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBlock {
    hash: Hash,
    bytes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLocation {
    hash: Hash,
    bytes: U32,
    number: U64,
    at: U64,
    stored_bytes: U32,
    stored_check: U32,
    coding: u8,
    shuffle: u8,
}

impl Sharing {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Sharing);
        bytes.extend_from_slice(RawSharing { fits: self.fits.into(), losses: self.losses.into() }.as_bytes());
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Sharing, bytes)?;
        let raw: &RawSharing = cursor.value()?;
        if raw.fits > 1 {
            return Err(cursor.wrong("neither that it fits nor that it does not"));
        }
        cursor.end()?;
        Ok(Self { fits: raw.fits == 1, losses: raw.losses.get() })
    }
}

/// Encodes a list, with its length first.
fn encode_list<T: IntoBytes + Immutable>(kind: Kind, entries: impl ExactSizeIterator<Item = T>) -> Vec<u8> {
    let mut bytes = begin(kind);
    bytes.extend_from_slice(U64::from(entries.len() as u64).as_bytes());
    entries.for_each(|entry| bytes.extend_from_slice(entry.as_bytes()));
    end(bytes)
}

fn decode_list<T, E>(kind: Kind, bytes: &[u8], entry: impl Fn(&T) -> std::result::Result<E, String>) -> Result<Vec<E>>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let mut cursor = body(kind, bytes)?;
    let count = cursor.value::<U64>()?.get();
    let at = cursor.at();
    let raw: &[T] = cursor.slice(count)?;
    cursor.end()?;
    raw.iter().map(|raw| entry(raw).map_err(|problem| cursor.wrong_at(at, problem))).collect()
}

impl SharedBlocks {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        encode_list(
            Kind::SharedBlocks,
            self.0.iter().map(|(hash, bytes)| RawBlock { hash: *hash, bytes: (*bytes).into() }),
        )
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode_list(Kind::SharedBlocks, bytes, |raw: &RawBlock| Ok((raw.hash, raw.bytes.get()))).map(Self)
    }
}

impl SharedLocations {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let raw = |location: &SharedLocation| RawLocation {
            hash: location.hash,
            bytes: location.bytes.into(),
            number: location.number.into(),
            at: location.at.into(),
            stored_bytes: location.stored.bytes.into(),
            stored_check: location.stored.check.into(),
            coding: location.coding.kind().code(),
            shuffle: location.coding.shuffle(),
        };
        encode_list(Kind::SharedLocations, self.0.iter().map(raw))
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let location = |raw: &RawLocation| {
            let coding = Coding::from_codes(raw.coding, raw.shuffle);
            let coding =
                coding.ok_or_else(|| format!("coding {} with shuffle {} is not known", raw.coding, raw.shuffle))?;
            Ok(SharedLocation {
                hash: raw.hash,
                bytes: raw.bytes.get(),
                number: raw.number.get(),
                at: raw.at.get(),
                stored: Stored { bytes: raw.stored_bytes.get(), check: raw.stored_check.get() },
                coding,
            })
        };
        decode_list(Kind::SharedLocations, bytes, location).map(Self)
    }
}

impl SharedPacks {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        encode_list(Kind::SharedPacks, self.0.iter().copied())
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode_list(Kind::SharedPacks, bytes, |raw: &SharedPack| Ok(*raw)).map(Self)
    }
}
