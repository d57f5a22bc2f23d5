//! What a ledger is told, and what it asks for.

use std::{collections::BTreeSet, sync::Arc};

use outcrop_format::{Manifest, ManifestPack, News};

use crate::Merge;

/// A directory of the store, 0 being the first.
pub type LayerIndex = usize;

/// One attempt to save a version. A version that could not be saved may be tried again: that is
/// another attempt, and what was said of the first is not about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaveId {
    /// The version.
    pub version: u64,
    /// Counted from 1; 0 for versions that were found.
    pub attempt: u32,
}

/// A version that is packed and on its way to all layers.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Which attempt it is.
    pub save: SaveId,
    /// What it consists of.
    pub manifest: Arc<Manifest>,
    /// The packs that were made for it, and for versions before it, have lower numbers.
    pub next_number: u64,
    /// How often packs of this rank had been lost when it was packed. Where ranks share blocks,
    /// others may refer to packs that were lost since.
    pub losses: u64,
}

/// What a ledger is told.
#[derive(Debug, Clone)]
pub enum Event {
    /// A pack is about to be on its way to all layers, under this key.
    Expected {
        /// The engine's number for it.
        key: u64,
        /// The pack.
        pack: ManifestPack,
    },
    /// A pack has come to a layer, or could not.
    Arrived {
        /// The number of the pack.
        number: u64,
        /// The layer.
        layer: LayerIndex,
        /// Why not.
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
    /// Packs of this rank have become others.
    Merged(Merge),
    /// The next version builds upon this one, which was restored, if upon any.
    Based {
        /// The version.
        version: u64,
        /// Its packs of this rank; none if the next version is saved in full.
        packs: Vec<u64>,
    },
    /// The program begins to read files, or has ended: nothing is removed meanwhile.
    Reading(bool),
    /// All versions above this one are to be forgotten; all, without.
    Rewind(Option<u64>),
    /// All versions that were found and that not all ranks have are to be forgotten, also if they
    /// may become whole again.
    ForgetIncomplete,
    /// The program saves no more. What is on its way still arrives.
    Closed,
    /// Another rank has announced something.
    Heard {
        /// Which rank.
        rank: u32,
        /// What it said.
        news: News,
    },
    /// What this rank had to announce could not be said.
    Unsaid {
        /// What it was.
        news: News,
        /// Why.
        reason: String,
    },
    /// Another rank is gone: no further version will be complete.
    Alone {
        /// What is known of it.
        reason: String,
    },
    /// The step that was asked for on a layer has ended.
    Done {
        /// The layer.
        layer: LayerIndex,
        /// How.
        outcome: Outcome,
    },
}

/// How a step has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Done,
    /// A manifest is gone, and this is what it was.
    Dropped(Arc<Manifest>),
    /// A look has found these packs of this rank in manifests of others.
    Borrowed(BTreeSet<u64>),
    /// Not well.
    Failed {
        /// Why.
        reason: String,
        /// A manifest may have got its name: whether it is there after a crash cannot be told.
        may_be_visible: bool,
        /// The number of the next pack of this rank, after the failure. Those below may have got
        /// their names before.
        next_number: u64,
    },
}

/// Something to be done to the files of this rank on one layer. There is one at a time on each, and
/// its end is an [`Event::Done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make all names in the directory durable.
    Sync,
    /// Write a manifest, under another name first, and make it and its name durable.
    Write {
        /// What the version consists of.
        manifest: Arc<Manifest>,
        /// The packs that it lists on this layer.
        packs: Vec<ManifestPack>,
    },
    /// Have a manifest that is there list the packs that others have become, each in its turn.
    /// Under another name first, and durably, as [`Write`](Self::Write). Fails, without a trace, if
    /// it cannot be read or does not list them.
    Rewrite {
        /// The version.
        version: u64,
        /// What has become what.
        merges: Vec<Merge>,
    },
    /// Remove the manifest of a version. That it is not there is no failure.
    Drop {
        /// The version.
        version: u64,
    },
    /// Look which packs of this rank the manifests of other ranks list. Fails if that cannot be
    /// told.
    Look,
    /// Remove a pack.
    Remove {
        /// Its number.
        number: u64,
        /// Its length.
        bytes: u64,
    },
}

/// What a ledger asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Do something on a layer.
    Do {
        /// The layer.
        layer: LayerIndex,
        /// What.
        step: Step,
    },
    /// Tell all other ranks.
    Announce(News),
    /// Tell the program.
    Report(Report),
    /// A layer lacks packs that the next version would build upon: it must be saved in full.
    Lose,
    /// The session goes back: the next version is saved in full.
    Reset,
    /// Host memory of this pack can be given up.
    Release {
        /// The engine's number for it.
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
    /// A version is not on a layer any more.
    Dropped {
        /// The version.
        version: u64,
        /// The layer.
        layer: LayerIndex,
    },
    /// What was to be forgotten is gone, durably, or could not be removed.
    Forgotten(Result<(), String>),
    /// Nothing more will be complete.
    Over {
        /// Why.
        reason: String,
    },
    /// Something that the program need not know has failed: files stay that nobody needs.
    Stays {
        /// The layer.
        layer: LayerIndex,
        /// What stays, and why.
        reason: String,
    },
}
