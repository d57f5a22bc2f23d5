//! What one session has on each layer, and what is on its way there.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::{Arc, mpsc::Sender},
    time::{SystemTime, UNIX_EPOCH},
};

use outcrop_format::{
    MANIFEST_BYTES_MAX, Manifest, ManifestPack, ManifestRegion, pack_name, parse_rank_name, parse_version_name,
    rank_name, version_name,
};
use outcrop_layers::files::{FileLock, Files, read_whole, write_whole};

use crate::{
    Error, Result,
    store::{Dedup, Shared, state::SessionCore},
};

/// How often the manifests of others are listed until two lists are the same.
const LISTS_MAX: usize = 20;

/// A version that is packed and on its way.
pub(crate) struct Draft {
    pub(crate) session: Arc<SessionCore>,
    pub(crate) manifest: Manifest,
    /// Its chain has become longer than it should be.
    pub(crate) is_long: bool,
    /// The packs that were made for it have lower numbers.
    next_number: u64,
    /// By layer: whether its manifest is there, or never will be.
    is_settled: Vec<bool>,
}

/// All that is known of a session's files.
pub(crate) struct Ledger {
    pub(crate) session: Arc<SessionCore>,
    pub(crate) layers: Vec<LayerLedger>,
    drafts: VecDeque<Draft>,
    /// Packs from this number on may belong to a version that is packed, and that this ledger has not heard of yet.
    drafted_below: u64,
    /// Packs that the engine has, by number.
    packs: BTreeMap<u64, Moving>,
    merges: Vec<Merge>,
    garbage: VecDeque<Garbage>,
    /// Other ranks are gone.
    is_alone: bool,
    /// How often the session was opened or has gone back: what another rank said before that is not about what comes after it.
    pub(crate) era: u64,
    /// The program has ended the session: what is given up when nothing is on its way any more.
    closing: Option<(Vec<FileLock>, Sender<()>)>,
}

/// What a layer has of a session.
#[derive(Default)]
pub(crate) struct LayerLedger {
    /// Of this rank, by version.
    pub(crate) manifests: BTreeMap<u64, Manifest>,
    /// Packs of this rank that are there, with their lengths.
    pub(crate) packs: BTreeMap<u64, u64>,
    /// Those among them whose names are not known to be durable.
    unsynced: BTreeSet<u64>,
    /// Packs below this number that are not there by now count as not written.
    doubtful_below: u64,
    /// Why something last failed here.
    failure: Option<String>,
    /// Versions that all ranks have, and when they were saved.
    pub(crate) complete: BTreeMap<u64, u64>,
    /// Versions that were found, and that other ranks have on other layers: kept until there is a newer one.
    pub(crate) scattered: BTreeSet<u64>,
    /// Versions that some rank will never have here, whether that is another one, which may be ahead of this one, and why.
    refused: BTreeMap<u64, (bool, String)>,
    /// The newest version that each other rank has here. They come in their order: what it has not said it has skipped.
    newest: BTreeMap<u32, u64>,
    /// Versions that only some ranks have, as far as is known.
    holders: BTreeMap<u64, BTreeSet<u32>>,
    /// Versions that are not complete, with the first pack of each: another rank may be about to write a manifest that borrows it.
    pending: BTreeMap<u64, u64>,
    /// Versions whose manifests cannot be read, and why: nobody knows what they need, so that nothing is removed.
    pub(crate) unreadable: BTreeMap<u64, String>,
}

/// A pack in the hands of the engine.
struct Moving {
    key: u64,
    file_bytes: u64,
    /// Layers that it has reached, or never will.
    layers: usize,
    failed_on: BTreeSet<usize>,
}

/// A pack that nobody needs any more and that is to be removed.
struct Garbage {
    layer: usize,
    number: u64,
    bytes: u64,
}

/// Packs that have become others. Newest first, as they are in chains.
struct Merge {
    old: Vec<u64>,
    new: Vec<ManifestPack>,
}

impl Merge {
    fn makes(&self, number: u64) -> bool {
        self.new.iter().any(|pack| pack.id.number == number)
    }
}

impl Draft {
    pub(crate) fn new(session: &Arc<SessionCore>, manifest: Manifest, is_long: bool, next_number: u64) -> Self {
        let is_settled = vec![false; session.layers.len()];
        Self { session: Arc::clone(session), manifest, is_long, next_number, is_settled }
    }

