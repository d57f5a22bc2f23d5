//! Checksums of snapshots.
//!
//! A snapshot is hashed in blocks (XXH3), and the hashes are added up, each weighted by its
//! number. So blocks can be hashed in any order, on several threads, and while they are copied: a
//! save then reads its bytes once, and nobody has to read them again when they leave memory.

use std::{
    hash::Hasher,
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use outcrop_memory::{Copier, SHARE_BYTES, copy_and_see};
use twox_hash::XxHash3_64;

/// The unit of hashing: what one thread copies at a time.
const BLOCK_BYTES: usize = SHARE_BYTES;

/// The checksum of a snapshot, where 0 counts as 1, so that it takes no more room if there is none.
pub(crate) type Checksum = NonZeroU64;

/// The checksum of bytes that come in pieces, one after the other.
#[derive(Default)]
pub(crate) struct Running {
    sum: u64,
    number: usize,
    /// The block that has begun, and how many bytes of it are hashed.
    begun: Option<(XxHash3_64, usize)>,
}

impl Running {
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.begun.is_none() && bytes.len() >= BLOCK_BYTES {
                let (block, rest) = bytes.split_at(BLOCK_BYTES);
                self.add(XxHash3_64::oneshot(block));
                bytes = rest;
                continue;
            }
            let (block, hashed) = self.begun.get_or_insert_with(|| (XxHash3_64::new(), 0));
            let (part, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - *hashed));
            block.write(part);
            *hashed += part.len();
            if *hashed == BLOCK_BYTES {
                let hash = block.finish();
                self.begun = None;
                self.add(hash);
            }
            bytes = rest;
        }
    }

    fn add(&mut self, hash: u64) {
        self.sum = self.sum.wrapping_add(weighted(self.number, hash));
        self.number += 1;
    }

    pub(crate) fn finish(mut self) -> Checksum {
        if let Some((block, _)) = self.begun.take() {
            self.add(block.finish());
        }
        finished(self.sum)
    }
}

/// The checksum of these pieces together.
pub(crate) fn of<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Checksum {
    let mut running = Running::default();
    pieces.for_each(|piece| running.write(piece));
    running.finish()
}

/// Copies `source` to the beginning of `target`, and returns the checksum of all of `target`.
/// Each thread that copies hashes its part while it is in the cache.
///
/// # Panics
/// If `target` is shorter than `source`, or longer by a block.
pub(crate) fn of_copy(copier: &Copier, target: &mut [u8], source: &[u8]) -> Checksum {
    let (target, rest) = target.split_at_mut(source.len());
    let sum = AtomicU64::new(0);
    let add = |number, hash| sum.fetch_add(weighted(number, hash), Relaxed);
    // What is left of the last block is hashed with it.
    let last = source.len().saturating_sub(1) / BLOCK_BYTES;
    assert!(rest.is_empty() || source.len() + rest.len() <= (last + 1) * BLOCK_BYTES, "all lies in the last block");
    copier.copy_shares(target, source, &|number, target, source| {
        let mut hash = XxHash3_64::new();
        copy_and_see(target, source, |part| hash.write(part));
        if number == last {
            hash.write(rest);
        }
        add(number, hash.finish());
    });
    if source.is_empty() {
        add(0, XxHash3_64::oneshot(rest));
    }
    finished(sum.into_inner())
}

/// Odd weights, so that no change of one block is lost, and two blocks cannot change places.
fn weighted(number: usize, hash: u64) -> u64 {
    hash.wrapping_mul(2 * number as u64 + 1)
}

fn finished(sum: u64) -> Checksum {
    Checksum::new(sum).unwrap_or(Checksum::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that differ from block to block.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at ^ (at >> 8) ^ (at >> 17)) as u8).collect()
    }

    #[test]
    fn a_copy_has_the_checksum_of_its_target_however_it_is_made() {
        for count in [0, 1, 100, 4096, 65_537, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 4095] {
            let source = bytes(count);
            let slot = count.max(1).next_multiple_of(4096);
            for threads in [1, 3] {
                let mut target = vec![0xEE; slot];
                let copied = of_copy(&Copier::new(threads), &mut target, &source);
                assert!(target[..count] == source && target[count..].iter().all(|&byte| byte == 0xEE), "{count}");
                assert_eq!(copied, of([&target[..]].into_iter()), "{count} bytes, {threads} threads");
            }
        }
    }

    #[test]
    fn where_pieces_end_makes_no_difference() {
        let bytes = bytes(3 * BLOCK_BYTES + 5000);
        let whole = of([&bytes[..]].into_iter());
        for piece in [1000, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 7] {
            assert_eq!(of(bytes.chunks(piece)), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn changed_bytes_and_exchanged_blocks_are_noticed() {
        let mut bytes = bytes(4 * BLOCK_BYTES);
        let whole = of([&bytes[..]].into_iter());
        for at in [0, BLOCK_BYTES, 3 * BLOCK_BYTES + 17, 4 * BLOCK_BYTES - 1] {
            bytes[at] ^= 1;
            assert_ne!(of([&bytes[..]].into_iter()), whole, "byte {at}");
            bytes[at] ^= 1;
        }
        let exchanged = [3, 1, 2, 0].map(|block| &bytes[block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES]);
        assert_ne!(of(exchanged.into_iter()), whole);
        assert_ne!(of([&bytes[..3 * BLOCK_BYTES]].into_iter()), whole);
    }
}
