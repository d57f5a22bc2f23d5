//! One connection to the daemon, with the memory that is granted to it.

use std::{
    io,
    ops::Range,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use outcrop_format::{NodeReply, NodeReplyKind, NodeRequest};
use outcrop_grants::PAGE_BYTES;
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use crate::{
    reserve::{Generation, Reserve},
    start::{Connect, random},
    wire,
};

/// How often to connect again before giving up.
const ATTEMPTS_MAX: usize = 100;

/// What all connections of a process share.
pub(crate) struct Session {
    pub(crate) nonce: u64,
    pub(crate) reserve: Reserve,
    pub(crate) generation: Generation,
}

/// The newest session of a process.
pub(crate) type Sessions = Mutex<Option<Arc<Session>>>;

/// Why a call has no answer.
pub(crate) enum Trouble {
    /// The daemon is gone.
    Lost,
    Failed(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

pub(crate) struct Line {
    id: u64,
    socket: OwnedFd,
    /// The daemon at the other end.
    pub(crate) generation: u64,
    pub(crate) session: Arc<Session>,
    /// Granted and not filled. It is filled from the first range on, upwards.
    spare: Vec<Range<u64>>,
    /// The file and the offset whose byte would follow directly.
    tail: Option<(u64, u64)>,
}

impl Line {
    pub(crate) fn new(connect: &Connect, group: u64, sessions: &Sessions) -> io::Result<Self> {
        Self::connect(connect, group, random(), sessions)
    }

    /// Connects, also if daemons die one after the other.
    fn connect(connect: &Connect, group: u64, id: u64, sessions: &Sessions) -> io::Result<Self> {
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let socket = connect.socket()?;
            match greet(&socket, connect, group, id) {
                Ok(Some(welcome)) => return Self::welcomed(id, socket, welcome, sessions),
                Ok(None) => {}
                Err(error) => last = Some(error),
            }
            if last.is_some() {
                break;
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("node daemons die as soon as they are started")))
    }

    fn welcomed(id: u64, socket: OwnedFd, welcome: Welcome, sessions: &Sessions) -> io::Result<Self> {
        let mut newest = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = match newest.as_ref().filter(|session| session.nonce == welcome.nonce) {
            Some(session) => Arc::clone(session),
            None => {
                let reserve = Reserve::received(welcome.reserve)?;
                if reserve.bytes() != welcome.reserve_bytes {
                    return Err(io::Error::other("the node daemon has sent another reserve than it says"));
                }
                let generation = Generation::new(welcome.journal)?;
                Arc::new(Session { nonce: welcome.nonce, reserve, generation })
            }
        };
        *newest = Some(Arc::clone(&session));
        let spare = welcome.granted.into_iter().map(|(at, bytes)| at..at + bytes).collect();
        Ok(Self { id, socket, generation: welcome.generation, session, spare, tail: None })
    }

    /// Connects again after the daemon was lost. Returns whether the same memory is still in use.
    pub(crate) fn connect_again(&mut self, connect: &Connect, group: u64, sessions: &Sessions) -> io::Result<bool> {
        let again = Self::connect(connect, group, self.id, sessions)?;
        if again.generation == self.generation && again.session.nonce == self.session.nonce {
            return Err(io::Error::other("the node daemon has ended the connection"));
        }
        let is_same = again.session.nonce == self.session.nonce;
        *self = again;
        Ok(is_same)
    }

    /// Sends a message that has no answer, or whose answer is waited for later.
    pub(crate) fn say(&self, request: &NodeRequest) -> Result<(), Trouble> {
        self.send(request, None)
    }

    /// Sends a request, and waits for the answer.
    pub(crate) fn call(&self, request: &NodeRequest, file: Option<BorrowedFd<'_>>) -> Result<NodeReply, Trouble> {
        Ok(self.call_for(request, file)?.0)
    }

    /// As `call`, with the descriptors that come with the answer.
    pub(crate) fn call_for(
        &self,
        request: &NodeRequest,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(NodeReply, Vec<OwnedFd>), Trouble> {
        self.send(request, file)?;
        self.answer()
    }

    fn send(&self, request: &NodeRequest, file: Option<BorrowedFd<'_>>) -> Result<(), Trouble> {
        let bytes = request.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        match wire::send(&self.socket, &bytes, file.as_slice(), SendFlags::empty()) {
            Err(error) if is_lost(&error) => Err(Trouble::Lost),
            sent => Ok(sent?),
        }
    }

    /// Waits for the answer to the request that was sent.
    pub(crate) fn answer(&self) -> Result<(NodeReply, Vec<OwnedFd>), Trouble> {
        let packet = match wire::receive(&self.socket, RecvFlags::empty()) {
            Ok(None) => return Err(Trouble::Lost),
            received => received?.expect("the other case was handled"),
        };
        let reply = NodeReply::decode(&packet.bytes).map_err(io::Error::other)?;
        if let NodeReplyKind::Refused { reason } = reply.kind {
            return Err(Trouble::Failed(io::Error::new(io::ErrorKind::PermissionDenied, reason)));
        }
        Ok((reply, packet.descriptors))
    }

    /// Where bytes of a file from `offset` on can be filled now, and how many. `None` if memory has
    /// to be asked for.
    pub(crate) fn place(&mut self, file: u64, offset: u64) -> Result<Option<Range<u64>>, Trouble> {
        while let Some(first) = self.spare.first().cloned() {
            let in_page = offset % PAGE_BYTES;
            let start = match self.tail {
                Some(tail) if tail == (file, offset) && first.start % PAGE_BYTES == in_page => first.start,
                _ => first.start.next_multiple_of(PAGE_BYTES) + in_page,
            };
            if start < first.end {
                return Ok(Some(start..first.end));
            }
            self.spare.remove(0);
            self.say(&NodeRequest::Return { at: first.start, bytes: first.end - first.start })?;
        }
        Ok(None)
    }

    /// Memory was granted.
    pub(crate) fn granted(&mut self, at: u64, bytes: u64) {
        if bytes > 0 {
            self.spare.push(at..at + bytes);
        }
    }

    /// The daemon is told that this range was filled, with bytes of a file up to `end`.
    pub(crate) fn filled(&mut self, range: &Range<u64>, file: u64, end: u64) {
        if let Some(position) = self.spare.iter().position(|spare| spare.start <= range.start && range.end <= spare.end)
        {
            let spare = self.spare.remove(position);
            if range.end < spare.end {
                self.spare.insert(0, range.end..spare.end);
            }
        }
        self.tail = Some((file, end));
    }

    /// How much is granted and not filled.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spare.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether this range is still granted.
    pub(crate) fn holds(&self, range: &Range<u64>) -> bool {
        self.spare.iter().any(|spare| spare.start <= range.start && range.end <= spare.end)
    }
}

struct Welcome {
    generation: u64,
    nonce: u64,
    reserve_bytes: u64,
    granted: Vec<(u64, u64)>,
    reserve: OwnedFd,
    journal: OwnedFd,
}

/// Says hello. `None` if the daemon is gone.
fn greet(socket: &OwnedFd, connect: &Connect, group: u64, line: u64) -> io::Result<Option<Welcome>> {
    let mut name = connect.name.clone();
    name.truncate((0..=256.min(name.len())).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0));
    let hello = NodeRequest::Hello { group, line, name }.encode().map_err(io::Error::other)?;
    match wire::send(socket, &hello, &[], SendFlags::empty()) {
        Err(error) if is_lost(&error) => {}
        sent => sent?,
    }
    let Some(packet) = wire::receive(socket, RecvFlags::empty())? else { return Ok(None) };
    let reply = match NodeReply::decode(&packet.bytes) {
        Err(outcrop_format::Error::Format { found, newest, .. }) => {
            let text = format!(
                "the node daemon speaks protocol {found} and this program protocol {newest}: stop it with the Outcrop \
                 that started it (outcrop node stop)"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        reply => reply.map_err(io::Error::other)?,
    };
    let mut descriptors = packet.descriptors.into_iter();
    match (reply.kind, descriptors.next(), descriptors.next()) {
        (NodeReplyKind::Welcome { generation, nonce, reserve_bytes, granted }, Some(reserve), Some(journal)) => {
            Ok(Some(Welcome { generation, nonce, reserve_bytes, granted, reserve, journal }))
        }
        (NodeReplyKind::Refused { reason }, ..) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
        (other, ..) => Err(io::Error::other(format!("the node daemon answers strangely: {other:?}"))),
    }
}

fn is_lost(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::SHUTDOWN))
}
