//! One process that saves and restores: what is protected, where things go, and what is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use outcrop::{Retention, Session, Store, StoreBuilder, settings::misspelt, store::Code};
use outcrop_format::{LOCK_NAME, check_session_name, rank_name};
use outcrop_memory::memory_left;

use crate::{
    checkpoint::Checkpoint,
    config::{self, Config},
    failure::{Failure, Result, say},
    number,
    ranks::Ranks,
    regions::{Region, Regions},
    restart::{Found, Restart},
    routed,
    saved::Shelves,
};

/// Host memory where nothing is protected yet, as with files of the program's own. What is not used
/// is not taken.
const HOST_BYTES_MIN: u64 = 256 << 20;

/// How many versions may be on their way at once.
const IN_FLIGHT: usize = 4;

/// Variables that would put Outcrop's store elsewhere than VELOC's configuration does.
const CONTRADICTIONS: [&str; 2] = ["OUTCROP_DIR", "OUTCROP_RANKS"];

/// Tells the program of a checkpoint: its name and version.
pub(crate) type Tell = Arc<dyn Fn(&str, i32) + Send + Sync>;

/// A process that uses this library.
pub(crate) struct Client {
    pub(crate) config: Config,
    pub(crate) ranks: Ranks,
    /// By the name of the checkpoint that they belong to; those of all others are under the empty
    /// name.
    groups: BTreeMap<String, Regions>,
    /// Opened when it is first needed: by then the program has mostly said how large its state is.
    store: Option<Store>,
    /// Whether versions are kept on other nodes, too.
    is_kept_elsewhere: bool,
    pub(crate) series: BTreeMap<String, Series>,
    pub(crate) phase: Phase,
    /// What `Checkpoint_wait` has to wait for.
    pub(crate) under_way: Vec<(String, u64)>,
    /// Something has failed since the last wait, and was said.
    pub(crate) has_failed: bool,
    /// What the last test has found and checked.
    pub(crate) found: Option<Found>,
    pub(crate) observers: BTreeMap<i32, Tell>,
}

/// What the program is about to do.
pub(crate) enum Phase {
    Idle,
    Checkpoint(Checkpoint),
    Restart(Restart),
}

/// The versions of one name.
pub(crate) struct Series {
    pub(crate) session: Session,
    /// The highest number that was given to a version.
    pub(crate) newest: Option<u64>,
    /// Numbers of versions that are known to be damaged on some rank.
    pub(crate) damaged: BTreeSet<u64>,
    /// The same for files of VELOC.
    pub(crate) damaged_old: BTreeSet<u32>,
}

impl Client {
    /// Nothing is written but the directories. With several ranks, they have come together.
    pub(crate) fn open(config: Config, ranks: Ranks) -> Result<Self> {
        let client = Self {
            config,
            ranks,
            groups: BTreeMap::new(),
            store: None,
            is_kept_elsewhere: false,
            series: BTreeMap::new(),
            phase: Phase::Idle,
            under_way: Vec::new(),
            has_failed: false,
            found: None,
            observers: BTreeMap::new(),
        };
        for directory in client.directories(client.ranks.rank()) {
            fs::create_dir_all(&directory).map_err(|error| {
                let remedy = "choose another one in the configuration";
                Failure::new(format!("{} cannot be made: {error}; {remedy}", directory.display()))
            })?;
        }
        if matches!(client.ranks, Ranks::Single(_)) || client.ranks.rank() == 0 {
            client.config.remarks.iter().for_each(|remark| client.say(remark));
            let names = || env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            config::misspelt(names()).iter().for_each(|remark| client.say(remark));
            for (name, meant) in misspelt(names()) {
                client.say(format!("the variable {name} is not known and has no effect; did you mean {meant}?"));
            }
        }
        Ok(client)
    }

    /// Says something to who runs the program.
    pub(crate) fn say(&self, sentence: impl std::fmt::Display) {
        say(self.ranks.rank(), sentence);
    }

    /// Protects a region, in place of one that had its number.
    pub(crate) fn protect(&mut self, group: &str, id: i32, region: Region) -> Result<()> {
        let regions = self.groups.entry(group_name(group).to_owned()).or_default();
        if let Some(before) = regions.insert(id, region) {
            // Programs protect the same memory again and again, and need not wait for that.
            let is_same = regions.get(&id).is_some_and(|region| region.is_same_memory(&before));
            if !is_same {
                return self.thaw();
            }
        }
        Ok(())
    }

    /// Waits until memory that is not protected any more may be freed.
    fn thaw(&self) -> Result<()> {
        self.series.values().try_for_each(|series| Ok(series.session.thaw()?))
    }

    pub(crate) fn unprotect(&mut self, group: &str, id: i32) -> Result<()> {
        let removed = self.groups.get_mut(group_name(group)).and_then(|regions| regions.remove(&id));
        let missing = || Failure::new(format!("region {id} is not protected, so that it cannot be unprotected"));
        removed.map(drop).ok_or_else(missing)?;
        self.thaw()
    }

    pub(crate) fn clear(&mut self, group: &str) -> Result<()> {
        self.groups.remove(group_name(group));
        self.thaw()
    }

