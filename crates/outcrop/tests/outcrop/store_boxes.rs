//! Versions that another number of ranks restores, or with other boxes.

mod arrays;
mod errors;
mod former;

use std::{collections::BTreeSet, path::Path};

use outcrop::{
    MemoryOrder, Part, PartMut, Reached, Result, Retention, Session, Store, StoreBuilder,
    store::{Compression, Dedup, RegionOptions, SharedDirectory},
};
use outcrop_testing::{amount, covered};

use crate::store_ranks::run;
use arrays::{Tile, Whole, tiling};

const MIB: u64 = 1 << 20;

fn builder(dir: &Path, ranks: SharedDirectory) -> StoreBuilder {
    let store = Store::builder().host(4 * MIB).pin(false).threads(1).block(256).ranks(ranks);
    store.dir(dir.join("near"), None).dir(dir.join("far"), None)
}

/// This rank's part of an array.
fn part<'a>(name: &'a str, values: &'a [u64], tile: &Tile, whole: &Whole) -> Part<'a> {
    Part::new(name, values).shaped(&tile.dimensions).in_order(whole.order).in_box(&whole.dimensions, &tile.offset)
}

fn part_mut<'a>(name: &'a str, values: &'a mut [u64], tile: &Tile, whole: &Whole) -> PartMut<'a> {
    PartMut::new(name, values).shaped(&tile.dimensions).in_order(whole.order).in_box(&whole.dimensions, &tile.offset)
}

/// What all ranks of a run save: an array, a list, and a number.
#[derive(Clone)]
struct State {
    whole: Whole,
    list: Vec<u64>,
    step: u64,
}

impl State {
    fn save(&self, session: &mut Session, tile: &Tile, list: std::ops::Range<usize>) -> Result<()> {
        let values = self.whole.cut(tile);
        let parts = [
            part("field", &values, tile, &self.whole),
            Part::list("particles", &self.list[list]),
            Part::one("step", &self.step),
        ];
        session.save(self.step, &parts)
    }

    /// Restores a box of the array, and the share of the list that `regions` says.
    fn check(&self, session: &mut Session, tile: &Tile, excluded: &BTreeSet<usize>) -> Result<()> {
        let Some(version) = session.latest()? else { panic!("nothing was found") };
        let regions = session.regions(version)?;
        let list = regions.iter().find(|region| region.name == "particles").unwrap();
        let first = list.shape.global().unwrap().offset()[0];
        assert_eq!(list.shape.global().unwrap().shape(), [self.list.len()]);
        let mut found = vec![u64::MAX; tile.count()];
        let (mut particles, mut step) = (vec![0; list.shape.count()], 0u64);
        let mut parts = [
            part_mut("field", &mut found, tile, &self.whole),
            PartMut::list("particles", &mut particles, first),
            PartMut::one("step", &mut step),
        ];
        let restored = session.restore_latest(&mut parts)?.unwrap();
        assert_eq!((restored.version, step), (self.step, self.step));
        assert_eq!(particles, self.list[first..first + particles.len()]);
        // Excluded elements stay as they were.
        let places = self.whole.places(tile).into_iter();
        let expected = places.map(|place| if excluded.contains(&place) { u64::MAX } else { self.whole.values[place] });
        assert!(found.iter().copied().eq(expected), "{tile:?} of {:?}", self.whole);
        Ok(())
    }
}

