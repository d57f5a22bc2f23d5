//! Retention and garbage collection: removes manifests that are not kept, then packs that nothing
//! needs.

use std::collections::BTreeSet;

use crate::{LayerIndex, Ledger, Step};

/// Ranks that share blocks must read the manifests of all other ranks before they remove a pack. A
/// rank does so only when at least this fraction of its bytes in a directory (one eighth) may be
/// removed. So the cost of a save does not depend on how many versions are kept.
const WORTH_A_LOOK: u64 = 8;

impl Ledger {
    /// Marks versions for removal: those that the retention settings do not keep, and incomplete
    /// ones below the newest complete version.
    pub(crate) fn retain(&mut self, layer: LayerIndex) {
        let here = &mut self.layers[layer];
        let Some(newest) = here.listing.newest_complete() else { return };
        let base = here.base.map(|base| base.version);
        let dropped = here.listing.dropped(self.now_unix_ns).chain(here.listing.incomplete_below(newest));
        here.doomed.extend(dropped.filter(|version| Some(*version) != base));
    }

    /// The packs of this rank on a layer that nothing needs, as far as this rank knows.
    fn idle(&self, layer: LayerIndex) -> Vec<u64> {
        let (here, rank) = (&self.layers[layer], self.settings.rank);
        let pending_from = here.pending.values().copied().min().unwrap_or(u64::MAX);
        let is_idle = |number: &u64| {
            *number < self.drafted_below
                && *number < pending_from
                && !here.lingering.contains(number)
                && !here.doubted.contains(number)
                && !self.chain.contains(number)
                && !self.drafts.iter().any(|drafted| drafted.lists(rank, *number))
                && !self.merges.iter().any(|merge| merge.makes(*number))
        };
        here.listing.unlisted().filter(is_idle).collect()
    }

    /// Collects packs that nothing needs. If other ranks may need some of them, asks for a
    /// [`Step::Look`] first.
    pub(crate) fn next_collection(&mut self, layer: LayerIndex) -> Option<Step> {
        if !self.layers[layer].wants_collection || self.is_reading || self.layers[layer].keeps_all() {
            return None;
        }
        self.layers[layer].wants_collection = false;
        let idle = self.idle(layer);
        let may_be_borrowed = self.settings.ranks > 1 || self.layers[layer].has_former;
        if !idle.is_empty() && may_be_borrowed && !self.layers[layer].is_unborrowed {
            return self.is_worth_a_look(layer, &idle).then_some(Step::Look);
        }
        self.discard(layer, idle);
        None
    }

    /// Removes what former ranks have and nothing needs any more.
    pub(crate) fn next_clearing(&mut self, layer: LayerIndex) -> Option<Step> {
        let here = &mut self.layers[layer];
        if !here.has_former || self.is_reading || here.keeps_all() {
            return None;
        }
        let stale = here.stale();
        let is_tried = stale.is_empty() || here.tried_stale == stale;
        if !here.wants_clearing && is_tried {
            return None;
        }
        here.wants_clearing = false;
        here.tried_stale.clone_from(&stale);
        Some(Step::Clear { stale })
    }

    /// Whether enough packs may be removed to justify reading the manifests of the other ranks.
    fn is_worth_a_look(&self, layer: LayerIndex, idle: &[u64]) -> bool {
        let here = &self.layers[layer];
        let may_go = idle.iter().filter(|number| !here.borrowed.contains(number));
        let bytes: u64 = may_go.filter_map(|number| here.listing.pack_bytes(*number)).sum();
        let is_now = !self.settings.is_shared || self.is_closing || self.settings.layers[layer].is_limited;
        is_now || bytes.saturating_mul(WORTH_A_LOOK) >= here.listing.all_pack_bytes()
    }

    /// A look has ended: other ranks refer to `borrowed`. The other packs can be removed.
    pub(crate) fn looked(&mut self, layer: LayerIndex, borrowed: &BTreeSet<u64>) {
        // Ranks that do not share blocks borrow nothing new: only an earlier run can have borrowed.
        self.layers[layer].is_unborrowed = borrowed.is_empty() && !self.settings.is_shared;
        let idle = self.idle(layer).into_iter();
        let (needed, idle): (Vec<u64>, Vec<u64>) = idle.partition(|number| borrowed.contains(number));
        self.layers[layer].borrowed = needed.into_iter().collect();
        self.discard(layer, idle);
    }

    fn discard(&mut self, layer: LayerIndex, numbers: Vec<u64>) {
        let here = &mut self.layers[layer];
        for number in numbers {
            let bytes = here.listing.remove_pack(number).unwrap_or(0);
            here.unsynced.remove(&number);
            here.garbage.push_back((number, bytes));
        }
    }
}
