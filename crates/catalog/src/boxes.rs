//! Reads parts of regions that are scattered in memory: boxes of arrays.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use outcrop_region::Moves;

use crate::{
    Reader, Result, fetch,
    reader::{Failure, Mapped, read_blocks, without},
};

/// Bytes of a region to read, and where they go.
pub struct Scattered<'a, 'b> {
    /// The region.
    pub region: &'a str,
    /// Which of its bytes go where.
    pub moves: &'a Moves,
    /// The memory to put them into. Without, they are only verified.
    pub into: Option<&'a Mutex<&'b mut [u8]>>,
}

impl Reader {
    /// Reads those blocks that are needed, and no others, and verifies the hash of each. Excluded
    /// bytes stay unchanged. After an error the content of the memory is undefined.
    pub fn read_scattered(&self, wanted: &[Scattered<'_, '_>]) -> Result<()> {
        let mut pieces: Vec<(usize, Mapped<'_>, Range<u64>)> = Vec::new();
        for (nth, it) in wanted.iter().enumerate() {
            let mapped = self.map(it.region)?;
            let first = pieces.len();
            for run in it.moves.runs() {
                let blocks = mapped.region.blocks.touching(run);
                match pieces[first..].last_mut() {
                    Some((.., last)) if last.end >= blocks.start => last.end = last.end.max(blocks.end),
                    _ => pieces.push((nth, mapped, blocks)),
                }
            }
        }
        let bytes_of = |mapped: Mapped<'_>, blocks: &Range<u64>| {
            let range = mapped.region.blocks.range_of(blocks.clone());
            range.end - range.start
        };
        let bytes = pieces.iter().map(|(_, mapped, blocks)| bytes_of(*mapped, blocks)).sum();
        let window_bytes = fetch::window_bytes(bytes);
        let mut rest = pieces.into_iter().flat_map(|(nth, mapped, blocks)| {
            let step = (window_bytes / u64::from(mapped.region.blocks.block_bytes())).max(1);
            let starts = (blocks.start..blocks.end).step_by(step as usize);
            starts.map(move |start| (nth, mapped, start..blocks.end.min(start + step)))
        });
        let windows = std::iter::from_fn(move || {
            let (mut window, mut left) = (Vec::new(), window_bytes);
            while left > 0
                && let Some((nth, mapped, blocks)) = rest.next()
            {
                left = left.saturating_sub(bytes_of(mapped, &blocks));
                window.push((nth, mapped, blocks));
            }
            (!window.is_empty()).then_some(window)
        });
        let failure = Failure::default();
        fetch::share(failure.until(windows), bytes.div_ceil(window_bytes), |fetcher, window| {
            let blocks = window.iter().map(|(_, mapped, blocks)| (*mapped, blocks.clone()));
            failure.keep(read_blocks(fetcher, blocks, |piece, range, plain| {
                let (nth, mapped, _) = &window[piece];
                put(&wanted[*nth], *mapped, range, plain);
            }));
        });
        failure.result()
    }

    /// Whether a region is the same in another version, or on another rank. Hashes are compared
    /// where that is enough, and bytes otherwise.
    pub fn is_same(&self, region: &str, other: &Self) -> Result<bool> {
        let (mine, theirs) = (self.map(region)?.region, other.map(region)?.region);
        if (&mine.element, &mine.shape, mine.blocks.bytes()) != (&theirs.element, &theirs.shape, theirs.blocks.bytes())
        {
            return Ok(false);
        }
        if mine.blocks == theirs.blocks && mine.excluded == theirs.excluded {
            let kinds = |reader: &Self| -> Result<Vec<_>> {
                Ok(reader.places(region)?.map(|(block, kind, place)| (block, kind, place.hash)).collect())
            };
            if kinds(self)? == kinds(other)? {
                return Ok(true);
            }
        }
        Ok(self.read_region(region)? == other.read_region(region)?)
    }
}

/// Puts the bytes of a block where they belong.
fn put(it: &Scattered<'_, '_>, mapped: Mapped<'_>, range: Range<u64>, plain: &[u8]) {
    let Some(into) = it.into else { return };
    let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
    for (part, to) in it.moves.within(range.clone()) {
        for kept in without(part.clone(), &mapped.region.excluded) {
            let from = &plain[(kept.start - range.start) as usize..(kept.end - range.start) as usize];
            let to = (to + (kept.start - part.start)) as usize;
            into[to..to + from.len()].copy_from_slice(from);
        }
    }
}
