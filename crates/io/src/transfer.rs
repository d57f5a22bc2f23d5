//! Transfers: memory, files and offsets, and their rules.

use std::{fmt, io, ptr::NonNull, sync::Arc};

use outcrop_memory::Mapping;
use smallvec::SmallVec;

use crate::{ALIGN, File};

/// The memory of a transfer. The transfer owns it: nobody else can use it until it is returned.
///
/// # Safety
/// From the first call of [`bytes`](Self::bytes) until the value is dropped or returned:
/// - all calls return the same memory, which stays valid at the same address, even if the value
///   moves;
/// - nobody else writes to it;
/// - if [`is_exclusive`](Self::is_exclusive), nobody else reads it either;
/// - [`mapping`](Self::mapping) is correct.
pub unsafe trait Memory {
    /// The memory.
    fn bytes(&mut self) -> NonNull<[u8]>;

    /// Whether nobody else uses it, so that a read may fill it.
    fn is_exclusive(&self) -> bool;

    /// The mapping that contains it, and the offset there, if more transfers of this mapping will
    /// follow, so that registering it with the kernel pays.
    fn mapping(&self) -> Option<(&Arc<Mapping>, u64)> {
        None
    }
}

/// The direction of a transfer.
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

/// A range of a file.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The file.
    pub file: Arc<File>,
    /// The offset in the file.
    pub offset: u64,
    /// The length.
    pub bytes: u64,
}

/// Ranges of files that follow each other in memory. Nearly always one.
pub type Pieces = SmallVec<[Piece; 1]>;

/// A transfer between memory and files.
#[derive(Debug)]
pub struct Transfer<M> {
    /// The memory, which the transfer owns.
    pub memory: M,
    /// Its direction.
    pub direction: Direction,
    /// The ranges of files, in the order of the memory, with the same total length. They are moved
    /// in any order, and must not overlap.
    pub pieces: Pieces,
}

impl<M: Memory> Transfer<M> {
    /// Returns an error of kind `InvalidInput` unless the pieces are as long as the memory, memory
    /// to fill is exclusive, and everything is a multiple of [`ALIGN`] with O_DIRECT.
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

/// A source of transfers, which also receives their results.
pub trait Feed<M> {
    /// The next transfer, or `None` if there is none at present.
    fn next(&mut self) -> Option<Transfer<M>>;

    /// Returns a transfer. Called exactly once for each, in any order. After an error, any part of
    /// it may have been moved.
    fn done(&mut self, transfer: Transfer<M>, result: io::Result<()>);
}
