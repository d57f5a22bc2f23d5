//! Files that were made to do harm: all checksums are right.

use outcrop_format::{
    PAGE_BYTES, POOL_ENTRIES, POOL_FIRST_PAGE, POOL_SLOTS, PoolContents, PoolEntry, PoolHeader, PoolKind, PoolRoot,
    PoolStructure, pool_check,
};
use outcrop_pool::{Block, Error, Options, Pool, Versioned};

use crate::medium::Recorded;

pub(crate) const PAGE: usize = PAGE_BYTES;
/// The page of the contents.
pub(crate) const FIRST: u64 = POOL_FIRST_PAGE;
const NONCE: [u8; 16] = [7; 16];

/// A pool of which the contents are in the first page after the slots, followed by these pages.
pub(crate) fn file(structures: Vec<PoolStructure>, pages: &[[u8; PAGE]]) -> Vec<u8> {
    let mut bytes = vec![0; POOL_FIRST_PAGE as usize * PAGE];
    let header = PoolHeader { nonce: NONCE }.encode();
    bytes[..header.len()].copy_from_slice(&header);
    let contents = PoolContents { structures }.encode().unwrap();
    let root = PoolRoot {
        nonce: NONCE,
        version: 1,
        oldest: 1,
        saved_at_unix_ns: 0,
        contents_page: POOL_FIRST_PAGE,
        contents_bytes: contents.len() as u64,
        contents_check: pool_check(&contents),
    };
    let root = root.encode();
    bytes[2 * PAGE..2 * PAGE + root.len()].copy_from_slice(&root);
    bytes.extend_from_slice(&contents);
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    pages.iter().for_each(|page| bytes.extend_from_slice(page));
    bytes
}

fn structure(elements: u64, block_bytes: u64, top: PoolEntry) -> PoolStructure {
    let mut structure = PoolStructure {
        name: "a".to_owned(),
        layout: <u64 as Versioned>::LAYOUT,
        element_bytes: 8,
        shape: [elements, 1, 1],
        block_bytes,
        state: Vec::new(),
        levels: 0,
        top,
    };
    structure.levels = PoolStructure::levels_of(structure.blocks());
    structure
}

pub(crate) fn open(bytes: Vec<u8>) -> Pool {
    Pool::on(Recorded::new(bytes), Options::versions(3)).unwrap()
}

#[test]
fn sizes_that_are_not_there_cost_nothing() {
    // An array of half an exbibyte of zeros, in the smallest blocks; and one in a single block.
    for (elements, block_bytes) in [(1 << 56, PAGE as u64), (1 << 45, PAGE as u64), (1 << 56, 1 << 59)] {
        let pool = open(file(vec![structure(elements, block_bytes, PoolEntry::ZEROS)], &[]));
        assert_eq!(pool.versions(), [1]);
        pool.view(1).unwrap().verify().unwrap();
        let refused = pool.view(1).unwrap().array::<u64>("a");
        assert!(matches!(refused, Err(Error::Misfit(_) | Error::Memory(_))), "{refused:?}");
        let refused = pool.array::<u64>("a", elements as usize, Block::default());
        assert!(matches!(refused, Err(Error::Misfit(_) | Error::Memory(_))), "{refused:?}");
    }
    // A block that is longer than the file.
    let pool = open(file(vec![structure(1 << 56, 1 << 59, PoolEntry::new(POOL_FIRST_PAGE + 1, 0))], &[[1; PAGE]]));
    assert_eq!((pool.versions().len(), pool.skipped().len()), (0, 1));
}

#[test]
fn blocks_have_a_power_of_two_of_elements() {
    // A mark for each block of 1536 elements, and not for each of 512.
    for elements in [1536, 1 << 20] {
        let pool = open(file(vec![structure(elements, 3 * PAGE as u64, PoolEntry::ZEROS)], &[]));
        let refused = pool.array::<u64>("a", elements as usize, Block::default()).map(|mut array| {
            (0..array.len()).for_each(|index| array[index] = 1);
        });
        assert!(matches!(refused, Err(Error::Misfit(_))), "{refused:?}");
        assert!(pool.view(1).unwrap().array::<u64>("a").unwrap().iter().all(|element| *element == 0));
    }
}

