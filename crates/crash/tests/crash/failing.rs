//! Faults occur when they should, are counted, and have the specified effects.

use std::sync::{Arc, Mutex, mpsc::channel};

use outcrop_crash::{Errno, Failing, Fault, Operation, Recording};
use outcrop_layers::files::{Files, read_whole, write_whole};

fn failing() -> (Recording, Failing) {
    let recording = Recording::new();
    recording.make_dir("dir").unwrap();
    (recording.clone(), Failing::over(recording))
}

/// Whether each of `count` writes succeeds.
fn writes(files: &dyn Files, count: usize) -> Vec<bool> {
    let file = files.create("file", 0).unwrap();
    (0..count).map(|_| file.write_at(0, b"bytes").is_ok()).collect()
}

#[test]
fn a_fault_strikes_once_or_from_then_on() {
    let (_, failing) = failing();
    failing.inject(Fault { of: Some(Operation::Write), after: 2, ..Fault::new(Errno::IO) });
    assert_eq!(writes(&failing, 5), [true, true, false, true, true]);
    failing.inject(Fault { of: Some(Operation::Write), after: 2, is_lasting: true, ..Fault::new(Errno::IO) });
    assert_eq!(writes(&failing, 5), [true, true, false, false, false]);
    failing.heal();
    assert_eq!(writes(&failing, 1), [true]);
    assert_eq!((failing.failed(), failing.calls(Some(Operation::Write))), (4, 11));
}

#[test]
fn several_faults_count_for_themselves() {
    let (_, failing) = failing();
    for after in [0, 1, 3] {
        failing.inject(Fault { of: Some(Operation::Write), after, ..Fault::new(Errno::IO) });
    }
    assert_eq!(writes(&failing, 5), [false, false, true, false, true]);
}

#[test]
fn errors_are_those_of_the_system() {
    let (_, failing) = failing();
    failing.inject(Fault::new(Errno::NOSPC));
    let error = failing.create("file", 1).map(drop).unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (std::io::ErrorKind::StorageFull, Some(28)));
    assert!(failing.open("file").is_err(), "nothing was made");
}

#[test]
fn every_operation_is_counted_and_can_fail() {
    use Operation::{Bytes, Create, List, Lock, MakeDir, Open, Read, Remove, RemoveDir, Rename, Sync, SyncDir, Write};
    let all = [MakeDir, List, Create, Write, Sync, Bytes, Read, Rename, Open, Remove, RemoveDir, SyncDir, Lock];
    let scenario = |files: &dyn Files| -> std::io::Result<()> {
        files.make_dir("new")?;
        files.list("")?;
        let file = files.create("new/file", 4)?;
        file.write_at(0, b"1234")?;
        file.sync()?;
        file.bytes()?;
        file.read_at(0, &mut [0; 4])?;
        files.rename("new/file", "file")?;
        drop(files.open("file")?);
        files.remove("file")?;
        files.remove_dir("new")?;
        files.sync_dir("")?;
        files.lock("lock").map(drop)
    };
    let (_, whole) = failing();
    scenario(&whole).unwrap();
    assert_eq!((whole.calls(None), whole.failed()), (13, 0));
    for (index, operation) in all.into_iter().enumerate() {
        assert_eq!(whole.calls(Some(operation)), 1, "{operation:?}");
        for (of, after) in [(Some(operation), 0), (None, index as u64)] {
            let (_, failing) = failing();
            failing.inject(Fault { of, after, ..Fault::new(Errno::IO) });
            assert_eq!(scenario(&failing).unwrap_err().raw_os_error(), Some(5), "{operation:?}");
            assert_eq!((failing.calls(None), failing.failed()), (index as u64 + 1, 1), "{operation:?}");
        }
    }
}

#[test]
fn an_operation_that_fails_does_nothing() {
    let (recording, failing) = failing();
    write_whole(&failing, "dir", "file", b"bytes").unwrap();
    let file = failing.create("dir/other", 0).unwrap();
    let before = recording.tree();
    failing.inject(Fault { is_lasting: true, ..Fault::new(Errno::IO) });
    file.write_at(0, b"bytes").unwrap_err();
    file.sync().unwrap_err();
    for outcome in [
        failing.make_dir("more"),
        failing.create("more", 1).map(drop),
        failing.rename("dir/file", "more"),
        failing.remove("dir/file"),
        failing.remove_dir("dir"),
        failing.lock("more").map(drop),
        failing.sync_dir("dir"),
    ] {
        outcome.unwrap_err();
    }
    assert!(recording.tree() == before);
    assert_eq!(read_whole(&recording, "dir/file", 9).unwrap(), b"bytes");
}

#[test]
fn a_write_can_leave_half_of_its_bytes() {
    let (recording, failing) = failing();
    let file = failing.create("file", 0).unwrap();
    failing.inject(Fault { of: Some(Operation::Write), leaves_half: true, ..Fault::new(Errno::NOSPC) });
    file.write_at(2, b"12345").unwrap_err();
    assert_eq!(recording.tree().bytes("file"), Some(&b"\0\x0012"[..]));
}

#[test]
fn what_a_failed_sync_lost_can_still_be_read() {
    let (_, failing) = failing();
    let file = failing.create("file", 0).unwrap();
    file.write_at(0, b"bytes").unwrap();
    failing.inject(Fault { of: Some(Operation::Sync), ..Fault::new(Errno::IO) });
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!(read_whole(&failing, "file", 9).unwrap(), b"bytes");
}

#[test]
fn nothing_goes_past_a_fault() {
    let given = tempfile::tempdir().unwrap();
    let disk = outcrop_layers::files::DiskFiles::open(given.path()).unwrap();
    let failing = Failing::new(Arc::new(disk));
    assert!(failing.create("file", 4096).unwrap().direct().is_none());
    failing.inject(Fault { of: Some(Operation::Write), leaves_half: true, ..Fault::new(Errno::NOSPC) });
    let file = failing.create("file", 4096).unwrap();
    assert_eq!(file.write_at(0, b"1234").unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(read_whole(&failing, "file", 9).unwrap(), b"12", "on a real disk too");
    assert_eq!(failing.location(), given.path().canonicalize().unwrap().display().to_string());
}

#[test]
fn a_watcher_sees_every_operation_before_it_happens_and_can_hold_it_up() {
    let (arrived, arrivals) = channel();
    let (go_on, goes_on) = channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let recording = Recording::new();
    let failing = Failing::over(recording.clone()).watched(move |operation, name| {
        arrived.send(format!("{operation:?} {name}")).unwrap();
        goes_on.lock().unwrap().recv().unwrap();
    });
    let other = failing.clone();
    let thread = std::thread::spawn(move || other.create("file", 0).unwrap().write_at(0, b"bytes").unwrap());
    for (wanted, file) in [("Create file", None), ("Write file", Some(&b""[..]))] {
        assert_eq!(arrivals.recv().unwrap(), wanted);
        assert_eq!(recording.tree().bytes("file"), file, "it has not happened yet");
        go_on.send(()).unwrap();
    }
    thread.join().unwrap();
    assert_eq!(recording.tree().bytes("file"), Some(&b"bytes"[..]));
}
