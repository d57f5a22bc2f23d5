//! What goes wrong, and how it shows.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use outcrop_intercept::{Event, run};
use outcrop_testing::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    command::outcrop_run,
    memory::Memory,
    scene::{has, options, run_script, scene, shell},
};

fn directory(root: &Path) -> std::path::PathBuf {
    let data = root.join("data");
    fs::create_dir(&data).unwrap();
    data
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    mounts.lines().any(|line| line.contains("fuse.outcrop") && line.contains(directory.to_str().unwrap()))
}

#[test]
fn a_full_target_shows_at_fsync_and_at_the_end() {
    scene(|root| {
        let data = directory(root);
        let cache = Memory::new(Duration::from_secs(3600));
        cache.fail_with(libc::ENOSPC);
        let (outcome, output) =
            run_script("dd if=/dev/zero of=a bs=4k count=1 conv=fsync status=none || exit 5", &data, cache);
        assert_eq!(outcome.status.code(), Some(5), "{output}");
        assert!(output.contains("No space left on device"), "{output}");
        assert_eq!(outcome.undrained.len(), 1);
        assert_eq!(outcome.undrained[0].path, data.join("a"));
        assert_eq!(outcome.undrained[0].error.raw_os_error(), Some(libc::ENOSPC));
        assert!(!is_mounted(&data));
    });
}

