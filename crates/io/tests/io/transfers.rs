//! Transfers to and from real files: both methods produce the same bytes and the same errors for
//! all lengths, offsets, pieces and depths.

use std::{
    collections::VecDeque,
    fs::{self, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::Arc,
};

use outcrop_io::{ALIGN, Carrier, CarrierOptions, Direction, Feed, File, Memory, Method, Piece, Pieces, Transfer};
use outcrop_memory::{Mapping, Pages};
use outcrop_testing::{pattern, skip};
use proptest::prelude::*;
use rustix::fs::OFlags;
use tempfile::{TempDir, tempdir, tempdir_in};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A part of a mapping that nobody else uses.
#[derive(Debug)]
struct Part {
    mapping: Arc<Mapping>,
    at: u64,
    bytes: u64,
    is_exclusive: bool,
    is_registered: bool,
}

impl Part {
    /// Part of a new mapping, from byte `at`.
    fn new(at: u64, bytes: u64) -> Self {
        let mapping = Arc::new(Mapping::anonymous((at + bytes).max(1), Pages::Huge).unwrap());
        Self { mapping, at, bytes, is_exclusive: true, is_registered: true }
    }

    fn filled(at: u64, bytes: &[u8]) -> Self {
        let mut part = Self::new(at, bytes.len() as u64);
        part.slice().copy_from_slice(bytes);
        part
    }

    fn slice(&mut self) -> &mut [u8] {
        // SAFETY: the parts of a test do not overlap, and this one is borrowed exclusively.
        unsafe { self.mapping.slice_mut(self.at..self.at + self.bytes) }.unwrap()
    }
}

// SAFETY: the mapping stays in place and lives as long as the part, which nobody else uses.
unsafe impl Memory for Part {
    fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.slice())
    }

    fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    fn mapping(&self) -> Option<(&Arc<Mapping>, u64)> {
        self.is_registered.then_some((&self.mapping, self.at))
    }
}

/// Transfers to carry out, and their results.
#[derive(Default)]
struct List {
    waiting: VecDeque<Transfer<Part>>,
    done: Vec<(Transfer<Part>, io::Result<()>)>,
}

impl Feed<Part> for List {
    fn next(&mut self) -> Option<Transfer<Part>> {
        self.waiting.pop_front()
    }

    fn done(&mut self, transfer: Transfer<Part>, result: io::Result<()>) {
        self.done.push((transfer, result));
    }
}

fn carrier(method: Method, depth: u32, request_bytes: u64) -> Carrier {
    let options = CarrierOptions { method: Some(method), depth, request_bytes: Some(request_bytes), register: true };
    Carrier::new(&options).unwrap()
}

/// Carries one transfer out.
fn carry(carrier: &Carrier, transfer: Transfer<Part>) -> (Transfer<Part>, io::Result<()>) {
    let mut list = List { waiting: VecDeque::from([transfer]), ..List::default() };
    carrier.run(&mut list);
    assert_eq!(list.done.len(), 1, "given back once");
    list.done.pop().unwrap()
}

fn one(file: &Arc<File>, offset: u64, bytes: u64) -> Pieces {
    Pieces::from_iter([Piece { file: Arc::clone(file), offset, bytes }])
}

fn write(carrier: &Carrier, file: &Arc<File>, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let pieces = one(file, offset, bytes.len() as u64);
    carry(carrier, Transfer { memory: Part::filled(0, bytes), direction: Direction::Write, pieces }).1
}

fn read(carrier: &Carrier, file: &Arc<File>, offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let transfer =
        Transfer { memory: Part::new(0, bytes), direction: Direction::Read, pieces: one(file, offset, bytes) };
    let (mut transfer, result) = carry(carrier, transfer);
    result.map(|()| transfer.memory.slice().to_vec())
}

fn open(path: &Path, flags: OFlags) -> io::Result<Arc<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
    Ok(Arc::new(File::new(options.open(path)?.into())?))
}

/// A directory whose files support O_DIRECT, if there is one here.
fn direct_directory() -> Option<TempDir> {
    for place in [std::env::temp_dir(), PathBuf::from(env!("CARGO_TARGET_TMPDIR"))] {
        let directory = tempdir_in(place).ok()?;
        if open(&directory.path().join("trial"), OFlags::DIRECT).is_ok() {
            return Some(directory);
        }
    }
    skip("no file system here can bypass the page cache");
    None
}

