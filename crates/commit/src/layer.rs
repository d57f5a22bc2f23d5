//! What one layer has of a session.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use outcrop_format::{Manifest, ManifestPack};

use crate::{SaveId, Step};

/// What a layer has of a session.
#[derive(Debug, Default)]
pub(crate) struct Layer {
    /// Manifests of this rank that are visible, or may be, by version.
    pub(crate) manifests: BTreeMap<u64, Visible>,
    /// Packs of this rank that are there, with their lengths.
    pub(crate) packs: BTreeMap<u64, u64>,
    /// Those among them whose names are not known to be durable.
    pub(crate) unsynced: BTreeSet<u64>,
    /// Packs of manifests that are gone or were replaced, and that a crash may bring back: until
    /// the directory is synced.
    pub(crate) lingering: BTreeSet<u64>,
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
    /// A sync has failed: there is none before the next version.
    pub(crate) is_sync_blocked: bool,
    /// A rewritten manifest could not be written: tried again when a pack has arrived.
    pub(crate) is_rewrite_blocked: bool,
    /// Some packs may not be needed any more.
    pub(crate) wants_collection: bool,
    /// Packs that nobody needs any more, to be removed, with their lengths.
    pub(crate) garbage: VecDeque<(u64, u64)>,
    /// Complete versions of which the program hears when there is room for the next one.
    pub(crate) withheld: VecDeque<SaveId>,
}

/// A manifest that is visible, or may be.
#[derive(Debug, Clone)]
pub(crate) struct Visible {
    pub(crate) manifest: Arc<Manifest>,
    /// The packs that it lists here.
    pub(crate) packs: Vec<ManifestPack>,
    pub(crate) standing: Standing,
}

/// What a visible manifest is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It was found, and not all ranks have it here.
    Kept {
        /// A rank that lacks it may merely not have found its directory.
        may_return: bool,
    },
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
    /// The newest version that all ranks have.
    pub(crate) fn newest_complete(&self) -> Option<u64> {
        self.manifests.iter().rev().find(|(_, it)| it.standing == Standing::Complete).map(|(version, _)| *version)
    }

    /// The next version builds upon this one, which therefore stays for now.
    pub(crate) fn build_upon(&mut self, base: Option<Base>) {
        self.base = base;
        let Some(version) = base.map(|base| base.version) else { return };
        if self.manifests.get(&version).is_some_and(|it| it.standing == Standing::Complete) {
            self.doomed.remove(&version);
        }
    }

    /// Everything in the directory is durable that was there when the sync began.
    pub(crate) fn synced(&mut self) {
        let durable = std::mem::take(&mut self.syncing);
        self.unsynced.retain(|number| !durable.contains(number));
        self.lingering.clear();
        self.is_dirty = false;
        self.is_sync_blocked = false;
    }

    /// Whether packs must stay, whoever lists them here: a version that was found may become whole
    /// again, or one that could not be removed may still be, and directories that are missing now
    /// may refer to their packs.
    pub(crate) fn keeps_all(&self) -> bool {
        let may_return = |it: &Visible| it.standing == Standing::Kept { may_return: true };
        !self.unreadable.is_empty() || !self.stuck.is_empty() || self.manifests.values().any(may_return)
    }
}

/// The numbers of the packs of this rank in a list.
pub(crate) fn own_packs(packs: &[ManifestPack], rank: u32) -> impl Iterator<Item = u64> + '_ {
    packs.iter().filter(move |pack| pack.id.rank == rank).map(|pack| pack.id.number)
}
