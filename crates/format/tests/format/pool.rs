//! The file of a pool: what is written can be read, and what makes no sense is refused.

use outcrop_format::{
    Error, PAGE_BYTES, POOL_CONTENTS_BYTES_MAX, POOL_ENTRIES, POOL_FIRST_PAGE, POOL_STATE_BYTES_MAX, PoolContents,
    PoolEntry, PoolHeader, PoolKind, PoolRoot, PoolStructure,
};

use crate::corpus::assert_in_corpus;

fn root() -> PoolRoot {
    PoolRoot {
        nonce: *b"a random number!",
        version: 7,
        oldest: 5,
        saved_at_unix_ns: 1,
        contents_page: 40,
        contents_bytes: 200,
        contents_check: 3,
    }
}

fn structure(name: &str, shape: [u64; 3]) -> PoolStructure {
    let mut structure = PoolStructure {
        name: name.to_owned(),
        layout: 9,
        element_bytes: 16,
        shape,
        block_bytes: 2 * PAGE_BYTES as u64,
        state: vec![1, 2, 3],
        levels: 0,
        top: PoolEntry::new(50, 4),
    };
    structure.levels = PoolStructure::levels_of(structure.blocks());
    structure
}

fn contents() -> PoolContents {
    let structures = vec![structure("a", [512, 1, 1]), structure("b", [600, 700, 2]), structure("c", [0, 1, 1])];
    PoolContents { structures }
}

#[test]
fn what_is_written_is_read_again() {
    let header = PoolHeader { nonce: *b"a random number!" };
    assert_eq!(PoolHeader::decode(&header.encode()), Ok(header));
    assert_in_corpus("pool", "header", &header.encode());
    assert_eq!(PoolRoot::decode(&root().encode()), Ok(root()));
    assert_in_corpus("pool", "root", &root().encode());
    let contents = contents();
    let bytes = contents.encode().unwrap();
    assert_eq!(PoolContents::decode(&bytes).unwrap(), contents);
    assert_in_corpus("pool", "contents", &bytes);
    let page = PoolEntry::encode_page(&[PoolEntry::new(33, 1), PoolEntry::ZEROS, PoolEntry::new(99, 2)]);
    let entries = PoolEntry::decode_page(&page).unwrap();
    assert_eq!((entries.len(), entries[2].page(), entries[3].is_zeros()), (POOL_ENTRIES, 99, true));
    assert_in_corpus("pool", "entries", &page);
}

#[test]
fn a_state_says_what_a_structure_is() {
    let kind = |state: &[u8]| PoolStructure { state: state.to_vec(), ..structure("a", [1, 1, 1]) }.kind();
    assert_eq!(kind(&[]), Some((PoolKind::Array, 0)));
    assert_eq!(kind(&[1, 0]), Some((PoolKind::List, 0)));
    assert_eq!(kind(&[2, 1]), Some((PoolKind::Quadtree, 1)));
    assert_eq!(kind(&[3, 0, 9, 9]), Some((PoolKind::Octree, 0)));
    assert_eq!(kind(&[4, 4]), Some((PoolKind::Graph, 4)));
    assert_eq!([kind(&[0, 0]), kind(&[5, 0]), kind(&[255, 0]), kind(&[1])], [None; 4]);
    let names = [1, 2, 3, 4].map(|number| kind(&[number, 0]).unwrap().0.name());
    assert_eq!(names, ["list", "quadtree", "octree", "graph"]);
}

#[test]
fn there_are_as_few_levels_as_blocks_need() {
    let levels = [0, 1, 2, 256, 257, 65_536, 65_537, u64::MAX].map(PoolStructure::levels_of);
    assert_eq!(levels, [0, 0, 1, 1, 2, 2, 3, 8]);
    let b = &contents().structures[1];
    assert_eq!((b.elements(), b.bytes(), b.blocks(), b.block_pages(), b.levels), (840_000, 13_440_000, 1641, 2, 2));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong = |change: &dyn Fn(&mut PoolRoot)| {
        let mut root = root();
        change(&mut root);
        matches!(PoolRoot::decode(&root.encode()), Err(Error::Wrong { .. }))
    };
    assert!(wrong(&|root| root.oldest = 8));
    assert!(wrong(&|root| root.oldest = 0));
    assert!(wrong(&|root| root.contents_page = POOL_FIRST_PAGE - 1));
    assert!(wrong(&|root| root.contents_page = 1 << 48));
    assert!(wrong(&|root| root.contents_bytes = POOL_CONTENTS_BYTES_MAX + 1));
    assert!(!wrong(&|root| root.contents_page = POOL_FIRST_PAGE));
    for at in 0..root().encode().len() {
        let mut bytes = root().encode();
        bytes[at] ^= 1;
        assert!(PoolRoot::decode(&bytes).is_err(), "byte {at}");
    }
    let refused = |change: &dyn Fn(&mut PoolStructure)| {
        let mut contents = contents();
        change(&mut contents.structures[1]);
        contents.encode().is_err()
    };
    assert!(refused(&|it| it.name = "a".to_owned()), "twice");
    assert!(refused(&|it| it.element_bytes = 0));
    assert!(refused(&|it| it.element_bytes = 24), "no whole number of elements in a block");
    assert!(refused(&|it| it.block_bytes = 0));
    assert!(refused(&|it| it.block_bytes += 16));
    assert!(refused(&|it| it.shape = [u64::MAX; 3]));
    assert!(refused(&|it| it.shape = [1 << 61, 1, 1]));
    assert!(refused(&|it| it.levels += 1));
    assert!(refused(&|it| it.top = PoolEntry::new(2, 0)), "a slot");
    assert!(refused(&|it| it.state = vec![0; POOL_STATE_BYTES_MAX + 1]));
    assert!(!refused(&|it| it.state = vec![0; POOL_STATE_BYTES_MAX]));
    let mut page = PoolEntry::encode_page(&[]);
    page[16] = 32;
    assert!(matches!(PoolEntry::decode_page(&page), Err(Error::Wrong { at: 16, .. })));
    assert!(matches!(PoolEntry::decode_page(&page[1..]), Err(Error::Short { .. })));
}
