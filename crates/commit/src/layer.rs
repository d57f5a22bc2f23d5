//! The state of a session on one layer.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use outcrop_format::{Manifest, ManifestPack, RunId};

use crate::{SaveId, Step, listing::Listing};

/// The state of a session on one layer.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// Its manifests and packs.
    pub(crate) listing: Listing,
    /// Packs that have arrived, and whose names are not known to be durable.
    pub(crate) unsynced: BTreeSet<u64>,
    /// Packs of manifests that were removed or replaced. A crash may bring the manifests back until
    /// the directory is synced.
    pub(crate) lingering: BTreeSet<u64>,
    /// The same, for manifests that were removed or replaced before a sync that failed. A later
    /// sync proves nothing about them: the packs stay until the operation has been repeated.
    pub(crate) doubted: BTreeSet<u64>,
    /// Versions whose manifests were rewritten before a sync that failed. A crash may bring back
    /// the old manifests until they are written again.
    pub(crate) unsure: BTreeSet<u64>,
    /// Manifests that were removed before a sync that failed. A crash may bring them back until
    /// they are written again and removed again.
    pub(crate) revived: BTreeMap<u64, Arc<Manifest>>,
    /// Writing one of these again has failed too. It is retried after something else has been
    /// written.
    pub(crate) is_retry_blocked: bool,
    /// Packs below this number that have not arrived by now count as not written.
    pub(crate) doubtful_below: u64,
    /// The value of `Ledger::losses` when something was last lost on this layer.
    pub(crate) lost_at: u64,
    /// The reason of the last failure on this layer.
    pub(crate) failure: Option<String>,

    /// Versions that some rank will never have on this layer.
    pub(crate) refused: BTreeMap<u64, Refusal>,
    /// The newest version that each other rank has announced on this layer. Ranks announce versions
    /// in ascending order.
    pub(crate) newest: BTreeMap<u32, Newest>,
    /// Versions that only some ranks have, as far as this rank knows, and those ranks.
    pub(crate) holders: BTreeMap<u64, BTreeSet<u32>>,
    /// If ranks share blocks: versions that are not complete, with the first pack of each. Another
    /// rank may be about to write a manifest that borrows these packs.
    pub(crate) pending: BTreeMap<u64, u64>,
    /// Versions whose manifests cannot be read. Nobody knows which packs they need, so no pack is
    /// removed.
    pub(crate) unreadable: BTreeSet<u64>,
    /// Versions that some rank has on this layer, and that may be complete when the session is
    /// opened next. Nothing may replace them.
    pub(crate) awaited: BTreeSet<u64>,
    /// The version that was restored. It is kept until a version that was drafted after the restore
    /// is complete.
    pub(crate) base: Option<Base>,
    /// Whether this run has completed a version on this layer.
    pub(crate) has_completed: bool,

    /// The step under way.
    pub(crate) busy: Option<Step>,
    /// The draft whose manifest is being written.
    pub(crate) writing: Option<SaveId>,
    /// The packs that the sync or write under way makes durable.
    pub(crate) syncing: BTreeSet<u64>,
    /// Manifests to be removed.
    pub(crate) doomed: BTreeSet<u64>,
    /// Manifests that could not be removed: tried again when something has been written.
    pub(crate) stuck: BTreeSet<u64>,
    /// Whether manifests were removed since the directory was last synced.
    pub(crate) is_dirty: bool,
    /// Those manifests, as far as they could be read.
    pub(crate) removed: BTreeMap<u64, Arc<Manifest>>,
    /// Those of them that could not be read when the session was opened.
    pub(crate) removed_unread: BTreeSet<u64>,
    /// A sync has failed. It is not retried before the next version.
    pub(crate) is_sync_blocked: bool,
    /// Versions whose manifests could not be rewritten. They still list the old packs.
    pub(crate) unmerged: BTreeSet<u64>,
    /// Whether some packs may not be needed any more.
    pub(crate) wants_collection: bool,
    /// Whether other ranks need no packs of this one, and never will in this run.
    pub(crate) is_unborrowed: bool,
    /// Packs that only other ranks needed at the last look.
    pub(crate) borrowed: BTreeSet<u64>,
    /// Packs to be removed because nothing needs them, with their lengths.
    pub(crate) garbage: VecDeque<(u64, u64)>,
    /// Whether this rank has adopted directories of former ranks on this layer.
    pub(crate) has_former: bool,
    /// Versions of which adopted directories have a manifest, and the run if it can be read.
    pub(crate) former: BTreeSet<(u64, Option<RunId>)>,
    /// Those that the last attempt has removed, or could not remove.
    pub(crate) tried_stale: BTreeSet<(u64, RunId)>,
    /// Whether adopted directories may have packs that nothing needs.
    pub(crate) wants_clearing: bool,
    /// Complete versions that are reported to the program only when there is room for the next one.
    pub(crate) withheld: VecDeque<SaveId>,
}

