//! Reads a version from its packs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    Error, Result,
    fetch::{self, Fetcher, Problem, Wanted},
    open::OpenFiles,
    pack::{KnownPacks, Pack},
};
use outcrop_format::{Blocks, HashKind, IndexRegion, Manifest, ManifestRegion, PackId, Place};
use outcrop_memory::Befores;

/// How much of what memory holds is copied at most, so that it can be put back. For more, a second
/// read takes less time than memory for a copy, where memory is slow when it is touched for the
/// first time.
pub const BEFORE_BYTES_MAX: usize = 8 << 20;

/// One version of one rank, ready to be read.
pub struct Reader {
    manifest: Arc<Manifest>,
    /// All packs that the manifest lists.
    packs: BTreeMap<PackId, Arc<Pack>>,
    /// The packs in whose indexes blocks are looked up, newest first.
    chain: Vec<Arc<Pack>>,
    /// By region of the manifest: which blocks are found through which pack of the chain, in
    /// ascending order.
    maps: Vec<Vec<Segment>>,
    /// The regions in order of their names, as numbers in the manifest.
    by_name: Vec<usize>,
}

/// Blocks that are found through the same pack of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) blocks: Range<u64>,
    /// The position of the pack in the chain.
    pub(crate) pack: usize,
}

/// A region of a version, and where its blocks are.
#[derive(Clone, Copy)]
pub(crate) struct Mapped<'a> {
    reader: &'a Reader,
    pub(crate) region: &'a ManifestRegion,
    pub(crate) segments: &'a [Segment],
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("session", &self.manifest.session)
            .field("version", &self.manifest.version)
            .field("rank", &self.manifest.rank)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the packs that a manifest lists, unless they are known, and finds the place of every
    /// block. Reads no block yet.
    pub(crate) fn open(open: &Arc<OpenFiles>, manifest: Arc<Manifest>, known: &mut KnownPacks) -> Result<Self> {
        let named: BTreeSet<PackId> = manifest.packs.iter().map(|named| named.id).collect();
        known.keep(|id| named.contains(&id));
        let mut packs = BTreeMap::new();
        let mut chain = Vec::new();
        for named in &manifest.packs {
            let pack = known.get(open, &manifest.session, named.id, !named.is_borrowed)?;
            pack.check_named(named)?;
            if !named.is_borrowed {
                chain.push(Arc::clone(&pack));
            }
            packs.insert(named.id, pack);
        }
        let regions = &manifest.regions;
        let mut by_name: Vec<usize> = (0..regions.len()).collect();
        by_name.sort_unstable_by(|a, b| regions[*a].name.cmp(&regions[*b].name));
        let maps = vec![Vec::new(); regions.len()];
        let mut reader = Self { manifest, packs, chain, maps, by_name };
        reader.find_segments();
        reader.mapped().try_for_each(Mapped::check)?;
        for (nth, pack) in reader.chain.iter().enumerate() {
            for listed in pack.index().into_iter().flat_map(|index| index.regions()) {
                if let Some(mapped) = reader.find(listed.name()) {
                    mapped.check_borrowed(nth, listed)?;
                }
            }
        }
        Ok(reader)
    }

    /// The manifest of the version.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Fills `into` with the bytes of a region, starting at byte `at`. Verifies the hash of every
    /// block. Excluded bytes stay unchanged. After an error the content of `into` is undefined.
    ///
    /// Several threads call `progress` with the number of bytes that they have read.
    pub fn read(&self, region: &str, at: u64, into: &mut [u8], progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        self.read_pieces(vec![self.piece(region, at, into)?], progress)
    }

    /// Like [`read`](Self::read), for several whole regions. Small regions are read together.
    pub fn read_regions<'a>(
        &self,
        regions: impl IntoIterator<Item = (&'a str, &'a mut [u8])>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let pieces = regions.into_iter().map(|(region, into)| self.piece(region, 0, into));
        self.read_pieces(pieces.collect::<Result<_>>()?, progress)
    }

    fn piece<'a>(&'a self, region: &str, at: u64, into: &'a mut [u8]) -> Result<Piece<'a>> {
        let mapped = self.map(region)?;
        let available = mapped.region.blocks.bytes();
        let end = at.saturating_add(into.len() as u64);
        if end > available {
            return Err(Error::OutOfRange { region: region.to_owned(), bytes: at..end, available });
        }
        Ok(Piece { mapped, at, bytes: into.len() as u64, into: Some(into) })
    }

    fn read_pieces(&self, pieces: Vec<Piece<'_>>, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let failure = Failure::default();
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let window_bytes = fetch::window_bytes(bytes);
        let windows = Windows { window_bytes, pieces: pieces.into_iter(), rest: None };
        let count_max = bytes.div_ceil(window_bytes);
        fetch::share(failure.until(windows), count_max, |fetcher, mut window| {
            let read = read_window(fetcher, &mut window);
            if read.is_ok() {
                progress(window.iter().map(|piece| piece.bytes).sum());
            }
            failure.keep(read);
        });
        failure.result()
    }

    /// Reads every block of every region, and verifies its hash.
    pub fn verify(&self) -> Result<()> {
        self.read_all([])
    }

    /// Reads every block of every region, and verifies its hash. These regions are put into memory,
    /// as by [`read_regions`](Self::read_regions).
    pub fn read_all<'a>(&self, into: impl IntoIterator<Item = (&'a str, &'a mut [u8])>) -> Result<()> {
        let pieces = into.into_iter().map(|(region, into)| self.piece(region, 0, into));
        let mut pieces: Vec<Piece<'_>> = pieces.collect::<Result<_>>()?;
        // What is asked for is verified to its end, too.
        for nth in 0..pieces.len() {
            let Piece { mapped, bytes: at, .. } = pieces[nth];
            pieces.push(Piece { mapped, at, bytes: mapped.region.blocks.bytes() - at, into: None });
        }
        let asked: BTreeSet<&str> = pieces.iter().map(|Piece { mapped, .. }| mapped.region.name.as_str()).collect();
        for mapped in self.mapped().filter(|mapped| !asked.contains(mapped.region.name.as_str())) {
            pieces.push(Piece { mapped, at: 0, bytes: mapped.region.blocks.bytes(), into: None });
        }
        self.read_pieces(pieces, &|_| {})
    }

    /// Like [`read_regions`](Self::read_regions), all or nothing: the whole version is verified,
    /// and if anything is damaged, the memory holds what it did before.
    ///
    /// Memory that can be put back is filled while everything is verified; other memory is filled
    /// after that, by a second read.
    pub fn restore(&self, mut regions: Vec<(&str, &mut [u8])>) -> Result<()> {
        let mut befores = Befores::new(BEFORE_BYTES_MAX);
        let befores: Vec<_> = regions.iter().map(|(_, memory)| befores.of(memory)).collect();
        let known = regions.iter_mut().zip(&befores).filter(|(_, before)| before.is_some());
        if let Err(error) = self.read_all(known.map(|((region, memory), _)| (*region, &mut **memory))) {
            for ((_, memory), before) in regions.iter_mut().zip(&befores) {
                before.iter().for_each(|before| before.put_back(memory));
            }
            return Err(error);
        }
        let others = regions.into_iter().zip(befores).filter(|(_, before)| before.is_none());
        self.read_regions(others.map(|(region, _)| region), &|_| {})
    }

    /// All bytes of a region. Excluded bytes are zero.
    pub fn read_region(&self, region: &str) -> Result<Vec<u8>> {
        let count = self.map(region)?.region.blocks.bytes();
        let no_room = |_| Error::TooLarge { region: region.to_owned(), bytes: count };
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(count as usize).map_err(no_room)?;
        bytes.resize(count as usize, 0);
        self.read(region, 0, &mut bytes, &|_| {})?;
        Ok(bytes)
    }

    /// The ranges of a region that were saved, in ascending order and not adjacent. All other bytes
    /// were excluded.
    pub fn saved(&self, region: &str) -> Result<impl Iterator<Item = Range<u64>>> {
        let mapped = self.map(region)?;
        let mut segments = mapped.segments.iter().peekable();
        let stretches = std::iter::from_fn(move || {
            let mut blocks = segments.next()?.blocks.clone();
            while let Some(next) = segments.next_if(|next| next.blocks.start == blocks.end) {
                blocks.end = next.blocks.end;
            }
            Some(mapped.region.blocks.range_of(blocks))
        });
        Ok(stretches.flat_map(|bytes| without(bytes, &mapped.region.excluded)))
    }

    /// The version for which one of its packs was made.
    pub fn generation(&self, id: PackId) -> Option<u64> {
        self.packs.get(&id).map(|pack| pack.header.origin().version)
    }

    /// The saved blocks of a region, in ascending order: their places, and the kind of their
    /// hashes.
    pub fn places(&self, region: &str) -> Result<impl Iterator<Item = (u64, HashKind, Place)>> {
        Ok(self.map(region)?.places(0..u64::MAX).map(|(block, through, place)| {
            let hash_kind = through.header.origin().hash_kind;
            (block, hash_kind, place)
        }))
    }

    pub(crate) fn mapped(&self) -> impl Iterator<Item = Mapped<'_>> {
        (0..self.maps.len()).map(|number| self.nth(number))
    }

    fn nth(&self, number: usize) -> Mapped<'_> {
        Mapped { reader: self, region: &self.manifest.regions[number], segments: &self.maps[number] }
    }

    /// The number of a region in the manifest.
    fn number(&self, region: &str) -> Option<usize> {
        let name = |number: &usize| self.manifest.regions[*number].name.as_str();
        let found = self.by_name.binary_search_by(|number| name(number).cmp(region)).ok()?;
        Some(self.by_name[found])
    }

    pub(crate) fn find(&self, region: &str) -> Option<Mapped<'_>> {
        self.number(region).map(|number| self.nth(number))
    }

    /// The description of a region in the manifest.
    pub fn region(&self, region: &str) -> Option<&ManifestRegion> {
        self.find(region).map(|mapped| mapped.region)
    }

    pub(crate) fn map(&self, region: &str) -> Result<Mapped<'_>> {
        self.find(region).ok_or_else(|| Error::NoRegion {
            session: self.manifest.session.clone(),
            version: self.manifest.version,
            rank: self.manifest.rank,
            region: region.to_owned(),
            known: self.manifest.regions.iter().map(|region| region.name.clone()).collect(),
        })
    }

    pub(crate) fn chain(&self, pack: usize) -> &Pack {
        &self.chain[pack]
    }

    /// Finds the pack for each block of each region: the newest pack that has the block.
    fn find_segments(&mut self) {
        let mut maps = mem::take(&mut self.maps);
        for (nth, pack) in self.chain.iter().enumerate() {
            for listed in pack.index().into_iter().flat_map(|index| index.regions()) {
                if let Some(number) = self.number(listed.name()) {
                    overlay(&mut maps[number], usable(listed, self.manifest.regions[number].blocks), nth);
                }
            }
        }
        self.maps = maps;
    }
}

