//! Hashes of blocks: known values, and equal results for any number of threads.

use outcrop_track::{CpuHasher, HashKind, Hasher};

fn hex(hash: [u8; 16]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn hashes_are_those_of_others() {
    // As printed by xxh128sum, b3sum and md5sum.
    let known = [
        (HashKind::Xxh3, "99aa06d3014798d86001c324468d497f", "06b05ab6733a618578af5f94892f3950"),
        (HashKind::Blake3, "af1349b9f5f9a1a6a0404dea36dcc949", "6437b3ac38465133ffb63b75273a8db5"),
        (HashKind::Md5, "d41d8cd98f00b204e9800998ecf8427e", "900150983cd24fb0d6963f7d28e17f72"),
    ];
    for (kind, empty, abc) in known {
        assert_eq!((hex(kind.hash(b"")).as_str(), hex(kind.hash(b"abc")).as_str()), (empty, abc), "{kind}");
    }
}

#[test]
fn blocks_are_hashed_alike_by_any_number_of_threads() {
    let memory: Vec<u8> = (0..5_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for kind in HashKind::ALL {
        for block_bytes in [256, 1_000, 4096, 65_536, 16 << 20] {
            let expected: Vec<_> = memory.chunks(block_bytes).map(|block| kind.hash(block)).collect();
            for threads in [0, 1, 2, 5] {
                let hasher = CpuHasher::new(kind, threads);
                let mut hashes = vec![[0; 16]; expected.len()];
                hasher.hash(&[&memory], block_bytes, &mut hashes);
                assert!(hashes == expected, "{kind}, {block_bytes}, {threads}");
                assert_eq!(hasher.kind(), kind);
            }
        }
    }
    CpuHasher::new(HashKind::Md5, 2).hash(&[], 4096, &mut []);
}

#[test]
#[should_panic(expected = "one hash for each block")]
fn hashes_without_a_place_are_refused() {
    CpuHasher::new(HashKind::Xxh3, 1).hash(&[&[0; 10]], 4, &mut [[0; 16]; 2]);
}
