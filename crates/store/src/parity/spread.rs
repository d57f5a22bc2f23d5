//! The layer: the files of this rank, kept by other ranks as shards.
//!
//! To the commit protocol it is a directory as any other. Packs are coded; they never change.
//! Manifests and marks are small and are replaced, so each holder has a whole copy: a crash between
//! two holders leaves the old one or the new one, never a mixture. What is there is known from the
//! time at which a session is opened, because only this rank changes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_format::{PeerPlace, ShardedFile, is_copied, parse_draft_name, parse_rank_name, rank_name};
use outcrop_layers::files::{File, FileLock, Files};
use outcrop_parity::{Code, Kept, Part};
use outcrop_ranks::rand_bytes;

use super::{
    peers::Peers,
    reader::{ShardReader, too_few},
    writer::ShardWriter,
};

/// What is known of the files of this rank in one session.
#[derive(Default)]
pub(super) struct Known {
    pub(super) files: BTreeMap<String, Kept>,
    /// The contents of files that are being written and have no name yet.
    drafts: BTreeMap<String, Vec<u8>>,
    /// A file that some holders have and others may not: the next sync fails, because a crash may
    /// leave the one or the other.
    doubt: Option<String>,
}

/// The files of this rank, kept by others.
pub(super) struct Spread {
    pub(super) rank: u32,
    pub(super) code: Code,
    /// Who keeps the shards, by index.
    pub(super) holders: Vec<u32>,
    pub(super) peers: Arc<Peers>,
    /// Higher than that of every file that was found.
    generation: AtomicU64,
    sessions: Mutex<BTreeMap<String, Known>>,
}

impl Spread {
    pub(super) fn new(rank: u32, code: Code, holders: Vec<u32>, peers: Arc<Peers>) -> Self {
        Self { rank, code, holders, peers, generation: AtomicU64::new(0), sessions: Mutex::default() }
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was found of a session when it was opened.
    pub(super) fn found(&self, session: &str, files: BTreeMap<String, Kept>) {
        let newest = files.values().map(|kept| kept.file.generation).max().unwrap_or(0);
        self.generation.fetch_max(newest, Relaxed);
        self.sessions().insert(session.to_owned(), Known { files, ..Known::default() });
    }

    pub(super) fn place(&self, session: &str) -> PeerPlace {
        PeerPlace { session: session.to_owned(), rank: self.rank }
    }

    /// How a file of this name is coded now, before its bytes are known.
    pub(super) fn new_file(&self, name: &str) -> io::Result<ShardedFile> {
        let data = if is_copied(name) { 1 } else { self.code.data() };
        let id = u128::from_le_bytes(rand_bytes()?);
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        let count = self.holders.len() as u16;
        Ok(ShardedFile { generation, id, owner: self.rank, bytes: 0, check: 0, data, count })
    }

    /// Where the shards of a new file go.
    pub(super) fn parts(&self) -> Vec<Part> {
        (0..).zip(&self.holders).map(|(index, holder)| Part { index, holder: *holder }).collect()
    }

    /// The session and the name of a file of this rank.
    fn split<'a>(&self, path: &'a str) -> io::Result<(&'a str, &'a str)> {
        let mut parts = path.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(session), Some(rank), Some(name)) if parse_rank_name(rank) == Some(self.rank) => Ok((session, name)),
            _ => Err(missing(path)),
        }
    }

    /// A file, for reading.
    pub(super) fn reader(&self, session: &str, name: &str) -> io::Result<ShardReader> {
        let kept = self.kept(session, name)?;
        Ok(ShardReader::new(&self.peers, self.place(session), name, kept))
    }

    fn kept(&self, session: &str, name: &str) -> io::Result<Kept> {
        let sessions = self.sessions();
        let kept = sessions.get(session).and_then(|known| known.files.get(name)).ok_or_else(|| missing(name))?;
        match kept.is_whole() {
            true => Ok(kept.clone()),
            false => Err(too_few(name, kept, kept.parts.len(), None)),
        }
    }

    /// Gives all holders a copy of a small file in place of the one that they have.
    fn copy(&self, session: &str, name: &str, content: &[u8]) -> io::Result<()> {
        let (place, file) = (self.place(session), self.new_file(name)?);
        let mut writer = ShardWriter::begin(&self.peers, &place, name, file, &self.parts(), content.len() as u64)?;
        writer.write(content)?;
        let (file, committed) = writer.finish(|_| true)?;
        let failed =
            committed.iter().find_map(|(_, done)| done.as_ref().err().map(|error| (error.kind(), error.to_string())));
        match failed {
            Some((kind, reason)) if committed.iter().all(|(_, done)| done.is_err()) => {
                Err(io::Error::new(kind, reason))
            }
            failed => {
                let mut sessions = self.sessions();
                let known = sessions.entry(session.to_owned()).or_default();
                // Whoever could not do it may have: the answer may be what was lost.
                known.doubt = known.doubt.take().or(failed.map(|(_, reason)| reason));
                known.files.insert(name.to_owned(), Kept::written(file, &self.holders));
                Ok(())
            }
        }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}"))
}