/// The blocks of a pack that belong to a region of a version. If the region had another length when
/// the pack was made, only blocks that have their full length in both count.
fn usable(listed: &IndexRegion, blocks: Blocks) -> impl Iterator<Item = Range<u64>> {
    let theirs = listed.blocks();
    let whole = |blocks: Blocks| blocks.bytes() / u64::from(blocks.block_bytes());
    let end = if theirs.block_bytes() != blocks.block_bytes() {
        0
    } else if theirs == blocks {
        blocks.count()
    } else {
        whole(theirs).min(whole(blocks))
    };
    listed
        .extents()
        .map(move |extent| extent.first_block..extent.blocks().end.min(end))
        .filter(|range| !range.is_empty())
}

/// Adds the parts of `ranges`, which are ascending, that no segment covers yet.
fn overlay(segments: &mut Vec<Segment>, ranges: impl Iterator<Item = Range<u64>>, pack: usize) {
    let mut added: Vec<Segment> = Vec::new();
    let mut add = |blocks: Range<u64>| match added.last_mut() {
        Some(last) if last.blocks.end == blocks.start => last.blocks.end = blocks.end,
        _ => added.push(Segment { blocks, pack }),
    };
    let mut next = 0;
    for range in ranges {
        let mut from = range.start;
        while let Some(known) = segments.get(next).filter(|known| known.blocks.start < range.end) {
            if from < known.blocks.start {
                add(from..known.blocks.start);
            }
            from = from.max(known.blocks.end);
            if known.blocks.end > range.end {
                break;
            }
            next += 1;
        }
        if from < range.end {
            add(from..range.end);
        }
    }
    segments.append(&mut added);
    // A stable sort is fast here: the input is two sorted lists, one after the other.
    segments.sort_by_key(|segment| segment.blocks.start);
}

