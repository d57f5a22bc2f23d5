//! The rate of hashing blocks, compared with reading them.

use std::{hint::black_box, thread};

use bytesize::ByteSize;
use outcrop_track::{CpuHasher, Hash, HashKind, Hasher};
use serde_json::{Value, json};

use super::{Options, tracking::BLOCK_BYTES};
use crate::clock::Calls;

/// The block sizes.
const BLOCKS: [usize; 9] = [256, 1 << 10, BLOCK_BYTES, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// The kinds of hashes, and their names in the report.
const KINDS: [(HashKind, &str); 3] = [(HashKind::Xxh3, "xxh3"), (HashKind::Blake3, "blake3"), (HashKind::Md5, "md5")];

/// Slow hashes are limited by arithmetic and not by memory, so part of the memory is enough.
const SLOW_BYTES_MAX: usize = 32 << 20;

/// Rounds of each measurement. The median counts.
const ROUNDS: usize = 3;

/// The results.
pub(super) struct Hashing {
    pub(super) rows: Vec<Value>,
    pub(super) over_read_bandwidth: f64,
}

pub(super) fn measure(options: &Options, progress: &mut dyn FnMut(&str)) -> Hashing {
    let mut random = fastrand::Rng::with_seed(4);
    let words: Vec<u64> = (0..options.state_bytes / 8).map(|_| random.u64(..)).collect();
    let memory: &[u8] = zerocopy::IntoBytes::as_bytes(&*words);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    let mut over_read_bandwidth = 0.0;
    for block_bytes in BLOCKS {
        let way = format!("blocks of {}", ByteSize(block_bytes as u64).display().iec());
        progress(&format!("hashing {way}"));
        let mut row = json!({ "part": "hashing", "way": way });
        for (kind, kind_name) in KINDS {
            let memory = if kind == HashKind::Xxh3 { memory } else { &memory[..memory.len().min(SLOW_BYTES_MAX)] };
            for (name, threads) in [("one", 1), ("all", threads)] {
                let hasher = CpuHasher::new(kind, threads);
                row[format!("{kind_name}_{name}_gb_per_second")] = hash_rate(&hasher, memory, block_bytes).into();
            }
        }
        if block_bytes == BLOCK_BYTES {
            let (hash, read) = hash_and_read(&words, memory);
            row["xxh3_one_gb_per_second"] = hash.into();
            row["read_one_gb_per_second"] = read.into();
            over_read_bandwidth = hash / read;
        }
        rows.push(row);
    }
    // Figure 2 of the paper: MD5 on a graphics card, including the copies to it and back.
    rows.push(
        json!({ "part": "hashing", "way": "the paper: a GPU at best, with copies", "md5_all_gb_per_second": 1.4 }),
    );
    Hashing { rows, over_read_bandwidth }
}

fn hash_rate(hasher: &CpuHasher, memory: &[u8], block_bytes: usize) -> f64 {
    let mut hashes = vec![Hash::default(); memory.len().div_ceil(block_bytes)];
    let mut calls = Calls::default();
    for _ in 0..ROUNDS {
        calls.time(|| hasher.hash(black_box(&[memory]), block_bytes, black_box(&mut hashes)));
    }
    gb_per_second(memory, &calls)
}

/// The rates of hashing with the defaults, and of summing all words, both on one core. They are
/// interleaved, because the speed of the machine varies.
fn hash_and_read(words: &[u64], memory: &[u8]) -> (f64, f64) {
    let hasher = CpuHasher::new(HashKind::Xxh3, 1);
    let mut hashes = vec![Hash::default(); memory.len().div_ceil(BLOCK_BYTES)];
    let (mut hashing, mut reading) = (Calls::default(), Calls::default());
    for _ in 0..3 * ROUNDS {
        reading.time(|| black_box(black_box(words).iter().fold(0, |sum: u64, word| sum.wrapping_add(*word))));
        hashing.time(|| hasher.hash(black_box(&[memory]), BLOCK_BYTES, black_box(&mut hashes)));
    }
    (gb_per_second(memory, &hashing), gb_per_second(memory, &reading))
}

fn gb_per_second(memory: &[u8], calls: &Calls) -> f64 {
    memory.len() as f64 / calls.quantile(0.5) / 1e9
}
