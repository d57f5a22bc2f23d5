//! Messages by which ranks agree: whether a call succeeded, whether it is time to save, what can be
//! restored, and the result of a restore.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end, push_text, take_text};
use crate::{RunId, error::Result};

/// Whether a rank succeeded, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(pub std::result::Result<(), String>);

impl Answer {
    /// Encodes it. A reason of more than 4096 bytes is cut off.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Answer);
        bytes.push(self.0.is_err().into());
        if let Err(reason) = &self.0 {
            push_text(&mut bytes, reason);
        }
        end(bytes)
    }

    /// Decodes the answer of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Answer, bytes)?;
        let answer = match *cursor.value::<u8>()? {
            0 => Ok(()),
            1 => Err(take_text(&mut cursor)?),
            code => return Err(cursor.wrong(format!("an answer of kind {code}, which is not known"))),
        };
        cursor.end()?;
        Ok(Self(answer))
    }
}

/// Whether it is time to save, according to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due(pub bool);

impl Due {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Due);
        bytes.push(self.0.into());
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Due, bytes)?;
        let is_due = match *cursor.value::<u8>()? {
            0 => false,
            1 => true,
            _ => return Err(cursor.wrong("it says neither that it is time to save nor that it is not")),
        };
        cursor.end()?;
        Ok(Self(is_due))
    }
}

/// The versions that a rank can restore, in ascending order, each with the run that saved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates(pub Vec<(u64, RunId)>);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCandidate {
    version: U64,
    run: U128,
}

impl Candidates {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Candidates);
        bytes.extend_from_slice(U32::from(self.0.len() as u32).as_bytes());
        for (version, run) in &self.0 {
            bytes.extend_from_slice(RawCandidate { version: (*version).into(), run: run.0.into() }.as_bytes());
        }
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Candidates, bytes)?;
        let count = cursor.value::<U32>()?.get();
        let raw: &[RawCandidate] = cursor.slice(count.into())?;
        if raw.windows(2).any(|pair| pair[0].version >= pair[1].version) {
            return Err(cursor.wrong("the versions are not in ascending order"));
        }
        cursor.end()?;
        Ok(Self(raw.iter().map(|raw| (raw.version.get(), RunId(raw.run.get()))).collect()))
    }
}

/// The result of restoring a version on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The version.
    pub version: u64,
    /// The run that saved it.
    pub run: RunId,
    /// The result.
    pub fared: Fared,
}

/// The result of a restore on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fared {
    /// It has read the whole version, undamaged.
    Whole,
    /// All of its copies are damaged.
    Damaged,
    /// It cannot use the version: the version does not fit the program's memory, or something else
    /// failed.
    Refused,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawVerdict {
    version: U64,
    run: U128,
    fared: u8,
}

impl Verdict {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Verdict);
        let fared = match self.fared {
            Fared::Whole => 0,
            Fared::Damaged => 1,
            Fared::Refused => 2,
        };
        bytes.extend_from_slice(RawVerdict { version: self.version.into(), run: self.run.0.into(), fared }.as_bytes());
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Verdict, bytes)?;
        let raw: &RawVerdict = cursor.value()?;
        let fared = match raw.fared {
            0 => Fared::Whole,
            1 => Fared::Damaged,
            2 => Fared::Refused,
            code => return Err(cursor.wrong(format!("a verdict of kind {code}, which is not known"))),
        };
        cursor.end()?;
        Ok(Self { version: raw.version.get(), run: RunId(raw.run.get()), fared })
    }
}
