//! What is special about staged files.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, Command, Stdio},
};

use outcrop_intercept::{Fsync, RunOptions, Via, WriteThrough, run};
use outcrop_testing::{alone, until, with_own_mounts};

use crate::{
    command::{FSYNC_MEMORY, MEMORY, REPORT, outcrop_run_via},
    left::Kept,
    scene::{compare_in, has, options_via, shell, staging},
};

const CALLS: &str = include_str!("calls.c");

/// Writes and compiles a program beside the directory that is compared.
pub(crate) fn compile(source: &str, flags: &[&str]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.c"), source).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-w", "-O1", "-o", "a.out", "a.c"]).args(flags).current_dir(&directory);
    assert!(command.status().unwrap().success());
    directory
}

#[test]
fn calls_of_a_dynamic_program_do_what_they_do_natively() {
    if has(&["gcc"]) {
        let program = compile(CALLS, &[]);
        // A mount of this kind has no files without a name.
        let program = program.path().join("a.out");
        compare_in("echo 0123456789 > existing", program.to_str().unwrap(), |via| via != Via::Fuse);
    }
}

#[test]
fn calls_of_a_static_program_do_what_they_do_natively() {
    if has(&["gcc"]) {
        let program = compile(CALLS, &["-static"]);
        // A mount of this kind has no files without a name.
        let program = program.path().join("a.out");
        compare_in("echo 0123456789 > existing", program.to_str().unwrap(), |via| via != Via::Fuse);
    }
}

/// A shell whose files are staged and that does what it is told.
pub(crate) struct Told {
    pub(crate) child: Child,
    directory: tempfile::TempDir,
}

impl Told {
    fn start(via: Via) -> Self {
        Self::start_with(via, 1 << 30)
    }

    pub(crate) fn start_with(via: Via, memory: u64) -> Self {
        Self::start_as(via, |command| command.env(MEMORY, memory.to_string()))
    }

