//! How far each version has come, for who waits.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use outcrop_commit::{MAY_RETURN, SaveId};
use outcrop_error::patience::{self, ASK_EVERY, Awaited};
use outcrop_format::{Manifest, PackId, RunId};

use super::chain::Content;
use crate::{Error, Result, error::Problem};

/// How far a version is to have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// It is in host memory, and packed: it can be restored by this process.
    Host,
    /// This rank has done its part on this directory, 1 being the first: what it has of it is
    /// durable there, or is not needed because another rank has failed. Others may not have theirs
    /// yet.
    Here(usize),
    /// It is complete and durable, on all ranks, on this directory.
    Layer(usize),
    /// It is on all directories.
    All,
}

/// What the program, the packer and the committer know of one session.
pub(crate) struct SessionCore {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) run: RunId,
    /// The names of the layers, for messages.
    pub(crate) layers: Vec<String>,
    state: Mutex<State>,
    changed: Condvar,
    /// What the newest version consists of.
    content: Mutex<Content>,
    /// How often all ranks have said what they could restore.
    pub(crate) rounds: AtomicU64,
}

/// Which versions there are, and what became of them.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) versions: BTreeMap<u64, Progress>,
    /// Those to which something may still happen.
    unsettled: BTreeSet<u64>,
    /// Those that have failed everywhere, or are on no layer any more, and that the program may not
    /// have heard of.
    gone: BTreeSet<u64>,
    /// What versions were packed as by this process, while that may be asked for.
    pub(crate) manifests: BTreeMap<u64, Arc<Manifest>>,
    /// By layer: numbers of versions that were found, that not all ranks have, and that may become
    /// whole again. Nothing takes their place.
    pub(crate) returning: Vec<BTreeSet<u64>>,
    /// Failures that the program has not been told of.
    failures: VecDeque<(u64, usize, String)>,
    /// The last version that could not be saved, and how often that was tried.
    abandoned: Option<SaveId>,
    /// Nothing more will happen: why.
    pub(crate) is_over: Option<String>,
}

/// How far a version has come.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    /// Which attempt to save it; 0 if it was found.
    attempt: u32,
    /// The run that has saved it.
    pub(crate) run: RunId,
    pub(crate) is_packed: bool,
    /// By layer: whether this rank has done its part.
    here: Vec<bool>,
    /// By layer: whether all ranks have it there now. It may have been there once, and not be kept
    /// any more.
    there: Vec<bool>,
    /// By layer: nothing yet, complete, or why it never will be.
    pub(crate) layers: Vec<Option<std::result::Result<(), String>>>,
}

impl Progress {
    fn new(save: SaveId, run: RunId, layers: usize) -> Self {
        let (here, there) = (vec![false; layers], vec![false; layers]);
        Self { attempt: save.attempt, run, is_packed: false, here, there, layers: vec![None; layers] }
    }

    /// Whether nothing more will happen to it.
    fn is_settled(&self) -> bool {
        self.layers.iter().all(Option::is_some)
    }

    /// Whether it was complete on every layer, and is on none any more.
    fn is_dropped(&self) -> bool {
        !self.there.contains(&true) && self.layers.iter().all(|layer| matches!(layer, Some(Ok(()))))
    }

    /// Whether it has failed everywhere, or is on no layer any more.
    fn is_gone(&self) -> bool {
        self.is_settled() && !self.there.contains(&true)
    }
}

impl State {
    /// The versions that this process has, or that all ranks have on some layer, with their runs.
    pub(crate) fn there(&self) -> impl Iterator<Item = (u64, RunId)> {
        let is_there = |(version, progress): &(&u64, &Progress)| {
            let is_here = self.manifests.contains_key(version) && !self.gone.contains(version);
            progress.there.contains(&true) || is_here
        };
        self.versions.iter().filter(is_there).map(|(version, progress)| (*version, progress.run))
    }

    /// The versions that can be restored or are in flight, in ascending order.
    pub(crate) fn known(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied().filter(|version| !self.gone.contains(version))
    }

