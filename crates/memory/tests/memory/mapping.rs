//! Mappings of every backing: bytes that are written can be read, touching provides memory and
//! changes no byte, memfds cannot be shrunk, and flushed bytes of a mapped file are in the file.

use std::{
    fs::{File, OpenOptions},
    io::ErrorKind,
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use outcrop_memory::{Access, Backing, Error, HUGE_PAGE, Mapping, Pages, Private, page_bytes};
use outcrop_testing::skip;
use rustix::{
    fs::{SealFlags, fcntl_add_seals, ftruncate},
    io::Errno,
};
use tempfile::{TempDir, tempdir};

const MIB: u64 = 1 << 20;

fn new_file(bytes: u64) -> (TempDir, File) {
    let directory = tempdir().unwrap();
    let path = directory.path().join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
    (directory, file)
}

fn pattern(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at % 251) as u8).collect()
}

/// Writes a pattern to all of `mapping`.
fn fill(mapping: &Mapping) {
    // SAFETY: nobody else uses the mapping or its file.
    let bytes = unsafe { mapping.slice_mut(0..mapping.bytes()) }.unwrap();
    bytes.copy_from_slice(&pattern(0..mapping.bytes()));
}

fn is_filled(mapping: &Mapping) -> bool {
    // SAFETY: as in `fill`, and nobody writes to it.
    let bytes = unsafe { mapping.slice(0..mapping.bytes()) }.unwrap();
    *bytes == *pattern(0..mapping.bytes())
}

/// One mapping of 6 MiB for each backing that this machine supports.
fn every_backing() -> Vec<(Mapping, Option<TempDir>)> {
    let (directory, file) = new_file(6 * MIB);
    let (chunk_directory, chunk_file) = new_file(8 * MIB);
    let chunks = Mapping::chunks(6 * MIB, 4 * MIB, ()).unwrap();
    // SAFETY: nobody uses the mapping yet.
    unsafe {
        chunks.put_chunk(0, &chunk_file, 4 * MIB).unwrap();
        chunks.put_chunk(1, &chunk_file, 0).unwrap();
    }
    vec![
        (Mapping::anonymous(6 * MIB, Pages::Small).unwrap(), None),
        (Mapping::anonymous(6 * MIB, Pages::Huge).unwrap(), None),
        (chunks, Some(chunk_directory)),
        (Mapping::memfd("test", 6 * MIB).unwrap(), None),
        (Mapping::file(&file, Access::ReadWrite, 0).unwrap(), Some(directory)),
    ]
}

#[test]
fn every_backing_holds_what_was_written() {
    for (mapping, _directory) in every_backing() {
        fill(&mapping);
        mapping.flush(0..mapping.bytes()).unwrap();
        assert!(is_filled(&mapping), "{mapping:?}");
        mapping.flush(MIB..MIB).expect("nothing can be flushed");
        let outside = mapping.flush(MIB..6 * MIB + 1);
        assert!(matches!(outside, Err(Error::OutOfRange { .. })), "{mapping:?}");
        // SAFETY: the call is refused, whatever the range.
        let backwards = unsafe { mapping.slice(Range { start: 2, end: 1 }) }.err();
        assert!(matches!(backwards, Some(Error::OutOfRange { .. })), "{mapping:?}");
    }
}

#[test]
fn touching_provides_memory_and_changes_no_byte() {
    for (mapping, _directory) in every_backing() {
        mapping.touch(page_bytes() as u64..2 * MIB).unwrap();
        assert_eq!(mapping.missing_bytes(&(page_bytes() as u64..2 * MIB)), 0, "{mapping:?}");
        fill(&mapping);
        mapping.touch(0..6 * MIB).unwrap();
        mapping.touch(7..7).unwrap();
        assert_eq!(mapping.missing_bytes(&(0..6 * MIB)), 0, "{mapping:?}");
        assert!(is_filled(&mapping), "{mapping:?}");
        assert!(mapping.touch(0..7 * MIB).is_err(), "{mapping:?}");
        assert!(matches!(mapping.may_take(1 << 50), Err(Error::Exhausted { .. })), "{mapping:?}");
    }
}

