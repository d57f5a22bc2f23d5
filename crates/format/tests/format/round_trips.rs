//! Round trips: whatever can be written can be read.

use outcrop_format::{
    Blocks, Coding, CodingKind, Decoder, Encoder, Extent, Hash, HashKind, Index, IndexRegion, Manifest, ManifestPack,
    ManifestRegion, PAGE_BYTES, PackHeader, PackId, PackOrigin, REGIONS_MAX, RunId, Stored,
};
use outcrop_region::{MemoryOrder, Shape};
use proptest::{collection::vec, option, prelude::*};

const OWN: PackId = PackId { rank: 2, number: 9 };
const PAYLOAD_BYTES: u64 = 1 << 24;

fn blocks() -> impl Strategy<Value = Blocks> {
    let bytes = prop_oneof![Just(0), 1..100_000_u64, Just(1 << 48)];
    (bytes, 8..=24_u32).prop_map(|(bytes, power)| Blocks::new(bytes, 1 << power).unwrap())
}

/// A name that a region may have.
fn name() -> impl Strategy<Value = String> {
    prop_oneof!["", "[a-z]{1,3}", "\\PC{0,60}", Just("n".repeat(240))]
        .prop_map(|name: String| name.replace('/', "-"))
        .prop_filter("that is a directory", |name| name != "." && name != "..")
}

fn coding() -> impl Strategy<Value = Coding> {
    let kind = prop_oneof![Just(CodingKind::Raw), Just(CodingKind::Lz4), Just(CodingKind::Zstd)];
    (kind, prop_oneof![0..20_u8, any::<u8>()]).prop_map(|(kind, shuffle)| Coding::new(kind, shuffle))
}

/// An extent that may start some blocks after the one before it, and the seed of its hashes.
fn extent() -> impl Strategy<Value = (u64, u32, Option<PackId>, u64, Coding, u32)> {
    let other = option::of((any::<u32>(), any::<u64>()).prop_map(|(rank, number)| PackId { rank, number }));
    (0..3_u64, 1..5_u32, other, 0..PAYLOAD_BYTES, coding(), any::<u32>())
}

/// A region with as many of these extents as fit.
fn region() -> impl Strategy<Value = IndexRegion> {
    (name(), blocks(), vec(extent(), 0..6)).prop_map(|(name, blocks, extents)| {
        let mut region = IndexRegion::new(name, blocks).unwrap();
        let mut next = 0;
        for (gap, count, other, at, coding, seed) in extents {
            let first_block = next + gap;
            let pack = other.unwrap_or(OWN);
            let all: Vec<u64> = (first_block..first_block + u64::from(count)).collect();
            let hashes: Vec<Hash> = all.iter().map(|block| hash_of(*block, seed)).collect();
            let stored: Vec<Stored> = all.iter().map(|block| stored_of(&blocks, *block, seed)).collect();
            let stored = if coding.is_raw() { &[][..] } else { &stored };
            let extent = Extent { first_block, count, pack, at: PAGE_BYTES as u64 + at, coding };
            // Not all of them fit in the region.
            if region.push(extent, &hashes, stored).is_ok() {
                next = extent.blocks().end;
            }
        }
        region
    })
}

fn hash_of(block: u64, seed: u32) -> Hash {
    (u128::from(block) << 64 | u128::from(seed)).to_le_bytes()
}

fn stored_of(blocks: &Blocks, block: u64, seed: u32) -> Stored {
    Stored { bytes: blocks.len(block).saturating_sub(seed % 100).max(1), check: seed }
}

/// One of many shapes with this number of elements.
fn shape_of(count: usize, seed: u8) -> Shape {
    let order = if seed & 1 == 0 { MemoryOrder::RowMajor } else { MemoryOrder::ColumnMajor };
    let factor = (2..=7).find(|factor| count.is_multiple_of(*factor)).unwrap_or(1);
    let shape = match seed >> 1 & 3 {
        0 => return Shape::flat(count),
        1 => Shape::new(&[factor, count / factor], order),
        2 => Shape::new(&[1, count / factor, 1, factor], order),
        _ => {
            Shape::new(&[count, 1], order).and_then(|shape| shape.in_box(&[count + 9, 4], &[usize::from(seed & 8), 3]))
        }
    };
    shape.unwrap()
}

