//! What is not kept any more: manifests first, then packs that nothing needs.

use std::collections::BTreeSet;

use crate::{
    LayerIndex, Ledger, Step,
    layer::{Standing, own_packs},
};

impl Ledger {
    /// Dooms versions that are not kept: those that the settings say, and those before the newest
    /// complete one that not all ranks have.
    pub(crate) fn retain(&mut self, layer: LayerIndex) {
        let keep = self.settings.layers[layer].keep;
        let here = &mut self.layers[layer];
        let complete = here.manifests.iter().filter(|(_, visible)| visible.standing == Standing::Complete);
        let complete: Vec<(u64, u64)> =
            complete.map(|(version, visible)| (*version, visible.manifest.saved_at_unix_ns)).collect();
        let Some((newest, _)) = complete.last().copied() else { return };
        let base = here.base.map(|base| base.version);
        let dropped = keep.dropped(self.now_unix_ns, &complete);
        let is_incomplete = |(version, visible): (&u64, &crate::layer::Visible)| {
            (visible.standing != Standing::Complete).then_some(*version)
        };
        let incomplete: Vec<u64> = here.manifests.range(..newest).filter_map(is_incomplete).collect();
        here.doomed.extend(dropped.into_iter().chain(incomplete).filter(|version| Some(*version) != base));
    }

    /// The packs of this rank on a layer that nothing needs.
    fn idle(&self, layer: LayerIndex) -> Vec<u64> {
        let (here, rank) = (&self.layers[layer], self.settings.rank);
        let of_manifests = here.manifests.values().map(|visible| &visible.packs);
        let of_drafts = self.drafts.iter().map(|drafted| &drafted.draft.manifest.packs);
        let mut needed: BTreeSet<u64> =
            of_manifests.chain(of_drafts).flat_map(|packs| own_packs(packs, rank)).collect();
        needed.extend(&here.lingering);
        needed.extend(&self.chain);
        let pending_from = here.pending.values().copied().min().unwrap_or(u64::MAX);
        let is_idle = |number: &u64| {
            !needed.contains(number)
                && *number < self.drafted_below
                && *number < pending_from
                && !self.merges.iter().any(|merge| merge.makes(*number))
        };
        here.packs.keys().copied().filter(is_idle).collect()
    }

    /// Looks for packs that nothing needs; what other ranks need has to be looked at first.
    pub(crate) fn next_collection(&mut self, layer: LayerIndex) -> Option<Step> {
        if !self.layers[layer].wants_collection || self.is_reading || self.layers[layer].keeps_all() {
            return None;
        }
        self.layers[layer].wants_collection = false;
        let idle = self.idle(layer);
        if !idle.is_empty() && self.settings.ranks > 1 {
            return Some(Step::Look);
        }
        self.discard(layer, idle);
        None
    }

    /// Other ranks need these; the rest can go.
    pub(crate) fn looked(&mut self, layer: LayerIndex, borrowed: &BTreeSet<u64>) {
        let idle = self.idle(layer).into_iter().filter(|number| !borrowed.contains(number)).collect();
        self.discard(layer, idle);
    }

    fn discard(&mut self, layer: LayerIndex, numbers: Vec<u64>) {
        let here = &mut self.layers[layer];
        for number in numbers {
            let bytes = here.packs.remove(&number).unwrap_or(0);
            here.unsynced.remove(&number);
            here.garbage.push_back((number, bytes));
        }
    }
}
