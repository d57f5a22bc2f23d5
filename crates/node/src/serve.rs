//! Starts a daemon: its options, its place, and what a dead one has left.

use std::{
    fs,
    fs::File,
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use outcrop_format::JournalHeader;
use outcrop_grants::{Grants, PAGE_BYTES, Settings};
use outcrop_local::Alive;
use outcrop_memory::limits::Limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{
    daemon::Daemon,
    journal::{Journal, journal_bytes},
    place::{Place, said},
    reserve::{Reserve, find, journal_memfd},
};

/// The environment variable with the options of a daemon that a client starts, as JSON.
pub(crate) const OPTIONS: &str = "OUTCROP_NODE_OPTIONS";
/// The line by which a daemon says that it can be used.
pub(crate) const READY: &str = "outcrop-node: ready";
/// The line by which a daemon says that another one serves.
pub(crate) const BEATEN: &str = "outcrop-node: another one serves";
/// How the line begins by which a daemon says why it ends.
pub(crate) const FAILED: &str = "outcrop-node: failed: ";
/// How the reason begins if an option is wrong.
pub(crate) const WRONG: &str = "wrong option: ";
/// The least memory that makes sense.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// The options of a daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct ServeOptions {
    /// Where clients find it. Default: a directory of this user in the meeting place.
    pub directory: Option<PathBuf>,
    /// The most memory that it uses. Default: a quarter of the machine's.
    pub memory_bytes: Option<u64>,
    /// How many drains are under way at once: 1, 2 or 4. Default: 2.
    pub threads: usize,
    /// The cores that drain threads are pinned to. Default: none.
    pub cores: Vec<usize>,
    /// A file for the memory: what is in it survives all processes. Default: memory without a name.
    pub reserve: Option<PathBuf>,
    /// Ends when it has had no clients and nothing to do for this time. Default: never.
    pub idle: Option<Duration>,
    /// Touches all memory at once, and keeps it. Default: as it is used.
    pub touch_all: bool,
    /// Polls for messages instead of sleeping: faster answers, and one core is always busy.
    pub poll: bool,
    /// Keeps checksums of what was drained, so that it can be verified. Default: yes.
    pub keep_sums: bool,
    /// Reads back everything that was drained, and compares it while it is still in memory.
    pub verify: bool,
    /// A new file for a timeline, for Perfetto. Default: none.
    pub trace: Option<PathBuf>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            directory: None,
            memory_bytes: None,
            threads: 2,
            cores: Vec::new(),
            reserve: None,
            idle: None,
            touch_all: false,
            poll: false,
            keep_sums: true,
            verify: false,
            trace: None,
        }
    }
}

