//! What was saved and promised, and whether a crash has left it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outcrop::{
    Session,
    catalog::{Catalog, Error, Version},
    layers::files::Files,
};

use super::State;

/// Everything that was saved: the version and the state, by session, rank and stamp.
type Saves = BTreeMap<(String, u32, u64), (u64, State)>;

/// What was saved until now.
#[derive(Default)]
pub(crate) struct History {
    saved: Mutex<Saves>,
}

impl History {
    fn saved(&self) -> MutexGuard<'_, Saves> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before it is saved: it may be found from then on.
    pub(crate) fn note(&self, session: &str, rank: u32, version: u64, state: &State) {
        self.saved().insert((session.to_owned(), rank, state.stamp), (version, state.clone()));
    }

    /// What was saved with this stamp, if it was saved as this version.
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

/// What has been promised, as marks in a log.
#[derive(Debug, Clone, Default)]
pub(crate) struct Promises {
    /// Versions and their stamps, by session and layer.
    durable: BTreeMap<(String, usize), BTreeSet<(u64, u64)>>,
    /// Above this version of this session nothing has a lower stamp than that any more.
    forgotten: Vec<(String, u64, u64)>,
    /// Sessions that have been rewound: they may have fewer versions than are to be kept.
    rewound: BTreeSet<String>,
}

/// That a version was reported durable on a layer.
pub(crate) fn durable(session: &str, layer: usize, version: u64, stamp: u64) -> String {
    format!("durable {session} {layer} {version} {stamp}")
}

/// That all versions above this one which were saved before that stamp may be gone from now on.
pub(crate) fn rewinding(session: &str, version: u64, stamp: u64) -> String {
    format!("rewinding {session} {version} {stamp}")
}

/// That they are gone for good.
pub(crate) fn forgotten(session: &str, version: u64, stamp: u64) -> String {
    format!("forgotten {session} {version} {stamp}")
}

impl Promises {
    /// Those of the marks before a crash.
    pub(crate) fn of(marks: &[String]) -> Self {
        let mut promises = Self::default();
        let mut void = Vec::new();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        for mark in marks {
            match mark.split(' ').collect::<Vec<_>>()[..] {
                ["durable", session, layer, version, stamp] => {
                    let key = (session.to_owned(), number(layer) as usize);
                    promises.durable.entry(key).or_default().insert((number(version), number(stamp)));
                }
                ["rewinding", session, version, stamp] => void.push((session, number(version), number(stamp))),
                ["forgotten", session, version, stamp] => {
                    promises.forgotten.push((session.to_owned(), number(version), number(stamp)));
                }
                _ => panic!("unknown mark {mark:?}"),
            }
        }
        // One rank may rewind before another one has said that a version was durable.
        for ((name, _), versions) in &mut promises.durable {
            let is_void = |version, stamp| {
                void.iter().any(|(session, above, below)| name == session && version > *above && stamp < *below)
            };
            versions.retain(|(version, stamp)| !is_void(*version, *stamp));
        }
        promises.rewound = void.into_iter().map(|(session, _, _)| session.to_owned()).collect();
        promises
    }

    fn on_layer(&self, session: &str, layer: usize) -> BTreeSet<u64> {
        let durable = self.durable.get(&(session.to_owned(), layer));
        durable.into_iter().flatten().map(|(version, _)| *version).collect()
    }

    /// The version that must be found, or a newer one: the newest that was durable anywhere.
    fn newest(&self, session: &str) -> Option<u64> {
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

    /// Looks at a layer without changing it: the newest version is there, or a newer one; as many
    /// as are to be kept are there; and the newest, or all, hold exactly what was saved.
    pub(crate) fn check_layer(
        &self,
        history: &History,
        files: &Arc<dyn Files>,
        layer: usize,
        (session, keep_last): (&str, usize),
        is_thorough: bool,
    ) -> Result<(), String> {
        let catalog = Catalog::new(Arc::clone(files));
        let found = match catalog.versions(session) {
            Ok(found) => found,
            Err(Error::NoSession { .. }) => Vec::new(),
            Err(error) => return Err(error.to_string()),
        };
        if let Some(damaged) = found.iter().find(|version| !version.damaged.is_empty()) {
            return Err(format!("a manifest that has its name is not whole: {damaged:?}"));
        }
        let complete: Vec<&Version> = found.iter().filter(|version| version.is_complete()).collect();
        let promised = self.on_layer(session, layer);
        let newest = complete.last().map(|version| version.version);
        if newest < promised.last().copied() {
            return Err(format!("{session}: {:?} was durable, the newest is {newest:?}", promised.last()));
        }
        if complete.len() < promised.len().min(keep_last) && !self.rewound.contains(session) {
            return Err(format!("{session}: {promised:?} were durable, {} versions are left", complete.len()));
        }
        let looked_at = if is_thorough { complete.len() } else { 1 };
        for version in complete.iter().rev().take(looked_at) {
            self.check_version(history, &catalog, session, version)?;
        }
        Ok(())
    }

    fn check_version(
        &self,
        history: &History,
        catalog: &Catalog,
        session: &str,
        version: &Version,
    ) -> Result<(), String> {
        let number = version.version;
        let mut stamps = BTreeSet::new();
        for (&rank, manifest) in &version.manifests {
            let reader = catalog.reader(manifest).map_err(|error| error.to_string())?;
            let region = |name| reader.read_region(name).map_err(|error| error.to_string());
            let stamp = region("stamp")?.try_into().map_err(|_| "a stamp has 8 bytes".to_owned())?;
            let stamp = u64::from_le_bytes(stamp);
            self.check_remembered(session, number, stamp)?;
            let state = history.state(session, rank, number, stamp)?;
            if (region("field")?, region("tail")?) != (state.field, state.tail) {
                return Err(format!("version {number} of {session} is not what rank {rank} saved"));
            }
            stamps.insert(stamp);
        }
        match stamps.len() {
            1 => Ok(()),
            _ => Err(format!("version {number} of {session} was put together from {stamps:?}")),
        }
    }

    /// Restores what an open session finds to be the newest version, and compares it.
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
