//! A manifest: the regions and packs of one version of one rank.

use std::{fmt, ops::Range};

use outcrop_region::{MemoryOrder, Shape};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64, U128},
};

use crate::{
    Blocks, FILE_BYTES_MAX, Hash, HashKind, MANIFEST_FORMAT, PAGE_BYTES, PackId, REGIONS_MAX, RunId,
    cursor::{Cursor, check_start},
    error::{Error, Problem, Result, Structure},
    hash::checksum,
    names::{check_session_name, element_name_problem, region_name_problem},
};

/// The largest number of packs in one manifest.
pub const PACKS_MAX: usize = 1 << 20;
/// The largest number of ranks in one run.
pub const RANKS_MAX: u32 = 1 << 24;
/// The largest number of excluded ranges in one region.
pub const EXCLUDED_MAX: usize = 1 << 20;
/// The largest manifest.
pub const MANIFEST_BYTES_MAX: u64 = 128 << 20;

const MAGIC: [u8; 8] = *b"OUTCMANI";

/// One version of one rank, on one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The run that saved it.
    pub run: RunId,
    /// The session that it belongs to.
    pub session: String,
    /// The version.
    pub version: u64,
    /// The rank.
    pub rank: u32,
    /// The number of ranks of the run.
    pub ranks: u32,
    /// When it was saved, in nanoseconds since 1970.
    pub saved_at_unix_ns: u64,
    /// How many bytes this version has added to the layer.
    pub stored_bytes: u64,
    /// Its regions, in the order of the program.
    pub regions: Vec<ManifestRegion>,
    /// The packs that it needs, newest first. A block is taken from the first pack that has it.
    pub packs: Vec<ManifestPack>,
}

/// A region of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestRegion {
    /// Its name.
    pub name: String,
    /// The name of its element type, such as `f32`; empty if it has none.
    pub element: String,
    /// The length of an element.
    pub element_bytes: u32,
    /// How its elements form an array. Format 1 has no shapes: its regions have one dimension.
    pub shape: Shape,
    /// Its length, and how it is cut into blocks.
    pub blocks: Blocks,
    /// How its blocks are hashed.
    pub hash_kind: HashKind,
    /// The bytes that were not saved: ascending ranges that are not adjacent. A block that is
    /// excluded entirely has no place.
    pub excluded: Vec<Range<u64>>,
}

/// A pack that a version needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestPack {
    /// Its rank and number.
    pub id: PackId,
    /// The length of its file.
    pub file_bytes: u64,
    /// The checksum of its index.
    pub index_check: u128,
    /// Whether other packs of this manifest refer to its bytes and its own index is not used. Packs
    /// of other ranks can only be borrowed.
    pub is_borrowed: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    format: U32,
    rank: U32,
    run: U128,
    version: U64,
    saved_at_unix_ns: U64,
    stored_bytes: U64,
    ranks: U32,
    regions: U32,
    packs: U32,
    session_bytes: u8,
}

/// The start of a region, in all formats.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RegionHead {
    bytes: U64,
    block_bytes: U32,
    element_bytes: U32,
    excluded: U32,
    hash_kind: u8,
    name_bytes: u8,
}

/// What follows in format 2. Format 1 has one byte here for the length of the element's name, and
/// nothing else.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ShapeHead {
    element_name_bytes: U16,
    dimensions: u8,
    order: u8,
    is_boxed: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPack {
    number: U64,
    file_bytes: U64,
    index_check: U128,
    rank: U32,
    is_borrowed: u8,
}

impl ManifestRegion {
    /// Whether all bytes of this block are excluded, so it has no place.
    pub fn is_excluded(&self, block: u64) -> bool {
        let bytes = self.blocks.range(block);
        let next = self.excluded.partition_point(|range| range.start <= bytes.start);
        next > 0 && bytes.end <= self.excluded[next - 1].end
    }

    /// The number of blocks that are not excluded entirely.
    fn saved_blocks(&self) -> u64 {
        let (bytes, block_bytes) = (self.blocks.bytes(), u64::from(self.blocks.block_bytes()));
        let excluded = |range: &Range<u64>| {
            let end = if range.end == bytes { self.blocks.count() } else { range.end / block_bytes };
            end.saturating_sub(range.start.div_ceil(block_bytes))
        };
        self.blocks.count() - self.excluded.iter().map(excluded).sum::<u64>()
    }

