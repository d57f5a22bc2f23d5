//! Restores versions: the newest one that is complete on all ranks, from the fastest layer that has
//! an undamaged copy.

use std::{
    cmp::Reverse,
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{self, Sender},
    },
};

use outcrop_catalog::{BEFORE_BYTES_MAX, Catalog, Reader};
use outcrop_commit::Event;
use outcrop_format::{Candidates, Fared, Manifest, ManifestPack, ManifestRegion, RunId, Verdict};
use outcrop_layers::files::Files;
use outcrop_memory::{Before, Befores};
use outcrop_region::{PartMut, Shape};

use super::{
    Session,
    chain::{Link, RegionContent},
    commit::Note,
    exchange::decode_all,
    gather::Gathered,
    host::HostFiles,
    state::SessionCore,
};
use crate::{
    Error, Result,
    error::{Problem, apart},
};

/// The result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The version.
    pub version: u64,
    /// The layer from which this rank has read it.
    pub layer: String,
    /// Newer versions that could not be used, and layers that were passed over, the newest version
    /// first.
    pub skipped: Vec<Skipped>,
    /// Versions of this rank that were made again from what other nodes keep when the session was
    /// opened, because the node of the rank was lost.
    pub rebuilt: Vec<u64>,
}

/// A copy of a version that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The version.
    pub version: u64,
    /// What is wrong with it, and where.
    pub reason: String,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} from {}", self.version, self.layer)?;
        if self.rebuilt.contains(&self.version) {
            write!(f, ", where it was made again because the node was lost")?;
        }
        match self.skipped.len() {
            0 => Ok(()),
            count => write!(f, " ({count} damaged copies of it or of newer versions were skipped)"),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: {}", self.version, self.reason)
    }
}

/// A region of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedRegion {
    /// Its name.
    pub name: String,
    /// The name of its element type.
    pub element: String,
    /// The size of one element in bytes.
    pub element_bytes: usize,
    /// Its size in bytes.
    pub bytes: u64,
    /// How its elements form an array.
    pub shape: Shape,
}

impl SavedRegion {
    pub(super) fn of(region: &ManifestRegion) -> Self {
        Self {
            name: region.name.clone(),
            element: region.element.clone(),
            element_bytes: region.element_bytes as usize,
            bytes: region.blocks.bytes(),
            shape: region.shape.clone(),
        }
    }
}

/// A copy of a version: its location, its manifest, and a catalog to read it with.
pub(super) type Copy = (String, Arc<Manifest>, Catalog);

/// What is done with a copy of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Find out whether it fits, and open its packs.
    Open,
    /// Read it, and compare it with its hashes. Regions whose memory can be put back are filled.
    Verify,
    /// Read it into the regions of the program.
    Fill,
}

/// What the regions of the program held before the restore, as far as that is known.
struct Kept(Vec<Option<Before>>);

