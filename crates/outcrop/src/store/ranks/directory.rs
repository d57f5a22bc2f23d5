//! Ranks that talk through files in a directory that all of them see.
//!
//! Each rank appends what it has to say to a file of its own, and reads what is new in the files of the others. A lock on
//! another file says that it lives. Files of an earlier run may still be there: a rank believes another one only when that
//! has repeated the random number which this one has just chosen.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::Ranks;
use crate::{Error, Result};

/// How long a rank waits for the others to appear, or to come to the same call, where it is not said.
const PATIENCE: Duration = Duration::from_secs(300);

/// Between two looks into the files of others: short at first, and longer the longer nothing comes.
const LOOK_MIN: Duration = Duration::from_micros(200);
const LOOK_MAX: Duration = Duration::from_millis(20);

/// What a record is.
const HELLO: u8 = 1;
const SEEN: u8 = 2;
const GATHER: u8 = 3;
const MESSAGE: u8 = 4;

/// What was read of a file: records, each with its kind, and where the next one begins.
type Records = (Vec<(u8, Vec<u8>)>, u64);

/// A record: its kind, the length of what follows, and that.
const HEAD_BYTES: usize = 5;
const RECORD_BYTES_MAX: u32 = 1 << 30;

/// Processes of one run that see the same directory.
pub struct SharedDirectory {
    directory: PathBuf,
    rank: u32,
    count: u32,
    patience: Duration,
    /// Kept locked for as long as this process takes part.
    _lock: File,
    state: Mutex<State>,
}

struct State {
    mine: File,
    others: Vec<Other>,
}

