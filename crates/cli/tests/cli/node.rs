//! `outcrop run` and `outcrop node`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::UnixStream,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use outcrop_testing::{mount_memory, skip, until, with_own_mounts};
use rustix::{
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, send,
        socket_with,
    },
    process::Signal,
};
use serde_json::Value;

use crate::common::{entries, outcrop};

/// Runs a command of `outcrop` with a daemon of its own in `place`.
fn of_node(directory: &Path, place: &Path, arguments: &[&str]) -> Output {
    let place = place.join("node");
    let (command, rest) = match arguments {
        ["run", rest @ ..] => (&["run"][..], rest),
        [node, command, rest @ ..] => (&[*node, *command][..], rest),
        _ => unreachable!("a command of the node"),
    };
    outcrop(directory, &[command, &["--directory", place.to_str().unwrap()], rest].concat())
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("{output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ends the daemon of a test, however the test ends.
struct Ends<'a>(&'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        of_node(self.0, self.0, &["node", "stop"]);
    }
}

#[test]
fn a_daemon_is_started_once_watched_and_stopped() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    let missing = run(&["node", "status"]);
    assert_eq!(code(&missing), 12, "{missing:?}");
    assert!(stderr(&missing).contains("outcrop node start"), "{missing:?}");
    let _ends = Ends(place.path());
    let started = run(&["node", "start", "--memory", "16 MiB"]);
    assert_eq!(code(&started), 0, "{started:?}");
    let again = run(&["node", "start"]);
    assert_eq!(code(&again), 18, "{again:?}");
    assert!(stderr(&again).contains("running already"), "{again:?}");
    let status: Value = serde_json::from_slice(&run(&["node", "status", "--json"]).stdout).unwrap();
    assert_eq!(status["limit_bytes"], 16 << 20);
    let metrics = String::from_utf8(run(&["node", "metrics"]).stdout).unwrap();
    assert!(metrics.contains("outcrop_node_limit_bytes 16777216"), "{metrics}");
    assert_eq!(code(&run(&["node", "drain"])), 0);
    assert!(stderr(&run(&["node", "top"])).contains("needs a terminal"));
    assert_eq!(code(&run(&["node", "stop"])), 0);
    assert_eq!(code(&run(&["node", "status"])), 12);
}

#[test]
fn wrong_wishes_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    for (arguments, expected, word) in [
        (&["node", "start", "--memory", "9999999 GiB"][..], 10, "lower limit"),
        (&["node", "start", "--memory", "1 KiB"], 10, "too few"),
        (&["node", "start", "--threads", "0"], 2, "--threads"),
        (&["node", "metrics", "--listen", "0.0.0.0:1"], 2, "loopback"),
        (&["node", "start", "--no-such-option"], 2, "--no-such-option"),
        (&["node", "start", "--trace", "/no/such/directory/t.json"], 17, "/no/such/directory/t.json"),
        (&["run", "--no-such-option", "--", "true"], 2, "--no-such-option"),
        (&["run", "--memory", "9999999 GiB", "--", "true"], 10, "lower limit"),
        (&["run", "--via", "magic", "--", "true"], 2, "magic"),
        (&["run", "--via", "seccomp", "--trace", "t.json", "--", "true"], 10, "--via fuse"),
        (&["run", "--under", "nowhere", "--", "true"], 10, "nowhere"),
        (&["run", "--exclude", "../a", "--", "true"], 2, "pattern"),
        (&["run"], 2, "PROGRAM"),
    ] {
        let output = run(arguments);
        assert_eq!(code(&output), expected, "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {output:?}");
    }
}

#[test]
fn a_program_ends_as_without_us_and_its_files_are_there() {
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    let place = tempfile::tempdir().unwrap();
    let work = tempfile::tempdir().unwrap();
    let _ends = Ends(place.path());
    for via in ["fuse", "seccomp"] {
        let run = |script: &str| {
            let options = ["run", "--memory", "16 MiB", "--via", via, "--", "sh", "-c", script];
            of_node(work.path(), place.path(), &options)
        };
        let output = run("echo one > a; mkdir d; head -c 3000000 /dev/zero > d/b; cat a; exit 3");
        assert_eq!(code(&output), 3, "{via}: {output:?}");
        assert_eq!(output.stdout, b"one\n", "{via}");
        assert_eq!(fs::read(work.path().join("a")).unwrap(), b"one\n", "{via}");
        assert!(fs::read(work.path().join("d/b")).unwrap() == vec![0; 3_000_000], "{via}");
        let killed = run("echo two > a; rm -r d; kill -USR2 $$");
        assert_eq!(killed.status.signal(), Some(Signal::USR2.as_raw()), "{via}: {killed:?}");
        assert_eq!(fs::read(work.path().join("a")).unwrap(), b"two\n", "{via}");
    }
    for via in ["fuse", "seccomp"] {
        let missing = of_node(work.path(), place.path(), &["run", "--via", via, "--", "no-such-program"]);
        assert_eq!(code(&missing), 127, "{missing:?}");
        assert!(stderr(&missing).contains("no-such-program"), "{missing:?}");
    }
}

