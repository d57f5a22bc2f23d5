//! The steps on a layer, one after the other, and the consequences of each outcome.

use std::sync::Arc;

use outcrop_format::{Manifest, ManifestPack};

use crate::{
    Action, LayerIndex, Ledger, Merge, Outcome, Report, Step, layer::Standing, listing::Visible, merges::relisted,
};

impl Ledger {
    /// Starts the next step on a layer, if there is one and none is under way.
    pub(crate) fn advance(&mut self, layer: LayerIndex) {
        if self.layers[layer].busy.is_some() {
            return;
        }
        let next = self.next_commit(layer).or_else(|| self.next_rewrite(layer)).or_else(|| self.next_removal(layer));
        match next {
            Some(step) => self.start(layer, step),
            None => {
                while let Some(save) = self.layers[layer].withheld.pop_front() {
                    self.report(Report::Reached { save, layer });
                }
            }
        }
    }

    pub(crate) fn start(&mut self, layer: LayerIndex, step: Step) {
        let here = &mut self.layers[layer];
        if matches!(step, Step::Sync | Step::Write { .. } | Step::Rewrite { .. }) {
            here.syncing = here.unsynced.clone();
        }
        here.busy = Some(step.clone());
        self.ask(Action::Do { layer, step });
    }

    /// Removes manifests, makes that durable, and then removes packs that nothing needs.
    fn next_removal(&mut self, layer: LayerIndex) -> Option<Step> {
        let here = &self.layers[layer];
        if let Some(&version) = here.doomed.last().filter(|_| !self.is_reading) {
            return Some(Step::Drop { version });
        }
        if here.is_dirty && !here.is_sync_blocked {
            return Some(Step::Sync);
        }
        if let Some(step) = self.next_collection(layer).or_else(|| self.next_clearing(layer)) {
            return Some(step);
        }
        // If the layer has a limit, somebody may be waiting for the room.
        let is_urgent = self.settings.layers[layer].is_limited && !self.is_reading;
        let (number, bytes) = is_urgent.then(|| self.layers[layer].garbage.pop_front())??;
        Some(Step::Remove { number, bytes })
    }

    /// A step has ended.
    pub(crate) fn done(&mut self, layer: LayerIndex, outcome: Outcome) {
        let Some(step) = self.layers[layer].busy.take() else { return };
        match (step, outcome) {
            (Step::Sync, Outcome::Failed { reason, next_number, .. }) => {
                self.doubt(layer, &reason, next_number);
            }
            (Step::Sync, _) => self.layers[layer].synced(),
            (Step::Write { manifest, packs }, Outcome::Failed { reason, may_be_visible, next_number }) => {
                self.linger_if(may_be_visible, layer, manifest.version);
                self.doubt(layer, &reason, next_number);
                self.write_failed(layer, &manifest, may_be_visible.then_some(&packs), &reason);
            }
            (Step::Write { manifest, packs }, _) => self.written(layer, &manifest, &packs),
            (Step::Rewrite { version, merges }, Outcome::Failed { reason, may_be_visible, next_number }) => {
                self.rewrite_failed(layer, version, &merges, &reason, may_be_visible.then_some(next_number));
            }
            (Step::Rewrite { version, merges }, _) => self.rewritten(layer, version, &merges),
            (Step::Drop { version }, Outcome::Failed { reason, .. }) => {
                self.layers[layer].doomed.remove(&version);
                self.layers[layer].stuck.insert(version);
                self.stays(layer, format!("version {version}: {reason}"));
            }
            (Step::Drop { version }, Outcome::Dropped(manifest)) => self.dropped(layer, version, Some(manifest)),
            (Step::Drop { version }, _) => self.dropped(layer, version, None),
            (Step::Look, Outcome::Borrowed(numbers)) => self.looked(layer, &numbers),
            (Step::Look, Outcome::Failed { reason, .. }) => {
                self.report(Report::Stays { layer, reason: format!("old packs: {reason}") });
            }
            (Step::Clear { .. }, Outcome::Failed { reason, .. }) => {
                self.report(Report::Stays { layer, reason: format!("packs of former ranks: {reason}") });
            }
            (Step::Remove { number, .. }, Outcome::Failed { reason, .. }) => {
                self.report(Report::Stays { layer, reason: format!("pack {number}: {reason}") });
            }
            (Step::Clear { stale }, _) => {
                let gone = |(version, run): &(u64, Option<_>)| run.is_some_and(|run| stale.contains(&(*version, run)));
                self.layers[layer].former.retain(|it| !gone(it));
            }
            (Step::Look | Step::Remove { .. }, _) => {}
        }
    }

