//! Targets that fail, memory that runs out, and what survives.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use outcrop_node::{Cached, Client, Connect, ServeOptions};
use outcrop_testing::{Group, alone, mount_memory, pattern, skip, until, with_own_mounts};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::daemon::{client, connect, new_file};

const MIB: u64 = 1 << 20;
const FULL: i32 = 28;

fn kill(process: u32) {
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::KILL).unwrap();
    until("it is dead", || {
        let status = fs::read_to_string(format!("/proc/{process}/stat"));
        status.is_err() || status.unwrap().contains(") Z ")
    });
}

#[test]
fn a_full_target_is_reported_once_and_drained_when_there_is_room() {
    with_own_mounts(|directory| {
        let target = directory.join("target");
        fs::create_dir(&target).unwrap();
        mount_memory(&target, c"size=1m");
        let client = client(directory, 16 * MIB);
        let path = target.join("file");
        let file = client.open(new_file(&path), &path).unwrap();
        let other = client.open(fs::File::options().read(true).write(true).open(&path).unwrap(), &path).unwrap();
        let bytes = pattern(1, 3 * MIB);
        file.write(0, &bytes).unwrap();
        assert_eq!(file.drain().unwrap_err().raw_os_error(), Some(FULL));
        let status = client.status().unwrap();
        assert_eq!(status.files[0].errno, Some(FULL as u32), "{status:?}");
        assert!(status.files[0].at_risk_bytes > 0 && status.files[0].path.ends_with("target/file"), "{status:?}");
        let mut back = vec![0; bytes.len()];
        assert_eq!(file.read(0, &mut back).unwrap(), bytes.len());
        assert!(back == bytes, "nothing is lost");
        file.write(0, &bytes[..10]).expect("it was reported, and there is memory");
        assert_eq!(other.write(0, &bytes[..10]).unwrap_err().raw_os_error(), Some(FULL), "another has not heard of it");
        other.write(0, &bytes[..10]).expect("now it has");
        assert!(client.drain_all().is_err() && client.stop().is_err(), "nothing is dropped silently");

        rustix::mount::mount_remount(&target, rustix::mount::MountFlags::empty(), c"size=8m").unwrap();
        file.drain().unwrap();
        assert!(fs::read(&path).unwrap() == bytes);
        assert!(client.status().unwrap().files.is_empty());
        client.drain_all().unwrap();
    });
}

#[test]
fn writers_are_told_when_all_memory_is_stuck() {
    with_own_mounts(|directory| {
        let target = directory.join("target");
        fs::create_dir(&target).unwrap();
        mount_memory(&target, c"size=1m");
        let client = client(directory, 4 * MIB);
        let path = target.join("file");
        let file = client.open(new_file(&path), &path).unwrap();
        let bytes = pattern(1, MIB);
        let mut failures = 0;
        for nth in 0..20 {
            match file.write(nth * MIB, &bytes) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(FULL));
                    failures += 1;
                }
            }
        }
        assert!(failures >= 10, "{failures} of 20 writes failed, and 4 MiB of memory were there");
        let elsewhere = directory.join("elsewhere");
        let other = client.open(new_file(&elsewhere), &elsewhere).unwrap();
        assert_eq!(other.write(0, &bytes).unwrap_err().raw_os_error(), Some(FULL), "there is no memory for others");
        file.discard().unwrap();
        other.write(0, &bytes).unwrap();
        other.drain().unwrap();
        assert!(fs::read(&elsewhere).unwrap() == bytes);
    });
}

#[test]
fn a_client_that_is_killed_between_grant_and_fill_loses_only_its_memory() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 4 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let mut companion = outcrop_testing::Companion::start("failing::holds_memory", directory.path());
    companion.expect("holding");
    let held = |client: &Client| client.status().unwrap().clients.iter().map(|it| it.granted_bytes).sum::<u64>();
    assert!(held(&client) > 0);
    companion.kill();
    until("its memory is free", || client.status().unwrap().clients.len() == 1);
    let bytes = pattern(1, 10 * MIB);
    file.write(0, &bytes).unwrap();
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

/// In a child: gets more memory than it fills.
#[test]
fn holds_memory() {
    let Some(directory) = outcrop_testing::child_directory() else { return };
    let client = client(&directory, 4 * MIB);
    let path = directory.join("held");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &[1; 100]).unwrap();
    outcrop_testing::answer("holding");
    outcrop_testing::listen();
    drop(file);
}

/// In a child: writes to a file on and on, with the memory in a file.
#[test]
fn writes_on_and_on() {
    let Some(directory) = outcrop_testing::child_directory() else { return };
    let client = Client::connect(&in_a_file(&directory)).unwrap();
    let path = directory.join("slow");
    let file = client.open(new_file(&path), &path).unwrap();
    for nth in 0.. {
        file.write(nth * 10_000, &pattern(nth, 10_000)).unwrap();
        outcrop_testing::answer(nth);
    }
}

fn in_a_file(directory: &Path) -> Connect {
    let connect = connect(directory, 8 * MIB);
    let reserve = Some(directory.join("memory"));
    Connect { serve: ServeOptions { reserve, ..connect.serve.clone() }, ..connect }
}

