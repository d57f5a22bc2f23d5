//! How far each version has come, for who waits.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use outcrop_format::{Manifest, RunId};

use super::chain::Content;
use crate::{Error, Result};

/// How far a version is to have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    /// It is in host memory, and packed: it can be restored by this process.
    Host,
    /// This rank has done its part on this directory, 1 being the first: what it has of it is durable there, or is not needed because
    /// another rank has failed. Others may not have theirs yet.
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
    /// The program reads files: none may go meanwhile.
    is_reading: AtomicBool,
}

/// Which versions there are, and what became of them.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) versions: BTreeMap<u64, Progress>,
    /// Failures that the program has not been told of.
    failures: VecDeque<(u64, usize, String)>,
    /// Nothing more will happen: why.
    pub(crate) is_over: Option<String>,
}

/// How far a version has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    pub(crate) is_packed: bool,
    /// As it was packed by this process.
    pub(crate) manifest: Option<Arc<Manifest>>,
    /// By layer: whether this rank has done its part.
    here: Vec<bool>,
    /// By layer: nothing yet, complete, or why it never will be.
    pub(crate) layers: Vec<Option<std::result::Result<(), String>>>,
}

impl Progress {
    fn new(layers: usize) -> Self {
        Self { is_packed: false, manifest: None, here: vec![false; layers], layers: vec![None; layers] }
    }

    /// Whether nothing more will happen to it.
    fn is_settled(&self) -> bool {
        self.layers.iter().all(Option::is_some)
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
            is_reading: AtomicBool::new(false),
        }
    }

    /// Whether no file may go.
    pub(crate) fn is_reading(&self) -> bool {
        self.is_reading.load(SeqCst)
    }

    pub(crate) fn set_reading(&self, is_reading: bool) {
        self.is_reading.store(is_reading, SeqCst);
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

    /// Waits until `look` finds what it looks for.
    fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return found;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A new version begins, when fewer than `in_flight_max` are under way. An error if an earlier one has failed and nobody
    /// has been told.
    pub(crate) fn begin(&self, version: u64, in_flight_max: usize) -> Result<()> {
        if let Some((&newest, _)) = self.state().versions.last_key_value().filter(|(newest, _)| **newest >= version) {
            return Err(Error::VersionExists { session: self.name.clone(), version, newest });
        }
        self.until(|state| {
            if let Some((version, layer, reason)) = state.failures.pop_front() {
                return Some(Err(self.not_reached(version, layer, reason)));
            }
            if let Some(reason) = &state.is_over {
                return Some(Err(Error::Session { session: self.name.clone(), problem: reason.clone() }));
            }
            if state.versions.values().filter(|progress| !progress.is_settled()).count() >= in_flight_max {
                return None;
            }
            state.versions.insert(version, Progress::new(self.layers.len()));
            Some(Ok(()))
        })
    }

    /// A version that could not be saved leaves nothing behind.
    pub(crate) fn abandon(&self, version: u64) {
        self.update(|state| state.versions.remove(&version));
    }

    /// A version that was found when the session was opened.
    pub(crate) fn found(&self, version: u64, layers: Vec<bool>) {
        let here = layers.clone();
        let layers =
            layers.into_iter().map(|is_there| Some(if is_there { Ok(()) } else { Err("it is not there".into()) }));
        let progress = Progress { is_packed: true, manifest: None, here, layers: layers.collect() };
        self.update(|state| state.versions.insert(version, progress));
    }

    pub(crate) fn packed(&self, version: u64, manifest: Manifest) {
        self.update(|state| {
            if let Some(progress) = state.versions.get_mut(&version) {
                progress.is_packed = true;
                progress.manifest = Some(Arc::new(manifest));
            }
        });
    }

    /// This rank has done its part of a version on a layer.
    pub(crate) fn here(&self, version: u64, layer: usize) {
        self.update(|state| {
            if let Some(progress) = state.versions.get_mut(&version) {
                progress.here[layer] = true;
            }
        });
    }

    pub(crate) fn reached(&self, version: u64, layer: usize) {
        self.settle(version, layer, Ok(()));
    }

    /// A version will not come to a layer: the program is told by its next call.
    pub(crate) fn failed(&self, version: u64, layer: usize, reason: &str) {
        tracing::error!(
            session = self.name,
            version,
            layer = self.layers[layer],
            reason,
            "a version is not durable there"
        );
        self.settle(version, layer, Err(reason.to_owned()));
    }

    fn settle(&self, version: u64, layer: usize, outcome: std::result::Result<(), String>) {
        self.update(|state| {
            let Some(progress) = state.versions.get_mut(&version) else { return };
            if progress.layers[layer].is_some() {
                return;
            }
            if let Err(reason) = &outcome {
                state.failures.push_back((version, layer, reason.clone()));
            }
            progress.is_packed = true;
            progress.layers[layer] = Some(outcome);
        });
    }

    /// Waits until the packer is done with all versions below this one.
    pub(crate) fn wait_packed(&self, below: u64) {
        self.until(|state| {
            let is_packed = state.versions.range(..below).all(|(_, progress)| progress.is_packed);
            (is_packed || state.is_over.is_some()).then_some(())
        });
    }

    /// Waits until what this rank has of a version is on some layer, or never will be.
    pub(crate) fn wait_here(&self, version: u64) {
        self.until(|state| {
            let is_on_its_way = |progress: &Progress| {
                !progress.is_settled() && !progress.here.contains(&true) && state.is_over.is_none()
            };
            (!state.versions.get(&version).is_some_and(is_on_its_way)).then_some(())
        });
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
                Err(Error::Session { session: self.name.clone(), problem })
            }
            _ => Ok(()),
        }
    }

    /// What has become of a version; nothing yet if it is still on its way.
    fn look(&self, state: &mut State, version: u64, reached: Reached) -> Option<Result<()>> {
        let Some(progress) = state.versions.get(&version) else {
            return Some(Err(Error::VersionMissing { session: self.name.clone(), version }));
        };
        let wanted = match reached {
            Reached::Host => return progress.is_packed.then_some(Ok(())),
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

    /// Waits until everything under way has come to its end. An error if the program has not been told of a failure.
    pub(crate) fn settle_all(&self) -> Result<()> {
        self.until(|state| {
            let is_settled = state.versions.values().all(Progress::is_settled);
            if !is_settled && state.is_over.is_none() {
                return None;
            }
            let failure = state.failures.pop_front();
            state.failures.clear();
            Some(failure.map_or(Ok(()), |(version, layer, reason)| Err(self.not_reached(version, layer, reason))))
        })
    }

    /// Nothing more will become of what is under way.
    pub(crate) fn end(&self, reason: &str) {
        self.update(|state| {
            let State { versions, failures, is_over } = state;
            for (&version, progress) in versions.iter_mut() {
                progress.is_packed = true;
                for (layer, outcome) in progress.layers.iter_mut().enumerate().filter(|(_, outcome)| outcome.is_none())
                {
                    *outcome = Some(Err(reason.to_owned()));
                    failures.push_back((version, layer, reason.to_owned()));
                }
            }
            is_over.get_or_insert_with(|| reason.to_owned());
        });
    }

    fn not_reached(&self, version: u64, layer: usize, reason: String) -> Error {
        Error::NotReached { session: self.name.clone(), version, layer: self.layers[layer].clone(), reason }
    }
}
