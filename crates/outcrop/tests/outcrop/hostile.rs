//! The table of hostile calls in docs/testing.md, on a tape and in a store. What is not here, the
//! types of Rust rule out.

use std::{fs, path::Path, ptr, thread};

use outcrop::{ErrorKind, Part, PartMut, Result, Session, Store, Tape, catalog::Catalog};
use outcrop_testing::alone;
use tempfile::TempDir;

/// A tape and a session with one snapshot and one version each, numbered 1.
struct Both {
    dir: TempDir,
    tape: Tape,
    session: Session,
}

fn values(number: u64) -> Vec<f64> {
    (0..1000).map(|index| f64::from(index) + number as f64).collect()
}

fn open(dir: &Path) -> Session {
    let store = Store::builder().host("4 MiB").dir(dir.join("checkpoints"), None).pin(false).open().unwrap();
    store.session("run").unwrap()
}

fn both() -> Both {
    let dir = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("256 KiB").dir(dir.path().join("scratch"), "64 MiB").pin(false).open().unwrap();
    tape.save(1, &values(1)).unwrap();
    let mut session = open(dir.path());
    save(&mut session, 1).unwrap();
    session.flush().unwrap();
    Both { dir, tape, session }
}

fn save(session: &mut Session, version: u64) -> Result<()> {
    session.save(version, &[Part::new("u", &values(version))])
}

fn restore(session: &mut Session, version: u64) -> Result<Vec<f64>> {
    let mut found = vec![0.0; 1000];
    session.restore(version, &mut [PartMut::new("u", &mut found)])?;
    Ok(found)
}

#[track_caller]
fn refused<T>(kind: ErrorKind, outcome: Result<T>) {
    let error = outcome.err().expect("it is to be refused");
    assert_eq!(error.kind(), kind, "{error}");
}

/// Changes bytes all over every file.
fn damage(dir: &Path) {
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            damage(&path);
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 1);
        fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn wrong_handle() {
    let Both { dir: _dir, mut tape, mut session } = both();
    refused(ErrorKind::Usage, tape.take::<[u8; 3]>(1));
    assert_eq!(*tape.take::<f64>(1).unwrap(), values(1), "it was not consumed");
    let mut wrong = vec![7u32; 2000];
    refused(ErrorKind::Usage, session.restore(1, &mut [PartMut::new("u", &mut wrong)]));
    assert!(wrong.iter().all(|value| *value == 7));
}

#[test]
fn closed() {
    let Both { dir, mut tape, session } = both();
    let anchor = tape.anchor();
    let past = tape.take::<f64>(1).unwrap();
    drop(tape);
    drop(anchor);
    assert_eq!(*past, values(1));
    session.finish().unwrap();
    assert_eq!(restore(&mut open(dir.path()), 1).unwrap(), values(1));
}

#[test]
fn other_thread() {
    let Both { dir: _dir, mut tape, mut session } = both();
    let found = thread::spawn(move || tape.take::<f64>(1).unwrap().to_vec()).join().unwrap();
    assert_eq!(found, values(1));
    thread::spawn(move || save(&mut session, 2).and_then(|()| session.finish())).join().unwrap().unwrap();
}

#[test]
fn huge() {
    let Both { dir: _dir, mut tape, mut session } = both();
    refused(ErrorKind::TooLarge, tape.save(2, &[0u8; 300 << 10]));
    refused(ErrorKind::TooLarge, tape.lend::<f64>(2, usize::MAX));
    tape.save(u64::MAX, &values(2)).unwrap();
    refused(ErrorKind::Usage, save(&mut session, u64::MAX));
    // Twice as large as host memory.
    let large = vec![1.0f64; 1 << 20];
    session.save(2, &[Part::new("u", &large)]).unwrap();
    let mut found = vec![0.0f64; 1 << 20];
    session.restore(2, &mut [PartMut::new("u", &mut found)]).unwrap();
    assert_eq!(found, large);
}

#[test]
fn zero() {
    let Both { dir, mut tape, mut session } = both();
    tape.save(0, &[0f64; 0]).unwrap();
    assert!(tape.take::<f64>(0).unwrap().is_empty());
    refused(ErrorKind::Usage, Tape::builder().host(0).open());
    refused(ErrorKind::Exists, save(&mut session, 0));
    session.save(2, &[Part::new("u", &[0f64; 0])]).unwrap();
    session.restore(2, &mut [PartMut::new("u", &mut [0f64; 0])]).unwrap();
    refused(ErrorKind::Usage, Store::builder().dir(dir.path().join("x"), None).block(0).open());
}