    pub(crate) fn start_as(via: Via, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut command = outcrop_run_via(via, directory.path(), "through", &["sh"]);
        change(&mut command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self { child, directory }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Says a line, and waits until it is done.
    pub(crate) fn say(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}\necho done.").unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"done.\n") {
            let mut byte = [0];
            self.child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
        let heard = String::from_utf8(heard).unwrap();
        heard.rsplit_once("done.").unwrap().0.trim_start_matches("\nrunning 1 test\n").to_owned()
    }

    /// How many bytes the real file has, without opening it.
    pub(crate) fn real_bytes(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }

    pub(crate) fn end(mut self) -> i32 {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code().unwrap()
    }
}

pub(crate) fn in_each_way(test: fn(Via)) {
    staging().into_iter().for_each(test);
}

pub(crate) fn has_mark(path: &Path) -> bool {
    let mut value = Vec::with_capacity(16);
    rustix::fs::getxattr(path, "user.outcrop.undrained", rustix::buffer::spare_capacity(&mut value)).is_ok()
}

#[test]
fn bytes_are_in_memory_until_the_file_is_closed() {
    in_each_way(|via| {
        let mut told = Told::start(via);
        told.say("exec 3> out; echo hello >&3");
        assert_eq!(told.real_bytes("out"), 0, "it is not staged");
        assert_eq!(told.say("cat out; wc -c < out; stat -c %s out"), "hello\n6\n6\n");
        let path = told.path("out");
        until("the file is marked", || has_mark(&path));
        assert_eq!(told.say("getfattr -d out"), "", "the mark is seen by the program");
        told.say("exec 3>&-");
        until("the file is drained", || told.real_bytes("out") == 6);
        until("the mark is gone", || !has_mark(&path));
        assert_eq!(fs::read(&path).unwrap(), b"hello\n");
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn whoever_opens_the_real_file_sees_what_is_in_memory() {
    in_each_way(|via| {
        let mut told = Told::start(via);
        told.say("exec 3> out; echo hello >&3");
        assert_eq!(told.real_bytes("out"), 0);
        assert_eq!(fs::read(told.path("out")).unwrap(), b"hello\n");
        told.say("echo more >&3; exec 3>&-");
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn fsync_and_a_rename_that_replaces_bring_the_bytes_to_the_file() {
    in_each_way(|via| {
        let mut told = Told::start(via);
        told.say("exec 3> out; echo hello >&3; sync out");
        assert_eq!(told.real_bytes("out"), 6, "sync");
        told.say("echo old > state; exec 4> new; echo content >&4");
        assert_eq!(told.real_bytes("new"), 0);
        told.say("mv new state");
        assert_eq!(told.real_bytes("state"), 8, "rename");
        told.say("exec 5> plain; echo content >&5; mv plain first");
        assert_eq!(told.real_bytes("first"), 0, "a rename that replaces nothing need not wait");
        assert_eq!(told.end(), 0);
        // The shell has closed everything by ending.
    });
}

#[test]
fn fsync_to_memory_stays_in_memory() {
    in_each_way(|via| {
        let mut told = Told::start_as(via, |command| command.env(FSYNC_MEMORY, "1"));
        told.say("exec 3> out; echo hello >&3; sync out; sync");
        assert_eq!(told.real_bytes("out"), 0);
        told.say("echo old > state; exec 4> new; echo content >&4; mv new state");
        assert_eq!(told.real_bytes("state"), 8, "a rename that replaces comes after the bytes");
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn what_is_in_memory_is_reported() {
    in_each_way(|via| {
        let mut told = Told::start_as(via, |command| command.env(REPORT, "1").stderr(Stdio::piped()));
        told.say("exec 3> out; head -c 200000 /dev/zero >&3");
        let mut reports = BufReader::new(told.child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let is_right = |line: &String| line.contains("files: 1,") && line.contains("failed: 0");
        let line = reports.find(is_right).expect("nothing is reported");
        let bytes = line.split("bytes: ").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap();
        assert!((200_000..300_000).contains(&bytes), "{line}");
        std::thread::spawn(move || reports.count());
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn two_runs_append_to_one_log() {
    in_each_way(|via| {
        let directory = tempfile::tempdir().unwrap();
        let script = "exec 3>> log;i=0;while [ $i -lt 300 ];do echo $0 $i >&3;i=$((i+1));done";
        let start = |name| {
            let mut command = outcrop_run_via(via, directory.path(), "through", &["sh", "-c", script, name]);
            command.stdout(Stdio::null()).spawn().unwrap()
        };
        for mut child in ["one", "two"].map(start) {
            assert!(child.wait().unwrap().success());
        }
        let mut lines: Vec<_> =
            fs::read_to_string(directory.path().join("log")).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), 600);
    });
}

const SET_TIMES: &str = "import os
for i in range(400):
    f = os.open('f%d' % i, os.O_CREAT | os.O_WRONLY); os.write(f, b'x' * (i * 100)); os.close(f)
    os.utime('f%d' % i, (1000, 1000 + i))";

#[test]
fn times_that_are_set_while_a_file_is_drained_stay() {
    if !has(&["python3"]) {
        return;
    }
    in_each_way(|via| {
        let mut told = Told::start(via);
        fs::write(told.path("script"), SET_TIMES).unwrap();
        told.say("python3 script");
        told.say("rm script; sync");
        let modified = |i: i64| fs::metadata(told.path(&format!("f{i}"))).unwrap().mtime();
        let lost: Vec<_> = (0..400).filter(|&i| modified(i) != 1000 + i).collect();
        assert!(lost.is_empty(), "{lost:?}");
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn a_file_that_a_stranger_has_open_is_not_staged() {
    in_each_way(|via| {
        let mut told = Told::start(via);
        fs::write(told.path("log"), "start\n").unwrap();
        let mut reader = fs::File::open(told.path("log")).unwrap();
        told.say("exec 3<> log; echo start >&3; echo line >&3");
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "start\nline\n");
        assert_eq!(told.end(), 0);
    });
}

#[test]
fn bytes_survive_the_supervisor() {
    in_each_way(|via| {
        let mut told = Told::start(via);
        told.say("exec 3> open; echo hello >&3; exec 4> other; seq 1 100000 >&4");
        assert_eq!(told.real_bytes("open"), 0);
        told.child.kill().unwrap();
        // The shell lost its input, and ends.
        drop(told.child.stdin.take());
        until("both are drained", || told.real_bytes("open") == 6 && told.real_bytes("other") == 588_895);
        until("both are closed", || !has_mark(&told.path("open")));
        assert_eq!(fs::read(told.path("open")).unwrap(), b"hello\n");
        told.child.wait().unwrap();
    });
}

#[test]
fn a_target_that_is_full_is_reported_and_nothing_is_lost_silently() {
    if alone("staged::a_target_that_is_full_is_reported_and_nothing_is_lost_silently") {
        return;
    }
    with_own_mounts(|root| {
        outcrop_testing::mount_memory(root, c"size=1m");
        let script = "head -c 3000000 /dev/zero > large; echo $?; exec 3> second; head -c 2000000 /dev/zero >&3
                      sync second 2>/dev/null || echo not synced; exec 3>&-; rm second
                      i=0; while cat large > /dev/null 2>&1 && [ $i -lt 3000 ]; do i=$((i+1)); done
                      [ $i -lt 3000 ] && echo told
                      # It is tried again meanwhile, and each failure is said to whoever opens it next.
                      i=0; while ! wc -c < large && [ $i -lt 3000 ]; do i=$((i+1)); done";
        let output = root.with_extension("output");
        let mut command = shell(script, root);
        command.stdout(fs::File::create(&output).unwrap());
        let outcome = run(options_via(Via::Seccomp, root, std::sync::Arc::new(WriteThrough)), command, |_| {}).unwrap();
        assert!(outcome.status.success());
        assert_eq!(fs::read_to_string(&output).unwrap(), "0\nnot synced\ntold\n3000000\n");
        fs::remove_file(&output).unwrap();
        let [undrained] = &outcome.undrained[..] else { panic!("{:?}", outcome.undrained) };
        assert!(undrained.path.ends_with("large"), "{undrained:?}");
        assert_eq!(undrained.error.raw_os_error(), Some(libc::ENOSPC));
        assert!(fs::metadata(root.join("large")).unwrap().len() < 3_000_000);
        drop(Kept(outcome.keeper.unwrap()));
    });
}

#[test]
fn a_lease_that_is_wanted_back_ends_nobody() {
    if alone("staged::a_lease_that_is_wanted_back_ends_nobody") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    run_with_memory("echo a > a; kill -s IO $PPID; echo b > b", directory.path(), 4 << 20);
    assert_eq!(fs::read(directory.path().join("b")).unwrap(), b"b\n");
}

fn run_with_memory(script: &str, directory: &Path, memory: u64) {
    let cache = std::sync::Arc::new(WriteThrough);
    let options = RunOptions { memory, fsync: Fsync::Disk, ..options_via(Via::Seccomp, directory, cache) };
    let outcome = run(options, shell(script, directory), |_| {}).unwrap();
    assert!(outcome.status.success() && outcome.undrained.is_empty(), "{outcome:?}");
}

#[test]
fn a_file_that_outgrows_the_memory_goes_on_in_the_real_file() {
    let directory = tempfile::tempdir().unwrap();
    let script = "head -c 20000000 /dev/urandom > source
        dd if=source of=copy bs=2M status=none; cmp source copy
        (dd if=source bs=2M status=none; echo tail) > shared; head -c 20000000 shared | cmp - source; tail -n 1 shared | tail -c 5
        dd if=source of=copy bs=3M oflag=append conv=notrunc status=none; stat -c %s copy";
    run_with_memory(script, directory.path(), 4 << 20);
    assert_eq!(fs::metadata(directory.path().join("copy")).unwrap().len(), 40_000_000);
}

#[test]
fn memory_is_given_back_when_a_file_outgrows_it() {
    let mut told = Told::start_with(Via::Seccomp, 4 << 20);
    told.say("mkfifo pipe; dd if=pipe of=out bs=1M iflag=fullblock status=none & exec 3> pipe");
    told.say("head -c 3145728 /dev/zero >&3");
    assert_eq!(told.real_bytes("out"), 0, "it is not staged");
    told.say("head -c 3145728 /dev/zero >&3");
    until("the file has left the memory", || told.real_bytes("out") == 6 << 20);
    told.say("printf end >&3; exec 3>&-; wait");
    assert_eq!(told.real_bytes("out"), (6 << 20) + 3);
    assert_eq!(told.end(), 0);
}

#[test]
fn a_file_that_is_synced_often_leaves_the_memory() {
    if !has(&["python3"]) {
        return;
    }
    let mut told = Told::start(Via::Seccomp);
    let script = "import os, time; f = os.open('out', os.O_RDWR | os.O_CREAT)
for i in range(4): os.write(f, b'x' * 10); os.fsync(f); print(os.stat('out').st_size, os.fstat(f).st_size, flush=True)
os.write(f, b'last'); os.lseek(f, 0, 0); print(len(os.read(f, 100)), flush=True); os.read(0, 1)";
    fs::write(told.path("script"), script).unwrap();
    told.say("mkfifo pipe; python3 script < pipe > log & exec 3> pipe");
    until("what was written after the syncs is in the real file", || {
        fs::metadata(told.path("out")).is_ok_and(|metadata| metadata.len() == 44)
    });
    told.say("exec 3>&-; wait");
    assert_eq!(told.end(), 0);
}

#[test]
fn many_small_files_from_many_processes_fit_into_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    let count = outcrop_testing::amount(300, 25_000);
    let script = format!(
        "for p in 1 2 3 4; do (i=0; while [ $i -lt {count} ]; do echo $p $i > f$p-$i; i=$((i+1)); done) & done; wait"
    );
    run_with_memory(&script, directory.path(), 64 << 10);
    let names = outcrop_testing::names(directory.path());
    assert_eq!(names.len(), 4 * count);
    for name in names {
        let expected = name[1..].replace('-', " ") + "\n";
        assert_eq!(fs::read_to_string(directory.path().join(&name)).unwrap(), expected, "{name}");
    }
}

/// A thread changes the name while another one opens it.
const HOSTILE: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char path[64] = "aaaa";
static volatile int over;
static void *change(void *none) {
    while (!over) { memcpy(path, "aaaa", 4); memcpy(path, "bbbb", 4); memcpy(path, "/tmp", 4); memcpy(path, "sub/", 4); }
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, change, 0);
    for (int i = 0; i < 3000; i++) {
        int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (file >= 0) { if (write(file, "x", 1) != 1) return 1; close(file); }
    }
    over = 1;
    pthread_join(thread, 0);
    return 0;
}
"#;

#[test]
fn a_program_that_changes_its_paths_hurts_only_itself() {
    if !has(&["gcc"]) {
        return;
    }
    let program = compile(HOSTILE, &["-pthread"]);
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    run_with_memory(program.path().join("a.out").to_str().unwrap(), directory.path(), 1 << 20);
    for entry in fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.iter().all(|&byte| byte == b'x'), "{}", path.display());
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
    }
}

/// The other tests, as somebody without privileges.
#[test]
fn all_of_it_works_without_privileges() {
    if rustix::process::geteuid().is_root() {
        with_own_mounts(without_privileges);
    }
}

fn without_privileges(directory: &Path) {
    let own = std::env::current_exe().unwrap();
    // The build directory may be closed to others.
    let copy = directory.join("tests");
    fs::copy(own, &copy).unwrap();
    if let Some(library) = outcrop_intercept::preload::library() {
        fs::copy(&library, directory.join(library.file_name().unwrap())).unwrap();
    }
    // Most systems let everybody use FUSE; this one may not.
    let device = directory.join("fuse");
    let number = rustix::fs::makedev(10, 229);
    let everybody = rustix::fs::Mode::from_raw_mode(0o666);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, &device, kind, everybody, number).unwrap();
    rustix::fs::chmod(&device, everybody).unwrap();
    rustix::mount::mount_bind(&device, "/dev/fuse").unwrap();
    let mut command = Command::new("chmod");
    assert!(command.arg("777").arg(directory).status().unwrap().success());
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
    command.args(["staged::", "programs::", "faults::", "--test-threads=2"]);
    for needs_privileges in ["a_target_that_is_full", "owners", "own_what_they_create"] {
        command.args(["--skip", needs_privileges]);
    }
    // Not what only this user may enter.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("TMPDIR", directory).current_dir(directory).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(" 0 passed"), "{text}");
}