impl<'a> Mapped<'a> {
    /// The saved blocks in `range`, in ascending order: the pack in whose index each is found, and
    /// its place.
    pub(crate) fn places(self, range: Range<u64>) -> impl Iterator<Item = (u64, &'a Pack, Place)> {
        let first = self.segments.partition_point(|segment| segment.blocks.end <= range.start);
        let segments = self.segments[first..].iter().take_while(move |segment| segment.blocks.start < range.end);
        segments.flat_map(move |segment| {
            let pack = self.reader.chain(segment.pack);
            let listed = pack.index().and_then(|index| index.region(&self.region.name));
            let blocks = segment.blocks.start.max(range.start)..segment.blocks.end.min(range.end);
            blocks.filter_map(move |block| Some((block, pack, listed?.find(block)?)))
        })
    }

    /// Checks that every saved block has a place in a pack that the manifest lists.
    fn check(self) -> Result<()> {
        let blocks = self.region.blocks;
        let mut from = 0;
        let end = Segment { blocks: blocks.count()..blocks.count(), pack: 0 };
        for segment in self.segments.iter().chain([&end]) {
            if from < segment.blocks.start {
                let bytes = blocks.range_of(from..segment.blocks.start);
                let is_excluded = |range: &Range<u64>| range.start <= bytes.start && bytes.end <= range.end;
                if !self.region.excluded.iter().any(is_excluded) {
                    return Err(self.lost(bytes, "no pack of the manifest has them".to_owned()));
                }
            }
            from = segment.blocks.end;
        }
        Ok(())
    }