/// Which elements of a list a rank has, of unequal lengths.
fn shares(random: &mut fastrand::Rng, length: usize, count: u32) -> Vec<std::ops::Range<usize>> {
    let mut ends: Vec<usize> = (1..count).map(|_| random.usize(..=length)).collect();
    ends.push(length);
    ends.sort_unstable();
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Saves and restores one state after the other, each time on another number of ranks.
fn generations(seed: u64, counts: &[u32], dimensions: usize, order: MemoryOrder) {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let sizes: Vec<usize> = (0..dimensions).map(|_| random.usize(1..[900, 40, 14][dimensions - 1])).collect();
    let whole = Whole::new(&sizes, order, &mut random);
    let list = (0..random.u64(..700)).collect();
    let mut state = State { whole, list, step: 0 };
    let excluded = if random.u8(..3) == 0 { random.u64(1..60) } else { 0 };
    let mut was_excluded = BTreeSet::new();
    for &count in counts {
        let before = state.clone();
        let tiles = tiling(&mut random, &state.whole.dimensions, count as usize);
        let mut states = Vec::new();
        for _ in 0..random.usize(1..4) {
            state.step += 1;
            state.whole.change(&mut random);
            state.list.truncate(random.usize(..=state.list.len()));
            state.list.extend((0..random.u64(..300)).map(|element| element * 1000 + state.step));
            states.push((state.clone(), shares(&mut random, state.list.len(), count)));
        }
        let (is_shared, compression) = (random.bool(), random.bool());
        run(&dir.path().join("talk"), count, |ranks| {
            let rank = outcrop::store::Ranks::rank(&ranks) as usize;
            let mut store = builder(dir.path(), ranks).chain_max(2);
            if is_shared {
                store = store.dedup(Dedup::Ranks);
            }
            if compression {
                store = store.compression(Compression::Lz4);
            }
            let mut session = store.open().unwrap().session("heat").unwrap();
            session.verify_before_restore(random_bit(seed, count));
            let bytes = 8..8 + excluded * 8;
            session.region("field", RegionOptions { excluded: vec![bytes], ..RegionOptions::default() });
            if before.step > 0 {
                before.check(&mut session, &tiles[rank], &was_excluded).unwrap();
            }
            for (state, shares) in &states {
                state.save(&mut session, &tiles[rank], shares[rank].clone()).unwrap();
            }
            session.finish().unwrap();
        });
        let left_out = |tile| state.whole.places(tile).into_iter().skip(1).take(excluded as usize);
        was_excluded = tiles.iter().flat_map(left_out).collect();
    }
    let verified = outcrop_catalog::Catalog::open(&dir.path().join("near")).unwrap();
    let complete = verified.complete_versions("heat").unwrap();
    assert_eq!(complete.len() as u64, state.step, "no version was removed");
}

fn random_bit(seed: u64, count: u32) -> bool {
    (seed + u64::from(count)).is_multiple_of(2)
}

#[test]
fn four_ranks_three_seven_and_one_restore_what_the_others_saved() {
    for dimensions in 1..=3 {
        for (seed, order) in [(1, MemoryOrder::RowMajor), (2, MemoryOrder::ColumnMajor)] {
            generations(seed + 10 * dimensions as u64, &[4, 3, 7, 1, 4], dimensions, order);
        }
    }
}

#[test]
fn any_boxes_are_restored_from_any_others() {
    let seeds = amount(6, 200);
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed + 1000);
        let counts: Vec<u32> = (0..4).map(|_| random.u32(1..6)).collect();
        let order = if random.bool() { MemoryOrder::RowMajor } else { MemoryOrder::ColumnMajor };
        generations(seed + 1000, &counts, random.usize(1..=3), order);
    }
    covered("stores that ranks of changing number used", seeds);
}

#[test]
fn other_boxes_are_restored_while_the_version_is_on_its_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let whole = Whole::new(&[60, 50], MemoryOrder::RowMajor, &mut random);
    let (tiles, others) = (tiling(&mut random, &[60, 50], 3), tiling(&mut random, &[60, 50], 3));
    run(&dir.path().join("talk"), 3, |ranks| {
        let rank = outcrop::store::Ranks::rank(&ranks) as usize;
        let mut session = builder(dir.path(), ranks).open().unwrap().session("heat").unwrap();
        let own = vec![rank as u64; 10 + rank];
        session
            .save(1, &[part("field", &whole.cut(&tiles[rank]), &tiles[rank], &whole), Part::new("own", &own)])
            .unwrap();
        let (mut found, mut mine) = (vec![0; others[rank].count()], vec![9; 10 + rank]);
        let mut parts = [part_mut("field", &mut found, &others[rank], &whole), PartMut::new("own", &mut mine)];
        session.restore(1, &mut parts).unwrap();
        assert_eq!((found, mine), (whole.cut(&others[rank]), own), "a region without a box is each rank's own");
        session.finish().unwrap();
    });
}

#[test]
fn a_program_without_ranks_reads_whole_arrays_and_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    let whole = Whole::new(&[30, 20], MemoryOrder::RowMajor, &mut random);
    let tiles = tiling(&mut random, &[30, 20], 4);
    let keep = Retention { keep_last: Some(1), ..Retention::default() };
    run(&dir.path().join("talk"), 4, |ranks| {
        let rank = outcrop::store::Ranks::rank(&ranks) as usize;
        let mut session = builder(dir.path(), ranks).keep(keep).open().unwrap().session("heat").unwrap();
        session.save(1, &[part("field", &whole.cut(&tiles[rank]), &tiles[rank], &whole)]).unwrap();
        session.wait(1, Reached::All).unwrap();
    });
    let store = || Store::builder().host(4 * MIB).pin(false).keep(keep).dir(dir.path().join("near"), None);
    let mut session = store().open().unwrap().session("heat").unwrap();
    let saved = session.regions(1).unwrap();
    assert_eq!((saved[0].shape.dimensions(), saved[0].bytes), (&[30, 20][..], 30 * 20 * 8));
    let mut field = vec![0u64; 600];
    // One dimension fits any shape.
    session.restore_latest(&mut [PartMut::new("field", &mut field)]).unwrap().unwrap();
    assert_eq!(field, whole.values);
    // A region without a box is a whole array, also the other way round.
    session.save(2, &[Part::new("field", &field).shaped(&[30, 20])]).unwrap();
    session.finish().unwrap();
    run(&dir.path().join("talk"), 2, |ranks| {
        let rank = outcrop::store::Ranks::rank(&ranks) as usize;
        let mut session = builder(dir.path(), ranks).keep(keep).open().unwrap().session("heat").unwrap();
        let tile = Tile { offset: vec![rank * 15, 0], dimensions: vec![15, 20] };
        let mut found = vec![0; 300];
        let restored = session.restore_latest(&mut [part_mut("field", &mut found, &tile, &whole)]).unwrap().unwrap();
        assert_eq!((restored.version, found), (2, whole.cut(&tile)));
    });
}
