//! Ranks that talk through files in a directory that all of them see.
//!
//! Each rank appends what it has to say to a mailbox of its own, and reads what is new in those of
//! the others. A lock file says that it lives. Files of an earlier run may still be there: a rank
//! believes another one only when that has repeated the random number which this one has just
//! chosen.

use std::{
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use outcrop_format::{Hello, Nonce, Record, parse_rank_name, rank_name};
use outcrop_local::{Alive, Watch, is_alive};

use crate::{
    Error, Ranks, Result,
    exchange::Exchanges,
    mailbox::{Inbox, Outbox},
};

/// How long a rank waits by default for the others to appear, or to come to the same call.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two looks into the mailboxes of others: short at first, and longer the longer nothing
/// comes.
const LOOK_MIN: Duration = Duration::from_micros(200);
const LOOK_MAX: Duration = Duration::from_millis(20);

/// Between two looks whether the others live.
const LIVES_EVERY: Duration = Duration::from_millis(100);

const LOCK: &str = "lock";
const MAILBOX: &str = "mailbox";

/// Processes of one run that see the same directory.
///
/// It must be on a file system with locks that all of them see (`fcntl`).
pub struct SharedDirectory {
    directory: PathBuf,
    rank: u32,
    count: u32,
    patience: Duration,
    /// Says that this process takes part.
    _alive: Alive,
    state: Mutex<State>,
}

struct State {
    rank: u32,
    mine: Outbox,
    others: Vec<Other>,
    exchanges: Exchanges,
    /// When it was last looked whether the others live.
    looked: Option<Instant>,
    /// One that took part and does no more.
    gone: Option<u32>,
}

/// What is known of another rank.
struct Other {
    rank: u32,
    /// Its mailbox and its lock file, once they have been found to be of this run.
    met: Option<(Inbox, Watch)>,
    messages: Vec<Vec<u8>>,
    /// How far it has read the mailbox of this rank.
    read_mine: u64,
    /// What is wrong with its mailbox, as it was last seen.
    doubt: Option<String>,
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
    /// Takes part as `rank` of `count`, and waits until all others do.
    pub fn open(directory: impl AsRef<Path>, rank: u32, count: u32) -> Result<Self> {
        Self::open_with(directory, rank, count, PATIENCE)
    }

    /// As [`open`](Self::open), but waits no longer than `patience` for others, now and later.
    pub fn open_with(directory: impl AsRef<Path>, rank: u32, count: u32, patience: Duration) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        if rank >= count {
            return Err(Error::apart(format!("rank {rank} is not below {count}, the number of ranks")));
        }
        let failure = |source: io::Error| Error::Files { path: directory.display().to_string(), source };
        fs::create_dir_all(&directory).map_err(failure)?;
        let alive = Alive::hold(&file_of(&directory, rank, LOCK)).map_err(failure)?.ok_or_else(|| {
            let path = directory.display();
            Error::apart(format!("another process takes part as rank {rank} in {path}; end it first"))
        })?;
        let nonce = rand_bytes().map_err(failure)?;
        let mine = Outbox::make(&file_of(&directory, rank, MAILBOX), &Hello { rank, count, nonce }).map_err(failure)?;
        let others = (0..count).filter(|&other| other != rank);
        let others =
            others.map(|rank| Other { rank, met: None, messages: Vec::new(), read_mine: 0, doubt: None }).collect();
        let exchanges = Exchanges::new(rank, count);
        let state = Mutex::new(State { rank, mine, others, exchanges, looked: None, gone: None });
        let ranks = Self { directory, rank, count, patience, _alive: alive, state };
        ranks.meet(nonce)?;
        Ok(ranks)
    }

    /// Whether no process takes part in the run that talks through `directory`, or ever did.
    pub fn is_deserted(directory: impl AsRef<Path>) -> io::Result<bool> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let rank = name.to_str().and_then(|name| name.strip_suffix(LOCK)?.strip_suffix('.'));
            if rank.and_then(parse_rank_name).is_some() && is_alive(&entry.path())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until every other rank has said that it has seen this one, and says so of them.
    fn meet(&self, nonce: Nonce) -> Result<()> {
        let me = Record::Seen { rank: self.rank, nonce };
        let mut seen = vec![None; self.count as usize];
        self.until("join the run", |state| {
            for other in state.others.iter_mut().filter(|other| other.met.is_none()) {
                let found = doubtful(self.look(other.rank, &me), &mut other.doubt)?.flatten();
                let Some((inbox, has_met)) = found else { continue };
                let seen = &mut seen[other.rank as usize];
                if *seen != Some(inbox.hello().nonce) {
                    state.mine.add(&Record::Seen { rank: other.rank, nonce: inbox.hello().nonce })?;
                    *seen = Some(inbox.hello().nonce);
                }
                if has_met {
                    let watch = Watch::open(&file_of(&self.directory, other.rank, LOCK))?;
                    other.met = watch.map(|watch| (inbox, watch));
                }
            }
            Ok(state.others.iter().all(|other| other.met.is_some()))
        })
    }

    /// The mailbox of a rank as it is now, to be read from its beginning, and whether it says
    /// `words`.
    fn look(&self, rank: u32, words: &Record<'_>) -> io::Result<Option<(Inbox, bool)>> {
        let Some(mut inbox) = Inbox::open(&file_of(&self.directory, rank, MAILBOX))? else { return Ok(None) };
        let Hello { rank: found, count, .. } = *inbox.hello();
        if (found, count) != (rank, self.count) {
            let reason = format!("the mailbox of rank {rank} of {} is that of rank {found} of {count}", self.count);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        let mut is_said = false;
        inbox.read(|record| is_said |= record == *words)?;
        inbox.rewind();
        Ok(Some((inbox, is_said)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, source: io::Error) -> Error {
        Error::Files { path: self.directory.display().to_string(), source }
    }

    /// Looks until `is_done` says so. An error if it takes too long, or if a rank that was there is
    /// gone. Between two looks other threads can speak.
    fn until(&self, what: &str, mut is_done: impl FnMut(&mut State) -> io::Result<bool>) -> Result<()> {
        let start = Instant::now();
        let mut pause = LOOK_MIN;
        loop {
            let mut state = self.state();
            // Before the look, so that the last words of a rank are not missed.
            let gone = state.look_for_gone(&self.directory).map_err(|source| self.failure(source))?;
            if is_done(&mut state).map_err(|source| self.failure(source))? {
                return Ok(());
            }
            let doubt = state.others.iter().find_map(|other| other.doubt.clone());
            drop(state);
            if let Some(rank) = gone {
                return Err(Error::apart(format!("rank {rank} is gone, and this one waits for it")));
            }
            if start.elapsed() > self.patience {
                let seconds = self.patience.as_secs_f64();
                let doubt = doubt.map_or(String::new(), |doubt| format!("; {doubt}"));
                let detail = format!("not all {} ranks came to {what} within {seconds} s{doubt}", self.count);
                return Err(Error::apart(detail));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
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
        let mut state = self.state();
        if let Some(number) = state.exchanges.due(topic) {
            let record = Record::Gather { topic, number, contribution: mine };
            state.mine.add(&record).map_err(|source| self.failure(source))?;
            state.exchanges.contributed(topic, mine);
        }
        drop(state);
        let mut gathered = Vec::new();
        self.until(topic, |state| {
            state.read_on()?;
            let complete = state.exchanges.complete(topic);
            Ok(complete.map(|everybody| gathered = everybody).is_some())
        })?;
        Ok(gathered)
    }

    fn announce(&self, message: &[u8]) -> Result<()> {
        self.state().mine.add(&Record::Message(message)).map_err(|source| self.failure(source))
    }

    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut state = self.state();
        // Before the files are read, so that the last words of a rank are not missed.
        let gone = state.look_for_gone(&self.directory).map_err(|source| self.failure(source))?;
        state.read_on().map_err(|source| self.failure(source))?;
        let messages: Vec<_> = state
            .others
            .iter_mut()
            .flat_map(|other| other.messages.drain(..).map(|message| (other.rank, message)).collect::<Vec<_>>())
            .collect();
        match gone {
            Some(rank) if messages.is_empty() => {
                Err(Error::apart(format!("rank {rank} is gone, and with it the versions under way")))
            }
            _ => Ok(messages),
        }
    }
}

impl State {
    /// Takes in what others have said since the last time.
    fn read_on(&mut self) -> io::Result<()> {
        for Other { rank, met, messages, read_mine, doubt } in &mut self.others {
            let Some((inbox, _)) = met else { continue };
            let (exchanges, me) = (&mut self.exchanges, self.rank);
            let read = inbox.read(|record| match record {
                Record::Gather { topic, number, contribution } => exchanges.heard(*rank, topic, number, contribution),
                Record::Message(message) => messages.push(message.to_vec()),
                Record::Read { rank, end } if rank == me => *read_mine = end.max(*read_mine),
                Record::Seen { .. } | Record::Read { .. } => {}
            });
            doubtful(read, doubt)?;
            // If it cannot be said now, it is said later.
            if inbox.due().is_some_and(|read| self.mine.add(&read).is_ok()) {
                inbox.told();
            }
        }
        let read_by_all = self.others.iter().map(|other| other.read_mine).min();
        self.mine.free_up_to(read_by_all.unwrap_or(u64::MAX));
        Ok(())
    }

    /// A rank that took part and does no more: nobody holds its lock, or another process has taken
    /// its place. Looks now and then only, and remembers what it has found.
    fn look_for_gone(&mut self, directory: &Path) -> io::Result<Option<u32>> {
        let is_time = self.looked.is_none_or(|looked| looked.elapsed() >= LIVES_EVERY);
        if self.gone.is_none() && is_time {
            self.looked = Some(Instant::now());
            for Other { rank, met, .. } in &self.others {
                let Some((inbox, watch)) = met else { continue };
                if !watch.is_alive()? || inbox.is_replaced(&file_of(directory, *rank, MAILBOX))? {
                    self.gone = Some(*rank);
                    break;
                }
            }
        }
        Ok(self.gone)
    }
}

/// What was read, or nothing if it is not what was written. That is noted, and forgotten when it
/// has become right: a shared file system may show the length of a file before its bytes.
fn doubtful<T>(read: io::Result<T>, doubt: &mut Option<String>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => {
            *doubt = None;
            Ok(Some(read))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            *doubt = Some(error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn file_of(directory: &Path, rank: u32, what: &str) -> PathBuf {
    directory.join(format!("{}.{what}", rank_name(rank)))
}

/// Random bytes that no other process has.
pub fn rand_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
