//! Lays out the blocks of a slot as a pack, in place. If a block is left out or becomes shorter,
//! the blocks after it move up.

use outcrop_engine::Lent;
use outcrop_format::{Coding, Extent, Hash, Index, IndexRegion, PAGE_BYTES, PackId, Stored};

use super::{
    Compression, Filled, Location, RegionJob, Run, Task,
    share::{Shares, Source},
    trial::Trials,
};
use crate::{Result, error::apart};

/// How a slot becomes a pack.
pub(crate) struct Layout<'a, 'b> {
    pub(crate) id: PackId,
    pub(crate) task: &'a Task<'a>,
    pub(crate) shares: &'a mut Shares<'b>,
    pub(crate) is_certain: bool,
    /// Bytes per second that the first directory takes.
    pub(crate) medium_rate: f64,
}

/// A slot whose blocks are where they will be in the pack.
pub(crate) struct Laid {
    lent: Lent,
    key: u64,
    id: PackId,
    payload_bytes: u64,
    groups: Vec<Group>,
}

/// Consecutive blocks of a region whose bytes are consecutive too.
struct Group {
    region: usize,
    first_block: u64,
    /// The place of the first block. `None` for a block that a lower rank writes, until that rank
    /// has announced its place.
    at: Option<(PackId, u64)>,
    coding: Coding,
    hashes: Vec<Hash>,
    stored: Vec<Stored>,
    /// Where the next block would lie.
    end: u64,
}

impl Layout<'_, '_> {
    pub(crate) fn place(mut self, filled: Filled) -> Result<Laid> {
        let Filled { mut lent, key, runs } = filled;
        let is_plain = |run: &Run| {
            let mut blocks = run.blocks.clone().zip(&run.hashes);
            self.task.regions[run.region].compression == Compression::None
                && blocks.all(|(block, hash)| !self.task.is_unchanged(run.region, block, hash))
        };
        let (groups, end) = match self.shares.keeps_all() && runs.iter().all(is_plain) {
            true => self.as_they_are(runs),
            false => self.one_by_one(&mut lent, &runs)?,
        };
        self.shares.add_placed(groups.iter().map(|group| group.hashes.len() as u64).sum());
        Ok(Laid { lent, key, id: self.id, payload_bytes: (end - PAGE_BYTES) as u64, groups })
    }

    /// The layout if no block has to move.
    fn as_they_are(&self, runs: Vec<Run>) -> (Vec<Group>, usize) {
        let mut at = PAGE_BYTES as u64;
        let group = |run: Run| {
            let range = self.task.regions[run.region].manifest.blocks.range_of(run.blocks.clone());
            let start = at;
            at += range.end - range.start;
            Group {
                region: run.region,
                first_block: run.blocks.start,
                at: Some((self.id, start)),
                coding: Coding::RAW,
                hashes: run.hashes,
                stored: Vec::new(),
                end: at,
            }
        };
        (runs.into_iter().map(group).collect(), at as usize)
    }

    fn one_by_one(&mut self, lent: &mut Lent, runs: &[Run]) -> Result<(Vec<Group>, usize)> {
        let mut groups = Vec::new();
        let (mut read, mut write) = (PAGE_BYTES, PAGE_BYTES);
        let mut scratch = Vec::new();
        let mut trials = Trials::new(self.medium_rate);
        for (nth, run) in runs.iter().enumerate() {
            let region = &self.task.regions[run.region];
            let blocks = region.manifest.blocks;
            let mut encoder = trials.encoder(region, &runs[nth..], &lent[read..])?;
            for (block, &hash) in run.blocks.clone().zip(&run.hashes) {
                let bytes = blocks.len(block) as usize;
                let place = read..read + bytes;
                read += bytes;
                if self.task.is_unchanged(run.region, block, &hash) {
                    continue;
                }
                let name = (hash, bytes as u32);
                let (at, stored, coding) = match self.shares.find(name) {
                    Some(Source::Theirs) => (None, Stored { bytes: 0, check: 0 }, Coding::RAW),
                    Some(Source::Placed(place_before)) if self.is_same(lent, place.clone(), &place_before) => {
                        (Some((place_before.pack, place_before.at)), place_before.stored, place_before.coding)
                    }
                    _ => {
                        let at = write;
                        let (stored, coding) = match &mut encoder {
                            Some(encoder) => {
                                scratch.resize(bytes, 0);
                                let stored = encoder.encode(&lent[place], &mut scratch)?;
                                lent[at..at + stored.bytes as usize].copy_from_slice(&scratch[..stored.bytes as usize]);
                                (stored, encoder.coding())
                            }
                            None => {
                                lent.copy_within(place, at);
                                (Stored { bytes: bytes as u32, check: 0 }, Coding::RAW)
                            }
                        };
                        write += stored.bytes as usize;
                        self.shares.place(name, Location { pack: self.id, at: at as u64, stored, coding });
                        (Some((self.id, at as u64)), stored, coding)
                    }
                };
                add(&mut groups, Group::single((run.region, block), at, coding, hash, stored));
            }
        }
        Ok((groups, write))
    }

