//! What ranks tell each other about the blocks of one version, so that each block is written once.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end};
use crate::{Coding, Hash, Stored, error::Result};

/// Whether a rank can share the blocks of a version, and what may keep others from building upon
/// its packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// All that the version has of this rank fits into host memory.
    pub fits: bool,
    /// How often packs of this rank were lost.
    pub losses: u64,
}

/// The blocks that a rank is about to write: the hash and the length of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedBlocks(pub Vec<(Hash, u32)>);

/// Where blocks lie in packs of the rank that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLocations(pub Vec<SharedLocation>);

/// Where one block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedLocation {
    /// Its hash.
    pub hash: Hash,
    /// Its length.
    pub bytes: u32,
    /// The number of the pack.
    pub number: u64,
    /// Where in it.
    pub at: u64,
    /// How long it is there, and its checksum.
    pub stored: Stored,
    /// How it is stored.
    pub coding: Coding,
}

/// The packs that a rank has made for a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPacks(pub Vec<SharedPack>);

/// A pack of the rank that says so.
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
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Sharing);
        bytes.extend_from_slice(RawSharing { fits: self.fits.into(), losses: self.losses.into() }.as_bytes());
        end(bytes)
    }

    /// Reads what another rank has said.
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

/// A list of entries with their number before it.
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
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_list(
            Kind::SharedBlocks,
            self.0.iter().map(|(hash, bytes)| RawBlock { hash: *hash, bytes: (*bytes).into() }),
        )
    }

    /// Reads what another rank is about to write.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode_list(Kind::SharedBlocks, bytes, |raw: &RawBlock| Ok((raw.hash, raw.bytes.get()))).map(Self)
    }
}

impl SharedLocations {
    /// Its bytes.
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

    /// Reads where the blocks of another rank lie.
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
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_list(Kind::SharedPacks, self.0.iter().copied())
    }

    /// Reads which packs another rank has made.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode_list(Kind::SharedPacks, bytes, |raw: &SharedPack| Ok(*raw)).map(Self)
    }
}
