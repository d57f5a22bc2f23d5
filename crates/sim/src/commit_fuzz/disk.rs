//! The simulated directory of one rank on one layer: what is there now, and what may be there after
//! a crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fastrand::Rng;
use outcrop_commit::Found;
use outcrop_format::{Held, HeldLayer, Manifest, ManifestPack, RunId};

/// The name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    Version(u64),
    Pack(u64),
}

/// The contents of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum File {
    Manifest(Arc<Manifest>),
    /// A pack is identified by a unique number.
    Pack(u128),
}

/// The states of a name since the last sync of the directory, oldest first. After a crash it has
/// any of them.
type History = Vec<Option<File>>;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    names: BTreeMap<Name, History>,
    /// New packs that a failed sync has lost: no later sync makes them durable.
    cursed: BTreeSet<Name>,
    /// The runs in its mark.
    pub(super) runs: BTreeSet<RunId>,
    /// Versions whose manifests could not be read when the session was opened.
    pub(super) unreadable: BTreeSet<u64>,
}

impl Disk {
    /// Creates, replaces or removes a file.
    pub(super) fn put(&mut self, name: Name, file: Option<File>) {
        if let Name::Version(version) = name {
            self.unreadable.remove(&version);
        }
        let history = self.names.entry(name).or_insert_with(|| vec![None]);
        if history.last() != Some(&file) {
            history.push(file);
        }
    }

    /// The present file of a name.
    fn now(&self, name: Name) -> Option<&File> {
        self.names.get(&name)?.last()?.as_ref()
    }

    /// Makes all names durable.
    pub(super) fn sync(&mut self) {
        for (name, history) in &mut self.names {
            if !self.cursed.contains(name) {
                history.drain(..history.len() - 1);
            }
        }
        self.names.retain(|_, history| history.iter().any(Option::is_some));
    }

    /// A sync fails: names are not durable, and some new packs never will be.
    pub(super) fn fail_sync(&mut self, random: &mut Rng) {
        let is_new = |name: &Name, history: &History| matches!(name, Name::Pack(_)) && history[0].is_none();
        let new = self.names.iter().filter(|(name, history)| is_new(name, history)).map(|(name, _)| *name);
        let cursed: Vec<Name> = new.filter(|_| random.bool()).collect();
        self.cursed.extend(cursed);
    }

    /// A power failure: each name has one of its states since the last sync. If only the process is
    /// killed, everything stays.
    pub(super) fn crash(&mut self, random: &mut Rng, is_power_cut: bool) {
        for history in self.names.values_mut() {
            let at = if is_power_cut { random.usize(..history.len()) } else { history.len() - 1 };
            let file = history.swap_remove(at);
            *history = vec![file];
        }
        self.cursed.clear();
        self.names.retain(|_, history| history[0].is_some());
    }

    /// The present manifest of a version, if there is one.
    pub(super) fn manifest(&self, version: u64) -> Option<&Arc<Manifest>> {
        match self.now(Name::Version(version)) {
            Some(File::Manifest(manifest)) => Some(manifest),
            _ => None,
        }
    }

    /// All present manifests.
    pub(super) fn manifests(&self) -> impl Iterator<Item = &Arc<Manifest>> {
        let versions = self.names.keys().filter_map(|name| match name {
            Name::Version(version) => Some(*version),
            Name::Pack(_) => None,
        });
        versions.filter_map(|version| self.manifest(version))
    }

    /// The numbers of all present packs.
    pub(super) fn packs(&self) -> impl Iterator<Item = u64> {
        self.names.keys().filter_map(|name| match name {
            Name::Pack(number) => self.now(*name).map(|_| *number),
            Name::Version(_) => None,
        })
    }

    /// All manifests that may be there after a crash.
    pub(super) fn possible(&self) -> impl Iterator<Item = &Arc<Manifest>> {
        self.names.values().flatten().filter_map(|file| match file {
            Some(File::Manifest(manifest)) => Some(manifest),
            _ => None,
        })
    }

    /// The manifests of a version that may be there after a crash, if there is one in every case.
    pub(super) fn sure(&self, version: u64, run: RunId) -> Option<Vec<&Arc<Manifest>>> {
        let history = self.names.get(&Name::Version(version))?;
        let of_run = |file: &'_ Option<File>| matches!(file, Some(File::Manifest(it)) if it.run == run);
        history.iter().all(of_run).then(|| self.possible().filter(|it| it.version == version).collect())
    }

    /// Whether a pack is there after any crash.
    pub(super) fn surely_has(&self, pack: &ManifestPack) -> bool {
        let is_it = |file: &Option<File>| *file == Some(File::Pack(pack.index_check));
        self.names.get(&Name::Pack(pack.id.number)).is_some_and(|history| history.iter().all(is_it))
    }

    /// Has some manifests fail to be read, or none.
    pub(super) fn obscure(&mut self, random: &mut Rng, is_failing: bool) {
        let versions: Vec<u64> = self.manifests().map(|manifest| manifest.version).collect();
        self.unreadable = versions.into_iter().filter(|_| is_failing && random.u8(..3) == 0).collect();
    }

    /// Manifests that can be read.
    pub(super) fn readable(&self) -> impl Iterator<Item = &Arc<Manifest>> {
        self.manifests().filter(|manifest| !self.unreadable.contains(&manifest.version))
    }

    /// Whether nobody has used it.
    pub(super) fn is_new(&self) -> bool {
        self.names.is_empty() && self.runs.is_empty()
    }

    /// What a session finds when it is opened.
    pub(super) fn found(&self) -> Found {
        Found {
            manifests: self.readable().map(|manifest| (manifest.version, Arc::clone(manifest))).collect(),
            packs: self.packs().map(|number| (number, 1)).collect(),
            unreadable: self.unreadable.clone(),
        }
    }

    /// What it announces to the other ranks.
    pub(super) fn held(&self) -> HeldLayer {
        HeldLayer {
            runs: self.runs.clone(),
            versions: self.readable().map(|manifest| (manifest.version, Held::of(manifest))).collect(),
            unreadable: self.unreadable.clone(),
        }
    }
}
