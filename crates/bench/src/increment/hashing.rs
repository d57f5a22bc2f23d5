//! The rate of hashing blocks, on the processor and on devices, compared with reading them.

use std::{hint::black_box, sync::Arc, thread};

use anyhow::Result;
use bytesize::ByteSize;
use outcrop::layers::{Buffer, Device, DeviceHasher, FoundDevice, devices, open_device};
use outcrop_track::{CpuHasher, Hash, HashKind, Hasher, hasher_on};
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
    let words = random_words(options);
    let memory: &[u8] = zerocopy::IntoBytes::as_bytes(&*words);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    let mut over_read_bandwidth = 0.0;
    for block_bytes in BLOCKS {
        let mut row = row("hashing", block_bytes);
        progress(&format!("hashing {}", row["way"]));
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

/// The rates of all devices of this machine, with the copies to them and back, and of what is on
/// them already. A device that cannot hash has no rows.
pub(super) fn measure_devices(options: &Options, progress: &mut dyn FnMut(&str)) -> Vec<Value> {
    let words = random_words(options);
    let memory: &[u8] = zerocopy::IntoBytes::as_bytes(&*words);
    let mut rows = Vec::new();
    for found in devices() {
        match measure_device(&found, memory, progress) {
            Ok(of_device) => rows.extend(of_device),
            Err(error) => progress(&format!("nothing on {}: {error:#}", found.model)),
        }
    }
    rows
}

fn measure_device(found: &FoundDevice, memory: &[u8], progress: &mut dyn FnMut(&str)) -> Result<Vec<Value>> {
    let device = open_device(found.kind, found.index)?;
    let part = format!("{} ({})", device.name(), found.model);
    let mut buffer = device.buffer(memory.len() as u64)?;
    buffer.write(&*device, 0, memory)?;
    let mut rows = Vec::new();
    for block_bytes in BLOCKS {
        let mut row = row(&part, block_bytes);
        progress(&format!("hashing {} on {part}", row["way"]));
        for (kind, kind_name) in KINDS.into_iter().filter(|(kind, _)| *kind != HashKind::Blake3) {
            let (copied, in_place) = device_rates(&device, kind, memory, &buffer, block_bytes)?;
            row[format!("{kind_name}_device_gb_per_second")] = copied.into();
            row[format!("{kind_name}_in_place_gb_per_second")] = in_place.into();
        }
        rows.push(row);
    }
    Ok(rows)
}

/// With copies, and in place.
fn device_rates(
    device: &Arc<dyn Device>,
    kind: HashKind,
    memory: &[u8],
    buffer: &Buffer,
    block_bytes: usize,
) -> Result<(f64, f64)> {
    let hasher: DeviceHasher = hasher_on(Arc::clone(device), kind)?;
    let mut hashes = vec![Hash::default(); memory.len().div_ceil(block_bytes)];
    let (mut copied, mut in_place) = (Calls::default(), Calls::default());
    // The first round takes memory, and does not count.
    for round in 0..=ROUNDS {
        let (mut first_copied, mut first_in_place) = (Calls::default(), Calls::default());
        let (copied, in_place) =
            if round == 0 { (&mut first_copied, &mut first_in_place) } else { (&mut copied, &mut in_place) };
        copied.time(|| hasher.hash(&[memory], block_bytes, &mut hashes))?;
        in_place.time(|| hasher.hash_buffer(buffer, 0, memory.len() as u64, block_bytes, &mut hashes))?;
    }
    Ok((gb_per_second(memory, &copied), gb_per_second(memory, &in_place)))
}

fn random_words(options: &Options) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(4);
    (0..options.state_bytes / 8).map(|_| random.u64(..)).collect()
}

fn row(part: &str, block_bytes: usize) -> Value {
    let way = format!("blocks of {}", ByteSize(block_bytes as u64).display().iec());
    json!({ "part": part, "way": way, "block_bytes": block_bytes })
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