    /// Something could not be removed.
    fn stays(&mut self, layer: LayerIndex, reason: String) {
        if let Some(result) = self.forgetting.as_mut().filter(|result| result.is_ok()) {
            *result = Err(reason.clone());
        }
        self.report(Report::Stays { layer, reason });
    }

    /// A sync of the directory failed. New packs in it may be lost in a crash, even if they can be
    /// read now and a later sync succeeds. So they count as not written, and nothing is built upon
    /// them.
    fn doubt(&mut self, layer: LayerIndex, reason: &str, next_number: u64) {
        let here = &mut self.layers[layer];
        for number in std::mem::take(&mut here.unsynced) {
            here.listing.remove_pack(number);
        }
        here.syncing.clear();
        here.doubted.append(&mut here.lingering);
        // These manifests seem to be removed, but a crash may bring them back, and by then nothing
        // would keep their packs. So they are written again, and then removed again.
        for (version, manifest) in std::mem::take(&mut here.removed) {
            if here.listing.manifest(version).is_none() {
                here.listing.insert(version, Visible::new(&manifest, &manifest.packs, Standing::Doubtful));
                here.revived.insert(version, manifest);
            }
        }
        here.doubtful_below = here.doubtful_below.max(next_number);
        here.is_sync_blocked = true;
        self.lose(layer, reason);
        if self.layers[layer].is_dirty {
            self.stays(layer, format!("versions that were removed may come back: {reason}"));
        }
    }

    /// A manifest was written, and it and its packs are durable.
    fn written(&mut self, layer: LayerIndex, manifest: &Manifest, packs: &[ManifestPack]) {
        let version = manifest.version;
        let here = &mut self.layers[layer];
        here.synced();
        here.unreadable.remove(&version);
        here.unmerged.remove(&version);
        here.retry_removals();
        here.unsure.remove(&version);
        let is_revived = here.revived.remove(&version).is_some();
        let Some(save) = here.writing.take() else {
            here.doomed.extend(is_revived.then_some(version));
            return;
        };
        here.doomed.remove(&version);
        let replaced = here.listing.insert(version, Visible::new(manifest, packs, Standing::Pending(save)));
        here.wants_collection |= replaced.is_some();
        if !self.settle(layer, version) {
            // The version has failed in the meantime.
            self.doom(layer, version);
            return;
        }
        match self.layers[layer].refused.get(&version).map(|refusal| refusal.reason.clone()) {
            None => {
                self.report(Report::Here { save, layer });
                self.has_written(layer, version);
            }
            Some(reason) => {
                self.layers[layer].doomed.insert(version);
                self.give_up(layer, save, reason);
            }
        }
    }

    /// A manifest was rewritten durably, and lists the merged packs.
    fn rewritten(&mut self, layer: LayerIndex, version: u64, merges: &[Merge]) {
        self.layers[layer].synced();
        self.layers[layer].retry_removals();
        self.layers[layer].unsure.remove(&version);
        self.relist(layer, version, merges);
        self.layers[layer].wants_collection = true;
    }

    fn relist(&mut self, layer: LayerIndex, version: u64, merges: &[Merge]) {
        let listing = &mut self.layers[layer].listing;
        if let Some(mut chain) = listing.manifest(version).map(|visible| visible.chain.clone()) {
            for merge in merges {
                relisted(&mut chain, merge);
            }
            listing.relist(version, chain);
        }
    }

