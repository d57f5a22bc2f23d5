//! The packs and manifests whose bytes are committed: a small one, which the documentation shows,
//! and one with every feature.

use outcrop_format::{
    Blocks, Coding, CodingKind, Extent, Hash, HashKind, Index, IndexRegion, Manifest, ManifestPack, ManifestRegion,
    PAGE_BYTES, PackHeader, PackId, PackOrigin, RunId, Stored,
};
use outcrop_region::{MemoryOrder, Shape};
use twox_hash::{XxHash3_64, XxHash3_128};

/// The run of all samples.
pub(crate) const RUN: RunId = RunId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

const PAGE: u64 = PAGE_BYTES as u64;
/// 256 bytes of 7, compressed with LZ4. These bytes are written down because another version of LZ4
/// may compress them differently.
const LZ4_BLOCK: [u8; 12] = [0x1f, 7, 1, 0, 0xe6, 0x60, 7, 7, 7, 7, 7, 7];
/// The same, compressed with Zstandard.
const ZSTD_BLOCK: [u8; 19] = [0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 0, 0x4d, 0, 0, 0x10, 7, 7, 1, 0, 0x7b, 0x0a, 0x60, 1];

/// A pack, and the manifest that lists it.
pub(crate) struct Sample {
    /// The file: a whole number of pages.
    pub(crate) file: Vec<u8>,
    /// Its header.
    pub(crate) header: PackHeader,
    /// Its index.
    pub(crate) index: Index,
    /// The manifest.
    pub(crate) manifest: Manifest,
}

/// The hash of a block.
pub(crate) fn hash(block: &[u8]) -> Hash {
    XxHash3_128::oneshot(block).to_be_bytes()
}

fn stored(bytes: &[u8]) -> Stored {
    Stored { bytes: bytes.len() as u32, check: XxHash3_64::oneshot(bytes) as u32 }
}

fn region(name: &str, (element, element_bytes): (&str, u32), shape: Shape, blocks: Blocks) -> ManifestRegion {
    let (name, element) = (name.to_owned(), element.to_owned());
    ManifestRegion { name, element, element_bytes, shape, blocks, hash_kind: HashKind::Xxh3, excluded: Vec::new() }
}

/// A manifest as format 1 can represent it: every region has one dimension.
pub(crate) fn flattened(mut manifest: Manifest) -> Manifest {
    manifest.regions.iter_mut().for_each(|region| region.shape = Shape::flat(region.shape.count()));
    manifest
}

fn named(header: &PackHeader) -> ManifestPack {
    let id = header.origin().id;
    ManifestPack { id, file_bytes: header.file_bytes(), index_check: header.index_check(), is_borrowed: false }
}

fn seal(id: PackId, payload: &[u8], index: &Index) -> (Vec<u8>, PackHeader) {
    let origin = PackOrigin { run: RUN, id, version: 42, hash_kind: HashKind::Xxh3 };
    let payload_bytes = payload.len() as u64;
    // What the slot held before must not remain in the pack.
    let mut file = vec![0xee; index.size().file_bytes(payload_bytes) as usize + 100];
    file[PAGE_BYTES..PAGE_BYTES + payload.len()].copy_from_slice(payload);
    let header = PackHeader::seal(origin, payload_bytes, index, &mut file).unwrap();
    assert!(file[header.file_bytes() as usize..].iter().all(|&byte| byte == 0xee));
    file.truncate(header.file_bytes() as usize);
    (file, header)
}

/// One region of 32 bytes in one block: an array of 2 x 4 numbers.
pub(crate) fn small() -> Sample {
    let id = PackId { rank: 0, number: 7 };
    let payload: Vec<u8> = (0..8).flat_map(|number| (number as f32).to_le_bytes()).collect();
    let blocks = Blocks::new(32, 256).unwrap();
    let mut field = IndexRegion::new("field", blocks).unwrap();
    let extent = Extent { first_block: 0, count: 1, pack: id, at: PAGE, coding: Coding::RAW };
    field.push(extent, &[hash(&payload)], &[]).unwrap();
    let index = Index::new(vec![field]).unwrap();
    let (file, header) = seal(id, &payload, &index);
    let manifest = Manifest {
        run: RUN,
        session: "heat".to_owned(),
        version: 42,
        rank: 0,
        ranks: 1,
        saved_at_unix_ns: 1_700_000_000_000_000_000,
        stored_bytes: header.file_bytes(),
        regions: vec![region("field", ("f32", 4), Shape::new(&[2, 4], MemoryOrder::RowMajor).unwrap(), blocks)],
        packs: vec![named(&header)],
    };
    Sample { file, header, index, manifest }
}

