//! Merged packs: when they have arrived, manifests are rewritten one by one to list them instead of
//! the old ones.

use outcrop_format::ManifestPack;

use crate::{LayerIndex, Ledger, Step, layer::Layer};

/// A merge of packs of one rank. Both lists are newest first, as in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The numbers of the old ones.
    pub old: Vec<u64>,
    /// The new ones.
    pub new: Vec<ManifestPack>,
}

impl Merge {
    /// Replaces the old packs by the new ones in the list of a manifest of this rank. Returns
    /// whether the old ones were in it.
    pub fn apply(&self, rank: u32, packs: &mut Vec<ManifestPack>) -> bool {
        let is_old = |(pack, number): (&ManifestPack, &u64)| {
            pack.id.rank == rank && pack.id.number == *number && !pack.is_borrowed
        };
        let is_here = |window: &[ManifestPack]| window.iter().zip(&self.old).all(is_old);
        let start = packs.windows(self.old.len().max(1)).position(is_here);
        if let Some(start) = start {
            packs.splice(start..start + self.old.len(), self.new.iter().copied());
        }
        start.is_some()
    }

    /// Whether a pack is one of the new ones.
    pub(crate) fn makes(&self, number: u64) -> bool {
        self.new.iter().any(|pack| pack.id.number == number)
    }

    /// The position of the old packs in a chain.
    fn find(&self, chain: &[u64]) -> Option<usize> {
        chain.windows(self.old.len()).position(|window| window == self.old)
    }

    /// A version on this layer that lists the old packs, and that can be rewritten to list the new
    /// ones.
    fn stale(&self, here: &Layer, is_wanted: impl Fn(u64) -> bool) -> Option<u64> {
        // A manifest that lists all old packs lists the first of them.
        let mut listing = here.listing.listing(self.old[0]).filter(|version| !here.unmerged.contains(version));
        let lists_all = |version: &u64| {
            is_wanted(*version) && here.listing.manifest(*version).is_some_and(|it| self.find(&it.chain).is_some())
        };
        listing.find(lists_all)
    }
}

impl Ledger {
    /// Packs of this rank were merged.
    pub(crate) fn merged(&mut self, merge: Merge) {
        if merge.old.is_empty() {
            return;
        }
        if merge.old.iter().all(|number| self.chain.contains(number)) {
            self.chain.retain(|number| !merge.old.contains(number));
            self.chain.extend(merge.new.iter().map(|pack| pack.id.number));
        }
        self.merges.push(merge);
    }

    /// A list of packs, with all merges applied whose new packs have arrived on this layer.
    pub(crate) fn with_merges(&self, layer: LayerIndex, packs: &[ManifestPack]) -> Vec<ManifestPack> {
        let mut packs = packs.to_vec();
        for merge in self.merges.iter().filter(|merge| self.has_arrived(layer, merge)) {
            merge.apply(self.settings.rank, &mut packs);
        }
        packs
    }

    fn has_arrived(&self, layer: LayerIndex, merge: &Merge) -> bool {
        merge.new.iter().all(|pack| self.layers[layer].listing.pack_bytes(pack.id.number).is_some())
    }

    /// The next manifest on a layer to be rewritten because packs that it lists were merged.
    pub(crate) fn next_rewrite(&mut self, layer: LayerIndex) -> Option<Step> {
        let here = &self.layers[layer];
        if let Some(step) = here.retry() {
            return Some(step);
        }
        if self.merges.is_empty() {
            return None;
        }
        // A manifest that only a crash may bring back is not there to be rewritten.
        let is_wanted = |version: u64| !here.doomed.contains(&version) && !here.revived.contains_key(&version);
        let mut arrived = self.merges.iter().filter(|merge| self.has_arrived(layer, merge));
        let Some(version) = arrived.find_map(|merge| merge.stale(here, is_wanted)) else {
            self.forget_merges();
            return None;
        };
        if !here.unsynced.is_empty() {
            return Some(Step::Sync);
        }
        let mut chain = here.listing.manifest(version)?.chain.clone();
        let mut applies = |merge: &&Merge| match self.has_arrived(layer, merge) {
            true => relisted(&mut chain, merge),
            false => false,
        };
        let merges = self.merges.iter().filter(|merge| applies(merge)).cloned().collect();
        Some(Step::Rewrite { version, merges })
    }

    /// Forgets merges that no manifest and no draft needs any more.
    fn forget_merges(&mut self) {
        let (rank, drafts, layers) = (self.settings.rank, &self.drafts, &self.layers);
        self.merges.retain(|merge| {
            let is_drafted = drafts.iter().any(|it| merge.apply(rank, &mut it.draft.manifest.packs.clone()));
            is_drafted || layers.iter().any(|layer| merge.stale(layer, |_| true).is_some())
        });
    }
}

/// Replaces the old packs of a merge by the new ones in a chain. Returns whether the old ones were
/// in it.
pub(crate) fn relisted(chain: &mut Box<[u64]>, merge: &Merge) -> bool {
    let Some(start) = merge.find(chain) else { return false };
    let mut packs = chain.to_vec();
    packs.splice(start..start + merge.old.len(), merge.new.iter().map(|pack| pack.id.number));
    *chain = packs.into();
    true
}