#[test]
fn what_cannot_be_drained_is_named_and_tried_again() {
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    let place = tempfile::tempdir().unwrap();
    let _ends = Ends(place.path());
    with_own_mounts(|small| {
        mount_memory(small, c"size=1m");
        let script = ["run", "--memory", "16 MiB", "--", "sh", "-c", "head -c 3000000 /dev/zero > big; true"];
        let output = of_node(small, place.path(), &script);
        assert_eq!(code(&output), 17, "{output:?}");
        assert!(stderr(&output).contains("not drained") && stderr(&output).contains("big"), "{output:?}");
        let status = of_node(small, place.path(), &["node", "status"]);
        assert_eq!(code(&status), 17, "{status:?}");
        assert!(stderr(&status).contains("outcrop node drain"), "{status:?}");
        // There is room now.
        let again = Command::new("mount").args(["-o", "remount,size=16m"]).arg(small).status().unwrap();
        assert!(again.success());
        assert_eq!(code(&of_node(small, place.path(), &["node", "drain"])), 0);
        // `head` has got the error at some write. What was accepted before is there.
        let found = fs::read(small.join("big")).unwrap();
        assert!(found.len() > 1 << 20 && found.iter().all(|byte| *byte == 0), "{} bytes", found.len());
    });
}

#[test]
fn a_target_that_fills_up_is_named_without_a_daemon_too() {
    let place = tempfile::tempdir().unwrap();
    with_own_mounts(|small| {
        mount_memory(small, c"size=1m");
        let script = ["run", "--memory", "16 MiB", "--via", "seccomp", "--", "sh", "-c"];
        let script = [&script[..], &["head -c 3000000 /dev/zero > big; true"]].concat();
        let output = of_node(small, place.path(), &script);
        assert_eq!(code(&output), 17, "{output:?}");
        assert!(stderr(&output).contains("not drained") && stderr(&output).contains("big"), "{output:?}");
        // There is room now. The keeper, which has the bytes, drains them and ends.
        let again = Command::new("mount").args(["-o", "remount,size=16m"]).arg(small).status().unwrap();
        assert!(again.success());
        until("the keeper has drained", || fs::read(small.join("big")).unwrap() == vec![0; 3_000_000]);
    });
}