    /// A manifest could not be rewritten. `next_number` is given if the new manifest may be
    /// visible, now or after a crash.
    fn rewrite_failed(
        &mut self,
        layer: LayerIndex,
        version: u64,
        merges: &[Merge],
        reason: &str,
        next_number: Option<u64>,
    ) {
        let here = &mut self.layers[layer];
        here.syncing.clear();
        // A repeated write that fails again is not retried until something else succeeds.
        let is_retry = merges.is_empty();
        here.is_retry_blocked |= is_retry;
        match next_number {
            None if is_retry => {}
            None => drop(here.unmerged.insert(version)),
            Some(next_number) => {
                here.unsure.insert(version);
                // A crash leaves the new manifest or the old one, so the packs of both stay.
                self.linger_if(true, layer, version);
                self.doubt(layer, reason, next_number);
                self.relist(layer, version, merges);
            }
        }
        self.report(Report::Stays { layer, reason: format!("packs of version {version} that were merged: {reason}") });
    }

    /// If a manifest may have been replaced, the packs that it listed before stay until that is
    /// known.
    fn linger_if(&mut self, is_replaced: bool, layer: LayerIndex, version: u64) {
        let here = &mut self.layers[layer];
        let before = here.listing.manifest(version).filter(|_| is_replaced);
        here.lingering.extend(before.into_iter().flat_map(Visible::packs));
    }

    /// A manifest could not be written, or could not be made durable. In the second case it may be
    /// visible, and lists the packs in `visible`.
    fn write_failed(
        &mut self,
        layer: LayerIndex,
        manifest: &Manifest,
        visible: Option<&Vec<ManifestPack>>,
        reason: &str,
    ) {
        let version = manifest.version;
        let save = self.layers[layer].writing.take();
        if save.is_none() {
            self.layers[layer].is_retry_blocked = true;
            let reason = format!("version {version}, which a crash may bring back: {reason}");
            return self.report(Report::Stays { layer, reason });
        }
        if let Some(packs) = visible {
            let here = &mut self.layers[layer];
            here.listing.insert(version, Visible::new(manifest, packs, Standing::Doubtful));
            here.doomed.insert(version);
        }
        if let Some(save) = save.filter(|_| self.settle(layer, version)) {
            self.fail(layer, save, reason);
        }
    }

    /// Marks a version as settled on a layer. Returns whether it was not settled before.
    fn settle(&mut self, layer: LayerIndex, version: u64) -> bool {
        let unsettled = self.drafts.iter_mut().find(|it| it.draft.save.version == version && !it.is_settled[layer]);
        let was_unsettled = unsettled.map(|drafted| drafted.is_settled[layer] = true).is_some();
        self.forget_settled();
        was_unsettled
    }

    /// Marks a manifest that counts as failed for removal.
    fn doom(&mut self, layer: LayerIndex, version: u64) {
        let here = &mut self.layers[layer];
        if here.listing.manifest(version).is_some() {
            here.listing.stand(version, Standing::Doubtful);
            here.doomed.insert(version);
        }
    }

    /// A manifest was removed, but a crash may bring it back until the directory is synced.
    fn dropped(&mut self, layer: LayerIndex, version: u64, manifest: Option<Arc<Manifest>>) {
        let here = &mut self.layers[layer];
        here.doomed.remove(&version);
        here.unmerged.remove(&version);
        here.unsure.remove(&version);
        here.revived.remove(&version);
        here.removed.extend(manifest.map(|manifest| (version, manifest)));
        here.removed_unread.extend(here.unreadable.contains(&version).then_some(version));
        let removed = here.listing.remove(version);
        here.lingering.extend(removed.iter().flat_map(Visible::packs));
        // Another run may have saved the same number with other ranks, and that one stays.
        let was_known = !removed.is_some_and(|it| matches!(it.standing, Standing::Kept { .. } | Standing::Unread));
        here.is_dirty = true;
        here.is_sync_blocked = false;
        here.wants_collection = true;
        let before = here.former.len();
        here.former.retain(|(former, _)| *former != version);
        here.wants_clearing |= here.former.len() < before;
        // The program must learn that a version was complete before it learns that it is not kept.
        if let Some(index) = here.withheld.iter().position(|save| save.version == version) {
            let reached = here.withheld.remove(index).map(|save| Report::Reached { save, layer });
            reached.into_iter().for_each(|report| self.report(report));
        }
        if was_known {
            self.report(Report::Dropped { version, layer });
        }
    }
}