    /// Takes note of how far a version has come by now.
    fn note(&mut self, version: u64) {
        let Some(progress) = self.versions.get(&version).filter(|progress| progress.is_settled()) else { return };
        self.unsettled.remove(&version);
        if progress.is_gone() {
            self.gone.insert(version);
        }
        self.forget_manifests();
    }

    /// A version that is on some layer is read there, unless it is the newest.
    fn forget_manifests(&mut self) {
        let newest = self.versions.last_key_value().map(|(version, _)| *version);
        let versions = &self.versions;
        let is_elsewhere = |it: &Progress| it.is_settled() && it.there.contains(&true);
        self.manifests
            .retain(|version, _| Some(*version) == newest || !versions.get(version).is_some_and(is_elsewhere));
    }

    fn remove(&mut self, version: u64) {
        self.versions.remove(&version);
        self.unsettled.remove(&version);
        self.gone.remove(&version);
        self.manifests.remove(&version);
    }
}

impl SessionCore {
    pub(crate) fn new(name: &str, (rank, ranks): (u32, u32), run: RunId, layers: Vec<String>) -> Self {
        Self {
            name: name.to_owned(),
            rank,
            ranks,
            run,
            layers,
            state: Mutex::default(),
            changed: Condvar::new(),
            content: Mutex::default(),
            rounds: AtomicU64::new(0),
        }
    }

    /// The next pack of this rank.
    pub(crate) fn next_pack(&self) -> Result<PackId> {
        let problem = "a file in its directory has the last number that a pack can have; nothing was overwritten; remove \
                       that file if it is not yours, and open the session again";
        let none_left = || Problem::Session { session: self.name.clone(), problem: problem.to_owned() };
        Ok(self.content().next_id(self.rank).ok_or_else(none_left)?)
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes who waits for it.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_all();
        result
    }