    /// What a version of this session consists of.
    pub(crate) fn manifest(
        session: &SessionCore,
        version: u64,
        saved_at_unix_ns: u64,
        stored_bytes: u64,
        regions: Vec<ManifestRegion>,
        packs: Vec<ManifestPack>,
    ) -> Manifest {
        Manifest {
            run: session.run,
            session: session.name.clone(),
            version,
            rank: session.rank,
            ranks: session.ranks,
            saved_at_unix_ns,
            stored_bytes,
            regions,
            packs,
        }
    }
}

impl Ledger {
    pub(crate) fn new(session: Arc<SessionCore>, layers: Vec<LayerLedger>) -> Self {
        let (drafts, packs, merges) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        let garbage = VecDeque::new();
        let drafted_below = session.content().next_number;
        Self { session, layers, drafts, drafted_below, packs, merges, garbage, is_alone: false, era: 0, closing: None }
    }

    /// Whether other ranks have yet to say that they have a version.
    pub(crate) fn is_waiting_for_others(&self) -> bool {
        self.session.ranks > 1 && !self.is_alone && self.layers.iter().any(|layer| !layer.holders.is_empty())
    }

    /// Nobody else will say anything.
    pub(crate) fn give_up(&mut self) {
        self.is_alone = true;
        self.layers.iter_mut().for_each(|layer| layer.holders.clear());
    }

    /// Nothing more will be saved: other ranks need not wait for it.
    pub(crate) fn close(&mut self, shared: &Shared, locks: Vec<FileLock>, end: Sender<()>) {
        for layer in 0..self.layers.len() {
            self.tell(shared, layer, NO_MORE, None);
        }
        self.closing = Some((locks, end));
    }

    /// Whether it is closed, and nothing is on its way any more.
    pub(crate) fn is_over(&self) -> bool {
        let is_idle = |moving: &Moving| moving.layers == self.layers.len();
        self.closing.is_some() && !self.has_garbage() && self.packs.values().all(is_idle)
    }

    /// A pack is about to be on its way.
    pub(crate) fn expect(&mut self, key: u64, pack: &ManifestPack) {
        self.packs
            .insert(pack.id.number, Moving { key, file_bytes: pack.file_bytes, layers: 0, failed_on: BTreeSet::new() });
    }

    /// A version is on its way.
    pub(crate) fn add(&mut self, shared: &Shared, draft: Draft) {
        if shared.settings.dedup == Dedup::Ranks {
            for layer in &mut self.layers {
                layer.pending.insert(draft.manifest.version, self.drafted_below);
            }
        }
        self.drafted_below = draft.next_number;
        self.drafts.push_back(draft);
        (0..self.layers.len()).for_each(|layer| self.commit_ready(shared, layer));
    }

    /// A pack has come to a layer, or could not.
    pub(crate) fn arrived(&mut self, shared: &Shared, number: u64, layer: usize, failure: Option<String>) {
        let Some(moving) = self.packs.get_mut(&number) else { return };
        moving.layers += 1;
        let is_doubtful = number < self.layers[layer].doubtful_below;
        match failure.or_else(|| self.layers[layer].failure.clone().filter(|_| is_doubtful)) {
            None => {
                self.layers[layer].packs.insert(number, moving.file_bytes);
                self.layers[layer].unsynced.insert(number);
            }
            Some(reason) => {
                moving.failed_on.insert(layer);
                self.layers[layer].failure = Some(reason.clone());
                self.pack_failed(shared, number, layer, &reason);
            }
        }
        self.rewrite_merged(shared, layer);
        self.commit_ready(shared, layer);
    }

    /// Versions that need a pack which could not be written will not come to that layer.
    fn pack_failed(&mut self, shared: &Shared, number: u64, layer: usize, reason: &str) {
        let rank = self.session.rank;
        let mut failed = Vec::new();
        for draft in &mut self.drafts {
            if !draft.is_settled[layer] && draft.manifest.packs.iter().any(|pack| is_own(pack, rank, number)) {
                draft.is_settled[layer] = true;
                failed.push(draft.manifest.version);
            }
        }
        // Before anybody hears of it, and saves the next version.
        self.session.content().lose();
        failed.into_iter().for_each(|version| self.fail(shared, layer, version, reason));
        self.drafts.retain(|draft| draft.is_settled.contains(&false));
    }

