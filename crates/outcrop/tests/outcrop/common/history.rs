//! What was saved and promised, and whether it is still there after a crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use outcrop::{Retention, Session};

use super::{
    State,
    observed::{Observed, Sight},
};

/// Everything that was saved: the version and the state, by session, rank and stamp.
type Saves = BTreeMap<(String, u32, u64), (u64, State)>;

/// A version and its stamp.
type Stamped = (u64, u64);

/// Everything that was saved so far.
#[derive(Default)]
pub(crate) struct History {
    saved: Mutex<Saves>,
}

impl History {
    fn saved(&self) -> MutexGuard<'_, Saves> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call this before the save: the version may be found from then on.
    pub(crate) fn note(&self, session: &str, rank: u32, version: u64, state: &State) {
        self.saved().insert((session.to_owned(), rank, state.stamp), (version, state.clone()));
    }

    /// The state with this stamp, if it was saved as this version.
    pub(crate) fn state(&self, session: &str, rank: u32, version: u64, stamp: u64) -> Result<State, String> {
        match self.saved().get(&(session.to_owned(), rank, stamp)) {
            Some((saved_as, state)) if *saved_as == version => Ok(state.clone()),
            other => {
                let saved_as = other.map(|(version, _)| version);
                Err(format!("version {version} of {session} has the stamp {stamp}, which was saved as {saved_as:?}"))
            }
        }
    }
}

/// What was promised to the program, recorded as marks in a log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promises {
    /// By session and layer: what was reported as durable.
    durable: BTreeMap<(String, usize), BTreeSet<Stamped>>,
    /// By session: what was saved and then removed by a rewind.
    void: BTreeMap<String, BTreeSet<Stamped>>,
    /// Session, version and stamp: above this version, nothing with a lower stamp may be found.
    forgotten: Vec<(String, u64, u64)>,
}

/// The mark before a version is saved.
pub(crate) fn begun(session: &str, version: u64, stamp: u64) -> String {
    format!("begun {session} {version} {stamp}")
}

/// The mark after a version was reported as durable on a layer.
pub(crate) fn durable(session: &str, layer: usize, version: u64, stamp: u64) -> String {
    format!("durable {session} {layer} {version} {stamp}")
}

/// The mark before a rewind: versions above this one with lower stamps may be gone from now on.
pub(crate) fn rewinding(session: &str, version: u64, stamp: u64) -> String {
    format!("rewinding {session} {version} {stamp}")
}

/// The mark after a rewind: they must be gone.
pub(crate) fn forgotten(session: &str, version: u64, stamp: u64) -> String {
    format!("forgotten {session} {version} {stamp}")
}

impl Promises {
    /// The promises of the marks before a crash.
    pub(crate) fn of(marks: &[String]) -> Self {
        let mut promises = Self::default();
        let mut rewinds = Vec::new();
        let mut begun = BTreeMap::<&str, BTreeSet<Stamped>>::new();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        for mark in marks {
            match mark.split(' ').collect::<Vec<_>>()[..] {
                ["begun", session, version, stamp] => {
                    begun.entry(session).or_default().insert((number(version), number(stamp)));
                }
                ["durable", session, layer, version, stamp] => {
                    let key = (session.to_owned(), number(layer) as usize);
                    promises.durable.entry(key).or_default().insert((number(version), number(stamp)));
                }
                ["rewinding", session, version, stamp] => rewinds.push((session, number(version), number(stamp))),
                ["forgotten", session, version, stamp] => {
                    promises.forgotten.push((session.to_owned(), number(version), number(stamp)));
                }
                _ => panic!("unknown mark {mark:?}"),
            }
        }
        // One rank may rewind before another one reports that a version is durable.
        let is_void = |name: &str, (version, stamp): Stamped| {
            rewinds.iter().any(|(session, above, below)| name == *session && version > *above && stamp < *below)
        };
        for ((name, _), versions) in &mut promises.durable {
            versions.retain(|stamped| !is_void(name, *stamped));
        }
        for (name, versions) in begun {
            let void = versions.into_iter().filter(|stamped| is_void(name, *stamped)).collect();
            promises.void.insert(name.to_owned(), void);
        }
        promises
    }

    /// The versions that were reported as durable on a layer.
    pub(crate) fn on_layer(&self, session: &str, layer: usize) -> BTreeSet<u64> {
        let durable = self.durable.get(&(session.to_owned(), layer));
        durable.into_iter().flatten().map(|(version, _)| *version).collect()
    }

