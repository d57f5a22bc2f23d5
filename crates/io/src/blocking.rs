//! One request after the other through pread and pwrite: for systems without io_uring, and for
//! slices.

use std::{io, slice, sync::Arc};

use outcrop_memory::{Pages, Private};
use rustix::io::{pread, pwrite, retry_on_intr};

use crate::{ALIGN, Direction, Feed, File, Memory, Transfer, request::Request};

/// Carries out the transfers of `feed` until it has no more.
pub(crate) fn run<M: Memory>(feed: &mut dyn Feed<M>, request_bytes: u64) {
    while let Some(mut transfer) = feed.next() {
        let result = transfer.check().and_then(|()| carry_out(&mut transfer, request_bytes));
        feed.done(transfer, result);
    }
}

fn carry_out<M: Memory>(transfer: &mut Transfer<M>, request_bytes: u64) -> io::Result<()> {
    let mut address = transfer.memory.bytes().cast::<u8>().as_ptr();
    for piece in &transfer.pieces {
        for at in (0..piece.bytes).step_by(request_bytes as usize) {
            let bytes = request_bytes.min(piece.bytes - at);
            let (direction, file, offset) = (transfer.direction, Arc::clone(&piece.file), piece.offset + at);
            let mut request = Request { direction, file, offset, bytes, address, registered: None, moved: 0 };
            // SAFETY: the transfer was checked: all requests together are as long as its memory,
            // which belongs to this transfer alone if it is filled.
            unsafe { finish(&mut request) }?;
            address = address.wrapping_add(bytes as usize);
        }
    }
    Ok(())
}

/// Moves the rest of a request.
///
/// # Safety
/// The request must not be queued in the kernel. Its memory must be valid during the call. Nobody
/// else may write to it, or use it at all if it is filled.
pub(crate) unsafe fn finish(request: &mut Request) -> io::Result<()> {
    while !request.is_whole() {
        let rest = request.rest();
        let count = match request.direction {
            Direction::Write => {
                // SAFETY: the caller guarantees that the rest is valid, and that nobody writes to
                // it.
                let bytes = unsafe { slice::from_raw_parts(rest.address, rest.bytes) };
                retry_on_intr(|| pwrite(&request.file, bytes, rest.offset))?
            }
            Direction::Read => {
                // SAFETY: the caller guarantees that the rest is valid, and that nobody else uses
                // it.
                let bytes = unsafe { slice::from_raw_parts_mut(rest.address, rest.bytes) };
                retry_on_intr(|| pread(&request.file, &mut *bytes, rest.offset))?
            }
        };
        request.advance(count as u64)?;
    }
    Ok(())
}

/// Writes `bytes` at `offset`. If the file needs alignment, unaligned memory is copied first.
pub(crate) fn write(file: &Arc<File>, offset: u64, bytes: &[u8], request_bytes: u64) -> io::Result<()> {
    check(file, offset, bytes.len())?;
    let mut bounce = Bounce::new(file, bytes, request_bytes)?;
    for (index, part) in bytes.chunks(request_bytes as usize).enumerate() {
        let address = match &mut bounce.0 {
            Some(memory) => {
                memory[..part.len()].copy_from_slice(part);
                memory.as_mut_ptr()
            }
            None => part.as_ptr().cast_mut(),
        };
        let offset = offset + index as u64 * request_bytes;
        let mut request = of_slice(Direction::Write, file, offset, address, part.len());
        // SAFETY: the part is borrowed, and a request that writes only reads its memory.
        unsafe { finish(&mut request) }?;
    }
    Ok(())
}

/// Fills `bytes` from `offset`. Returns `UnexpectedEof` if the file is too short. If the file needs
/// alignment, unaligned memory is filled through a copy.
pub(crate) fn read(file: &Arc<File>, offset: u64, bytes: &mut [u8], request_bytes: u64) -> io::Result<()> {
    check(file, offset, bytes.len())?;
    let mut bounce = Bounce::new(file, bytes, request_bytes)?;
    for (index, part) in bytes.chunks_mut(request_bytes as usize).enumerate() {
        let address = bounce.0.as_mut().map_or(part.as_mut_ptr(), |memory| memory.as_mut_ptr());
        let offset = offset + index as u64 * request_bytes;
        let mut request = of_slice(Direction::Read, file, offset, address, part.len());
        // SAFETY: the part is borrowed exclusively, and so is the copy.
        unsafe { finish(&mut request) }?;
        if let Some(memory) = &bounce.0 {
            part.copy_from_slice(&memory[..part.len()]);
        }
    }
    Ok(())
}

fn of_slice(direction: Direction, file: &Arc<File>, offset: u64, address: *mut u8, bytes: usize) -> Request {
    Request { direction, file: Arc::clone(file), offset, bytes: bytes as u64, address, registered: None, moved: 0 }
}

fn check(file: &File, offset: u64, bytes: usize) -> io::Result<()> {
    if !file.is_direct() || (offset.is_multiple_of(ALIGN) && (bytes as u64).is_multiple_of(ALIGN)) {
        return Ok(());
    }
    let reason = format!(
        "{bytes} bytes at offset {offset} cannot bypass the page cache (O_DIRECT): both must be multiples of {ALIGN}"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

/// A bounce buffer: aligned memory for one request, if it is needed.
struct Bounce(Option<Private>);

impl Bounce {
    fn new(file: &File, bytes: &[u8], request_bytes: u64) -> io::Result<Self> {
        if !file.is_direct() || (bytes.as_ptr().addr() as u64).is_multiple_of(ALIGN) {
            return Ok(Self(None));
        }
        Ok(Self(Some(Private::new(bytes.len().min(request_bytes as usize), Pages::Huge)?)))
    }
}
