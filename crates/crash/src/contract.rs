//! The contract of [`Files`] while nothing fails, as checks that panic with a reason.
//!
//! ```
//! use std::sync::Arc;
//! use outcrop_crash::{Recording, contract};
//!
//! contract::check(&|| Arc::new(Recording::new()));
//! ```

use std::{
    fmt::Debug,
    io::{self, ErrorKind},
    sync::Arc,
    thread,
};

use outcrop_layers::files::{File, Files, read_whole, write_whole};

/// Longer than every file of these checks.
const BYTES_MAX: u64 = 1 << 20;

/// Checks the whole contract. Each check runs on an empty tree of its own, made by `make`.
pub fn check(make: &dyn Fn() -> Arc<dyn Files>) {
    let checks: [fn(&dyn Files); 11] = [
        refuses_names_that_lead_elsewhere,
        keeps_bytes,
        reads_no_further_than_the_end,
        creates_anew,
        writes_only_what_was_created,
        renames_in_place_of_another,
        removes,
        keeps_directories,
        tells_what_is_wrong,
        locks_once,
        serves_many_threads,
    ];
    for check in checks {
        let files = make();
        assert_eq!(files.list("").expect("the root can be listed"), [""; 0], "a check needs an empty tree");
        check(&*files);
    }
}

/// Names that lead out of the tree are refused.
pub fn refuses_names_that_lead_elsewhere(files: &dyn Files) {
    files.make_dir("dir").expect("a directory");
    put(files, "dir/file", b"here");
    for name in ["..", "../file", "dir/../../file", "dir/..", "/", "/tmp/file", "./../file", "dir/fi\0le"] {
        let outcomes: [(&str, io::Result<()>); 11] = [
            ("list", files.list(name).map(drop)),
            ("make_dir", files.make_dir(name)),
            ("create", files.create(name, 1).map(drop)),
            ("open", files.open(name).map(drop)),
            ("rename from", files.rename(name, "dir/other")),
            ("rename to", files.rename("dir/file", name)),
            ("remove", files.remove(name)),
            ("remove_dir", files.remove_dir(name)),
            ("sync_dir", files.sync_dir(name)),
            ("lock", files.lock(name).map(drop)),
            ("write_whole", write_whole(files, name, "file", b"elsewhere")),
        ];
        for (attempt, outcome) in outcomes {
            expect_error(files, &format!("{attempt} {name:?}"), outcome, ErrorKind::InvalidInput);
        }
    }
    assert_eq!(names(files, ""), ["dir"]);
    assert_eq!(names(files, "dir"), ["file"]);
    assert_eq!(get(files, "dir/file"), b"here");
}

/// What was written can be read, from the same file and from another handle with the same name.
/// Gaps between two writes are zero.
pub fn keeps_bytes(files: &dyn Files) {
    let file = create(files, "file", 10);
    assert_eq!(file.bytes().expect("its length"), 0, "a new file is empty, whatever room it has");
    write(&*file, 5000, b"late");
    write(&*file, 0, b"early");
    write(&*file, 3, b"LIER");
    write(&*file, 9000, b"");
    let mut wanted = vec![0; 5004];
    wanted[..7].copy_from_slice(b"earLIER");
    wanted[5000..].copy_from_slice(b"late");
    file.sync().expect("a sync");
    assert_eq!(get(files, "file"), wanted);
    let mut inside = [0; 4];
    file.read_at(2, &mut inside).expect("a read from the file that was created");
    assert_eq!(&inside, b"rLIE");

    files.make_dir("dir").expect("a directory");
    for bytes in [&b""[..], b"short", &[7; 100_000], b"last"] {
        write_whole(files, "dir", "small", bytes).expect("a small file is written");
        assert_eq!(get(files, "dir/small"), bytes);
        assert_eq!(names(files, "dir"), ["small"], "no draft is left");
    }
}

/// A read beyond the end is an error. A read up to the end is not.
pub fn reads_no_further_than_the_end(files: &dyn Files) {
    let file = create(files, "file", 8);
    write(&*file, 0, b"12345678");
    for opened in [file, files.open("file").expect("it can be opened")] {
        opened.read_at(4, &mut [0; 4]).expect("up to the end");
        opened.read_at(8, &mut []).expect("nothing at the end");
        for (at, bytes) in [(5, 4), (8, 1), (100, 1), (1 << 40, 1)] {
            let outcome = opened.read_at(at, &mut vec![0; bytes]);
            expect_error(files, &format!("read {bytes} bytes at {at} of 8"), outcome, ErrorKind::UnexpectedEof);
        }
    }
}