    /// Commits, in their order, all versions whose packs are all there.
    fn commit_ready(&mut self, shared: &Shared, layer: usize) {
        let rank = self.session.rank;
        for index in 0..self.drafts.len() {
            if self.drafts[index].is_settled[layer] {
                continue;
            }
            let packs = self.with_merges(layer, &self.drafts[index].manifest.packs);
            let missing = packs
                .iter()
                .find(|pack| pack.id.rank == rank && !self.layers[layer].packs.contains_key(&pack.id.number));
            match missing.map(|pack| pack.id.number) {
                // What is not on its way will not come.
                Some(number) if !self.is_coming(number, layer) => {
                    let version = self.drafts[index].manifest.version;
                    let reason = self.layers[layer].failure.clone();
                    self.session.content().lose();
                    self.fail(
                        shared,
                        layer,
                        version,
                        &reason.unwrap_or_else(|| "a pack of it is not there".to_owned()),
                    );
                }
                Some(_) => break,
                None => self.commit(shared, layer, index, packs),
            }
            self.drafts[index].is_settled[layer] = true;
        }
        self.drafts.retain(|draft| draft.is_settled.contains(&false));
    }

    /// Whether a pack that is not on a layer is on its way there.
    fn is_coming(&self, number: u64, layer: usize) -> bool {
        let is_moving = self.packs.get(&number).is_some_and(|moving| !moving.failed_on.contains(&layer));
        is_moving && number >= self.layers[layer].doubtful_below
    }

    /// Makes a version visible on a layer.
    fn commit(&mut self, shared: &Shared, layer: usize, index: usize, packs: Vec<ManifestPack>) {
        let manifest = Manifest { packs, ..self.drafts[index].manifest.clone() };
        let version = manifest.version;
        if let Some((is_of_others, reason)) = self.layers[layer].refused.get(&version) {
            if *is_of_others {
                self.session.here(version, layer);
            }
            return self.session.failed(version, layer, reason);
        }
        let files = &**shared.shelves[layer].files();
        let dir = rank_dir(&self.session);
        if let Err(error) = self.write_manifest(shared, layer, &manifest) {
            // It may have got its name.
            let _ = files.remove(&format!("{dir}/{}", version_name(version)));
            return self.fail(shared, layer, version, &error.to_string());
        }
        self.layers[layer].manifests.insert(version, manifest);
        self.session.here(version, layer);
        let said = self.news(layer, version, None);
        match self.announce(shared, &said) {
            Ok(()) => self.heard(shared, self.session.rank, &said),
            Err(error) => return self.session.failed(version, layer, &error.to_string()),
        }
        let skipped = self.layers[layer].newest.iter().find(|(rank, newest)| {
            let is_held = self.layers[layer].holders.get(&version).is_none_or(|holders| holders.contains(rank));
            **newest > version && !is_held
        });
        if let Some((&rank, &newest)) = skipped {
            self.refuse(shared, layer, version, rank, why_not(newest));
        }
    }

    /// Makes packs durable, and then the manifest that lists them.
    fn write_manifest(&mut self, shared: &Shared, layer: usize, manifest: &Manifest) -> Result<()> {
        self.sync(shared, layer, "make packs durable")?;
        let files = &**shared.shelves[layer].files();
        let (name, bytes) = (version_name(manifest.version), manifest.encode()?);
        let written = write_whole(files, &rank_dir(&self.session), &name, &bytes);
        written.map_err(|source| self.doubt(layer, failure(files, "write a manifest", source)))
    }

    /// Makes what is in the directory of this rank durable.
    fn sync(&mut self, shared: &Shared, layer: usize, attempt: &str) -> Result<()> {
        let files = &**shared.shelves[layer].files();
        let synced = files.sync_dir(&rank_dir(&self.session));
        synced.map_err(|source| self.doubt(layer, failure(files, attempt, source)))?;
        self.layers[layer].unsynced.clear();
        Ok(())
    }

