//! Ranks that communicate through files in a shared directory: how long they wait, and how often
//! they poll.

use std::{
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use outcrop_error::patience::{self, ASK_EVERY, Awaited};
use outcrop_format::{parse_rank_name, rank_name};
use outcrop_local::{is_alive, is_held_here};

use crate::{
    Error, Ranks, Result,
    medium::Directory,
    pace::Pace,
    talk::{Gone, Talk},
};

/// The default timeout for the other ranks to join, or to make the same call.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a directory that another rank makes may take to appear.
pub(crate) const APPEARANCE: Duration = Duration::from_secs(10);

/// How long the lock of a process that has ended may be held.
const RELEASE: Duration = Duration::from_secs(2);

/// The processes of one run, which see the same directory.
///
/// The file system must have locks that all of them see (`fcntl`). And whoever opens a file must
/// see what others have synced before (close-to-open consistency), as on NFS and Lustre.
pub struct SharedDirectory {
    directory: PathBuf,
    rank: u32,
    count: u32,
    patience: Duration,
    /// The time at which it was opened.
    start: Instant,
    state: Mutex<State>,
}

struct State {
    talk: Talk<Directory>,
    pace: Pace,
}

impl fmt::Debug for SharedDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDirectory")
            .field("directory", &self.directory)
            .field("rank", &self.rank)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl SharedDirectory {
    /// Joins as `rank` of `count`, and waits until all others have joined.
    pub fn open(directory: impl AsRef<Path>, rank: u32, count: u32) -> Result<Self> {
        Self::open_with(directory, rank, count, PATIENCE)
    }

    /// Like [`open`](Self::open), with a timeout for the other ranks, now and later.
    pub fn open_with(directory: impl AsRef<Path>, rank: u32, count: u32, patience: Duration) -> Result<Self> {
        let begun = Self::begin(directory.as_ref(), rank, count, patience)?;
        begun.meet()?;
        Ok(begun)
    }

    /// Joins, and does not wait for the others yet.
    pub(crate) fn begin(directory: &Path, rank: u32, count: u32, patience: Duration) -> Result<Self> {
        if rank >= count {
            let remedy = "the ranks of a run are numbered from 0, and all of them give the same number of ranks";
            return Err(Error::apart(format!("rank {rank} is not below {count}, the number of ranks; {remedy}")));
        }
        let failure = |source: io::Error| Error::Files { path: directory.display().to_string(), source };
        fs::create_dir_all(directory).map_err(failure)?;
        let nonce = rand_bytes().map_err(failure)?;
        let (start, lock) = (Instant::now(), directory.join(format!("{}.lock", rank_name(rank))));
        let talk = loop {
            match Talk::begin(Directory(directory.to_owned()), rank, count, nonce) {
                // On GlusterFS, a directory that another rank is making is there, and then for a
                // moment it is not.
                Err(error) if error.kind() == io::ErrorKind::NotFound && start.elapsed() < APPEARANCE => {
                    thread::sleep(Duration::from_millis(50));
                    fs::create_dir_all(directory).map_err(failure)?;
                }
                // Where files are on other machines, the lock of a process that was killed is still
                // held for a moment.
                Ok(None) if start.elapsed() < RELEASE && !is_held_here(&lock) => {
                    thread::sleep(Duration::from_millis(50));
                }
                begun => break begun.map_err(failure)?,
            }
        };
        let talk = talk.ok_or_else(|| {
            let path = directory.display();
            let who =
                if is_held_here(&lock) { "this process takes part already" } else { "another process takes part" };
            Error::apart(format!("{who} as rank {rank} in {path}; end it first"))
        })?;
        let state = Mutex::new(State { talk, pace: Pace::default() });
        Ok(Self { directory: directory.to_owned(), rank, count, patience, start: Instant::now(), state })
    }

    /// All ranks have joined, as they know in another way: if one ends before it has met the
    /// others, they notice.
    pub(crate) fn all_have_begun(&self) {
        self.state().talk.all_have_begun();
    }

    /// Waits until all others have joined.
    pub(crate) fn meet(&self) -> Result<()> {
        self.until("join the run", |talk| talk.has_met().then_some(()))
    }

    /// Whether no live process uses `directory` to communicate.
    pub fn is_deserted(directory: impl AsRef<Path>) -> io::Result<bool> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let rank = name.to_str().and_then(|name| name.strip_suffix(".lock"));
            if rank.and_then(parse_rank_name).is_some() && is_alive(&entry.path())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, source: io::Error) -> Error {
        Error::Files { path: self.directory.display().to_string(), source }
    }

    fn is_gone(&self, gone: Gone, so: &str) -> Error {
        let Gone { rank, had_lived } = gone;
        Error::apart(match (rank == self.rank, had_lived) {
            (true, _) => format!(
                "this rank, {rank}, counts as gone: others do not see its lock, or it could not read their messages"
            ),
            (false, true) => format!("rank {rank} is gone, {so}"),
            (false, false) => format!(
                "rank {rank} is gone, {so}; or its lock is not seen here: all ranks need a file system with locks \
                 (fcntl) that are seen everywhere"
            ),
        })
    }

    /// Looks for messages, if the next look is due.
    fn look(&self, state: &mut State) -> Result<()> {
        let now = self.start.elapsed();
        if state.pace.is_time(now) {
            let has_news = state.talk.look(now).map_err(|source| self.failure(source))?;
            state.pace.looked(now, self.start.elapsed(), has_news);
        }
        Ok(())
    }

    /// The messages of other ranks; an error if no more will come.
    fn listen(&self, state: &mut State) -> Result<Vec<(u32, Vec<u8>)>> {
        self.look(state)?;
        let messages = state.talk.heard();
        if !messages.is_empty() {
            return Ok(messages);
        }
        if let Some(gone) = state.talk.gone() {
            return Err(self.is_gone(gone, "so versions in flight will not be complete"));
        }
        match state.talk.doubt() {
            Some((since, doubt)) if self.start.elapsed() - since > self.patience => {
                let seconds = self.patience.as_secs_f64();
                Err(Error::apart(format!("messages of other ranks could not be read for {seconds} s: {doubt}")))
            }
            _ => Ok(messages),
        }
    }

    /// Looks until `find` returns something. Fails after the timeout, or if a rank is gone. Between
    /// two looks, other threads can use the state.
    fn until<T>(&self, what: &str, mut find: impl FnMut(&mut Talk<Directory>) -> Option<T>) -> Result<T> {
        let start = self.start.elapsed();
        let mut next_ask = start + ASK_EVERY;
        self.state().pace.hurry(start);
        loop {
            let mut state = self.state();
            self.look(&mut state)?;
            if let Some(found) = find(&mut state.talk) {
                return Ok(found);
            }
            if let Some(gone) = state.talk.gone() {
                return Err(self.is_gone(gone, "and this one waits for it"));
            }
            let now = self.start.elapsed();
            if now - start > self.patience {
                let doubt = state.talk.doubt().map_or(String::new(), |(_, doubt)| format!("; {doubt}"));
                let (count, seconds) = (self.count, self.patience.as_secs_f64());
                return Err(Error::apart(format!(
                    "not all {count} ranks reached the call \"{what}\" within {seconds} s{doubt}"
                )));
            }
            let pause = state.pace.next().saturating_sub(now);
            drop(state);
            if now > next_ask {
                patience::ask(Awaited::Others).map_err(Error::Interrupted)?;
                next_ask = now + ASK_EVERY;
            }
            thread::sleep(pause);
        }
    }
}

impl Ranks for SharedDirectory {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn count(&self) -> u32 {
        self.count
    }

    fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.state().talk.contribute(topic, mine).map_err(|source| self.failure(source))?;
        self.until(topic, |talk| talk.complete(topic))
    }

    fn announce(&self, message: &[u8]) -> Result<()> {
        let mut state = self.state();
        // Others are likely to announce something too.
        state.pace.hurry(self.start.elapsed());
        state.talk.announce(message).map_err(|source| self.failure(source))
    }

    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut state = self.state();
        let heard = self.listen(&mut state);
        if heard.is_err() {
            // A caller that gets an error may never call again.
            state.talk.leave();
        }
        heard
    }
}

/// Random bytes.
pub fn rand_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