/// How many bytes of a mapping lie in huge pages of shared memory.
fn huge_bytes(mapping: &Mapping) -> u64 {
    let start = format!("{:x}-", mapping.address(0).addr());
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = smaps.lines().skip_while(|line| !line.starts_with(&start));
    let line = own.into_iter().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn shared_memory_that_is_touched_has_huge_pages() {
    let mapping = Mapping::memfd("huge", 7 * MIB).unwrap();
    mapping.touch(MIB..7 * MIB).unwrap();
    if huge_bytes(&mapping) == 0 {
        let probe = Mapping::memfd("probe", 2 * MIB).unwrap();
        fill(&probe);
        // SAFETY: the mapping is 2 MiB long, and no byte of it changes. 25 is MADV_COLLAPSE.
        if unsafe { libc::madvise(probe.address(0).cast(), HUGE_PAGE, 25) } != 0 {
            return skip(std::io::Error::last_os_error());
        }
    }
    assert_eq!(huge_bytes(&mapping), 4 * MIB, "the whole huge pages of what was touched");
    fill(&mapping);
    mapping.touch(0..7 * MIB).unwrap();
    assert!(is_filled(&mapping) && huge_bytes(&mapping) == 6 * MIB);
    let other = mapping.descriptor().unwrap().try_clone_to_owned().unwrap();
    let other = Mapping::of_memfd(other, Access::ReadWrite).unwrap();
    assert!(is_filled(&other) && huge_bytes(&other) == 6 * MIB, "for everybody who maps it");
}

#[test]
fn every_backing_can_be_pinned() {
    for (mapping, _directory) in every_backing() {
        fill(&mapping);
        match mapping.pin() {
            Ok(()) => assert!(is_filled(&mapping), "{mapping:?}"),
            Err(error @ Error::PinLimit { .. }) => skip(error),
            Err(error) => panic!("{mapping:?}: {error}"),
        }
    }
}

#[test]
fn mappings_begin_at_a_huge_page_and_do_not_move() {
    for (mapping, _directory) in every_backing() {
        let unit = if mapping.backing() == Backing::Anonymous(Pages::Small) { page_bytes() } else { HUGE_PAGE };
        assert!(mapping.address(0).addr().is_multiple_of(unit), "{mapping:?}");
        assert_eq!(mapping.address(6 * MIB).addr() - mapping.address(0).addr(), 6 << 20, "{mapping:?}");
    }
}

#[test]
#[should_panic(expected = "beyond the end")]
fn there_is_no_address_beyond_the_end() {
    Mapping::anonymous(4096, Pages::Small).unwrap().address(4097);
}

#[test]
fn more_address_space_than_there_is_is_an_error() {
    for bytes in [1 << 60, u64::MAX] {
        assert!(matches!(Mapping::anonymous(bytes, Pages::Huge), Err(Error::NoMemory { .. })), "{bytes}");
        assert!(matches!(Mapping::chunks(bytes, 2 * MIB, ()), Err(Error::NoMemory { .. })), "{bytes}");
    }
}

#[test]
fn a_memfd_is_shared_and_cannot_be_shrunk() {
    let mapping = Mapping::memfd("pool", 3 * MIB + 100).unwrap();
    fill(&mapping);
    let memfd = mapping.descriptor().unwrap();
    for bytes in [0, MIB, 3 * MIB, 4 * MIB] {
        assert_eq!(ftruncate(memfd, bytes), Err(Errno::PERM), "{bytes}");
    }
    assert_eq!(fcntl_add_seals(memfd, SealFlags::FUTURE_WRITE), Err(Errno::PERM), "no more seals");
    let other = Mapping::of_memfd(memfd.try_clone_to_owned().unwrap(), Access::Read).unwrap();
    assert!(is_filled(&other) && other.bytes() == 3 * MIB + 100);
    // SAFETY: the call is refused.
    assert!(matches!(unsafe { other.slice_mut(0..1) }, Err(Error::ReadOnly)));
    assert!(matches!(mapping.grow(4 * MIB), Err(Error::OutOfRange { .. })));
    drop(mapping);
    assert!(is_filled(&other), "it lives as long as anybody has it");
}

#[test]
fn a_memfd_that_could_be_shrunk_is_refused() {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let memfd = rustix::fs::memfd_create("loose", flags).unwrap();
    ftruncate(&memfd, MIB).unwrap();
    assert!(matches!(Mapping::of_memfd(memfd, Access::ReadWrite), Err(Error::Unsealed)));
    let (_directory, file) = new_file(MIB);
    let error = Mapping::of_memfd(file.into(), Access::Read).unwrap_err();
    assert!(error.to_string().contains("seals"), "a file is none: {error}");
}

#[test]
fn what_was_flushed_is_in_the_file() {
    // The length is not a multiple of a page.
    let (directory, file) = new_file(MIB + 10);
    let mapping = Mapping::file(&file, Access::ReadWrite, 0).unwrap();
    drop(file);
    fill(&mapping);
    mapping.flush_all(&[100..200, 0..0, MIB - 1..MIB + 10]).unwrap();
    let by_another = File::open(directory.path().join("file")).unwrap();
    let mut found = vec![0; MIB as usize + 10];
    by_another.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, pattern(0..MIB + 10));
    let view = Mapping::file(&by_another, Access::Read, 0).unwrap();
    assert!(is_filled(&view));
    view.touch(0..MIB).unwrap();
    view.flush(0..MIB).expect("nothing was written through it");
    assert!(matches!(view.grow(2 * MIB), Err(Error::OutOfRange { .. })));
    drop(mapping);
    assert!(is_filled(&view));
}