    /// The regions that a checkpoint of this name has now: its own, or else those of all.
    pub(crate) fn regions(&mut self, name: &str) -> &mut Regions {
        regions(&mut self.groups, name)
    }

    /// The same, with the session to save them to, which has been opened.
    pub(crate) fn regions_and_session(&mut self, name: &str) -> Result<(&Regions, &mut Session)> {
        let series = self.series.get_mut(name).ok_or_else(|| Failure::new(format!("{name} is not open")))?;
        Ok((regions(&mut self.groups, name), &mut series.session))
    }

    /// The directories of a rank, the nearest first.
    fn directories(&self, rank: u32) -> Vec<PathBuf> {
        let folder = match self.ranks {
            Ranks::Single(_) => format!("outcrop-{rank}"),
            Ranks::Together(_) => "outcrop".to_owned(),
        };
        let persistent = self.config.persistent.as_ref().filter(|_| self.config.is_persisted);
        std::iter::once(&self.config.scratch).chain(persistent).map(|place| place.join(&folder)).collect()
    }

    /// How many directories a version goes to, and other nodes, which come last.
    pub(crate) fn layers(&self) -> usize {
        1 + usize::from(self.config.is_persisted) + usize::from(self.is_kept_elsewhere)
    }

    /// Where the versions of a rank are.
    pub(crate) fn shelves(&self, name: &str, rank: u32) -> Result<Shelves> {
        let rank_of_session = if let Ranks::Single(_) = self.ranks { 0 } else { rank };
        Ok(Shelves { directories: self.directories(rank), session: session_name(name)?, rank: rank_of_session })
    }

    /// The versions of a name, opened by all ranks at once.
    pub(crate) fn series(&mut self, name: &str) -> Result<&mut Series> {
        if !self.series.contains_key(name) {
            let what = format!("the first checkpoint or restart of {name}");
            let series = self.ranks.notice().together(&what, || self.open_series(name))?;
            self.series.insert(name.to_owned(), series);
        }
        self.series.get_mut(name).ok_or_else(|| Failure::new(format!("{name} cannot be opened")))
    }

    fn open_series(&mut self, name: &str) -> Result<Series> {
        let session_name = session_name(name)?;
        let session = self.store()?.session(&session_name)?;
        if let Some(saved) = session.other_ranks() {
            // VELOC's regions belong to one rank, and have no boxes.
            let count = self.ranks.voice().map_or(1, |voice| outcrop::store::Ranks::count(&voice));
            let problem = format!(
                "session {session_name}: it was saved by {saved} ranks and is opened by {count}; start {saved} again, or use \
                 another directory"
            );
            return Err(Failure::new(problem));
        }
        routed::remove_left_over(&self.config.scratch, name, self.ranks.rank());
        let newest = session.newest_number();
        for skipped in session.passed_over() {
            let (version, reason) = (number::version(skipped.version), number::in_sentence(&skipped.reason));
            self.say(format!("version {version} of {name} cannot be restored: {reason}"));
        }
        Ok(Series { session, newest, damaged: BTreeSet::new(), damaged_old: BTreeSet::new() })
    }

    /// The store, opened by all ranks at once.
    fn store(&mut self) -> Result<&Store> {
        if self.store.is_none() {
            self.is_kept_elsewhere = self.config.has_parity && self.has_other_nodes()?;
            let store = self.open_store();
            // One that fails must not leave the others waiting for it.
            if let Some(problem) = self.ranks.agree("veloc store", store.as_ref().err())? {
                return Err(problem);
            }
            self.store = Some(store?);
        }
        self.store.as_ref().ok_or_else(|| Failure::new("there is no store"))
    }

    /// What is lost together with this rank.
    fn failure_domain(&self) -> String {
        let named = || fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
        self.config.failure_domain.clone().or_else(named).unwrap_or_default()
    }

    /// Whether another node can keep what this one has. All ranks get the same answer.
    fn has_other_nodes(&self) -> Result<bool> {
        let domain = self.failure_domain();
        let domains: BTreeSet<Vec<u8>> = self.ranks.gather("veloc domains", domain.as_bytes())?.into_iter().collect();
        let has_others = domains.len() > 1;
        if !has_others && (self.ranks.rank() == 0 || matches!(self.ranks, Ranks::Single(_))) {
            self.say(format!("ec_interval: all ranks are on {domain}; only persistent survives its loss"));
        }
        Ok(has_others)
    }

    fn open_store(&self) -> Result<Store> {
        if let Some(variable) = CONTRADICTIONS.iter().find(|variable| env::var_os(variable).is_some()) {
            let remedy = "unset it: VELOC's configuration says where checkpoints go";
            return Err(Failure::new(format!("the variable {variable} cannot be used here; {remedy}")));
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / self.ranks.local_count() as usize).max(1);
        // What MPI receives by a network card does not change the pages that the processor would
        // tell to be written.
        let host = self.config.host.as_ref().map_or_else(|| self.host_bytes().to_string(), |text| format!("{text:?}"));
        let text = format!(
            "host = {host}\nthreads = {threads}\nin_flight = {IN_FLIGHT}\npin = false\ntracking = \"everything\""
        );
        let mut builder = StoreBuilder::from_toml(&text)?;
        let keep = |count| Retention { keep_last: count, ..Retention::default() };
        for directory in self.directories(self.ranks.rank()) {
            builder = builder.dir(directory, None);
        }
        builder = builder.keep_on(1, keep(self.config.scratch_versions)).keep_on(2, keep(self.config.max_versions));
        if let Some(voice) = self.ranks.voice() {
            builder = builder.ranks(voice);
        }
        if self.is_kept_elsewhere {
            builder = builder.parity(Code::PARTNER).parity_domain(self.failure_domain());
        }
        Ok(builder.open()?)
    }

