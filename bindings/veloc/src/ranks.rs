//! The processes that save together, and how they find each other.
//!
//! Programs often use MPI from one thread only, and versions are committed by others. So MPI is
//! used once, to agree on a directory, and from then on ranks talk through files in it.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use outcrop::store::{Gathered, Ranks as _, RanksError, Rendezvous};

use crate::{
    client::Client,
    config::Config,
    failure::{Failure, Result, say},
};

/// How long a rank waits for the others to come to the same call. They may compute for long; one
/// that has ended is noticed at once.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

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
    shared: Arc<Gathered>,
    /// How many of them are on this machine.
    local_count: u32,
}

/// The same, for a store.
pub(crate) struct Voice(Arc<Gathered>);

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
    local_count: u32,
    rendezvous: Rendezvous,
}

impl Meeting {
    /// The first step, on all ranks with the same number.
    pub(crate) fn call(config: Config, rank: u32, count: u32, local_count: u32, number: u64) -> Result<Self> {
        let rendezvous = Rendezvous::call(config.shared(), rank, count, number).map_err(elsewhere)?;
        Ok(Self { config, rank, local_count, rendezvous })
    }

    /// The second, when all have done the first.
    pub(crate) fn look(&self) -> Result<()> {
        self.rendezvous.look().map_err(elsewhere)
    }

    /// The third, when all have done the second.
    pub(crate) fn join(self) -> Result<Client> {
        let join = || self.rendezvous.join(PATIENCE).and_then(|joined| joined.meet().map(|()| joined));
        let shared = Notice(Some(self.rank)).together("VELOC_Init", join)?;
        let together = Together { shared: Arc::new(shared), local_count: self.local_count };
        Client::open(self.config, Ranks::Together(together))
    }

    /// Instead of what would have come next.
    pub(crate) fn call_off(self) {
        self.rendezvous.call_off();
    }
}

fn elsewhere(error: RanksError) -> Failure {
    Failure::new(format!("{error} (`meta` or `persistent` in the configuration)"))
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
}
