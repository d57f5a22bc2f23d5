//! Clients that do what they may not hurt only themselves.

use std::{
    fs,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use outcrop_format::{NodeFill, NodePart, NodeReply, NodeReplyKind, NodeRequest};
use outcrop_node::{Cached, Client};
use outcrop_testing::{pattern, until};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send};
use tempfile::tempdir;

use crate::{
    daemon::{client, new_file},
    starting::raw,
};

const MIB: u64 = 1 << 20;

fn say(socket: &OwnedFd, request: &NodeRequest, file: Option<BorrowedFd<'_>>) {
    let bytes = request.encode().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let _ = rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
}

/// The next answer; `None` if the connection was ended.
fn hear(socket: &OwnedFd) -> Option<NodeReplyKind> {
    let mut bytes = vec![0; 1 << 17];
    let mut heard = recv(socket, &mut bytes, RecvFlags::empty());
    if heard.is_err_and(|errno| errno == rustix::io::Errno::CONNRESET) {
        // The daemon has not read everything. Its last words come after this error.
        heard = recv(socket, &mut bytes, RecvFlags::empty());
    }
    match heard {
        Ok((0, _)) | Err(_) => None,
        Ok((count, _)) => Some(NodeReply::decode(&bytes[..count]).unwrap().kind),
    }
}

fn hello(line: u64) -> NodeRequest {
    NodeRequest::Hello { group: line, line, name: "hostile".to_owned() }
}

/// Connects, and opens a file.
fn enter(directory: &std::path::Path, line: u64) -> (OwnedFd, u64) {
    let socket = raw(directory);
    say(&socket, &hello(line), None);
    assert!(matches!(hear(&socket), Some(NodeReplyKind::Welcome { .. })));
    let file = new_file(&directory.join(format!("hostile-{line}")));
    say(&socket, &NodeRequest::Open { path: b"hostile".to_vec() }, Some(file.as_fd()));
    match hear(&socket) {
        Some(NodeReplyKind::Opened { file }) => (socket, file),
        other => panic!("{other:?}"),
    }
}

fn ask(socket: &OwnedFd, file: u64) -> u64 {
    say(socket, &NodeRequest::Ask { file, bytes: 8192 }, None);
    match hear(socket) {
        Some(NodeReplyKind::Granted { at, .. }) => at,
        other => panic!("{other:?}"),
    }
}

fn fill(file: u64, offset: u64, at: u64, bytes: u64, sums: Vec<u64>) -> NodeRequest {
    let part = NodePart { offset, at, bytes };
    NodeRequest::Fill(NodeFill { file, part, modified_ns: 0, ask_bytes: 0, sums })
}

fn is_refused(socket: &OwnedFd) -> bool {
    matches!(hear(socket), Some(NodeReplyKind::Refused { .. })) && hear(socket).is_none()
}

/// Runs `attack` while an honest client works, which must not notice.
fn beside_honest_work(attack: impl FnOnce(&std::path::Path, &Client)) {
    let directory = tempdir().unwrap();
    let client = client(directory.path(), 16 * MIB);
    let path = directory.path().join("honest");
    let file = client.open(new_file(&path), &path).unwrap();
    let bytes = pattern(1, 2 * MIB);
    file.write(0, &bytes[..MIB as usize]).unwrap();
    let before = client.status().unwrap().process;
    attack(directory.path(), &client);
    file.write(MIB, &bytes[MIB as usize..]).unwrap();
    file.drain().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    assert_eq!(client.status().unwrap().process, before, "the same daemon");
    until("all others are gone", || client.status().unwrap().clients.len() == 1);
}

#[test]
fn garbage_ends_the_connection() {
    beside_honest_work(|directory, _| {
        let mut rng = fastrand::Rng::with_seed(1);
        for nth in 0..200 {
            let socket = raw(directory);
            if nth % 2 == 0 {
                say(&socket, &hello(1000 + nth), None);
                assert!(hear(&socket).is_some());
            }
            let bytes: Vec<u8> = (0..rng.usize(1..300)).map(|_| rng.u8(..)).collect();
            let _ = send(&socket, &bytes, SendFlags::NOSIGNAL);
            assert!(is_refused(&socket), "{bytes:?}");
        }
        let socket = raw(directory);
        let _ = send(&socket, &vec![0; 100_000], SendFlags::NOSIGNAL);
        assert!(hear(&socket).is_none(), "a packet that is too long");
    });
}

#[test]
fn no_word_without_a_hello_and_only_one() {
    beside_honest_work(|directory, _| {
        let socket = raw(directory);
        say(&socket, &NodeRequest::Status, None);
        assert!(is_refused(&socket));
        let (socket, _) = enter(directory, 5);
        let thief = raw(directory);
        say(&thief, &hello(5), None);
        assert!(is_refused(&thief), "the number of another connection");
        say(&socket, &hello(6), None);
        assert!(is_refused(&socket));
    });
}

