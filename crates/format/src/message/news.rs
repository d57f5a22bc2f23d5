//! Announcements of a rank about its versions.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end, push_text, take_text};
use crate::{RunId, error::Result};

/// An announcement of a rank about a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The run, which all ranks agreed upon when they opened the session.
    pub run: RunId,
    /// The number of the message, counted from 0 for each rank and run, to detect lost and repeated
    /// messages.
    pub number: u64,
    /// How often the session was rewound in this run.
    pub era: u64,
    /// The announcement itself.
    pub tidings: Tidings,
}

/// What a rank announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tidings {
    /// This rank's part of a version is durable on a layer.
    Here {
        /// The layer, counted from 0.
        layer: u32,
        /// The version.
        version: u64,
    },
    /// This rank's part of a version will never be on a layer.
    Failed {
        /// The layer.
        layer: u32,
        /// The version.
        version: u64,
        /// Why.
        reason: String,
    },
    /// This rank saves no more versions, or rewinds the session.
    Over,
}

const HERE: u8 = 1;
const FAILED: u8 = 2;
const OVER: u8 = 3;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    run: U128,
    number: U64,
    era: U64,
    tidings: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Which {
    version: U64,
    layer: U32,
}

impl News {
    /// Encodes it. A reason of more than 4096 bytes is cut off.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::News);
        let tidings = match &self.tidings {
            Tidings::Here { .. } => HERE,
            Tidings::Failed { .. } => FAILED,
            Tidings::Over => OVER,
        };
        let (run, number, era) = (self.run.0.into(), self.number.into(), self.era.into());
        bytes.extend_from_slice(Head { run, number, era, tidings }.as_bytes());
        match &self.tidings {
            Tidings::Here { layer, version } => bytes.extend_from_slice(which(*layer, *version).as_bytes()),
            Tidings::Failed { layer, version, reason } => {
                bytes.extend_from_slice(which(*layer, *version).as_bytes());
                push_text(&mut bytes, reason);
            }
            Tidings::Over => {}
        }
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::News, bytes)?;
        let head: &Head = cursor.value()?;
        let tidings = match head.tidings {
            OVER => Tidings::Over,
            code @ (HERE | FAILED) => {
                let which: &Which = cursor.value()?;
                let (layer, version) = (which.layer.get(), which.version.get());
                match code {
                    HERE => Tidings::Here { layer, version },
                    _ => Tidings::Failed { layer, version, reason: take_text(&mut cursor)? },
                }
            }
            code => return Err(cursor.wrong(format!("news of kind {code}, which is not known"))),
        };
        cursor.end()?;
        Ok(Self { run: RunId(head.run.get()), number: head.number.get(), era: head.era.get(), tidings })
    }
}

fn which(layer: u32, version: u64) -> Which {
    Which { version: version.into(), layer: layer.into() }
}