/// What is known about a version whose manifest is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was found, and not all ranks have it here.
    Kept {
        /// A rank that lacks it may only have failed to find its directory.
        may_return: bool,
    },
    /// It was found, all ranks have it here, and some cannot read it. It is kept for as long as a
    /// complete version would be.
    Unread,
    /// It was written, and not all ranks have announced it yet.
    Pending(SaveId),
    /// All ranks have it.
    Complete,
    /// Its manifest may have got its name, and the version counts as failed.
    Doubtful,
}

/// Why a version will not be complete.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Whether another rank refused it. That rank may be ahead of this one.
    pub(crate) is_of_others: bool,
    pub(crate) reason: String,
}

/// The newest version that another rank has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Newest {
    Version(u64),
    Over,
}

/// The version that the next one builds upon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    pub(crate) version: u64,
    /// The newest version that had been drafted when this one was restored.
    pub(crate) drafted: Option<u64>,
}

impl Layer {
    /// The next version builds upon this one, so this one is kept for now.
    pub(crate) fn build_upon(&mut self, base: Option<Base>) {
        self.base = base;
        let Some(version) = base.map(|base| base.version) else { return };
        if self.listing.standing(version) == Some(Standing::Complete) {
            self.doomed.remove(&version);
        }
    }

    /// Manifests of former ranks that another version with the same number has taken the place of.
    pub(crate) fn stale(&self) -> BTreeSet<(u64, RunId)> {
        let is_stale = |version: u64, run: RunId| {
            let now = self.listing.manifest(version).filter(|it| it.standing == Standing::Complete);
            now.is_some_and(|it| it.run != run) && !self.awaited.contains(&version)
        };
        let known = self.former.iter().filter_map(|(version, run)| Some((*version, (*run)?)));
        known.filter(|(version, run)| is_stale(*version, *run)).collect()
    }

    /// Writes again what was rewritten or removed before a sync that failed.
    pub(crate) fn retry(&self) -> Option<Step> {
        let rewrite = |version: &u64| Step::Rewrite { version: *version, merges: Vec::new() };
        let write = |it: &Arc<Manifest>| Step::Write { manifest: Arc::clone(it), packs: it.packs.clone() };
        let next = self.unsure.first().map(rewrite).or_else(|| self.revived.values().next().map(write));
        next.filter(|_| !self.is_retry_blocked)
    }

    /// Retries removals that failed.
    pub(crate) fn retry_removals(&mut self) {
        self.doomed.append(&mut self.stuck);
    }

    /// A sync succeeded: what was in the directory when it began is durable.
    pub(crate) fn synced(&mut self) {
        let durable = std::mem::take(&mut self.syncing);
        self.unsynced.retain(|number| !durable.contains(number));
        self.lingering.clear();
        self.removed.clear();
        let gone = std::mem::take(&mut self.removed_unread);
        self.unreadable.retain(|version| !gone.contains(version));
        self.is_dirty = false;
        self.is_retry_blocked = false;
        if self.unsure.is_empty() && self.revived.is_empty() {
            self.doubted.clear();
        }
        self.is_sync_blocked = false;
    }

    /// Whether all packs must stay, even those that no manifest here lists. A version that was
    /// found may become complete again, or a version that could not be removed is still there.
    /// Directories that are missing now may refer to the packs of either.
    pub(crate) fn keeps_all(&self) -> bool {
        !self.unreadable.is_empty() || !self.stuck.is_empty() || self.listing.returning().next().is_some()
    }
}

/// The numbers of the packs of this rank in a list.
pub(crate) fn own_packs(packs: &[ManifestPack], rank: u32) -> impl Iterator<Item = u64> + '_ {
    packs.iter().filter(move |pack| pack.id.rank == rank).map(|pack| pack.id.number)
}