#[test]
fn a_file_that_is_not_open_for_writing_is_mapped_read_only() {
    let (directory, _file) = new_file(MIB);
    let file = File::open(directory.path().join("file")).unwrap();
    let error = Mapping::file(&file, Access::ReadWrite, 0).unwrap_err();
    assert!(matches!(&error, Error::Failed { source, .. } if source.kind() == ErrorKind::PermissionDenied), "{error}");
    assert_eq!(Mapping::file(&file, Access::Read, 0).unwrap().access(), Access::Read);
}

#[test]
fn a_mapped_file_grows_and_keeps_its_address() {
    let (_directory, file) = new_file(0);
    let mapping = Mapping::file(&file, Access::ReadWrite, 64 * MIB).unwrap();
    assert_eq!((mapping.bytes(), mapping.bytes_max()), (0, 64 * MIB));
    let address = mapping.address(0);
    for bytes in [1, 100, 4096, 4097, 5 * MIB, 5 * MIB, 3 * MIB, 64 * MIB] {
        let before = mapping.bytes();
        mapping.grow(bytes).unwrap();
        assert_eq!(mapping.bytes(), before.max(bytes));
        assert_eq!(file.metadata().unwrap().len(), mapping.bytes());
        assert_eq!(mapping.address(0), address);
        // SAFETY: nobody else uses the mapping or its file.
        let old = unsafe { mapping.slice(0..before) }.unwrap();
        assert_eq!(*old, *pattern(0..before), "what was there stays there");
        fill(&mapping);
        mapping.flush(0..mapping.bytes()).unwrap();
    }
    assert!(matches!(mapping.grow(64 * MIB + 1), Err(Error::OutOfRange { .. })));
    assert!(is_filled(&mapping));
}

#[test]
fn a_growth_that_another_has_done_is_only_mapped() {
    let (_directory, file) = new_file(10);
    let view = Mapping::file(&file, Access::ReadWrite, 8 * MIB).unwrap();
    let other = Mapping::file(&file, Access::ReadWrite, 8 * MIB).unwrap();
    other.grow(2 * MIB).unwrap();
    fill(&other);
    assert_eq!(view.bytes(), 10);
    view.grow(2 * MIB).unwrap();
    assert!(is_filled(&view), "and loses nothing");
    let reader = Mapping::file(&file, Access::Read, 8 * MIB).unwrap();
    other.grow(4 * MIB).unwrap();
    fill(&other);
    reader.grow(3 * MIB).expect("who only reads can follow");
    assert!(is_filled(&reader) && reader.bytes() == 3 * MIB);
    assert!(matches!(reader.grow(5 * MIB), Err(Error::ReadOnly)), "but not go ahead");
    assert_eq!(file.metadata().unwrap().len(), 4 * MIB);
}

