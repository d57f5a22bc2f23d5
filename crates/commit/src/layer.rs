//! What one layer has of a session.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use outcrop_format::{Manifest, ManifestPack};

use crate::{SaveId, Step, listing::Listing};

/// What a layer has of a session.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// Its manifests and packs.
    pub(crate) listing: Listing,
    /// Packs that are there, and whose names are not known to be durable.
    pub(crate) unsynced: BTreeSet<u64>,
    /// Packs of manifests that are gone or were replaced, and that a crash may bring back: until
    /// the directory is synced.
    pub(crate) lingering: BTreeSet<u64>,
    /// Packs of such manifests when a sync failed. A later sync that succeeds says nothing of them:
    /// they stay until what was done is done once more.
    pub(crate) doubted: BTreeSet<u64>,
    /// Versions that were rewritten when a sync failed: a crash may bring back what they listed
    /// before, until they are written once more.
    pub(crate) unsure: BTreeSet<u64>,
    /// Manifests that were removed when a sync failed: a crash may bring them back, until they are
    /// written once more and removed again.
    pub(crate) revived: BTreeMap<u64, Arc<Manifest>>,
    /// To write one of these once more has failed, too: it is tried again when something else has
    /// been written.
    pub(crate) is_retry_blocked: bool,
    /// Packs below this number that are not there by now count as not written.
    pub(crate) doubtful_below: u64,
    /// How often packs had been lost when something was last lost here.
    pub(crate) lost_at: u64,
    /// Why something last failed here.
    pub(crate) failure: Option<String>,

    /// Versions that some rank will never have here.
    pub(crate) refused: BTreeMap<u64, Refusal>,
    /// How far each other rank has come here. They say it in the order of versions.
    pub(crate) newest: BTreeMap<u32, Newest>,
    /// Versions that only some ranks have, as far as is known, and which ranks.
    pub(crate) holders: BTreeMap<u64, BTreeSet<u32>>,
    /// Where ranks share blocks: versions that are not complete, with the first pack of each.
    /// Another rank may be about to write a manifest that borrows it.
    pub(crate) pending: BTreeMap<u64, u64>,
    /// Versions whose manifests cannot be read: nobody knows what they need, so that nothing is
    /// removed.
    pub(crate) unreadable: BTreeSet<u64>,
    /// Versions that some rank has here, and that may be whole at the next opening: nothing takes
    /// their place.
    pub(crate) awaited: BTreeSet<u64>,
    /// The version that was restored, until one that builds upon it is complete: the last that has
    /// been drafted by then.
    pub(crate) base: Option<Base>,
    /// This run has completed a version here.
    pub(crate) has_completed: bool,

    /// What is being done.
    pub(crate) busy: Option<Step>,
    /// The draft that is being written, if that is what is being done.
    pub(crate) writing: Option<SaveId>,
    /// The packs that the sync or write under way makes durable.
    pub(crate) syncing: BTreeSet<u64>,
    /// Manifests to be removed.
    pub(crate) doomed: BTreeSet<u64>,
    /// Manifests that could not be removed: tried again when something has been written.
    pub(crate) stuck: BTreeSet<u64>,
    /// Manifests were removed since the directory was synced.
    pub(crate) is_dirty: bool,
    /// Which ones, as far as they could be read.
    pub(crate) removed: BTreeMap<u64, Arc<Manifest>>,
    /// Which ones could not be read when the session was opened.
    pub(crate) removed_unread: BTreeSet<u64>,
    /// A sync has failed: there is none before the next version.
    pub(crate) is_sync_blocked: bool,
    /// Versions whose manifests could not be rewritten: they list what they listed before.
    pub(crate) unmerged: BTreeSet<u64>,
    /// Some packs may not be needed any more.
    pub(crate) wants_collection: bool,
    /// Other ranks need no packs of this one, and never will in this run.
    pub(crate) is_unborrowed: bool,
    /// Packs that only other ranks needed when they were looked at last.
    pub(crate) borrowed: BTreeSet<u64>,
    /// Packs that nobody needs any more, to be removed, with their lengths.
    pub(crate) garbage: VecDeque<(u64, u64)>,
    /// Complete versions of which the program hears when there is room for the next one.
    pub(crate) withheld: VecDeque<SaveId>,
}

/// What a visible manifest is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was found, and not all ranks have it here.
    Kept {
        /// A rank that lacks it may merely not have found its directory.
        may_return: bool,
    },
    /// It was found, all ranks have it here, and some cannot read it. It stays for as long as if it
    /// were complete.
    Unread,
    /// It was written, and not all ranks have said that they have it.
    Pending(SaveId),
    /// All ranks have it.
    Complete,
    /// It may have got its name, and counts as failed.
    Doubtful,
}

/// Why a version will not be complete.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// Whether another rank has said so, which may be ahead of this one.
    pub(crate) is_of_others: bool,
    pub(crate) reason: String,
}

/// How far another rank has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Newest {
    Version(u64),
    Over,
}

/// The version that the next one builds upon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    pub(crate) version: u64,
    /// The newest version that had been drafted when it was restored.
    pub(crate) drafted: Option<u64>,
}

impl Layer {
    /// The next version builds upon this one, which therefore stays for now.
    pub(crate) fn build_upon(&mut self, base: Option<Base>) {
        self.base = base;
        let Some(version) = base.map(|base| base.version) else { return };
        if self.listing.standing(version) == Some(Standing::Complete) {
            self.doomed.remove(&version);
        }
    }

    /// What was rewritten or removed when a sync failed is written once more.
    pub(crate) fn retry(&self) -> Option<Step> {
        let rewrite = |version: &u64| Step::Rewrite { version: *version, merges: Vec::new() };
        let write = |it: &Arc<Manifest>| Step::Write { manifest: Arc::clone(it), packs: it.packs.clone() };
        let next = self.unsure.first().map(rewrite).or_else(|| self.revived.values().next().map(write));
        next.filter(|_| !self.is_retry_blocked)
    }

    /// What could not be removed may be removed now.
    pub(crate) fn retry_removals(&mut self) {
        self.doomed.append(&mut self.stuck);
    }

    /// Everything in the directory is durable that was there when the sync began.
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

    /// Whether packs must stay, whoever lists them here: a version that was found may become whole
    /// again, or one that could not be removed may still be, and directories that are missing now
    /// may refer to their packs.
    pub(crate) fn keeps_all(&self) -> bool {
        !self.unreadable.is_empty() || !self.stuck.is_empty() || self.listing.returning().next().is_some()
    }
}

/// The numbers of the packs of this rank in a list.
pub(crate) fn own_packs(packs: &[ManifestPack], rank: u32) -> impl Iterator<Item = u64> + '_ {
    packs.iter().filter(move |pack| pack.id.rank == rank).map(|pack| pack.id.number)
}