/// Creating an existing file makes it empty.
pub fn creates_anew(files: &dyn Files) {
    put(files, "file", b"a long time ago");
    let file = create(files, "file", 4);
    assert_eq!(file.bytes().expect("its length"), 0);
    write(&*file, 0, b"now");
    assert_eq!(get(files, "file"), b"now");
}

/// A file that was opened, not created, cannot be written.
pub fn writes_only_what_was_created(files: &dyn Files) {
    put(files, "file", b"as it is");
    let opened = files.open("file").expect("it can be opened");
    assert!(opened.write_at(0, b"other").is_err(), "{}: a file opened for reading was written to", files.location());
    assert_eq!(get(files, "file"), b"as it is");
}

/// A rename replaces the file that had the name. Open files can still be read.
pub fn renames_in_place_of_another(files: &dyn Files) {
    files.make_dir("dir").expect("a directory");
    put(files, "old", b"old bytes");
    put(files, "dir/new", b"new");
    let (old, new) = (files.open("old").expect("old"), files.open("dir/new").expect("new"));
    files.rename("dir/new", "old").expect("a rename in place of another file");
    assert_eq!(get(files, "old"), b"new");
    assert_eq!(names(files, "dir"), [""; 0]);
    assert_eq!((read(&*old), read(&*new)), (b"old bytes".to_vec(), b"new".to_vec()), "open files stay what they are");
    files.rename("old", "dir/again").expect("a rename to a name that is free");
    files.rename("dir/again", "dir/again").expect("a rename to the name that it has");
    assert_eq!(get(files, "dir/again"), b"new");
    assert_eq!(names(files, ""), ["dir"]);
    files.sync_dir("dir").expect("a sync");
    files.sync_dir("").expect("a sync of the root");
}

/// A removed file is gone, except for open handles.
pub fn removes(files: &dyn Files) {
    let file = create(files, "file", 5);
    write(&*file, 0, b"bytes");
    files.remove("file").expect("it is removed");
    assert_eq!(names(files, ""), [""; 0]);
    assert_eq!(read(&*file), b"bytes");
    write(&*file, 0, b"BY");
    file.sync().expect("a sync of what has no name");
    expect_error(files, "open what was removed", files.open("file").map(drop), ErrorKind::NotFound);
    put(files, "file", b"another");
    assert_eq!((read(&*file), get(files, "file")), (b"BYtes".to_vec(), b"another".to_vec()));
}

/// Directories are created once, listed, and removed when they are empty.
pub fn keeps_directories(files: &dyn Files) {
    for dir in ["a", "a/b", "a", "a/b", "a/b/c"] {
        files.make_dir(dir).expect("a directory, also if it is there");
    }
    put(files, "a/file", b"x");
    assert_eq!(names(files, "a"), ["b", "file"]);
    assert_eq!(names(files, "a/b/c"), [""; 0]);
    expect_error(files, "remove_dir of a full one", files.remove_dir("a/b"), ErrorKind::DirectoryNotEmpty);
    for dir in ["", "a", "a/b", "a/b/c"] {
        files.sync_dir(dir).expect("a sync of a directory");
    }
    files.remove_dir("a/b/c").expect("an empty directory is removed");
    files.remove_dir("a/b").expect("and then the one above it");
    assert_eq!(names(files, "a"), ["file"]);
}

/// An operation that is not possible returns an error with the reason, and changes nothing.
pub fn tells_what_is_wrong(files: &dyn Files) {
    use ErrorKind::{IsADirectory, NotADirectory, NotFound};
    files.make_dir("dir").expect("a directory");
    put(files, "file", b"x");
    let outcomes: [(&str, io::Result<()>, ErrorKind); 20] = [
        ("list what is missing", files.list("missing").map(drop), NotFound),
        ("list a file", files.list("file").map(drop), NotADirectory),
        ("make_dir in what is missing", files.make_dir("missing/dir"), NotFound),
        ("make_dir in a file", files.make_dir("file/dir"), NotADirectory),
        ("create in what is missing", files.create("missing/file", 1).map(drop), NotFound),
        ("create in a file", files.create("file/file", 1).map(drop), NotADirectory),
        ("create a directory", files.create("dir", 1).map(drop), IsADirectory),
        ("open what is missing", files.open("missing").map(drop), NotFound),
        ("open in a file", files.open("file/file").map(drop), NotADirectory),
        ("read a directory", read_whole(files, "dir", BYTES_MAX).map(drop), IsADirectory),
        ("rename what is missing", files.rename("missing", "file"), NotFound),
        ("rename into what is missing", files.rename("file", "missing/file"), NotFound),
        ("rename to a directory", files.rename("file", "dir"), IsADirectory),
        ("remove what is missing", files.remove("missing"), NotFound),
        ("remove a directory", files.remove("dir"), IsADirectory),
        ("remove_dir of what is missing", files.remove_dir("missing"), NotFound),
        ("remove_dir of a file", files.remove_dir("file"), NotADirectory),
        ("sync_dir of what is missing", files.sync_dir("missing"), NotFound),
        ("lock in what is missing", files.lock("missing/lock").map(drop), NotFound),
        ("lock a directory", files.lock("dir").map(drop), IsADirectory),
    ];
    for (attempt, outcome, kind) in outcomes {
        expect_error(files, attempt, outcome, kind);
    }
    put(files, "long", &[1; 100]);
    let outcome = read_whole(files, "long", 99).map(drop);
    expect_error(files, "read_whole of more than there can be", outcome, ErrorKind::InvalidData);
    assert_eq!(names(files, ""), ["dir", "file", "long"]);
    assert_eq!(get(files, "file"), b"x");
}

