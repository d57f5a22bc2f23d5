//! Regions know their shape: in a tape, in a store, and in files of an older version of Outcrop.

use std::{fs, path::Path, thread, time::Duration};

use outcrop::{
    Blank, ErrorKind, MemoryOrder, Part, PartMut, Reached, Session, Shape, Store, StoreBuilder, Tape,
    store::{Dedup, SharedDirectory},
};

fn store(dir: &Path) -> StoreBuilder {
    Store::builder().host(4u64 << 20).pin(false).dir(dir, None)
}

fn column_major(dimensions: &[usize]) -> Shape {
    Shape::new(dimensions, MemoryOrder::ColumnMajor).unwrap()
}

#[test]
fn a_snapshot_has_the_shapes_that_it_was_saved_with() {
    let mut tape = Tape::builder().host(1u64 << 20).open().unwrap();
    let field: Vec<f32> = (0..24).map(|index| index as f32).collect();
    let parts = [
        Part::new("field", &field).shaped(&[2, 3, 4]),
        Part::new("turned", &field).shaped(&[4, 6]).in_order(MemoryOrder::ColumnMajor),
        Part::boxed("part", &field, &[8, 12], &[6, 0]),
        Part::one("step", &7u64),
        Part::new("flat", &field),
    ];
    tape.save_regions(1, &parts).unwrap();
    let past = tape.take_regions(1).unwrap();
    assert_eq!(past.shape("field").unwrap().dimensions(), [2, 3, 4]);
    assert_eq!(*past.shape("turned").unwrap(), column_major(&[4, 6]));
    assert_eq!(past.shape("part").unwrap().to_string(), "2 x 12 at (6, 0) of 8 x 12");
    assert_eq!((past.shape("step").unwrap(), past.shape("flat").unwrap()), (&Shape::scalar(), &Shape::flat(24)));
    let part = past.part("field").unwrap();
    assert_eq!((part.element.name(), part.bytes.len(), part.shape().unwrap().count()), ("f32", 96, 24));
    assert_eq!(past.region::<f32>("turned").unwrap(), field);

    let blank = Blank::new::<f64>("u", 6).shaped(&[3, 2]);
    let mut lent = tape.lend_regions(2, std::slice::from_ref(&blank)).unwrap();
    lent.region_mut::<f64>("u").unwrap().fill(1.0);
    lent.seal();
    assert_eq!(tape.get_regions(2).unwrap().shape("u").unwrap().dimensions(), [3, 2]);
    let error = tape.save_regions(3, &[Part::new("field", &field).shaped(&[5, 5])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("\"field\" cannot have this shape: an array of 5 x 5"), "{error}");
}

#[test]
fn a_version_is_restored_into_arrays_of_its_shape_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = store(dir.path()).open().unwrap().session("heat").unwrap();
    let field: Vec<f64> = (0..12).map(f64::from).collect();
    session.save(1, &[Part::new("field", &field).shaped(&[3, 4]), Part::one("step", &1u64)]).unwrap();
    session.wait(1, Reached::All).unwrap();
    let saved = session.regions(1).unwrap();
    assert_eq!((saved[0].shape.dimensions(), &saved[1].shape), (&[3, 4][..], &Shape::scalar()));

    let mut found = vec![0f64; 12];
    let mut try_shape = |shape: &Shape| {
        found.fill(0.0);
        let outcome = session.restore(1, &mut [PartMut::new("field", &mut found).like(shape)]).map(drop);
        outcome.map(|()| assert_eq!(found, field))
    };
    let row_major = |dimensions: &[usize]| Shape::new(dimensions, MemoryOrder::RowMajor).unwrap();
    // The same memory in other shapes, and in a program without shapes.
    for shape in [row_major(&[3, 4]), column_major(&[4, 3]), Shape::flat(12)] {
        try_shape(&shape).unwrap();
    }
    for (shape, asked) in [(row_major(&[4, 3]), "4 x 3"), (column_major(&[3, 4]), "3 x 4, column-major")] {
        let error = try_shape(&shape).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        let reason = format!("region field holds 3 x 4 and not {asked}; nothing was changed");
        assert!(error.to_string().contains(&reason), "{error}");
    }
    let error = try_shape(&row_major(&[2, 4])).unwrap_err();
    assert!(error.to_string().contains("cannot have this shape"), "{error}");
}