#[test]
fn a_failed_drain_shows_at_close() {
    if !has(&["python3"]) {
        return;
    }
    scene(|root| {
        let data = directory(root);
        let cache = Memory::new(Duration::from_millis(1));
        cache.fail_with(libc::EDQUOT);
        let script = "python3 -c '
import os, time
f = os.open(\"a\", os.O_CREAT | os.O_WRONLY); os.write(f, b\"x\"); time.sleep(0.5)
try: os.close(f)
except OSError as e: print(\"close:\", e.errno)
'";
        let (outcome, output) = run_script(script, &data, cache);
        assert_eq!(output, format!("close: {}\n", libc::EDQUOT));
        assert_eq!(outcome.undrained.len(), 1);
    });
}

#[test]
fn a_program_ends_as_it_does_without_us() {
    scene(|root| {
        let data = directory(root);
        for (script, code) in [("exit 0", 0), ("exit 41", 41), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
            let status = outcrop_run(&data, "through", &["sh", "-c", script]).stdout(Stdio::null()).status().unwrap();
            assert_eq!(status.code(), Some(code), "{script}");
            assert!(!is_mounted(&data));
        }
    });
}

#[test]
fn a_program_that_does_not_exist_leaves_nothing_behind() {
    scene(|root| {
        let data = directory(root);
        let cache = Memory::new(Duration::from_millis(1));
        let error = run(options(&data, cache), Command::new("no-such-program"), |_| {}).unwrap_err();
        assert!(error.to_string().contains("cannot start no-such-program; give its path"), "{error}");
        assert_eq!(error.os_error(), Some(libc::ENOENT));
        assert!(!is_mounted(&data));
    });
}

/// Starts `outcrop run` with a shell script that prints a line when it is ready.
fn started(directory: &Path, script: &str) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = outcrop_run(directory, "5", &["sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = lines.skip_while(|line| !line.ends_with("ready"));
    assert!(lines.next().is_some(), "it did not start");
    (child, lines)
}

#[test]
fn signals_reach_the_program() {
    scene(|root| {
        let data = directory(root);
        let script =
            "trap 'echo got TERM; exit 7' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.05; done";
        let (mut child, mut lines) = started(&data, &script.replace("; ", ";"));
        let id = Pid::from_child(&child);
        kill_process(id, Signal::USR1).unwrap();
        assert_eq!(lines.next().as_deref(), Some("got USR1"));
        kill_process(id, Signal::TERM).unwrap();
        assert_eq!(lines.next().as_deref(), Some("got TERM"));
        assert_eq!(child.wait().unwrap().code(), Some(7));
        assert!(!is_mounted(&data));
    });
}

#[test]
fn a_killed_run_is_cleared_away_by_the_next() {
    scene(|root| {
        let data = directory(root);
        let script = "echo before > a;echo ready;read line;echo after > a || echo failed";
        let (mut child, mut lines) = started(&data, script);
        let mut input = child.stdin.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The program goes on without its files.
        writeln!(input).unwrap();
        assert_eq!(lines.next().as_deref(), Some("failed"));
        assert_eq!(fs::metadata(&data).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));

        let (outcome, output) = run_script("echo works > b; cat b", &data, Memory::new(Duration::from_millis(1)));
        assert!(outcome.status.success() && outcome.undrained.is_empty());
        assert_eq!(output, "works\n");
        assert!(!is_mounted(&data));
        assert_eq!(fs::read(data.join("b")).unwrap(), b"works\n");
    });
}

#[test]
fn a_second_run_in_the_same_place_uses_the_mount_of_the_first() {
    scene(|root| {
        let data = directory(root);
        fs::create_dir(data.join("inner")).unwrap();
        let (mut child, _) = started(&data, "echo ready;read line;exit 3");
        for (under, name) in [(data.clone(), "a"), (data.join("inner"), "b")] {
            let cache = Memory::new(Duration::from_millis(1));
            let outcome = run(options(&under, cache), shell(&format!("echo two > {name}"), &under), |_| {}).unwrap();
            assert!(outcome.status.success() && outcome.is_joined);
            assert_eq!(fs::read(under.join(name)).unwrap(), b"two\n");
        }
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(!is_mounted(&data));
        assert_eq!(fs::read(data.join("a")).unwrap(), b"two\n");
    });
}

#[test]
fn processes_that_stay_behind_are_waited_for() {
    scene(|root| {
        let data = directory(root);
        let cache = Memory::new(Duration::from_secs(3600));
        let release = root.join("release");
        let wait = format!("(while [ ! -e {} ]; do sleep 0.02; done; echo late > late) &", release.display());
        let mut command = shell(&wait, &data);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut told = Vec::new();
        let outcome = run(options(&data, cache), command, |event| {
            if let Event::InUse { processes, .. } = event {
                told.extend(processes);
                fs::write(&release, "").unwrap();
            }
        });
        let outcome = outcome.unwrap();
        assert!(outcome.status.success() && outcome.undrained.is_empty());
        assert!(told.iter().any(|process| process.contains("(sh)")), "{told:?}");
        assert_eq!(fs::read(data.join("late")).unwrap(), b"late\n");
    });
}

#[test]
fn the_daemon_is_killed_while_programs_write() {
    scene(|root| {
        let data = directory(root);
        let client = crate::command::daemon(&root.join("daemon"), 64 << 20);
        let killer = {
            let client = client.clone();
            std::thread::spawn(move || {
                for _ in 0..5 {
                    std::thread::sleep(Duration::from_millis(150));
                    if let Ok(status) = client.status() {
                        let id = Pid::from_raw(status.process as i32).unwrap();
                        let _ = kill_process(id, Signal::KILL);
                    }
                }
            })
        };
        let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do seq $i 150000 > n$i; tail -1 n$i; sleep 0.05; done
            for i in 1 2 3 4 5 6 7 8 9 10 11 12; do seq $i 150000 | cmp - n$i; done";
        let (outcome, output) = run_script(script, &data, std::sync::Arc::new(client));
        killer.join().unwrap();
        assert!(outcome.status.success(), "{output}");
        assert!(outcome.undrained.is_empty(), "{:?}", outcome.undrained);
        assert_eq!(output, "150000\n".repeat(12));
        let check = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do seq $i 150000 | cmp - n$i; done";
        assert!(shell(check, &data).status().unwrap().success());
        until("the mount is gone", || !is_mounted(&data));
    });
}
