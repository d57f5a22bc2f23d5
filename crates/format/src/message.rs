//! Messages between the ranks of a job, and the mark in the directory of a rank.
//!
//! Every message starts with its kind and format number, and ends with a checksum. A rank refuses
//! anything else with an error.

mod agreement;
mod holdings;
mod mark;
mod news;
mod shards;
mod share;

pub use agreement::{Answer, Candidates, Due, Fared, Verdict};
pub use holdings::{Former, Held, HeldLayer, Holdings};
pub use mark::{MARK_BYTES_MAX, MARK_RUNS_MAX, Mark};
pub use news::{News, Tidings};
pub use shards::{Card, Keeps};
pub use share::{SharedBlocks, SharedLocation, SharedLocations, SharedPack, SharedPacks, Sharing};

use std::collections::BTreeSet;

use twox_hash::XxHash3_64;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U128},
};

use crate::{
    RunId,
    cursor::Cursor,
    error::{Error, Result, Structure},
};

/// The format number of messages. All ranks of a job must use the same.
pub const MESSAGE_FORMAT: u16 = 1;

/// The longest text in a message, such as the reason of a failure. Longer texts are cut off.
pub const TEXT_BYTES_MAX: usize = 4096;

const MAGIC: [u8; 2] = *b"OM";
const CHECK_BYTES: usize = 8;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    News = 1,
    Mark = 3,
    Answer = 4,
    Candidates = 5,
    Verdict = 6,
    Sharing = 7,
    SharedBlocks = 8,
    SharedLocations = 9,
    SharedPacks = 10,
    Due = 11,
    Holdings = 12,
    Card = 13,
    Keeps = 14,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 2],
    kind: u8,
    zero: u8,
    format: U16,
}

/// Starts a message.
fn begin(kind: Kind) -> Vec<u8> {
    Head { magic: MAGIC, kind: kind as u8, zero: 0, format: MESSAGE_FORMAT.into() }.as_bytes().to_vec()
}

/// Ends a message with its checksum.
fn end(mut bytes: Vec<u8>) -> Vec<u8> {
    let check = XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// What is between the start and the end of a message of this kind.
fn body(kind: Kind, bytes: &[u8]) -> Result<Cursor<'_>> {
    let structure = Structure::Message;
    let Some((checked, written)) = bytes.split_last_chunk::<CHECK_BYTES>() else {
        return Err(Error::Short { structure, at: 0, needed: CHECK_BYTES as u64, available: bytes.len() as u64 });
    };
    let (written, computed) = (u64::from_le_bytes(*written).into(), XxHash3_64::oneshot(checked).into());
    if written != computed {
        return Err(Error::Changed { structure, written, computed });
    }
    let mut cursor = Cursor::new(structure, checked);
    let head: &Head = cursor.value()?;
    if head.magic != MAGIC || head.kind != kind as u8 || head.zero != 0 {
        return Err(cursor.wrong_at(0, "it is another message than the one that is expected"));
    }
    match head.format.get() {
        MESSAGE_FORMAT => Ok(cursor),
        found => Err(Error::Format { structure, found: found.into(), newest: MESSAGE_FORMAT.into() }),
    }
}

/// Runs, in ascending order.
fn push_runs(bytes: &mut Vec<u8>, runs: &BTreeSet<RunId>) {
    runs.iter().for_each(|run| bytes.extend_from_slice(U128::from(run.0).as_bytes()));
}

fn take_runs(cursor: &mut Cursor<'_>, count: u32) -> Result<BTreeSet<RunId>> {
    let raw: &[U128] = cursor.slice(count.into())?;
    if raw.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(cursor.wrong("runs are not in ascending order"));
    }
    Ok(raw.iter().map(|run| RunId(run.get())).collect())
}

/// Appends a text with its length before it. A text that is too long is cut off.
fn push_text(bytes: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let text = &text[..end];
    bytes.extend_from_slice(U16::from(text.len() as u16).as_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn take_text(cursor: &mut Cursor<'_>) -> Result<String> {
    let count = cursor.value::<U16>()?.get();
    if usize::from(count) > TEXT_BYTES_MAX {
        return Err(cursor.wrong(format!("a text of {count} bytes; at most {TEXT_BYTES_MAX} are possible")));
    }
    cursor.text(count.into()).map(str::to_owned)
}