    fn check(&self) -> std::result::Result<(), Problem> {
        if let Some(problem) = region_name_problem(&self.name).or_else(|| element_name_problem(&self.element)) {
            return Err(format!("region \"{}\": {problem}", self.name.escape_debug()).into());
        }
        let wrong = |problem: String| Err(format!("region \"{}\": {problem}", self.name).into());
        let (bytes, element_bytes) = (self.blocks.bytes(), self.element_bytes);
        if element_bytes == 0 || !bytes.is_multiple_of(element_bytes.into()) {
            return wrong(format!("{bytes} bytes are no whole number of elements of {element_bytes} bytes"));
        }
        if let Err(error) = self.shape.check_bytes(element_bytes as usize, bytes) {
            return wrong(error.to_string());
        }
        if self.excluded.len() > EXCLUDED_MAX {
            return wrong(format!("{} excluded ranges; at most {EXCLUDED_MAX} are possible", self.excluded.len()));
        }
        let mut free_from = 0;
        for (nth, range) in self.excluded.iter().enumerate() {
            let is_apart = nth == 0 || range.start > free_from;
            if !is_apart || range.start >= range.end || range.end > bytes {
                let Range { start, end } = range;
                return wrong(format!(
                    "the excluded bytes {start} to {end} are not in order, empty, or beyond the end"
                ));
            }
            free_from = range.end;
        }
        Ok(())
    }
}

impl Manifest {
    /// The region with this name.
    pub fn region(&self, name: &str) -> Option<&ManifestRegion> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// The total length of all regions, including excluded bytes.
    pub fn full_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.blocks.bytes()).fold(0, u64::saturating_add)
    }

    /// Encodes it.
    pub fn encode(&self) -> Result<Vec<u8>> {
        self.regions.iter().try_for_each(ManifestRegion::check).map_err(unfit)?;
        self.packs.iter().try_for_each(|pack| pack.check(self.rank)).map_err(unfit)?;
        self.check_whole().map_err(unfit)?;
        let mut bytes = Vec::new();
        let head = Head {
            magic: MAGIC,
            format: MANIFEST_FORMAT.into(),
            rank: self.rank.into(),
            run: self.run.0.into(),
            version: self.version.into(),
            saved_at_unix_ns: self.saved_at_unix_ns.into(),
            stored_bytes: self.stored_bytes.into(),
            ranks: self.ranks.into(),
            regions: (self.regions.len() as u32).into(),
            packs: (self.packs.len() as u32).into(),
            session_bytes: self.session.len() as u8,
        };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(self.session.as_bytes());
        for region in &self.regions {
            region.encode_to(&mut bytes);
        }
        for pack in &self.packs {
            let raw = RawPack {
                number: pack.id.number.into(),
                file_bytes: pack.file_bytes.into(),
                index_check: pack.index_check.into(),
                rank: pack.id.rank.into(),
                is_borrowed: pack.is_borrowed.into(),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        let check = checksum(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(unfit(format!(
                "it would have {} bytes; at most {MANIFEST_BYTES_MAX} are possible",
                bytes.len()
            )));
        }
        Ok(bytes)
    }

    /// Decodes a manifest, which is a whole file.
    ///
    /// The caller must compare its session, version and rank with the name of the file.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let structure = Structure::Manifest;
        let format = check_start(structure, MAGIC, MANIFEST_FORMAT, bytes)?;
        let Some((body, written)) = bytes.split_last_chunk::<16>() else {
            return Err(Error::Short { structure, at: 0, needed: 16, available: bytes.len() as u64 });
        };
        let (written, computed) = (u128::from_le_bytes(*written), checksum(body));
        if written != computed {
            return Err(Error::Changed { structure, written, computed });
        }
        let mut cursor = Cursor::new(structure, body);
        let manifest = decode_body(&mut cursor, format)?;
        cursor.end()?;
        manifest.check_whole().map_err(|problem| cursor.wrong_at(0, problem))?;
        Ok(manifest)
    }

    /// Checks everything that concerns more than one region or pack.
    fn check_whole(&self) -> std::result::Result<(), Problem> {
        check_session_name(&self.session).map_err(|error| error.to_string())?;
        if self.rank >= self.ranks || self.ranks > RANKS_MAX {
            return Err(format!("rank {} of {} ranks; at most {RANKS_MAX} are possible", self.rank, self.ranks).into());
        }
        check_count("regions", self.regions.len(), REGIONS_MAX)?;
        check_count("packs", self.packs.len(), PACKS_MAX)?;
        let mut names: Vec<&str> = self.regions.iter().map(|region| region.name.as_str()).collect();
        if let Some(name) = twice(&mut names) {
            return Err(format!("there are two regions \"{name}\"").into());
        }
        self.check_room()?;
        let mut ids: Vec<PackId> = self.packs.iter().map(|pack| pack.id).collect();
        if let Some(id) = twice(&mut ids) {
            return Err(format!("{id} is there twice").into());
        }
        Ok(())
    }
}

