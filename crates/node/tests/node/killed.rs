//! Daemons that are killed in the middle of everything.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use outcrop_node::{Cached, Client};
use outcrop_testing::{amount, covered, pattern, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::daemon::{connect, new_file};

const MIB: u64 = 1 << 20;

/// The process of the daemon, found without asking it.
fn daemon_of(directory: &Path) -> Option<Pid> {
    let wanted = directory.join("node").to_str().unwrap().to_owned();
    fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let pid: i32 = process.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(process.path().join("environ")).ok()?;
        let is_daemon = environment.split(|byte| *byte == 0).any(|variable| {
            variable.starts_with(b"OUTCROP_NODE_OPTIONS=") && String::from_utf8_lossy(variable).contains(&wanted)
        });
        if is_daemon { Pid::from_raw(pid) } else { None }
    })
}

/// Writes, reads, cuts off and syncs a file at random, and compares it with a model.
fn work(client: &Client, path: &Path, seed: u64, is_over: &AtomicBool, writes: &AtomicU64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let file = client.open(new_file(path), path).unwrap();
    let mut model: Vec<u8> = Vec::new();
    let mut nth = 0;
    while !is_over.load(Relaxed) {
        nth += 1;
        let most = if rng.u8(..8) == 0 { 600_000 } else { 9_000 };
        let bytes = pattern(rng.u64(..), rng.u64(1..most));
        let at = if rng.bool() { rng.usize(..2_000_000) } else { model.len().min(4_000_000) };
        let end = at + bytes.len();
        model.resize(model.len().max(end), 0);
        model[at..end].copy_from_slice(&bytes);
        file.write(at as u64, &bytes).unwrap();
        writes.fetch_add(1, Relaxed);
        match rng.u8(..40) {
            0 => {
                let bytes = rng.usize(..model.len() + 5000);
                model.resize(bytes, 0);
                file.set_bytes(bytes as u64).unwrap();
            }
            1 => file.sync().unwrap(),
            2 => file.drain().unwrap(),
            3..12 => {
                let at = rng.usize(..=model.len());
                let mut back = vec![0; rng.usize(..100_000)];
                let count = file.read(at as u64, &mut back).unwrap();
                assert_eq!(count, back.len().min(model.len() - at), "seed {seed}, write {nth}");
                assert!(back[..count] == model[at..at + count], "seed {seed}, write {nth}: other bytes are read");
            }
            _ => {}
        }
    }
    file.drain().unwrap();
    assert_eq!(file.bytes().unwrap(), model.len() as u64);
    model
}

#[test]
fn a_daemon_that_is_killed_again_and_again_loses_nothing() {
    const CLIENTS: u64 = 3;
    let directory = tempdir().unwrap();
    let (is_over, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    let kills = amount(100, 2000);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|nth| {
                let (path, directory, is_over, writes) =
                    (directory.path().join(format!("file-{nth}")), directory.path(), &is_over, &writes);
                scope.spawn(move || {
                    let client = Client::connect(&connect(directory, 8 * MIB)).unwrap();
                    let model = work(&client, &path, nth, is_over, writes);
                    (path, model, client)
                })
            })
            .collect();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut killed = 0;
        while killed < kills && threads.iter().all(|thread| !thread.is_finished()) {
            let before = writes.load(Relaxed);
            let more = rng.u64(1..30);
            until("clients go on", || {
                writes.load(Relaxed) >= before + more || threads.iter().any(|thread| thread.is_finished())
            });
            if let Some(pid) = daemon_of(directory.path()) {
                killed += usize::from(kill_process(pid, Signal::KILL).is_ok());
            }
        }
        is_over.store(true, Relaxed);
        for thread in threads {
            let (path, model, client) = thread.join().unwrap();
            let found = fs::read(&path).unwrap();
            assert_eq!(found.len(), model.len(), "{}", path.display());
            assert!(found == model, "{} differs", path.display());
            drop(client);
        }
    });
    covered("daemons killed", format_args!("{kills}, with {} writes", writes.load(Relaxed)));
}
