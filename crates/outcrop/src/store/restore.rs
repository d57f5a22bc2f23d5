//! Back to a version: the newest that is whole on all ranks, from the fastest place that has it undamaged.

use std::{
    fmt,
    sync::{Arc, mpsc::Sender},
};

use outcrop_catalog::Reader;
use outcrop_format::{Hash, Manifest, ManifestPack, ManifestRegion, PAGE_BYTES, PackHeader, PackId};
use outcrop_layers::{Shelf, files::Files};

use super::{
    Session,
    chain::{Link, RegionContent},
    commit::Note,
    host::{HostFiles, path},
    recover,
    state::{Progress, SessionCore},
};
use crate::{Error, PartMut, Result};

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The version.
    pub version: u64,
    /// Where this rank had it from.
    pub layer: String,
    /// Newer versions that could not be used, and places that were passed over, the newest first.
    pub skipped: Vec<Skipped>,
}

/// A copy of a version that could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The version.
    pub version: u64,
    /// What is wrong with it, and where.
    pub reason: String,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} from {}", self.version, self.layer)?;
        match self.skipped.len() {
            0 => Ok(()),
            count => write!(f, " ({count} copies of newer ones, or nearer ones, were damaged)"),
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
pub struct SavedRegion {
    /// Its name.
    pub name: String,
    /// The name of what it is made of.
    pub element: String,
    /// The length of one element.
    pub element_bytes: usize,
    /// Its length.
    pub bytes: u64,
}

/// While it lives, no file of the session is removed: what a manifest lists when it is read is there until the end.
struct Reading {
    session: Arc<SessionCore>,
    committer: Sender<Note>,
}

impl Reading {
    fn begin(session: &Session) -> Self {
        session.core.set_reading(true);
        Self { session: Arc::clone(&session.core), committer: session.store.committer.clone() }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.session.set_reading(false);
        // A committer that has ended removes nothing.
        let _ = self.committer.send(Note::Read(Arc::clone(&self.session)));
    }
}

/// How a rank fared with a version.
const WHOLE: u8 = 0;
const DAMAGED: u8 = 1;
const REFUSED: u8 = 2;

impl Session {
    /// Restores the newest version that all ranks have, undamaged, into these regions; nothing if there is no version at all.
    /// Regions that the version has and that are not named are left out. With several ranks, all of them call it.
    ///
    /// A damaged copy is passed over for the next layer, and a version without a whole copy for the one before it; both are logged
    /// and named in the result. After an error the regions hold anything, unless it says that nothing was changed.
    pub fn restore_latest(&mut self, parts: &mut [PartMut<'_>]) -> Result<Option<Restored>> {
        let _reading = Reading::begin(self);
        let mut skipped = Vec::new();
        let candidates = self.restorable()?;
        for version in candidates.iter().rev() {
            if let Some(mut restored) = self.restore_together(*version, parts, &mut skipped)? {
                let newer = self.unreadable.iter().filter(|skipped| skipped.version >= *version);
                restored.skipped.splice(0..0, newer.cloned());
                return Ok(Some(restored));
            }
        }
        if candidates.is_empty() && self.unreadable.is_empty() {
            return Ok(None);
        }
        skipped.extend(self.unreadable.iter().cloned());
        Err(self.unusable(candidates.last().copied().unwrap_or_default(), &skipped))
    }

    /// Restores this version into these regions, as [`restore_latest`](Self::restore_latest) does.
    pub fn restore(&mut self, version: u64, parts: &mut [PartMut<'_>]) -> Result<Restored> {
        let _reading = Reading::begin(self);
        if !self.restorable()?.contains(&version) {
            return Err(Error::VersionMissing { session: self.core.name.clone(), version });
        }
        let mut skipped = Vec::new();
        match self.restore_together(version, parts, &mut skipped)? {
            Some(restored) => Ok(restored),
            None => Err(self.unusable(version, &skipped)),
        }
    }

    /// Copies regions of a version to where one wants to look at them. Unlike [`restore`](Self::restore) it concerns this rank alone,
    /// and changes are still those against the newest version.
    pub fn read(&mut self, version: u64, parts: &mut [PartMut<'_>]) -> Result<()> {
        let _reading = Reading::begin(self);
        self.core.wait_packed(version.saturating_add(1));
        let mut skipped = Vec::new();
        if !self.core.state().versions.contains_key(&version) {
            return Err(Error::VersionMissing { session: self.core.name.clone(), version });
        }
        match self.restore_here(version, parts, &mut skipped)? {
            Some(_) => Ok(()),
            None => Err(self.unusable(version, &skipped)),
        }
    }

    /// Why a version cannot be read, with what was wrong at each place.
    fn unusable(&self, version: u64, skipped: &[Skipped]) -> Error {
        let session = self.core.name.clone();
        if skipped.is_empty() {
            return Error::VersionMissing { session, version };
        }
        let detail: Vec<_> = skipped.iter().map(ToString::to_string).collect();
        Error::NothingWhole { session, detail: detail.join("; ") }
    }

    /// The newest version that all ranks have, if there is one. With several ranks, all of them call it.
    pub fn latest(&self) -> Result<Option<u64>> {
        Ok(self.restorable()?.last().copied())
    }

    /// What this rank has in a version: what must be known to make room for it.
    pub fn regions(&mut self, version: u64) -> Result<Vec<SavedRegion>> {
        self.core.wait_packed(version.saturating_add(1));
        let mut skipped = Vec::new();
        let Some((_, manifest, _)) = self.places(version, &mut skipped).into_iter().next() else {
            return Err(self.unusable(version, &skipped));
        };
        let saved = |region: &ManifestRegion| SavedRegion {
            name: region.name.clone(),
            element: region.element.clone(),
            element_bytes: region.element_bytes as usize,
            bytes: region.blocks.bytes(),
        };
        Ok(manifest.regions.iter().map(saved).collect())
    }

    /// The versions that all ranks have somewhere, in ascending order. With several ranks, all of them call it.
    pub fn restorable(&self) -> Result<Vec<u64>> {
        self.core.wait_packed(u64::MAX);
        let is_there = |progress: &Progress| {
            progress.manifest.is_some() || progress.layers.iter().any(|layer| matches!(layer, Some(Ok(()))))
        };
        let state = self.core.state();
        let mine: Vec<u64> =
            state.versions.iter().filter(|(_, progress)| is_there(progress)).map(|(version, _)| *version).collect();
        drop(state);
        let message: Vec<u8> = mine.iter().flat_map(|version| version.to_le_bytes()).collect();
        let everybody = self.store.shared.ranks.gather(&format!("candidates {}", self.core.name), &message)?;
        let has = |message: &Vec<u8>, version: u64| message.chunks(8).any(|chunk| chunk == version.to_le_bytes());
        Ok(mine.into_iter().filter(|version| everybody.iter().all(|message| has(message, *version))).collect())
    }

    /// Restores a version if all ranks can; nothing if it is damaged on one of them.
    fn restore_together(
        &mut self,
        version: u64,
        parts: &mut [PartMut<'_>],
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<Restored>> {
        let attempt = self.restore_here(version, parts, skipped);
        let verdict = match &attempt {
            Ok(Some(_)) => WHOLE,
            Ok(None) => DAMAGED,
            Err(_) => REFUSED,
        };
        let everybody = self.store.shared.ranks.gather(&format!("restore {}", self.core.name), &[verdict])?;
        let Some((layer, reader)) = attempt? else { return Ok(None) };
        let of_others = |verdict| everybody.iter().position(|other| other == &[verdict]);
        if let Some(rank) = of_others(REFUSED) {
            let detail =
                format!("rank {rank} cannot restore version {version}, and says why; the other ranks stop as well");
            return Err(Error::Ranks { detail });
        }
        if let Some(rank) = of_others(DAMAGED) {
            skipped.push(Skipped { version, reason: format!("it is damaged on rank {rank}") });
            return Ok(None);
        }
        self.go_on_from(&reader, parts)?;
        Ok(Some(Restored { version, layer, skipped: std::mem::take(skipped) }))
    }

    /// Restores a version from the fastest place that has it whole. Nothing if none has; an error if it does not fit.
    fn restore_here(
        &mut self,
        version: u64,
        parts: &mut [PartMut<'_>],
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<(String, Reader)>> {
        let known = skipped.len();
        let places = self.places(version, skipped);
        if places.is_empty() && skipped.len() == known {
            skipped.push(Skipped { version, reason: "no directory has it any more".to_owned() });
        }
        for (place, manifest, files) in places {
            self.check(&manifest, parts)?;
            match read(&*files, manifest, parts) {
                Ok(reader) => return Ok(Some((place, reader))),
                Err(error) => {
                    tracing::warn!(session = self.core.name, version, place, %error, "a copy of a version is damaged");
                    skipped.push(Skipped { version, reason: format!("{place}: {error}") });
                }
            }
        }
        Ok(None)
    }

    /// Where a version is, fastest first.
    fn places(&mut self, version: u64, skipped: &mut Vec<Skipped>) -> Vec<(String, Arc<Manifest>, Arc<dyn Files>)> {
        let mut places: Vec<(String, Arc<Manifest>, Arc<dyn Files>)> = Vec::new();
        let in_host = self.core.state().versions.get(&version).and_then(|progress| progress.manifest.clone());
        if let Some(manifest) = in_host {
            let chain = self.core.content().chain.clone();
            let files = HostFiles::new(&mut self.handle, &self.core, &chain, Vec::new());
            if manifest.packs.iter().all(|pack| files.has(pack.id, &self.core)) {
                places.push(("host memory".to_owned(), manifest, Arc::new(files)));
            }
        }
        if places.is_empty() {
            // What host memory has given up is on some directory, and the rest of the version comes there too.
            self.core.wait_here(version);
        }
        let progress = self.core.state().versions.get(&version).cloned().unwrap_or_default();
        let is_complete = |layer: &usize| matches!(progress.layers.get(*layer), Some(Some(Ok(()))));
        let (complete, partial): (Vec<_>, Vec<_>) = (0..self.store.shared.shelves.len()).partition(is_complete);
        // Where not all ranks have it, packs that it borrows from others may be missing too.
        for layer in complete.into_iter().chain(partial) {
            let files = self.store.shared.shelves[layer].files();
            match recover::manifest(&**files, &self.core, version) {
                Ok(Some(manifest)) => places.push((files.location(), Arc::new(manifest), Arc::clone(files))),
                Ok(None) => {}
                Err(error) => {
                    let reason = format!("{}: {error}", files.location());
                    tracing::warn!(session = self.core.name, version, reason, "a manifest cannot be read");
                    skipped.push(Skipped { version, reason });
                }
            }
        }
        places
    }

    /// Whether a version fits these regions.
    fn check(&self, manifest: &Manifest, parts: &[PartMut<'_>]) -> Result<()> {
        let mismatch =
            |problem| Error::Mismatch { session: self.core.name.clone(), version: manifest.version, problem };
        for part in parts {
            let Some(region) = manifest.region(part.name) else {
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
        }
        Ok(())
    }

    /// From here on changes are those against what was restored, if all layers have that.
    fn go_on_from(&mut self, reader: &Reader, parts: &[PartMut<'_>]) -> Result<()> {
        let manifest = reader.manifest();
        let state = self.core.state();
        let progress = state.versions.get(&manifest.version).cloned().unwrap_or_default();
        drop(state);
        // After a crash one layer may have merged packs and another one those that they were made from.
        let is_same = |shelf: &Arc<Shelf>| {
            let there = recover::manifest(&**shelf.files(), &self.core, manifest.version);
            there.is_ok_and(|there| there.is_some_and(|there| there.packs == manifest.packs))
        };
        let is_everywhere = progress.layers.iter().all(|layer| matches!(layer, Some(Ok(()))))
            && self.store.shared.shelves.iter().all(is_same);
        let is_incremental = self.store.shared.settings.is_incremental;
        let mut content = self.core.content();
        // What the next version builds upon anyway, and what may still be on its way.
        if !content.is_broken && !content.chain.is_empty() && content.packs() == manifest.packs {
            drop(content);
            self.watch_parts(parts);
            return Ok(());
        }
        content.reset();
        drop(content);
        self.shadows_from(parts);
        let chain = if is_everywhere && is_incremental { self.chain_of(manifest) } else { Vec::new() };
        if chain.is_empty() {
            return Ok(());
        }
        let settings = &self.store.shared.settings;
        let mut content = self.core.content();
        content.chain = chain;
        for part in parts {
            let Some(region) = manifest.region(part.name) else { continue };
            let mut hashes = vec![Hash::default(); region.blocks.count() as usize];
            let mut is_same_kind = region.hash_kind == settings.hash;
            for (block, kind, place) in reader.places(part.name)? {
                is_same_kind &= kind == settings.hash;
                hashes[block as usize] = place.hash;
            }
            if is_same_kind {
                let known = RegionContent { blocks: region.blocks, kind: settings.hash, hashes };
                content.regions.insert(part.name.to_owned(), known);
            }
        }
        drop(content);
        self.watch_parts(parts);
        Ok(())
    }

    /// Begins to watch what was restored: what has changed until now is that.
    fn watch_parts(&mut self, parts: &[PartMut<'_>]) {
        for part in parts.iter().filter(|_| self.store.shared.settings.is_incremental) {
            self.tracker.changed(part.name, part.bytes);
        }
    }

    /// The packs of a version, to build upon; nothing if that cannot be done, which makes the next version longer, and is no
    /// reason for a restore to fail on one rank alone.
    fn chain_of(&self, manifest: &Manifest) -> Vec<Link> {
        let borrows: Vec<_> = manifest.packs.iter().filter(|pack| pack.is_borrowed).copied().collect();
        let link = |pack: &ManifestPack| {
            let generation = self.generation(pack.id)?;
            // Whatever is borrowed is needed as long as any of them is.
            Ok(Link { pack: *pack, key: None, generation, borrows: borrows.clone() })
        };
        let chain: Result<Vec<Link>> = manifest.packs.iter().filter(|pack| !pack.is_borrowed).map(link).collect();
        chain.unwrap_or_else(|error| {
            tracing::warn!(session = self.core.name, %error, "the next version is saved in full");
            Vec::new()
        })
    }

    /// For which version a pack was made.
    fn generation(&self, id: PackId) -> Result<u64> {
        let name = path(&self.core, id);
        let mut page = [0; PAGE_BYTES];
        let shelf = &self.store.shared.shelves[0];
        let read = shelf.files().open(&name).and_then(|file| file.read_at(0, &mut page));
        read.map_err(|source| super::commit::failure(&**shelf.files(), "read a pack", source))?;
        Ok(PackHeader::decode(&page)?.origin().version)
    }
}

/// Puts a version into these regions.
fn read(files: &dyn Files, manifest: Arc<Manifest>, parts: &mut [PartMut<'_>]) -> outcrop_catalog::Result<Reader> {
    let reader = Reader::open(files, manifest)?;
    for part in parts {
        reader.read(part.name, 0, part.bytes, &|_| {})?;
    }
    Ok(reader)
}
