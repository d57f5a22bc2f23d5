//! A shelf: one file per snapshot, complete or removed.

use std::{path::Path, sync::Arc};

use outcrop_layers::{
    ALIGN, Extents, Feed, Host, Layer, Memory, Result, Shelf, Transfer,
    files::{DiskFiles, Files},
};
use outcrop_testing::alone;

fn shelf(dir: &Path, limit_bytes: Option<u64>) -> Shelf {
    let files: Arc<dyn Files> = Arc::new(DiskFiles::create(dir).unwrap());
    Shelf::new("shelf", files, limit_bytes).unwrap()
}

fn pattern(bytes: u64, seed: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index / 7) as u8 ^ seed).collect()
}

/// A feed that records results.
struct List(Vec<Transfer>, Vec<(u64, Result<()>, Option<Vec<u8>>)>);

impl Feed for List {
    fn next(&mut self) -> Option<Transfer> {
        self.0.pop()
    }

    fn done(&mut self, transfer: Transfer, result: Result<()>) {
        let read = match &transfer.memory {
            Memory::Read(slot) => Some(slot.to_vec()),
            Memory::Write(_) => None,
        };
        self.1.push((transfer.tag, result, read));
    }
}

#[test]
fn files_have_the_bytes_under_the_names_that_were_given() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = shelf(dir.path(), None);
    let host = Host::new(4 << 20).unwrap();
    let extents = |number: u64| -> Extents {
        // Two pieces that are not adjacent, as the plan may choose them.
        let (start, gap) = (number << 30, 8 << 20);
        [start..start + (1 << 20), start + gap..start + gap + ALIGN].into_iter().collect()
    };
    let bytes = (1 << 20) + ALIGN;
    let mut feed = List(Vec::new(), Vec::new());
    for number in 0..2u64 {
        shelf.name_file(number, format!("pack-{number}"));
        shelf.begin(number, &extents(number)).unwrap();
        let mut slot = host.slot(number * (2 << 20), bytes).unwrap();
        slot.copy_from_slice(&pattern(bytes, number as u8));
        feed.0.push(Transfer { tag: number, extents: extents(number), memory: Memory::Write(slot.seal()) });
    }
    shelf.run(&mut feed);
    assert!(feed.1.iter().all(|(_, result, _)| result.is_ok()), "{:?}", feed.1);
    for number in 0..2u64 {
        shelf.complete(number).unwrap();
        assert_eq!(std::fs::read(dir.path().join(format!("pack-{number}"))).unwrap(), pattern(bytes, number as u8));
        let mut back = vec![0; 1 << 20];
        shelf.read(number << 30, &mut back).unwrap();
        assert_eq!(back, pattern(bytes, number as u8)[..1 << 20]);
    }
    let read = Transfer { tag: 9, extents: extents(1), memory: Memory::Read(host.slot(0, bytes).unwrap()) };
    let mut feed = List(vec![read], Vec::new());
    shelf.run(&mut feed);
    assert_eq!(feed.1[0].2.as_deref(), Some(&pattern(bytes, 1)[..]));
    shelf.forget(0);
    assert!(dir.path().join("pack-0").exists(), "what is complete is its owner's");
    assert!(shelf.read(0, &mut [0; ALIGN as usize]).is_err(), "but the layer does not know it any more");
}

#[test]
fn what_was_not_written_whole_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = shelf(dir.path(), None);
    let extents = Extents::from_elem(0..ALIGN, 1);
    assert!(shelf.begin(1, &extents).is_err(), "without a name");
    shelf.name_file(1, "pack-1".to_owned());
    shelf.begin(1, &extents).unwrap();
    shelf.write(0, &pattern(ALIGN, 3)).unwrap();
    assert_eq!(shelf.used_bytes(), ALIGN);
    shelf.forget(1);
    assert!(!dir.path().join("pack-1").exists());
    assert_eq!(shelf.used_bytes(), 0);
    assert!(shelf.write(0, &pattern(ALIGN, 3)).is_err());
    assert!(shelf.complete(1).is_err());
}

#[test]
fn a_file_that_is_there_is_not_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let shelf = shelf(dir.path(), None);
    std::fs::write(dir.path().join("pack-1"), "somebody's").unwrap();
    shelf.name_file(1, "pack-1".to_owned());
    assert!(shelf.begin(1, &Extents::from_elem(0..ALIGN, 1)).is_err());
    shelf.forget(1);
    assert_eq!(std::fs::read(dir.path().join("pack-1")).unwrap(), b"somebody's");
}

#[test]
fn what_was_there_before_or_is_forgotten_counts_as_kept() {
    let dir = tempfile::tempdir().unwrap();
    let limited = shelf(dir.path(), Some(3 * ALIGN + 100));
    assert_eq!((limited.capacity(), shelf(dir.path(), None).capacity()), (Some(3 * ALIGN), None));
    limited.set_used("", ALIGN);
    let begin = |key: u64| {
        limited.name_file(key, format!("pack-{key}"));
        limited.begin(key, &Extents::from_elem(key * ALIGN..(key + 1) * ALIGN, 1)).unwrap();
    };
    begin(0);
    assert_eq!((limited.used_bytes(), limited.kept_bytes()), (2 * ALIGN, Some(ALIGN)));
    limited.complete(0).unwrap();
    limited.forget(0);
    assert_eq!((limited.used_bytes(), limited.kept_bytes()), (2 * ALIGN, Some(2 * ALIGN)), "its file is still there");
    begin(1);
    limited.forget(1);
    assert_eq!(limited.kept_bytes(), Some(2 * ALIGN), "what was not written whole is removed");
    limited.removed("pack-0", ALIGN);
    assert_eq!(limited.kept_bytes(), Some(ALIGN));
    limited.set_used("other", ALIGN);
    limited.set_used("", 0);
    assert_eq!(limited.kept_bytes(), Some(ALIGN), "each directory is counted once");
}

#[test]
fn a_file_is_open_only_while_it_is_written_or_read() {
    if alone("shelf::a_file_is_open_only_while_it_is_written_or_read") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let shelf = shelf(dir.path(), None);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let place = |key: u64| key * ALIGN..(key + 1) * ALIGN;
    let put = |key: u64| {
        shelf.name_file(key, format!("pack-{key}"));
        shelf.begin(key, &Extents::from_elem(place(key), 1)).unwrap();
        shelf.write(place(key).start, &pattern(ALIGN, key as u8)).unwrap();
        shelf.complete(key).unwrap();
    };
    put(0);
    let before = open();
    (1..40).for_each(put);
    let mut back = vec![0; ALIGN as usize];
    for key in 0..40 {
        shelf.read(place(key).start, &mut back).unwrap();
        assert_eq!(back, pattern(ALIGN, key as u8));
    }
    assert_eq!(open(), before);
    // A snapshot can get an extent before the snapshot that had it is forgotten.
    shelf.name_file(40, "pack-40".to_owned());
    shelf.begin(40, &Extents::from_elem(place(3), 1)).unwrap();
    shelf.forget(3);
    shelf.write(place(3).start, &pattern(ALIGN, 40)).unwrap();
    shelf.forget(40);
    assert!(shelf.read(place(3).start, &mut back).is_err());
    assert_eq!(open(), before);
}
