//! Keeps shards of other ranks in the first directory of this one: a thread that lets others in,
//! and one for each connection.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outcrop_format::{
    PEER_LISTED_MAX, PeerPlace, PeerReply, PeerRequest, PeerSecret, PeerShard, SHARD_HEADER_BYTES, SHARDS_DIR,
    ShardHeader, draft_name, parse_rank_name, parse_shard_name, rank_name,
};
use outcrop_layers::files::{File, Files};

use super::line::{self, Line};

/// How many may be connected who have not shown yet that they know the secret.
const STRANGERS_MAX: usize = 64;
/// How many connections one rank may have.
const LINES_MAX: usize = 64;
/// How long a store that ends waits for ranks that still remove what they do not need.
const FAREWELL: Duration = Duration::from_secs(10);
/// So much room a shard leaves, as packs do: the manifests of versions must still fit.
const SPARE_BYTES: u64 = 1 << 20;

/// The keeper of shards of other ranks.
pub(super) struct Server {
    address: SocketAddr,
    lines: Arc<Lines>,
    thread: Option<JoinHandle<()>>,
}

/// The connections.
#[derive(Default)]
struct Lines {
    state: Mutex<Open>,
    changed: Condvar,
}

#[derive(Default)]
struct Open {
    is_over: bool,
    next: u64,
    strangers: usize,
    /// By number: who it is, and a handle to end it.
    lines: BTreeMap<u64, (u32, TcpStream)>,
}

impl Lines {
    fn state(&self) -> MutexGuard<'_, Open> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens on this address, on any port.
    pub(super) fn bind(address: IpAddr) -> io::Result<TcpListener> {
        TcpListener::bind((address, 0))
    }

    /// Serves others, who know the secret, from now on.
    pub(super) fn start(listener: TcpListener, files: Arc<dyn Files>, secret: PeerSecret, me: u32) -> io::Result<Self> {
        let (address, lines) = (listener.local_addr()?, Arc::<Lines>::default());
        let of_thread = Arc::clone(&lines);
        let run = move || accept(&listener, &files, &of_thread, &secret, me);
        let thread = thread::Builder::new().name("outcrop-shards".to_owned()).spawn(run)?;
        Ok(Self { address, lines, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let end = Instant::now() + FAREWELL;
        let mut state = self.lines.state();
        while !state.lines.is_empty() {
            let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else { break };
            state = self.lines.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_over = true;
        state.lines.values().for_each(|(_, stream)| drop(stream.shutdown(Shutdown::Both)));
        drop(state);
        // The thread waits for somebody to call.
        drop(TcpStream::connect_timeout(&self.address, FAREWELL));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that keeps shards of other ranks has panicked");
        }
    }
}

fn accept(listener: &TcpListener, files: &Arc<dyn Files>, lines: &Arc<Lines>, secret: &PeerSecret, me: u32) {
    loop {
        let stream = listener.accept();
        let mut state = lines.state();
        if state.is_over {
            return;
        }
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                drop(state);
                tracing::warn!(%error, "cannot let another rank in");
                // Too few descriptors: it is tried again when a line has ended, or in a while.
                drop(lines.changed.wait_timeout(lines.state(), Duration::from_millis(100)));
                continue;
            }
        };
        if state.strangers >= STRANGERS_MAX {
            continue;
        }
        state.strangers += 1;
        drop(state);
        let (files, of_thread, secret) = (Arc::clone(files), Arc::clone(lines), *secret);
        let run = move || welcome(stream, &files, &of_thread, &secret, me);
        if let Err(error) = thread::Builder::new().name("outcrop-shard".to_owned()).spawn(run) {
            lines.state().strangers -= 1;
            tracing::warn!(%error, "cannot start a thread for another rank");
        }
    }
}

/// Lets somebody in, and serves them until they leave.
fn welcome(stream: TcpStream, files: &Arc<dyn Files>, lines: &Lines, secret: &PeerSecret, me: u32) {
    let answered = Line::answer(stream, secret, me).and_then(|(line, rank)| Ok((line.stream()?, line, rank)));
    let mut state = lines.state();
    state.strangers -= 1;
    let (stream, mut line, rank) = match answered {
        Ok(answered) => answered,
        Err(error) => return tracing::debug!(%error, "a connection was refused"),
    };
    if state.is_over || state.lines.values().filter(|(other, _)| *other == rank).count() >= LINES_MAX {
        return;
    }
    let number = state.next;
    state.next += 1;
    state.lines.insert(number, (rank, stream));
    drop(state);
    let mut keeper = Keeper { files: &**files, owner: rank, draft: None, made: BTreeSet::new() };
    if let Err(error) = keeper.serve(&mut line) {
        tracing::debug!(rank, %error, "a connection has ended");
    }
    keeper.abandon();
    lines.state().lines.remove(&number);
    lines.changed.notify_all();
}