    /// A directory could not be made durable. Packs that are new there may be lost in a crash, also if they can be read until then
    /// and a later attempt succeeds: they count as not written, and nothing is built upon them.
    fn doubt(&mut self, layer: usize, error: Error) -> Error {
        let ledger = &mut self.layers[layer];
        for number in std::mem::take(&mut ledger.unsynced) {
            ledger.packs.remove(&number);
        }
        ledger.failure = Some(error.to_string());
        let mut content = self.session.content();
        ledger.doubtful_below = content.next_number;
        content.lose();
        drop(content);
        error
    }

    /// A version will not come to a layer: this program is told, and so are the other ranks, who would wait for it.
    pub(crate) fn fail(&mut self, shared: &Shared, layer: usize, version: u64, reason: &str) {
        self.session.failed(version, layer, reason);
        if self.session.ranks > 1 {
            // Also if the program tries again: the others have given it up.
            self.layers[layer].refused.insert(version, (false, reason.to_owned()));
        }
        self.tell(shared, layer, version, Some(reason.to_owned()));
    }

    /// Tells other ranks something that they would wait for, if that can be done.
    fn tell(&self, shared: &Shared, layer: usize, version: u64, failure: Option<String>) {
        if let Err(error) = self.announce(shared, &self.news(layer, version, failure)) {
            tracing::warn!(session = self.session.name, version, %error, "other ranks do not hear what became of it");
        }
    }

    fn news(&self, layer: usize, version: u64, failure: Option<String>) -> News {
        News { layer, version, era: self.era, failure, session: self.session.name.clone() }
    }

    fn announce(&self, shared: &Shared, news: &News) -> Result<()> {
        if self.session.ranks > 1 { shared.ranks.announce(&news.encode()) } else { Ok(()) }
    }

    /// A rank has a version on a layer, or never will.
    pub(crate) fn heard(&mut self, shared: &Shared, rank: u32, news: &News) {
        let (layer, version) = (news.layer, news.version);
        let Some(ledger) = self.layers.get_mut(layer).filter(|_| !self.is_alone) else { return };
        if let Some(reason) = &news.failure {
            return self.refuse(shared, layer, version, rank, reason);
        }
        if rank != self.session.rank {
            ledger.newest.insert(rank, version);
            let is_skipped =
                |(held, by): (&u64, &BTreeSet<u32>)| (*held < version && !by.contains(&rank)).then_some(*held);
            let skipped: Vec<u64> = ledger.holders.iter().filter_map(is_skipped).collect();
            for skipped in skipped {
                self.refuse(shared, layer, skipped, rank, why_not(version));
            }
        }
        if version == NO_MORE {
            return;
        }
        let ledger = &mut self.layers[layer];
        let holders = ledger.holders.entry(version).or_default();
        holders.insert(rank);
        if holders.len() < self.session.ranks as usize {
            return;
        }
        ledger.holders.remove(&version);
        // An own version that was dropped meanwhile is nobody's any more.
        let Some(manifest) = ledger.manifests.get(&version) else { return };
        ledger.complete.insert(version, manifest.saved_at_unix_ns);
        ledger.pending.retain(|pending, _| *pending > version);
        ledger.refused.retain(|refused, _| *refused > version);
        // With a limit, before the program hears of it, so that there is room for the next one.
        if shared.shelves[layer].limit_bytes().is_some() {
            self.retain(shared, layer);
            self.session.reached(version, layer);
        } else {
            self.session.reached(version, layer);
            self.retain(shared, layer);
        }
    }

    /// A version will not be complete on a layer, as this rank does not have it there.
    fn refuse(&mut self, shared: &Shared, layer: usize, version: u64, rank: u32, reason: &str) {
        let reason = format!("rank {rank}: {reason}");
        // This one has nothing more to do for it.
        self.session.here(version, layer);
        self.session.failed(version, layer, &reason);
        let ledger = &mut self.layers[layer];
        ledger.holders.remove(&version);
        ledger.refused.insert(version, (true, reason));
        if let Err(error) = self.drop_versions(shared, layer, &[version]) {
            tracing::warn!(session = self.session.name, version, %error, "a version that not all ranks have stays");
        }
    }

