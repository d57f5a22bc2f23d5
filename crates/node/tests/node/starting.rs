//! Who starts a daemon, and who may use it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use outcrop_format::{NodeReply, NodeReplyKind};
use outcrop_node::{Cached, Client, Connect, ServeOptions, serve};
use outcrop_testing::{amount, child, child_directory, skip};
use rustix::{
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
    process::{Uid, geteuid},
};
use tempfile::tempdir;

use crate::daemon::{client, connect, new_file};

const MIB: u64 = 1 << 20;

/// In a child: connects, and says which daemon it found.
#[test]
fn connects_and_waits() {
    let Some(directory) = child_directory() else { return };
    let client = client(&directory, 4 * MIB);
    let process = client.status().unwrap().process;
    fs::write(directory.join(format!("found-{}", std::process::id())), process.to_string()).unwrap();
    // The daemon leaves when nobody is connected: all wait for all.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn of_many_that_start_at_once_exactly_one_serves() {
    let directory = tempdir().unwrap();
    let count = amount(200, 500);
    let mut children: Vec<_> = (0..count)
        .map(|_| {
            let mut command = child("starting::connects_and_waits", directory.path());
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let found = || -> Vec<String> {
        let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let found = names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("found-"));
        found.map(|path| fs::read_to_string(path).unwrap()).filter(|text| !text.is_empty()).collect()
    };
    outcrop_testing::until("all are connected", || found().len() == count);
    let mut daemons = found();
    daemons.sort();
    daemons.dedup();
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    for child in &mut children {
        drop(child.stdin.take());
    }
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_second_daemon_leaves_at_once() {
    let directory = tempdir().unwrap();
    let first = client(directory.path(), 4 * MIB);
    let process = first.status().unwrap().process;
    let options = ServeOptions { directory: Some(directory.path().join("node")), ..ServeOptions::default() };
    serve(options).unwrap();
    assert_eq!(first.status().unwrap().process, process);
}

#[test]
fn without_a_program_nothing_is_started() {
    let directory = tempdir().unwrap();
    let asked = Connect { program: None, ..connect(directory.path(), 4 * MIB) };
    let error = Client::connect(&asked).err().unwrap();
    assert!(error.to_string().contains("outcrop node start"), "{error}");
    let missing = Connect { program: Some("/does/not/exist".into()), ..connect(directory.path(), 4 * MIB) };
    let error = Client::connect(&missing).err().unwrap();
    assert!(error.to_string().contains("/does/not/exist"), "{error}");
    let useless = Connect { program: Some("/bin/true".into()), ..connect(directory.path(), 4 * MIB) };
    let error = Client::connect(&useless).err().unwrap();
    assert!(error.to_string().contains("before it was ready"), "{error}");
}

#[test]
fn a_limit_that_the_machine_cannot_have_is_refused() {
    let directory = tempdir().unwrap();
    for (bytes, reason) in [(1 << 60, "give a lower limit"), (4096, "too few")] {
        let error = Client::connect(&connect(directory.path(), bytes)).err().unwrap().to_string();
        assert!(error.contains("does not start") && error.contains(reason), "{error}");
    }
}

#[test]
fn a_directory_that_others_may_use_is_refused() {
    let directory = tempdir().unwrap();
    let place = directory.path().join("node");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    let error = Client::connect(&connect(directory.path(), 4 * MIB)).err().unwrap().to_string();
    assert!(error.contains("chmod 700"), "{error}");
    fs::remove_dir(&place).unwrap();
    fs::write(&place, "").unwrap();
    let error = Client::connect(&connect(directory.path(), 4 * MIB)).err().unwrap().to_string();
    assert!(error.contains("not a directory"), "{error}");
    if !geteuid().is_root() {
        return skip("only root can make a directory of another user");
    }
    fs::remove_file(&place).unwrap();
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&place, Some(65534), None).unwrap();
    let error = Client::connect(&connect(directory.path(), 4 * MIB)).err().unwrap().to_string();
    assert!(error.contains("another user"), "{error}");
}

/// A raw connection to the daemon.
pub(crate) fn raw(directory: &Path) -> std::os::fd::OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let address = SocketAddrUnix::new(directory.join("node/socket")).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket
}

