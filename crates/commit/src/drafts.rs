//! Versions in flight. Packs arrive, and when everything that a version needs has arrived on a
//! layer, its manifest is written there.

use outcrop_format::{ManifestPack, Tidings};

use crate::{
    Action, Draft, LayerIndex, Ledger, Report, SaveId, Step,
    layer::{Refusal, own_packs},
};

/// A draft, and on which layers it is settled.
#[derive(Debug)]
pub(crate) struct Drafted {
    pub(crate) draft: Draft,
    /// By layer: whether its manifest has been written, or never will be.
    pub(crate) is_settled: Vec<bool>,
}

impl Drafted {
    pub(crate) fn lists(&self, rank: u32, number: u64) -> bool {
        own_packs(&self.draft.manifest.packs, rank).any(|own| own == number)
    }
}

/// What happens next to a draft on a layer.
enum Fate {
    Waits,
    Refused(Refusal),
    /// A pack that it needs is missing, so the next version must not build upon it either.
    Lost(String),
    Fails(String),
    Commits(Vec<ManifestPack>),
}

impl Ledger {
    /// A version is packed, and its packs are in flight.
    pub(crate) fn drafted(&mut self, draft: Draft) {
        let version = draft.save.version;
        if self.settings.is_shared {
            for layer in &mut self.layers {
                layer.pending.insert(version, self.drafted_below);
            }
        }
        self.drafted_below = self.drafted_below.max(draft.next_number);
        self.newest_draft = Some(version);
        self.passed = self.passed.max(Some(version));
        // If packs were lost since it was packed, the next version must not build upon it.
        if draft.losses == self.losses {
            self.chain = own_packs(&draft.manifest.packs, self.settings.rank).collect();
        }
        self.drafts.push_back(Drafted { draft, is_settled: vec![false; self.layers.len()] });
        (0..self.layers.len()).for_each(|layer| self.leave_out(layer));
    }

    /// A pack has reached a layer, or failed to.
    pub(crate) fn arrived(&mut self, number: u64, layer: LayerIndex, failure: Option<String>) {
        let Some(pack) = self.in_flight.get_mut(&number) else { return };
        if !pack.settled_on.insert(layer) {
            return;
        }
        let here = &mut self.layers[layer];
        here.wants_collection |= self.is_closing;
        let is_doubtful = number < here.doubtful_below;
        match failure.or_else(|| here.failure.clone().filter(|_| is_doubtful)) {
            None => {
                here.listing.add_pack(number, pack.file_bytes);
                here.unsynced.insert(number);
            }
            Some(reason) => {
                pack.failed_on.insert(layer);
                self.pack_failed(number, layer, &reason);
            }
        }
    }

    /// A pack could not be written to a layer: versions that need it fail there. If ranks share
    /// blocks, the versions drafted after them fail too, because other ranks may refer to the pack.
    fn pack_failed(&mut self, number: u64, layer: LayerIndex, reason: &str) {
        // First, so that nobody saves the next version upon this pack after learning of the
        // failure.
        self.lose(layer, reason);
        let rank = self.settings.rank;
        let mut is_lost = false;
        let mut failed = Vec::new();
        for drafted in &mut self.drafts {
            let needs_it = drafted.lists(rank, number);
            if !drafted.is_settled[layer] && (needs_it || is_lost) {
                drafted.is_settled[layer] = true;
                failed.push(drafted.draft.save);
                is_lost = self.settings.is_shared;
            }
        }
        failed.into_iter().for_each(|save| self.fail(layer, save, reason));
        self.forget_settled();
    }

    /// Packs of this rank did not reach a layer: the next version is saved in full.
    pub(crate) fn lose(&mut self, layer: LayerIndex, reason: &str) {
        self.losses += 1;
        self.chain.clear();
        self.layers[layer].lost_at = self.losses;
        self.layers[layer].failure = Some(reason.to_owned());
        self.ask(Action::Lose);
    }

    /// A version fails on a layer. Tells the program, and the other ranks, which would wait for it.
    pub(crate) fn fail(&mut self, layer: LayerIndex, save: SaveId, reason: &str) {
        self.report(Report::Failed { save, layer, reason: reason.to_owned() });
        if self.settings.ranks > 1 {
            // This holds for another attempt too: the other ranks have given the version up.
            let refusal = Refusal { is_of_others: false, reason: reason.to_owned() };
            self.layers[layer].refused.insert(save.version, refusal);
            self.layers[layer].holders.remove(&save.version);
        }
        let tidings = Tidings::Failed { layer: layer as u32, version: save.version, reason: reason.to_owned() };
        self.announce(tidings);
    }