#[test]
fn misaligned() {
    let Both { dir: _dir, mut tape, mut session } = both();
    let bytes: Vec<u8> = (0..2001u32).map(|index| index as u8).collect();
    tape.save(2, &bytes[1..]).unwrap();
    assert_eq!(*tape.take::<u8>(2).unwrap(), bytes[1..]);
    session.save(2, &[Part::new("u", &bytes[1..])]).unwrap();
    let mut found = vec![0u8; 2001];
    session.restore(2, &mut [PartMut::new("u", &mut found[1..])]).unwrap();
    assert_eq!(found[1..], bytes[1..]);
}

#[test]
fn overlapping() {
    let Both { dir: _dir, mut tape, mut session } = both();
    let field = values(2);
    let parts = [Part::new("u", &field), Part::new("v", &field[1..])];
    tape.save_regions(2, &parts).unwrap();
    assert_eq!(*tape.take_regions(2).unwrap().region::<f64>("v").unwrap(), field[1..]);
    session.save(2, &parts).unwrap();
    assert_eq!(restore(&mut session, 2).unwrap(), field);
}

#[test]
fn freed() {
    let Both { dir: _dir, mut tape, mut session } = both();
    for number in 2..6 {
        let mut field = values(number);
        tape.save(number, &field).unwrap();
        session.save(number, &[Part::new("u", &field)]).unwrap();
        field.fill(0.0);
    }
    for number in 2..6 {
        assert_eq!(*tape.take::<f64>(number).unwrap(), values(number));
        assert_eq!(restore(&mut session, number).unwrap(), values(number));
    }
}

extern "C" fn nothing(_signal: libc::c_int) {}

#[test]
fn interrupted() {
    if alone("hostile::interrupted") {
        return;
    }
    let Both { dir: _dir, mut tape, mut session } = both();
    let every = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: the handler does nothing; the structures are plain data, and live during the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        // Without SA_RESTART, so that calls of the system end early.
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()), 0);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()), 0);
    }
    (10..310).for_each(|key| tape.save(key, &values(key)).unwrap());
    (10..310).rev().for_each(|key| assert_eq!(*tape.take::<f64>(key).unwrap(), values(key)));
    (2..30).for_each(|version| save(&mut session, version).unwrap());
    session.flush().unwrap();
    assert_eq!(restore(&mut session, 29).unwrap(), values(29));
}

#[test]
fn full() {
    let dir = tempfile::tempdir().unwrap();
    let mut tape = Tape::builder().host("256 KiB").pin(false).patience(std::time::Duration::ZERO).open().unwrap();
    tape.save(1, &[0u8; 160 << 10]).unwrap();
    refused(ErrorKind::Full, tape.save(2, &[0u8; 160 << 10]));
    let held = tape.take::<u8>(1).unwrap();
    refused(ErrorKind::Held, tape.save(2, &[0u8; 160 << 10]));
    drop(held);
    tape.save(2, &[0u8; 160 << 10]).unwrap();
    let store = Store::builder().host("4 MiB").dir(dir.path().join("small"), Some("64 KiB")).pin(false).open().unwrap();
    let mut session = store.session("run").unwrap();
    save(&mut session, 1).unwrap();
    let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1 << 20).collect();
    session.save(2, &[Part::new("u", &random)]).unwrap();
    let error = session.flush().unwrap_err();
    assert!(error.to_string().contains("version 2 of run has not reached"), "{error}");
    assert_eq!(session.versions(), [1]);
    session.finish().unwrap();
}

#[test]
fn read_only() {
    refused(ErrorKind::Storage, Tape::builder().host("1 MiB").dir("/proc/outcrop", "1 MiB").open());
    refused(ErrorKind::Storage, Store::builder().dir("/proc/outcrop", None).open());
}

#[test]
fn missing() {
    let Both { dir, mut tape, mut session } = both();
    refused(ErrorKind::Missing, tape.take::<f64>(9));
    refused(ErrorKind::Missing, tape.get::<f64>(9));
    refused(ErrorKind::Missing, tape.discard(9));
    refused(ErrorKind::Missing, restore(&mut session, 9));
    let mut found = vec![7.0f64; 1000];
    assert!(session.restore(1, &mut [PartMut::new("v", &mut found)]).is_err());
    assert!(found.iter().all(|value| *value == 7.0));
    assert!(Catalog::open(&dir.path().join("nowhere")).is_err());
}

#[test]
fn damaged() {
    let Both { dir, mut tape, session } = both();
    (10..100).for_each(|key| tape.save(key, &values(key)).unwrap());
    damage(&dir.path().join("scratch"));
    let mut found = 0;
    for key in 10..100 {
        match tape.take::<f64>(key) {
            Ok(past) => assert_eq!(*past, values(key)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                found += 1;
            }
        }
    }
    assert!(found > 0);
    session.finish().unwrap();
    damage(&dir.path().join("checkpoints"));
    let mut session = open(dir.path());
    let mut target = vec![7.0f64; 1000];
    refused(ErrorKind::Damaged, session.restore_latest(&mut [PartMut::new("u", &mut target)]));
}
