//! A buffer for reads that bypass the page cache.

use std::{io, ops::Range};

use outcrop_layers::{ALIGN, files::File};

/// Memory that begins at a multiple of [`ALIGN`] and grows as needed.
#[derive(Default)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn aligned(&mut self, bytes: usize) -> &mut [u8] {
        if self.memory.len() < self.start + bytes {
            self.memory = vec![0; bytes + ALIGN as usize];
            self.start = self.memory.as_ptr().align_offset(ALIGN as usize);
        }
        &mut self.memory[self.start..self.start + bytes]
    }

    /// These bytes of a file, read with O_DIRECT if the file allows it.
    pub(crate) fn read(&mut self, file: &dyn File, range: Range<u64>) -> io::Result<&[u8]> {
        let from = range.start / ALIGN * ALIGN;
        let to = range.end.next_multiple_of(ALIGN);
        let memory = self.aligned((to - from) as usize);
        let skipped = (range.start - from) as usize;
        let wanted = (range.end - from) as usize;
        let read = match file.direct() {
            Some(direct) => rustix::io::pread(direct, &mut *memory, from).unwrap_or(0),
            None => 0,
        };
        // What O_DIRECT did not return, at the end of the file or for any other reason, is read in
        // the usual way. If that fails too, its error says why.
        if read < wanted {
            let read = read.max(skipped);
            file.read_at(from + read as u64, &mut memory[read..wanted])?;
        }
        Ok(&memory[skipped..wanted])
    }
}