impl Manifest {
    /// Checks that its packs can contain all its blocks: a pack's index has a hash for each block.
    fn check_room(&self) -> std::result::Result<(), Problem> {
        let own = self.packs.iter().filter(|pack| !pack.is_borrowed);
        let room: u64 = own.map(|pack| pack.file_bytes - PAGE_BYTES as u64).fold(0, u64::saturating_add);
        let blocks = self.regions.iter().map(ManifestRegion::saved_blocks).fold(0, u64::saturating_add);
        if blocks.saturating_mul(size_of::<Hash>() as u64) <= room {
            return Ok(());
        }
        Err(format!("it has {blocks} blocks, and its packs no room for their hashes").into())
    }
}

impl ManifestPack {
    /// Checks that a manifest of this rank can list it.
    fn check(&self, rank: u32) -> std::result::Result<(), Problem> {
        let Self { id, file_bytes, is_borrowed, .. } = *self;
        if id.rank != rank && !is_borrowed {
            return Err(format!("{id} is not borrowed, and this is rank {rank}").into());
        }
        let possible = 2 * PAGE_BYTES as u64..=FILE_BYTES_MAX;
        if !possible.contains(&file_bytes) || !file_bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Err(format!("{id} has {file_bytes} bytes, which no pack has").into());
        }
        Ok(())
    }
}

