//! What a session finds when it is opened: which versions are complete, and which may become
//! complete again.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use outcrop_format::{Held, HeldLayer, Holdings, MARK_RUNS_MAX, Manifest, RunId};

use crate::{
    LayerIndex, Ledger, Settings,
    layer::{Layer, Standing, own_packs},
    listing::{Listing, Visible},
};

/// What this rank found in one of its directories.
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
    /// Opens the ledger of a session. `found` is what this rank found, by layer; `everybody` is
    /// what each rank found, by rank, including this one.
    pub fn open(settings: Settings, found: Vec<Found>, everybody: &[Holdings]) -> Self {
        let (whole, users) = (whole(everybody), users(everybody));
        let (unread, mut returning) = (unread(everybody, &whole), returning(everybody));
        let mut next_number = 0;
        let mut layers = Vec::with_capacity(found.len());
        for (index, found) in found.into_iter().enumerate() {
            let listed = found.manifests.values().flat_map(|it| own_packs(&it.packs, settings.rank));
            let last = listed.chain(found.packs.keys().copied()).max();
            next_number = next_number.max(last.map_or(0, |last| last.saturating_add(1)));
            let mut listing = Listing::new(settings.layers[index].keep, found.packs);
            for (version, manifest) in found.manifests {
                let run = manifest.run;
                let standing = if whole.get(&version) == Some(&run) && lacking(everybody, index, version, run) == 0 {
                    Standing::Complete
                } else if unread[index].contains(&version) {
                    Standing::Unread
                } else {
                    Standing::Kept { may_return: may_return(everybody, &users, index, version, run) }
                };
                listing.insert(version, Visible::new(&manifest, &manifest.packs, standing));
            }
            let (unreadable, awaited, wants_collection) = (found.unreadable, take(&mut returning[index]), true);
            layers.push(Layer { listing, unreadable, awaited, wants_collection, ..Layer::default() });
        }
        Self::new(settings, layers, next_number)
    }

    /// The runs to list in this rank's mark (the file `runs`) on a layer. These are this run, and
    /// the earlier runs that this rank took part in and of which some rank still has a version, or
    /// may have one that cannot be read now. If there are too many, some are omitted, and versions
    /// of those runs on other ranks may be kept for longer.
    pub fn marks(&self, layer: LayerIndex, everybody: &[Holdings]) -> BTreeSet<RunId> {
        let mine = everybody.get(self.settings.rank as usize).and_then(|holdings| holdings.layers.get(layer));
        let there = || everybody.iter().filter_map(|holdings| holdings.layers.get(layer));
        let alive: BTreeSet<RunId> = there().flat_map(|layer| layer.versions.values()).map(|held| held.run).collect();
        let is_unread = there().any(|layer| !layer.unreadable.is_empty());
        let known = mine
            .into_iter()
            .flat_map(|layer| layer.runs.iter().copied().chain(layer.versions.values().map(|held| held.run)));
        let known: BTreeSet<RunId> = known.filter(|run| is_unread || alive.contains(run)).collect();
        known.into_iter().take(MARK_RUNS_MAX - 1).chain([self.settings.run]).collect()
    }

    /// The versions that can be restored, with the run that saved each, and by layer whether all
    /// ranks have it there.
    pub fn versions(&self) -> BTreeMap<u64, (RunId, Vec<bool>)> {
        let mut versions = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate() {
            for (version, visible) in layer.listing.manifests() {
                if visible.standing == Standing::Complete {
                    let nowhere = || (visible.run, vec![false; self.layers.len()]);
                    versions.entry(version).or_insert_with(nowhere).1[index] = true;
                }
            }
        }
        versions
    }
}

/// By layer: versions that only some ranks have there, and that may become complete again. All
/// ranks compute the same result.
pub fn returning(everybody: &[Holdings]) -> Vec<BTreeSet<u64>> {
    let users = users(everybody);
    let layers = everybody.iter().map(|holdings| holdings.layers.len()).max().unwrap_or(0);
    let mut returning = vec![BTreeSet::new(); layers];
    for holdings in everybody {
        for (index, layer) in holdings.layers.iter().enumerate() {
            let may_return = |(version, held): (&u64, &Held)| {
                (lacking(everybody, index, *version, held.run) > 0
                    && may_return(everybody, &users, index, *version, held.run))
                .then_some(*version)
            };
            returning[index].extend(layer.versions.iter().filter_map(may_return));
        }
    }
    returning
}

/// The versions that every rank has on one layer from the same run. If several runs have saved a
/// version, the latest one counts.
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

/// By layer: versions that are incomplete only because some ranks cannot read their manifests. All
/// manifests that can be read are of the same run. All ranks compute the same result.
fn unread(everybody: &[Holdings], whole: &BTreeMap<u64, RunId>) -> Vec<BTreeSet<u64>> {
    let layers = everybody.iter().map(|holdings| holdings.layers.len()).max().unwrap_or(0);
    let mut unread = vec![BTreeSet::new(); layers];
    for (index, unread) in unread.iter_mut().enumerate() {
        let there = || everybody.iter().map(|holdings| holdings.layers.get(index));
        let suspects: BTreeSet<u64> = there().flatten().flat_map(|layer| layer.unreadable.iter().copied()).collect();
        unread.extend(suspects.into_iter().filter(|version| {
            let run = there().flatten().find_map(|layer| layer.versions.get(version)).map(|held| held.run);
            let may_have = |layer: Option<&HeldLayer>, run| {
                has(layer, *version, run) || layer.is_some_and(|layer| layer.unreadable.contains(version))
            };
            // If another run has saved it since then on another layer, that one counts.
            run.is_some_and(|run| {
                whole.get(version).is_none_or(|newer| *newer == run) && there().all(|layer| may_have(layer, run))
            })
        }));
    }
    unread
}

/// How many ranks do not have this version of this run on a layer.
fn lacking(everybody: &[Holdings], layer: LayerIndex, version: u64, run: RunId) -> usize {
    everybody.iter().filter(|holdings| !has(holdings.layers.get(layer), version, run)).count()
}

fn has(layer: Option<&HeldLayer>, version: u64, run: RunId) -> bool {
    layer.and_then(|layer| layer.versions.get(&version)).is_some_and(|held| held.run == run)
}

/// By rank and layer: the runs that are known to have used the directory.
fn users(everybody: &[Holdings]) -> Vec<Vec<BTreeSet<RunId>>> {
    let of_layer = |layer: &HeldLayer| {
        let saved = layer.versions.values().map(|held| held.run);
        layer.runs.iter().copied().chain(saved).collect()
    };
    everybody.iter().map(|holdings| holdings.layers.iter().map(of_layer).collect()).collect()
}

/// Whether a version that not all ranks have on a layer may become complete again. That is so if a
/// rank lacks it and its directory does not say that this run has used it (so the directory may be
/// another one), or if a rank has a manifest of it that cannot be read.
fn may_return(
    everybody: &[Holdings],
    users: &[Vec<BTreeSet<RunId>>],
    layer: LayerIndex,
    version: u64,
    run: RunId,
) -> bool {
    let may_have_had = |(holdings, users): (&Holdings, &Vec<BTreeSet<RunId>>)| {
        let (Some(there), Some(users)) = (holdings.layers.get(layer), users.get(layer)) else { return true };
        !has(Some(there), version, run) && (!users.contains(&run) || there.unreadable.contains(&version))
    };
    everybody.iter().zip(users).any(may_have_had)
}
