//! Compares two versions.

use std::ops::Range;

use outcrop_format::ManifestRegion;

use crate::{Reader, Result, fetch::WINDOW_BYTES, reader::Mapped};

/// How a region differs between two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is the same in both.
    Same,
    /// Its bytes, length, element type or shape differ.
    Changed,
    /// Only the second version has it.
    Added,
    /// Only the first version has it.
    Removed,
}

/// The difference of one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionDiff {
    /// Its name.
    pub region: String,
    /// How it differs.
    pub change: Change,
    /// Its length in the first version.
    pub bytes_before: u64,
    /// Its length in the second version.
    pub bytes_after: u64,
    /// The number of its blocks in the longer version.
    pub blocks: u64,
    /// How many of these differ, or are in one version only.
    pub blocks_changed: u64,
    /// The bytes of these blocks.
    pub bytes_changed: u64,
}

impl RegionDiff {
    /// A region that only one version has. `change` says which.
    pub fn whole(region: &ManifestRegion, change: Change) -> Self {
        let blocks = region.blocks;
        let is_before = change == Change::Removed;
        Self {
            region: region.name.clone(),
            change,
            bytes_before: if is_before { blocks.bytes() } else { 0 },
            bytes_after: if is_before { 0 } else { blocks.bytes() },
            blocks: blocks.count(),
            blocks_changed: blocks.count(),
            bytes_changed: blocks.bytes(),
        }
    }

    /// A region that both versions have, before its blocks are compared.
    fn between(before: &ManifestRegion, after: &ManifestRegion) -> Self {
        let (bytes_before, bytes_after) = (before.blocks.bytes(), after.blocks.bytes());
        let is_alike = bytes_before == bytes_after && before.element == after.element && before.shape == after.shape;
        Self {
            region: after.name.clone(),
            change: if is_alike { Change::Same } else { Change::Changed },
            bytes_before,
            bytes_after,
            blocks: bytes_before.max(bytes_after).div_ceil(u64::from(after.blocks.block_bytes())),
            blocks_changed: 0,
            bytes_changed: 0,
        }
    }

    fn add_block(&mut self, bytes: u64) {
        self.change = Change::Changed;
        self.blocks_changed += 1;
        self.bytes_changed += bytes;
    }
}

/// Compares two versions region by region. It compares the hashes of blocks if both versions have
/// the same kind of hash and block size, and reads the bytes otherwise. With `is_certain` it always
/// reads, because two different blocks might have the same hash.
///
/// Excluded bytes count as zero where a block is read. A block that only one version has counts as
/// changed. `progress` is told how many bytes have been compared.
pub fn diff(
    before: &Reader,
    after: &Reader,
    is_certain: bool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<RegionDiff>> {
    let mut diffs = Vec::new();
    for mapped in before.mapped() {
        let name = &mapped.region.name;
        diffs.push(match after.find(name) {
            None => RegionDiff::whole(mapped.region, Change::Removed),
            Some(other) if is_certain || !is_hashed_alike(before, mapped, after, other) => {
                by_bytes(before, mapped, after, other, progress)?
            }
            Some(other) => by_hashes(mapped, other, progress),
        });
    }
    let is_new = |mapped: &Mapped<'_>| before.find(&mapped.region.name).is_none();
    diffs.extend(after.mapped().filter(is_new).map(|mapped| RegionDiff::whole(mapped.region, Change::Added)));
    Ok(diffs)
}

fn is_hashed_alike(before: &Reader, a: Mapped<'_>, after: &Reader, b: Mapped<'_>) -> bool {
    let kinds = |reader: &Reader, mapped: Mapped<'_>| -> Vec<_> {
        mapped.segments.iter().map(|segment| reader.chain(segment.pack).hash_kind()).collect()
    };
    let mut all = kinds(before, a);
    all.extend(kinds(after, b));
    all.windows(2).all(|pair| pair[0] == pair[1]) && a.region.blocks.block_bytes() == b.region.blocks.block_bytes()
}

fn by_hashes(a: Mapped<'_>, b: Mapped<'_>, progress: &(dyn Fn(u64) + Sync)) -> RegionDiff {
    let mut diff = RegionDiff::between(a.region, b.region);
    let (blocks_a, blocks_b) = (a.region.blocks, b.region.blocks);
    let mut places_a = a.places(0..u64::MAX).peekable();
    let mut places_b = b.places(0..u64::MAX).peekable();
    // A block that neither version has was excluded from both.
    while let Some(block) = places_a.peek().into_iter().chain(places_b.peek()).map(|place| place.0).min() {
        let hash_a = places_a.next_if(|place| place.0 == block).map(|place| place.2.hash);
        let hash_b = places_b.next_if(|place| place.0 == block).map(|place| place.2.hash);
        if hash_a != hash_b || blocks_a.len(block) != blocks_b.len(block) {
            diff.add_block(blocks_a.len(block).max(blocks_b.len(block)).into());
        }
    }
    progress(diff.bytes_before.max(diff.bytes_after));
    diff
}

fn by_bytes(
    before: &Reader,
    a: Mapped<'_>,
    after: &Reader,
    b: Mapped<'_>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<RegionDiff> {
    let mut diff = RegionDiff::between(a.region, b.region);
    let name = &b.region.name;
    let end = diff.bytes_before.max(diff.bytes_after);
    let block_bytes = b.region.blocks.block_bytes() as usize;
    let window_bytes = WINDOW_BYTES.max(block_bytes as u64);
    // Skip what neither version has saved: it may be far larger than the rest.
    let saved: Vec<Vec<Range<u64>>> = [before.saved(name)?.collect(), after.saved(name)?.collect()].into();
    let next_saved = |at: u64| {
        let next = |ranges: &Vec<Range<u64>>| ranges.get(ranges.partition_point(|range| range.end <= at)).cloned();
        saved.iter().filter_map(next).map(|range| range.start.max(at)).min()
    };
    let mut at = 0;
    let read = |reader: &Reader, bytes: u64, at: u64, window: &mut Vec<u8>| {
        window.clear();
        window.resize(bytes.saturating_sub(at).min(window_bytes) as usize, 0);
        reader.read(name, at.min(bytes), window, &|_| {})
    };
    let (mut window_a, mut window_b) = (Vec::new(), Vec::new());
    while let Some(next) = next_saved(at) {
        progress(next / window_bytes * window_bytes - at);
        at = next / window_bytes * window_bytes;
        read(before, diff.bytes_before, at, &mut window_a)?;
        read(after, diff.bytes_after, at, &mut window_b)?;
        let bytes = window_a.len().max(window_b.len());
        for start in (0..bytes).step_by(block_bytes) {
            let part = |window: &'_ [u8]| start.min(window.len())..(start + block_bytes).min(window.len());
            let (part_a, part_b) = (&window_a[part(&window_a)], &window_b[part(&window_b)]);
            let from = at + start as u64;
            let is_saved = next_saved(from).is_some_and(|next| next < from + block_bytes as u64);
            if part_a != part_b && is_saved {
                diff.add_block(part_a.len().max(part_b.len()) as u64);
            }
        }
        progress(bytes as u64);
        at += bytes as u64;
    }
    progress(end - at);
    Ok(diff)
}
