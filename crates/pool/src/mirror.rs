//! Arrays that follow memory of a program that knows nothing of pools. What has changed is found by
//! comparing.

use std::ops::Range;

use crate::{Block, Error, Home, Part, Parts, Pool, Result, Structure, layout};

/// A copy of an array of the program, for bindings to other languages.
pub struct Mirror {
    part: Part,
}

impl Pool {
    /// Opens an array of numbers of a type such as `f64`, as [`array`](Self::array) does.
    #[doc(hidden)]
    pub fn mirror(&self, name: &str, element: &str, count: usize, block_bytes: Option<usize>) -> Result<Mirror> {
        let element = layout::named(element).ok_or_else(|| {
            Error::Misfit(format!("\"{name}\": an array of a pool has numbers, such as f64 or i32, and not {element}"))
        })?;
        let block = block_bytes.map_or_else(Block::default, |bytes| Block::elements(bytes.div_ceil(element.1)));
        Ok(Mirror { part: self.part_of(name, element, Some([count as u64, 1, 1]), block, &[])? })
    }
}

impl Mirror {
    /// Becomes what the program has, of the same length: takes over the blocks that differ.
    ///
    /// # Panics
    ///
    /// If it has another length.
    pub fn follow(&mut self, memory: &[u8]) {
        assert_eq!(memory.len(), self.bytes().len(), "\"{}\"", self.part.described.name);
        let block = self.part.described.block_bytes as usize;
        for (at, bytes) in memory.chunks(block).enumerate() {
            let range = at * block..at * block + bytes.len();
            if self.part.memory[range.clone()] != *bytes {
                self.part.write(range).copy_from_slice(bytes);
            }
        }
    }

    /// Says where these bytes are to be kept once they are durable, as
    /// [`Array::place`](crate::Array::place) does.
    ///
    /// # Panics
    ///
    /// If the range is not inside the array.
    pub fn place(&mut self, bytes: Range<usize>, home: Home) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes().len(), "\"{}\"", self.part.described.name);
        self.part.place(bytes, home);
    }

    /// What it has.
    pub fn bytes(&self) -> &[u8] {
        &self.part.memory[..self.part.described.bytes() as usize]
    }
}

impl Structure for Mirror {
    fn parts(&mut self) -> Parts<'_> {
        Parts(vec![&mut self.part])
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").field("name", &self.part.described.name).finish_non_exhaustive()
    }
}
