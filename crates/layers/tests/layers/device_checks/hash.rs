//! What every device must do that hashes blocks.

use std::sync::Arc;

use outcrop_format::{Hash, HashKind};
use outcrop_layers::{Device, DeviceHash, DeviceHasher, DeviceLayer, Error};
use outcrop_testing::pattern;

use super::{filled, touched};

const KINDS: [(DeviceHash, HashKind); 2] = [(DeviceHash::Xxh3, HashKind::Xxh3), (DeviceHash::Md5, HashKind::Md5)];

/// The hashes of all blocks, by the processor.
pub(crate) fn wanted(kind: HashKind, stretches: &[&[u8]], block_bytes: usize) -> Vec<Hash> {
    stretches.iter().flat_map(|stretch| stretch.chunks(block_bytes)).map(|block| kind.hash(block)).collect()
}

/// Host memory of any length, at any address, in blocks of any length, has the hashes that the
/// processor finds.
pub(crate) fn hash_like_the_host(device: &Arc<dyn Device>) {
    let memory = pattern(1, 300_000);
    let long = pattern(2, 40 << 20);
    for (kind, reference) in KINDS {
        let hasher = DeviceHasher::new(Arc::clone(device), kind);
        let check = |stretches: &[&[u8]], block_bytes: usize| {
            let wanted = wanted(reference, stretches, block_bytes);
            let mut found = vec![[0xEE; 16]; wanted.len()];
            hasher.hash(stretches, block_bytes, &mut found).unwrap();
            let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            let lengths: Vec<_> = stretches.iter().map(|stretch| stretch.len()).collect();
            assert_eq!(wrong, None, "{kind:?}: the first wrong block of {block_bytes} bytes in {lengths:?}");
        };
        // Every length up to where all cases of both functions have occurred, also as the short
        // block after a whole one, and at odd addresses.
        for length in 1..=300 {
            check(&[&memory[..length]], length);
            check(&[&memory[length % 8..][..length + 301]], 301);
        }
        for block_bytes in [1, 7, 64, 100, 240, 241, 256, 1000, 1024, 1025, 2048, 4096, 65_536] {
            check(&[&memory], block_bytes);
            let stretches = [&memory[3..9], &[], &memory[10..10 + 3 * block_bytes], &memory[5..70_000]];
            check(&stretches, block_bytes);
        }
        // More pieces than streams, blocks longer than a piece, and many stretches in one piece.
        check(&[&long[1..]], 4096);
        check(&[&long], 9 << 20);
        check(&long.chunks(8192).map(|chunk| &chunk[..4096]).collect::<Vec<_>>(), 4096);
        check(&[], 4096);
    }
}

/// Buffers of the program and ranges of a layer are hashed where they are, also across chunks.
pub(crate) fn hash_in_place(device: &Arc<dyn Device>) {
    let chunk = device.granularity_bytes().max(1 << 20);
    let bytes = pattern(3, 3 * chunk);
    let buffer = filled(device, &bytes);
    let layer = touched(device, 3 * chunk, Some(chunk));
    layer.copy_in(0, &bytes).unwrap();
    for (kind, reference) in KINDS {
        let hasher = DeviceHasher::new(Arc::clone(device), kind);
        for (at, length, block_bytes) in [
            (0, 3 * chunk, 4096),
            (0, 3 * chunk, 100),
            (5, 3 * chunk - 5, 1 << 16),
            (chunk - 10, 20, 64),
            (chunk - 100, chunk + 200, chunk as usize + 150),
            (7, 1, 16),
            (9, 0, 16),
        ] {
            let wanted = wanted(reference, &[&bytes[at as usize..][..length as usize]], block_bytes);
            let mut found = vec![[0xEE; 16]; wanted.len()];
            hasher.hash_buffer(&buffer, at, length, block_bytes, &mut found).unwrap();
            assert!(found == wanted, "{kind:?} of {length} bytes at {at} of a buffer");
            found.fill([0xEE; 16]);
            hasher.hash_layer(&layer, at, length, block_bytes, &mut found).unwrap();
            assert!(found == wanted, "{kind:?} of {length} bytes at {at} of a layer");
        }
    }
}

/// What is not there, or on another device, is refused.
pub(crate) fn refuse_to_hash_what_is_not_there(device: &Arc<dyn Device>, other: &Arc<dyn Device>) {
    let hasher = DeviceHasher::new(Arc::clone(device), DeviceHash::Xxh3);
    let mut hashes = vec![[0; 16]; 2];
    let buffer = filled(device, &[1; 100]);
    assert!(matches!(hasher.hash_buffer(&buffer, 50, 51, 26, &mut hashes), Err(Error::BufferTooSmall { .. })));
    let foreign = filled(other, &[1; 100]);
    assert!(matches!(hasher.hash_buffer(&foreign, 0, 52, 26, &mut hashes), Err(Error::OtherDevice { .. })));
    let foreign = touched(other, 1 << 20, None);
    assert!(matches!(hasher.hash_layer(&foreign, 0, 52, 26, &mut hashes), Err(Error::OtherDevice { .. })));
    let layer = DeviceLayer::new(Arc::clone(device), 1 << 20, None).unwrap();
    assert!(matches!(hasher.hash_layer(&layer, 0, 52, 26, &mut hashes), Err(Error::Unmapped { .. })));
    assert!(matches!(hasher.hash_layer(&layer, 1 << 20, 52, 26, &mut hashes), Err(Error::OutOfRange { .. })));
    hasher.hash_buffer(&buffer, 48, 52, 26, &mut hashes).unwrap();
    assert_eq!(hashes, [HashKind::Xxh3.hash(&[1; 26]); 2]);
}
