//! What is left when a run ends early or cannot finish, and who sees to it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

use outcrop_intercept::Via;
use outcrop_testing::{Cut, Disk, FileSystem, alone, skip, until, with_own_mounts};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    command::outcrop_run_via,
    scene::{run_script, scene, staging},
    staged::{has_mark, in_each_way},
};

/// The number of a process that still has what is not drained. It is ended in any case.
pub(crate) struct Kept(pub(crate) u32);

impl Kept {
    /// What a run says of it.
    fn heard(errors: &str) -> Self {
        let number = errors.lines().find_map(|line| line.strip_prefix("keeper ")).expect(errors);
        Self(number.parse().unwrap())
    }

    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(id) = Pid::from_raw(self.0 as i32).filter(|_| !self.has_ended()) {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

/// The next line that ends with these words.
fn hear(from: &mut impl BufRead, words: &str) -> String {
    let mut lines = from.lines().map(Result::unwrap);
    lines.find(|line| line.ends_with(words)).expect("it did not start")
}

/// Everything that comes until the end, for which nobody waits for ever.
fn rest(mut from: impl Read + Send + 'static) -> String {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        sender.send(text)
    });
    let mut text = None;
    until("everybody has closed the pipe", || {
        text = receiver.try_recv().ok();
        text.is_some()
    });
    text.unwrap()
}

