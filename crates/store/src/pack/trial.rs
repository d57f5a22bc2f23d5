//! Decides whether to compress the blocks of a region: a trial measures if that takes less time
//! than writing them as they are.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Instant,
};

use outcrop_format::{Coding, CodingKind, Encoder, Trial, pays};

use super::{Compression, RegionJob, Run};
use crate::Result;

/// How many bytes a trial compresses.
const TRIAL_BYTES: usize = 1 << 20;

/// The trials of one pack: one for each region.
pub(super) struct Trials {
    /// The write rate of the first directory, in bytes per second.
    medium_rate: f64,
    /// Regions with the same settings share an encoder, because an encoder is expensive to make.
    encoders: HashMap<(Coding, i32), Encoder>,
    /// The region that was tried last, and whether it is compressed. Runs of one region are
    /// adjacent.
    last: Option<(usize, bool)>,
    #[cfg(test)]
    count: usize,
}

impl Trials {
    pub(super) fn new(medium_rate: f64) -> Self {
        Self {
            medium_rate,
            encoders: HashMap::new(),
            last: None,
            #[cfg(test)]
            count: 0,
        }
    }

    /// The encoder for the blocks of the first of these runs; `None` if they are stored as they
    /// are. `bytes` begins with the bytes of the runs.
    pub(super) fn encoder(&mut self, region: &RegionJob, runs: &[Run], bytes: &[u8]) -> Result<Option<&mut Encoder>> {
        let (kind, level) = match region.compression {
            Compression::None => return Ok(None),
            Compression::Lz4 => (CodingKind::Lz4, 0),
            Compression::Zstd(level) => (CodingKind::Zstd, level),
        };
        let coding = Coding::new(kind, u8::try_from(region.manifest.element_bytes).unwrap_or(0));
        let encoder = match self.encoders.entry((coding, level)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Encoder::new(coding, level)?),
        };
        let is_compressed = match self.last {
            Some((tried, is_compressed)) if tried == runs[0].region => is_compressed,
            _ => {
                #[cfg(test)]
                {
                    self.count += 1;
                }
                pays(&try_out(encoder, region, runs, bytes)?, self.medium_rate)
            }
        };
        self.last = Some((runs[0].region, is_compressed));
        Ok(is_compressed.then_some(encoder))
    }
}

/// Compresses the first blocks of a region. `runs` are the remaining runs, its own first.
fn try_out(encoder: &mut Encoder, region: &RegionJob, runs: &[Run], bytes: &[u8]) -> Result<Trial> {
    let blocks = region.manifest.blocks;
    let mut scratch = vec![0; blocks.block_bytes() as usize];
    let mut trial = Trial { plain_bytes: 0, stored_bytes: 0, coding_ns: 0 };
    let of_region = runs.iter().take_while(|run| run.region == runs[0].region);
    let start = Instant::now();
    for block in of_region.flat_map(|run| run.blocks.clone()) {
        let at = trial.plain_bytes as usize;
        if at >= TRIAL_BYTES {
            break;
        }
        let block = &bytes[at..at + blocks.len(block) as usize];
        trial.stored_bytes += u64::from(encoder.encode(block, &mut scratch)?.bytes);
        trial.plain_bytes += block.len() as u64;
    }
    trial.coding_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok(trial)
}

#[cfg(test)]
mod tests {
    use outcrop_format::{Blocks, HashKind, ManifestRegion};
    use outcrop_region::Shape;

    use super::*;

    fn region(name: &str, bytes: u64, compression: Compression) -> RegionJob {
        let blocks = Blocks::new(bytes, 256).unwrap();
        let (name, element, shape) = (name.to_owned(), "u8".to_owned(), Shape::flat(bytes as usize));
        let (element_bytes, hash_kind, excluded) = (1, HashKind::Xxh3, Vec::new());
        let manifest = ManifestRegion { name, element, element_bytes, shape, blocks, hash_kind, excluded };
        RegionJob { manifest, compression }
    }

    /// Every second block of each region.
    fn scattered(regions: &[RegionJob]) -> Vec<Run> {
        let blocks = |index: usize| (0..regions[index].manifest.blocks.count()).step_by(2);
        let run = |region, block| Run { region, blocks: block..block + 1, hashes: Vec::new() };
        (0..regions.len()).flat_map(|index| blocks(index).map(move |block| run(index, block))).collect()
    }

    #[test]
    fn scattered_changes_are_tried_once_for_each_region() {
        let lz4 = |name| region(name, 100_000, Compression::Lz4);
        let regions = [lz4("a"), region("b", 10_000, Compression::None), lz4("c"), lz4("d")];
        let runs = scattered(&regions);
        let bytes = vec![0; 400_000];
        // A slow medium: compression pays.
        let mut trials = Trials::new(1.0);
        let mut at = 0;
        for (nth, run) in runs.iter().enumerate() {
            let encoder = trials.encoder(&regions[run.region], &runs[nth..], &bytes[at..]).unwrap();
            assert_eq!(encoder.is_some(), run.region != 1, "run {nth} of {}", runs.len());
            at += regions[run.region].manifest.blocks.len(run.blocks.start) as usize;
        }
        assert_eq!((trials.count, trials.encoders.len()), (3, 1));
    }

    #[test]
    fn a_trial_takes_blocks_of_one_region_only() {
        let regions = [region("zeros", 1000, Compression::Lz4), region("noise", 1 << 20, Compression::Lz4)];
        let runs = scattered(&regions);
        let mut bytes = vec![0; 600 << 10];
        let noise = &mut bytes[512..];
        noise.iter_mut().zip(1u32..).for_each(|(byte, at)| *byte = (at.wrapping_mul(0x9e37_79b9) >> 24) as u8);
        let mut encoder = Encoder::new(Coding::new(CodingKind::Lz4, 0), 0).unwrap();
        let trial = try_out(&mut encoder, &regions[0], &runs, &bytes).unwrap();
        assert_eq!(trial.plain_bytes, 512);
        assert!(trial.stored_bytes < 100, "{trial:?}");
    }
}
