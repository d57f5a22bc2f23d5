//! How a region is cut into blocks.

use std::ops::Range;

use crate::error::{Error, Problem, Result};

/// The smallest block.
pub const BLOCK_BYTES_MIN: u32 = 256;
/// The largest block.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// The largest region: more than a process can address.
pub const REGION_BYTES_MAX: u64 = 1 << 48;

/// A region, cut into blocks of equal size. The last block may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blocks {
    bytes: u64,
    block_bytes: u32,
}

impl Blocks {
    /// A region of `bytes` bytes in blocks of `block_bytes`, a power of two from 256 bytes to 16
    /// MiB.
    pub fn new(bytes: u64, block_bytes: u32) -> Result<Self> {
        Self::checked(bytes, block_bytes).map_err(Error::Cut)
    }

    pub(crate) fn checked(bytes: u64, block_bytes: u32) -> std::result::Result<Self, Problem> {
        if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return Err(
                format!("blocks of {block_bytes} bytes; a power of two from 256 to 16777216 is possible").into()
            );
        }
        if bytes > REGION_BYTES_MAX {
            return Err(format!("a region of {bytes} bytes; at most {REGION_BYTES_MAX} are possible").into());
        }
        Ok(Self { bytes, block_bytes })
    }

    /// The length of the region.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The length of every block except perhaps the last.
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The number of blocks. An empty region has none.
    pub const fn count(&self) -> u64 {
        self.bytes.div_ceil(self.block_bytes as u64)
    }

    /// The range of block `block` in the region; empty if there is no such block.
    pub fn range(&self, block: u64) -> Range<u64> {
        self.range_of(block..block.saturating_add(1))
    }

    /// The range of these blocks in the region, as far as they exist.
    pub fn range_of(&self, blocks: Range<u64>) -> Range<u64> {
        let start = |block: u64| block.saturating_mul(u64::from(self.block_bytes)).min(self.bytes);
        start(blocks.start)..start(blocks.end)
    }

    /// The length of block `block`; 0 if there is no such block.
    pub fn len(&self, block: u64) -> u32 {
        let range = self.range(block);
        (range.end - range.start) as u32
    }

    /// Whether there is no block.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The blocks that contain any of these bytes of the region.
    pub fn touching(&self, bytes: Range<u64>) -> Range<u64> {
        let end = bytes.end.min(self.bytes);
        if bytes.start >= end {
            return 0..0;
        }
        let block_bytes = u64::from(self.block_bytes);
        bytes.start / block_bytes..end.div_ceil(block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_what_is_left() {
        let blocks = Blocks::new(1000, 256).unwrap();
        assert_eq!((blocks.count(), blocks.len(0), blocks.len(3), blocks.len(4)), (4, 256, 232, 0));
        assert_eq!(blocks.range(3), 768..1000);
        assert_eq!(blocks.range_of(1..9), 256..1000);
        assert_eq!(blocks.range(u64::MAX), 1000..1000);
        assert_eq!(Blocks::new(1024, 256).unwrap().len(3), 256);
        let empty = Blocks::new(0, 256).unwrap();
        assert_eq!((empty.count(), empty.is_empty(), empty.touching(0..9)), (0, true, 0..0));
    }

    #[test]
    fn blocks_that_have_some_of_the_bytes() {
        let blocks = Blocks::new(1000, 256).unwrap();
        assert_eq!(blocks.touching(0..1000), 0..4);
        assert_eq!(blocks.touching(255..257), 0..2);
        assert_eq!(blocks.touching(256..512), 1..2);
        assert_eq!(blocks.touching(999..u64::MAX), 3..4);
        assert_eq!(blocks.touching(1000..2000), 0..0);
        assert_eq!(blocks.touching(300..300), 0..0);
    }

    #[test]
    fn only_powers_of_two_from_256_bytes_to_16_mebibytes() {
        for block_bytes in [0, 1, 128, 255, 257, 4095, 1 << 25, u32::MAX] {
            let error = Blocks::new(1, block_bytes).unwrap_err().to_string();
            assert!(error.contains("a power of two from 256 to 16777216 is possible"), "{error}");
        }
        assert!(Blocks::new(REGION_BYTES_MAX, BLOCK_BYTES_MIN).is_ok());
        assert!(Blocks::new(REGION_BYTES_MAX + 1, BLOCK_BYTES_MAX).is_err());
    }
}