/// Carries out the requests of one connection.
struct Keeper<'a> {
    files: &'a dyn Files,
    /// The rank that has called: it may only deal with its own shards.
    owner: u32,
    draft: Option<Draft>,
    /// Directories that are known to be there.
    made: BTreeSet<String>,
}

/// A shard that is being written.
struct Draft {
    dir: String,
    name: String,
    file: io::Result<Arc<dyn File>>,
    /// How much is there, without the header.
    bytes: u64,
    bytes_max: u64,
}

impl Keeper<'_> {
    fn serve(&mut self, line: &mut Line) -> io::Result<()> {
        loop {
            let request = match PeerRequest::decode(line.receive()?) {
                Ok(PeerRequest::Append(bytes)) => {
                    self.append(bytes);
                    continue;
                }
                Ok(request) => request,
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            };
            let answered = match request {
                PeerRequest::Begin { place, name, bytes } => {
                    self.begin(&place, name, bytes);
                    continue;
                }
                PeerRequest::Append(_) => continue,
                PeerRequest::Commit(header) => self.commit(&header).map(|()| PeerReply::Done.encode()),
                PeerRequest::List { place, after } => self.list(&place, &after),
                PeerRequest::Read { place, name, at, bytes } => self.read(&place, &name, at, bytes),
                PeerRequest::Remove { place, name } => self.remove(&place, &name).map(|()| PeerReply::Done.encode()),
                PeerRequest::Sync { place } => self.sync(&place).map(|()| PeerReply::Done.encode()),
            };
            let reply =
                answered.unwrap_or_else(|error| PeerReply::Failed(line::failure(&error), error.to_string()).encode());
            line.send(&[&reply])?;
            line.flush()?;
        }
    }

    /// The directory with the shards of a rank.
    fn dir(&self, place: &PeerPlace) -> io::Result<String> {
        match place.rank == self.owner {
            true => Ok(dir_of(&place.session, place.rank)),
            false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "these are shards of another rank")),
        }
    }

    /// Makes the directory for the shards of a rank, durably.
    fn make_dir(&mut self, place: &PeerPlace) -> io::Result<String> {
        let dir = self.dir(place)?;
        if self.made.insert(dir.clone()) {
            let session = format!("{SHARDS_DIR}/{}", place.session);
            let made = self.files.make_dir(SHARDS_DIR).and_then(|()| self.files.sync_dir(""));
            let made = made.and_then(|()| self.files.make_dir(&session)).and_then(|()| self.files.sync_dir(SHARDS_DIR));
            let made = made.and_then(|()| self.files.make_dir(&dir)).and_then(|()| self.files.sync_dir(&session));
            if made.is_err() {
                self.made.remove(&dir);
            }
            made?;
        }
        Ok(dir)
    }

    fn begin(&mut self, place: &PeerPlace, name: String, bytes: u64) {
        self.abandon();
        let made = self.make_dir(place).and_then(|dir| match self.files.free_bytes()? {
            Some(free) if free < bytes.saturating_add(SPARE_BYTES) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok((self.files.create(&format!("{dir}/{}", draft_name(&name)), bytes)?, dir)),
        });
        let (file, dir) = match made {
            Ok((file, dir)) => (Ok(file), dir),
            Err(error) => (Err(error), String::new()),
        };
        self.draft = Some(Draft { dir, name, file, bytes: 0, bytes_max: bytes });
    }

    /// Writes the next bytes. The first failure is told at the end.
    fn append(&mut self, bytes: &[u8]) {
        let Some(draft) = &mut self.draft else { return };
        let Ok(file) = &draft.file else { return };
        let at = SHARD_HEADER_BYTES as u64 + draft.bytes;
        draft.bytes += bytes.len() as u64;
        let written = match SHARD_HEADER_BYTES as u64 + draft.bytes > draft.bytes_max {
            true => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is longer than it was said to be")),
            false => file.write_at(at, bytes),
        };
        if let Err(error) = written {
            draft.file = Err(error);
            // Its name is known still, and it is removed.
            drop(self.files.remove(&draft.path()));
        }
    }

    fn commit(&mut self, header: &ShardHeader) -> io::Result<()> {
        let Some(draft) = self.draft.take() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no shard was begun"));
        };
        let file = draft.file?;
        let path = format!("{}/{}", draft.dir, draft_name(&draft.name));
        let named = parse_shard_name(&draft.name).map(|(_, index)| index) == Some(header.index);
        let is_right = named && header.file.owner == self.owner;
        let committed = match is_right && header.file.shard_bytes() == SHARD_HEADER_BYTES as u64 + draft.bytes {
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the shard is not what its header says")),
            true => file.write_at(0, &header.encode()).and_then(|()| file.sync()),
        };
        let renamed = committed.and_then(|()| self.files.rename(&path, &format!("{}/{}", draft.dir, draft.name)));
        renamed.inspect_err(|_| drop(self.files.remove(&path)))
    }

    /// Removes a shard that was begun and is not whole.
    fn abandon(&mut self) {
        if let Some(draft) = self.draft.take().filter(|draft| draft.file.is_ok()) {
            drop(self.files.remove(&draft.path()));
        }
    }

    fn list(&self, place: &PeerPlace, after: &str) -> io::Result<Vec<u8>> {
        let dir = self.dir(place)?;
        let mut names = match self.files.list(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            names => names?,
        };
        names.retain(|name| parse_shard_name(name).is_some() && &**name > after);
        names.sort_unstable();
        let has_more = names.len() > PEER_LISTED_MAX;
        names.truncate(PEER_LISTED_MAX);
        let mut shards = Vec::with_capacity(names.len());
        for name in names {
            let file = match self.files.open(&format!("{dir}/{name}")) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let bytes = file.bytes()?;
            let mut header = [0; SHARD_HEADER_BYTES];
            let header = match file.read_at(0, &mut header) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                read => read.map(|()| ShardHeader::decode(&header).ok())?,
            };
            let index = parse_shard_name(&name).map(|(_, index)| index);
            // A shard in the wrong place, or one that is cut off, is damaged.
            let header = header.filter(|header| {
                header.file.owner == place.rank && Some(header.index) == index && header.file.shard_bytes() == bytes
            });
            shards.push(PeerShard { name, bytes, header });
        }
        Ok(PeerReply::Listed(shards, has_more).encode())
    }

    fn read(&self, place: &PeerPlace, name: &str, at: u64, bytes: u32) -> io::Result<Vec<u8>> {
        let file = self.files.open(&format!("{}/{name}", self.dir(place)?))?;
        let mut reply = vec![0; 1 + bytes as usize];
        reply[0] = PeerReply::BYTES;
        file.read_at(at, &mut reply[1..])?;
        Ok(reply)
    }

    fn remove(&self, place: &PeerPlace, name: &str) -> io::Result<()> {
        match self.files.remove(&format!("{}/{name}", self.dir(place)?)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync(&self, place: &PeerPlace) -> io::Result<()> {
        match self.files.sync_dir(&self.dir(place)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            synced => synced,
        }
    }
}

impl Draft {
    fn path(&self) -> String {
        format!("{}/{}", self.dir, draft_name(&self.name))
    }
}

/// The directory with the shards of a rank.
pub(super) fn dir_of(session: &str, rank: u32) -> String {
    format!("{SHARDS_DIR}/{session}/{}", rank_name(rank))
}

/// The ranks of which shards are kept here in a session. Removes shards that were not finished:
/// nobody writes any before all ranks have said what they keep.
pub(super) fn kept_here(files: &dyn Files, session: &str) -> io::Result<BTreeSet<u32>> {
    let names = match files.list(&format!("{SHARDS_DIR}/{session}")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        names => names?,
    };
    let mut ranks = BTreeSet::new();
    for rank in names.iter().filter_map(|name| parse_rank_name(name)) {
        let dir = dir_of(session, rank);
        let (shards, others): (Vec<_>, Vec<_>) =
            files.list(&dir)?.into_iter().partition(|name| parse_shard_name(name).is_some());
        for name in others.iter().filter(|name| outcrop_format::parse_draft_name(name).is_some()) {
            match files.remove(&format!("{dir}/{name}")) {
                // Another rank of this node has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        if !shards.is_empty() {
            ranks.insert(rank);
        }
    }
    Ok(ranks)
}
