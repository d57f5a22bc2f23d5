//! What a rank has found in its directories. All ranks exchange this when a session is opened.

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end, push_runs, take_runs};
use crate::{RunId, cursor::Cursor, error::Result};

/// The largest number of directories.
const LAYERS_MAX: u32 = 64;

/// What one rank has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// A random number. That of rank 0 becomes the identifier of the run.
    pub proposal: RunId,
    /// By layer: what it found there.
    pub layers: Vec<HeldLayer>,
}

/// What one rank has found in one directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldLayer {
    /// The runs that are known to have used this directory.
    pub runs: BTreeSet<RunId>,
    /// The versions that it has there.
    pub versions: BTreeMap<u64, Held>,
    /// Versions whose manifests cannot be read.
    pub unreadable: BTreeSet<u64>,
}

/// A version that one rank has in one directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The run that saved it.
    pub run: RunId,
    /// When it was saved, in nanoseconds since 1970.
    pub saved_at_unix_ns: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LayerHead {
    runs: U32,
    versions: U32,
    unreadable: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeld {
    version: U64,
    run: U128,
    saved_at_unix_ns: U64,
}

impl Holdings {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Holdings);
        bytes.extend_from_slice(U128::from(self.proposal.0).as_bytes());
        bytes.extend_from_slice(U32::from(self.layers.len() as u32).as_bytes());
        for layer in &self.layers {
            let head = LayerHead {
                runs: (layer.runs.len() as u32).into(),
                versions: (layer.versions.len() as u32).into(),
                unreadable: (layer.unreadable.len() as u32).into(),
            };
            bytes.extend_from_slice(head.as_bytes());
            push_runs(&mut bytes, &layer.runs);
            for (version, held) in &layer.versions {
                let raw = RawHeld {
                    version: (*version).into(),
                    run: held.run.0.into(),
                    saved_at_unix_ns: held.saved_at_unix_ns.into(),
                };
                bytes.extend_from_slice(raw.as_bytes());
            }
            for version in &layer.unreadable {
                bytes.extend_from_slice(U64::from(*version).as_bytes());
            }
        }
        end(bytes)
    }

    /// Decodes the message of another rank.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = body(Kind::Holdings, bytes)?;
        let proposal = RunId(cursor.value::<U128>()?.get());
        let count = cursor.value::<U32>()?.get();
        if count > LAYERS_MAX {
            return Err(cursor.wrong(format!("{count} layers; at most {LAYERS_MAX} are possible")));
        }
        let layers = (0..count).map(|_| decode_layer(&mut cursor)).collect::<Result<_>>()?;
        cursor.end()?;
        Ok(Self { proposal, layers })
    }
}

fn decode_layer(cursor: &mut Cursor<'_>) -> Result<HeldLayer> {
    let at = cursor.at();
    let head: &LayerHead = cursor.value()?;
    let runs = take_runs(cursor, head.runs.get())?;
    let raw: &[RawHeld] = cursor.slice(head.versions.get().into())?;
    if raw.windows(2).any(|pair| pair[0].version >= pair[1].version) {
        return Err(cursor.wrong_at(at, "its versions are not in ascending order"));
    }
    let held = |raw: &RawHeld| {
        let held = Held { run: RunId(raw.run.get()), saved_at_unix_ns: raw.saved_at_unix_ns.get() };
        (raw.version.get(), held)
    };
    let versions = raw.iter().map(held).collect();
    let raw: &[U64] = cursor.slice(head.unreadable.get().into())?;
    if raw.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(cursor.wrong_at(at, "its unreadable versions are not in ascending order"));
    }
    Ok(HeldLayer { runs, versions, unreadable: raw.iter().map(|version| version.get()).collect() })
}