    /// Checks the blocks that lie in other packs than the one whose index lists them: their places
    /// must exist there. Blocks in the pack itself were checked with its index.
    fn check_borrowed(self, pack: usize, listed: &IndexRegion) -> Result<()> {
        let through = self.reader.chain(pack);
        let extents: Vec<_> = listed.extents().filter(|extent| extent.pack != through.id).collect();
        for segment in self.segments.iter().filter(|segment| segment.pack == pack) {
            let first = extents.partition_point(|extent| extent.blocks().end <= segment.blocks.start);
            for extent in extents[first..].iter().take_while(|extent| extent.first_block < segment.blocks.end) {
                let shared = extent.first_block.max(segment.blocks.start)..extent.blocks().end.min(segment.blocks.end);
                let Some(last) = listed.find(shared.end - 1) else { continue };
                let reason = match self.reader.packs.get(&extent.pack) {
                    None => "which the manifest does not name",
                    Some(pack) if last.range().end > pack.header.payload_range().end => "where no blocks are",
                    Some(_) => continue,
                };
                let reason = format!("{} says that they are in {}, {reason}", through.path, extent.pack);
                return Err(self.lost(self.region.blocks.range_of(shared), reason));
            }
        }
        Ok(())
    }

    /// The pack in whose file a block lies.
    pub(crate) fn holder(self, through: &'a Pack, place: &Place) -> &'a Pack {
        // Every place was checked when the reader was opened.
        self.reader.packs.get(&place.pack).map_or(through, |pack| pack)
    }

    fn lost(self, bytes: Range<u64>, reason: String) -> Error {
        let manifest = &self.reader.manifest;
        Error::Lost {
            session: manifest.session.clone(),
            version: manifest.version,
            rank: manifest.rank,
            region: self.region.name.clone(),
            bytes,
            reason,
        }
    }
}

/// `bytes` without the ranges in `excluded`, which are ascending.
pub(crate) fn without(bytes: Range<u64>, excluded: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> {
    let first = excluded.partition_point(|range| range.end <= bytes.start);
    let mut holes = excluded[first..].iter();
    let mut from = bytes.start;
    std::iter::from_fn(move || {
        while from < bytes.end {
            let hole = holes.next().filter(|hole| hole.start < bytes.end);
            let part = from..hole.map_or(bytes.end, |hole| hole.start);
            from = hole.map_or(bytes.end, |hole| hole.end);
            if !part.is_empty() {
                return Some(part);
            }
        }
        None
    })
}

/// `bytes` bytes of a region, starting at byte `at`, and the memory to read them into. Without,
/// they are only verified.
struct Piece<'a> {
    mapped: Mapped<'a>,
    at: u64,
    bytes: u64,
    into: Option<&'a mut [u8]>,
}

impl<'a> Piece<'a> {
    /// Splits it after about `bytes_max` bytes, at the boundary of a block.
    fn split(self, bytes_max: u64) -> (Self, Option<Self>) {
        let Self { mapped, at, bytes, into } = self;
        let end = (at + bytes_max.max(1)).next_multiple_of(u64::from(mapped.region.blocks.block_bytes()));
        let count = (end - at).min(bytes);
        let (into, rest) = into.map(|into| into.split_at_mut(count as usize)).unzip();
        let rest = (count < bytes).then_some(Self { mapped, at: end, bytes: bytes - count, into: rest });
        (Self { mapped, at, bytes: count, into }, rest)
    }
}

/// The first error of several threads.
#[derive(Default)]
pub(crate) struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Passes on the work until there is an error.
    pub(crate) fn until<W>(&self, work: impl Iterator<Item = W>) -> impl Iterator<Item = W> {
        work.take_while(|_| self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    pub(crate) fn keep(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }

    pub(crate) fn result(self) -> Result<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Reads several pieces.
fn read_window(fetcher: &mut Fetcher, window: &mut [Piece<'_>]) -> Result<()> {
    let blocks = |piece: &Piece<'_>| piece.mapped.region.blocks.touching(piece.at..piece.at + piece.bytes);
    let pieces: Vec<_> = window.iter().map(|piece| (piece.mapped, blocks(piece))).collect();
    read_blocks(fetcher, pieces, |nth, range, plain| {
        let Piece { mapped, at, bytes, into } = &mut window[nth];
        let Some(into) = into else { return };
        let bytes = range.start.max(*at)..range.end.min(*at + *bytes);
        for part in without(bytes, &mapped.region.excluded) {
            let from = &plain[(part.start - range.start) as usize..(part.end - range.start) as usize];
            into[(part.start - *at) as usize..(part.end - *at) as usize].copy_from_slice(from);
        }
    })
}

/// Reads blocks of several regions. Blocks that are close to each other are read together. Passes
/// the bytes of each to `take`, with the number of its piece and its range in the region.
pub(crate) fn read_blocks<'a>(
    fetcher: &mut Fetcher,
    pieces: impl IntoIterator<Item = (Mapped<'a>, Range<u64>)>,
    mut take: impl FnMut(usize, Range<u64>, &[u8]),
) -> Result<()> {
    let mut numbers = Vec::new();
    let mut wanted = Vec::new();
    for (nth, (mapped, blocks)) in pieces.into_iter().enumerate() {
        for (block, through, place) in mapped.places(blocks) {
            let pack = mapped.holder(through, &place);
            wanted.push(Wanted { tag: numbers.len(), pack, place, hash_kind: through.hash_kind() });
            numbers.push((nth, mapped, block, pack, place));
        }
    }
    let mut result = Ok(());
    fetcher.fetch(&mut wanted, |tag, outcome| {
        let (nth, mapped, block, pack, place) = numbers[tag];
        let range = mapped.region.blocks.range(block);
        match outcome {
            Ok(fetched) => take(nth, range, fetched.plain),
            Err(Problem::Unread(source)) => {
                result = Err(Error::Storage { attempt: "read", path: pack.path.clone(), source });
            }
            Err(Problem::Changed(problem)) => {
                let Range { start, end } = place.range();
                result = Err(mapped.lost(range, format!("{}, bytes {start} to {end}: {problem}", pack.path)));
            }
        }
    });
    result
}

/// Splits the memory to fill into windows for the threads: parts of a large region, or several
/// small ones.
struct Windows<'a> {
    window_bytes: u64,
    pieces: std::vec::IntoIter<Piece<'a>>,
    rest: Option<Piece<'a>>,
}

impl<'a> Iterator for Windows<'a> {
    type Item = Vec<Piece<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut window = Vec::new();
        let mut bytes = 0;
        while bytes < self.window_bytes {
            let Some(piece) = self.rest.take().or_else(|| self.pieces.next()) else { break };
            let (piece, rest) = piece.split(self.window_bytes - bytes);
            bytes += piece.bytes;
            self.rest = rest;
            window.push(piece);
        }
        (!window.is_empty()).then_some(window)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]
mod tests {
    use super::*;

    fn overlaid(layers: &[&[Range<u64>]]) -> Vec<(Range<u64>, usize)> {
        let mut segments = Vec::new();
        for (pack, ranges) in layers.iter().enumerate() {
            overlay(&mut segments, ranges.iter().cloned(), pack);
        }
        segments.into_iter().map(|segment| (segment.blocks, segment.pack)).collect()
    }

    #[test]
    fn the_first_pack_that_has_a_block_has_it() {
        assert_eq!(overlaid(&[&[2..4, 6..7], &[0..8]]), [(0..2, 1), (2..4, 0), (4..6, 1), (6..7, 0), (7..8, 1)]);
        assert_eq!(overlaid(&[&[0..9], &[0..9]]), [(0..9, 0)]);
        assert_eq!(overlaid(&[&[0..2, 2..4], &[], &[3..5]]), [(0..4, 0), (4..5, 2)]);
        assert_eq!(overlaid(&[&[3..9], &[0..1, 2..4, 5..6, 8..12]]), [(0..1, 1), (2..3, 1), (3..9, 0), (9..12, 1)]);
    }

    #[test]
    fn any_chain_is_like_looking_at_one_block_after_the_other() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let packs: Vec<Vec<Range<u64>>> = (0..random.usize(1..6))
                .map(|_| {
                    let mut from = 0;
                    let mut ranges = Vec::new();
                    while from < 30 {
                        let start = from + random.u64(0..6);
                        let end = start + random.u64(1..6);
                        ranges.push(start..end);
                        from = end;
                    }
                    ranges
                })
                .collect();
            let layers: Vec<_> = packs.iter().map(Vec::as_slice).collect();
            let found = overlaid(&layers);
            for block in 0..50 {
                let expected = packs.iter().position(|ranges| ranges.iter().any(|range| range.contains(&block)));
                let actual: Vec<_> = found.iter().filter(|(range, _)| range.contains(&block)).collect();
                assert!(actual.len() <= 1);
                assert_eq!(actual.first().map(|(_, pack)| *pack), expected, "block {block} of {packs:?}");
            }
        }
    }

    #[test]
    fn excluded_parts_are_left_out() {
        let parts = |bytes, excluded: &[Range<u64>]| without(bytes, excluded).collect::<Vec<_>>();
        assert_eq!(parts(10..20, &[]), [10..20]);
        assert_eq!(parts(10..20, &[0..5, 12..13, 18..30]), [10..12, 13..18]);
        assert_eq!(parts(10..20, &[0..11, 19..20, 40..50]), [11..19]);
        assert_eq!(parts(10..20, &[5..25]), []);
    }
}