    /// The next step towards committing a version on a layer, the oldest version first. Fails
    /// versions that can never be committed there.
    pub(crate) fn next_commit(&mut self, layer: LayerIndex) -> Option<Step> {
        for index in 0..self.drafts.len() {
            if self.drafts[index].is_settled[layer] {
                continue;
            }
            let save = self.drafts[index].draft.save;
            match self.fate(layer, index) {
                Fate::Waits => break,
                Fate::Refused(refusal) => {
                    if refusal.is_of_others {
                        self.report(Report::Here { save, layer });
                    }
                    self.report(Report::Failed { save, layer, reason: refusal.reason });
                }
                Fate::Lost(reason) => {
                    self.lose(layer, &reason);
                    self.fail(layer, save, &reason);
                }
                Fate::Fails(reason) => self.fail(layer, save, &reason),
                Fate::Commits(_) if !self.layers[layer].unsynced.is_empty() => return Some(Step::Sync),
                Fate::Commits(packs) => {
                    self.layers[layer].writing = Some(save);
                    return Some(Step::Write { manifest: self.drafts[index].draft.manifest.clone(), packs });
                }
            }
            self.drafts[index].is_settled[layer] = true;
        }
        self.forget_settled();
        None
    }

    fn fate(&self, layer: LayerIndex, index: usize) -> Fate {
        let (here, draft) = (&self.layers[layer], &self.drafts[index].draft);
        if let Some(refusal) = here.refused.get(&draft.save.version) {
            return Fate::Refused(refusal.clone());
        }
        let why = || {
            here.failure
                .clone()
                .unwrap_or_else(|| "a pack that it needs is missing there, or has another length".to_owned())
        };
        if self.settings.is_shared && draft.losses < here.lost_at {
            return Fate::Lost(why());
        }
        let packs = self.with_merges(layer, &draft.manifest.packs);
        // Other ranks may refer to the packs before they were merged here.
        let shared = if self.settings.is_shared { &draft.manifest.packs[..] } else { &[] };
        let own = packs.iter().chain(shared).filter(|pack| pack.id.rank == self.settings.rank);
        // A pack that was found may be truncated, or be a different file.
        let is_missing = |pack: &&ManifestPack| here.listing.pack_bytes(pack.id.number) != Some(pack.file_bytes);
        match own.clone().find(is_missing) {
            // A pack that is neither there nor in flight will never arrive.
            Some(pack) if !self.is_coming(pack.id.number, layer) => return Fate::Lost(why()),
            Some(_) => return Fate::Waits,
            None if self.settings.is_shared && self.is_owing(layer, draft.next_number) => return Fate::Waits,
            None => {}
        }
        match here.awaited.contains(&draft.save.version) {
            true => Fate::Fails(MAY_RETURN.to_owned()),
            false => Fate::Commits(packs),
        }
    }

    /// Whether a pack is in flight to a layer.
    fn is_coming(&self, number: u64, layer: LayerIndex) -> bool {
        let is_moving = self.in_flight.get(&number).is_some_and(|pack| !pack.settled_on.contains(&layer));
        is_moving && number >= self.layers[layer].doubtful_below
    }

    /// Whether a pack with a lower number than `below` is still in flight to a layer. It counts
    /// even if its own version has failed and no later version of this rank lists it, because
    /// manifests of other ranks may list it. Merged packs do not count: only this rank refers to
    /// them.
    fn is_owing(&self, layer: LayerIndex, below: u64) -> bool {
        let is_merged = |number: u64| self.merges.iter().any(|merge| merge.makes(number));
        self.in_flight.range(..below).any(|(&number, _)| self.is_coming(number, layer) && !is_merged(number))
    }

    /// Forgets drafts that are settled on all layers.
    pub(crate) fn forget_settled(&mut self) {
        self.drafts.retain(|drafted| drafted.is_settled.contains(&false));
    }
}

/// Why a version must not replace one that was found.
pub const MAY_RETURN: &str = "an earlier run has saved this version, another rank's directory with its part seems to be missing or \
cannot be read; make that directory available, forget incomplete versions, or save another number";