    /// Waits until `look` finds what it looks for. An error if the program has lost patience.
    fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<Result<T>>) -> Result<T> {
        let mut state = self.state();
        let mut asked = Instant::now();
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            if !patience::is_asked() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if asked.elapsed() < ASK_EVERY {
                state = self.changed.wait_timeout(state, ASK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                drop(state);
                patience::ask(Awaited::Others)?;
                asked = Instant::now();
                state = self.state();
            }
        }
    }

    /// A new version begins, when fewer than `in_flight_max` are under way. An error if an earlier
    /// one has failed and nobody has been told.
    pub(crate) fn begin(&self, version: u64, in_flight_max: usize) -> Result<SaveId> {
        if version == u64::MAX {
            let problem =
                format!("version {version} cannot be saved: there would be none after it; begin with lower ones");
            return Err(Problem::Session { session: self.name.clone(), problem }.into());
        }
        if let Some((&newest, _)) = self.state().versions.last_key_value().filter(|(newest, _)| **newest >= version) {
            return Err(Problem::VersionExists { session: self.name.clone(), newest }.into());
        }
        self.until(|state| {
            if let Some(layer) = state.returning.iter().position(|returning| returning.contains(&version)) {
                return Some(Err(self.not_reached(version, layer, MAY_RETURN.to_owned())));
            }
            if let Some((version, layer, reason)) = state.failures.pop_front() {
                return Some(Err(self.not_reached(version, layer, reason)));
            }
            if let Some(reason) = &state.is_over {
                return Some(Err(Problem::Session { session: self.name.clone(), problem: reason.clone() }.into()));
            }
            if state.unsettled.len() >= in_flight_max {
                return None;
            }
            // The program has been told what became of them.
            std::mem::take(&mut state.gone).into_iter().for_each(|gone| state.remove(gone));
            let before = state.abandoned.filter(|save| save.version == version).map_or(0, |save| save.attempt);
            let save = SaveId { version, attempt: before + 1 };
            state.versions.insert(version, Progress::new(save, self.run, self.layers.len()));
            state.unsettled.insert(version);
            Some(Ok(save))
        })
    }

    /// A version that could not be saved leaves nothing behind.
    pub(crate) fn abandon(&self, save: SaveId) {
        self.update(|state| {
            state.remove(save.version);
            state.abandoned = Some(save);
        });
    }

    /// A version that was found when the session was opened.
    pub(crate) fn found(&self, version: u64, run: RunId, there: Vec<bool>) {
        let layer = |is_there: &bool| Some(if *is_there { Ok(()) } else { Err("it is not there".into()) });
        let layers = there.iter().map(layer).collect();
        let progress = Progress { attempt: 0, run, is_packed: true, here: there.clone(), there, layers };
        self.update(|state| state.versions.insert(version, progress));
    }

    /// By layer: versions that were found, that not all ranks have, and that may be whole again.
    pub(crate) fn expect(&self, returning: Vec<BTreeSet<u64>>) {
        self.update(|state| state.returning = returning);
    }

    /// All versions above this one are gone.
    pub(crate) fn went_back(&self, version: Option<u64>) {
        self.update(|state| {
            let above = |other: &u64| version.is_none_or(|version| *other > version);
            let gone: Vec<u64> = state.versions.keys().copied().filter(above).collect();
            gone.into_iter().for_each(|version| state.remove(version));
            state.returning.iter_mut().for_each(|returning| returning.retain(|other| !above(other)));
            state.abandoned = None;
        });
    }

    /// A version is not kept on a layer any more.
    pub(crate) fn dropped(&self, version: u64, layer: usize) {
        self.update(|state| {
            if let Some(progress) = state.versions.get_mut(&version) {
                progress.there[layer] = false;
                match progress.is_dropped() {
                    true => state.remove(version),
                    false => state.note(version),
                }
            }
        });
    }

    pub(crate) fn packed(&self, version: u64, manifest: Arc<Manifest>) {
        self.update(|state| {
            if let Some(progress) = state.versions.get_mut(&version) {
                progress.is_packed = true;
                state.manifests.insert(version, manifest);
            }
        });
    }

    /// This rank has done its part of a version on a layer.
    pub(crate) fn here(&self, save: SaveId, layer: usize) {
        self.change(save, |progress| progress.here[layer] = true);
    }

    /// A version is complete on a layer.
    pub(crate) fn reached(&self, save: SaveId, layer: usize) {
        self.change(save, |progress| {
            if progress.layers[layer].is_none() {
                progress.layers[layer] = Some(Ok(()));
                progress.there[layer] = true;
            }
        });
    }

    /// A version will not come to a layer: the program is told by its next call.
    pub(crate) fn failed(&self, save: SaveId, layer: usize, reason: &str) {
        self.update(|state| {
            let progress = state.versions.get_mut(&save.version).filter(|progress| progress.attempt == save.attempt);
            let Some(progress) = progress.filter(|progress| progress.layers[layer].is_none()) else { return };
            let (session, version, on) = (&self.name, save.version, &self.layers[layer]);
            tracing::error!(session, version, layer = on, reason, "a version is not durable there");
            progress.is_packed = true;
            progress.layers[layer] = Some(Err(reason.to_owned()));
            state.failures.push_back((version, layer, reason.to_owned()));
            state.note(version);
        });
    }

    /// Changes what is known of one attempt to save a version, if that is the one under way.
    fn change(&self, save: SaveId, change: impl FnOnce(&mut Progress)) {
        self.update(|state| {
            let progress = state.versions.get_mut(&save.version).filter(|progress| progress.attempt == save.attempt);
            progress.map(change);
            state.note(save.version);
        });
    }

    /// Waits until the packer is done with all versions below this one.
    pub(crate) fn wait_packed(&self, below: u64) -> Result<()> {
        self.until(|state| {
            let is_packed = |version: &u64| state.versions.get(version).is_none_or(|progress| progress.is_packed);
            (state.unsettled.range(..below).all(is_packed) || state.is_over.is_some()).then_some(Ok(()))
        })
    }

    /// Waits until what this rank has of a version is on some layer, or never will be.
    pub(crate) fn wait_here(&self, version: u64) -> Result<()> {
        self.until(|state| {
            let is_on_its_way = |progress: &Progress| {
                !progress.is_settled() && !progress.here.contains(&true) && state.is_over.is_none()
            };
            (!state.versions.get(&version).is_some_and(is_on_its_way)).then_some(Ok(()))
        })
    }

    /// Waits until a version has come as far as that, or never will.
    pub(crate) fn wait(&self, version: u64, reached: Reached) -> Result<()> {
        self.check(reached)?;
        self.until(|state| self.look(state, version, reached))
    }

    /// Whether a version has come as far as that. An error if it never will.
    pub(crate) fn has_reached(&self, version: u64, reached: Reached) -> Result<bool> {
        self.check(reached)?;
        self.look(&mut self.state(), version, reached).map_or(Ok(false), |result| result.map(|()| true))
    }

    fn check(&self, reached: Reached) -> Result<()> {
        match reached {
            Reached::Layer(layer) | Reached::Here(layer) if !(1..=self.layers.len()).contains(&layer) => {
                let last = self.layers.len();
                let problem = format!("there is no layer {layer}; the directories are layers 1 to {last}");
                Err(Problem::Session { session: self.name.clone(), problem }.into())
            }
            _ => Ok(()),
        }
    }

    /// What has become of a version; nothing yet if it is still on its way.
    fn look(&self, state: &mut State, version: u64, reached: Reached) -> Option<Result<()>> {
        let Some(progress) = state.versions.get(&version) else {
            return Some(Err(Problem::VersionMissing { session: self.name.clone(), version }.into()));
        };
        let wanted = match reached {
            Reached::Host if !progress.is_packed => return None,
            Reached::Host if state.manifests.contains_key(&version) || progress.here.contains(&true) => {
                return Some(Ok(()));
            }
            Reached::Host => 0..1,
            Reached::Here(layer) if progress.here[layer - 1] => return Some(Ok(())),
            Reached::Layer(layer) | Reached::Here(layer) => layer - 1..layer,
            Reached::All => 0..self.layers.len(),
        };
        for layer in wanted {
            match &progress.layers[layer] {
                Some(Ok(())) => {}
                Some(Err(reason)) => {
                    let error = self.not_reached(version, layer, reason.clone());
                    state.failures.retain(|failure| (failure.0, failure.1) != (version, layer));
                    return Some(Err(error));
                }
                None => return None,
            }
        }
        Some(Ok(()))
    }

    /// Waits until everything under way is done. An error if the program has not been told of a
    /// failure: it names all of them.
    pub(crate) fn settle_all(&self) -> Result<()> {
        self.until(|state| {
            if !state.unsettled.is_empty() && state.is_over.is_none() {
                return None;
            }
            let failed = |(version, layer, reason)| self.failure(version, layer, reason);
            let mut failures: Vec<Problem> = std::mem::take(&mut state.failures).into_iter().map(failed).collect();
            Some(match failures.len() {
                0 => Ok(()),
                1 => Err(failures.remove(0).into()),
                _ => Err(Problem::Several(failures).into()),
            })
        })
    }

    /// Nothing more will become of what is under way.
    pub(crate) fn end(&self, reason: &str) {
        self.update(|state| {
            let State { versions, unsettled, failures, is_over, .. } = state;
            let ended: Vec<u64> = unsettled.iter().copied().collect();
            for &version in &ended {
                let Some(progress) = versions.get_mut(&version) else { continue };
                progress.is_packed = true;
                for (layer, outcome) in progress.layers.iter_mut().enumerate().filter(|(_, outcome)| outcome.is_none())
                {
                    *outcome = Some(Err(reason.to_owned()));
                    failures.push_back((version, layer, reason.to_owned()));
                }
            }
            is_over.get_or_insert_with(|| reason.to_owned());
            ended.into_iter().for_each(|version| state.note(version));
        });
    }

    fn not_reached(&self, version: u64, layer: usize, reason: String) -> Error {
        self.failure(version, layer, reason).into()
    }

    fn failure(&self, version: u64, layer: usize, reason: String) -> Problem {
        Problem::NotReached { session: self.name.clone(), version, layer: self.layers[layer].clone(), reason }
    }
}