fn manifest_region() -> impl Strategy<Value = ManifestRegion> {
    let kind = prop_oneof![Just(HashKind::Xxh3), Just(HashKind::Blake3), Just(HashKind::Md5)];
    (name(), "\\PC{0,300}", blocks(), kind, vec((1..3000_u64, 1..3000_u64), 0..5), any::<u8>()).prop_map(
        |(name, element, blocks, hash_kind, gaps, seed)| {
            let mut excluded = Vec::new();
            let mut from = 0;
            for (gap, length) in gaps {
                if from + gap + length <= blocks.bytes() {
                    excluded.push(from + gap..from + gap + length);
                    from += gap + length;
                }
            }
            let shape = shape_of(blocks.bytes() as usize, seed);
            ManifestRegion { name, element, element_bytes: 1, shape, blocks, hash_kind, excluded }
        },
    )
}

fn manifest() -> impl Strategy<Value = Manifest> {
    let pack = (any::<u64>(), 2..1_u64 << 44, any::<u128>(), option::of(any::<u32>()));
    let numbers = (any::<u128>(), any::<u64>(), 0..1_u32 << 24, any::<u64>(), any::<u64>());
    ("[a-zA-Z0-9_-][a-zA-Z0-9_.-]{0,127}", numbers, vec(manifest_region(), 0..5), vec(pack, 0..6)).prop_map(
        |(session, (run, version, rank, saved_at_unix_ns, stored_bytes), mut regions, packs)| {
            regions.sort_by(|a, b| b.name.cmp(&a.name));
            regions.dedup_by(|a, b| a.name == b.name);
            let mut packs: Vec<ManifestPack> = packs
                .into_iter()
                .map(|(number, pages, index_check, other)| ManifestPack {
                    id: PackId { rank: other.unwrap_or(rank), number },
                    file_bytes: pages * PAGE_BYTES as u64,
                    index_check,
                    is_borrowed: other.is_some(),
                })
                .collect();
            // A pack that is large enough for all the blocks.
            let id = PackId { rank, number: 0 };
            packs.insert(0, ManifestPack { id, file_bytes: 1 << 56, index_check: 7, is_borrowed: false });
            packs.sort_by_key(|pack| pack.id);
            packs.dedup_by_key(|pack| pack.id);
            let run = RunId(run);
            let ranks = rank + 1;
            Manifest { run, session, version, rank, ranks, saved_at_unix_ns, stored_bytes, regions, packs }
        },
    )
}