#[test]
fn with_the_memory_in_a_file_everything_survives_all_processes() {
    let directory = tempdir().unwrap();
    let connect = in_a_file(directory.path());
    for round in 0..outcrop_testing::amount(5, 50_u64) {
        let mut companion = outcrop_testing::Companion::start("failing::writes_on_and_on", directory.path());
        let client = Client::connect(&connect).unwrap();
        let process = client.status().unwrap().process;
        let mut written = 0;
        while written < 20 + 7 * round {
            written = companion.hear().parse().unwrap();
        }
        // The daemon first: nobody can start another one.
        drop(client);
        rustix::process::kill_process(Pid::from_raw(companion.id() as i32).unwrap(), Signal::STOP).unwrap();
        kill(process);
        companion.kill();
        assert!(directory.path().join("memory").exists());

        let client = Client::connect(&connect).unwrap();
        client.drain_all().unwrap();
        let found = fs::read(directory.path().join("slow")).unwrap();
        for nth in 0..=written {
            let at = nth as usize * 10_000;
            assert!(found[at..at + 10_000] == pattern(nth, 10_000), "round {round}: write {nth} is lost");
        }
        client.stop().unwrap();
        until("the daemon leaves", || !Client::is_served(connect.serve.directory.as_deref()).unwrap());
        assert!(!directory.path().join("memory").exists(), "nobody needs it any more");
    }
}

#[test]
fn a_daemon_that_is_asked_to_end_drains_first() {
    let directory = tempdir().unwrap();
    let served = connect(directory.path(), 64 * MIB);
    // Without clients it would stay.
    let client = Client::connect(&Connect { serve: ServeOptions { idle: None, ..served.serve.clone() }, ..served });
    let client = client.unwrap();
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(1, 40 * MIB);
    file.write(0, &bytes).unwrap();
    let process = client.status().unwrap().process;
    drop((file, client));
    kill_process(Pid::from_raw(process as i32).unwrap(), Signal::TERM).unwrap();
    until("the daemon leaves", || !Path::new(&format!("/proc/{process}")).exists());
    assert!(fs::read(&path).unwrap() == bytes);
    assert!(!directory.path().join("node/reserve").exists(), "nothing is left to recover");
}

#[test]
fn a_file_that_was_renamed_is_found_through_its_client_after_the_daemon_has_died() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 16 * MIB);
    let paths = ["first", "second", "gone"].map(|name| directory.path().join(name));
    let file = client.open(new_file(&paths[0]), &paths[0]).unwrap();
    let bytes = pattern(1, MIB);
    file.write(0, &bytes).unwrap();
    fs::rename(&paths[0], &paths[1]).unwrap();
    fs::write(&paths[0], "another file").unwrap();
    kill(client.status().unwrap().process);
    file.drain().unwrap();
    assert!(fs::read(&paths[1]).unwrap() == bytes);
    assert_eq!(fs::read(&paths[0]).unwrap(), b"another file");
}

#[test]
fn an_undrained_file_is_marked() {
    if alone("failing::an_undrained_file_is_marked") {
        return;
    }
    with_own_mounts(|directory| {
        let target = directory.join("target");
        if let Err(reason) = outcrop_testing::mount_ext4(&directory.join("image"), &target, 8 * MIB) {
            return skip(reason);
        }
        let client = client(directory, 16 * MIB);
        let path = target.join("file");
        let file = client.open(new_file(&path), &path).unwrap();
        let mark = || rustix::fs::getxattr(&path, c"user.outcrop.undrained", &mut [0_u8; 8]).is_ok();
        assert!(!mark());
        let _ = file.write(0, &pattern(1, 12 * MIB));
        assert_eq!(file.drain().unwrap_err().raw_os_error(), Some(FULL));
        until("the file is marked", mark);
        file.set_bytes(MIB).unwrap();
        file.drain().unwrap();
        assert!(!mark());
        assert!(fs::read(&path).unwrap() == pattern(1, MIB));
    });
}

#[test]
fn a_changed_file_is_noticed_when_it_is_verified() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 16 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &pattern(1, MIB)).unwrap();
    file.sync().unwrap();
    assert_eq!(file.verify().unwrap(), MIB);
    file.write(10, b"twenty bytes of text").unwrap();
    file.sync().unwrap();
    assert_eq!(file.verify().unwrap(), MIB - 65536 + 20, "a piece that was partly replaced is not compared");
    fs::File::options().write(true).open(&path).unwrap().write_all_at(b"x", 500_000).unwrap();
    assert_eq!(file.verify().unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn a_lower_limit_is_kept_and_memory_is_given_back() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 64 * MIB);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(1, 30 * MIB);
    file.write(0, &bytes).unwrap();
    file.drain().unwrap();
    until("memory is touched ahead", || client.status().unwrap().touched_bytes >= 30 * MIB);
    client.set_limit(4 * MIB).unwrap();
    until("memory is given back", || client.status().unwrap().touched_bytes <= 8 * MIB);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let status = client.status().unwrap();
                assert!(status.used_bytes <= 4 * MIB, "{status:?}");
            }
        });
        file.write(0, &bytes).unwrap();
        is_over.store(true, Relaxed);
    });
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn a_control_group_with_less_memory_than_the_limit_kills_nobody() {
    let Ok(group) = Group::new(96 * MIB) else { return skip("no control group can be made here") };
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 90 * MIB);
    let process = client.status().unwrap().process;
    group.add(process);
    let path = directory.path().join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(1, 200 * MIB);
    file.write(0, &bytes).unwrap();
    file.drain().unwrap();
    let status = client.status().unwrap();
    assert_eq!(status.process, process, "it lives");
    assert!(status.touched_bytes <= 90 * MIB);
    assert!(fs::read(&path).unwrap() == bytes);
    client.stop().unwrap();
    until("it leaves the group", || !Path::new(&format!("/proc/{process}")).exists());
}
