//! The progress of each version, and waiting for it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use outcrop_commit::{MAY_RETURN, SaveId};
use outcrop_error::patience::{self, ASK_EVERY, Awaited};
use outcrop_format::{Manifest, PackId, RunId};
use outcrop_track::Frozen;

use super::chain::Content;
use crate::{Error, Result, error::Problem};

/// How far a version has got: an argument of [`Session::wait`](crate::Session::wait).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reached {
    /// It is in host memory, and packed: it can be restored by this process.
    Host,
    /// This rank has done its part in this directory, counted from 1: its files are durable there,
    /// or are not needed because another rank has failed. Other ranks may not have done theirs yet.
    Here(usize),
    /// It is complete and durable in this directory, on all ranks.
    Layer(usize),
    /// It is complete, and kept on other nodes: it survives the loss of as many nodes as
    /// [`StoreBuilder::parity`](crate::StoreBuilder::parity) says. This is the layer after the last
    /// directory.
    Parity,
    /// It is complete and durable in all directories, and on other nodes if there is parity.
    All,
}

/// What the program, the packer and the committer know about one session.
pub(crate) struct SessionCore {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) run: RunId,
    /// The names of the layers, for messages.
    pub(crate) layers: Vec<String>,
    /// Whether the last layer is parity.
    pub(crate) has_parity: bool,
    /// By layer: the former ranks whose directories this rank has adopted.
    pub(crate) former: Vec<Vec<u32>>,
    state: Mutex<State>,
    changed: Condvar,
    /// The content of the newest version.
    content: Mutex<Content>,
    /// How often the ranks have agreed on what they can restore.
    pub(crate) rounds: AtomicU64,
}

/// The versions of a session, and their progress.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) versions: BTreeMap<u64, Progress>,
    /// Versions that are still in flight on some layer.
    unsettled: BTreeSet<u64>,
    /// Versions that have failed everywhere, or are on no layer any more, and whose fate the
    /// program may not know yet.
    gone: BTreeSet<u64>,
    /// The manifests of versions that this process has packed, while they may be needed.
    pub(crate) manifests: BTreeMap<u64, Arc<Manifest>>,
    /// By layer: versions that were found, that not all ranks have, and that may become complete
    /// again. Nothing may replace them.
    pub(crate) returning: Vec<BTreeSet<u64>>,
    /// Failures that the program has not been told of.
    failures: VecDeque<(u64, usize, String)>,
    /// How many images of the program's memory are still to be read.
    images: usize,
    /// How many versions this session has tried to save. Each try has a number of its own, so that
    /// what is said of one is not about the next.
    attempts: u32,
    /// Set when nothing more will happen in this session: the reason.
    pub(crate) is_over: Option<String>,
}

/// The progress of a version.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    /// The number of the attempt to save it; 0 if the version was found.
    attempt: u32,
    /// The run that has saved it, and its number of ranks.
    pub(crate) run: RunId,
    pub(crate) ranks: u32,
    pub(crate) is_packed: bool,
    /// By layer: whether this rank has done its part.
    here: Vec<bool>,
    /// By layer: whether all ranks have it there now. A version that was complete may have been
    /// removed since.
    there: Vec<bool>,
    /// By layer: `None` while in flight, then complete, or why it never will be.
    pub(crate) layers: Vec<Option<std::result::Result<(), String>>>,
}

impl Progress {
    fn new(save: SaveId, (run, ranks): (RunId, u32), layers: usize) -> Self {
        let (here, there) = (vec![false; layers], vec![false; layers]);
        Self { attempt: save.attempt, run, ranks, is_packed: false, here, there, layers: vec![None; layers] }
    }

    /// Whether it is settled on every layer.
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
    /// The versions that this process has in memory, or that all ranks have on some layer, with
    /// their runs.
    pub(crate) fn there(&self) -> impl Iterator<Item = (u64, RunId)> {
        let is_there = |(version, progress): &(&u64, &Progress)| {
            let is_here = self.manifests.contains_key(version) && !self.gone.contains(version);
            progress.there.contains(&true) || is_here
        };
        self.versions.iter().filter(is_there).map(|(version, progress)| (*version, progress.run))
    }

