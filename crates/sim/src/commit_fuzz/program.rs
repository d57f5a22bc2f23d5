//! What a rank's program, packer and engine do: saves, merges, transfers.

use std::{collections::BTreeMap, sync::Arc};

use fastrand::Rng;
use outcrop_commit::{Draft, Event, LayerIndex, Merge, SaveId};
use outcrop_format::{Manifest, ManifestPack, PackId, RunId};

/// The operations that all ranks do in the same order, each at its own pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Save(u64),
    Rewind(Option<u64>),
    /// Forget versions that not all ranks have.
    Forget,
    Restore,
}

/// The stage of a rank in a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has not begun.
    Before,
    /// It does its part.
    Under,
    /// It waits for the others.
    Waiting,
}

/// The progress of a version, as far as the program knows.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) attempt: u32,
    pub(super) run: RunId,
    pub(super) layers: Vec<Option<bool>>,
    pub(super) there: Vec<bool>,
}

impl Progress {
    pub(super) fn is_settled(&self) -> bool {
        self.layers.iter().all(Option::is_some)
    }
}

/// What the next version is based on.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    /// Own packs, newest first.
    pub(super) chain: Vec<ManifestPack>,
    pub(super) borrows: Vec<ManifestPack>,
    pub(super) is_broken: bool,
    pub(super) losses: u64,
    pub(super) losses_before: Vec<u64>,
    pub(super) next_number: u64,
}

impl Content {
    pub(super) fn reset(&mut self) {
        self.chain.clear();
        self.borrows.clear();
        self.losses_before.clear();
        self.is_broken = false;
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_broken || self.chain.is_empty()
    }
}

/// A pack on its way to a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) pack: ManifestPack,
    pub(super) layer: LayerIndex,
}

/// Which rank saves, and what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saving {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) run: RunId,
    pub(super) save: SaveId,
    pub(super) now: u64,
}

/// The packer of one rank.
pub(super) struct Packer<'a> {
    pub(super) random: &'a mut Rng,
    pub(super) content: &'a mut Content,
    pub(super) events: Vec<Event>,
    pub(super) made: Vec<ManifestPack>,
    /// Those packs that other ranks may refer to.
    pub(super) offered: Vec<ManifestPack>,
    pub(super) next_serial: &'a mut u128,
}

impl Packer<'_> {
    /// Creates a pack and passes it to the engine.
    fn make(&mut self, rank: u32) -> ManifestPack {
        let number = self.content.next_number;
        self.content.next_number += 1;
        *self.next_serial += 1;
        let id = PackId { rank, number };
        let pack = ManifestPack { id, file_bytes: 1, index_check: *self.next_serial, is_borrowed: false };
        self.events.push(Event::Expected { key: number, pack });
        self.made.push(pack);
        pack
    }

    /// Packs a version, with blocks from these packs of other ranks.
    pub(super) fn save(&mut self, saving: Saving, offered: &[ManifestPack]) {
        let is_full = self.content.is_full() || self.random.u8(..10) == 0;
        if is_full {
            self.content.chain.clear();
            self.content.borrows.clear();
            self.content.is_broken = false;
        }
        for _ in 0..self.random.u8(u8::from(is_full)..3) {
            let pack = self.make(saving.rank);
            self.content.chain.insert(0, pack);
        }
        let borrowed = offered.iter().map(|pack| ManifestPack { is_borrowed: true, ..*pack });
        let borrowed: Vec<_> = borrowed.filter(|_| self.random.bool()).collect();
        self.content.borrows.extend(borrowed);
        let manifest = Manifest {
            run: saving.run,
            session: "fuzz".to_owned(),
            version: saving.save.version,
            rank: saving.rank,
            ranks: saving.ranks,
            saved_at_unix_ns: saving.now,
            stored_bytes: 0,
            regions: Vec::new(),
            packs: [&self.content.chain[..], &self.content.borrows[..]].concat(),
        };
        let (next_number, losses) = (self.content.next_number, self.content.losses);
        let draft = Draft { save: saving.save, manifest: Arc::new(manifest), next_number, losses };
        self.events.push(Event::Drafted(draft));
        self.offered.clone_from(&self.made);
        if self.content.chain.len() > 3 && self.random.bool() {
            self.merge(saving.rank);
        }
    }

    /// Fails to pack a version, perhaps after some of its packs were created.
    pub(super) fn fail(&mut self, rank: u32, save: SaveId) {
        for _ in 0..self.random.u8(..2) {
            self.make(rank);
        }
        self.content.is_broken = true;
        self.events.push(Event::Failed { save, reason: "not packed".to_owned() });
    }

    /// Merges several consecutive packs into one.
    fn merge(&mut self, rank: u32) {
        let count = self.random.usize(2..=self.content.chain.len());
        let start = self.random.usize(..=self.content.chain.len() - count);
        let new = self.make(rank);
        let old: Vec<u64> = self.content.chain.splice(start..start + count, [new]).map(|pack| pack.id.number).collect();
        self.events.push(Event::Merged(Merge { old, new: vec![new] }));
    }
}

/// The newest version that all ranks have on some layer, of the same run.
pub(super) fn candidate(of_ranks: &[&BTreeMap<u64, Progress>]) -> Option<(u64, RunId)> {
    let is_there = |versions: &BTreeMap<u64, Progress>, version: u64, run: RunId| {
        versions.get(&version).is_some_and(|it| it.run == run && it.there.contains(&true))
    };
    let first = of_ranks.first()?;
    let whole = |(version, progress): (&u64, &Progress)| {
        let everywhere = of_ranks.iter().all(|versions| is_there(versions, *version, progress.run));
        everywhere.then_some((*version, progress.run))
    };
    first.iter().rev().find_map(whole)
}
