//! What was saved is what is read: all kinds of chains, codings, hashes and block sizes, whole or
//! in parts.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
};

use outcrop_catalog::{Catalog, Error, Reader};
use outcrop_format::{Coding, CodingKind, HashKind, pack_name};

use crate::fixture::{Region, Writer, pattern};

fn reader(catalog: &Catalog, version: u64, rank: u32) -> Reader {
    let version = catalog.version("heat", Some(version)).unwrap();
    catalog.reader(&version.manifests[&rank]).unwrap()
}

#[test]
fn random_histories_come_back_whole_and_in_parts() {
    let codings = [Coding::RAW, Coding::new(CodingKind::Lz4, 0), Coding::new(CodingKind::Zstd, 4)];
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(directory.path(), "heat", 2);
        writer.hash_kind = [HashKind::Xxh3, HashKind::Blake3, HashKind::Md5][seed as usize % 3];
        writer.is_deduplicating = seed % 2 == 0;
        let block_bytes = [256, 1024, 4096][random.usize(0..3)];
        let mut states: Vec<Vec<Region>> = (0..2)
            .map(|rank| {
                let region = |name: &str, coding| Region::new(name, block_bytes, pattern(rank, 20_000)).coded(coding);
                vec![region("", codings[0]), region("field", codings[seed as usize % 3])]
            })
            .collect();
        let mut saved = Vec::new();
        for version in 0..8 {
            for (rank, regions) in (0..).zip(&mut states) {
                for region in regions.iter_mut() {
                    for _ in 0..random.usize(0..4) {
                        let at = random.usize(0..region.bytes.len() - 600);
                        region.bytes[at..at + random.usize(1..600)].fill(random.u8(..));
                    }
                }
                if random.u8(0..5) == 0 {
                    let bytes = random.usize(1000..30_000);
                    regions[1].bytes.resize(bytes, 9);
                }
                writer.save(rank, version, regions);
                saved.push((version, rank, regions.clone()));
            }
        }
        let catalog = Catalog::open(directory.path()).unwrap();
        for (version, rank, regions) in saved {
            let reader = reader(&catalog, version, rank);
            for region in regions {
                assert!(reader.read_region(&region.name).unwrap() == region.bytes, "seed {seed}, version {version}");
                let start = random.usize(0..=region.bytes.len());
                let end = random.usize(start..=region.bytes.len());
                let mut part = vec![0; end - start];
                reader.read(&region.name, start as u64, &mut part, &|_| {}).unwrap();
                assert!(part == region.bytes[start..end], "seed {seed}, version {version}, bytes {start} to {end}");
            }
        }
    }
}

#[test]
fn large_regions_are_read_by_several_threads_and_every_byte_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    let mut region = Region::new("field", 64 << 10, pattern(1, (40 << 20) + 777));
    writer.save(0, 1, std::slice::from_ref(&region));
    for at in (0..region.bytes.len()).step_by(3 << 20) {
        region.bytes[at] ^= 1;
    }
    writer.save(0, 2, std::slice::from_ref(&region));
    let catalog = Catalog::open(directory.path()).unwrap();
    let reader = reader(&catalog, 2, 0);
    let done = AtomicU64::new(0);
    let mut bytes = vec![0; region.bytes.len()];
    reader.read("field", 0, &mut bytes, &|count| _ = done.fetch_add(count, Ordering::Relaxed)).unwrap();
    assert!(bytes == region.bytes);
    assert_eq!(done.into_inner(), region.bytes.len() as u64);
}

#[test]
fn the_largest_and_the_smallest_blocks_work() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    let regions = [
        Region::new("large", 16 << 20, pattern(1, (33 << 20) + 5)),
        Region::new("small", 256, pattern(2, 70_001)),
        Region::new("empty", 256, Vec::new()),
    ];
    writer.save(0, 1, &regions);
    let catalog = Catalog::open(directory.path()).unwrap();
    let reader = reader(&catalog, 1, 0);
    for region in &regions {
        assert!(reader.read_region(&region.name).unwrap() == region.bytes, "{}", region.name);
    }
    let places: Vec<_> = reader.places("large").unwrap().map(|(block, _, place)| (block, place.plain_bytes)).collect();
    assert_eq!(places, [(0, 16 << 20), (1, 16 << 20), (2, (1 << 20) + 5)]);
}

#[test]
fn excluded_bytes_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    let region = Region::new("field", 256, vec![1; 4096]).without(0..300).without(1024..2048).without(3000..3001);
    writer.save(0, 1, std::slice::from_ref(&region));
    let catalog = Catalog::open(directory.path()).unwrap();
    let reader = reader(&catalog, 1, 0);
    let mut bytes = vec![7; 4096];
    reader.read("field", 0, &mut bytes, &|_| {}).unwrap();
    let is_excluded = |at: u64| region.excluded.iter().any(|range| range.contains(&at));
    for (at, byte) in (0..).zip(bytes) {
        assert_eq!(byte, if is_excluded(at) { 7 } else { 1 }, "byte {at}");
    }
    assert_eq!(reader.places("field").unwrap().count(), 16 - 5);
}

#[test]
fn what_does_not_exist_is_said_to_be_missing() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    writer.save(0, 3, &[Region::new("field", 256, vec![1; 1000])]);
    let catalog = Catalog::open(directory.path()).unwrap();
    assert!(matches!(catalog.version("cold", None), Err(Error::NoSession { .. })));
    let error = catalog.version("heat", Some(4)).unwrap_err();
    assert!(error.to_string().contains("the complete versions are: 3"), "{error}");
    let reader = reader(&catalog, 3, 0);
    assert!(matches!(reader.read_region("other"), Err(Error::NoRegion { .. })));
    let mut bytes = [0; 8];
    for at in [993, 1000, u64::MAX] {
        assert!(matches!(reader.read("field", at, &mut bytes, &|_| {}), Err(Error::OutOfRange { .. })), "{at}");
    }
    reader.read("field", 992, &mut bytes, &|_| {}).unwrap();
    reader.read("field", 1000, &mut [], &|_| {}).unwrap();
    let error = Catalog::open(&directory.path().join("none")).err().unwrap();
    assert!(matches!(error, Error::Open { .. }) && error.to_string().contains("none"), "{error}");
}

#[test]
fn a_changed_byte_is_named_with_all_that_is_known_about_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path(), "heat", 1);
    let id = writer.save(0, 3, &[Region::new("field", 256, vec![1; 1000])]);
    let path = writer.rank_dir(0).join(pack_name(id.number));
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096 + 300] ^= 4;
    fs::write(&path, bytes).unwrap();
    let catalog = Catalog::open(directory.path()).unwrap();
    let reader = reader(&catalog, 3, 0);
    let error = reader.read_region("field").unwrap_err();
    assert!(error.is_damage());
    let message = error.to_string();
    let file = path.canonicalize().unwrap().display().to_string();
    for words in ["version 3 of heat", "rank 0", "\"field\"", "bytes 256 to 512", "bytes 4352 to 4608", &file] {
        assert!(message.contains(words), "{words} is not in {message}");
    }
    let mut rest = [0; 200];
    reader.read("field", 0, &mut rest, &|_| {}).unwrap();
    assert_eq!(rest, [1; 200], "what is not damaged can be read");
}
