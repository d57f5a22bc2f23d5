//! Messages of other ranks, and when a version is complete.

use std::cmp::Ordering;

use outcrop_format::{News, Tidings};

use crate::{
    LayerIndex, Ledger, Report, SaveId,
    layer::{Newest, Refusal, Standing},
};

impl Ledger {
    /// A message from another rank.
    pub(crate) fn heard(&mut self, rank: u32, news: News) {
        let is_of_others = rank != self.settings.rank && rank < self.settings.ranks;
        if news.run != self.settings.run || self.is_alone || !is_of_others {
            return;
        }
        let next = self.heard_of.entry(rank).or_default();
        if news.number < *next {
            return;
        }
        if news.number > *next {
            // The lost message may have said anything, so the absence of a message proves nothing
            // any more.
            return self.be_alone(format!("messages of rank {rank} were lost"));
        }
        *next += 1;
        match news.era.cmp(&self.era) {
            Ordering::Less => {}
            Ordering::Equal => self.believe(rank, news.tidings),
            Ordering::Greater => self.early.push((rank, news)),
        }
    }

    /// From now on no version becomes complete, and nothing is removed because of what other ranks
    /// announce or do not announce.
    pub(crate) fn be_alone(&mut self, reason: String) {
        if self.is_alone {
            return;
        }
        self.is_alone = true;
        self.layers.iter_mut().for_each(|layer| layer.holders.clear());
        self.report(Report::Over { reason });
    }

    /// Handles a message of another rank that is of the current era.
    pub(crate) fn believe(&mut self, rank: u32, tidings: Tidings) {
        match tidings {
            Tidings::Over => {
                (0..self.layers.len()).for_each(|layer| self.has_come_to(layer, rank, Newest::Over));
            }
            Tidings::Here { layer, version } if (layer as usize) < self.layers.len() => {
                let layer = layer as usize;
                self.has_come_to(layer, rank, Newest::Version(version));
                self.hold(layer, version, rank);
                self.leave_out(layer);
            }
            Tidings::Failed { layer, version, reason } if (layer as usize) < self.layers.len() => {
                self.refuse(layer as usize, version, rank, &reason);
            }
            Tidings::Here { .. } | Tidings::Failed { .. } => {}
        }
    }

    /// Another rank has announced this version on a layer. Earlier versions that it has not
    /// announced there are left out.
    fn has_come_to(&mut self, layer: LayerIndex, rank: u32, newest: Newest) {
        let here = &mut self.layers[layer];
        let known = here.newest.entry(rank).or_insert(newest);
        *known = (*known).max(newest);
        let is_skipped = |(version, by): (&u64, &std::collections::BTreeSet<u32>)| {
            (Newest::Version(*version) < newest && !by.contains(&rank)).then_some(*version)
        };
        let skipped: Vec<u64> = here.holders.iter().filter_map(is_skipped).collect();
        skipped.into_iter().for_each(|version| self.refuse(layer, version, rank, why_not(newest)));
    }

    /// Refuses versions that others have on a layer and that this rank has left out. It must
    /// announce this: it may never announce a later version on this layer, from which the others
    /// could conclude it.
    pub(crate) fn leave_out(&mut self, layer: LayerIndex) {
        let Some(passed) = self.passed.filter(|_| !self.is_alone) else { return };
        let (rank, drafts) = (self.settings.rank, &self.drafts);
        let is_left_out = |(version, by): (&u64, &std::collections::BTreeSet<u32>)| {
            let is_coming = drafts.iter().any(|it| it.draft.save.version == *version && !it.is_settled[layer]);
            (*version < passed && !by.contains(&rank) && !is_coming).then_some(*version)
        };
        let left_out: Vec<u64> = self.layers[layer].holders.iter().filter_map(is_left_out).collect();
        for version in left_out {
            let reason = why_not(Newest::Version(passed));
            self.refuse(layer, version, rank, reason);
            self.announce(Tidings::Failed { layer: layer as u32, version, reason: reason.to_owned() });
        }
    }

    /// This rank has written the manifest of a version. Announces it.
    pub(crate) fn has_written(&mut self, layer: LayerIndex, version: u64) {
        self.announce(Tidings::Here { layer: layer as u32, version });
        if self.is_alone {
            return;
        }
        self.hold(layer, version, self.settings.rank);
        let here = &self.layers[layer];
        let Some(holders) = here.holders.get(&version) else { return };
        let is_past =
            |(rank, newest): &(&u32, &Newest)| **newest > Newest::Version(version) && !holders.contains(*rank);
        if let Some((&rank, &newest)) = here.newest.iter().find(is_past) {
            self.refuse(layer, version, rank, why_not(newest));
        }
    }

    /// A rank has its part of a version.
    fn hold(&mut self, layer: LayerIndex, version: u64, rank: u32) {
        let here = &mut self.layers[layer];
        let is_past = here.has_completed && here.listing.newest_complete().is_some_and(|newest| version <= newest);
        if here.refused.contains_key(&version) || is_past {
            return;
        }
        let holders = here.holders.entry(version).or_default();
        holders.insert(rank);
        if holders.len() == self.settings.ranks as usize {
            here.holders.remove(&version);
            self.complete(layer, version);
        }
    }

    /// All ranks have a version.
    fn complete(&mut self, layer: LayerIndex, version: u64) {
        let here = &mut self.layers[layer];
        let Some(Standing::Pending(save)) = here.listing.standing(version) else { return };
        here.listing.stand(version, Standing::Complete);
        here.has_completed = true;
        here.pending.retain(|pending, _| *pending > version);
        here.refused.retain(|refused, _| *refused > version);
        if here.base.is_some_and(|base| base.drafted.is_none_or(|drafted| version > drafted)) {
            here.base = None;
        }
        self.retain(layer);
        match self.settings.layers[layer].is_limited {
            true => self.layers[layer].withheld.push_back(save),
            false => self.report(Report::Reached { save, layer }),
        }
    }

    /// A version will never be complete on a layer, because rank `rank` does not have it there.
    fn refuse(&mut self, layer: LayerIndex, version: u64, rank: u32, reason: &str) {
        let here = &mut self.layers[layer];
        let standing = here.listing.standing(version);
        if here.refused.contains_key(&version) || (here.has_completed && standing == Some(Standing::Complete)) {
            return;
        }
        let reason = format!("rank {rank}: {reason}");
        here.holders.remove(&version);
        here.refused.insert(version, Refusal { is_of_others: true, reason: reason.clone() });
        if let Some(Standing::Pending(save)) = standing {
            here.doomed.insert(version);
            self.give_up(layer, save, reason);
        }
    }

    /// This rank is done with a version that another rank does not have.
    pub(crate) fn give_up(&mut self, layer: LayerIndex, save: SaveId, reason: String) {
        self.report(Report::Here { save, layer });
        self.report(Report::Failed { save, layer, reason });
    }

    /// A message could not be sent, so the other ranks will wait in vain.
    pub(crate) fn unsaid(&mut self, news: &News, reason: &str) {
        let Tidings::Here { layer, version } = news.tidings else { return };
        let here = &self.layers[layer as usize];
        let standing = here.listing.standing(version);
        if let Some(Standing::Pending(save)) = standing.filter(|_| news.era == self.era) {
            self.report(Report::Failed { save, layer: layer as usize, reason: reason.to_owned() });
        }
    }
}

/// Why a rank that has announced `newest` does not have an earlier version.
fn why_not(newest: Newest) -> &'static str {
    match newest {
        Newest::Over => "it has ended",
        Newest::Version(_) => "it has not saved this version",
    }
}