    /// Whether a block may refer to an earlier one with the same hash.
    fn is_same(&self, lent: &Lent, block: std::ops::Range<usize>, before: &Location) -> bool {
        if !self.is_certain {
            return true;
        }
        let is_here = before.pack == self.id && before.coding.is_raw();
        let at = before.at as usize;
        is_here && lent[block.clone()] == lent[at..at + block.len()]
    }
}

impl Group {
    fn single(
        (region, first_block): (usize, u64),
        at: Option<(PackId, u64)>,
        coding: Coding,
        hash: Hash,
        stored: Stored,
    ) -> Self {
        let end = at.map_or(0, |(_, at)| at + u64::from(stored.bytes));
        let stored = if coding.is_raw() { Vec::new() } else { vec![stored] };
        Self { region, first_block, at, coding, hashes: vec![hash], stored, end }
    }

    /// Whether `next` continues this group: in blocks, bytes and kind.
    fn is_continued_by(&self, next: &Self) -> bool {
        let pack = |group: &Self| group.at.map(|(pack, _)| pack);
        self.region == next.region
            && self.first_block + self.hashes.len() as u64 == next.first_block
            && self.coding == next.coding
            && pack(self).is_some()
            && pack(self) == pack(next)
            && next.at.is_some_and(|(_, at)| at == self.end)
            && self.hashes.len() < u32::MAX as usize
    }
}

/// Appends a group. Extends the last one if possible.
fn add(groups: &mut Vec<Group>, group: Group) {
    match groups.last_mut() {
        Some(last) if last.is_continued_by(&group) => {
            last.hashes.extend(group.hashes);
            last.stored.extend(group.stored);
            last.end = group.end;
        }
        _ => groups.push(group),
    }
}

impl Laid {
    /// Whether it has no blocks, not even references to other packs.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn id(&self) -> PackId {
        self.id
    }

    /// The slot and the bytes of its blocks, the index, and the other packs in which some of its
    /// blocks lie.
    pub(crate) fn index(self, regions: &[RegionJob], shares: &Shares<'_>) -> Result<(Lent, u64, Index, Vec<PackId>)> {
        let mut groups = Vec::new();
        for mut group in self.groups {
            if group.at.is_none() {
                let blocks = regions[group.region].manifest.blocks;
                let location = shares.location((group.hashes[0], blocks.len(group.first_block)));
                let location = location.ok_or_else(|| apart("no rank has written a shared block"))?;
                let at = Some((location.pack, location.at));
                let name = (group.region, group.first_block);
                group = Group::single(name, at, location.coding, group.hashes[0], location.stored);
            }
            add(&mut groups, group);
        }
        let mut borrowed: Vec<PackId> =
            groups.iter().filter_map(|group| Some(group.at?.0)).filter(|id| *id != self.id).collect();
        borrowed.sort_unstable();
        borrowed.dedup();
        let mut listed = Vec::new();
        // Groups of one region are adjacent, as runs are.
        for of_region in groups.chunk_by(|group, next| group.region == next.region) {
            let region = &regions[of_region[0].region].manifest;
            let mut entry = IndexRegion::new(&region.name, region.blocks)?;
            for group in of_region {
                let (pack, at) = group.at.unwrap_or((self.id, 0));
                let count = group.hashes.len() as u32;
                let extent = Extent { first_block: group.first_block, count, pack, at, coding: group.coding };
                entry.push(extent, &group.hashes, &group.stored)?;
            }
            listed.push(entry);
        }
        Ok((self.lent, self.payload_bytes, Index::new(listed)?, borrowed))
    }
}