    /// Drops versions that are not kept.
    fn retain(&mut self, shared: &Shared, layer: usize) {
        let complete: Vec<_> = self.layers[layer].complete.iter().map(|(version, at)| (*version, *at)).collect();
        let mut dropped = shared.settings.keep(layer).dropped(now_unix_ns(), &complete);
        if let Some((newest, _)) = complete.last() {
            dropped.extend(self.layers[layer].scattered.range(..newest));
        }
        if let Err(error) = self.drop_versions(shared, layer, &dropped) {
            // They stay for now, and are tried again with the next version.
            tracing::warn!(session = self.session.name, %error, "old versions stay");
        }
        let is_gone = |version: &u64| !self.layers.iter().any(|layer| layer.manifests.contains_key(version));
        let gone: Vec<u64> = dropped.into_iter().filter(is_gone).collect();
        self.session.update(|state| gone.iter().for_each(|version| drop(state.versions.remove(version))));
    }

    /// Removes manifests, durably, and then what nobody needs any more.
    fn drop_versions(&mut self, shared: &Shared, layer: usize, versions: &[u64]) -> Result<()> {
        if versions.is_empty() {
            return Ok(());
        }
        let files = &**shared.shelves[layer].files();
        let dir = rank_dir(&self.session);
        for version in versions {
            match files.remove(&format!("{dir}/{}", version_name(*version))) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(failure(files, "remove an old version", source)),
            }
            self.layers[layer].manifests.remove(version);
            self.layers[layer].complete.remove(version);
            self.layers[layer].scattered.remove(version);
        }
        self.sync(shared, layer, "remove old versions")?;
        self.collect(shared, layer)
    }

    /// Removes packs that nothing needs.
    pub(crate) fn collect_all(&mut self, shared: &Shared) {
        for layer in 0..self.layers.len() {
            if let Err(error) = self.collect(shared, layer) {
                tracing::warn!(session = self.session.name, %error, "old packs stay");
            }
        }
    }

    /// Removes packs that nothing on this layer needs.
    pub(crate) fn collect(&mut self, shared: &Shared, layer: usize) -> Result<()> {
        let rank = self.session.rank;
        if !self.layers[layer].unreadable.is_empty() || self.session.is_reading() {
            return Ok(());
        }
        let listed = self.layers[layer].manifests.values().chain(self.drafts.iter().map(|draft| &draft.manifest));
        let mut needed: BTreeSet<u64> = listed.flat_map(|manifest| own_packs(&manifest.packs, rank)).collect();
        needed.extend(own_packs(&self.session.content().needed(), rank));
        let mut idle: Vec<u64> =
            self.layers[layer].packs.keys().copied().filter(|number| !needed.contains(number)).collect();
        // What is being merged, or has not been committed by anybody yet, is not garbage.
        idle.retain(|number| *number < self.drafted_below);
        idle.retain(|number| !self.merges.iter().any(|merge| merge.makes(*number)));
        idle.retain(|number| self.layers[layer].pending.values().all(|first| number < first));
        if idle.is_empty() {
            return Ok(());
        }
        let shelf = &shared.shelves[layer];
        let files = &**shelf.files();
        if self.session.ranks > 1 {
            let Some(borrowed) = borrowed(files, &self.session)? else { return Ok(()) };
            idle.retain(|number| !borrowed.contains(number));
        }
        for number in idle {
            let bytes = self.layers[layer].packs.remove(&number).unwrap_or(0);
            self.garbage.push_back(Garbage { layer, number, bytes });
        }
        // Where there is a limit somebody may wait for the room; else it takes its time when there is nothing else to do.
        while shelf.limit_bytes().is_some() && self.has_garbage() {
            self.remove_one(shared)?;
        }
        Ok(())
    }

    /// Whether there are packs to be removed.
    pub(crate) fn has_garbage(&self) -> bool {
        !self.garbage.is_empty() && !self.session.is_reading()
    }

    /// Removes one pack that nobody needs. To remove a large file can take as long as to write it.
    pub(crate) fn remove_one(&mut self, shared: &Shared) -> Result<()> {
        let Some(Garbage { layer, number, bytes }) = self.garbage.pop_front() else { return Ok(()) };
        let shelf = &shared.shelves[layer];
        let files = &**shelf.files();
        let name = format!("{}/{}", rank_dir(&self.session), pack_name(number));
        files.remove(&name).map_err(|source| failure(files, "remove an old pack", source))?;
        shelf.change_used(-(bytes as i64));
        Ok(())
    }

    /// Packs have become others: manifests list those instead when they have arrived.
    pub(crate) fn merged(&mut self, shared: &Shared, old: Vec<u64>, new: Vec<ManifestPack>) {
        self.merges.push(Merge { old, new });
        (0..self.layers.len()).for_each(|layer| self.rewrite_merged(shared, layer));
    }

    /// A list of packs, with those that have become others on this layer replaced by them.
    fn with_merges(&self, layer: usize, packs: &[ManifestPack]) -> Vec<ManifestPack> {
        let mut packs = packs.to_vec();
        for merge in &self.merges {
            if !merge.new.iter().all(|pack| self.layers[layer].packs.contains_key(&pack.id.number)) {
                continue;
            }
            let rank = self.session.rank;
            let is_here = |window: &[ManifestPack]| {
                window.iter().zip(&merge.old).all(|(pack, number)| is_own(pack, rank, *number) && !pack.is_borrowed)
            };
            if let Some(start) = packs.windows(merge.old.len()).position(is_here) {
                packs.splice(start..start + merge.old.len(), merge.new.iter().copied());
            }
        }
        packs
    }

    /// Writes manifests anew that list packs which have become others.
    fn rewrite_merged(&mut self, shared: &Shared, layer: usize) {
        if self.merges.is_empty() {
            return;
        }
        let rewrites: Vec<Manifest> = self.layers[layer]
            .manifests
            .values()
            .map(|manifest| Manifest { packs: self.with_merges(layer, &manifest.packs), ..manifest.clone() })
            .filter(|manifest| manifest.packs != self.layers[layer].manifests[&manifest.version].packs)
            .collect();
        let has_some = !rewrites.is_empty();
        for manifest in rewrites {
            if let Err(error) = self.write_manifest(shared, layer, &manifest) {
                tracing::warn!(session = self.session.name, %error, "a version keeps its long chain");
                return;
            }
            self.layers[layer].manifests.insert(manifest.version, manifest);
        }
        let is_in_use = |merge: &Merge| {
            let of_drafts = self.drafts.iter().flat_map(|draft| &draft.manifest.packs);
            let of_layers = self.layers.iter().flat_map(|layer| layer.manifests.values()).flat_map(|it| &it.packs);
            of_drafts.chain(of_layers).any(|pack| merge.old.contains(&pack.id.number))
        };
        let is_in_use: Vec<bool> = self.merges.iter().map(is_in_use).collect();
        let mut is_in_use = is_in_use.into_iter();
        self.merges.retain(|_| is_in_use.next().unwrap_or(true));
        if has_some && let Err(error) = self.collect(shared, layer) {
            tracing::warn!(session = self.session.name, %error, "old packs stay");
        }
    }

    /// Forgets all versions above `version`, the newest first.
    pub(crate) fn rewind(&mut self, shared: &Shared, version: Option<u64>) -> Result<()> {
        self.session.content().reset();
        self.merges.clear();
        self.era += 1;
        for layer in 0..self.layers.len() {
            let all = self.layers[layer].manifests.keys().rev().copied();
            let above: Vec<u64> = all.filter(|other| version.is_none_or(|version| *other > version)).collect();
            self.layers[layer].pending.clear();
            self.layers[layer].refused.clear();
            self.layers[layer].newest.clear();
            self.layers[layer].holders.clear();
            self.drop_versions(shared, layer, &above)?;
        }
        self.session.update(|state| state.versions.retain(|other, _| version.is_some_and(|version| *other <= version)));
        Ok(())
    }

    /// Packs that have been everywhere, and that the next version will not build upon, or that could be written nowhere: they
    /// need no host memory.
    pub(crate) fn dispensable(&mut self) -> Vec<u64> {
        let content = self.session.content();
        let is_needed = |number: &u64| {
            let is_listed = |draft: &Draft| draft.manifest.packs.iter().any(|pack| pack.id.number == *number);
            content.links().any(|link| link.pack.id.number == *number)
                || self.drafts.iter().any(is_listed)
                || self.merges.iter().any(|merge| merge.makes(*number))
                || *number >= self.drafted_below
        };
        let layers = self.layers.len();
        let is_gone = |moving: &Moving| moving.failed_on.len() == layers;
        let gone: Vec<u64> = self
            .packs
            .iter()
            .filter(|(number, moving)| moving.layers == layers && (is_gone(moving) || !is_needed(number)))
            .map(|(number, _)| *number)
            .collect();
        drop(content);
        gone.into_iter().filter_map(|number| Some(self.packs.remove(&number)?.key)).collect()
    }
}

