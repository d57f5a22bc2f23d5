//! Packs that have become others: manifests list those instead, one by one, when they have arrived.

use outcrop_format::ManifestPack;

use crate::{LayerIndex, Ledger, Step, layer::Visible};

/// Packs of this rank that have become others. Newest first, as they are in chains.
#[derive(Debug)]
pub(crate) struct Merge {
    old: Vec<u64>,
    new: Vec<ManifestPack>,
}

impl Merge {
    /// Whether a pack is one of the new ones.
    pub(crate) fn makes(&self, number: u64) -> bool {
        self.new.iter().any(|pack| pack.id.number == number)
    }

    /// Where the old ones are in a list of packs.
    fn find(&self, rank: u32, packs: &[ManifestPack]) -> Option<usize> {
        let is_old = |(pack, number): (&ManifestPack, &u64)| {
            pack.id.rank == rank && pack.id.number == *number && !pack.is_borrowed
        };
        let is_here = |window: &[ManifestPack]| window.iter().zip(&self.old).all(is_old);
        packs.windows(self.old.len()).position(is_here)
    }
}

impl Ledger {
    /// Packs have become others.
    pub(crate) fn merged(&mut self, old: Vec<u64>, new: Vec<ManifestPack>) {
        if old.is_empty() {
            return;
        }
        if old.iter().all(|number| self.chain.contains(number)) {
            self.chain.retain(|number| !old.contains(number));
            self.chain.extend(new.iter().map(|pack| pack.id.number));
        }
        self.merges.push(Merge { old, new });
        self.layers.iter_mut().for_each(|layer| layer.is_rewrite_blocked = false);
    }

    /// A list of packs, with those that have become others on this layer replaced by them.
    pub(crate) fn with_merges(&self, layer: LayerIndex, packs: &[ManifestPack]) -> Vec<ManifestPack> {
        let mut packs = packs.to_vec();
        for merge in self.merges.iter().filter(|merge| self.has_arrived(layer, merge)) {
            if let Some(start) = merge.find(self.settings.rank, &packs) {
                packs.splice(start..start + merge.old.len(), merge.new.iter().copied());
            }
        }
        packs
    }

    fn has_arrived(&self, layer: LayerIndex, merge: &Merge) -> bool {
        merge.new.iter().all(|pack| self.layers[layer].packs.contains_key(&pack.id.number))
    }

    /// The next manifest of a layer to be written anew, as packs that it lists have become others.
    pub(crate) fn next_rewrite(&mut self, layer: LayerIndex) -> Option<Step> {
        let here = &self.layers[layer];
        if self.merges.is_empty() || here.is_rewrite_blocked {
            return None;
        }
        let rank = self.settings.rank;
        let is_stale = |(version, visible): &(&u64, &Visible)| {
            let applies = |merge: &Merge| merge.find(rank, &visible.packs).is_some() && self.has_arrived(layer, merge);
            !here.doomed.contains(version) && self.merges.iter().any(applies)
        };
        let Some((_, visible)) = here.manifests.iter().find(is_stale) else {
            self.forget_merges();
            return None;
        };
        if !here.unsynced.is_empty() {
            return Some(Step::Sync);
        }
        let packs = self.with_merges(layer, &visible.packs);
        Some(Step::Write { manifest: visible.manifest.clone(), packs })
    }

    /// Forgets merges that nothing can apply any more.
    fn forget_merges(&mut self) {
        let rank = self.settings.rank;
        let of_drafts = self.drafts.iter().map(|drafted| &drafted.draft.manifest.packs);
        let of_layers = self.layers.iter().flat_map(|layer| layer.manifests.values()).map(|visible| &visible.packs);
        let listings: Vec<&Vec<ManifestPack>> = of_drafts.chain(of_layers).collect();
        self.merges.retain(|merge| listings.iter().any(|packs| merge.find(rank, packs).is_some()));
    }
}
