//! One block after the other through pread and pwrite: where there is no io_uring, and for slices.

use std::io;

use rustix::io::{Errno, pread, pwrite};

use super::{
    ring::Block,
    segments::{Piece, Places, Segment},
};
use crate::{Host, Result, Slot, layer::ALIGN};

/// Writes `bytes` at `at`, which the caller has checked to lie on the layer.
pub(crate) fn write(places: &dyn Places, block_bytes: u64, at: u64, bytes: &[u8]) -> Result<()> {
    let mut bounce = None;
    let end = at + bytes.len() as u64;
    let mut from = at;
    while from < end {
        let piece = places.first_piece(&(from..end), block_bytes);
        let block = &bytes[(from - at) as usize..][..piece.bytes as usize];
        let segment = places.for_writing(&piece)?;
        if segment.direct && !is_aligned(block) {
            let slot = bounced(&mut bounce, block_bytes)?;
            slot[..block.len()].copy_from_slice(block);
            write_block(places, &segment, &piece, &slot[..block.len()])?;
        } else {
            write_block(places, &segment, &piece, block)?;
        }
        from += piece.bytes;
    }
    Ok(())
}

/// Fills `bytes` from `at`, which the caller has checked to lie on the layer.
pub(crate) fn read(places: &dyn Places, block_bytes: u64, at: u64, bytes: &mut [u8]) -> Result<()> {
    let mut bounce = None;
    let end = at + bytes.len() as u64;
    let mut from = at;
    while from < end {
        let piece = places.first_piece(&(from..end), block_bytes);
        let block = &mut bytes[(from - at) as usize..][..piece.bytes as usize];
        let segment = places.for_reading(&piece)?;
        if segment.direct && !is_aligned(block) {
            let slot = bounced(&mut bounce, block_bytes)?;
            read_block(places, &segment, &piece, &mut slot[..block.len()])?;
            block.copy_from_slice(&slot[..block.len()]);
        } else {
            read_block(places, &segment, &piece, block)?;
        }
        from += piece.bytes;
    }
    Ok(())
}

/// Moves the rest of a block that the kernel's queue would not take to its end.
///
/// # Safety
/// The block must not be in the queue. Its memory must be valid meanwhile, and nobody else may write to it, nor use it at
/// all if the block is read.
pub(super) unsafe fn finish(block: &mut Block) -> io::Result<()> {
    let at = block.piece.at + block.moved;
    let left = (block.piece.bytes - block.moved) as usize;
    let address = block.address.wrapping_add(block.moved as usize);
    if block.is_write {
        // SAFETY: the block's memory is valid for its whole length, and sealed: others may read it, nobody writes to it.
        write_all(&block.segment, at, unsafe { std::slice::from_raw_parts(address, left) })?;
    } else {
        // SAFETY: the block's memory is valid for its whole length, and nobody else uses it, by the duty of the caller.
        read_all(&block.segment, at, unsafe { std::slice::from_raw_parts_mut(address, left) })?;
    }
    block.moved = block.piece.bytes;
    Ok(())
}

fn write_block(places: &dyn Places, segment: &Segment, piece: &Piece, bytes: &[u8]) -> Result<()> {
    write_all(segment, piece.at, bytes)
        .and_then(|()| segment.settle_write(piece).map_err(io::Error::from))
        .map_err(|source| places.failure("write", source))
}

fn read_block(places: &dyn Places, segment: &Segment, piece: &Piece, bytes: &mut [u8]) -> Result<()> {
    read_all(segment, piece.at, bytes).map_err(|source| places.failure("read", source))?;
    segment.settle_read(piece);
    Ok(())
}

fn write_all(segment: &Segment, at: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(&segment.file, &bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn read_all(segment: &Segment, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(&segment.file, &mut bytes[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn is_aligned(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as u64).is_multiple_of(ALIGN)
}

/// Aligned memory of one block, made when first needed.
fn bounced(slot: &mut Option<Slot>, block_bytes: u64) -> Result<&mut Slot> {
    if slot.is_none() {
        *slot = Some(Host::new(block_bytes)?.slot(0, block_bytes)?);
    }
    Ok(slot.as_mut().expect("made above"))
}
