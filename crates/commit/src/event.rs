//! The events that a ledger handles, and the actions that it asks for.

use std::{collections::BTreeSet, sync::Arc};

use outcrop_format::{Manifest, ManifestPack, News, RunId};

use crate::Merge;

/// A directory of the store, counted from 0.
pub type LayerIndex = usize;

/// One attempt to save a version. A version that failed may be saved again. That is a new attempt,
/// and messages about the first one do not apply to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaveId {
    /// The version.
    pub version: u64,
    /// Counted from 1 over all versions of a session; 0 for versions that were found.
    pub attempt: u32,
}

/// A version that is packed and in flight to all layers.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Which attempt it is.
    pub save: SaveId,
    /// What it consists of.
    pub manifest: Arc<Manifest>,
    /// All packs that were made for this version and for earlier ones have lower numbers.
    pub next_number: u64,
    /// How often this rank had lost packs when the version was packed. If ranks share blocks, other
    /// ranks may refer to packs that were lost since then.
    pub losses: u64,
}

/// What has happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The engine is about to get a pack, under this key.
    Expected {
        /// The engine's key for it.
        key: u64,
        /// The pack.
        pack: ManifestPack,
    },
    /// A pack has reached a layer, or failed to.
    Arrived {
        /// The number of the pack.
        number: u64,
        /// The layer.
        layer: LayerIndex,
        /// The reason, if it failed.
        failure: Option<String>,
    },
    /// A version is packed.
    Drafted(Draft),
    /// A version could not be saved or packed.
    Failed {
        /// Which attempt.
        save: SaveId,
        /// Why.
        reason: String,
    },
    /// Packs of this rank were merged.
    Merged(Merge),
    /// A version was restored, and the next one may build upon it.
    Based {
        /// The version.
        version: u64,
        /// The packs of this rank in that version. Empty if the next version is saved in full.
        packs: Vec<u64>,
    },
    /// The program starts to read files (`true`) or stops (`false`). Nothing is removed in between.
    Reading(bool),
    /// Forget all versions above this one, or all versions if `None`.
    Rewind(Option<u64>),
    /// Forget all versions that were found and that not all ranks have, even those that may become
    /// complete again.
    ForgetIncomplete,
    /// The program saves nothing more. Packs in flight still arrive.
    Closed,
    /// A message from another rank.
    Heard {
        /// Which rank.
        rank: u32,
        /// The message.
        news: News,
    },
    /// A message of this rank could not be sent.
    Unsaid {
        /// The message.
        news: News,
        /// Why.
        reason: String,
    },
    /// Another rank is gone: no further version will become complete.
    Alone {
        /// What is known about it.
        reason: String,
    },
    /// The step that was asked for on a layer has ended.
    Done {
        /// The layer.
        layer: LayerIndex,
        /// How it ended.
        outcome: Outcome,
    },
}

/// How a step has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// A manifest was removed. This is what it contained.
    Dropped(Arc<Manifest>),
    /// Other ranks' manifests list these packs of this rank.
    Borrowed(BTreeSet<u64>),
    /// It failed.
    Failed {
        /// Why.
        reason: String,
        /// A manifest may have been renamed to its final name: it may be there after a crash, or
        /// not.
        may_be_visible: bool,
        /// The number of the next pack of this rank, read after the failure. Packs with lower
        /// numbers may have been created before it.
        next_number: u64,
    },
}

/// An operation on the files of this rank on one layer. Each layer has one at a time, and its end
/// is an [`Event::Done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make all names in the directory durable (fsync of the directory).
    Sync,
    /// Write a manifest under a draft name, rename it, and make both durable. If a pack of this
    /// rank that it lists is missing or has another length, the step fails and changes nothing.
    Write {
        /// What the version consists of.
        manifest: Arc<Manifest>,
        /// The packs that it lists on this layer.
        packs: Vec<ManifestPack>,
    },
    /// Replace a manifest by one that lists the merged packs. Merges are applied in order. The file
    /// is replaced durably, as by [`Write`](Self::Write). If the manifest cannot be read, or does
    /// not list the old packs, the step fails and changes nothing.
    Rewrite {
        /// The version.
        version: u64,
        /// The merges to apply.
        merges: Vec<Merge>,
    },
    /// Remove the manifest of a version. It is no error if it does not exist. First remove,
    /// durably, the manifests that adopted directories of former ranks have of it.
    Drop {
        /// The version.
        version: u64,
    },
    /// Find out which packs of this rank are listed in manifests of other ranks. Fails if one of
    /// them cannot be read.
    Look,
    /// Remove these manifests, durably, from adopted directories of former ranks, and then packs
    /// there that no manifest of any rank lists. Fails if a manifest cannot be read.
    Clear {
        /// Versions, and the runs that saved them. Another run has saved them anew.
        stale: BTreeSet<(u64, RunId)>,
    },
    /// Remove a pack.
    Remove {
        /// Its number.
        number: u64,
        /// Its length.
        bytes: u64,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Carry out a step on a layer.
    Do {
        /// The layer.
        layer: LayerIndex,
        /// The step.
        step: Step,
    },
    /// Send this to all other ranks.
    Announce(News),
    /// Tell the program.
    Report(Report),
    /// A layer lacks packs that the next version would build upon: save the next version in full.
    Lose,
    /// The session is rewound: save the next version in full.
    Reset,
    /// The host memory of this pack can be freed.
    Release {
        /// The engine's key for it.
        key: u64,
    },
    /// Nothing more will be asked for.
    End,
}

/// What the program is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// This rank has done its part of a version on a layer.
    Here {
        /// The version.
        save: SaveId,
        /// The layer.
        layer: LayerIndex,
    },
    /// A version is complete on a layer, on all ranks.
    Reached {
        /// The version.
        save: SaveId,
        /// The layer.
        layer: LayerIndex,
    },
    /// A version will never be complete on a layer.
    Failed {
        /// The version.
        save: SaveId,
        /// The layer.
        layer: LayerIndex,
        /// Why.
        reason: String,
    },
    /// A version is no longer on a layer.
    Dropped {
        /// The version.
        version: u64,
        /// The layer.
        layer: LayerIndex,
    },
    /// Versions were forgotten, durably; or some could not be removed.
    Forgotten(Result<(), String>),
    /// No further version will become complete.
    Over {
        /// Why.
        reason: String,
    },
    /// Files that nobody needs could not be removed. The program need not handle this.
    Stays {
        /// The layer.
        layer: LayerIndex,
        /// Which files, and why.
        reason: String,
    },
}