#[test]
fn memory_that_a_client_does_not_have_cannot_be_filled_or_returned() {
    beside_honest_work(|directory, _| {
        let (other, file_of_other) = enter(directory, 1);
        let taken = ask(&other, file_of_other);
        type Attempt = fn(u64, u64, u64) -> NodeRequest;
        let attempts: [(&str, Attempt); 6] = [
            ("of another", |file, _, taken| fill(file, 0, taken, 100, vec![0])),
            ("outside", |file, _, _| fill(file, 0, 1 << 40, 100, vec![0])),
            ("beyond the grant", |file, own, _| fill(file, 0, own, 1 << 20, vec![0; 16])),
            ("in another place of the page", |file, own, _| fill(file, 1, own, 100, vec![0])),
            ("returned", |_, _, taken| NodeRequest::Return { at: taken, bytes: 10 }),
            ("returned nothing", |_, own, _| NodeRequest::Return { at: own, bytes: 0 }),
        ];
        for (nth, (what, attempt)) in attempts.into_iter().enumerate() {
            let (socket, file) = enter(directory, 10 + nth as u64);
            let own = ask(&socket, file);
            say(&socket, &attempt(file, own, taken), None);
            assert!(is_refused(&socket), "{what}");
        }
        say(&other, &fill(file_of_other, 0, taken, 100, vec![0]), None);
        assert!(matches!(hear(&other), Some(NodeReplyKind::Granted { .. })), "the owner can still fill it");
        say(&other, &NodeRequest::Drain { file: file_of_other }, None);
        assert!(matches!(hear(&other), Some(NodeReplyKind::Failed { errno: 5, .. })), "with a wrong checksum");
        say(&other, &NodeRequest::Discard { file: file_of_other }, None);
        assert!(matches!(hear(&other), Some(NodeReplyKind::Done)));
    });
}

#[test]
fn a_wrong_checksum_is_an_error_of_that_file_alone() {
    beside_honest_work(|directory, client| {
        let (socket, file) = enter(directory, 1);
        let at = ask(&socket, file);
        say(&socket, &fill(file, 0, at, 100, vec![12345]), None);
        assert!(matches!(hear(&socket), Some(NodeReplyKind::Granted { .. })));
        say(&socket, &NodeRequest::Drain { file }, None);
        assert!(matches!(hear(&socket), Some(NodeReplyKind::Failed { errno: 5, .. })));
        let status = client.status().unwrap();
        let damaged = status.files.iter().find(|file| file.errno.is_some()).unwrap();
        assert_eq!((damaged.at_risk_bytes, damaged.errno), (100, Some(5)), "{status:?}");
        assert_eq!(fs::metadata(directory.join("hostile-1")).unwrap().len(), 0, "damage does not reach the file");
        say(&socket, &NodeRequest::Discard { file }, None);
        assert!(matches!(hear(&socket), Some(NodeReplyKind::Done)));
        assert!(client.status().unwrap().files.iter().all(|file| file.errno.is_none()));
    });
}

#[test]
fn who_never_reads_is_dropped() {
    beside_honest_work(|directory, _| {
        let (socket, file) = enter(directory, 1);
        for _ in 0..100_000 {
            let bytes = NodeRequest::Length { file }.encode().unwrap();
            if send(&socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
                .is_err_and(|errno| errno != rustix::io::Errno::AGAIN)
            {
                return;
            }
        }
        panic!("it is served for ever");
    });
}

#[test]
fn a_second_question_before_the_answer_ends_the_connection() {
    beside_honest_work(|directory, _| {
        // On a busy machine an answer may come before the next question: then nothing is wrong.
        let mut line = 0;
        until("a question too early is refused", || {
            line += 1;
            let (socket, file) = enter(directory, line);
            for _ in 0..3 {
                say(&socket, &NodeRequest::Verify { file }, None);
            }
            (0..3).map_while(|_| hear(&socket)).any(|answer| matches!(answer, NodeReplyKind::Refused { .. }))
        });
    });
}

#[test]
fn what_is_no_file_or_has_no_descriptor_cannot_be_opened() {
    beside_honest_work(|directory, _| {
        let (socket, _) = enter(directory, 1);
        let folder = fs::File::open(directory).unwrap();
        for file in [None, Some(folder.as_fd()), Some(socket.as_fd())] {
            say(&socket, &NodeRequest::Open { path: b"x".to_vec() }, file);
            assert!(matches!(hear(&socket), Some(NodeReplyKind::Failed { .. })));
        }
        say(&socket, &NodeRequest::Ask { file: 999, bytes: 1 }, None);
        assert!(matches!(hear(&socket), Some(NodeReplyKind::Failed { errno: 9, .. })), "a file that nobody knows");
    });
}

#[test]
fn a_client_of_another_protocol_is_told_what_to_do() {
    beside_honest_work(|directory, _| {
        let socket = raw(directory);
        let mut bytes = hello(1).encode().unwrap();
        bytes[2] = 9;
        send(&socket, &bytes, SendFlags::NOSIGNAL).unwrap();
        let Some(NodeReplyKind::Refused { reason }) = hear(&socket) else { panic!("it is not refused") };
        assert!(reason.contains("protocol 9") && reason.contains("outcrop node stop"), "{reason}");
    });
}
