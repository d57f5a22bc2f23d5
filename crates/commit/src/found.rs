//! What a session finds when it is opened: which versions are whole, and what may become whole
//! again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use outcrop_format::{HeldLayer, Holdings, Manifest, RunId};

use crate::{
    LayerIndex, Ledger, Settings,
    layer::{Layer, Standing, Visible, own_packs},
};

/// What this rank has found in one of its directories.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Manifests that can be read, by version.
    pub manifests: BTreeMap<u64, Arc<Manifest>>,
    /// Packs, with their lengths.
    pub packs: BTreeMap<u64, u64>,
    /// Versions whose manifests cannot be read.
    pub unreadable: BTreeSet<u64>,
}

impl Ledger {
    /// The ledger of a session that is opened: what this rank has found, and what all ranks have,
    /// itself included, by rank.
    pub fn open(settings: Settings, found: Vec<Found>, everybody: &[Holdings]) -> Self {
        let whole = whole(everybody);
        let mut next_number = 0;
        let mut layers = Vec::with_capacity(found.len());
        for (index, found) in found.into_iter().enumerate() {
            let listed = found.manifests.values().flat_map(|it| own_packs(&it.packs, settings.rank));
            let last = listed.chain(found.packs.keys().copied()).max();
            next_number = next_number.max(last.map_or(0, |last| last + 1));
            let visible = |(version, manifest): (u64, Arc<Manifest>)| {
                let run = manifest.run;
                let standing = match whole.get(&version) == Some(&run) && lacking(everybody, index, version, run) == 0 {
                    true => Standing::Complete,
                    false => Standing::Kept { may_return: may_return(everybody, index, version, run) },
                };
                (version, Visible { packs: manifest.packs.clone(), manifest, standing })
            };
            layers.push(Layer {
                manifests: found.manifests.into_iter().map(visible).collect(),
                packs: found.packs,
                unreadable: found.unreadable,
                wants_collection: true,
                ..Layer::default()
            });
        }
        Self::new(settings, layers, next_number)
    }

    /// What the mark of this rank's directory on a layer is to say from now on: this run, and those
    /// before it that it has taken part in and of which somebody still has a version.
    pub fn marks(&self, layer: LayerIndex, everybody: &[Holdings]) -> BTreeSet<RunId> {
        let mine = everybody.get(self.settings.rank as usize).and_then(|holdings| holdings.layers.get(layer));
        let there = everybody.iter().filter_map(|holdings| holdings.layers.get(layer));
        let alive: BTreeSet<RunId> = there.flat_map(|layer| layer.versions.values()).map(|held| held.run).collect();
        let known = mine
            .into_iter()
            .flat_map(|layer| layer.runs.iter().copied().chain(layer.versions.values().map(|held| held.run)));
        known.filter(|run| alive.contains(run)).chain([self.settings.run]).collect()
    }

    /// The versions that can be restored, with the run that saved each, and on which layers all
    /// ranks have it.
    pub fn versions(&self) -> BTreeMap<u64, (RunId, Vec<bool>)> {
        let mut versions = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate() {
            for (version, visible) in &layer.manifests {
                if visible.standing == Standing::Complete {
                    let nowhere = || (visible.manifest.run, vec![false; self.layers.len()]);
                    versions.entry(*version).or_insert_with(nowhere).1[index] = true;
                }
            }
        }
        versions
    }
}

/// The versions that every rank has, from the same run and on the same layer; the latest run if
/// there are several.
fn whole(everybody: &[Holdings]) -> BTreeMap<u64, RunId> {
    let mut whole = BTreeMap::<u64, (u64, RunId)>::new();
    let Some(first) = everybody.first() else { return BTreeMap::new() };
    for (index, layer) in first.layers.iter().enumerate() {
        for (&version, held) in &layer.versions {
            if lacking(everybody, index, version, held.run) == 0 {
                let best = whole.entry(version).or_insert((held.saved_at_unix_ns, held.run));
                *best = (*best).max((held.saved_at_unix_ns, held.run));
            }
        }
    }
    whole.into_iter().map(|(version, (_, run))| (version, run)).collect()
}

/// How many ranks do not have a version of this run on a layer.
fn lacking(everybody: &[Holdings], layer: LayerIndex, version: u64, run: RunId) -> usize {
    everybody.iter().filter(|holdings| !has(holdings.layers.get(layer), version, run)).count()
}

fn has(layer: Option<&HeldLayer>, version: u64, run: RunId) -> bool {
    layer.and_then(|layer| layer.versions.get(&version)).is_some_and(|held| held.run == run)
}

/// Whether a version that not all ranks have on a layer may become whole again: a rank that lacks
/// it there has nothing by which to know that this is the directory which that run has used, or has
/// something there that cannot be read.
fn may_return(everybody: &[Holdings], layer: LayerIndex, version: u64, run: RunId) -> bool {
    let may_have_had = |holdings: &Holdings| {
        let Some(layer) = holdings.layers.get(layer) else { return true };
        let was_there = layer.runs.contains(&run) || layer.versions.values().any(|held| held.run == run);
        !has(Some(layer), version, run) && (!was_there || layer.unreadable.contains(&version))
    };
    everybody.iter().any(may_have_had)
}