/// What is known of another rank.
struct Other {
    rank: u32,
    /// Its file, once it has been found to be of this run.
    log: Option<File>,
    read_bytes: u64,
    /// What it has contributed to each topic and has not been gathered.
    gathers: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    messages: Vec<Vec<u8>>,
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
            return Err(Error::Ranks { detail: format!("rank {rank} is not below {count}, the number of ranks") });
        }
        let failure = |source: io::Error| Error::RankFiles { path: directory.display().to_string(), source };
        fs::create_dir_all(&directory).map_err(failure)?;
        let lock = lock(&directory, rank)?;
        let nonce: [u8; 16] = rand_bytes().map_err(failure)?;
        // Under another name first, so that nobody reads the beginning of a file that is not there yet.
        let draft = directory.join(format!("rank-{rank:05}.new"));
        let mut mine = File::create(&draft).map_err(failure)?;
        write_record(&mut mine, HELLO, &nonce).map_err(failure)?;
        fs::rename(&draft, log_path(&directory, rank)).map_err(failure)?;
        let others = (0..count).filter(|&other| other != rank).map(Other::new).collect();
        let state = Mutex::new(State { mine, others });
        let ranks = Self { directory, rank, count, patience, _lock: lock, state };
        ranks.meet(nonce)?;
        Ok(ranks)
    }

    /// Waits until every other rank has said that it has seen this one, and says so of them.
    fn meet(&self, nonce: [u8; 16]) -> Result<()> {
        let mut seen = vec![None; self.count as usize];
        self.until("join the run", |state| {
            let mut has_met_all = true;
            for index in 0..state.others.len() {
                let rank = state.others[index].rank;
                let Some((log, (records, read_bytes))) = self.look(rank)? else {
                    has_met_all = false;
                    continue;
                };
                let hello = records.first().filter(|(kind, _)| *kind == HELLO).map(|(_, text)| text.clone());
                if let Some(hello) = hello.filter(|hello| seen[rank as usize].as_ref() != Some(hello)) {
                    write_record(&mut state.mine, SEEN, &[&rank.to_le_bytes(), &hello[..]].concat())?;
                    seen[rank as usize] = Some(hello);
                }
                let me = [&self.rank.to_le_bytes(), &nonce[..]].concat();
                let has_met = records.iter().any(|(kind, text)| *kind == SEEN && *text == me);
                let other = &mut state.others[index];
                if has_met && other.log.is_none() {
                    other.log = Some(log);
                    other.take(records);
                    other.read_bytes = read_bytes;
                }
                has_met_all &= has_met;
            }
            Ok(has_met_all)
        })
    }

    /// The file of a rank as it is now.
    fn look(&self, rank: u32) -> io::Result<Option<(File, Records)>> {
        let log = match File::open(log_path(&self.directory, rank)) {
            Ok(log) => log,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let records = read_records(&log, 0)?;
        Ok(Some((log, records)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self, source: io::Error) -> Error {
        Error::RankFiles { path: self.directory.display().to_string(), source }
    }

    /// Looks until `is_done` says so. An error if it takes too long, or if a rank that was there is gone. Between two looks
    /// other threads can speak.
    fn until(&self, what: &str, mut is_done: impl FnMut(&mut State) -> io::Result<bool>) -> Result<()> {
        let start = Instant::now();
        let mut pause = LOOK_MIN;
        loop {
            let mut state = self.state();
            // Before the look, so that the last words of a rank are not missed.
            let gone = state.others.iter().find(|other| other.log.is_some() && self.is_gone(other.rank));
            let gone = gone.map(|other| other.rank);
            if is_done(&mut state).map_err(|source| self.failure(source))? {
                return Ok(());
            }
            drop(state);
            if let Some(rank) = gone {
                return Err(Error::Ranks { detail: format!("rank {rank} is gone, and this one waits for it") });
            }
            if start.elapsed() > self.patience {
                let seconds = self.patience.as_secs_f64();
                let detail = format!("not all {} ranks came to {what} within {seconds} s", self.count);
                return Err(Error::Ranks { detail });
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    /// Whether nobody holds the lock of a rank. It is only tried to be shared, so that it does not look taken.
    fn is_gone(&self, rank: u32) -> bool {
        let Ok(file) = File::open(lock_path(&self.directory, rank)) else { return true };
        flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
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
        let record = [topic.as_bytes(), &[0], mine].concat();
        write_record(&mut self.state().mine, GATHER, &record).map_err(|source| self.failure(source))?;
        let mut gathered = Vec::new();
        self.until(topic, |state| {
            state.read_on()?;
            let has_all = state.others.iter().all(|other| other.has_contributed(topic));
            if has_all {
                gathered = state.others.iter_mut().filter_map(|other| other.contribution(topic)).collect();
            }
            Ok(has_all)
        })?;
        gathered.push((self.rank, mine.to_vec()));
        gathered.sort_by_key(|(rank, _)| *rank);
        Ok(gathered.into_iter().map(|(_, message)| message).collect())
    }

    fn announce(&self, message: &[u8]) -> Result<()> {
        write_record(&mut self.state().mine, MESSAGE, message).map_err(|source| self.failure(source))
    }

    fn heard(&self) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut state = self.state();
        // Before the files are read, so that the last words of a rank are not missed.
        let gone = state.others.iter().map(|other| other.rank).find(|&rank| self.is_gone(rank));
        state.read_on().map_err(|source| self.failure(source))?;
        let messages: Vec<_> = state
            .others
            .iter_mut()
            .flat_map(|other| other.messages.drain(..).map(|message| (other.rank, message)).collect::<Vec<_>>())
            .collect();
        match gone {
            Some(rank) if messages.is_empty() => {
                Err(Error::Ranks { detail: format!("rank {rank} is gone, and with it the versions under way") })
            }
            _ => Ok(messages),
        }
    }
}

impl State {
    fn read_on(&mut self) -> io::Result<()> {
        for other in &mut self.others {
            let Some(log) = &other.log else { continue };
            let (records, read_bytes) = read_records(log, other.read_bytes)?;
            other.read_bytes = read_bytes;
            other.take(records);
        }
        Ok(())
    }
}

impl Other {
    fn new(rank: u32) -> Self {
        Self { rank, log: None, read_bytes: 0, gathers: HashMap::new(), messages: Vec::new() }
    }

    fn has_contributed(&self, topic: &str) -> bool {
        self.gathers.get(topic.as_bytes()).is_some_and(|gathers| !gathers.is_empty())
    }

    fn contribution(&mut self, topic: &str) -> Option<(u32, Vec<u8>)> {
        Some((self.rank, self.gathers.get_mut(topic.as_bytes())?.pop_front()?))
    }

    fn take(&mut self, records: Vec<(u8, Vec<u8>)>) {
        for (kind, text) in records {
            match kind {
                GATHER => {
                    let (topic, contribution) = text.split_at(text.iter().position(|&byte| byte == 0).unwrap_or(0));
                    let contribution = contribution.get(1..).unwrap_or_default().to_vec();
                    self.gathers.entry(topic.to_vec()).or_default().push_back(contribution);
                }
                MESSAGE => self.messages.push(text),
                _ => {}
            }
        }
    }
}

fn log_path(directory: &Path, rank: u32) -> PathBuf {
    directory.join(format!("rank-{rank:05}.log"))
}

fn lock_path(directory: &Path, rank: u32) -> PathBuf {
    directory.join(format!("rank-{rank:05}.lock"))
}

fn lock(directory: &Path, rank: u32) -> Result<File> {
    let path = lock_path(directory, rank);
    let failure = |source: io::Error| Error::RankFiles { path: path.display().to_string(), source };
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(failure)?;
    // Others look at it for a moment now and then.
    for _ in 0..100 {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(5)),
            Err(errno) => return Err(failure(errno.into())),
        }
    }
    let detail = format!("another process takes part as rank {rank} in {}; end it first", directory.display());
    Err(Error::Ranks { detail })
}

fn write_record(file: &mut File, kind: u8, text: &[u8]) -> io::Result<()> {
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= RECORD_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a message of more than 1 GiB"))?;
    file.write_all(&[&[kind], &length.to_le_bytes()[..], text].concat())
}

/// The complete records from `at` on, and where the next one begins.
fn read_records(file: &File, mut at: u64) -> io::Result<Records> {
    let mut fresh = vec![0; file.metadata()?.len().saturating_sub(at) as usize];
    let mut read = 0;
    while read < fresh.len() {
        match file.read_at(&mut fresh[read..], at + read as u64)? {
            0 => break,
            count => read += count,
        }
    }
    let mut rest = &fresh[..read];
    let mut records = Vec::new();
    while let Some((head, after)) = rest.split_at_checked(HEAD_BYTES) {
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((text, after)) = after.split_at_checked(length) else { break };
        records.push((head[0], text.to_vec()));
        at += (HEAD_BYTES + length) as u64;
        rest = after;
    }
    Ok((records, at))
}

/// Random bytes that no other process has.
pub(crate) fn rand_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}
