//! Regions that are boxes of global arrays: one file of each.

use std::{fs, thread, time::Duration};

use outcrop::{MemoryOrder, Part, Store, store::SharedDirectory};

use crate::common::{outcrop, text};

/// Three ranks save planes of a field in Fortran's order, a list, and what each has of its own.
fn three_ranks(planes: [std::ops::Range<usize>; 3]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (path, planes) = (directory.path(), &planes);
    thread::scope(|scope| {
        for rank in 0..3u32 {
            scope.spawn(move || {
                let ranks = SharedDirectory::open_with(path.join("meeting"), rank, 3, Duration::from_secs(60)).unwrap();
                let store = Store::builder().host("8 MiB").dir(path.join("store"), None).ranks(ranks).pin(false);
                let mut session = store.open().unwrap().session("heat").unwrap();
                let mine = planes[rank as usize].clone();
                let field: Vec<f32> = (mine.start * 5..mine.end * 5).map(|value| value as f32).collect();
                let field = Part::new("field", &field)
                    .shaped(&[5, mine.len()])
                    .in_order(MemoryOrder::ColumnMajor)
                    .in_box(&[5, 9], &[0, mine.start]);
                let list = vec![u64::from(rank); rank as usize + 1];
                session.save(1, &[field, Part::list("list", &list), Part::one("rank", &rank)]).unwrap();
                session.finish().unwrap();
            });
        }
    });
    directory
}

#[test]
fn boxes_are_exported_as_one_array() {
    let dir = three_ranks([0..4, 4..5, 5..9]);
    let exported = outcrop(dir.path(), &["export", "store", "heat", "--to", "out"]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    let field = fs::read(dir.path().join("out/field.npy")).unwrap();
    let head = text(&field[..128]);
    assert!(head.contains("'descr': '<f4', 'fortran_order': True, 'shape': (5, 9)"), "{head}");
    let values: Vec<f32> = field[128..].chunks(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
    assert!(values.iter().copied().eq((0..45).map(|value| value as f32)), "{values:?}");
    let list = fs::read(dir.path().join("out/list.npy")).unwrap();
    let values: Vec<u64> = list[128..].chunks(8).map(|it| u64::from_le_bytes(it.try_into().unwrap())).collect();
    assert_eq!(values, [0, 1, 1, 2, 2, 2]);
    // What has no box is each rank's own.
    assert!(dir.path().join("out/rank-00002/rank.npy").exists());
    assert!(!dir.path().join("out/rank-00002/field.npy").exists());
    let one = outcrop(dir.path(), &["export", "store", "heat", "--to", "one", "--rank", "1"]);
    assert_eq!(one.status.code(), Some(0), "{}", text(&one.stderr));
    assert!(dir.path().join("one/rank-00001/field.npy").exists() && !dir.path().join("one/field.npy").exists());
}

#[test]
fn an_array_with_holes_is_exported_on_request_only() {
    let dir = three_ranks([0..4, 5..6, 6..9]);
    let refused = outcrop(dir.path(), &["export", "store", "heat", "--to", "out"]);
    assert_ne!(refused.status.code(), Some(0));
    let said = text(&refused.stderr);
    assert!(said.contains("no rank has saved the element (0, 4)") && said.contains("--allow-holes"), "{said}");
    assert!(!dir.path().join("out/field.npy").exists());
    let exported = outcrop(dir.path(), &["export", "store", "heat", "--to", "out", "--allow-holes"]);
    assert_eq!(exported.status.code(), Some(0), "{}", text(&exported.stderr));
    let field = fs::read(dir.path().join("out/field.npy")).unwrap();
    let values: Vec<f32> = field[128..].chunks(4).map(|it| f32::from_le_bytes(it.try_into().unwrap())).collect();
    let expected = (0..45).map(|value| if (20..25).contains(&value) { 0.0 } else { value as f32 });
    assert!(values.iter().copied().eq(expected), "{values:?}");
}
