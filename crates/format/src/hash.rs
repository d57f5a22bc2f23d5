//! Hashes of blocks, checksums of structures, and the number of a run.

use std::fmt;

use md5::Digest;
use twox_hash::{XxHash3_64, XxHash3_128};

/// The hash of a block: 16 bytes.
pub type Hash = [u8; 16];

/// A kind of hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HashKind {
    /// XXH3 with 128 bits, the most significant byte first.
    #[default]
    Xxh3,
    /// The first 128 bits of BLAKE3.
    Blake3,
    /// MD5.
    Md5,
}

impl HashKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Xxh3, Self::Blake3, Self::Md5];

    /// The hash of a block, in the byte order in which common tools print it.
    pub fn hash(self, block: &[u8]) -> Hash {
        match self {
            Self::Xxh3 => XxHash3_128::oneshot(block).to_be_bytes(),
            Self::Blake3 => *blake3::hash(block).as_bytes().first_chunk().expect("a BLAKE3 hash has 32 bytes"),
            Self::Md5 => md5::Md5::digest(block).into(),
        }
    }

    /// Its number in a file.
    pub const fn code(self) -> u8 {
        match self {
            Self::Xxh3 => 1,
            Self::Blake3 => 2,
            Self::Md5 => 3,
        }
    }

    /// The kind with this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Xxh3),
            2 => Some(Self::Blake3),
            3 => Some(Self::Md5),
            _ => None,
        }
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xxh3 => "xxh3-128",
            Self::Blake3 => "blake3-128",
            Self::Md5 => "md5",
        })
    }
}

/// The identifier of a run: a random number that all its ranks share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u128);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The checksum of a header, an index or a manifest.
pub(crate) fn checksum(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// The checksum of the stored bytes of one compressed block. It is short because the hash of the
/// block is compared as well. It only has to detect changes that do not affect the decoded block.
pub(crate) fn short_checksum(bytes: &[u8]) -> u32 {
    XxHash3_64::oneshot(bytes) as u32
}