/// A nameless region, an empty one, and one with all kinds of blocks: raw, twice in the pack, in
/// another pack, compressed, in a compressed extent but stored raw, and a shorter last one.
pub(crate) fn full() -> Sample {
    let id = PackId { rank: 1, number: u64::MAX };
    let other = PackId { rank: 0, number: 3 };
    let sevens = [7; 256];
    let noise: [u8; 256] = std::array::from_fn(|nth| (nth * 167 + 13) as u8);
    let payload = [
        &[0x11; 256][..],
        &[0x22; 256],
        &LZ4_BLOCK,
        &ZSTD_BLOCK,
        &noise,
        &[0x33; 208],
        // There may be zeros between two blocks.
        &[0; 5],
        &[0x44; 100],
    ]
    .concat();
    let field_blocks = Blocks::new(2000, 256).unwrap();
    let mut field = IndexRegion::new("Feld ö", field_blocks).unwrap();
    let lz4 = Coding::new(CodingKind::Lz4, 4);
    let zstd = Coding::new(CodingKind::Zstd, 0);
    let mut push = |first_block, count, pack, at, coding, hashes: &[Hash], stored: &[Stored]| {
        field.push(Extent { first_block, count, pack, at, coding }, hashes, stored).unwrap();
    };
    push(0, 2, id, PAGE, Coding::RAW, &[hash(&[0x11; 256]), hash(&[0x22; 256])], &[]);
    push(2, 1, id, PAGE, Coding::RAW, &[hash(&[0x11; 256])], &[]);
    push(3, 1, other, PAGE + 512, Coding::RAW, &[hash(&[0x55; 256])], &[]);
    push(4, 1, id, PAGE + 512, lz4, &[hash(&sevens)], &[stored(&LZ4_BLOCK)]);
    push(5, 2, id, PAGE + 524, zstd, &[hash(&sevens), hash(&noise)], &[stored(&ZSTD_BLOCK), stored(&noise)]);
    push(7, 1, id, PAGE + 799, Coding::RAW, &[hash(&[0x33; 208])], &[]);
    let nameless_blocks = Blocks::new(100, 16 << 20).unwrap();
    let mut nameless = IndexRegion::new("", nameless_blocks).unwrap();
    let extent = Extent { first_block: 0, count: 1, pack: id, at: PAGE + 1012, coding: Coding::RAW };
    nameless.push(extent, &[hash(&[0x44; 100])], &[]).unwrap();
    let empty_blocks = Blocks::new(0, 4096).unwrap();
    let empty = IndexRegion::new("empty", empty_blocks).unwrap();
    let index = Index::new(vec![field, nameless, empty]).unwrap();
    let (file, header) = seal(id, &payload, &index);
    let borrowed = ManifestPack { id: other, file_bytes: 1 << 20, index_check: u128::MAX - 1, is_borrowed: true };
    let shape = Shape::new(&[10, 25], MemoryOrder::ColumnMajor).unwrap().in_box(&[40, 25], &[30, 0]).unwrap();
    let field_region =
        ManifestRegion { excluded: vec![0..3, 512..1100], ..region("Feld ö", ("f64", 8), shape, field_blocks) };
    let empty_shape = Shape::new(&[3, 0], MemoryOrder::RowMajor).unwrap();
    let regions = vec![
        field_region,
        region("", ("", 1), Shape::flat(100), nameless_blocks),
        region("empty", ("u8", 1), empty_shape, empty_blocks),
    ];
    let manifest = Manifest {
        run: RUN,
        session: "heat-2.b_x".to_owned(),
        version: u64::MAX,
        rank: 1,
        ranks: 2,
        saved_at_unix_ns: u64::MAX,
        stored_bytes: header.file_bytes(),
        regions,
        packs: vec![named(&header), borrowed],
    };
    Sample { file, header, index, manifest }
}
