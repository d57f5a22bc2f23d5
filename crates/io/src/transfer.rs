//! What is transferred: memory, files and offsets, and the rules that they keep.

use std::{fmt, io, ptr::NonNull, sync::Arc};

use outcrop_memory::Mapping;
use smallvec::SmallVec;

use crate::{ALIGN, File};

/// The memory side of a transfer, which owns it: nobody else can use it until it is given back.
///
/// # Safety
/// From the first call of [`bytes`](Self::bytes) until the value is dropped or given back:
/// - all calls return the same memory, which stays valid and in its place, also when the value
///   moves;
/// - nobody else writes to it;
/// - if [`is_exclusive`](Self::is_exclusive), nobody else reads it either;
/// - [`mapping`](Self::mapping) tells the truth.
pub unsafe trait Memory {
    /// The memory.
    fn bytes(&mut self) -> NonNull<[u8]>;

    /// Whether nobody else uses it, so that it can be filled from a file.
    fn is_exclusive(&self) -> bool;

    /// The mapping that it lies in, and where in it, if it is worth to register that with the
    /// kernel because more transfers will follow.
    fn mapping(&self) -> Option<(&Arc<Mapping>, u64)> {
        None
    }
}

/// Where a transfer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From memory to files.
    Write,
    /// From files to memory.
    Read,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// A place in a file.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The file.
    pub file: Arc<File>,
    /// Where in the file.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}

/// Places in files that follow each other in memory: nearly always one.
pub type Pieces = SmallVec<[Piece; 1]>;

/// Bytes on their way between memory and files.
#[derive(Debug)]
pub struct Transfer<M> {
    /// The memory, which the transfer owns.
    pub memory: M,
    /// Where it goes.
    pub direction: Direction,
    /// Where in files, in the order of the memory; together as long as the memory. They are moved
    /// in any order, and must not overlap.
    pub pieces: Pieces,
}

impl<M: Memory> Transfer<M> {
    /// An error of the kind `InvalidInput` if the rules are not kept: pieces as long as the memory,
    /// memory to be filled exclusive, and everything at multiples of [`ALIGN`] past the page cache.
    pub fn check(&mut self) -> io::Result<()> {
        let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if self.direction == Direction::Read && !self.memory.is_exclusive() {
            return refuse("memory that others read cannot be filled".to_owned());
        }
        let memory = self.memory.bytes();
        let (mut address, bytes) = (memory.addr().get() as u64, memory.len() as u64);
        let total = self.pieces.iter().try_fold(0_u64, |total, piece| total.checked_add(piece.bytes));
        if total != Some(bytes) {
            let total = total.map_or("too many".to_owned(), |total| total.to_string());
            return refuse(format!("the places in files are {total} bytes long and the memory {bytes}"));
        }
        for piece in &self.pieces {
            let is_aligned = [address, piece.offset, piece.bytes].iter().all(|number| number.is_multiple_of(ALIGN));
            if piece.file.is_direct() && !is_aligned {
                let Piece { offset, bytes, .. } = piece;
                return refuse(format!(
                    "{bytes} bytes at offset {offset} from address {address:#x} cannot bypass the page cache \
                     (O_DIRECT): all three must be multiples of {ALIGN}"
                ));
            }
            address += piece.bytes;
        }
        Ok(())
    }
}

/// What to transfer next, and who is told when it has been.
pub trait Feed<M> {
    /// The next transfer, or nothing for the moment.
    fn next(&mut self) -> Option<Transfer<M>>;

    /// Takes a transfer back. Called exactly once for each, in any order. After an error any part
    /// of it may have been moved.
    fn done(&mut self, transfer: Transfer<M>, result: io::Result<()>);
}