/// The layer, as files.
pub(super) struct SpreadFiles(pub(super) Arc<Spread>);

impl Files for SpreadFiles {
    fn location(&self) -> String {
        let ranks: Vec<_> = self.0.holders.iter().map(ToString::to_string).collect();
        format!("parity {} of rank {} on ranks {}", self.0.code, self.0.rank, ranks.join(", "))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let sessions = self.0.sessions();
        if dir.is_empty() {
            return Ok(sessions.keys().cloned().collect());
        }
        let (session, rank) = dir.split_once('/').unwrap_or((dir, ""));
        let known = sessions.get(session).ok_or_else(|| missing(dir))?;
        match parse_rank_name(rank) {
            None if rank.is_empty() => Ok(vec![rank_name(self.0.rank)]),
            Some(rank) if rank == self.0.rank => Ok(known.files.keys().cloned().collect()),
            _ => Err(missing(dir)),
        }
    }

    fn make_dir(&self, _dir: &str) -> io::Result<()> {
        // Holders make what they need.
        Ok(())
    }

    fn create(&self, path: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        let (session, name) = self.0.split(path)?;
        let (spread, session, name) = (Arc::clone(&self.0), session.to_owned(), name.to_owned());
        if parse_draft_name(&name).is_some() {
            spread.sessions().entry(session.clone()).or_default().drafts.insert(name.clone(), Vec::new());
            return Ok(Arc::new(Draft { spread, session, name }));
        }
        Ok(Arc::new(Coded { spread, session, name, bytes, state: Mutex::new(Writing::Begun) }))
    }

