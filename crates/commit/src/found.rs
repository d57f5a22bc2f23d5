//! What a session finds when it is opened: which versions are complete, and which may become
//! complete again.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::take,
    sync::Arc,
};

use outcrop_format::{Former, Held, HeldLayer, Holdings, MARK_RUNS_MAX, Manifest, RunId};

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

/// What all ranks found, by the number of the rank: those of this run, and former ranks, whose
/// directories they have adopted.
#[derive(Debug, Clone)]
pub struct Everybody {
    /// By rank and layer. Their `runs` include those of their versions.
    ranks: BTreeMap<u32, Vec<HeldLayer>>,
    layers: usize,
    /// For each rank of this run: the directories of former ranks that it has found.
    adopted: Vec<Vec<Former>>,
}

impl Everybody {
    /// Combines what the ranks of this run tell each other, in the order of the ranks.
    pub fn new(told: Vec<Holdings>) -> Self {
        let layers = told.iter().map(|holdings| holdings.layers.len()).max().unwrap_or(0);
        let (mut ranks, mut adopted) = (BTreeMap::new(), Vec::with_capacity(told.len()));
        for (rank, mut holdings) in (0..).zip(told) {
            holdings.layers.resize(layers, HeldLayer::default());
            ranks.insert(rank, holdings.layers);
            adopted.push(holdings.former);
        }
        for Former { layer, rank, held } in adopted.iter().flatten() {
            let Some(held) = held.as_ref().filter(|_| (*layer as usize) < layers) else { continue };
            let known = ranks.entry(*rank).or_insert_with(|| vec![HeldLayer::default(); layers]);
            let known = &mut known[*layer as usize];
            known.runs.extend(&held.runs);
            known.unreadable.extend(&held.unreadable);
            for (version, held) in &held.versions {
                // Two disks may have a directory of this rank, each with its own versions.
                known.versions.entry(*version).or_insert(*held);
            }
        }
        for layer in ranks.values_mut().flatten() {
            let saved: Vec<RunId> = layer.versions.values().map(|held| held.run).collect();
            layer.runs.extend(saved);
        }
        Self { ranks, layers, adopted }
    }

    /// Directories of former ranks that a process outside this run has locked: layer and rank.
    pub fn occupied(&self) -> impl Iterator<Item = (LayerIndex, u32)> {
        let former = || self.adopted.iter().flatten();
        let is_adopted = move |it: &&Former| {
            former().any(|other| (other.layer, other.rank) == (it.layer, it.rank) && other.held.is_some())
        };
        former().filter(move |it| !is_adopted(it)).map(|it| (it.layer as LayerIndex, it.rank))
    }

    /// What each rank has on a layer, also former ones, up to this number of ranks.
    fn of(&self, ranks: u32, layer: LayerIndex) -> impl Iterator<Item = &HeldLayer> {
        self.ranks.range(..ranks).filter_map(move |(_, layers)| layers.get(layer))
    }

    /// What each rank has on a layer, also former ones.
    fn on(&self, layer: LayerIndex) -> impl Iterator<Item = &HeldLayer> {
        self.of(u32::MAX, layer)
    }

    /// What a former rank has on a layer whose directory this rank has adopted.
    fn adopted_by(&self, rank: u32, layer: LayerIndex) -> impl Iterator<Item = &HeldLayer> {
        let former = self.adopted.get(rank as usize).into_iter().flatten();
        former.filter(move |it| it.layer as LayerIndex == layer).filter_map(|it| it.held.as_ref())
    }

    /// How many of the ranks that saved this version do not have it on a layer.
    fn lacking(&self, layer: LayerIndex, version: u64, held: &Held) -> usize {
        let have = self.of(held.ranks, layer).filter(|it| has(it, version, held.run)).count();
        (held.ranks as usize).saturating_sub(have)
    }

    /// Whether a version that not all ranks have on a layer may become complete again. That is so
    /// if a rank lacks it and its directory does not say that this run has used it (so the
    /// directory may be another one), or if a rank has a manifest of it that cannot be read.
    fn may_return(&self, layer: LayerIndex, version: u64, held: &Held) -> bool {
        let may_have_had = |there: &HeldLayer| {
            !has(there, version, held.run) && (!there.runs.contains(&held.run) || there.unreadable.contains(&version))
        };
        let are_all_there = self.ranks.range(..held.ranks).count() == held.ranks as usize;
        !are_all_there || self.of(held.ranks, layer).any(may_have_had)
    }

    /// The versions that all ranks have that saved them, with the run and its number of ranks, and
    /// on which layers they are. All ranks compute the same result.
    pub fn versions(&self) -> BTreeMap<u64, (Held, Vec<bool>)> {
        let there =
            |version: u64, held: &Held| (0..self.layers).map(|layer| self.lacking(layer, version, held) == 0).collect();
        whole(self).into_iter().map(|(version, held)| (version, (held, there(version, &held)))).collect()
    }

    /// By layer: versions that only some ranks have there, and that may become complete again. All
    /// ranks compute the same result.
    pub fn returning(&self) -> Vec<BTreeSet<u64>> {
        let mut returning = vec![BTreeSet::new(); self.layers];
        for (index, returning) in returning.iter_mut().enumerate() {
            for layer in self.on(index) {
                let may_return = |(version, held): (&u64, &Held)| {
                    (self.lacking(index, *version, held) > 0 && self.may_return(index, *version, held))
                        .then_some(*version)
                };
                returning.extend(layer.versions.iter().filter_map(may_return));
            }
        }
        returning
    }
}