impl ManifestRegion {
    fn encode_to(&self, bytes: &mut Vec<u8>) {
        let head = RegionHead {
            bytes: self.blocks.bytes().into(),
            block_bytes: self.blocks.block_bytes().into(),
            element_bytes: self.element_bytes.into(),
            excluded: (self.excluded.len() as u32).into(),
            hash_kind: self.hash_kind.code(),
            name_bytes: self.name.len() as u8,
        };
        let shape_head = ShapeHead {
            element_name_bytes: (self.element.len() as u16).into(),
            dimensions: self.shape.dimensions().len() as u8,
            order: match self.shape.order() {
                MemoryOrder::RowMajor => 0,
                MemoryOrder::ColumnMajor => 1,
            },
            is_boxed: self.shape.global().is_some().into(),
        };
        bytes.extend_from_slice(head.as_bytes());
        bytes.extend_from_slice(shape_head.as_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(self.element.as_bytes());
        let mut extend = |sizes: &[usize]| {
            sizes.iter().for_each(|size| bytes.extend_from_slice(U64::from(*size as u64).as_bytes()));
        };
        extend(self.shape.dimensions());
        if let Some(global) = self.shape.global() {
            extend(global.shape());
            extend(global.offset());
        }
        for range in &self.excluded {
            bytes.extend_from_slice([U64::from(range.start), U64::from(range.end)].as_bytes());
        }
    }
}

/// Decodes everything except the checksum. The caller must call [`Manifest::check_whole`].
fn decode_body(cursor: &mut Cursor<'_>, format: u32) -> Result<Manifest> {
    let head: &Head = cursor.value()?;
    let session = cursor.text(head.session_bytes.into())?.to_owned();
    let regions = (0..head.regions.get()).map(|_| decode_region(cursor, format)).collect::<Result<_>>()?;
    let packs_at = cursor.at();
    let raw_packs: &[RawPack] = cursor.slice(head.packs.get().into())?;
    let mut packs = Vec::with_capacity(raw_packs.len());
    for (nth, raw) in raw_packs.iter().enumerate() {
        let at = packs_at + (nth * size_of::<RawPack>()) as u64;
        if raw.is_borrowed > 1 {
            return Err(cursor.wrong_at(at, format!("a pack has the mark {}, which is not known", raw.is_borrowed)));
        }
        let pack = ManifestPack {
            id: PackId { rank: raw.rank.get(), number: raw.number.get() },
            file_bytes: raw.file_bytes.get(),
            index_check: raw.index_check.get(),
            is_borrowed: raw.is_borrowed == 1,
        };
        pack.check(head.rank.get()).map_err(|problem| cursor.wrong_at(at, problem))?;
        packs.push(pack);
    }
    Ok(Manifest {
        run: RunId(head.run.get()),
        session,
        version: head.version.get(),
        rank: head.rank.get(),
        ranks: head.ranks.get(),
        saved_at_unix_ns: head.saved_at_unix_ns.get(),
        stored_bytes: head.stored_bytes.get(),
        regions,
        packs,
    })
}

fn decode_region(cursor: &mut Cursor<'_>, format: u32) -> Result<ManifestRegion> {
    let at = cursor.at();
    let head: &RegionHead = cursor.value()?;
    let shape_head: Option<&ShapeHead> = if format == 1 { None } else { Some(cursor.value()?) };
    let element_name_bytes = match shape_head {
        None => u64::from(*cursor.value::<u8>()?),
        Some(shape_head) => shape_head.element_name_bytes.get().into(),
    };
    let blocks =
        Blocks::checked(head.bytes.get(), head.block_bytes.get()).map_err(|problem| cursor.wrong_at(at, problem))?;
    let hash_kind = HashKind::from_code(head.hash_kind)
        .ok_or_else(|| cursor.wrong_at(at, format!("hash kind {} is not known", head.hash_kind)))?;
    let name = cursor.text(head.name_bytes.into())?.to_owned();
    let element = cursor.text(element_name_bytes)?.to_owned();
    let element_bytes = head.element_bytes.get();
    let shape = match shape_head {
        None => Shape::flat((blocks.bytes() / u64::from(element_bytes.max(1))) as usize),
        Some(shape_head) => decode_shape(cursor, shape_head)?,
    };
    let excluded = cursor.slice::<[U64; 2]>(head.excluded.get().into())?;
    let excluded = excluded.iter().map(|[start, end]| start.get()..end.get()).collect();
    let region = ManifestRegion { name, element, element_bytes, shape, blocks, hash_kind, excluded };
    region.check().map_err(|problem| cursor.wrong_at(at, problem))?;
    Ok(region)
}

fn decode_shape(cursor: &mut Cursor<'_>, head: &ShapeHead) -> Result<Shape> {
    let at = cursor.at();
    let order = match head.order {
        0 => MemoryOrder::RowMajor,
        1 => MemoryOrder::ColumnMajor,
        other => return Err(cursor.wrong_at(at, format!("memory order {other} is not known"))),
    };
    if head.is_boxed > 1 {
        return Err(cursor.wrong_at(at, format!("a shape has the mark {}, which is not known", head.is_boxed)));
    }
    let mut sizes = || -> Result<Vec<usize>> {
        let sizes = cursor.slice::<U64>(head.dimensions.into())?.iter();
        sizes.map(|size| usize::try_from(size.get()).map_err(|_| cursor.wrong("a dimension is too large"))).collect()
    };
    let dimensions = sizes()?;
    let global = if head.is_boxed == 1 { Some((sizes()?, sizes()?)) } else { None };
    let shape = Shape::new(&dimensions, order).and_then(|shape| match &global {
        None => Ok(shape),
        Some((global, offset)) => shape.in_box(global, offset),
    });
    let shape = shape.map_err(|error| cursor.wrong_at(at, error.to_string()))?;
    if shape.order() != order {
        // Only one encoding of each shape is valid.
        return Err(cursor.wrong_at(at, "column-major order where there is only one order"));
    }
    Ok(shape)
}

fn check_count(what: &str, count: usize, max: usize) -> std::result::Result<(), Problem> {
    if count > max { Err(format!("{count} {what}; at most {max} are possible").into()) } else { Ok(()) }
}

/// A value that occurs twice.
fn twice<T: Ord + Copy>(all: &mut [T]) -> Option<T> {
    all.sort_unstable();
    all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn unfit(problem: impl Into<Problem>) -> Error {
    Error::unfit(Structure::Manifest, problem)
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, version, rank, ranks, regions, packs, .. } = self;
        let (regions, packs) = (regions.len(), packs.len());
        write!(f, "version {version} of {session}, rank {rank} of {ranks}: {regions} regions from {packs} packs")
    }
}