impl ServeOptions {
    /// The options that the client has given that starts this daemon; `None` if no client did.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn from_environment() -> io::Result<Option<Self>> {
        let Some(text) = std::env::var_os(OPTIONS) else { return Ok(None) };
        let parsed = text.to_str().and_then(|text| serde_json::from_str(text).ok());
        match parsed {
            Some(options) => Ok(Some(options)),
            None => {
                let text = format!("the environment variable {OPTIONS} has no options of a daemon: {text:?}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
        }
    }

    fn settings(&self, reserve_bytes: u64) -> Settings {
        Settings { drains_max: self.threads.clamp(1, 64), ..Settings::new(reserve_bytes) }
    }

    /// How much memory to use at most.
    ///
    /// # Errors
    /// If it is more than the machine has, or too little.
    pub fn memory(&self) -> io::Result<u64> {
        let most = Limits::read()?.most;
        let bytes = self.memory_bytes.unwrap_or(most.bytes / 4) / PAGE_BYTES * PAGE_BYTES;
        let refuse = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        if bytes > most.bytes {
            return refuse(format!("{bytes} bytes of memory cannot be had: {most}; give a lower limit"));
        }
        if bytes < MEMORY_BYTES_MIN {
            return refuse(format!("{bytes} bytes of memory are too few: give at least {MEMORY_BYTES_MIN}"));
        }
        Ok(bytes)
    }
}

/// Serves until it is stopped, or idle for the given time. Returns at once if another daemon serves
/// this directory.
///
/// # Errors
/// If it cannot start, or cannot go on.
pub fn serve(options: ServeOptions) -> io::Result<()> {
    raise_limit();
    let outcome = prepare(&options);
    let daemon = match outcome {
        Ok(Some(daemon)) => daemon,
        Ok(None) => {
            announce(BEATEN);
            return Ok(());
        }
        Err(error) => {
            let wrong = if error.kind() == io::ErrorKind::InvalidInput { WRONG } else { "" };
            announce(&format!("{FAILED}{wrong}{error}").replace('\n', " "));
            return Err(error);
        }
    };
    announce(READY);
    daemon.run()
}

/// Every file with bytes in memory needs descriptors.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most: Option<u64> = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    // Only root may raise the hard limit; everybody may use it up.
    if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Tells the client that waits for it. Nobody may.
fn announce(line: &str) {
    let mut output = io::stdout().lock();
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn prepare(options: &ServeOptions) -> io::Result<Option<Daemon>> {
    let place = Place::new(options.directory.as_deref())?;
    let Some(alive) = Alive::hold(&place.lock())? else { return Ok(None) };
    let (reserve, journal, grants) = match recovered(options, &place)? {
        Some(found) => found,
        None => created(options, &place)?,
    };
    Daemon::new(options.clone(), place, alive, Arc::new(reserve), journal, grants).map(Some)
}

/// What a dead daemon has left.
fn recovered(options: &ServeOptions, place: &Place) -> io::Result<Option<(Reserve, Journal, Grants)>> {
    let (reserve, journal) = match &options.reserve {
        Some(path) => {
            let open = |path: &PathBuf| File::options().read(true).write(true).open(path);
            match (open(path), open(&journal_path(path))) {
                (Ok(reserve), Ok(journal)) => (Reserve::file(&reserve)?, journal),
                _ => return Ok(None),
            }
        }
        None => {
            let Ok(text) = fs::read_to_string(place.nonce()) else { return Ok(None) };
            let Some((reserve, journal)) = u64::from_str_radix(text.trim(), 16).ok().and_then(find) else {
                tracing::warn!("a daemon has died, and so have all its clients: what was not drained is lost");
                return Ok(None);
            };
            (Reserve::of_memfd(reserve.into())?, journal)
        }
    };
    let (mut journal, records) = match Journal::open(journal) {
        Ok(opened) => opened,
        // It was made, and never used.
        Err(error) if options.reserve.is_some() => {
            tracing::warn!(%error, "the journal of the reserve cannot be read: a new one begins");
            return Ok(None);
        }
        Err(error) => return Err(said(&error, "read the journal of a daemon that has died")),
    };
    if journal.header().reserve_bytes != reserve.bytes() {
        let text = "the journal belongs to another reserve: remove both files, or give the right one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    journal.next_generation()?;
    let grants = Grants::recover(options.settings(reserve.bytes()), records);
    journal.begin_half(&grants.records())?;
    Ok(Some((reserve, journal, grants)))
}

pub(crate) fn journal_path(reserve: &std::path::Path) -> PathBuf {
    let mut path = reserve.as_os_str().to_owned();
    path.push(".journal");
    path.into()
}

fn created(options: &ServeOptions, place: &Place) -> io::Result<(Reserve, Journal, Grants)> {
    let bytes = options.memory()?;
    let nonce = crate::start::random();
    let settings = options.settings(bytes);
    let (half_bytes, journal_bytes) = journal_bytes(settings.pieces_max);
    let header = JournalHeader { nonce, reserve_bytes: bytes, half_bytes };
    let (reserve, journal) = match &options.reserve {
        Some(path) => {
            let make = |path: &PathBuf, bytes: u64| -> io::Result<File> {
                let mut how = File::options();
                let how = how.read(true).write(true).create(true).truncate(true);
                let file = std::os::unix::fs::OpenOptionsExt::mode(how, 0o600).open(path);
                let file = file.map_err(|error| said(&error, format!("make the file {}", path.display())))?;
                file.set_len(bytes)?;
                Ok(file)
            };
            (Reserve::file(&make(path, bytes)?)?, make(&journal_path(path), journal_bytes)?)
        }
        None => (Reserve::memfd(nonce, bytes)?, journal_memfd(nonce, journal_bytes)?),
    };
    let journal = Journal::create(journal, header)?;
    fs::write(place.nonce(), format!("{nonce:016x}"))?;
    Ok((reserve, journal, Grants::new(settings)))
}
