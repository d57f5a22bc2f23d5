//! The index of a pack: its blocks by region, where their bytes lie, and their hashes.

use std::ops::Range;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use crate::{
    Blocks, Coding, FILE_BYTES_MAX, Hash, INDEX_BYTES_MAX, PAGE_BYTES, PackId, REGIONS_MAX, Stored,
    cursor::Cursor,
    error::{Error, Problem, Result, Structure},
    names::{check_region_name, region_name_problem},
};

/// Consecutive blocks of a region whose stored bytes are consecutive too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first of them.
    pub first_block: u64,
    /// The number of blocks.
    pub count: u32,
    /// The pack whose file contains their bytes: mostly the pack of this index.
    pub pack: PackId,
    /// The offset of the first block in that file.
    pub at: u64,
    /// How they are stored.
    pub coding: Coding,
}

impl Extent {
    /// The blocks.
    pub fn blocks(&self) -> Range<u64> {
        self.first_block..self.first_block.saturating_add(u64::from(self.count))
    }

    /// How many of its blocks are coded: all or none.
    fn stored_count(&self) -> usize {
        if self.coding.is_raw() { 0 } else { self.count as usize }
    }
}

/// Where a block lies, and its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The pack whose file contains it.
    pub pack: PackId,
    /// Its offset in that file.
    pub at: u64,
    /// Its stored bytes.
    pub stored: Stored,
    /// The length of the block itself, decoded.
    pub plain_bytes: u32,
    /// How it is stored.
    pub coding: Coding,
    /// The hash of the block itself, decoded.
    pub hash: Hash,
}

impl Place {
    /// Its range in the file.
    pub fn range(&self) -> Range<u64> {
        self.at..self.at + u64::from(self.stored.bytes)
    }
}

/// The counts that determine the size of an index. A writer of a pack can compute the size before
/// the index is known, from the largest possible counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexSize {
    /// The number of regions.
    pub regions: u64,
    /// The total length of their names.
    pub name_bytes: u64,
    /// The number of extents.
    pub extents: u64,
    /// The number of blocks, coded or not.
    pub blocks: u64,
    /// The number of coded blocks.
    pub coded_blocks: u64,
}

impl IndexSize {
    /// The length of the index.
    pub const fn bytes(&self) -> u64 {
        (size_of::<U32>() as u64)
            .saturating_add(self.regions.saturating_mul(size_of::<RegionHead>() as u64))
            .saturating_add(self.name_bytes)
            .saturating_add(self.extents.saturating_mul(size_of::<RawExtent>() as u64))
            .saturating_add(self.blocks.saturating_mul(size_of::<Hash>() as u64))
            .saturating_add(self.coded_blocks.saturating_mul(size_of::<RawStored>() as u64))
    }

    /// The length of a pack file with such an index and a payload of this length.
    pub const fn file_bytes(&self, payload_bytes: u64) -> u64 {
        let end = (PAGE_BYTES as u64).saturating_add(payload_bytes).saturating_add(self.bytes());
        match end.checked_next_multiple_of(PAGE_BYTES as u64) {
            Some(bytes) => bytes,
            None => u64::MAX,
        }
    }
}

/// The blocks of one region in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexRegion {
    name: String,
    blocks: Blocks,
    extents: Vec<Listed>,
    /// The hashes of all extents, one after the other.
    hashes: Vec<Hash>,
    /// The stored blocks of all coded extents, one after the other, with the offset of each.
    stored: Vec<(u64, Stored)>,
}

