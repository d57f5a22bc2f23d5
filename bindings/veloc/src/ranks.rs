//! The processes that save together, and how they find each other.
//!
//! Programs often use MPI from one thread only, and versions are committed by others. So MPI is
//! used once, to agree on a directory, and from then on ranks talk through files in it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, SystemTime},
};

use outcrop::store::{Ranks as _, SharedDirectory};

use crate::{
    client::Client,
    config::Config,
    failure::{Failure, Result, say},
};

/// How long a rank waits for the others to come to the same call. They may compute for long; one
/// that has ended is noticed at once.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// How long a directory that another rank has made may take to appear: network file systems
/// remember for a while what was not there.
const APPEARANCE: Duration = Duration::from_secs(10);

/// What the directories are called in which ranks talk.
const DIRECTORY: &str = ".outcrop-ranks-";

/// A directory in which nobody takes part is left over once it is so old. A younger one may be that
/// of a run which begins.
const LEFT_OVER: Duration = Duration::from_secs(60);

/// How long others may keep this one waiting before it says so.
const SILENCE: Duration = Duration::from_secs(60);

/// This process among those that save together.
pub(crate) enum Ranks {
    /// By itself, with the number that the program gave it.
    Single(u32),
    Together(Together),
}

/// Several, that talk through a directory.
pub(crate) struct Together {
    directory: PathBuf,
    shared: Arc<SharedDirectory>,
    /// How many of them are on this machine.
    local_count: u32,
}

/// The same, for a store.
pub(crate) struct Voice(Arc<SharedDirectory>);

impl outcrop::store::Ranks for Voice {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn count(&self) -> u32 {
        self.0.count()
    }

    fn gather(&self, topic: &str, mine: &[u8]) -> outcrop::store::RanksResult<Vec<Vec<u8>>> {
        self.0.gather(topic, mine)
    }

    fn announce(&self, message: &[u8]) -> outcrop::store::RanksResult<()> {
        self.0.announce(message)
    }

    fn heard(&self) -> outcrop::store::RanksResult<Vec<(u32, Vec<u8>)>> {
        self.0.heard()
    }
}

impl Ranks {
    /// The number of this process.
    pub(crate) fn rank(&self) -> u32 {
        match self {
            Self::Single(id) => *id,
            Self::Together(together) => together.shared.rank(),
        }
    }

    /// How many of them share this machine.
    pub(crate) fn local_count(&self) -> u32 {
        match self {
            Self::Single(_) => 1,
            Self::Together(together) => together.local_count.max(1),
        }
    }

    /// What a store talks through; nothing if there is one process only.
    pub(crate) fn voice(&self) -> Option<Voice> {
        match self {
            Self::Single(_) => None,
            Self::Together(together) => Some(Voice(Arc::clone(&together.shared))),
        }
    }

    /// Who says that it waits; nobody if there is one process only.
    pub(crate) fn notice(&self) -> Notice {
        Notice(matches!(self, Self::Together(_)).then(|| self.rank()))
    }

    /// Everybody's contribution, by rank.
    pub(crate) fn gather(&self, topic: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        match self {
            Self::Single(_) => Ok(vec![mine.to_vec()]),
            Self::Together(together) => Ok(together.shared.gather(topic, mine)?),
        }
    }

    /// Whether all went well everywhere; else what went wrong on the first rank where something
    /// did, or where something is short.
    pub(crate) fn agree(&self, topic: &str, mine: Option<&Failure>) -> Result<Option<Failure>> {
        let everybody = self.gather(topic, &mine.map(Failure::encode).unwrap_or_default())?;
        let failures = everybody.iter().zip(0..).filter_map(|(message, rank)| {
            let rank = if let Self::Single(id) = self { *id } else { rank };
            Some(Failure::decode(message)?.at(format_args!("rank {rank}")))
        });
        Ok(failures.min_by_key(|failure| !failure.is_shortage))
    }

    /// Parts, when all do.
    pub(crate) fn leave(self) -> Result<()> {
        // Nobody is missed by another one that still listens.
        self.notice().together("VELOC_Finalize", || self.gather("veloc leave", &[]))?;
        if let Self::Together(together) = self {
            let rank = together.shared.rank();
            drop(together.shared);
            // The last one: others may still read there what this one has said.
            if is_deserted(&together.directory) {
                remove(&together.directory);
            }
            // A run that was killed just before this one was too young when this one began.
            if let Some(base) = together.directory.parent().filter(|_| rank == 0) {
                remove_left_over(base);
            }
        }
        Ok(())
    }
}

