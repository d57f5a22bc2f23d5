//! Connections: who may connect, and what they say.

use std::{
    collections::BTreeMap,
    io,
    num::NonZeroU32,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
};

use outcrop_format::{NODE_PROTOCOL, NodeFailure, NodeReply, NodeReplyKind, NodeRequest};
use outcrop_grants::{ClientId, Event, FileId, Request};
use outcrop_local::Peer;
use rustix::{
    event::epoll,
    io::Errno,
    net::{RecvFlags, SocketFlags, accept_with},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::Daemon;
use crate::{
    status::{ClientStatus, FileStatus, Status},
    target::Target,
    wire::{self, Packet},
    workers::Work,
};

/// More connections are refused: each takes a descriptor.
const CONNECTIONS_MAX: usize = 16 << 10;

/// A connection.
pub(crate) struct Connection {
    pub(crate) socket: OwnedFd,
    process: u32,
    /// What it has said first.
    hello: Option<Hello>,
    is_doomed: bool,
    pub(crate) is_verifying: bool,
}

struct Hello {
    line: ClientId,
    group: u64,
    name: String,
}

impl Daemon {
    /// Accepts connections of this user.
    pub(super) fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let Ok(peer) = Peer::of(&socket) else { continue };
            let own = rustix::process::geteuid().as_raw();
            let reason = if peer.user != own {
                Some(format!("this is the daemon of user {own}, and it serves no other: start your own"))
            } else if peer.process.is_none() {
                // Nobody could tell when it has died, and when its memory is free.
                Some("this daemon runs in another container: start one in yours, with its own directory".to_owned())
            } else if self.connections.len() >= CONNECTIONS_MAX {
                Some(format!("the daemon has {CONNECTIONS_MAX} connections already: end some"))
            } else {
                None
            };
            let process = peer.process.map_or(0, NonZeroU32::get);
            let token = self.next_token;
            self.next_token += 1;
            let data = epoll::EventData::new_u64(token);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            if epoll::add(&self.epoll, &socket, data, flags).is_err() {
                continue;
            }
            let connection = Connection { socket, process, hello: None, is_doomed: false, is_verifying: false };
            self.connections.insert(token, connection);
            if let Some(reason) = reason {
                self.refuse(token, reason);
            }
        }
    }

    fn refuse(&mut self, token: u64, reason: String) {
        self.reply(token, &NodeReply::plain(NodeReplyKind::Refused { reason }), &[]);
        self.doom(token);
    }

    /// The connection ends after what is being done.
    pub(super) fn doom(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token)
            && !std::mem::replace(&mut connection.is_doomed, true)
        {
            self.doomed.push(token);
        }
    }

    pub(super) fn drop_doomed(&mut self) -> io::Result<()> {
        while let Some(token) = self.doomed.pop() {
            self.drop_connection(token)?;
        }
        Ok(())
    }

    fn drop_connection(&mut self, token: u64) -> io::Result<()> {
        let Some(connection) = self.connections.remove(&token) else { return Ok(()) };
        let Some(hello) = connection.hello else { return Ok(()) };
        if self.lines.get(&hello.line) == Some(&token) {
            self.lines.remove(&hello.line);
            self.timeline.left(hello.line);
            self.tell(Event::Left { client: hello.line })?;
        }
        let is_last =
            !self.connections.values().any(|other| other.hello.as_ref().is_some_and(|it| it.group == hello.group));
        if is_last && let Some(files) = self.groups.remove(&hello.group) {
            for file in files.into_keys() {
                self.tell(Event::Closed { file })?;
            }
        }
        Ok(())
    }

    /// A connection has something to say, or has ended.
    pub(super) fn hear(&mut self, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        // A client that waits for an answer says no more. If it has, it is heard again at once. Of
        // one that is gone, everything is heard now.
        let is_gone = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR);
        for _ in 0..if is_gone { 64 } else { 1 } {
            let Some(connection) = self.connections.get(&token).filter(|connection| !connection.is_doomed) else {
                return Ok(());
            };
            match wire::receive(&connection.socket, RecvFlags::DONTWAIT) {
                Ok(Some(packet)) => self.handle(token, packet)?,
                Ok(None) => {
                    self.doom(token);
                    return Ok(());
                }
                Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => break,
                Err(error) => {
                    tracing::debug!(%error, "a connection broke");
                    self.doom(token);
                    return Ok(());
                }
            }
        }
        if flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            self.doom(token);
        }
        Ok(())
    }

    fn handle(&mut self, token: u64, packet: Packet) -> io::Result<()> {
        let request = match NodeRequest::decode(&packet.bytes) {
            Ok(request) => request,
            Err(outcrop_format::Error::Format { found, .. }) => {
                self.refuse(
                    token,
                    format!(
                        "the daemon speaks protocol {NODE_PROTOCOL} and this program protocol {found}: stop the daemon \
                         (outcrop node stop), or use the Outcrop that started it"
                    ),
                );
                return Ok(());
            }
            Err(error) => {
                self.refuse(token, format!("the daemon does not understand: {error}"));
                return Ok(());
            }
        };
        let line = self.connections.get(&token).and_then(|it| it.hello.as_ref()).map(|hello| hello.line);
        match (line, request) {
            (None, NodeRequest::Hello { group, line, name }) => self.greet(token, group, line, name),
            (None, _) | (Some(_), NodeRequest::Hello { .. }) => {
                self.refuse(token, "a connection begins with one hello".to_owned());
                Ok(())
            }
            (Some(line), request) => self.serve(token, line, request, packet.descriptors),
        }
    }

    fn greet(&mut self, token: u64, group: u64, line: ClientId, name: String) -> io::Result<()> {
        if self.lines.contains_key(&line) {
            self.refuse(token, "this connection exists already".to_owned());
            return Ok(());
        }
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let process = connection.process;
        self.timeline.joined(line, &name, process, token);
        connection.hello = Some(Hello { line, group, name });
        self.lines.insert(line, token);
        self.absent.retain(|_, (_, client)| *client != line);
        self.tell(Event::Joined { client: line, process })?;
        let kind = NodeReplyKind::Welcome {
            generation: self.generation,
            nonce: self.journal.header().nonce,
            reserve_bytes: self.reserve.bytes(),
            granted: self.grants.granted_to(line),
        };
        let (reserve, journal) = (std::sync::Arc::clone(&self.reserve), self.journal_to_read.try_clone()?);
        self.reply(token, &NodeReply::plain(kind), &[reserve.descriptor(), journal.as_fd()]);
        Ok(())
    }

    fn serve(&mut self, token: u64, client: ClientId, request: NodeRequest, files: Vec<OwnedFd>) -> io::Result<()> {
        let request = match request {
            NodeRequest::Hello { .. } => return Ok(()),
            NodeRequest::Open { path } => return self.open(token, path, files),
            NodeRequest::Close { file } => return self.close(token, file),
            NodeRequest::Release => return self.tell(Event::Released { client }),
            NodeRequest::Return { at, bytes } => {
                return self.tell(Event::Returned { client, range: at..at.saturating_add(bytes) });
            }
            NodeRequest::Verify { file } => return self.verify(token, client, file),
            NodeRequest::Status => return self.send_status(token),
            NodeRequest::Limit { bytes } => {
                self.health.limit(bytes);
                self.tell(Event::Limit { bytes })?;
                self.reply(token, &NodeReply::plain(NodeReplyKind::Done), &[]);
                return Ok(());
            }
            NodeRequest::Stop => {
                if self.grants.is_idle() {
                    self.is_over = true;
                    self.reply(token, &NodeReply::plain(NodeReplyKind::Done), &[]);
                } else {
                    let reason = "something is cached: drain it first (outcrop node drain)".to_owned();
                    let errno = Errno::BUSY.raw_os_error() as u32;
                    self.reply(token, &NodeReply::plain(NodeReplyKind::Failed { errno, reason }), &[]);
                }
                return Ok(());
            }
            NodeRequest::Ask { file, bytes } => Request::Ask { file, bytes },
            NodeRequest::Fill(fill) => Request::Fill(fill),
            NodeRequest::Read { file, offset, bytes } => Request::Read { file, offset, bytes },
            NodeRequest::Length { file } => Request::Length { file },
            NodeRequest::SetBytes { file, bytes } => Request::SetBytes { file, bytes },
            NodeRequest::SetTimes { file, accessed_ns, modified_ns } => {
                Request::SetTimes { file, accessed_ns, modified_ns }
            }
            NodeRequest::Drain { file } => Request::Drain { file },
            NodeRequest::Sync { file } => Request::Sync { file },
            NodeRequest::DrainAll => Request::DrainAll,
            NodeRequest::Discard { file } => Request::Discard { file },
        };
        self.timeline.requested(client, &request, &self.files);
        self.tell(Event::Requested { client, request })?;
        self.timeline.served();
        Ok(())
    }

    fn open(&mut self, token: u64, path: Vec<u8>, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match self.try_open(token, path, descriptors)? {
            Ok(file) => {
                let failure = self.grants.failure_of(file);
                self.reply(token, &NodeReply { failure, kind: NodeReplyKind::Opened { file } }, &[]);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()) as u32;
                let reason = format!("the daemon cannot use the file: {error}");
                let failure = NodeFailure::default();
                self.reply(token, &NodeReply { failure, kind: NodeReplyKind::Failed { errno, reason } }, &[]);
            }
        }
        Ok(())
    }

    fn try_open(&mut self, token: u64, path: Vec<u8>, files: Vec<OwnedFd>) -> io::Result<io::Result<FileId>> {
        let Some(descriptor) = files.into_iter().next() else {
            return Ok(Err(io::Error::from(Errno::BADF)));
        };
        let is_file = rustix::fs::fstat(&descriptor)
            .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile);
        let identity = match (is_file, Target::identity(&descriptor)) {
            (Ok(true), Ok(identity)) => identity,
            _ => return Ok(Err(io::Error::from(Errno::INVAL))),
        };
        let (device, inode) = identity;
        let known = self.files.find(identity);
        let file = known.unwrap_or_else(|| self.files.new_id());
        let is_open = self.files.target(file).is_some();
        if !is_open {
            let target = match Target::new(descriptor, PathBuf::from(std::ffi::OsString::from_vec(path.clone()))) {
                Ok(target) => target,
                Err(error) => return Ok(Err(error)),
            };
            self.files.insert(file, identity, target);
        }
        let Some(group) = self.connections.get(&token).and_then(|it| it.hello.as_ref()).map(|it| it.group) else {
            return Ok(Err(io::Error::from(Errno::NOTCONN)));
        };
        let count = self.groups.entry(group).or_default().entry(file).or_insert(0);
        *count += 1;
        if *count == 1 {
            self.tell(Event::Opened { file, device, inode, path })?;
        }
        if known.is_some() && !is_open {
            self.tell(Event::Reached { file })?;
        }
        Ok(Ok(file))
    }

    fn close(&mut self, token: u64, file: FileId) -> io::Result<()> {
        let group = self.connections.get(&token).and_then(|it| it.hello.as_ref()).map(|it| it.group);
        let Some(files) = group.and_then(|group| self.groups.get_mut(&group)) else { return Ok(()) };
        let Some(count) = files.get_mut(&file) else { return Ok(()) };
        *count -= 1;
        if *count == 0 {
            files.remove(&file);
            self.tell(Event::Closed { file })?;
        }
        Ok(())
    }

    fn verify(&mut self, token: u64, client: ClientId, file: FileId) -> io::Result<()> {
        let Some(target) = self.files.target(file) else {
            let (errno, reason) = (Errno::BADF.raw_os_error() as u32, "the file is not open".to_owned());
            self.reply(token, &NodeReply::plain(NodeReplyKind::Failed { errno, reason }), &[]);
            return Ok(());
        };
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        if std::mem::replace(&mut connection.is_verifying, true) {
            self.refuse(token, "it asked again before it had an answer".to_owned());
            return Ok(());
        }
        let pieces = self.files.sums(file);
        self.workers.push(target, Work::Verify { client, pieces });
        Ok(())
    }

    /// The status comes as a file in memory, because it can be long.
    fn send_status(&mut self, token: u64) -> io::Result<()> {
        let text = serde_json::to_vec(&self.status()).map_err(io::Error::other)?;
        let memfd = rustix::fs::memfd_create("outcrop-status", rustix::fs::MemfdFlags::CLOEXEC)?;
        let file = std::fs::File::from(memfd);
        std::os::unix::fs::FileExt::write_all_at(&file, &text, 0)?;
        self.reply(token, &NodeReply::plain(NodeReplyKind::Done), &[file.as_fd()]);
        Ok(())
    }

    fn status(&self) -> Status {
        let figures = self.grants.figures();
        let names: BTreeMap<ClientId, &str> = self
            .connections
            .values()
            .filter_map(|connection| connection.hello.as_ref())
            .map(|hello| (hello.line, hello.name.as_str()))
            .collect();
        let client = |(id, it): (&ClientId, &outcrop_grants::ClientFigures)| ClientStatus {
            process: it.process,
            name: names.get(id).copied().unwrap_or("(absent)").to_owned(),
            granted_bytes: it.granted_bytes,
            at_risk_bytes: it.filled_bytes,
            draining_bytes: it.draining_bytes,
            filled_total_bytes: it.filled_total_bytes,
            drained_total_bytes: it.drained_total_bytes,
            is_waiting: it.is_waiting,
        };
        let file = |it: &outcrop_grants::FileFigures| FileStatus {
            path: String::from_utf8_lossy(&it.path).into_owned(),
            at_risk_bytes: it.filled_bytes,
            error: it.errno.map(|errno| io::Error::from_raw_os_error(errno as i32).to_string()),
            errno: it.errno,
            failures: it.failures,
        };
        Status {
            process: std::process::id(),
            generation: self.generation,
            limit_bytes: figures.limit_bytes,
            used_bytes: figures.used_bytes,
            touched_bytes: self.reserve.provided_bytes().unwrap_or(figures.touched_bytes),
            at_risk_bytes: figures.filled_bytes,
            draining_bytes: figures.draining_bytes,
            drained_total_bytes: figures.drained_total_bytes,
            drain_rate: self.health.rate(),
            damaged_records: self.grants.damaged_records(),
            clients: figures.clients.iter().map(client).collect(),
            files: figures.files.values().map(file).collect(),
        }
    }

    /// Opens the files of a dead daemon by their paths. Clients that have them open send others.
    pub(super) fn find_files(&mut self) -> io::Result<()> {
        for (file, device, inode, path) in self.grants.known_files() {
            self.files.expect(file, (device, inode));
            let path = PathBuf::from(std::ffi::OsString::from_vec(path));
            match Target::find(path, device, inode) {
                Ok(target) => {
                    self.files.insert(file, (device, inode), target);
                    self.tell(Event::Reached { file })?;
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(Errno::STALE.raw_os_error()) as u32;
                    self.tell(Event::Unreached { file, errno })?;
                }
            }
        }
        Ok(())
    }

    /// Clients of a dead daemon keep their memory until they come back, or die.
    pub(super) fn watch_absent(&mut self) -> io::Result<()> {
        for (client, process) in self.grants.absent() {
            let pid = Pid::from_raw(process as i32);
            match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
                Some(pidfd) => {
                    let token = self.next_token;
                    self.next_token += 1;
                    epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
                    self.absent.insert(token, (pidfd, client));
                }
                None => self.tell(Event::Left { client })?,
            }
        }
        Ok(())
    }

    pub(super) fn absent_died(&mut self, token: u64) -> io::Result<()> {
        let Some((_, client)) = self.absent.remove(&token) else { return Ok(()) };
        self.tell(Event::Left { client })
    }
}
