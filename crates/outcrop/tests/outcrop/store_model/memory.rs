//! The memory of a program: regions that change, move, appear and disappear.

use std::{collections::BTreeMap, ops::Range};

use fastrand::Rng;
use outcrop::{
    Part, PartMut,
    store::{Compression, RegionOptions},
};

use super::case::Change;

/// The region that identifies the attempt to save a version.
pub(super) const STAMP: &str = "stamp";

/// The content of memory before a restore.
pub(super) const UNTOUCHED: u8 = 0xa5;

/// Several pages long, so that tracking pages pays.
const FIELD_BYTES: usize = 40_000;

/// The memory of one rank.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    rank: u32,
    pub(super) stamp: u64,
    pub(super) regions: BTreeMap<String, Vec<u8>>,
    /// The options of regions, for a session that is opened.
    pub(super) options: BTreeMap<String, RegionOptions>,
    /// Earlier contents, for changes that go back.
    before: Vec<BTreeMap<String, Vec<u8>>>,
}

/// A saved region.
#[derive(Debug, Clone)]
pub(super) struct SavedRegion {
    pub(super) bytes: Vec<u8>,
    pub(super) excluded: Vec<Range<u64>>,
}

/// What one rank has saved in a version.
pub(super) type Content = BTreeMap<String, SavedRegion>;

impl Memory {
    pub(super) fn new(rank: u32) -> Self {
        // Compressible bytes, equal on all ranks except for one piece.
        let mut random = Rng::with_seed(1);
        let piece: Vec<u8> = (0..1024).map(|_| random.u8(..4)).collect();
        let mut field: Vec<u8> = piece.iter().copied().cycle().take(FIELD_BYTES).collect();
        field[3000..5000].fill(rank as u8 + 10);
        let regions = BTreeMap::from([("field".to_owned(), field), ("tail".to_owned(), vec![7; 700])]);
        Self { rank, stamp: 0, regions, options: BTreeMap::new(), before: Vec::new() }
    }

    /// What would be saved now.
    pub(super) fn content(&self) -> Content {
        let excluded = |name: &str| self.options.get(name).map(|options| options.excluded.clone()).unwrap_or_default();
        let saved = |(name, bytes): (&String, &Vec<u8>)| {
            (name.clone(), SavedRegion { bytes: bytes.clone(), excluded: excluded(name) })
        };
        let stamp = SavedRegion { bytes: self.stamp.to_le_bytes().to_vec(), excluded: Vec::new() };
        self.regions.iter().map(saved).chain([(STAMP.to_owned(), stamp)]).collect()
    }

    pub(super) fn parts(&self) -> Vec<Part<'_>> {
        let regions = self.regions.iter().map(|(name, bytes)| Part::new(name, bytes));
        regions.chain([Part::one(STAMP, &self.stamp)]).collect()
    }

    /// Remembers what is about to be saved.
    pub(super) fn remember(&mut self) {
        self.before.push(self.regions.clone());
    }

    /// A random region, if there is any.
    fn some_region(&self, random: &mut Rng) -> Option<String> {
        let nth = random.usize(..self.regions.len().max(1));
        self.regions.keys().nth(nth).cloned()
    }

    pub(super) fn change(&mut self, kind: Change, seed: u64) {
        let mut random = Rng::with_seed(seed);
        let name = self.some_region(&mut random);
        // Some changes are equal on all ranks.
        if random.bool() {
            random = Rng::with_seed(seed ^ u64::from(self.rank));
        }
        let region = name.as_ref().and_then(|name| self.regions.get_mut(name));
        match (kind, region) {
            (Change::FewBytes, Some(region)) if !region.is_empty() => {
                for _ in 0..random.usize(1..5) {
                    let at = random.usize(..region.len());
                    region[at] = random.u8(..);
                }
            }
            (Change::Stretch, Some(region)) if !region.is_empty() => {
                let at = random.usize(..region.len());
                let end = region.len().min(at + random.usize(1..9000));
                region[at..end].fill(random.u8(..));
            }
            (Change::Everything, Some(region)) => region.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
            (Change::Add, _) => {
                let bytes = vec![random.u8(..); random.usize(..6000)];
                self.regions.insert(format!("extra-{}", seed % 3), bytes);
            }
            (Change::Remove, Some(_)) => {
                self.regions.retain(|other, _| Some(other) != name.as_ref());
            }
            (Change::Resize, Some(region)) => {
                let bytes = if random.u8(..6) == 0 { 0 } else { random.usize(..region.len() * 3 / 2 + 500) };
                region.resize(bytes.min(60_000), random.u8(..));
            }
            (Change::Move, Some(region)) => {
                let moved = region.clone();
                *region = moved;
                if random.bool() && !region.is_empty() {
                    region[0] ^= 1;
                }
            }
            (Change::Exchange, Some(region)) => {
                let taken = std::mem::take(region);
                let other = self.some_region(&mut random).expect("there is one");
                let theirs = self.regions.insert(other, taken).expect("it is there");
                self.regions.insert(name.expect("there is one"), theirs);
            }
            (Change::Revert, _) if !self.before.is_empty() => {
                self.regions = self.before[random.usize(..self.before.len())].clone();
            }
            _ => {}
        }
    }

    /// Changes a few bytes of every region, right after a save.
    pub(super) fn scribble(&mut self) {
        for region in self.regions.values_mut() {
            region.iter_mut().step_by(997).for_each(|byte| *byte = byte.wrapping_add(3));
        }
    }

    /// Excludes some bytes of a random region, changes how it is stored, and returns its name.
    pub(super) fn exclude(&mut self, seed: u64, is_none: bool) -> Option<String> {
        let mut random = Rng::with_seed(seed);
        let name = self.some_region(&mut random)?;
        let bytes = self.regions[&name].len() as u64 + 100;
        let options = self.options.entry(name.clone()).or_default();
        options.block_bytes = [None, Some(256), Some(1024)][random.usize(..3)];
        options.compression = [None, Some(Compression::Lz4)][random.usize(..2)];
        if is_none {
            options.excluded.clear();
        } else {
            let start = random.u64(..bytes);
            options.excluded.push(start..start + random.u64(..bytes));
        }
        Some(name)
    }

    /// A random range of a random region. It may go beyond the end, or the region may not exist.
    pub(super) fn some_bytes(&self, seed: u64) -> (String, Range<usize>) {
        let mut random = Rng::with_seed(seed);
        let name = self.some_region(&mut random).filter(|_| random.u8(..8) > 0);
        let start = random.usize(..50_000);
        (name.unwrap_or_else(|| "nowhere".to_owned()), start..start + random.usize(..20_000))
    }
}