    /// The version that must be found, or a newer one: the newest that was durable anywhere.
    pub(crate) fn newest(&self, session: &str) -> Option<u64> {
        let of_session = self.durable.iter().filter(|((name, _), _)| name == session);
        of_session.filter_map(|(_, versions)| versions.last()).map(|(version, _)| *version).max()
    }

    fn check_remembered(&self, session: &str, version: u64, stamp: u64) -> Result<(), String> {
        let is_broken =
            |(name, above, below): &&(String, u64, u64)| name == session && version > *above && stamp < *below;
        match self.forgotten.iter().find(is_broken) {
            Some((_, above, _)) => Err(format!("version {version} of {session} is back after a rewind to {above}")),
            None => Ok(()),
        }
    }

    /// Checks all promises about a session. Each version must be complete, with exactly the bytes
    /// that were saved, or absent. It may be absent only if retention keeps newer complete ones
    /// instead.
    pub(crate) fn judge(&self, session: &str, observed: &Observed, keep: &[Retention]) -> Result<(), String> {
        for ((layer, rank), dir) in &observed.dirs {
            for (version, sight) in &dir.versions {
                let on = format_args!("version {version} of rank {rank} on layer {layer}");
                match sight {
                    Sight::Unreadable(reason) => return Err(format!("{on}: {reason}")),
                    // Other ranks may have lost packs that this one borrows. Then the version is
                    // not complete.
                    Sight::Listed { manifest, content: Err(reason), .. }
                        if !manifest.packs.iter().any(|pack| pack.is_borrowed) =>
                    {
                        return Err(format!("{on}: {reason}"));
                    }
                    Sight::Listed { .. } => {}
                }
            }
        }
        keep.iter().enumerate().try_for_each(|(layer, keep)| {
            self.judge_layer(session, observed, layer, keep).map_err(|reason| format!("layer {layer}: {reason}"))
        })
    }

    fn judge_layer(&self, session: &str, observed: &Observed, layer: usize, keep: &Retention) -> Result<(), String> {
        let complete = observed.complete(layer);
        for (version, (_, stamp)) in &complete {
            let stamp = stamp.as_ref().map_err(|reason| format!("version {version}: {reason}"))?;
            self.check_remembered(session, *version, *stamp)?;
        }
        // A little before now, so that versions with a retention time of 0 count as old.
        let recently = now_unix_ns().saturating_sub(1_000_000);
        let void = self.void.get(session).into_iter().flatten().map(|(version, _)| (*version, recently));
        let others: Vec<_> =
            complete.iter().map(|(version, (saved_at, _))| (*version, *saved_at)).chain(void).collect();
        for (version, stamp) in self.durable.get(&(session.to_owned(), layer)).into_iter().flatten() {
            match complete.get(version) {
                Some((_, found)) if found.as_ref().is_ok_and(|found| found == stamp) => {}
                Some((_, found)) => return Err(format!("version {version} was durable as {stamp}, and is {found:?}")),
                None => {
                    let all: Vec<_> = others.iter().copied().chain([(*version, recently)]).collect();
                    if !keep.dropped(now_unix_ns(), &all).contains(version) {
                        let there: Vec<_> = complete.keys().collect();
                        return Err(format!("version {version} was durable, and there are {there:?} ({keep:?})"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Restores the version that an open session finds to be the newest, and compares it.
    pub(crate) fn check_latest(
        &self,
        history: &History,
        session: &mut Session,
        rank: u32,
    ) -> Result<Option<(u64, State)>, String> {
        let name = session.name().to_owned();
        let mut stamp = 0;
        let restored = session.restore_latest(&mut [outcrop::PartMut::one("stamp", &mut stamp)]);
        let restored = restored.map_err(|error| error.to_string())?;
        let version = restored.as_ref().map(|restored| restored.version);
        if version < self.newest(&name) {
            return Err(format!("{name}: {:?} was durable, but there is {restored:?}", self.newest(&name)));
        }
        let Some(restored) = restored else { return Ok(None) };
        if !restored.skipped.is_empty() {
            return Err(format!("a crash damages nothing: {restored:?}"));
        }
        let version = restored.version;
        self.check_remembered(&name, version, stamp)?;
        let state = history.state(&name, rank, version, stamp)?;
        let mut found = state.empty();
        found.restore(session, version).map_err(|error| error.to_string())?;
        match found == state {
            true => Ok(Some((version, state))),
            false => Err(format!("version {version} of {name} is not what rank {rank} saved")),
        }
    }
}

fn now_unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
