//! Parity: the files of each rank, kept as shards on other nodes, as one more layer.
//!
//! Each rank listens for the others (`server`) and keeps shards of theirs below its first
//! directory. [`SpreadFiles`] are the files of this rank, kept by others. No thread here ever calls
//! MPI, and none needs the program: shards move while ranks compute.

mod line;
mod peers;
mod reader;
mod rebuild;
mod server;
mod spread;
mod writer;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket},
    sync::Arc,
};

use outcrop_format::{Answer, Card, Keeps};
use outcrop_layers::files::Files;
use outcrop_parity::{Code, Kept, Seen, holders};
use outcrop_ranks::Ranks;
use outcrop_settings::ParitySettings;

pub(crate) use self::rebuild::Rebuilt;
use self::{
    peers::{Listed, Peers},
    rebuild::Rebuild,
    server::Server,
    spread::{Spread, SpreadFiles},
};
use crate::{
    Error, ErrorKind, Result,
    error::apart,
    exchange::{all_well, decode_all},
};

/// An address that no machine has; the way to it is the way to other machines.
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The parity of a store.
pub(crate) struct Parity {
    spread: Arc<Spread>,
    near: Arc<dyn Files>,
    /// The failure domain of each rank.
    domains: Vec<String>,
    server: Option<Server>,
}

impl Drop for Parity {
    fn drop(&mut self) {
        // First, so that others need not wait for this rank when they end.
        self.spread.peers.hang_up();
        self.server = None;
    }
}

impl Parity {
    /// Finds out together with all ranks who keeps whose shards. `near` is the first directory of
    /// this rank.
    pub(crate) fn join(code: Code, told: &ParitySettings, ranks: &dyn Ranks, near: &Arc<dyn Files>) -> Result<Self> {
        let domain = told.domain.clone().unwrap_or_else(host_name);
        let secret = line::secret().map_err(|error| apart(format!("no random numbers: {error}")))?;
        let listening = listen(told.network);
        let address = listening.as_ref().map(|(_, address)| address.to_string()).map_err(ToString::to_string);
        let card = Card { code: (code.data(), code.lost()), secret, domain, address };
        let cards = decode_all(&ranks.gather("parity", &card.encode())?, Card::decode)?;
        let addresses = addresses(&cards, code)?;
        let domains: Vec<String> = cards.iter().map(|card| card.domain.clone()).collect();
        let holders = holders(&domains, code).map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
        let (me, secret) = (ranks.rank(), cards.first().map_or(secret, |first| first.secret));
        let unreachable = |source: io::Error| apart(format!("rank {me} cannot keep shards of others: {source}"));
        let (listener, _) = listening.map_err(unreachable)?;
        let server = Server::start(listener, Arc::clone(near), secret, me).map_err(unreachable)?;
        let peers = Arc::new(Peers::new(me, secret, addresses));
        let mine = holders.get(me as usize).cloned().unwrap_or_default();
        let reached = mine.iter().try_for_each(|rank| peers.call(*rank).map(|line| peers.give_back(*rank, line)));
        let spread = Arc::new(Spread::new(me, code, mine, peers));
        let parity = Self { spread, near: Arc::clone(near), domains, server: Some(server) };
        let answer = Answer(reached.map_err(|error| error.to_string()));
        let answers = ranks.gather("parity reached", &answer.encode())?;
        all_well(&answers, |rank| {
            format!("parity: rank {rank} cannot reach another; say with parity_network which way")
        })?;
        Ok(parity)
    }

    /// The layer.
    pub(crate) fn files(&self) -> Arc<dyn Files> {
        Arc::new(SpreadFiles(Arc::clone(&self.spread)))
    }