/// Packs of this rank to which manifests of others refer; nothing if that cannot be told.
pub(crate) fn borrowed(files: &dyn Files, session: &SessionCore) -> Result<Option<BTreeSet<u64>>> {
    let failed = |source| failure(files, "look at other ranks", source);
    for _ in 0..LISTS_MAX {
        let before = manifests_of_others(files, session).map_err(failed)?;
        let mut numbers = BTreeSet::new();
        let mut is_readable = true;
        for name in &before {
            match read_whole(files, name, MANIFEST_BYTES_MAX).map(|bytes| Manifest::decode(&bytes)) {
                Ok(Ok(manifest)) => {
                    let packs = manifest.packs.iter().filter(|pack| pack.id.rank == session.rank);
                    numbers.extend(packs.map(|pack| pack.id.number));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(_)) | Err(_) => is_readable = false,
            }
        }
        // A rank that replaces one version by the next has both for a moment, but a list that is made meanwhile may have none.
        if before == manifests_of_others(files, session).map_err(failed)? {
            return Ok(is_readable.then_some(numbers));
        }
    }
    Ok(None)
}

fn manifests_of_others(files: &dyn Files, session: &SessionCore) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for dir in files.list(&session.name)? {
        if parse_rank_name(&dir).is_some_and(|rank| rank != session.rank) {
            let dir = format!("{}/{dir}", session.name);
            let listed = files.list(&dir)?;
            names.extend(
                listed.iter().filter(|name| parse_version_name(name).is_some()).map(|name| format!("{dir}/{name}")),
            );
        }
    }
    Ok(names)
}