proptest! {
    #[test]
    fn packs(mut regions in vec(region(), 0..5), run: u128, version: u64, payload_pages in 4096..4200_u64) {
        regions.sort_by(|a, b| b.name().cmp(a.name()));
        regions.dedup_by(|a, b| a.name() == b.name());
        let index = Index::new(regions.clone()).unwrap();
        let bytes = index.encode().unwrap();
        prop_assert_eq!(index.size().bytes(), bytes.len() as u64);
        let origin = PackOrigin { run: RunId(run), id: OWN, version, hash_kind: HashKind::Blake3 };
        // Extents may start anywhere in the first 16 MiB. Those that end later need a longer
        // payload.
        let payload_bytes = payload_pages * PAGE_BYTES as u64 + (1 << 27);
        let header = PackHeader::new(origin, payload_bytes, PAGE_BYTES as u64 + payload_bytes, &bytes).unwrap();
        prop_assert_eq!(PackHeader::decode(&header.encode()), Ok(header));
        prop_assert_eq!(header.origin(), &origin);
        prop_assert_eq!(header.file_bytes(), index.size().file_bytes(payload_bytes));
        let read = header.decode_index(&bytes).unwrap();
        prop_assert_eq!(&read, &index);
        for region in regions {
            prop_assert_eq!(read.region(region.name()), Some(&region));
        }
    }

    #[test]
    fn every_block_is_found_where_its_extent_says(region in region()) {
        let mut expected = Vec::new();
        for extent in region.extents() {
            let mut at = extent.at;
            for block in extent.blocks() {
                expected.push((block, extent.pack, at, extent.coding));
                let place = region.find(block).unwrap();
                prop_assert_eq!((place.pack, place.at, place.coding), (extent.pack, at, extent.coding));
                prop_assert_eq!(&place.hash[8..], block.to_le_bytes());
                at += u64::from(place.stored.bytes);
                prop_assert!(place.stored.bytes == place.plain_bytes || !extent.coding.is_raw());
            }
        }
        let places = region.places().map(|(block, place)| (block, place.pack, place.at, place.coding));
        prop_assert_eq!(places.collect::<Vec<_>>(), expected.clone());
        for block in (0..30).filter(|block| expected.iter().all(|(there, ..)| there != block)) {
            prop_assert_eq!(region.find(block), None);
        }
    }

    #[test]
    fn manifests(manifest in manifest()) {
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
    }

    #[test]
    fn excluded_blocks(region in manifest_region()) {
        for block in 0..region.blocks.count().min(400) {
            let bytes = region.blocks.range(block);
            let is_inside = region.excluded.iter().any(|range| range.start <= bytes.start && bytes.end <= range.end);
            prop_assert_eq!(region.is_excluded(block), is_inside);
        }
    }

    #[test]
    fn coded_blocks(coding in coding(), seeds in vec((any::<u8>(), 1..200_usize), 0..20), level in 0..6_i32) {
        let block: Vec<u8> = seeds.iter().flat_map(|&(byte, count)| std::iter::repeat_n(byte, count)).collect();
        let mut encoder = Encoder::new(coding, level).unwrap();
        let mut decoder = Decoder::new();
        // Twice, because both reuse their memory. The second block is shorter.
        for block in [&block[..], &block[..block.len() / 2]] {
            let mut coded = vec![0xee; block.len() + 7];
            let stored = encoder.encode(block, &mut coded).unwrap();
            prop_assert!(stored.bytes as usize <= block.len());
            prop_assert!(coded[block.len()..].iter().all(|&byte| byte == 0xee));
            let mut plain = vec![0; block.len()];
            decoder.decode(coding, stored.check, &coded[..stored.bytes as usize], &mut plain).unwrap();
            prop_assert_eq!(&plain, block);
        }
    }
}

/// The largest counts all at once would take gigabytes. The largest of each alone does not.
#[test]
fn the_largest_counts_and_blocks() {
    let large = Blocks::new(1 << 24, 256).unwrap();
    let mut region = IndexRegion::new("r", large).unwrap();
    for block in 0..large.count() {
        let extent = Extent { first_block: block, count: 1, pack: OWN, at: PAGE_BYTES as u64, coding: Coding::RAW };
        region.push(extent, &[hash_of(block, 1)], &[]).unwrap();
    }
    let mut regions = vec![region];
    let names = (1..REGIONS_MAX).map(|nth| format!("{nth:020}"));
    regions.extend(names.map(|name| IndexRegion::new(name, Blocks::new(1 << 48, 16 << 20).unwrap()).unwrap()));
    let index = Index::new(regions.clone()).unwrap();
    let bytes = index.encode().unwrap();
    let origin = PackOrigin { run: RunId(0), id: OWN, version: 0, hash_kind: HashKind::Md5 };
    let header = PackHeader::new(origin, 256, PAGE_BYTES as u64 + 256, &bytes).unwrap();
    assert!(header.decode_index(&bytes).unwrap() == index);
    regions.push(IndexRegion::new("one too many", large).unwrap());
    assert!(Index::new(regions).is_err());

    let block: Vec<u8> = (0..16 << 20).map(|nth: u32| (nth / 1000 % 251) as u8).collect();
    for kind in [CodingKind::Lz4, CodingKind::Zstd] {
        let coding = Coding::new(kind, 8);
        let mut coded = vec![0; block.len()];
        let stored = Encoder::new(coding, 1).unwrap().encode(&block, &mut coded).unwrap();
        assert!((stored.bytes as usize) < block.len() / 10);
        let mut plain = vec![0; block.len()];
        Decoder::new().decode(coding, stored.check, &coded[..stored.bytes as usize], &mut plain).unwrap();
        assert!(plain == block);
    }
}

#[test]
fn hashes_and_runs_have_the_names_that_tools_print() {
    let names = HashKind::ALL.map(|kind| kind.to_string());
    assert_eq!(names, ["xxh3-128", "blake3-128", "md5"]);
    assert_eq!(RunId(0xab).to_string(), "000000000000000000000000000000ab");
}