    /// Whether all ranks have a version on some layer.
    pub(crate) fn is_there(&self, version: u64) -> bool {
        self.versions.get(&version).is_some_and(|progress| progress.there.contains(&true))
    }

    /// The versions that can be restored or are in flight, in ascending order.
    pub(crate) fn known(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied().filter(|version| !self.gone.contains(version))
    }

    /// Whether a version can be restored or is in flight.
    pub(crate) fn is_known(&self, version: u64) -> bool {
        self.versions.contains_key(&version) && !self.gone.contains(&version)
    }

    /// The newest version that no other version may come before. One that has failed counts only if
    /// there are other ranks: they may have their part of it, until all of them rewind.
    pub(crate) fn newest(&self, ranks: u32) -> Option<u64> {
        self.versions.keys().rev().find(|version| ranks > 1 || !self.gone.contains(version)).copied()
    }

    /// Updates the sets after a change of a version.
    fn note(&mut self, version: u64) {
        let Some(progress) = self.versions.get(&version).filter(|progress| progress.is_settled()) else { return };
        self.unsettled.remove(&version);
        if progress.is_gone() {
            self.gone.insert(version);
        }
        self.forget_manifests();
    }

    /// Drops manifests of versions that can be read from some layer, except the newest.
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

/// An image of the program's memory. Until it is dropped, the memory must stay mapped.
pub(crate) struct Image {
    pub(crate) frozen: Frozen,
    // After the image itself: who waits may unmap the memory at once.
    _counted: Counted,
}

struct Counted(Arc<SessionCore>);

impl Image {
    pub(crate) fn new(frozen: Frozen, session: &Arc<SessionCore>) -> Self {
        session.update(|state| state.images += 1);
        Self { frozen, _counted: Counted(Arc::clone(session)) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.update(|state| state.images -= 1);
    }
}

impl SessionCore {
    pub(crate) fn new(
        name: &str,
        (rank, ranks): (u32, u32),
        run: RunId,
        (layers, has_parity): (Vec<String>, bool),
        former: Vec<Vec<u32>>,
    ) -> Self {
        Self {
            former,
            name: name.to_owned(),
            rank,
            ranks,
            run,
            layers,
            has_parity,
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

    /// Changes the state, and wakes all waiting threads.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_all();
        result
    }

    /// Waits until `look` returns something. Fails if the program no longer wants to wait.
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

    /// Begins a new version, when fewer than `in_flight_max` are in flight. Fails if an earlier one
    /// has failed and the program has not been told.
    pub(crate) fn begin(&self, version: u64, in_flight_max: usize) -> Result<SaveId> {
        if version == u64::MAX {
            let problem =
                format!("version {version} cannot be saved: no higher number could follow; use lower numbers");
            return Err(Problem::Session { session: self.name.clone(), problem }.into());
        }
        if let Some(newest) = self.state().newest(self.ranks).filter(|newest| *newest >= version) {
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
            // The program has been told about these.
            std::mem::take(&mut state.gone).into_iter().for_each(|gone| state.remove(gone));
            state.attempts += 1;
            let save = SaveId { version, attempt: state.attempts };
            state.versions.insert(version, Progress::new(save, (self.run, self.ranks), self.layers.len()));
            state.unsettled.insert(version);
            Some(Ok(save))
        })
    }

    /// Removes a version that could not be saved.
    pub(crate) fn abandon(&self, version: u64) {
        self.update(|state| state.remove(version));
    }

    /// Adds a version that was found when the session was opened.
    pub(crate) fn found(&self, version: u64, (run, ranks): (RunId, u32), there: Vec<bool>) {
        let layer = |is_there: &bool| {
            Some(if *is_there { Ok(()) } else { Err("it was not complete there when the session was opened".into()) })
        };
        let layers = there.iter().map(layer).collect();
        let progress = Progress { attempt: 0, run, ranks, is_packed: true, here: there.clone(), there, layers };
        self.update(|state| state.versions.insert(version, progress));
    }