#[test]
fn a_program_goes_on_when_outcrop_run_is_killed() {
    in_each_way(|via| {
        let directory = tempfile::tempdir().unwrap();
        let script = "exec 3> staged;echo hello >&3;echo ready;read line;\
                      (echo after > after) 2>/dev/null || echo failed;echo more >&3;echo end";
        let mut command = outcrop_run_via(via, directory.path(), "through", &["sh", "-c", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        hear(&mut output, "ready");
        child.kill().unwrap();
        writeln!(child.stdin.take().unwrap()).unwrap();
        let said = rest(output);
        let after = fs::read_to_string(directory.path().join("after"));
        match via {
            Via::Preload => assert_eq!((said.as_str(), after.unwrap().as_str()), ("end\n", "after\n")),
            _ => assert_eq!(said, "failed\nend\n"),
        }
        let staged = directory.path().join("staged");
        until("what it wrote is there", || fs::metadata(&staged).unwrap().len() == 11);
        assert_eq!(fs::read(&staged).unwrap(), b"hello\nmore\n");
        child.wait().unwrap();
    });
}

#[test]
fn a_killed_run_keeps_nobody_waiting() {
    in_each_way(|via| {
        let directory = tempfile::tempdir().unwrap();
        let script = "exec 3> staged;echo hello >&3;echo - $$ ready;exec >&- 2>&- <&-;kill -STOP $$";
        let mut command = outcrop_run_via(via, directory.path(), "through", &["sh", "-c", script]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let line = hear(&mut output, "ready");
        let program = Kept(line.split(' ').rev().nth(1).unwrap().parse().unwrap());
        child.kill().unwrap();
        // Neither for the end of its output, nor for a file that the program has open.
        rest(output);
        assert_eq!(rest(fs::File::open(directory.path().join("staged")).unwrap()), "hello\n");
        assert!(!program.has_ended());
        child.wait().unwrap();
    });
}

#[test]
fn what_a_full_target_did_not_take_is_kept_until_there_is_room() {
    if alone("left::what_a_full_target_did_not_take_is_kept_until_there_is_room") {
        return;
    }
    with_own_mounts(|root| {
        for via in staging() {
            let target = root.join(via.to_string());
            fs::create_dir(&target).unwrap();
            outcrop_testing::mount_memory(&target, c"size=1m");
            let mut command = outcrop_run_via(via, &target, "through", &["sh", "-c", "seq 1 300000 > large"]);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(99), "{errors}");
            assert!(errors.contains("StorageFull"), "{errors}");
            let kept = Kept::heard(&errors);
            let mut room = Command::new("mount");
            assert!(room.args(["-o", "remount,size=10m"]).arg(&target).status().unwrap().success());
            until("it is drained", || kept.has_ended());
            let expected = Command::new("seq").args(["1", "300000"]).output().unwrap().stdout;
            assert!(fs::read(target.join("large")).unwrap() == expected, "{via}");
            assert!(!has_mark(&target.join("large")));
        }
    });
}

#[test]
fn what_a_process_that_was_left_behind_writes_is_kept() {
    if !staging().contains(&Via::Preload) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mkfifo go;(exec 3> late;echo one >&3;read x < go;echo two >&3) > /dev/null 2>&1 < /dev/null &\
                  while [ ! -e late ];do sleep 0.01;done";
    let mut command = outcrop_run_via(Via::Preload, directory.path(), "through", &["sh", "-c", script]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(99), "{errors}");
    assert!(errors.contains("a process that still runs has it open"), "{errors}");
    let kept = Kept::heard(&errors);
    fs::write(directory.path().join("go"), "\n").unwrap();
    until("it has ended and is drained", || kept.has_ended());
    assert_eq!(fs::read(directory.path().join("late")).unwrap(), b"one\ntwo\n");
}

#[test]
fn a_target_that_fails_is_reported_in_each_way() {
    if alone("left::a_target_that_fails_is_reported_in_each_way") {
        return;
    }
    with_own_mounts(|root| {
        for via in [Via::Fuse, Via::Seccomp, Via::Preload] {
            let given = root.join(via.to_string());
            fs::create_dir(&given).unwrap();
            let disk = match Disk::make(&given, FileSystem::Ext4) {
                Ok(disk) => disk,
                Err(reason) => return skip(reason),
            };
            fails_in_the_middle(via, &disk);
            disk.power_up();
            assert_eq!(fs::read(disk.path().join("data/a")).unwrap(), b"before\n", "{via}");
        }
    });
}

fn fails_in_the_middle(via: Via, disk: &Disk) {
    let script = "echo before > a;sync a .;exec 3> b;echo lost >&3;echo ready;read x;sync b || echo not synced";
    let data = disk.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::File::open(disk.path()).unwrap().sync_all().unwrap();
    let mut command = outcrop_run_via(via, &data, "3600000", &["sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    hear(&mut output, "ready");
    disk.cut(Cut::Sudden);
    writeln!(child.stdin.take().unwrap()).unwrap();
    let (said, errors) = (rest(output), rest(child.stderr.take().unwrap()));
    assert!(said.contains("not synced"), "{via}: {said}{errors}");
    assert_eq!(child.wait().unwrap().code(), Some(99), "{via}: {errors}");
    assert!(errors.contains("data/b"), "{via}: {errors}");
    if via != Via::Fuse {
        drop(Kept::heard(&errors));
    }
}

#[test]
fn a_mount_that_another_namespace_has_a_copy_of_keeps_nobody_waiting() {
    scene(|root| {
        let ready = root.join("ready");
        // It ends when the test does.
        let copy = format!("touch {0}; while [ -e {0} ]; do sleep 0.05; done", ready.display());
        let script = format!(
            "unshare -m --propagation private sh -c '{copy}' > /dev/null 2>&1 & \
             while [ ! -e {} ]; do sleep 0.05; done; echo hello > file",
            ready.display()
        );
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        // The copy is made by somebody whose working directory is not below the mount.
        let script = format!("(cd /; {}); echo hello > file", script.replace("; echo hello > file", ""));
        let (outcome, output) = run_script(&script, &data, std::sync::Arc::new(outcrop_intercept::WriteThrough));
        fs::remove_file(&ready).unwrap();
        assert!(outcome.status.success() && outcome.undrained.is_empty(), "{output}");
        assert_eq!(fs::read(data.join("file")).unwrap(), b"hello\n");
    });
}