#[test]
fn a_list_has_one_dimension() {
    for shape in [[1 << 24, 0, 1], [1 << 24, 1, 0], [0, 7, 7], [4, 2, 1]] {
        let mut list = structure(0, PAGE as u64, PoolEntry::ZEROS);
        (list.shape, list.state) = (shape, vec![PoolKind::List as u8, 0]);
        let pool = open(file(vec![list], &[]));
        let refused = pool.list::<u64>("a", Block::default()).map(|list| list.iter().sum::<u64>());
        assert!(matches!(refused, Err(Error::Misfit(_))), "{refused:?}");
        assert!(pool.view(1).unwrap().list::<u64>("a").is_err());
        assert!(pool.view(1).unwrap().verify().is_err());
    }
}

#[test]
fn pages_that_refer_to_each_other_are_found() {
    // A page of which all entries refer to the same page below, four levels deep: a walk that
    // follows all of them would take four thousand million steps.
    let mut pages = vec![[1; PAGE]];
    let mut entry = PoolEntry::new(POOL_FIRST_PAGE + 1, pool_check(&[1; PAGE]));
    for level in 0..4 {
        let page = PoolEntry::encode_page(&[entry; POOL_ENTRIES]);
        entry = PoolEntry::new(POOL_FIRST_PAGE + 2 + level, pool_check(&page));
        pages.push(page);
    }
    let blocks = (POOL_ENTRIES as u64).pow(4);
    let pool = open(file(vec![structure(blocks * 512, PAGE as u64, entry)], &pages));
    assert_eq!(pool.versions(), []);
    assert!(pool.skipped()[0].1.contains("twice"), "{:?}", pool.skipped());
    // A block that is not in the file, and one that is the list of structures itself.
    let lead_to = |page| open(file(vec![structure(512, PAGE as u64, PoolEntry::new(page, 0))], &[]));
    let outside = lead_to(POOL_FIRST_PAGE + 1);
    assert_eq!((outside.versions().len(), outside.skipped().len()), (0, 1));
    assert!(lead_to(POOL_FIRST_PAGE).view(1).unwrap().verify().is_err());
}

#[test]
fn a_root_of_another_pool_or_in_another_slot_does_not_count() {
    let good = file(Vec::new(), &[]);
    assert_eq!(open(good.clone()).versions(), [1]);
    // Of another pool: with the number of that pool.
    let mut foreign = good.clone();
    let header = PoolHeader { nonce: [8; 16] }.encode();
    foreign[..header.len()].copy_from_slice(&header);
    assert_eq!(open(foreign).versions(), []);
    // As if a version had been copied to where another one belongs.
    let mut moved = good;
    moved.copy_within(2 * PAGE..3 * PAGE, 5 * PAGE);
    assert_eq!(open(moved.clone()).versions(), [1], "it is there once");
    moved[2 * PAGE..3 * PAGE].fill(0);
    assert_eq!(open(moved).versions(), []);
}

#[test]
fn the_last_number_of_a_version_is_refused() {
    for (version, is_last) in [(u64::MAX - 2, false), (u64::MAX - 1, true), (u64::MAX, true)] {
        let mut bytes = file(Vec::new(), &[]);
        let mut root = PoolRoot::decode(&bytes[2 * PAGE..3 * PAGE]).unwrap();
        (root.version, root.oldest) = (version, version);
        bytes[2 * PAGE..3 * PAGE].fill(0);
        let slot = (1 + version % POOL_SLOTS) as usize * PAGE;
        let root = root.encode();
        bytes[slot..slot + root.len()].copy_from_slice(&root);
        let pool = open(bytes);
        let mut array = pool.array::<u64>("a", 10, Block::default()).unwrap();
        let persisted = pool.persist(&mut [&mut array]);
        assert_eq!(persisted.is_err(), is_last, "{persisted:?}");
        assert!(persisted.err().is_none_or(|error| error.to_string().contains("last number")));
    }
}