/// Memory to restore a version into.
#[derive(Debug, Clone, Default)]
pub(super) struct Blank {
    pub(super) stamp: u64,
    pub(super) regions: BTreeMap<String, Vec<u8>>,
}

impl Blank {
    /// Memory for regions of these lengths.
    pub(super) fn new<'a>(regions: impl Iterator<Item = (&'a str, usize)>) -> Self {
        let blank = |(name, bytes): (&str, usize)| (name.to_owned(), vec![UNTOUCHED; bytes]);
        Self { stamp: 0, regions: regions.filter(|(name, _)| *name != STAMP).map(blank).collect() }
    }

    pub(super) fn for_content(content: &Content) -> Self {
        Self::new(content.iter().map(|(name, saved)| (name.as_str(), saved.bytes.len())))
    }

    pub(super) fn parts(&mut self) -> Vec<PartMut<'_>> {
        let regions = self.regions.iter_mut().map(|(name, bytes)| PartMut::new(name, bytes));
        regions.chain([PartMut::one(STAMP, &mut self.stamp)]).collect()
    }

    /// Checks that this is what was saved, and that excluded bytes were not changed.
    pub(super) fn check(&self, content: &Content) -> Result<(), String> {
        let found = self.regions.keys().chain([&STAMP.to_owned()]).cloned().collect::<std::collections::BTreeSet<_>>();
        if !found.iter().eq(content.keys()) {
            return Err(format!("regions {found:?} and not {:?}", content.keys()));
        }
        for (name, bytes) in &self.regions {
            compare(name, bytes, &content[name], UNTOUCHED)?;
        }
        Ok(())
    }
}

/// Checks that these are the saved bytes of a region, with `excluded` in place of excluded bytes.
pub(super) fn compare(name: &str, found: &[u8], saved: &SavedRegion, excluded: u8) -> Result<(), String> {
    if found.len() != saved.bytes.len() {
        return Err(format!("{name} has {} bytes and not {}", found.len(), saved.bytes.len()));
    }
    if saved.excluded.is_empty() && found == saved.bytes {
        return Ok(());
    }
    let is_excluded = |at: usize| saved.excluded.iter().any(|range| range.contains(&(at as u64)));
    let expected = |at: usize| if is_excluded(at) { excluded } else { saved.bytes[at] };
    match (0..found.len()).find(|at| found[*at] != expected(*at)) {
        None => Ok(()),
        Some(at) => {
            let (is, was) = (found[at], expected(at));
            Err(format!("byte {at} of {name}, which has {}, is {is} and not {was}", found.len()))
        }
    }
}