const METHODS: [Method; 2] = [Method::Uring, Method::Blocking];

#[test]
fn what_one_method_wrote_the_other_reads() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    for (writer, reader) in [(0, 1), (1, 0)] {
        let (writer, reader) = (carrier(METHODS[writer], 4, 64 * KIB), carrier(METHODS[reader], 3, 40 * KIB));
        write(&writer, &file, 12_345, &pattern(1, 3 * MIB + 7)).unwrap();
        assert_eq!(read(&reader, &file, 12_345, 3 * MIB + 7).unwrap(), pattern(1, 3 * MIB + 7));
        assert_eq!(read(&reader, &file, 12_346, 1).unwrap(), pattern(1, 2)[1..]);
        assert_eq!(read(&reader, &file, 0, 0).unwrap(), [0; 0]);
    }
}

/// The pieces of one transfer: file, offset and length, in units. They do not overlap, because
/// pieces are moved in any order.
type Plan = Vec<(usize, u64, u64)>;

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let plan = prop::collection::vec((0..3_usize, 0..40_u64, 0..30_u64), 0..5).prop_map(|pieces| {
        let mut plan = Plan::new();
        for (file, offset, units) in pieces {
            let overlaps =
                |&(other, at, length): &(usize, u64, u64)| other == file && at < offset + units && offset < at + length;
            if !plan.iter().any(overlaps) {
                plan.push((file, offset, units));
            }
        }
        plan
    });
    prop::collection::vec(plan, 1..12)
}

/// Writes transfers of several pieces, and reads them back with other requests. Returns the
/// contents of the files.
fn files_after(method: Method, plans: &[Plan], unit: u64, depth: u32, directory: &Path, flags: OFlags) -> Vec<Vec<u8>> {
    let paths: Vec<_> = (0..3).map(|number| directory.join(format!("{method:?}-{number}"))).collect();
    let files: Vec<_> = paths.iter().map(|path| open(path, flags).unwrap()).collect();
    let pieces_of = |plan: &Plan| {
        let piece = |&(file, offset, units): &(usize, u64, u64)| Piece {
            file: Arc::clone(&files[file]),
            offset: offset * unit,
            bytes: units * unit,
        };
        plan.iter().map(piece).collect::<Pieces>()
    };
    let carrier = carrier(method, depth, 3 * ALIGN);
    // One after the other, because different transfers may overlap.
    for (seed, plan) in plans.iter().enumerate() {
        let pieces = pieces_of(plan);
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let memory = Part::filled(seed as u64 * ALIGN, &pattern(seed as u64, bytes));
        carry(&carrier, Transfer { memory, direction: Direction::Write, pieces }).1.unwrap();
    }
    let found = paths.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
    // All at once: reads may overlap.
    let mut list = List::default();
    for plan in plans {
        let pieces = pieces_of(plan);
        let memory = Part::new(0, pieces.iter().map(|piece| piece.bytes).sum());
        list.waiting.push_back(Transfer { memory, direction: Direction::Read, pieces });
    }
    carrier.run(&mut list);
    assert_eq!(list.done.len(), plans.len());
    for (mut transfer, result) in list.done {
        result.unwrap();
        let mut wanted = Vec::new();
        for piece in transfer.pieces.iter().filter(|piece| piece.bytes > 0) {
            let file = files.iter().position(|file| Arc::ptr_eq(file, &piece.file)).unwrap();
            wanted.extend_from_slice(&found[file][piece.offset as usize..][..piece.bytes as usize]);
        }
        assert!(*transfer.memory.slice() == wanted, "{method:?}: {:?}", transfer.pieces);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn both_methods_give_equal_files(
        plans in plans(),
        unit in prop_oneof![Just(1_u64), Just(1000), Just(ALIGN), Just(3 * ALIGN + 5)],
        depth in 1_u32..9,
    ) {
        let directory = tempdir().unwrap();
        let files = METHODS.map(|method| files_after(method, &plans, unit, depth, directory.path(), OFlags::empty()));
        prop_assert!(files[0] == files[1], "the files differ");
    }

    #[test]
    fn both_methods_give_equal_files_past_the_page_cache(
        plans in plans(),
        depth in 1_u32..9,
    ) {
        let Some(directory) = direct_directory() else { return Ok(()) };
        let files = METHODS.map(|method| files_after(method, &plans, ALIGN, depth, directory.path(), OFlags::DIRECT));
        prop_assert!(files[0] == files[1], "the files differ");
    }
}

#[test]
fn there_may_be_more_transfers_than_the_ring_has_entries() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    for method in METHODS {
        let carrier = carrier(method, 2, 8 * KIB);
        let mut list = List::default();
        for index in 0..100 {
            let memory = Part::filled(0, &pattern(index, 50 * KIB));
            let pieces = one(&file, index * 50 * KIB, 50 * KIB);
            list.waiting.push_back(Transfer { memory, direction: Direction::Write, pieces });
        }
        carrier.run(&mut list);
        assert!(list.done.len() == 100 && list.done.iter().all(|(_, result)| result.is_ok()), "{method:?}");
        for index in 0..100 {
            assert_eq!(read(&carrier, &file, index * 50 * KIB, 50 * KIB).unwrap(), pattern(index, 50 * KIB));
        }
    }
}

