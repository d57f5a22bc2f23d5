//! Writes that return at once.

use std::{
    fs,
    sync::{Arc, mpsc},
    time::Duration,
};

use outcrop_node::{Cached, PENDING_MAX, Pending};
use outcrop_testing::{mount_memory, pattern, until, with_own_mounts};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::daemon::{client, new_file};

const MIB: u64 = 1 << 20;
const FULL: i32 = 28;

#[test]
fn pending_writes_of_a_file_are_carried_out_in_their_order() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 8 * MIB);
    let files: Vec<_> = (0..3)
        .map(|nth| {
            let path = directory.path().join(nth.to_string());
            (Arc::new(client.open(new_file(&path), &path).unwrap()), path)
        })
        .collect();
    let mut models = vec![vec![0_u8; 300_000]; 3];
    let mut rng = fastrand::Rng::with_seed(3);
    let mut pending = Vec::new();
    for nth in 0..500_u64 {
        let file = rng.usize(..3);
        let bytes = pattern(nth, rng.u64(1..100_000));
        let at = rng.usize(..200_000);
        models[file][at..at + bytes.len()].copy_from_slice(&bytes);
        pending.push(files[file].0.write_async(at as u64, bytes).unwrap());
    }
    for (file, _) in &files {
        while !file.settle(Duration::from_millis(10)) {}
    }
    assert!(pending.iter().all(Pending::is_done));
    pending.iter().for_each(|pending| pending.wait().unwrap());
    for ((file, path), model) in files.iter().zip(&models) {
        file.drain().unwrap();
        let found = fs::read(path).unwrap();
        assert!(found == model[..found.len()] && model[found.len()..].iter().all(|byte| *byte == 0));
    }
}

/// Bytes that are not there before somebody says so.
struct Late(mpsc::Receiver<()>, Vec<u8>);

impl AsRef<[u8]> for Late {
    fn as_ref(&self) -> &[u8] {
        let _ = self.0.recv();
        &self.1
    }
}

/// Bytes that are never there.
struct Never;

impl AsRef<[u8]> for Never {
    fn as_ref(&self) -> &[u8] {
        panic!("this buffer is broken on purpose")
    }
}

#[test]
fn a_file_that_waits_keeps_no_other_waiting_and_the_number_is_bounded() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 8 * MIB);
    let open = |name: &str| {
        let path = directory.path().join(name);
        Arc::new(client.open(new_file(&path), &path).unwrap())
    };
    let (slow, quick) = (open("slow"), open("quick"));
    let (go, wait) = mpsc::channel();
    let first = slow.write_async(0, Late(wait, vec![1; 10])).unwrap();
    let rest: Vec<_> =
        (1..PENDING_MAX - 1).map(|nth| slow.write_async(nth as u64 * 10, vec![2; 10]).unwrap()).collect();
    assert!(quick.wait_for_room(Duration::ZERO));
    quick.write_async(0, b"quick".to_vec()).unwrap().wait().unwrap();
    let last = slow.write_async(5000, vec![3]).unwrap();
    assert!(!slow.wait_for_room(Duration::from_millis(50)), "there is room for no more");
    assert!(!slow.settle(Duration::from_millis(50)) && quick.settle(Duration::ZERO));
    assert!(!first.is_done() && !rest.last().unwrap().is_done() && first.wait_for(Duration::ZERO).is_none());
    std::thread::scope(|scope| {
        let one_more = scope.spawn(|| slow.write_async(6000, vec![4]).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!one_more.is_finished(), "it waits for room");
        go.send(()).unwrap();
        one_more.join().unwrap().wait().unwrap();
    });
    last.wait().unwrap();
    assert_eq!(slow.bytes().unwrap(), 6001);
}

#[test]
fn a_buffer_that_panics_ends_its_write_alone() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 8 * MIB);
    let path = directory.path().join("file");
    let file = Arc::new(client.open(new_file(&path), &path).unwrap());
    let broken = file.write_async(0, Never).unwrap();
    let whole = file.write_async(0, b"whole".to_vec()).unwrap();
    assert!(broken.wait().unwrap_err().to_string().contains("panicked"));
    whole.wait().unwrap();
    drop((file, client));
}

#[test]
fn a_daemon_that_is_killed_loses_no_pending_write() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 8 * MIB);
    let path = directory.path().join("file");
    let file = Arc::new(client.open(new_file(&path), &path).unwrap());
    for round in 0..10_u64 {
        let process = client.status().unwrap().process;
        let bytes = pattern(round, 4 * MIB);
        let pending: Vec<_> = (bytes.chunks(1 << 18).enumerate())
            .map(|(nth, chunk)| {
                if nth as u64 == round {
                    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
                }
                file.write_async(nth as u64 * (1 << 18), chunk.to_vec()).unwrap()
            })
            .collect();
        pending.iter().for_each(|pending| pending.wait().unwrap());
        let mut back = vec![0; bytes.len()];
        assert_eq!(file.read(0, &mut back).unwrap(), bytes.len());
        assert!(back == bytes, "round {round}");
        until("another daemon serves", || client.status().unwrap().process != process);
    }
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == pattern(9, 4 * MIB));
}

#[test]
fn a_full_target_is_told_to_the_write_that_finds_it_so() {
    with_own_mounts(|directory| {
        let target = directory.join("target");
        fs::create_dir(&target).unwrap();
        mount_memory(&target, c"size=1m");
        let client = client(directory, 16 * MIB);
        let open = |path: &std::path::Path| Arc::new(client.open(new_file(path), path).unwrap());
        let (file, other) = (open(&target.join("file")), open(&directory.join("other")));
        file.write_async(0, pattern(1, 3 * MIB)).unwrap().wait().unwrap();
        until("it is known", || client.status().unwrap().files.iter().any(|file| file.errno == Some(FULL as u32)));
        let pending: Vec<_> = (0..3).map(|nth| file.write_async(nth, vec![7]).unwrap()).collect();
        other.write_async(0, vec![7]).unwrap().wait().unwrap();
        let outcomes: Vec<_> =
            pending.iter().map(|pending| pending.wait().err().and_then(|error| error.raw_os_error())).collect();
        assert_eq!(outcomes, [Some(FULL), None, None]);
        assert_eq!(pending[0].wait().unwrap_err().raw_os_error(), Some(FULL), "it can be asked again");
        file.set_bytes(0).unwrap();
        client.drain_all().unwrap();
    });
}