/// An extent, and the position of its blocks in the lists of the region.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    extent: Extent,
    hashes_start: usize,
    stored_start: usize,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RegionHead {
    bytes: U64,
    block_bytes: U32,
    extents: U32,
    name_bytes: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawExtent {
    first_block: U64,
    at: U64,
    pack_number: U64,
    pack_rank: U32,
    count: U32,
    coding: u8,
    shuffle: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStored {
    bytes: U32,
    check: U32,
}

impl IndexRegion {
    /// A region without extents.
    pub fn new(name: impl Into<String>, blocks: Blocks) -> Result<Self> {
        let name = name.into();
        check_region_name(&name)?;
        Ok(Self { name, blocks, extents: Vec::new(), hashes: Vec::new(), stored: Vec::new() })
    }

    /// Appends an extent. There is one hash per block and, if the blocks are coded, one [`Stored`]
    /// per block.
    pub fn push(&mut self, extent: Extent, hashes: &[Hash], stored: &[Stored]) -> Result<()> {
        self.add(extent, hashes, stored.iter().copied())
            .map_err(|problem| Error::unfit(Structure::PackIndex, format!("region \"{}\": {problem}", self.name)))
    }

    fn add(
        &mut self,
        extent: Extent,
        hashes: &[Hash],
        stored: impl ExactSizeIterator<Item = Stored>,
    ) -> std::result::Result<(), Problem> {
        self.check_extent(&extent)?;
        if (hashes.len(), stored.len()) != (extent.count as usize, extent.stored_count()) {
            return Err("the numbers of hashes and stored lengths are not those of the blocks".into());
        }
        let (hashes_start, stored_start) = (self.hashes.len(), self.stored.len());
        let mut at = extent.at;
        for (block, stored) in extent.blocks().zip(stored) {
            let plain_bytes = self.blocks.len(block);
            if stored.bytes == 0 || stored.bytes > plain_bytes {
                self.stored.truncate(stored_start);
                return Err(format!("block {block} of {plain_bytes} bytes is stored in {} bytes", stored.bytes).into());
            }
            self.stored.push((at, stored));
            // This cannot overflow: there are fewer stored bytes than plain ones, whose end was
            // checked.
            at += u64::from(stored.bytes);
        }
        self.hashes.extend_from_slice(hashes);
        self.extents.push(Listed { extent, hashes_start, stored_start });
        Ok(())
    }

    /// Checks that an extent can follow the others.
    fn check_extent(&self, extent: &Extent) -> std::result::Result<(), Problem> {
        if extent.count == 0 {
            return Err("an extent without blocks".into());
        }
        let end = extent.first_block.saturating_add(u64::from(extent.count));
        if end > self.blocks.count() {
            return Err(format!("blocks up to {end}, and there are {}", self.blocks.count()).into());
        }
        let expected = self.extents.last().map_or(0, |last| last.extent.blocks().end);
        if extent.first_block < expected {
            return Err(format!("block {} follows block {expected}, or is there twice", extent.first_block).into());
        }
        let plain = self.blocks.range_of(extent.blocks());
        let file_end = extent.at.saturating_add(plain.end - plain.start);
        if extent.at < PAGE_BYTES as u64 || file_end > FILE_BYTES_MAX {
            return Err(format!("blocks at byte {} of {}, where none can be", extent.at, extent.pack).into());
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it is cut into blocks.
    pub const fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// The extents, in ascending order of blocks.
    pub fn extents(&self) -> impl ExactSizeIterator<Item = &Extent> + DoubleEndedIterator {
        self.extents.iter().map(|listed| &listed.extent)
    }

    /// The number of blocks in all extents.
    pub fn block_count(&self) -> usize {
        self.hashes.len()
    }

    /// The place of a block, if the pack has it.
    pub fn find(&self, block: u64) -> Option<Place> {
        let next = self.extents.partition_point(|listed| listed.extent.first_block <= block);
        let listed = self.extents.get(next.checked_sub(1)?)?;
        listed.extent.blocks().contains(&block).then(|| self.place(listed, block))
    }

    /// All blocks in ascending order, and their places.
    pub fn places(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.extents
            .iter()
            .flat_map(move |listed| listed.extent.blocks().map(move |block| (block, self.place(listed, block))))
    }

    /// The place of a block of this extent.
    fn place(&self, listed: &Listed, block: u64) -> Place {
        let extent = &listed.extent;
        let nth = (block - extent.first_block) as usize;
        let plain_bytes = self.blocks.len(block);
        let (at, stored) = if extent.coding.is_raw() {
            let at = extent.at + nth as u64 * u64::from(self.blocks.block_bytes());
            (at, Stored { bytes: plain_bytes, check: 0 })
        } else {
            self.stored[listed.stored_start + nth]
        };
        let hash = self.hashes[listed.hashes_start + nth];
        Place { pack: extent.pack, at, stored, plain_bytes, coding: extent.coding, hash }
    }

    /// The range of the file in which the blocks of this extent lie.
    fn file_range(&self, listed: &Listed) -> Range<u64> {
        let last = self.place(listed, listed.extent.blocks().end - 1);
        listed.extent.at..last.range().end
    }

    /// Checks that an extent in the pack `own` lies inside its payload.
    fn check_own(&self, listed: &Listed, own: PackId, payload_bytes: u64) -> std::result::Result<(), Problem> {
        let end = (PAGE_BYTES as u64).saturating_add(payload_bytes);
        let range = self.file_range(listed);
        if listed.extent.pack != own || range.end <= end {
            return Ok(());
        }
        Err(format!("blocks at bytes {} to {}, and the payload ends at {end}", range.start, range.end).into())
    }
}

/// The blocks of a pack, by region.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// In ascending order of names.
    regions: Vec<IndexRegion>,
}

impl Index {
    /// An index of these regions, given in any order.
    pub fn new(mut regions: Vec<IndexRegion>) -> Result<Self> {
        regions.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let problem = format!("there are two regions \"{}\"; give them different names", pair[0].name);
            return Err(Error::unfit(Structure::PackIndex, problem));
        }
        if regions.len() > REGIONS_MAX {
            let problem = format!("{} regions; at most {REGIONS_MAX} are possible", regions.len());
            return Err(Error::unfit(Structure::PackIndex, problem));
        }
        Ok(Self { regions })
    }

    /// The regions, in ascending order of names.
    pub fn regions(&self) -> &[IndexRegion] {
        &self.regions
    }

    /// The region with this name.
    pub fn region(&self, name: &str) -> Option<&IndexRegion> {
        let found = self.regions.binary_search_by(|region| region.name.as_str().cmp(name)).ok()?;
        Some(&self.regions[found])
    }

    /// The counts that determine its size.
    pub fn size(&self) -> IndexSize {
        let mut size = IndexSize { regions: self.regions.len() as u64, ..IndexSize::default() };
        for region in &self.regions {
            size.name_bytes += region.name.len() as u64;
            size.extents += region.extents.len() as u64;
            size.blocks += region.hashes.len() as u64;
            size.coded_blocks += region.stored.len() as u64;
        }
        size
    }

    /// Encodes it. [`PackHeader::seal`](crate::PackHeader::seal) writes it to its place in a pack.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.size().bytes().min(INDEX_BYTES_MAX) as usize];
        self.encode_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Encodes it to `into`, which must have exactly the length that [`size`](Self::size) gives.
    pub fn encode_into(&self, into: &mut [u8]) -> Result<()> {
        let bytes = self.size().bytes();
        if bytes > INDEX_BYTES_MAX || into.len() as u64 != bytes {
            let problem =
                format!("an index of {bytes} bytes into {} bytes; at most {INDEX_BYTES_MAX} are possible", into.len());
            return Err(Error::unfit(Structure::PackIndex, problem));
        }
        let mut rest = into;
        put(&mut rest, &U32::from(self.regions.len() as u32));
        for region in &self.regions {
            put(
                &mut rest,
                &RegionHead {
                    bytes: region.blocks.bytes().into(),
                    block_bytes: region.blocks.block_bytes().into(),
                    extents: (region.extents.len() as u32).into(),
                    name_bytes: region.name.len() as u8,
                },
            );
            put(&mut rest, region.name.as_bytes());
            for extent in region.extents() {
                put(&mut rest, &RawExtent::from(extent));
            }
            put(&mut rest, region.hashes.as_slice());
            for (_, stored) in &region.stored {
                put(&mut rest, &RawStored { bytes: stored.bytes.into(), check: stored.check.into() });
            }
        }
        Ok(())
    }

    /// Decodes the index of the pack `own`, which has `payload_bytes` bytes of payload.
    pub(crate) fn decode(bytes: &[u8], own: PackId, payload_bytes: u64) -> Result<Self> {
        let mut cursor = Cursor::new(Structure::PackIndex, bytes);
        let count = cursor.value::<U32>()?.get() as usize;
        if count > REGIONS_MAX {
            return Err(cursor.wrong_at(0, format!("{count} regions; at most {REGIONS_MAX} are possible")));
        }
        let mut regions: Vec<IndexRegion> = Vec::new();
        for _ in 0..count {
            let at = cursor.at();
            let region = decode_region(&mut cursor, own, payload_bytes)?;
            if regions.last().is_some_and(|last| last.name >= region.name) {
                return Err(cursor.wrong_at(at, format!("region \"{}\" is not in order", region.name.escape_debug())));
            }
            regions.push(region);
        }
        cursor.end()?;
        Ok(Self { regions })
    }

    /// Checks that all extents in the pack `own` lie inside its payload.
    pub(crate) fn check_own(&self, own: PackId, payload_bytes: u64) -> Result<()> {
        self.listed()
            .try_for_each(|(region, listed)| region.check_own(listed, own, payload_bytes))
            .map_err(|problem| Error::unfit(Structure::PackIndex, problem))
    }

    fn listed(&self) -> impl Iterator<Item = (&IndexRegion, &Listed)> {
        self.regions.iter().flat_map(|region| region.extents.iter().map(move |listed| (region, listed)))
    }

    /// The ranges of the file of `own` that extents refer to, in any order. They may overlap.
    pub(crate) fn own_ranges(&self, own: PackId) -> Vec<Range<u64>> {
        let own = self.listed().filter(|(_, listed)| listed.extent.pack == own);
        own.map(|(region, listed)| region.file_range(listed)).collect()
    }
}

fn decode_region(cursor: &mut Cursor<'_>, own: PackId, payload_bytes: u64) -> Result<IndexRegion> {
    let at = cursor.at();
    let head: &RegionHead = cursor.value()?;
    let blocks =
        Blocks::checked(head.bytes.get(), head.block_bytes.get()).map_err(|problem| cursor.wrong_at(at, problem))?;
    let name_at = cursor.at();
    let name = cursor.text(head.name_bytes.into())?;
    if let Some(problem) = region_name_problem(name) {
        return Err(cursor.wrong_at(name_at, format!("\"{}\" is no name of a region: {problem}", name.escape_debug())));
    }
    let extents_at = cursor.at();
    let raw_extents: &[RawExtent] = cursor.slice(head.extents.get().into())?;
    let mut extents = Vec::with_capacity(raw_extents.len());
    for (nth, raw) in raw_extents.iter().enumerate() {
        let at = extents_at + (nth * size_of::<RawExtent>()) as u64;
        extents.push((at, raw.plain().map_err(|problem| cursor.wrong_at(at, problem))?));
    }
    let blocks_count = extents.iter().map(|(_, extent)| u64::from(extent.count)).sum();
    let stored_count = extents.iter().map(|(_, extent)| extent.stored_count() as u64).sum();
    let mut hashes: &[Hash] = cursor.slice(blocks_count)?;
    let mut stored: &[RawStored] = cursor.slice(stored_count)?;
    let mut region = IndexRegion {
        name: name.to_owned(),
        blocks,
        extents: Vec::with_capacity(extents.len()),
        hashes: Vec::with_capacity(hashes.len()),
        stored: Vec::with_capacity(stored.len()),
    };
    for &(at, extent) in &extents {
        let (extent_hashes, extent_stored);
        (extent_hashes, hashes) = hashes.split_at(extent.count as usize);
        (extent_stored, stored) = stored.split_at(extent.stored_count());
        let extent_stored = extent_stored.iter().map(|raw| Stored { bytes: raw.bytes.get(), check: raw.check.get() });
        region.add(extent, extent_hashes, extent_stored).map_err(|problem| cursor.wrong_at(at, problem))?;
    }
    for ((at, _), listed) in extents.iter().zip(&region.extents) {
        region.check_own(listed, own, payload_bytes).map_err(|problem| cursor.wrong_at(*at, problem))?;
    }
    Ok(region)
}

impl From<&Extent> for RawExtent {
    fn from(extent: &Extent) -> Self {
        Self {
            first_block: extent.first_block.into(),
            at: extent.at.into(),
            pack_number: extent.pack.number.into(),
            pack_rank: extent.pack.rank.into(),
            count: extent.count.into(),
            coding: extent.coding.kind().code(),
            shuffle: extent.coding.shuffle(),
        }
    }
}

impl RawExtent {
    fn plain(&self) -> std::result::Result<Extent, Problem> {
        let coding = Coding::from_codes(self.coding, self.shuffle)
            .ok_or_else(|| format!("coding {} with shuffle {} is not known", self.coding, self.shuffle))?;
        Ok(Extent {
            first_block: self.first_block.get(),
            count: self.count.get(),
            pack: PackId { rank: self.pack_rank.get(), number: self.pack_number.get() },
            at: self.at.get(),
            coding,
        })
    }
}

/// Writes `value` to the front of `rest`, which must have room for it.
fn put<T: IntoBytes + Immutable + ?Sized>(rest: &mut &mut [u8], value: &T) {
    let bytes = value.as_bytes();
    let (front, back) = std::mem::take(rest).split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    *rest = back;
}
