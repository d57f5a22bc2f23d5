//! The content of the newest version of a session: its packs, and the hashes of its blocks.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    sync::Arc,
};

use outcrop_format::{Blocks, Hash, HashKind, ManifestPack, ManifestRegion, PackId};

/// The packs that the next version builds upon, and the hashes that its blocks are compared with.
#[derive(Default)]
pub(crate) struct Content {
    /// Newest first.
    pub(crate) chain: Vec<Link>,
    /// Shared with the packer while it compares blocks.
    pub(crate) regions: BTreeMap<String, Arc<RegionContent>>,
    /// Whether a layer lacks a part of the chain. Then nothing can build upon it, and the next
    /// version is saved in full.
    pub(crate) is_broken: bool,
    /// How often packs of this rank were lost.
    pub(crate) losses: u64,
    /// `losses` of each rank when the chain began, if known. If ranks share blocks, the chain is
    /// valid only while no rank loses more.
    pub(crate) losses_before: Vec<u64>,
    /// The number of the next pack of this rank.
    pub(crate) next_number: u64,
}

/// One pack of a chain.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) pack: ManifestPack,
    /// The engine's key for it, if this process has written it.
    pub(crate) key: Option<u64>,
    /// Packs of one generation were made together and have no block in common. They count as one
    /// increment.
    pub(crate) generation: u64,
    /// Other packs in which some of its blocks lie, also of other ranks.
    pub(crate) borrows: Vec<ManifestPack>,
}

/// The blocks of a region as they were last saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionContent {
    blocks: Blocks,
    kind: HashKind,
    /// The bytes that were not saved. In a block that has some of them, they may be older than the
    /// version.
    excluded: Vec<Range<u64>>,
    /// By block. A block that is excluded entirely has no hash; its entry is zero.
    hashes: Vec<Hash>,
}

impl RegionContent {
    /// A region as this manifest has it, without hashes.
    pub(crate) fn new(region: &ManifestRegion) -> Self {
        Self {
            blocks: region.blocks,
            kind: region.hash_kind,
            excluded: region.excluded.clone(),
            hashes: vec![Hash::default(); region.blocks.count() as usize],
        }
    }

    /// Whether the blocks of this region can be compared with these. Otherwise the region is saved
    /// in full: a block may be cut or hashed in another way, or have bytes that were excluded.
    pub(crate) fn fits(&self, region: &ManifestRegion) -> bool {
        self.blocks == region.blocks && self.kind == region.hash_kind && self.excluded == region.excluded
    }

    /// Whether a block has this hash.
    pub(crate) fn is_unchanged(&self, block: u64, hash: &Hash) -> bool {
        self.hashes.get(block as usize) == Some(hash)
    }

    pub(crate) fn set(&mut self, block: u64, hash: Hash) {
        self.hashes[block as usize] = hash;
    }
}

impl Content {
    /// The number of increments that the version consists of.
    pub(crate) fn generations(&self) -> usize {
        self.chain.chunk_by(|newer, older| newer.generation == older.generation).count()
    }

    /// Forgets everything: the next version is saved in full, unless a chain is set.
    pub(crate) fn reset(&mut self) {
        self.begin(self.losses);
        self.losses_before.clear();
    }

    /// A new chain begins, with packs that were made when `losses` packs had been lost. If more
    /// have been lost since, its own packs may be among them.
    pub(crate) fn begin(&mut self, losses: u64) {
        self.chain.clear();
        self.regions.clear();
        self.is_broken = self.losses != losses;
    }

    /// A pack of this rank did not reach a layer.
    pub(crate) fn lose(&mut self) {
        self.is_broken = true;
        self.losses += 1;
    }

    /// The next pack of `rank`, unless none could follow it.
    pub(crate) fn next_id(&mut self, rank: u32) -> Option<PackId> {
        let number = self.next_number;
        self.next_number = number.checked_add(1)?;
        Some(PackId { rank, number })
    }

    /// What a manifest lists: the chain, then what is borrowed.
    pub(crate) fn packs(&self) -> Vec<ManifestPack> {
        let mut packs: Vec<_> = self.chain.iter().map(|link| link.pack).collect();
        let mut listed: HashSet<PackId> = packs.iter().map(|pack| pack.id).collect();
        let borrowed = self.chain.iter().flat_map(|link| &link.borrows).filter(|borrowed| listed.insert(borrowed.id));
        packs.extend(borrowed.map(|borrowed| ManifestPack { is_borrowed: true, ..*borrowed }));
        packs
    }
}
