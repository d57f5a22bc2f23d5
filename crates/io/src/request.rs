//! One read or write request to the kernel.

use std::{io, sync::Arc};

use crate::{ALIGN, Direction, File};

/// A part of a transfer that one call moves, and its progress.
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) address: *mut u8,
    /// The kernel's index of the memory, if it is registered.
    pub(crate) registered: Option<u16>,
    pub(crate) moved: u64,
}

/// The rest of a request.
pub(crate) struct Rest {
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    pub(crate) address: *mut u8,
}

impl Request {
    pub(crate) fn is_whole(&self) -> bool {
        self.moved >= self.bytes
    }

    pub(crate) fn rest(&self) -> Rest {
        Rest {
            offset: self.offset + self.moved,
            bytes: (self.bytes - self.moved) as usize,
            address: self.address.wrapping_add(self.moved as usize),
        }
    }

    /// Records that the kernel has moved `count` more bytes. Returns an error if there was no
    /// progress: the file has ended, or takes no more.
    pub(crate) fn advance(&mut self, count: u64) -> io::Result<()> {
        let before = self.moved;
        self.moved += count;
        // With O_DIRECT the next call must begin at a multiple of `ALIGN` again.
        if self.file.is_direct() && !self.is_whole() {
            self.moved = self.moved / ALIGN * ALIGN;
        }
        match (self.moved > before, self.direction) {
            (true, _) => Ok(()),
            (false, Direction::Write) => Err(io::ErrorKind::WriteZero.into()),
            (false, Direction::Read) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn request(is_direct: bool, direction: Direction) -> Request {
        // A pipe accepts the flag, although it does not use it.
        let (pipe, _) = std::io::pipe().unwrap();
        if is_direct {
            fcntl_setfl(&pipe, OFlags::DIRECT).unwrap();
        }
        let file = Arc::new(File::new(pipe.into()).unwrap());
        let address = std::ptr::null_mut::<u8>();
        Request { direction, file, offset: 8 * ALIGN, bytes: 3 * ALIGN, address, registered: None, moved: 0 }
    }

    #[test]
    fn what_is_left_begins_where_the_last_call_ended() {
        let mut request = request(false, Direction::Write);
        request.advance(100).unwrap();
        let rest = request.rest();
        assert_eq!((rest.offset, rest.bytes, rest.address.addr()), (8 * ALIGN + 100, 3 * 4096 - 100, 100));
        request.advance(3 * ALIGN - 100).unwrap();
        assert!(request.is_whole());
    }

    #[test]
    fn past_the_page_cache_it_begins_at_a_whole_unit() {
        let mut request = request(true, Direction::Read);
        request.advance(ALIGN + 512).unwrap();
        assert_eq!((request.rest().offset, request.rest().bytes), (9 * ALIGN, 2 * 4096));
        let error = request.advance(512).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "the same end again");
        request.advance(2 * ALIGN).unwrap();
        assert!(request.is_whole());
    }

    #[test]
    fn a_call_that_moves_nothing_is_an_error() {
        for is_direct in [false, true] {
            for (direction, kind) in
                [(Direction::Write, io::ErrorKind::WriteZero), (Direction::Read, io::ErrorKind::UnexpectedEof)]
            {
                assert_eq!(request(is_direct, direction).advance(0).unwrap_err().kind(), kind);
            }
        }
    }
}