    /// Sets, by layer, the versions that were found, that not all ranks have, and that may become
    /// complete again.
    pub(crate) fn expect(&self, returning: Vec<BTreeSet<u64>>) {
        self.update(|state| state.returning = returning);
    }

    /// The session was rewound: all versions above this one are removed.
    pub(crate) fn went_back(&self, version: Option<u64>) {
        self.update(|state| {
            let above = |other: &u64| version.is_none_or(|version| *other > version);
            let gone: Vec<u64> = state.versions.keys().copied().filter(above).collect();
            gone.into_iter().for_each(|version| state.remove(version));
            state.returning.iter_mut().for_each(|returning| returning.retain(|other| !above(other)));
        });
    }

    /// A version is no longer kept on a layer.
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

    /// A version failed on a layer. The next call of the program reports it.
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

    /// Changes the progress of an attempt to save a version, if it is the current one.
    fn change(&self, save: SaveId, change: impl FnOnce(&mut Progress)) {
        self.update(|state| {
            let progress = state.versions.get_mut(&save.version).filter(|progress| progress.attempt == save.attempt);
            progress.map(change);
            state.note(save.version);
        });
    }

    /// Waits until all versions below this one are packed.
    pub(crate) fn wait_packed(&self, below: u64) -> Result<()> {
        self.until(|state| {
            let is_packed = |version: &u64| state.versions.get(version).is_none_or(|progress| progress.is_packed);
            (state.unsettled.range(..below).all(is_packed) || state.is_over.is_some()).then_some(Ok(()))
        })
    }

    /// Waits until no image of the program's memory is to be read any more.
    pub(crate) fn wait_thawed(&self) -> Result<()> {
        self.until(|state| (state.images == 0).then_some(Ok(())))
    }

    /// Waits until this rank's part of a version is on some layer, or never will be.
    pub(crate) fn wait_here(&self, version: u64) -> Result<()> {
        self.until(|state| {
            let is_on_its_way = |progress: &Progress| {
                !progress.is_settled() && !progress.here.contains(&true) && state.is_over.is_none()
            };
            (!state.versions.get(&version).is_some_and(is_on_its_way)).then_some(Ok(()))
        })
    }

    /// Waits until all ranks have a version on some layer, or never will.
    pub(crate) fn wait_there(&self, version: u64) -> Result<()> {
        self.until(|state| {
            let is_on_its_way = |progress: &Progress| {
                !progress.is_settled() && !progress.there.contains(&true) && state.is_over.is_none()
            };
            (!state.versions.get(&version).is_some_and(is_on_its_way)).then_some(Ok(()))
        })
    }

    /// Waits until a version has got this far. Fails if it never will.
    pub(crate) fn wait(&self, version: u64, reached: Reached) -> Result<()> {
        self.check(reached)?;
        self.until(|state| self.look(state, version, reached))
    }

    /// Whether a version has got this far. Fails if it never will.
    pub(crate) fn has_reached(&self, version: u64, reached: Reached) -> Result<bool> {
        self.check(reached)?;
        self.look(&mut self.state(), version, reached).map_or(Ok(false), |result| result.map(|()| true))
    }

    fn check(&self, reached: Reached) -> Result<()> {
        match reached {
            Reached::Parity if !self.has_parity => {
                let problem = "nothing is kept on other nodes; open the store with parity".to_owned();
                Err(Problem::Session { session: self.name.clone(), problem }.into())
            }
            Reached::Layer(layer) | Reached::Here(layer) if !(1..=self.layers.len()).contains(&layer) => {
                let last = self.layers.len();
                let problem = format!("there is no layer {layer}; the directories are layers 1 to {last}");
                Err(Problem::Session { session: self.name.clone(), problem }.into())
            }
            _ => Ok(()),
        }
    }

    /// Whether a version has got this far, or failed; `None` while it may still get there.
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
            Reached::Parity => self.layers.len() - 1..self.layers.len(),
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

    /// Waits until nothing is in flight. Fails if versions have failed and the program has not been
    /// told. The error names all of them.
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

    /// Ends the session: whatever is in flight fails.
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