/// Counts how many transfers were requested before the first was returned.
#[derive(Default)]
struct Eager {
    list: List,
    asked_early: usize,
}

impl Feed<Part> for Eager {
    fn next(&mut self) -> Option<Transfer<Part>> {
        self.asked_early += usize::from(self.list.done.is_empty());
        self.list.next()
    }

    fn done(&mut self, transfer: Transfer<Part>, result: io::Result<()>) {
        self.list.done(transfer, result);
    }
}

#[test]
fn the_next_transfer_is_in_hand_before_there_is_room_for_it() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    let mut feed = Eager::default();
    for index in 0..5 {
        let memory = Part::filled(0, &pattern(index, 16 * KIB));
        let pieces = one(&file, index * 16 * KIB, 16 * KIB);
        feed.list.waiting.push_back(Transfer { memory, direction: Direction::Write, pieces });
    }
    // The first transfer fills the ring.
    carrier(Method::Uring, 2, 8 * KIB).run(&mut feed);
    assert_eq!((feed.list.done.len(), feed.asked_early), (5, 2));
}

#[test]
fn a_file_that_ends_too_early_is_an_error() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("file");
    let file = open(&path, OFlags::empty()).unwrap();
    for method in METHODS {
        let carrier = carrier(method, 4, 16 * KIB);
        fs::write(&path, pattern(1, 100_000)).unwrap();
        assert_eq!(read(&carrier, &file, 90_000, 10_000).unwrap(), pattern(1, 100_000)[90_000..]);
        for (offset, bytes) in [(90_000, 10_001), (0, 200_000), (100_000, 1), (1 << 40, 1)] {
            let error = read(&carrier, &file, offset, bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{method:?} {offset} {bytes}: {error}");
        }
        let mut found = [0; 10];
        assert_eq!(carrier.read(&file, 99_991, &mut found).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        carrier.read(&file, 99_990, &mut found).unwrap();
        assert_eq!(found, pattern(1, 100_000)[99_990..]);
    }
}

#[test]
fn a_file_that_ends_too_early_past_the_page_cache_is_an_error() {
    let Some(directory) = direct_directory() else { return };
    let path = directory.path().join("file");
    let file = open(&path, OFlags::DIRECT).unwrap();
    assert!(file.is_direct());
    for method in METHODS {
        let carrier = carrier(method, 4, 16 * KIB);
        // The file ends inside a unit, at the end of a unit, and inside the first unit.
        for bytes in [5 * ALIGN + 100, 5 * ALIGN, 10] {
            fs::write(&path, pattern(1, bytes)).unwrap();
            let whole = bytes / ALIGN * ALIGN;
            assert_eq!(read(&carrier, &file, 0, whole).unwrap(), pattern(1, whole), "{method:?} {bytes}");
            for offset in [0, whole] {
                let error = read(&carrier, &file, offset, 8 * ALIGN - offset).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{method:?} {bytes} {offset}: {error}");
            }
        }
    }
}

#[test]
fn a_descriptor_that_fails_is_an_error_of_its_transfers_alone() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("file");
    let good = open(&path, OFlags::empty()).unwrap();
    let read_only = Arc::new(File::new(fs::File::open(&path).unwrap().into()).unwrap());
    let folder = Arc::new(File::new(fs::File::open(directory.path()).unwrap().into()).unwrap());
    for method in METHODS {
        let carrier = carrier(method, 3, 16 * KIB);
        let mut list = List::default();
        for index in 0..12 {
            let memory = Part::filled(0, &pattern(index, 100 * KIB));
            let file = if index % 3 == 1 { &read_only } else { &good };
            let pieces = one(file, index * 100 * KIB, 100 * KIB);
            list.waiting.push_back(Transfer { memory, direction: Direction::Write, pieces });
        }
        carrier.run(&mut list);
        assert_eq!(list.done.len(), 12);
        for (transfer, result) in &list.done {
            assert_eq!(result.is_err(), Arc::ptr_eq(&transfer.pieces[0].file, &read_only), "{method:?}: {result:?}");
        }
        assert_eq!(read(&carrier, &good, 200 * KIB, 100 * KIB).unwrap(), pattern(2, 100 * KIB));
        let error = read(&carrier, &folder, 0, ALIGN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory, "{error}");
        assert_eq!(carrier.write(&read_only, 0, &[0; 10]).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}

#[test]
fn a_full_medium_is_an_error() {
    let full = open(Path::new("/dev/full"), OFlags::empty()).unwrap();
    for method in METHODS {
        let error = write(&carrier(method, 4, 16 * KIB), &full, 0, &pattern(1, 100 * KIB)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{method:?}: {error}");
    }
}

#[test]
fn what_is_not_aligned_is_refused_past_the_page_cache() {
    let Some(directory) = direct_directory() else { return };
    let path = directory.path().join("file");
    let file = open(&path, OFlags::DIRECT).unwrap();
    for method in METHODS {
        let carrier = carrier(method, 4, 16 * KIB);
        write(&carrier, &file, 0, &pattern(1, 4 * ALIGN)).unwrap();
        for (at, offset, bytes) in [(1, 0, ALIGN), (512, 0, ALIGN), (0, 512, ALIGN), (0, 0, ALIGN + 512), (0, 0, 1)] {
            for direction in [Direction::Write, Direction::Read] {
                let transfer = Transfer { memory: Part::new(at, bytes), direction, pieces: one(&file, offset, bytes) };
                let error = carry(&carrier, transfer).1.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{method:?} {at} {offset} {bytes}: {error}");
                assert!(error.to_string().contains("O_DIRECT"), "{error}");
            }
        }
        assert_eq!(read(&carrier, &file, 0, 4 * ALIGN).unwrap(), pattern(1, 4 * ALIGN), "nothing was written");
        // Slices are copied, but their offsets and lengths still have to be aligned.
        let mut slice = vec![0; 5 * ALIGN as usize + 1];
        slice[1..].copy_from_slice(&pattern(2, 5 * ALIGN));
        carrier.write(&file, 3 * ALIGN, &slice[1..]).unwrap();
        let mut found = vec![0; 5 * ALIGN as usize + 3];
        carrier.read(&file, 3 * ALIGN, &mut found[3..]).unwrap();
        assert_eq!(found[3..], slice[1..]);
        assert_eq!(carrier.write(&file, 1, &slice[1..]).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(carrier.read(&file, 0, &mut found).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn transfers_that_do_not_add_up_are_refused() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    for method in METHODS {
        let carrier = carrier(method, 4, 16 * KIB);
        let refused = |memory, direction, pieces| {
            let error = carry(&carrier, Transfer { memory, direction, pieces }).1.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        };
        for bytes in [0, 99, 101, u64::MAX] {
            let reason = refused(Part::new(0, 100), Direction::Write, one(&file, 0, bytes));
            assert!(reason.contains("the memory 100"), "{reason}");
        }
        let twice = Pieces::from_iter([(); 2].map(|()| Piece { file: Arc::clone(&file), offset: 0, bytes: u64::MAX }));
        refused(Part::new(0, 100), Direction::Write, twice);
        let shared = Part { is_exclusive: false, ..Part::new(0, 100) };
        let reason = refused(shared, Direction::Read, one(&file, 0, 100));
        assert!(reason.contains("others read"), "{reason}");
        let shared = Part { is_exclusive: false, ..Part::new(0, 100) };
        let written = Transfer { memory: shared, direction: Direction::Write, pieces: one(&file, 0, 100) };
        carry(&carrier, written).1.expect("but it can be written");
    }
}

#[test]
fn memory_is_registered_as_it_is_used_and_given_up_with_its_owner() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    let carrier = carrier(Method::Uring, 4, MIB);
    let mut part = Part::new(0, 16 * MIB);
    let mapping = Arc::clone(&part.mapping);
    (part.at, part.bytes) = (MIB, 2 * MIB);
    part.slice().copy_from_slice(&pattern(1, 2 * MIB));
    let transfer = Transfer { memory: part, direction: Direction::Write, pieces: one(&file, 0, 2 * MIB) };
    carry(&carrier, transfer).1.unwrap();
    if carrier.registered_bytes() == 0 {
        return skip("this user cannot register memory with the kernel");
    }
    assert_eq!(carrier.registered_bytes(), 4 * MIB, "whole huge pages, and no more");
    assert!(mapping.is_registered());
    drop(mapping);
    let plain = Part { is_registered: false, ..Part::new(0, MIB) };
    let transfer = Transfer { memory: plain, direction: Direction::Read, pieces: one(&file, 0, MIB) };
    let (mut transfer, result) = carry(&carrier, transfer);
    result.unwrap();
    assert_eq!(*transfer.memory.slice(), pattern(1, 2 * MIB)[..MIB as usize]);
    assert_eq!(carrier.registered_bytes(), 0, "memory that nobody uses any more is given up");
}

#[test]
fn memory_of_every_backing_is_transferred() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("file");
    let file = open(&path, OFlags::empty()).unwrap();
    let other =
        OpenOptions::new().read(true).write(true).create_new(true).open(directory.path().join("other")).unwrap();
    let mapped = Mapping::file(&other, outcrop_memory::Access::ReadWrite, 8 * MIB).unwrap();
    mapped.grow(MIB + 10).unwrap();
    let mapped = Arc::new(mapped);
    let memfd = Arc::new(Mapping::memfd("test", MIB + 10).unwrap());
    for (mapping, method) in [&mapped, &memfd].into_iter().zip(METHODS).chain([(&mapped, METHODS[1])]) {
        let bytes = MIB + 10;
        let part = || Part { mapping: Arc::clone(mapping), at: 0, bytes, is_exclusive: true, is_registered: true };
        part().slice().copy_from_slice(&pattern(5, bytes));
        let carrier = carrier(method, 4, 64 * KIB);
        let transfer = Transfer { memory: part(), direction: Direction::Write, pieces: one(&file, 77, bytes) };
        carry(&carrier, transfer).1.unwrap();
        part().slice().fill(0);
        let transfer = Transfer { memory: part(), direction: Direction::Read, pieces: one(&file, 77, bytes) };
        let (mut transfer, result) = carry(&carrier, transfer);
        result.unwrap();
        assert!(*transfer.memory.slice() == pattern(5, bytes), "{mapping:?} {method:?}");
    }
    // A mapping that grows later is no problem.
    mapped.grow(8 * MIB).unwrap();
    let part = Part { mapping: mapped, at: MIB, bytes: 4 * MIB, is_exclusive: true, is_registered: true };
    let transfer = Transfer { memory: part, direction: Direction::Write, pieces: one(&file, 0, 4 * MIB) };
    carry(&carrier(Method::Uring, 4, MIB), transfer).1.unwrap();
    other.write_all_at(b"still there", 0).unwrap();
}

#[test]
fn what_was_synced_and_forgotten_is_still_there() {
    let directory = tempdir().unwrap();
    let file = open(&directory.path().join("file"), OFlags::empty()).unwrap();
    let carrier = Carrier::new(&CarrierOptions::default()).unwrap();
    carrier.write(&file, 5, &pattern(1, MIB)).unwrap();
    file.sync().unwrap();
    file.forget_cached(&(0..MIB + 5));
    file.forget_cached(&(0..0));
    assert_eq!(read(&carrier, &file, 5, MIB).unwrap(), pattern(1, MIB));
}