/// The directory of this rank.
pub(crate) fn rank_dir(session: &SessionCore) -> String {
    format!("{}/{}", session.name, rank_name(session.rank))
}

pub(crate) fn failure(files: &dyn Files, attempt: &str, source: io::Error) -> Error {
    Error::StoreFiles { attempt: attempt.to_owned(), location: files.location(), source }
}

fn is_own(pack: &ManifestPack, rank: u32, number: u64) -> bool {
    pack.id.rank == rank && pack.id.number == number
}

fn own_packs(packs: &[ManifestPack], rank: u32) -> impl Iterator<Item = u64> + '_ {
    packs.iter().filter(move |pack| pack.id.rank == rank).map(|pack| pack.id.number)
}

pub(crate) fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Instead of a version: a rank will save no more.
const NO_MORE: u64 = u64::MAX;

/// Why a rank that has come so far does not have an earlier version.
fn why_not(newest: u64) -> &'static str {
    if newest == NO_MORE { "it has ended" } else { "it has not saved this version" }
}

/// What a rank tells the others of one of its versions.
pub(crate) struct News {
    pub(crate) session: String,
    layer: usize,
    version: u64,
    /// How often it had opened the session or gone back by then.
    pub(crate) era: u64,
    /// Why it will never be there; without, it is.
    failure: Option<String>,
}

impl News {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.layer as u64, self.version, self.era].map(u64::to_le_bytes).concat();
        let failure = self.failure.as_ref().map_or_else(String::new, |reason| format!("\0{reason}"));
        [&numbers, self.session.as_bytes(), failure.as_bytes()].concat()
    }

    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let (layer, rest) = message.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<8>()?;
        let (era, text) = rest.split_first_chunk::<8>()?;
        let text = std::str::from_utf8(text).ok()?;
        let (session, failure) = text.split_once('\0').map_or((text, None), |(name, reason)| (name, Some(reason)));
        Some(Self {
            session: session.to_owned(),
            layer: usize::try_from(u64::from_le_bytes(*layer)).ok()?,
            version: u64::from_le_bytes(*version),
            era: u64::from_le_bytes(*era),
            failure: failure.map(str::to_owned),
        })
    }
}