#[test]
fn boxes_of_a_global_array_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut session = store(dir.path()).open().unwrap().session("heat").unwrap();
    let local = [0u16; 12];
    session.save(1, &[Part::boxed("field", &local, &[9, 4], &[3, 0])]).unwrap();
    session.wait(1, Reached::All).unwrap();
    let shape = session.regions(1).unwrap()[0].shape.clone();
    let global = shape.global().unwrap();
    assert_eq!((shape.dimensions(), global.shape(), global.offset()), (&[3, 4][..], &[9, 4][..], &[3, 0][..]));
    let mut found = [1u16; 12];
    session.restore(1, &mut [PartMut::boxed("field", &mut found, &[9, 4], &[3, 0])]).unwrap();
    assert_eq!(found, local);
    let error = session.restore(1, &mut [PartMut::boxed("field", &mut found, &[9, 4], &[6, 0])]).unwrap_err();
    assert!(error.to_string().contains("no rank has saved the element (6, 0)"), "{error}");
    let outside = [Part::boxed("field", &local, &[9, 4], &[7, 0])];
    assert!(session.save(2, &outside).unwrap_err().to_string().contains("the box is not inside its global array"));
}

/// The content of `golden-v1`: session `heat` of two ranks.
struct State {
    field: Vec<f64>,
    shared: Vec<f32>,
    mask: Vec<u8>,
    step: u64,
}

impl State {
    fn empty() -> Self {
        Self { field: vec![0.0; 1024], shared: vec![0.0; 2048], mask: vec![0; 5000], step: 0 }
    }

    fn restore(session: &mut Session) -> Self {
        let mut state = Self::empty();
        let Self { field, shared, mask, step } = &mut state;
        let mut parts = [
            // An array of two dimensions can be restored from a version without shapes.
            PartMut::new("field", field).shaped(&[32, 32]),
            PartMut::new("shared", shared),
            PartMut::new("mask", mask),
            PartMut::one("step", step),
        ];
        session.restore_latest(&mut parts).unwrap().unwrap();
        state
    }

    fn parts(&self) -> [Part<'_>; 4] {
        [
            Part::new("field", &self.field).shaped(&[32, 32]),
            Part::new("shared", &self.shared),
            Part::new("mask", &self.mask),
            Part::one("step", &self.step),
        ]
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn a_store_of_format_1_goes_on_incrementally() {
    let (dir, talk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../catalog/tests/golden-v1"), dir.path());
    let run = |program: &(dyn Fn(u32, &mut Session) + Sync)| {
        thread::scope(|scope| {
            for rank in 0..2 {
                let (dir, talk) = (dir.path(), talk.path());
                scope.spawn(move || {
                    let ranks = SharedDirectory::open_with(talk, rank, 2, Duration::from_secs(60)).unwrap();
                    let store = store(dir).block(4096u64).dedup(Dedup::Ranks).ranks(ranks).chain_max(3);
                    program(rank, &mut store.open().unwrap().session("heat").unwrap());
                });
            }
        });
    };
    run(&|rank, session| {
        let mut state = State::restore(session);
        let field = (0..1024).map(|i| if i < 16 { 5.0 } else { f64::from(i + rank * 10_000) });
        assert!(state.step == 5 && state.field.iter().copied().eq(field), "rank {rank}");
        // Enough versions to merge packs of the old format with new ones.
        for version in 6..=9 {
            state.field[0] = version as f64;
            state.step = version;
            session.save(version, &state.parts()).unwrap();
        }
        session.flush().unwrap();
    });
    run(&|rank, session| {
        let state = State::restore(session);
        assert_eq!((state.step, state.field[0], state.field[1]), (9, 9.0, 5.0));
        assert_eq!(state.field[1023], f64::from(1023 + rank * 10_000));
        assert_eq!(session.regions(9).unwrap()[0].shape.dimensions(), [32, 32]);
        assert_eq!(session.regions(5).unwrap()[0].shape, Shape::flat(1024));
    });
    let catalog = outcrop::catalog::Catalog::open(dir.path()).unwrap();
    let sixth = catalog.version("heat", Some(6)).unwrap();
    assert!(sixth.stored_bytes() <= 2 * 2 * 8192, "{} bytes are no increment", sixth.stored_bytes());
    let verified = outcrop::catalog::verify(&catalog, None, None, &|_, _| {}).unwrap();
    assert!(!verified.has_damage(), "{:?}", verified.findings);
}