#[test]
fn a_daemon_of_another_protocol_is_told_from_a_broken_one() {
    let directory = tempdir().unwrap();
    let place = directory.path().join("node");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(place.join("socket")).unwrap()).unwrap();
    rustix::net::listen(&listener, 2).unwrap();
    let answers = std::thread::spawn(move || {
        let mut done = NodeReply::plain(NodeReplyKind::Done).encode().unwrap();
        for protocol in [2, 1] {
            done[2] = protocol;
            let socket = rustix::net::accept(&listener).unwrap();
            rustix::net::send(&socket, &done, rustix::net::SendFlags::NOSIGNAL).unwrap();
            let _ = rustix::net::recv(&socket, &mut [0; 1000], rustix::net::RecvFlags::empty());
        }
    });
    let error = Client::connect(&connect(directory.path(), 4 * MIB)).err().unwrap().to_string();
    assert!(error.contains("protocol 2") && error.contains("outcrop node stop"), "{error}");
    let error = Client::connect(&connect(directory.path(), 4 * MIB)).err().unwrap().to_string();
    assert!(error.contains("strangely"), "{error}");
    answers.join().unwrap();
}

/// In a child of another user: says what the daemon answers.
#[test]
fn asks_as_another_user() {
    let Some(directory) = child_directory() else { return };
    rustix::thread::set_thread_uid(Uid::from_raw(65534)).unwrap();
    let socket = raw(&directory);
    let mut answer = [0; 4096];
    let (count, _) = rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(answer.contains("it serves no other"), "{answer}");
}

#[test]
fn another_user_is_refused_even_where_the_directory_lets_him_in() {
    if !geteuid().is_root() {
        return skip("only root can act as another user");
    }
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 4 * MIB);
    let place = directory.path().join("node");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
    for (path, mode) in [(&place, 0o711), (&place.join("socket"), 0o666)] {
        let before = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(before & 0o077, 0, "{} is open to others by itself", path.display());
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    outcrop_testing::expect_success(child("starting::asks_as_another_user", directory.path()));
    assert!(client.status().is_ok());
}

/// Nobody could tell when such a client has died.
#[test]
fn a_client_whose_process_cannot_be_seen_is_refused() {
    if !geteuid().is_root() {
        return skip("only root can make a namespace of processes");
    }
    let directory = tempdir().unwrap();
    let mut connect = connect(directory.path(), 4 * MIB);
    let own = connect.program.replace("unshare".into()).unwrap();
    let before = ["--pid", "--fork", "--kill-child"].map(Into::into).into_iter().chain([own.into()]);
    connect.arguments = before.chain(connect.arguments).collect();
    let error = Client::connect(&connect).err().unwrap().to_string();
    assert!(error.contains("another container"), "{error}");
}

#[test]
fn a_daemon_has_its_own_session_and_none_of_the_clients_files() {
    let directory = tempdir().unwrap();
    let kept = new_file(&directory.path().join("kept"));
    // Programs that were not written in Rust have descriptors that are inherited.
    rustix::io::fcntl_setfd(&kept, rustix::io::FdFlags::empty()).unwrap();
    let client = client(directory.path(), 4 * MIB);
    let process = client.status().unwrap().process;
    let pid = rustix::process::Pid::from_raw(process as i32);
    // This process may belong to a session outside of its namespace: only the daemon is asked.
    assert_eq!(rustix::process::getsid(pid).ok(), pid, "it leads its own session");
    let links: Vec<_> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect();
    assert!(!links.iter().any(|link| link.ends_with("kept")), "{links:?}");
    assert_eq!(fs::read_link(format!("/proc/{process}/cwd")).unwrap(), Path::new("/"));
}

/// In a child: writes to a file, and ends without another word.
#[test]
fn writes_and_dies() {
    let Some(directory) = child_directory() else { return };
    let client = client(&directory, 16 * MIB);
    let path = directory.join("file");
    let file = client.open(new_file(&path), &path).unwrap();
    file.write(0, &outcrop_testing::pattern(5, 3 * MIB)).unwrap();
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(0) };
}

#[test]
fn what_a_dead_client_has_written_is_drained() {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 16 * MIB);
    let mut command: Command = child("starting::writes_and_dies", directory.path());
    assert!(command.stdout(Stdio::null()).status().unwrap().success());
    client.drain_all().unwrap();
    assert!(fs::read(directory.path().join("file")).unwrap() == outcrop_testing::pattern(5, 3 * MIB));
    outcrop_testing::until("the dead client is forgotten", || client.status().unwrap().clients.len() == 1);
}
