//! The other ranks, as seen by the one whose shards they keep.

use std::{
    collections::HashMap,
    io,
    net::{SocketAddr, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use outcrop_format::{PeerPlace, PeerReply, PeerRequest, PeerSecret, PeerShard, shard_name};
use outcrop_parity::{Part, Seen};

use super::line::Line;

/// How long another rank may take to answer a call.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a call is repeated if nobody answers: a node may be busy for a moment.
const CALLS: u32 = 3;
/// The pause between two calls.
const PAUSE: Duration = Duration::from_millis(200);

/// The other ranks.
pub(super) struct Peers {
    me: u32,
    secret: PeerSecret,
    /// By rank.
    addresses: Vec<SocketAddr>,
    /// Connections that nobody uses just now; `None` when the store has ended.
    idle: Mutex<Option<HashMap<u32, Vec<Line>>>>,
}

impl Peers {
    pub(super) fn new(me: u32, secret: PeerSecret, addresses: Vec<SocketAddr>) -> Self {
        Self { me, secret, addresses, idle: Mutex::new(Some(HashMap::new())) }
    }

    fn idle(&self) -> MutexGuard<'_, Option<HashMap<u32, Vec<Line>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to a rank: one that nobody uses, or a new one.
    pub(super) fn line(&self, rank: u32) -> io::Result<Line> {
        let known = self.idle().as_mut().and_then(|idle| idle.get_mut(&rank)?.pop());
        known.map_or_else(|| self.call(rank), Ok)
    }

    /// Connects to a rank.
    pub(super) fn call(&self, rank: u32) -> io::Result<Line> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("there is no rank {rank}"));
        let address = self.addresses.get(rank as usize).ok_or_else(unknown)?;
        let start = Instant::now();
        let mut calls = 1;
        loop {
            let called = TcpStream::connect_timeout(address, CONNECT);
            match called.and_then(|stream| Line::call(stream, &self.secret, (self.me, rank))) {
                Err(error) if calls >= CALLS || start.elapsed() > CONNECT => {
                    return Err(io::Error::new(
                        error.kind(),
                        format!("rank {rank} at {address} cannot be reached: {error}"),
                    ));
                }
                Err(_) => thread::sleep(PAUSE * calls),
                line => return line,
            }
            calls += 1;
        }
    }

    /// Keeps a connection on which nothing is under way.
    pub(super) fn give_back(&self, rank: u32, line: Line) {
        if let Some(idle) = &mut *self.idle() {
            idle.entry(rank).or_default().push(line);
        }
    }

    /// Ends all connections.
    pub(super) fn hang_up(&self) {
        *self.idle() = None;
    }

    /// Asks for something that may be asked for twice. A connection that has ended meanwhile is
    /// made again.
    fn ask(&self, rank: u32, request: &PeerRequest<'_>) -> io::Result<()> {
        let is_of_other_side =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::Other | io::ErrorKind::StorageFull);
        let mut line = self.line(rank)?;
        let asked = match line.ask(request).map(drop) {
            Err(error) if !is_of_other_side(&error) => {
                line = self.call(rank)?;
                line.ask(request).map(drop)
            }
            asked => asked,
        };
        if asked.as_ref().is_ok_and(|()| true) || asked.as_ref().is_err_and(is_of_other_side) {
            self.give_back(rank, line);
        }
        asked.map_err(|error| of_rank(rank, &error))
    }

    /// Removes a shard.
    pub(super) fn remove(&self, place: &PeerPlace, name: &str, part: Part) -> io::Result<()> {
        self.ask(part.holder, &PeerRequest::Remove { place: place.clone(), name: shard_name(name, part.index) })
    }

    /// Makes the names of shards durable.
    pub(super) fn sync(&self, place: &PeerPlace, rank: u32) -> io::Result<()> {
        self.ask(rank, &PeerRequest::Sync { place: place.clone() })
    }

    /// The shards that a rank keeps.
    pub(super) fn list(&self, place: &PeerPlace, rank: u32) -> io::Result<Listed> {
        let mut line = self.line(rank)?;
        let (mut listed, mut after) = (Listed::default(), String::new());
        loop {
            let request = PeerRequest::List { place: place.clone(), after: after.clone() };
            let reply = line.ask(&request).map_err(|error| of_rank(rank, &error))?;
            let PeerReply::Listed(shards, has_more) = reply else {
                return Err(of_rank(rank, &io::Error::other("another reply than a list")));
            };
            if let Some(last) = shards.last() {
                after.clone_from(&last.name);
            }
            for PeerShard { name, header, .. } in shards {
                match (header, outcrop_format::parse_shard_name(&name)) {
                    (Some(header), Some((file, _))) => {
                        listed.found.push((file.to_owned(), Seen { holder: rank, header }));
                    }
                    _ => listed.damaged.push(name),
                }
            }
            if !has_more {
                break;
            }
        }
        self.give_back(rank, line);
        Ok(listed)
    }
}

/// The shards that a rank keeps.
#[derive(Default)]
pub(super) struct Listed {
    /// Each with the name of its file.
    pub(super) found: Vec<(String, Seen)>,
    /// The names of those that are damaged.
    pub(super) damaged: Vec<String>,
}

/// An error of a rank that keeps shards.
pub(super) fn of_rank(rank: u32, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("rank {rank}: {error}"))
}
