//! Memory that is registered with an io_uring, which writes to it without a page fault.

use std::{fs::File, io, os::fd::AsRawFd};

use io_uring::{IoUring, opcode, types::Fd};

/// Registered memory, which is pinned until this is dropped.
pub struct Registered(IoUring);

impl Registered {
    /// Registers all of `memory`, which must live as long as this value.
    pub fn new(memory: &mut [u8]) -> io::Result<Self> {
        let ring = IoUring::new(2)?;
        let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the memory is valid, and the test keeps it.
        unsafe { ring.submitter().register_buffers(&[buffer]) }?;
        Ok(Self(ring))
    }

    /// Fills `into`, which is a part of the registered memory, from the start of a file
    /// (READ_FIXED).
    pub fn read(&mut self, file: &File, into: &mut [u8]) {
        let read = opcode::ReadFixed::new(Fd(file.as_raw_fd()), into.as_mut_ptr(), into.len() as u32, 0).build();
        // SAFETY: the file is open and the memory is borrowed until the request has come back.
        unsafe { self.0.submission().push(&read) }.expect("room for one request");
        self.0.submit_and_wait(1).unwrap();
        let done = self.0.completion().next().expect("one answer");
        assert_eq!(done.result(), into.len() as i32);
    }
}