    /// Room for two checkpoints of all that is protected, if this rank's share of half of the free
    /// memory allows.
    fn host_bytes(&self) -> u64 {
        let bytes = |region: &Region| match region {
            Region::Memory(memory) => memory.len() as u64,
            Region::Serialized(_) => 0,
        };
        let protected: u64 = self.groups.values().flat_map(|regions| regions.values()).map(bytes).sum();
        let share = memory_left().map_or(u64::MAX, |left| left / 2 / u64::from(self.ranks.local_count()));
        // And a little for indexes.
        (protected.saturating_mul(2).saturating_add(HOST_BYTES_MIN)).min(share.max(HOST_BYTES_MIN / 4))
    }

    /// Removes what the scratch directory has of a name. With several ranks, all of them call it.
    pub(crate) fn cleanup(&mut self, name: &str) -> Result<()> {
        self.check_idle("VELOC_Cleanup")?;
        let shelves = self.shelves(name, self.ranks.rank())?;
        self.found = None;
        // What has not reached the persistent directory must not go.
        let waited = self.checkpoint_wait();
        if let Some(series) = self.series.remove(name)
            && let Err(error) = self.ranks.notice().together("VELOC_Cleanup", || series.session.finish())
        {
            self.say(Failure::from(error));
        }
        let removed = waited.and_then(|()| remove_rank(&shelves.directories[0].join(&shelves.session), shelves.rank));
        self.ranks.notice().together("VELOC_Cleanup", || self.ranks.gather("veloc cleanup", &[]))?;
        removed
    }

    /// An error while a checkpoint is in the making.
    pub(crate) fn check_idle(&self, call: &str) -> Result<()> {
        match &self.phase {
            Phase::Checkpoint(checkpoint) => Err(Failure::new(format!(
                "{call} between the beginning and the end of checkpoint {}; call VELOC_Checkpoint_end first",
                checkpoint.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Ends everything, together with all ranks. All that was saved is written first: nobody else
    /// will do it.
    pub(crate) fn close(mut self) -> Result<()> {
        self.phase = Phase::Idle;
        self.found = None;
        for (_, series) in std::mem::take(&mut self.series) {
            // This rank's part has been waited for; what is incomplete for want of another one's is
            // said, and is no failure here.
            if let Err(error) = self.ranks.notice().together("VELOC_Finalize", || series.session.finish()) {
                self.say(Failure::from(error));
            }
        }
        self.store = None;
        // Functions of the program are released here, and not by whoever ends last.
        self.groups.clear();
        self.observers.clear();
        self.ranks.leave()
    }
}

/// Removes what a session has of a rank.
fn remove_rank(session: &Path, rank: u32) -> Result<()> {
    let removed = match fs::remove_dir_all(session.join(rank_name(rank))) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::new(format!("{} cannot be removed: {error}", session.display())))
        }
        _ => Ok(()),
    };
    // Other ranks may have theirs there.
    let _ = fs::remove_dir(session);
    removed
}

fn regions<'a>(groups: &'a mut BTreeMap<String, Regions>, name: &str) -> &'a mut Regions {
    let has_own = groups.get(name).is_some_and(|regions| !regions.is_empty());
    groups.entry(if has_own { name.to_owned() } else { String::new() }).or_default()
}

/// VELOC calls the group of everything "default" in some versions.
fn group_name(group: &str) -> &str {
    if group == "default" { "" } else { group }
}

/// What a checkpoint is called in a store.
fn session_name(name: &str) -> Result<String> {
    // These two may be checkpoints, but not sessions.
    let session = if name.starts_with('.') || name == LOCK_NAME { format!("-{name}") } else { name.to_owned() };
    check_session_name(&session)
        .map_err(|error| Failure::new(format!("checkpoints cannot be called {name:?}: {error}")))?;
    Ok(session)
}

/// The program's version as it can be saved.
pub(crate) fn check_version(version: i32) -> Result<u32> {
    u32::try_from(version).map_err(|_| Failure::new(format!("version {version} is below 0; versions are 0 and above")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_veloc_allows_are_sessions_of_their_own() {
        let names = ["heat", "heat.dat", ".hidden", "lock", "a_b", "heat-2"];
        let sessions: BTreeSet<String> = names.iter().map(|name| session_name(name).unwrap()).collect();
        assert_eq!(sessions.len(), names.len());
        for wrong in ["", "a/b", "../up", "a b", "ä"] {
            assert!(session_name(wrong).is_err(), "{wrong}");
        }
    }
}