/// Says so when a rank waits long for others.
#[derive(Clone, Copy)]
pub(crate) struct Notice(Option<u32>);

impl Notice {
    /// Does something for which all ranks must come.
    pub(crate) fn together<T>(self, what: &str, action: impl FnOnce() -> T) -> T {
        let Some(rank) = self.0 else { return action() };
        let sentence = format!("{what} waits for other ranks; all of them have to call it");
        unless_in_time(SILENCE, move || say(rank, sentence), action)
    }
}

/// Ranks that are about to come together.
pub(crate) struct Meeting {
    config: Config,
    rank: u32,
    count: u32,
    local_count: u32,
    directory: PathBuf,
}

impl Meeting {
    /// The first step, on all ranks with the same number: rank 0 makes the directory.
    pub(crate) fn call(config: Config, rank: u32, count: u32, local_count: u32, number: u64) -> Result<Self> {
        let base = config.shared().clone();
        fs::create_dir_all(&base).map_err(|error| cannot_make(&base, &error))?;
        let directory = base.join(format!("{DIRECTORY}{number:016x}"));
        if rank == 0 {
            remove_left_over(&base);
            fs::create_dir(&directory).map_err(|error| cannot_make(&directory, &error))?;
        }
        Ok(Self { config, rank, count, local_count, directory })
    }

    /// The second, when rank 0 has made it: whether this one sees it.
    pub(crate) fn look(&self) -> Result<()> {
        let pause = Duration::from_millis(50);
        for _ in 0..APPEARANCE.as_millis() / pause.as_millis() {
            if self.directory.is_dir() {
                return Ok(());
            }
            thread::sleep(pause);
        }
        let base = self.config.shared().display().to_string();
        let remedy = "set `meta` or `persistent` to a directory that all ranks share";
        Err(Failure::new(format!("rank {} does not see what rank 0 has made in {base}; {remedy}", self.rank)))
    }

    /// The third, when all see it.
    pub(crate) fn join(self) -> Result<Client> {
        let open = || SharedDirectory::open_with(&self.directory, self.rank, self.count, PATIENCE);
        let shared = Notice(Some(self.rank)).together("VELOC_Init", open)?;
        let together = Together { directory: self.directory, shared: Arc::new(shared), local_count: self.local_count };
        Client::open(self.config, Ranks::Together(together))
    }

    /// Instead of what would have come next.
    pub(crate) fn call_off(self) {
        if self.rank == 0 {
            remove(&self.directory);
        }
    }
}

/// Does something, and something else meanwhile if it takes longer.
fn unless_in_time<T>(limit: Duration, otherwise: impl FnOnce() + Send, action: impl FnOnce() -> T) -> T {
    thread::scope(|scope| {
        let (end, ended) = mpsc::channel::<()>();
        // Without this thread nothing is said, and all else is the same.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                otherwise();
            }
        });
        let result = action();
        drop(end);
        result
    })
}

fn cannot_make(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be made: {error}; choose another directory in the configuration", path.display()))
}

fn remove(directory: &Path) {
    // What stays is removed by a later run.
    let _ = fs::remove_dir_all(directory);
}

/// Removes directories of runs that were killed.
fn remove_left_over(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_old = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > LEFT_OVER));
        if is_old && entry.file_name().to_string_lossy().starts_with(DIRECTORY) && is_deserted(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Whether no rank takes part in it. Where that cannot be told, somebody may.
fn is_deserted(directory: &Path) -> bool {
    SharedDirectory::is_deserted(directory).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn who_waits_long_says_so() {
        let said = AtomicBool::new(false);
        let is_said = || said.load(SeqCst);
        let say = || said.store(true, SeqCst);
        assert_eq!(unless_in_time(Duration::from_secs(600), say, || 5), 5);
        assert!(!is_said());
        unless_in_time(Duration::from_millis(1), say, || {
            while !is_said() {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn directories_in_which_somebody_takes_part_are_not_left_over() {
        let base = tempfile::tempdir().unwrap();
        let (alive, dead) = (base.path().join(".outcrop-ranks-1"), base.path().join(".outcrop-ranks-2"));
        let taking_part = SharedDirectory::open(&alive, 0, 1).unwrap();
        drop(SharedDirectory::open(&dead, 0, 1).unwrap());
        assert!(!is_deserted(&alive) && is_deserted(&dead));
        remove_left_over(base.path());
        assert!(alive.exists() && dead.exists(), "both are young");
        drop(taking_part);
        assert!(is_deserted(&alive));
    }
}