impl Kept {
    fn of(parts: &[PartMut<'_>]) -> Self {
        let mut befores = Befores::new(BEFORE_BYTES_MAX);
        Self(parts.iter().map(|part| befores.of(part.bytes)).collect())
    }

    /// For restores that may fill memory at any time.
    fn nothing(parts: &[PartMut<'_>]) -> Self {
        Self(parts.iter().map(|_| None).collect())
    }

    fn put_back(&self, parts: &mut [PartMut<'_>]) {
        for (part, before) in parts.iter_mut().zip(&self.0) {
            before.iter().for_each(|before| before.put_back(part.bytes));
        }
    }

    /// The regions that can be put back, or the others.
    fn choose<'a>(&self, are_kept: bool, parts: &'a mut [PartMut<'_>]) -> Vec<(&'a str, &'a mut [u8])> {
        let chosen = parts.iter_mut().zip(&self.0).filter(|(_, before)| before.is_some() == are_kept);
        chosen.map(|(part, _)| (part.name, &mut *part.bytes)).collect()
    }
}

/// A copy of a version that fits.
enum Found {
    /// This rank's own part.
    Own(Reader),
    /// Parts of several ranks.
    Gathered(Gathered),
}

/// While this lives, no file of the session is removed, so the packs that a manifest lists can be
/// read.
struct Reading {
    session: Arc<SessionCore>,
    committer: Sender<Note>,
}

impl Reading {
    fn begin(session: &Session) -> Self {
        let (ready, wait) = mpsc::channel();
        // If the committer has ended, nothing is removed.
        let _ = session.store.committer.send(Note::Reading(Arc::clone(&session.core), ready));
        let _ = wait.recv();
        Self { session: Arc::clone(&session.core), committer: session.store.committer.clone() }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.committer.send(Note::Event(Arc::clone(&self.session), Event::Reading(false)));
    }
}

impl Session {
    /// Restores the newest version that all ranks have undamaged into these regions. Returns `None`
    /// if there is no version. Regions of the version that are not named here are skipped. With
    /// several ranks, all of them call it.
    ///
    /// Another number of ranks may have saved the version, or with other boxes: each rank gets the
    /// box that it asks for. A region without a box is a whole array, which must be the same on all
    /// ranks then.
    ///
    /// If a copy is damaged, the next layer is tried, and then the version before. Both are logged
    /// and named in the result. After an error the content of the regions is undefined, unless the
    /// error says that nothing was changed, or
    /// [`verify_before_restore`](Self::verify_before_restore) is set.
    ///
    /// The session continues from that version. If the next save has a number that is not above the
    /// newest version that was passed over, all versions above the restored one are removed.
    pub fn restore_latest(&mut self, parts: &mut [PartMut<'_>]) -> Result<Option<Restored>> {
        let _reading = Reading::begin(self);
        let mut skipped = Vec::new();
        let kept = self.keep(parts);
        let (round, candidates) = self.candidates()?;
        for (version, run) in candidates.iter().rev() {
            if let Some(mut restored) = self.restore_together(round, (*version, *run), parts, &kept, &mut skipped)? {
                let newer = self.unreadable.iter().filter(|skipped| skipped.version >= *version);
                restored.skipped.splice(0..0, newer.cloned());
                self.leave_behind(*version, &candidates);
                return Ok(Some(restored));
            }
        }
        if candidates.is_empty() && self.unreadable.is_empty() {
            return self.check_lost().map(|()| None);
        }
        skipped.extend(self.unreadable.iter().cloned());
        Err(self.unusable(candidates.last().map_or(0, |(version, _)| *version), &skipped))
    }

    /// With parity, versions that only some ranks have are lost, and not just missing: a program
    /// that began anew would remove them without a word.
    fn check_lost(&self) -> Result<()> {
        let lost = self.passed_over();
        if !self.core.has_parity || lost.is_empty() {
            return Ok(());
        }
        let session = self.core.name.clone();
        let detail: Vec<_> = lost.iter().map(ToString::to_string).collect();
        let detail = format!(
            "more nodes were lost than parity covers: {}; bring their directories back, or forget incomplete versions to begin anew",
            detail.join("; ")
        );
        Err(Problem::NothingWhole { session, detail }.into())
    }

    /// Restores this version into these regions, as [`restore_latest`](Self::restore_latest) does.
    pub fn restore(&mut self, version: u64, parts: &mut [PartMut<'_>]) -> Result<Restored> {
        let _reading = Reading::begin(self);
        let (round, candidates) = self.candidates()?;
        let Some(candidate) = candidates.iter().copied().find(|(candidate, _)| *candidate == version) else {
            return Err(Problem::VersionMissing { session: self.core.name.clone(), version }.into());
        };
        let mut skipped = Vec::new();
        let kept = self.keep(parts);
        match self.restore_together(round, candidate, parts, &kept, &mut skipped)? {
            Some(restored) => {
                self.leave_behind(version, &candidates);
                Ok(restored)
            }
            None => Err(self.unusable(version, &skipped)),
        }
    }

    /// Remembers that the program continues from a version that is not the newest. All ranks know
    /// the same candidates, so all of them do the same at the next save.
    fn leave_behind(&mut self, version: u64, candidates: &[(u64, RunId)]) {
        let newest = candidates.last().map_or(version, |(newest, _)| *newest);
        self.left_behind = (newest > version).then_some(version..newest);
    }

    /// Copies regions of a version, to look at them. Unlike [`restore`](Self::restore), this
    /// concerns only this rank, and the next save still builds upon the newest version.
    pub fn read(&mut self, version: u64, parts: &mut [PartMut<'_>]) -> Result<()> {
        let _reading = Reading::begin(self);
        self.core.wait_packed(version.saturating_add(1))?;
        let mut skipped = Vec::new();
        if !self.core.state().is_known(version) {
            return Err(Problem::VersionMissing { session: self.core.name.clone(), version }.into());
        }
        let found = self.find(version, parts, &Kept::nothing(parts), &mut skipped, Task::Fill)?;
        if !skipped.is_empty() {
            // The next version may share the damaged packs.
            self.core.content().is_broken = true;
        }
        match found {
            Some(_) => Ok(()),
            None => Err(self.unusable(version, &skipped)),
        }
    }

    /// The error if no copy of a version can be read: what was wrong with each of them.
    pub(super) fn unusable(&self, version: u64, skipped: &[Skipped]) -> Error {
        let session = self.core.name.clone();
        if skipped.is_empty() {
            return Problem::VersionMissing { session, version }.into();
        }
        let detail: Vec<_> = skipped.iter().map(ToString::to_string).collect();
        Problem::NothingWhole { session, detail: detail.join("; ") }.into()
    }

    /// The newest version that all ranks have, if there is one. With several ranks, all of them
    /// call it.
    pub fn latest(&self) -> Result<Option<u64>> {
        Ok(self.restorable()?.last().copied())
    }

    /// The regions of this rank in a version, for example to allocate memory for them. If another
    /// number of ranks has saved it, these are whole arrays, and this rank's share of each list.
    pub fn regions(&mut self, version: u64) -> Result<Vec<SavedRegion>> {
        self.core.wait_packed(version.saturating_add(1))?;
        if self.is_of_others(version) {
            return self.regions_of_all(version);
        }
        let mut skipped = Vec::new();
        let Some((_, manifest, _)) = self.places(version, &mut skipped)?.into_iter().next() else {
            return Err(self.unusable(version, &skipped));
        };
        let mut regions: Vec<SavedRegion> = manifest.regions.iter().map(SavedRegion::of).collect();
        self.place_lists(version, &mut regions)?;
        Ok(regions)
    }

    /// A number of ranks, other than that of this run, that has saved some version.
    pub fn other_ranks(&self) -> Option<u32> {
        let state = self.core.state();
        state.versions.values().map(|progress| progress.ranks).find(|ranks| *ranks != self.core.ranks)
    }

    /// Whether another number of ranks has saved a version.
    fn is_of_others(&self, version: u64) -> bool {
        self.core.state().versions.get(&version).is_some_and(|progress| progress.ranks != self.core.ranks)
    }

    /// The versions that all ranks have somewhere, in ascending order. With several ranks, all of
    /// them call it.
    pub fn restorable(&self) -> Result<Vec<u64>> {
        Ok(self.candidates()?.1.into_iter().map(|(version, _)| version).collect())
    }

    /// Versions that were found when the session was opened and are not
    /// [restorable](Self::restorable), the newest first: those whose manifests some rank cannot
    /// read, and those that only some ranks have, and that may be whole again when a directory
    /// comes back. The versions are the same on all ranks.
    pub fn passed_over(&self) -> Vec<Skipped> {
        let state = self.core.state();
        let mut found: Vec<Skipped> = self.unreadable.clone();
        for (returning, layer) in state.returning.iter().zip(&self.core.layers) {
            let reason = format!("not all ranks have it in {layer}; a directory of another rank may be missing");
            found.extend(returning.iter().map(|version| Skipped { version: *version, reason: reason.clone() }));
        }
        found.retain(|skipped| !state.versions.contains_key(&skipped.version));
        found.sort_by_key(|skipped| Reverse(skipped.version));
        found
    }

    /// The versions that all ranks have on some layer, from the same run, and the number of the
    /// exchange in which they agreed on them.
    fn candidates(&self) -> Result<(u64, Vec<(u64, RunId)>)> {
        self.core.wait_packed(u64::MAX)?;
        let mine = Candidates(self.core.state().there().collect());
        let messages = self.gather("candidates", &mine.encode())?;
        let round = self.core.rounds.fetch_add(1, Relaxed);
        let everybody = decode_all(&messages, Candidates::decode)?;
        let has = |Candidates(theirs): &Candidates, it: &(u64, RunId)| theirs.binary_search(it).is_ok();
        let first = everybody.first().map(|Candidates(first)| first.clone()).unwrap_or_default();
        Ok((round, first.into_iter().filter(|it| everybody.iter().all(|theirs| has(theirs, it))).collect()))
    }

    /// What has to be known of this memory before it is written to.
    fn keep(&self, parts: &[PartMut<'_>]) -> Kept {
        if self.verifies_first { Kept::of(parts) } else { Kept::nothing(parts) }
    }

    /// Restores a version if all ranks can. Returns `None` if it is damaged on one of them. No rank
    /// writes to its memory until all have found that it has what they ask for. If it is verified
    /// first, memory that cannot be put back is not written to until all have found that it is
    /// undamaged, and other memory is put back if it is not.
    fn restore_together(
        &mut self,
        round: u64,
        (version, run): (u64, RunId),
        parts: &mut [PartMut<'_>],
        kept: &Kept,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<Restored>> {
        let known = skipped.len();
        let task = if self.verifies_first { Task::Verify } else { Task::Open };
        let found = self.find(version, parts, kept, skipped, task);
        let found = match self.agree(("restore", round), (version, run), found, skipped) {
            Ok(Some(found)) => found,
            refused => {
                kept.put_back(parts);
                return refused.map(|_| None);
            }
        };
        let filled = self.fill_from(version, found, parts, kept, skipped);
        let is_damaged = skipped.len() > known;
        let Some((layer, found)) = self.agree(("restored", round), (version, run), filled, skipped)? else {
            return Ok(None);
        };
        match found {
            Found::Own(reader) => self.go_on_from(&reader, parts, is_damaged)?,
            Found::Gathered(_) => self.begin_anew(version, parts),
        }
        Ok(Some(Restored { version, layer, skipped: std::mem::take(skipped), rebuilt: self.rebuilt.clone() }))
    }

    /// Reads what was found into the regions that are not filled yet; or all of it from another
    /// copy, if that is damaged.
    fn fill_from(
        &mut self,
        version: u64,
        (layer, found): (String, Found),
        parts: &mut [PartMut<'_>],
        kept: &Kept,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<(String, Found)>> {
        let reader = match &found {
            Found::Own(reader) => reader,
            Found::Gathered(gathered) => {
                let layer = self.take_pieces(version, gathered, parts, skipped, Task::Fill)?;
                return Ok(layer.map(|layer| (layer, found)));
            }
        };
        match reader.read_regions(kept.choose(false, parts), &|_| {}) {
            Ok(()) => Ok(Some((layer, found))),
            Err(error) if error.is_shortage() => Err(error.into()),
            Err(_) => self.find(version, parts, kept, skipped, Task::Fill),
        }
    }

    /// Tells all ranks whether this one could read a version. Returns what it has found if all
    /// could, and `None` if the version is damaged on one of them.
    fn agree<T>(
        &self,
        (topic, round): (&str, u64),
        (version, run): (u64, RunId),
        found: Result<Option<T>>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<T>> {
        let fared = match &found {
            Ok(Some(_)) => Fared::Whole,
            Ok(None) => Fared::Damaged,
            Err(_) => Fared::Refused,
        };
        let verdict = Verdict { version, run, fared };
        let messages = self.gather(&format!("{topic} {round} {version}"), &verdict.encode())?;
        let everybody = decode_all(&messages, Verdict::decode)?;
        if let Some(rank) = everybody.iter().position(|other| (other.version, other.run) != (version, run)) {
            return Err(apart(format!("rank {rank} restores another version than {version}; restore again")));
        }
        let Some(found) = found? else { return Ok(None) };
        let of_others = |fared| everybody.iter().position(|other| other.fared == fared);
        if let Some(rank) = of_others(Fared::Refused) {
            let detail =
                format!("rank {rank} cannot restore version {version}, see its error; the other ranks stop too");
            return Err(apart(detail));
        }
        if let Some(rank) = of_others(Fared::Damaged) {
            skipped.push(Skipped { version, reason: format!("it is damaged on rank {rank}") });
            return Ok(None);
        }
        Ok(Some(found))
    }

    /// Finds the fastest layer with an undamaged copy of a version, as far as the task says. `None`
    /// if there is none; an error if the version does not fit the regions.
    fn find(
        &mut self,
        version: u64,
        parts: &mut [PartMut<'_>],
        kept: &Kept,
        skipped: &mut Vec<Skipped>,
        task: Task,
    ) -> Result<Option<(String, Found)>> {
        let gathered = |found: Option<(String, Gathered)>| found.map(|(layer, it)| (layer, Found::Gathered(it)));
        if self.is_of_others(version) {
            return Ok(gathered(self.gather_parts(version, parts, skipped, task)?));
        }
        let read = |reader: &Reader, parts: &mut [PartMut<'_>]| match task {
            Task::Open => Ok(()),
            Task::Verify => reader.read_all(kept.choose(true, parts)),
            Task::Fill => fill(reader, parts),
        };
        let known = skipped.len();
        let places = self.places(version, skipped)?;
        if places.is_empty() && skipped.len() == known {
            skipped.push(Skipped { version, reason: "no directory has it any more".to_owned() });
        }
        for (place, manifest, catalog) in places {
            match self.check(&manifest, parts) {
                Err(_) if has_boxes(&manifest, parts) => {
                    return Ok(gathered(self.gather_parts(version, parts, skipped, task)?));
                }
                fits => fits?,
            }
            let reader = catalog.reader(&manifest);
            match reader.and_then(|reader| read(&reader, parts).map(|()| reader)) {
                Ok(reader) => return Ok(Some((place, Found::Own(reader)))),
                // This process lacks memory or descriptors. The version may be undamaged.
                Err(error) if error.is_shortage() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(session = self.core.name, version, place, %error, "a copy of a version is damaged");
                    skipped.push(Skipped { version, reason: format!("{place}: {error}") });
                }
            }
        }
        Ok(None)
    }

    /// The copies of a version, fastest layer first.
    fn places(&mut self, version: u64, skipped: &mut Vec<Skipped>) -> Result<Vec<Copy>> {
        let mut places: Vec<Copy> = Vec::new();
        let in_host = self.core.state().manifests.get(&version).cloned();
        if let Some(manifest) = in_host {
            let chain = self.core.content().chain.clone();
            let files = HostFiles::new(&mut self.handle, &self.core, &chain);
            if manifest.packs.iter().all(|pack| files.has(pack.id, &self.core)) {
                places.push((files.location(), manifest, Catalog::new(Arc::new(files))));
            }
        }
        if places.is_empty() {
            // Packs that host memory has evicted are on some directory, and the rest of the version
            // will reach it too.
            self.core.wait_here(version)?;
        }
        let Some(progress) = self.core.state().versions.get(&version).cloned() else { return Ok(places) };
        let is_complete = |layer: &usize| matches!(progress.layers.get(*layer), Some(Some(Ok(()))));
        let (complete, partial): (Vec<_>, Vec<_>) = (0..self.store.shared.shelves.len()).partition(is_complete);
        // Complete layers first: where not all ranks have the version, borrowed packs may be
        // missing too.
        for layer in complete.into_iter().chain(partial) {
            let catalog = Catalog::new(Arc::clone(self.store.shared.shelves[layer].files()));
            match catalog.manifest(&self.core.name, self.core.rank, version) {
                Ok(Some(manifest)) if manifest.run == progress.run => {
                    places.push((catalog.files().location(), manifest, catalog));
                }
                Ok(_) => {}
                Err(error) if error.is_shortage() => return Err(error.into()),
                Err(error) => {
                    let reason = error.to_string();
                    tracing::warn!(session = self.core.name, version, reason, "a manifest cannot be read");
                    skipped.push(Skipped { version, reason });
                }
            }
        }
        Ok(places)
    }

    /// Checks that a version fits these regions.
    fn check(&self, manifest: &Manifest, parts: &[PartMut<'_>]) -> Result<()> {
        let mismatch = |problem| {
            Error::from(Problem::Mismatch { session: self.core.name.clone(), version: manifest.version, problem })
        };
        let regions: HashMap<_, _> = manifest.regions.iter().map(|region| (region.name.as_str(), region)).collect();
        for part in parts {
            let Some(region) = regions.get(part.name) else {
                let names: Vec<_> = manifest.regions.iter().map(|region| region.name.as_str()).collect();
                return Err(mismatch(format!("it has no region {}, only {}", part.name, names.join(", "))));
            };
            if region.element != part.element.name() {
                let (name, saved, asked) = (part.name, &region.element, part.element.name());
                return Err(mismatch(format!("region {name} holds {saved} and not {asked}")));
            }
            let (saved, given) = (region.blocks.bytes(), part.bytes.len());
            if saved != given as u64 {
                return Err(mismatch(format!("region {} has {saved} bytes and not {given}", part.name)));
            }
            let asked = part.shape().map_err(Problem::Shape)?;
            if region.shape.is_list() && asked.global().is_some() {
                return Err(mismatch(format!("region {} is a part of a list", part.name)));
            }
            part.check(&region.shape).map_err(|error| mismatch(format!("region {} {error}", part.name)))?;
        }
        Ok(())
    }

    /// Lets the next save of this rank build upon a version that the program has read by itself, as
    /// [`restore`](Self::restore) does: only what differs from that version is stored. Differences
    /// are found by comparing hashes, so regions with other content are saved correctly.
    pub fn go_on_after(&mut self, version: u64) -> Result<()> {
        let _reading = Reading::begin(self);
        self.core.wait_packed(u64::MAX)?;
        if self.store.shared.settings.is_certain || self.is_of_others(version) {
            // There is no copy of the bytes to compare with, or of the parts of other ranks.
            self.core.content().reset();
            return Ok(());
        }
        let mut skipped = Vec::new();
        for (_, manifest, catalog) in self.places(version, &mut skipped)? {
            if let Ok(reader) = catalog.reader(&manifest) {
                let names: Vec<String> = reader.manifest().regions.iter().map(|region| region.name.clone()).collect();
                // The tracker knows changes since the last save, not since this version.
                names.iter().for_each(|name| self.tracker.mark_dirty(name, 0..usize::MAX));
                return self.build_upon(&reader, names.iter().map(String::as_str), false);
            }
        }
        Err(self.unusable(version, &skipped))
    }

    /// From now on, changes are relative to the restored version, if all layers have it and no copy
    /// was damaged.
    fn go_on_from(&mut self, reader: &Reader, parts: &[PartMut<'_>], is_damaged: bool) -> Result<()> {
        let manifest = reader.manifest();
        let content = self.core.content();
        let is_known = !content.is_broken && !content.chain.is_empty() && content.packs() == manifest.packs;
        drop(content);
        // If the next version builds upon these packs anyway, the chain stays. Layers that do not
        // have the version yet are not checked.
        if is_damaged
            || !is_known
            || !self.layers_with(manifest.version).all(|layer| self.opens(layer, manifest, false))
        {
            self.shadows_from(parts);
            self.build_upon(reader, parts.iter().map(|part| part.name), is_damaged)?;
        }
        self.watch_parts(parts);
        Ok(())
    }

    /// The layers on which a version is complete.
    fn layers_with(&self, version: u64) -> impl Iterator<Item = usize> + use<> {
        let progress = self.core.state().versions.get(&version).cloned();
        let layers = progress.map_or_else(Vec::new, |progress| progress.layers);
        layers.into_iter().enumerate().filter_map(|(layer, it)| matches!(it, Some(Ok(()))).then_some(layer))
    }

    /// Whether a layer has this version, with packs whose lengths, headers and indexes match its
    /// manifest. With `is_same`, its manifest must list the same packs.
    fn opens(&self, layer: usize, manifest: &Manifest, is_same: bool) -> bool {
        let catalog = Catalog::new(Arc::clone(self.store.shared.shelves[layer].files()));
        let there = catalog.manifest(&self.core.name, self.core.rank, manifest.version).ok().flatten();
        let there = there.filter(|it| it.run == manifest.run && (!is_same || it.packs == manifest.packs));
        let opened = there.map(|there| catalog.reader(&there));
        if let Some(Err(error)) = &opened {
            tracing::warn!(session = self.core.name, %error, "a copy of a version is damaged; the next save is a full one");
        }
        opened.is_some_and(|opened| opened.is_ok())
    }

    /// Makes the next version build upon this one, if all layers have it undamaged: sets the chain,
    /// and the hashes that blocks of these regions are compared with.
    fn build_upon<'a>(
        &mut self,
        reader: &Reader,
        names: impl Iterator<Item = &'a str>,
        is_damaged: bool,
    ) -> Result<()> {
        let manifest = reader.manifest();
        let layers = self.store.shared.shelves.len();
        // After a crash, one layer may have merged packs, and another one the packs that were
        // merged.
        let is_everywhere = !is_damaged
            && self.layers_with(manifest.version).count() == layers
            && (0..layers).all(|layer| self.opens(layer, manifest, true));
        let settings = &self.store.shared.settings;
        let chain = if is_everywhere && settings.is_incremental { chain_of(reader) } else { Vec::new() };
        self.core.content().reset();
        let own = if chain.is_empty() { [].iter() } else { manifest.packs.iter() };
        let packs = own.filter(|pack| pack.id.rank == self.core.rank).map(|pack| pack.id.number).collect();
        let based = Event::Based { version: manifest.version, packs };
        let _ = self.store.committer.send(Note::Event(Arc::clone(&self.core), based));
        if chain.is_empty() {
            return Ok(());
        }
        let mut content = self.core.content();
        content.chain = chain;
        for name in names {
            let Some(region) = reader.region(name) else { continue };
            let mut known = RegionContent::new(region);
            let mut is_same_kind = region.hash_kind == settings.hash;
            for (block, kind, place) in reader.places(name)? {
                is_same_kind &= kind == settings.hash;
                known.set(block, place.hash);
            }
            if is_same_kind {
                content.regions.insert(name.to_owned(), Arc::new(known));
            }
        }
        Ok(())
    }

    /// Starts to track the restored regions, so that the restore itself does not count as a change.
    pub(super) fn watch_parts(&mut self, parts: &[PartMut<'_>]) {
        for part in parts.iter().filter(|_| self.store.shared.settings.is_incremental) {
            self.tracker.changed(part.name, part.bytes);
        }
    }
}

/// Whether some of these regions are parts of global arrays, which can be put together.
fn has_boxes(manifest: &Manifest, parts: &[PartMut<'_>]) -> bool {
    let is_boxed = |region: &ManifestRegion| region.shape.global().is_some();
    let is_asked = |region: &&ManifestRegion| parts.iter().any(|part| part.name == region.name);
    manifest.regions.iter().filter(is_asked).any(is_boxed)
}

/// The packs of a version as a chain.
fn chain_of(reader: &Reader) -> Vec<Link> {
    let packs = &reader.manifest().packs;
    let borrows: Vec<_> = packs.iter().filter(|pack| pack.is_borrowed).copied().collect();
    let link = |pack: &ManifestPack| {
        // Borrowed packs are needed as long as any pack of the chain is.
        let generation = reader.generation(pack.id).unwrap_or(reader.manifest().version);
        Link { pack: *pack, key: None, generation, borrows: borrows.clone() }
    };
    packs.iter().filter(|pack| !pack.is_borrowed).map(link).collect()
}

/// Reads a version into these regions.
fn fill(reader: &Reader, parts: &mut [PartMut<'_>]) -> outcrop_catalog::Result<()> {
    reader.read_regions(parts.iter_mut().map(|part| (part.name, &mut *part.bytes)), &|_| {})
}