impl Ledger {
    /// Opens the ledger of a session. `found` is what this rank found, by layer.
    ///
    /// The ledger also lists versions of which this rank has no part, because more ranks save now
    /// than then. So all ranks agree on which versions are kept.
    pub fn open(settings: Settings, found: Vec<Found>, everybody: &Everybody) -> Self {
        let whole = whole(everybody);
        let (unread, mut returning) = (unread(everybody, &whole), everybody.returning());
        let mut next_number = 0;
        let mut layers = Vec::with_capacity(found.len());
        for (index, found) in found.into_iter().enumerate() {
            let listed = found.manifests.values().flat_map(|it| own_packs(&it.packs, settings.rank));
            let last = listed.chain(found.packs.keys().copied()).max();
            next_number = next_number.max(last.map_or(0, |last| last.saturating_add(1)));
            let standing = |version: u64, held: &Held| {
                let is_it = |whole: &Held| whole.run == held.run && everybody.lacking(index, version, held) == 0;
                if whole.get(&version).is_some_and(is_it) {
                    Standing::Complete
                } else if unread[index].contains(&version) {
                    Standing::Unread
                } else {
                    Standing::Kept { may_return: everybody.may_return(index, version, held) }
                }
            };
            let mut listing = Listing::new(settings.layers[index].keep, found.packs);
            for (version, manifest) in &found.manifests {
                let standing = standing(*version, &Held::of(manifest));
                listing.insert(*version, Visible::new(manifest, &manifest.packs, standing));
            }
            let adopted = || everybody.adopted_by(settings.rank, index);
            let mut unreadable = found.unreadable;
            unreadable.extend(adopted().flat_map(|it| &it.unreadable));
            let of_former = adopted().flat_map(|it| &it.versions).map(|(version, held)| (*version, *held));
            let whole_here = whole.iter().map(|(version, held)| (*version, *held));
            let whole_here = whole_here.filter(|(version, held)| everybody.lacking(index, *version, held) == 0);
            for (version, held) in of_former.chain(whole_here) {
                // What cannot be read may be the part of another version with the same number.
                if listing.manifest(version).is_none() && !unreadable.contains(&version) {
                    listing.insert(version, Visible::without_packs(&held, standing(version, &held)));
                }
            }
            let read = adopted().flat_map(|it| &it.versions).map(|(version, held)| (*version, Some(held.run)));
            let unread = adopted().flat_map(|it| &it.unreadable).map(|version| (*version, None));
            let former = read.chain(unread).collect();
            let has_former = adopted().next().is_some();
            layers.push(Layer {
                listing,
                unreadable,
                awaited: take(&mut returning[index]),
                wants_collection: true,
                former,
                has_former,
                wants_clearing: has_former,
                ..Layer::default()
            });
        }
        Self::new(settings, layers, next_number)
    }

    /// The runs to list in this rank's mark (the file `runs`) on a layer. These are this run, and
    /// the earlier runs that this rank took part in and of which some rank still has a version, or
    /// may have one that cannot be read now. If there are too many, some are omitted, and versions
    /// of those runs on other ranks may be kept for longer.
    pub fn marks(&self, layer: LayerIndex, everybody: &Everybody) -> BTreeSet<RunId> {
        let mine = everybody.ranks.get(&self.settings.rank).and_then(|layers| layers.get(layer));
        let versions = everybody.on(layer).flat_map(|layer| layer.versions.values());
        let alive: BTreeSet<RunId> = versions.map(|held| held.run).collect();
        let is_unread = everybody.on(layer).any(|layer| !layer.unreadable.is_empty());
        let known = mine.into_iter().flat_map(|layer| layer.runs.iter().copied());
        known
            .filter(|run| is_unread || alive.contains(run))
            .take(MARK_RUNS_MAX - 1)
            .chain([self.settings.run])
            .collect()
    }
}

/// The versions that every rank that saved them has on one layer. If several runs have saved a
/// version, the latest one counts.
fn whole(everybody: &Everybody) -> BTreeMap<u64, Held> {
    let mut whole = BTreeMap::<u64, Held>::new();
    for index in 0..everybody.layers {
        // Every run has a rank 0.
        for (&version, held) in everybody.of(1, index).flat_map(|layer| &layer.versions) {
            if everybody.lacking(index, version, held) == 0 {
                let best = whole.entry(version).or_insert(*held);
                *best = (*best).max(*held);
            }
        }
    }
    whole
}

/// By layer: versions that are incomplete only because some ranks cannot read their manifests. All
/// manifests that can be read are of the same run. All ranks compute the same result.
fn unread(everybody: &Everybody, whole: &BTreeMap<u64, Held>) -> Vec<BTreeSet<u64>> {
    let mut unread = vec![BTreeSet::new(); everybody.layers];
    for (index, unread) in unread.iter_mut().enumerate() {
        let there = || everybody.on(index);
        let suspects: BTreeSet<u64> = there().flat_map(|layer| layer.unreadable.iter().copied()).collect();
        unread.extend(suspects.into_iter().filter(|version| {
            let may_have = |layer: &HeldLayer, run| has(layer, *version, run) || layer.unreadable.contains(version);
            // If another run has saved it since then on another layer, that one counts.
            there().find_map(|layer| layer.versions.get(version)).is_some_and(|held| {
                let have = everybody.of(held.ranks, index).filter(|layer| may_have(layer, held.run)).count();
                whole.get(version).is_none_or(|newer| newer.run == held.run) && have == held.ranks as usize
            })
        }));
    }
    unread
}

fn has(layer: &HeldLayer, version: u64, run: RunId) -> bool {
    layer.versions.get(&version).is_some_and(|held| held.run == run)
}