#[test]
fn a_daemon_of_another_version_is_told_from_none() {
    let place = tempfile::tempdir().unwrap();
    let node = place.path().join("node");
    fs::DirBuilder::new().mode(0o700).create(&node).unwrap();
    let alive = fs::File::create(node.join("alive")).unwrap();
    rustix::fs::fcntl_lock(&alive, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(node.join("socket")).unwrap()).unwrap();
    listen(&listener, 8).unwrap();
    const ASKED: usize = 3;
    let answers = std::thread::spawn(move || {
        for _ in 0..ASKED {
            let socket = accept(&listener).unwrap();
            // It begins as every message does: what it is, and the version of the protocol.
            let mut hello = [0; 4096];
            let (count, _) = recv(&socket, &mut hello, RecvFlags::empty()).unwrap();
            hello[2] = 99;
            send(&socket, &hello[..count], SendFlags::NOSIGNAL).unwrap();
        }
    });
    for arguments in [&["node", "status"][..], &["node", "start"], &["node", "stop"]] {
        let output = of_node(place.path(), place.path(), arguments);
        assert_eq!(code(&output), 18, "{arguments:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("protocol 99") && said.contains("outcrop node stop"), "{arguments:?}: {said}");
    }
    answers.join().unwrap();
}

#[test]
fn directories_of_others_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can act as another user");
    }
    const NOBODY: u32 = 65534;
    let place = tempfile::tempdir().unwrap();
    let node = place.path().join("node");
    fs::DirBuilder::new().mode(0o700).create(&node).unwrap();
    std::os::unix::fs::chown(&node, Some(NOBODY), None).unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    for arguments in [&["node", "start"][..], &["node", "status"], &["run", "--", "true"]] {
        let output = run(arguments);
        assert_eq!(code(&output), 10, "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains("belongs to another user"), "{arguments:?}: {output:?}");
    }
    // A directory of root's, for somebody else.
    let forbidden = place.path().join("forbidden");
    fs::DirBuilder::new().mode(0o700).create(&forbidden).unwrap();
    let inside = forbidden.join("node");
    let (inside, forbidden) = (inside.to_str().unwrap(), forbidden.to_str().unwrap());
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [
        &["node", "start", "--directory", inside][..],
        &["run", "--via", "seccomp", "--under", forbidden, "--", "touch", "a"],
        &["run", "--via", "seccomp", "--under", inside, "--", "touch", "a"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outcrop"));
        let output = match command.args(arguments).current_dir("/").uid(NOBODY).gid(NOBODY).output() {
            Err(error) => return skip(format_args!("another user cannot run the program: {error}")),
            Ok(output) => output,
        };
        assert_eq!(code(&output), 10, "{arguments:?}: {output:?}");
        let said = stderr(&output);
        assert!(said.contains("ermission denied") && said.contains("forbidden"), "{arguments:?}: {said}");
    }
}

/// What an HTTP server answers on a socket.
fn answered(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Metrics that are served, until this is dropped.
struct Serving(Child, String);

impl Serving {
    fn at(place: &Path, address: &str) -> Self {
        let node = place.join("node");
        let mut command = Command::new(env!("CARGO_BIN_EXE_outcrop"));
        command.args(["node", "metrics", "--listen", address, "--directory", node.to_str().unwrap()]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let address = said.trim_end().strip_prefix("metrics are at ").unwrap_or_else(|| panic!("{said:?}"));
        Self(child, address.to_owned())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn metrics_are_served_on_a_unix_socket_and_a_loopback_port() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| of_node(place.path(), place.path(), arguments);
    let _ends = Ends(place.path());
    assert_eq!(code(&run(&["node", "start", "--memory", "16 MiB"])), 0);
    let socket = place.path().join("metrics");
    let address = format!("unix:{}", socket.display());
    let unix = Serving::at(place.path(), &address);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let answer = answered(UnixStream::connect(&socket).unwrap(), "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
    assert!(head.ends_with("Connection: close") && head.contains(&format!("Content-Length: {}\r\n", body.len())));
    assert!(body.contains("\noutcrop_node_limit_bytes 16777216\n"), "{body}");
    assert!(body.contains("outcrop_node_client_granted_bytes{pid=\""), "{body}");
    assert!(answered(UnixStream::connect(&socket).unwrap(), "/other").starts_with("HTTP/1.1 404"));
    match Command::new("curl").args(["-sS", "--unix-socket"]).arg(&socket).arg("http://localhost/metrics").output() {
        Err(_) => skip("there is no curl"),
        Ok(output) => assert!(output.status.success() && output.stdout.starts_with(b"# HELP"), "{output:?}"),
    }
    let loopback = Serving::at(place.path(), "127.0.0.1:0");
    let port = loopback.1.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    assert!(answered(TcpStream::connect(port).unwrap(), "/").contains("outcrop_node_used_bytes"));
    // Where somebody listens, nobody else can; what a killed one has left is taken away.
    let taken = run(&["node", "metrics", "--listen", &address]);
    assert_eq!(code(&taken), 18, "{taken:?}");
    assert_eq!(code(&run(&["node", "metrics", "--listen", port])), 18);
    let missing = run(&["node", "metrics", "--listen", "unix:/no/such/directory/m"]);
    assert!(code(&missing) == 17 && stderr(&missing).contains("/no/such/directory/m"), "{missing:?}");
    drop(unix);
    assert!(socket.exists());
    let again = Serving::at(place.path(), &address);
    assert!(answered(UnixStream::connect(&socket).unwrap(), "/metrics").contains("outcrop_node_limit_bytes"));
    drop(again);
}

#[test]
fn a_run_leaves_a_timeline() {
    if let Err(reason) = outcrop_intercept::fuse::possible() {
        return skip(reason);
    }
    let (place, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _ends = Ends(place.path());
    let script = ["run", "--via", "fuse", "--memory", "16 MiB", "--trace", "trace.json", "--", "sh", "-c"];
    let script = [&script[..], &["head -c 3000000 /dev/zero > big"]].concat();
    let output = of_node(work.path(), place.path(), &script);
    assert_eq!(code(&output), 0, "{output:?}");
    // The daemon outlives the program for a while.
    let busy = of_node(work.path(), place.path(), &script);
    assert!(code(&busy) == 18 && stderr(&busy).contains("outcrop node stop"), "{busy:?}");
    assert_eq!(code(&of_node(work.path(), place.path(), &["node", "stop"])), 0);
    let trace: Value = serde_json::from_slice(&fs::read(work.path().join("trace.json")).unwrap()).unwrap();
    let names: Vec<_> = trace["traceEvents"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    for name in ["granted", "filled", "drained"] {
        assert!(names.iter().any(|found| *found == name), "{name} is not among {names:?}");
    }
}

#[test]
fn the_benchmark_of_the_node_runs() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--burst", "1 MiB", "--writes", "64KiB,1MiB", "--ranks", "1,2", "--drains", "1", "--files", "20"];
    let output = outcrop(directory.path(), &[&["bench", "node", "--json", "--rounds", "1"], &sizes[..]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["client_over_memcpy", "burst_over_plain_write", "overflow_over_plain_write", "drain_over_direct"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    assert!(entries(directory.path()).is_empty(), "nothing is left");
    assert_eq!(code(&outcrop(directory.path(), &["bench", "node", "--ranks", "0"])), 1);
}
