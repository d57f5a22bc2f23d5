//! What a file does through a client.

use std::{
    fs,
    time::{Duration, SystemTime},
};

use outcrop_node::{Cached, Client, ServeOptions};
use outcrop_testing::{pattern, until};
use tempfile::tempdir;

use crate::daemon::{client, connect, new_file};

const MIB: u64 = 1 << 20;

#[test]
fn what_is_written_is_read_and_drained() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 64 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(1, 5 * MIB + 77);
    file.write(33, &bytes).unwrap();
    assert_eq!(file.bytes().unwrap(), 33 + bytes.len() as u64);
    let mut back = vec![1; bytes.len() + 100];
    assert_eq!(file.read(0, &mut back).unwrap(), 33 + bytes.len());
    assert!(back[..33].iter().all(|&byte| byte == 0) && back[33..33 + bytes.len()] == bytes);
    file.drain().unwrap();
    assert!(file.is_clean());
    assert!(fs::read(&path).unwrap()[33..] == bytes);
    assert_eq!(file.verify().unwrap(), bytes.len() as u64);
    assert_eq!(file.read(0, &mut back).unwrap(), 33 + bytes.len());
    assert!(back[33..33 + bytes.len()] == bytes, "from the file itself");
}

#[test]
fn small_writes_in_a_row_and_on_top_of_each_other_are_as_on_a_file() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 16 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let mut model = Vec::new();
    let mut rng = fastrand::Rng::with_seed(7);
    for nth in 0..2000_u64 {
        let bytes = pattern(nth, rng.u64(1..3000));
        let at = if rng.u8(..4) == 0 { rng.u64(..100_000) } else { model.len() as u64 };
        let end = at as usize + bytes.len();
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(&bytes);
        file.write(at, &bytes).unwrap();
        if rng.u8(..50) == 0 {
            let bytes = rng.u64(..model.len() as u64 + 5000);
            model.resize(bytes as usize, 0);
            file.set_bytes(bytes).unwrap();
        }
        if rng.u8(..10) == 0 {
            let mut back = vec![0; rng.usize(..50_000)];
            let at = rng.usize(..=model.len());
            let count = file.read(at as u64, &mut back).unwrap();
            assert_eq!(count, back.len().min(model.len() - at));
            assert!(back[..count] == model[at..at + count], "write {nth}");
        }
        assert_eq!(file.bytes().unwrap(), model.len() as u64);
    }
    file.sync().unwrap();
    assert!(fs::read(&path).unwrap() == model);
}

#[test]
fn more_than_the_memory_is_written_at_the_speed_of_the_drain() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 4 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(3, 40 * MIB);
    for (nth, chunk) in bytes.chunks(3 << 20).enumerate() {
        file.write(nth as u64 * (3 << 20), chunk).unwrap();
        assert!(client.status().unwrap().used_bytes <= 4 * MIB);
    }
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn all_ways_to_serve_write_the_same() {
    for (threads, poll, touch_all, verify) in [(1, false, true, true), (2, true, false, false), (4, false, false, true)]
    {
        let directory = tempdir().unwrap();
        let mut connect = connect(directory.path(), 16 * MIB);
        let cores = vec![0];
        connect.serve = ServeOptions { threads, poll, touch_all, verify, cores, ..connect.serve };
        let client = Client::connect(&connect).unwrap();
        let files: Vec<_> = (0..3_u64)
            .map(|nth| {
                let path = directory.path().join(nth.to_string());
                let file = client.open(new_file(&path), &path).unwrap();
                file.write(nth * 1000, &pattern(nth, 20 * MIB + 5)).unwrap();
                (path, file)
            })
            .collect();
        client.drain_all().unwrap();
        for (nth, (path, file)) in files.iter().enumerate() {
            file.check().unwrap();
            assert!(fs::read(path).unwrap()[nth * 1000..] == pattern(nth as u64, 20 * MIB + 5), "{threads} threads");
        }
    }
}

#[test]
fn an_idle_daemon_takes_little_memory_and_no_time() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 256 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &pattern(1, 100 * MIB)).unwrap();
    file.drain().unwrap();
    let process = client.status().unwrap().process;
    let number = |file: &str, name: &str| -> u64 {
        let text = fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in\n{text}"));
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    until("its memory is given back", || number("status", "VmRSS:") < 20 << 10);
    let switches = number("status", "voluntary_ctxt_switches:");
    std::thread::sleep(Duration::from_secs(2));
    let woken = number("status", "voluntary_ctxt_switches:") - switches;
    assert!(woken <= 8, "it was woken {woken} times in two seconds");
    drop(file);
}

#[test]
fn times_are_those_of_the_last_write_or_as_they_were_set() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 4 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let wanted = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.write(0, b"some bytes").unwrap();
    file.set_times(Some(wanted), Some(wanted)).unwrap();
    file.drain().unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.accessed().unwrap(), found.modified().unwrap()), (wanted, wanted));
    let before = SystemTime::now();
    file.write(0, b"other").unwrap();
    let after = SystemTime::now();
    file.drain().unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    assert!(before <= modified && modified <= after, "{before:?} {modified:?} {after:?}");
}

#[test]
fn a_daemon_that_was_asked_to_leaves_and_the_next_call_starts_another() {
    let directory = tempdir().unwrap();
    let first = client(directory.path(), 4 * MIB);
    let process = first.status().unwrap().process;
    drop(first);
    until("the daemon leaves", || !std::path::Path::new(&format!("/proc/{process}")).exists());
    let second = client(directory.path(), 4 * MIB);
    assert_ne!(second.status().unwrap().process, process);
}