    fn create_new(&self, path: &str, bytes: u64) -> io::Result<Arc<dyn File>> {
        let (session, name) = self.0.split(path)?;
        match self.0.sessions().get(session).is_some_and(|known| known.files.contains_key(name)) {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => self.create(path, bytes),
        }
    }

    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let (session, name) = self.0.split(path)?;
        Ok(Arc::new(self.0.reader(session, name)?))
    }

    fn bytes_of(&self, path: &str) -> io::Result<u64> {
        let (session, name) = self.0.split(path)?;
        Ok(self.0.kept(session, name)?.file.bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let ((session, from), (_, to)) = (self.0.split(from)?, self.0.split(to)?);
        let content = self.0.sessions().get_mut(session).and_then(|known| known.drafts.remove(from));
        self.0.copy(session, to, &content.ok_or_else(|| missing(from))?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let (session, name) = self.0.split(path)?;
        if parse_draft_name(name).is_some() {
            self.0.sessions().get_mut(session).map(|known| known.drafts.remove(name));
            return Ok(());
        }
        let kept = self.0.sessions().get(session).and_then(|known| known.files.get(name)).cloned();
        let mut parts: BTreeSet<Part> = kept.iter().flat_map(Kept::all).collect();
        parts.extend(kept.iter().flat_map(|kept| kept.stale.iter().copied()));
        // If a file was not completed, some holders may have their part of it.
        parts.extend(kept.is_none().then(|| self.0.parts()).into_iter().flatten());
        let place = self.0.place(session);
        let removed = parts.iter().map(|part| self.0.peers.remove(&place, name, *part));
        // All of them are tried.
        let problem = removed.fold(None, |problem: Option<io::Error>, removed| problem.or(removed.err()));
        match (problem, kept.is_some()) {
            (Some(problem), true) => Err(problem),
            (_, false) => Ok(()),
            (None, true) => {
                self.0.sessions().get_mut(session).map(|known| known.files.remove(name));
                Ok(())
            }
        }
    }

    fn remove_dir(&self, _dir: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let Some((session, _)) = dir.split_once('/') else { return Ok(()) };
        if let Some(reason) = self.0.sessions().get_mut(session).and_then(|known| known.doubt.take()) {
            return Err(io::Error::other(reason));
        }
        let place = self.0.place(session);
        // Until their shards have moved, others keep some, too.
        let mut holders: BTreeSet<u32> = self.0.holders.iter().copied().collect();
        let sessions = self.0.sessions();
        let elsewhere = sessions.get(session).into_iter().flat_map(|known| known.files.values());
        holders.extend(elsewhere.flat_map(Kept::all).map(|part| part.holder));
        drop(sessions);
        holders.into_iter().try_for_each(|rank| self.0.peers.sync(&place, rank))
    }

    fn lock(&self, _name: &str) -> io::Result<Option<FileLock>> {
        // Whoever holds the directory of this rank on its own node is the only one who has shards
        // for it, and others know only those who know the secret of the run.
        Ok(Some(FileLock::new(())))
    }
}

/// A small file that has no name yet. It gets to its holders when it is renamed.
struct Draft {
    spread: Arc<Spread>,
    session: String,
    name: String,
}

impl File for Draft {
    fn bytes(&self) -> io::Result<u64> {
        let sessions = self.spread.sessions();
        let content = sessions.get(&self.session).and_then(|known| known.drafts.get(&self.name));
        content.map(|content| content.len() as u64).ok_or_else(|| missing(&self.name))
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut sessions = self.spread.sessions();
        let content = sessions.get_mut(&self.session).and_then(|known| known.drafts.get_mut(&self.name));
        let content = content.ok_or_else(|| missing(&self.name))?;
        let (start, end) = (at as usize, at as usize + bytes.len());
        content.resize(content.len().max(end), 0);
        content[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, _at: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is being coded as its bytes come.
struct Coded {
    spread: Arc<Spread>,
    session: String,
    name: String,
    /// How long it will be.
    bytes: u64,
    state: Mutex<Writing>,
}

enum Writing {
    Begun,
    Sent(Box<ShardWriter>),
    Done,
    Failed,
}

impl Coded {
    fn writer(&self) -> io::Result<ShardWriter> {
        let Self { spread, session, name, bytes, .. } = self;
        let file = spread.new_file(name)?;
        ShardWriter::begin(&spread.peers, &spread.place(session), name, file, &spread.parts(), *bytes)
    }
}

impl File for Coded {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    /// The bytes of a pack come one after the other, in one or several pieces.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut writer = match std::mem::replace(&mut *state, Writing::Failed) {
            Writing::Begun => Box::new(self.writer()?),
            Writing::Sent(writer) => writer,
            Writing::Done | Writing::Failed => return Err(io::Error::other("nothing can be written to it any more")),
        };
        if at != writer.bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "shards are written from front to back"));
        }
        writer.write(bytes)?;
        *state = Writing::Sent(writer);
        Ok(())
    }

    fn read_at(&self, _at: u64, _bytes: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = match std::mem::replace(&mut *state, Writing::Failed) {
            Writing::Begun => Box::new(self.writer()?),
            Writing::Sent(writer) => writer,
            Writing::Done => {
                *state = Writing::Done;
                return Ok(());
            }
            Writing::Failed => return Err(io::Error::other("it could not be written")),
        };
        let (file, committed) = writer.finish(|_| true)?;
        committed.into_iter().try_for_each(|(_, done)| done)?;
        let kept = Kept::written(file, &self.spread.holders);
        self.spread.sessions().entry(self.session.clone()).or_default().files.insert(self.name.clone(), kept);
        *state = Writing::Done;
        Ok(())
    }
}
