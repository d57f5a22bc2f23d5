//! What a daemon takes of the machine: little when it is idle, and less when memory runs short.

use std::{fs, path::Path, thread, time::Duration};

use outcrop_node::{Cached, Client};
use outcrop_testing::{Companion, Group, answer, listen, pattern, skip, until};
use tempfile::tempdir;

use crate::daemon::{client, connect, new_file};

const MIB: u64 = 1 << 20;

/// The sum of a field in files of /proc about a process and its threads.
fn sum(files: &[std::path::PathBuf], field: &str) -> u64 {
    let number = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    files.iter().map(number).sum()
}

#[test]
fn an_idle_daemon_sleeps_and_is_small() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 256 * MIB);
    let process = client.status().unwrap().process;
    let threads: Vec<_> = fs::read_dir(format!("/proc/{process}/task")).unwrap().collect();
    let threads: Vec<_> = threads.into_iter().map(|thread| thread.unwrap().path().join("status")).collect();
    let woken = || sum(&threads, "voluntary_ctxt_switches");
    until("it sleeps", || {
        let before = woken();
        thread::sleep(Duration::from_millis(1500));
        woken() == before
    });
    let status = [format!("/proc/{process}/status").into()];
    let bytes = ["RssAnon", "RssShmem"].map(|field| sum(&status, field) << 10);
    assert!(bytes.iter().sum::<u64>() < 20_000_000, "{bytes:?}");
}

#[test]
fn memory_is_given_back_when_a_control_group_runs_short() {
    let Ok(group) = Group::new(256 * MIB) else { return skip("no control group can be made here") };
    let directory = tempdir().unwrap();
    let mut connect = connect(directory.path(), 128 * MIB);
    // It keeps what it has touched, unless memory runs short.
    connect.serve.touch_all = true;
    let client = Client::connect(&connect).unwrap();
    let (process, touched) = (client.status().unwrap().process, || client.status().unwrap().touched_bytes);
    group.add(process);
    // Memory counts for the group in which a process was when it took it.
    client.set_limit(4 * MIB).unwrap();
    until("memory is given back", || touched() <= 4 * MIB);
    client.set_limit(128 * MIB).unwrap();
    until("it is taken again", || touched() == 128 * MIB);
    assert!(group.used_bytes() >= 128 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &pattern(1, 20 * MIB)).unwrap();

    let mut other = Companion::start("memory::takes_memory", directory.path());
    group.add(other.id());
    other.say("116");
    other.expect("taken");
    until("memory is given back", || touched() <= 32 * MIB);
    assert!(group.used_bytes() <= 200 * MIB, "{} bytes", group.used_bytes());
    file.write(20 * MIB, &pattern(2, 20 * MIB)).unwrap();
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == [pattern(1, 20 * MIB), pattern(2, 20 * MIB)].concat());
    assert_eq!(client.status().unwrap().process, process, "it lives");
    other.say("that is all");
    other.expect("done");
    drop((file, other));
    client.stop().unwrap();
    until("it leaves the group", || !Path::new(&format!("/proc/{process}")).exists());
}

/// In a child: takes as many MiB as it is told to.
#[test]
fn takes_memory() {
    if outcrop_testing::child_directory().is_none() {
        return;
    }
    let taken = vec![1_u8; listen().unwrap().parse::<usize>().unwrap() << 20];
    answer("taken");
    listen();
    assert_eq!(taken.last(), Some(&1));
    answer("done");
}
