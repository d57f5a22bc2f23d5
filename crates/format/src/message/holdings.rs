//! What a rank has found in its directories. All ranks exchange this when a session is opened.

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{Kind, begin, body, end, push_runs, take_runs};
use crate::{Manifest, RunId, cursor::Cursor, error::Result};

/// The largest number of directories.
const LAYERS_MAX: u32 = 64;

/// The largest number of directories of former ranks that one rank can report.
const FORMER_MAX: u32 = 1 << 24;

/// What one rank has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings {
    /// A random number. That of rank 0 becomes the identifier of the run.
    pub proposal: RunId,
    /// By layer: what it found there.
    pub layers: Vec<HeldLayer>,
    /// Directories of former ranks, which have no process in this run, that it has found.
    pub former: Vec<Former>,
}

/// The directory of a rank that took part in an earlier run of more ranks, and that is nobody's
/// now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    /// The layer, counted from 0.
    pub layer: u32,
    /// The rank.
    pub rank: u32,
    /// What is in it, if this rank has adopted it; `None` if it is locked by another process.
    pub held: Option<HeldLayer>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// When it was saved, in nanoseconds since 1970.
    pub saved_at_unix_ns: u64,
    /// The run that saved it.
    pub run: RunId,
    /// The number of ranks of that run.
    pub ranks: u32,
}

impl Held {
    /// What a manifest says.
    pub fn of(manifest: &Manifest) -> Self {
        Self { saved_at_unix_ns: manifest.saved_at_unix_ns, run: manifest.run, ranks: manifest.ranks }
    }
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
    ranks: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FormerHead {
    layer: U32,
    rank: U32,
    is_adopted: u8,
}

impl Holdings {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = begin(Kind::Holdings);
        bytes.extend_from_slice(U128::from(self.proposal.0).as_bytes());
        bytes.extend_from_slice(U32::from(self.layers.len() as u32).as_bytes());
        self.layers.iter().for_each(|layer| encode_layer(layer, &mut bytes));
        bytes.extend_from_slice(U32::from(self.former.len() as u32).as_bytes());
        for former in &self.former {
            let (layer, rank, is_adopted) = (former.layer.into(), former.rank.into(), former.held.is_some().into());
            bytes.extend_from_slice(FormerHead { layer, rank, is_adopted }.as_bytes());
            former.held.iter().for_each(|layer| encode_layer(layer, &mut bytes));
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
        let count = cursor.value::<U32>()?.get();
        if count > FORMER_MAX {
            return Err(cursor.wrong(format!("{count} former ranks; at most {FORMER_MAX} are possible")));
        }
        let former = (0..count).map(|_| decode_former(&mut cursor)).collect::<Result<_>>()?;
        cursor.end()?;
        Ok(Self { proposal, layers, former })
    }
}

fn encode_layer(layer: &HeldLayer, bytes: &mut Vec<u8>) {
    let head = LayerHead {
        runs: (layer.runs.len() as u32).into(),
        versions: (layer.versions.len() as u32).into(),
        unreadable: (layer.unreadable.len() as u32).into(),
    };
    bytes.extend_from_slice(head.as_bytes());
    push_runs(bytes, &layer.runs);
    for (version, held) in &layer.versions {
        let raw = RawHeld {
            version: (*version).into(),
            run: held.run.0.into(),
            saved_at_unix_ns: held.saved_at_unix_ns.into(),
            ranks: held.ranks.into(),
        };
        bytes.extend_from_slice(raw.as_bytes());
    }
    for version in &layer.unreadable {
        bytes.extend_from_slice(U64::from(*version).as_bytes());
    }
}

fn decode_former(cursor: &mut Cursor<'_>) -> Result<Former> {
    let head: &FormerHead = cursor.value()?;
    let held = match head.is_adopted {
        0 => None,
        1 => Some(decode_layer(cursor)?),
        other => {
            return Err(cursor.wrong(format!("{other} says neither that a former rank is adopted nor that it is not")));
        }
    };
    Ok(Former { layer: head.layer.get(), rank: head.rank.get(), held })
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
        let (run, saved_at_unix_ns) = (RunId(raw.run.get()), raw.saved_at_unix_ns.get());
        (raw.version.get(), Held { run, saved_at_unix_ns, ranks: raw.ranks.get() })
    };
    let versions = raw.iter().map(held).collect();
    let raw: &[U64] = cursor.slice(head.unreadable.get().into())?;
    if raw.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(cursor.wrong_at(at, "its unreadable versions are not in ascending order"));
    }
    Ok(HeldLayer { runs, versions, unreadable: raw.iter().map(|version| version.get()).collect() })
}