/// A lock is held once, and is free again when it is dropped.
pub fn locks_once(files: &dyn Files) {
    let place = files.location();
    let first = files.lock("lock").expect("a lock").expect("a free lock");
    assert_eq!(names(files, ""), ["lock"], "the lock file is made");
    assert!(files.lock("lock").expect("a try").is_none(), "{place}: a lock was given out twice");
    assert!(files.lock("other").expect("a try").is_some(), "{place}: another lock is another lock");
    drop(first);
    drop(files.lock("lock").expect("a lock").unwrap_or_else(|| panic!("{place}: a dropped lock is still held")));
    put(files, "lock", b"bytes");
    let _again = files.lock("lock").expect("a lock").expect("a free lock");
    assert_eq!(get(files, "lock"), b"bytes", "what is in a lock file stays");
}

/// Several threads use a common file and files of their own at once.
pub fn serves_many_threads(files: &dyn Files) {
    const THREADS: u8 = 4;
    const BYTES: u64 = 3000;
    let shared = create(files, "shared", BYTES * u64::from(THREADS));
    thread::scope(|scope| {
        for index in 0..THREADS {
            let shared = &shared;
            scope.spawn(move || {
                let dir = format!("dir-{index}");
                files.make_dir(&dir).expect("a directory");
                for round in 0..8 {
                    let bytes = vec![16 * index + round; BYTES as usize];
                    write(&**shared, u64::from(index) * BYTES, &bytes);
                    shared.sync().expect("a sync");
                    write_whole(files, &dir, "own", &bytes).expect("a small file is written");
                    assert_eq!(get(files, &format!("{dir}/own")), bytes);
                }
            });
        }
    });
    let whole = read(&*shared);
    for (index, part) in whole.chunks(BYTES as usize).enumerate() {
        assert!(part.iter().all(|byte| usize::from(*byte) == 16 * index + 7), "threads' bytes are mixed up");
    }
    assert_eq!(whole.len() as u64, BYTES * u64::from(THREADS));
}

fn create(files: &dyn Files, name: &str, bytes: u64) -> Arc<dyn File> {
    files.create(name, bytes).unwrap_or_else(|error| panic!("{}: to create {name} failed: {error}", files.location()))
}

fn write(file: &dyn File, at: u64, bytes: &[u8]) {
    file.write_at(at, bytes).unwrap_or_else(|error| panic!("to write {} bytes at {at} failed: {error}", bytes.len()));
}

fn read(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.bytes().expect("its length") as usize];
    file.read_at(0, &mut bytes).expect("all of it can be read");
    bytes
}

fn put(files: &dyn Files, name: &str, bytes: &[u8]) {
    write(&*create(files, name, bytes.len() as u64), 0, bytes);
}

fn get(files: &dyn Files, name: &str) -> Vec<u8> {
    read_whole(files, name, BYTES_MAX)
        .unwrap_or_else(|error| panic!("{}: to read {name} failed: {error}", files.location()))
}

fn names(files: &dyn Files, dir: &str) -> Vec<String> {
    let mut names = files.list(dir).unwrap_or_else(|error| panic!("{}: list {dir:?}: {error}", files.location()));
    names.sort();
    names
}

fn expect_error(files: &dyn Files, attempt: &str, outcome: io::Result<impl Debug>, kind: ErrorKind) {
    match &outcome {
        Err(error) if error.kind() == kind => {}
        _ => panic!("{}: to {attempt} gave {outcome:?}, not {kind:?}", files.location()),
    }
}