    /// Finds out together with all ranks what is kept of a session, and makes again what was lost.
    /// All ranks take part, also one that cannot open the session: then nothing is changed for it.
    pub(crate) fn open(&self, ranks: &dyn Ranks, session: &str, is_entered: bool) -> Result<Rebuilt> {
        let failed = |source| crate::commit::failure(&*self.files(), "open a session", source);
        let kept_here = server::kept_here(&*self.near, session);
        // If one rank cannot look, what it keeps would count as lost.
        let answer = Answer(kept_here.as_ref().map(|_| ()).map_err(ToString::to_string));
        let answers = ranks.gather(&format!("parity kept {session}"), &answer.encode())?;
        let keeps = Keeps(kept_here.map_err(failed)?);
        all_well(&answers, |rank| format!("rank {rank} cannot look for shards of session {session}"))?;
        let told = decode_all(&ranks.gather(&format!("parity {session}"), &keeps.encode())?, Keeps::decode)?;
        let keepers = (0..).zip(&told).filter(|(_, Keeps(owners))| owners.contains(&self.spread.rank));
        let keepers: Vec<u32> = keepers.map(|(rank, _)| rank).collect();
        let mut result = self.find(session, &keepers);
        let mut rebuild = match &result {
            Ok(()) if is_entered => match Rebuild::plan(&self.spread, &*self.near, session) {
                Ok(rebuild) => Some(rebuild),
                Err(error) => {
                    result = Err(error);
                    None
                }
            },
            _ => None,
        };
        loop {
            let is_done = match rebuild.as_mut().filter(|_| result.is_ok()).map(Rebuild::work) {
                None => true,
                Some(Ok(is_done)) => is_done,
                Some(Err(error)) => {
                    result = Err(error);
                    true
                }
            };
            // A rank that is not done says so, or the others would lose patience.
            let done = ranks.gather(&format!("rebuild {session}"), &[is_done.into()])?;
            if done.iter().all(|done| **done == [1]) {
                break;
            }
        }
        result.map_err(failed)?;
        Ok(rebuild.map(Rebuild::end).unwrap_or_default())
    }

    /// Asks those who keep shards of this rank.
    fn find(&self, session: &str, keepers: &[u32]) -> io::Result<()> {
        let place = self.spread.place(session);
        let mut found: BTreeMap<String, HashMap<(&str, u16, u64), Seen>> = BTreeMap::new();
        for rank in keepers {
            let Listed { found: shards, damaged } = self.spread.peers.list(&place, *rank)?;
            for name in damaged {
                tracing::warn!(session, rank, name, "a shard is damaged; it counts as lost");
            }
            let domain = self.domains.get(*rank as usize).map_or("", |domain| domain);
            for (name, seen) in shards {
                // Two ranks of a node have the same directory, and so the same shard: it belongs to
                // the one that is to keep it.
                let wanted = self.spread.holders.get(usize::from(seen.header.index)) == Some(rank);
                let key = (domain, seen.header.index, seen.header.file.generation);
                let known = found.entry(name).or_default().entry(key).or_insert(seen);
                if wanted {
                    *known = seen;
                }
            }
        }
        let kept = |(name, seen): (String, HashMap<_, Seen>)| {
            let seen: Vec<Seen> = seen.into_values().collect();
            Kept::choose(&seen).map(|kept| (name, kept))
        };
        self.spread.found(session, found.into_iter().filter_map(kept).collect());
        Ok(())
    }
}

/// Where each rank can be reached. All of them must want the same.
fn addresses(cards: &[Card], code: Code) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::with_capacity(cards.len());
    for (rank, card) in cards.iter().enumerate() {
        if card.code != (code.data(), code.lost()) {
            let (data, lost) = card.code;
            let problem = format!("parity is {code} here and {data}+{lost} on rank {rank}; give all ranks the same");
            return Err(Error::new(ErrorKind::Usage, problem));
        }
        let address = card.address.as_ref().map_err(Clone::clone);
        let address = address.and_then(|address| address.parse().map_err(|_| format!("{address} is no address")));
        addresses.push(address.map_err(|reason| {
            apart(format!("parity: rank {rank} cannot be reached: {reason}; say with parity_network which way"))
        })?);
    }
    Ok(addresses)
}

/// Listens where other nodes can reach this one.
fn listen(network: Option<IpAddr>) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = Server::bind(own_address(network)?)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The address of this machine on the way to `network`, or to other machines.
fn own_address(network: Option<IpAddr>) -> io::Result<IpAddr> {
    let way = |to: IpAddr| {
        let from: IpAddr =
            if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
        // Nothing is sent.
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((to, 9))?;
        socket.local_addr().map(|address| address.ip())
    };
    if let Some(network) = network {
        return way(network);
    }
    let named = || (host_name(), 0).to_socket_addrs().ok()?.map(|it| it.ip()).find(|it| !it.is_loopback());
    // Without a network all ranks are on this machine.
    Ok(way(ELSEWHERE).ok().or_else(named).unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