#[test]
fn many_threads_may_grow_a_file() {
    let (_directory, file) = new_file(0);
    let mapping = Mapping::file(&file, Access::ReadWrite, 16 * MIB).unwrap();
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let mapping = &mapping;
            scope.spawn(move || (1..=4).for_each(|step| mapping.grow(step * thread * 10_000).unwrap()));
        }
    });
    assert_eq!(mapping.bytes(), 160_000);
    fill(&mapping);
    assert!(is_filled(&mapping));
}

#[test]
fn a_file_without_persistent_memory_is_refused_with_a_remedy() {
    for bytes in [0, MIB] {
        let (_directory, file) = new_file(bytes);
        match Mapping::dax(&file, Access::ReadWrite, MIB) {
            Err(error @ Error::NoDax { .. }) => {
                let text = error.to_string();
                assert!(text.contains("DAX") && text.contains("ordinary file"), "{text}");
            }
            Err(error) => panic!("{error}"),
            Ok(mapping) => {
                // A machine that supports it: then it must work.
                mapping.grow(MIB).unwrap();
                fill(&mapping);
                mapping.flush(1..MIB).unwrap();
                assert!(is_filled(&mapping));
            }
        }
    }
}

#[test]
fn chunks_are_put_removed_and_replaced() {
    let (_directory, file) = new_file(8 * MIB);
    file.write_all_at(&[1; 100], 0).unwrap();
    file.write_all_at(&[2; 100], 4 * MIB).unwrap();
    let kept = Arc::new(());
    let mapping = Mapping::chunks(6 * MIB, 4 * MIB, Arc::clone(&kept)).unwrap();
    assert!(mapping.touch(0..MIB).is_err(), "there is no memory yet");
    // SAFETY: nobody else uses the chunk while it is mapped.
    let first = |offset| unsafe {
        mapping.put_chunk(1, &file, offset).unwrap();
        mapping.slice(4 * MIB..4 * MIB + 1).unwrap()[0]
    };
    assert_eq!((first(0), first(4 * MIB)), (1, 2));
    // SAFETY: nobody uses the memory.
    unsafe {
        mapping.remove_chunk(1).unwrap();
        assert!(mapping.put_chunk(2, &file, 0).is_err(), "there are two");
        let other = Mapping::anonymous(8 * MIB, Pages::Huge).unwrap();
        assert!(other.put_chunk(0, &file, 0).is_err(), "it is not made of chunks");
    }
    assert!(mapping.touch(4 * MIB..5 * MIB).is_err(), "it was taken away");
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(mapping);
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn a_mapping_that_is_only_registered_is_an_orphan() {
    let mapping = Arc::new(Mapping::anonymous(MIB, Pages::Huge).unwrap());
    assert!(!mapping.is_registered());
    let (first, second) = (mapping.keep_registered(), mapping.keep_registered());
    assert!(mapping.is_registered() && !first.is_orphan());
    drop(mapping);
    assert!(first.is_orphan() && second.is_orphan());
    drop(first);
    assert!(second.is_orphan());
}

#[test]
fn private_memory_is_a_slice() {
    let mut memory = Private::new(page_bytes() + 1, Pages::Small).unwrap();
    assert_eq!(memory.len(), 2 * page_bytes());
    assert!(memory.iter().all(|&byte| byte == 0));
    memory.fill(7);
    memory.mapping().touch(0..memory.len() as u64).unwrap();
    assert!(memory.iter().all(|&byte| byte == 7));
    assert_eq!(Private::new(0, Pages::Huge).unwrap().len(), page_bytes());
    let leaked = memory.leak();
    leaked[0] = 8;
    assert_eq!(leaked[..2], [8, 7]);
}
