//! Inspects the directories from outside, as the command line does. Everything that must be there
//! is there, nothing has other bytes than were saved, and verification reports exactly what was
//! damaged.

use std::collections::BTreeSet;

use outcrop::catalog::{Catalog, FindingKind, Reader, verify};
use outcrop_format::{rank_name, version_name};

use super::{
    Checked, SESSION,
    memory::{STAMP, compare},
    model::Fate,
    world::World,
};

impl World {
    /// Inspects everything. The session is closed.
    pub(super) fn inspect(&self) -> Checked {
        let promised = |layer: usize| {
            let attempts = self.model.attempts.iter();
            attempts
                .filter(move |(stamp, it)| it.on[layer].fate == Fate::Promised && self.model.is_mounted(**stamp, layer))
        };
        for layer in 0..self.case.layers {
            for (&stamp, _) in promised(layer) {
                self.inspect_version(stamp, layer)?;
            }
            for rank in 0..self.case.ranks {
                self.inspect_rank(layer, rank)?;
            }
            self.verify(layer)?;
        }
        Ok(())
    }

    /// Checks that a version that was reported as durable on a layer is there.
    pub(super) fn inspect_version(&self, stamp: u64, layer: usize) -> Checked {
        let attempt = &self.model.attempts[&stamp];
        if attempt.on[layer].fate != Fate::Promised {
            return Ok(());
        }
        for rank in 0..self.case.ranks {
            let version = attempt.version;
            let what = format!("version {version} was reported on layer {layer}, and rank {rank}");
            if self.disks.is_manifest_damaged(&self.model, layer, rank, version) {
                continue;
            }
            let Some(manifest) = self.disks.manifest(layer, rank, version) else {
                let is_there = self.disks.rank_dir(layer, rank).join(version_name(version)).exists();
                return Err(format!("{what} has {} manifest", if is_there { "an unreadable" } else { "no" }));
            };
            if self.disks.is_tainted(&self.model, layer, rank, version) {
                continue;
            }
            let catalog = Catalog::open(&self.disks.layer(layer, rank)).map_err(|error| error.to_string())?;
            let reader = catalog.reader(&manifest.into()).map_err(|error| format!("{what} cannot read it: {error}"))?;
            let found = read_stamp(&reader).map_err(|error| format!("{what} cannot read it: {error}"))?;
            if found != stamp {
                return Err(format!("{what} has attempt {found} and not {stamp}"));
            }
            self.compare(&reader, rank, stamp).map_err(|error| format!("{what}: {error}"))?;
        }
        Ok(())
    }

    /// Checks that a version is what was saved.
    fn compare(&self, reader: &Reader, rank: u32, stamp: u64) -> Checked {
        let content = &self.model.attempts[&stamp].contents[rank as usize];
        let names: BTreeSet<&str> = reader.manifest().regions.iter().map(|region| region.name.as_str()).collect();
        if !names.iter().copied().eq(content.keys().map(String::as_str)) {
            return Err(format!("it has regions {names:?}"));
        }
        for (name, saved) in content {
            let bytes = reader.read_region(name).map_err(|error| error.to_string())?;
            compare(name, &bytes, saved, 0)?;
        }
        Ok(())
    }

    /// Checks that everything that a rank has can be read as it was saved, or is damaged.
    fn inspect_rank(&self, layer: usize, rank: u32) -> Checked {
        let Ok(catalog) = Catalog::open(&self.disks.layer(layer, rank)) else { return Ok(()) };
        for version in self.disks.versions(layer, rank) {
            let Some(manifest) = self.disks.manifest(layer, rank, version) else { continue };
            let Ok(reader) = catalog.reader(&manifest.into()) else { continue };
            let Ok(stamp) = read_stamp(&reader) else { continue };
            let attempt = self.model.find(stamp, version).map_err(|error| format!("layer {layer}: {error}"))?;
            if attempt.on[layer].fate == Fate::Gone && self.model.is_mounted(stamp, layer) {
                return Err(format!("version {version} is back on layer {layer}"));
            }
            for (name, saved) in &attempt.contents[rank as usize] {
                let Ok(bytes) = reader.read_region(name) else { continue };
                let what = || format!("version {version} of rank {rank} on layer {layer}");
                compare(name, &bytes, saved, 0).map_err(|error| format!("{}: {error}", what()))?;
            }
        }
        Ok(())
    }

    /// Checks that verification finds what was damaged, and nothing else.
    fn verify(&self, layer: usize) -> Checked {
        // Packs in directories that were moved are missing, and files that a rank has written to
        // the directory of another one are in the wrong place.
        if self.case.ranks > 1 && self.moved.contains(&layer) {
            return Ok(());
        }
        let roots = if self.case.is_local { 0..self.case.ranks } else { 0..1 };
        for rank in roots {
            let Ok(catalog) = Catalog::open(&self.disks.layer(layer, rank)) else { continue };
            let verified = verify(&catalog, None, None, &|_, _| {}).map_err(|error| format!("verify: {error}"))?;
            let of_kind = |kind| verified.findings.iter().filter(move |finding| finding.kind == kind);
            let found: BTreeSet<String> = of_kind(FindingKind::Damage).map(|finding| finding.file.clone()).collect();
            let ranks = if self.case.is_local { rank..rank + 1 } else { 0..self.case.ranks };
            let damaged: BTreeSet<String> = ranks.flat_map(|rank| self.needed_damaged(layer, rank)).collect();
            // If a rank was killed, a pack that others borrow from it may never have been written.
            let is_whole =
                |version: u64| (0..self.case.ranks).all(|rank| self.disks.manifest(layer, rank, version).is_some());
            let is_partial = |file: &String| {
                let harms =
                    of_kind(FindingKind::Damage).filter(|finding| finding.file == *file).flat_map(|it| &it.harms);
                self.has_shared && !harms.into_iter().any(|harm| is_whole(harm.version))
            };
            let more: Vec<&String> = found.difference(&damaged).filter(|file| !is_partial(file)).collect();
            if !more.is_empty() || !damaged.is_subset(&found) {
                return Err(format!("layer {layer}: verify finds {found:?}, and {damaged:?} were damaged"));
            }
            let leftover = of_kind(FindingKind::Garbage).chain(of_kind(FindingKind::Foreign)).next();
            if let Some(finding) = leftover.filter(|_| self.is_calm && !self.has_shared) {
                return Err(format!("layer {layer}: something is left over: {finding:?}"));
            }
        }
        Ok(())
    }

    /// Damaged manifests of a rank, and damaged packs that some version needs.
    fn needed_damaged(&self, layer: usize, rank: u32) -> Vec<String> {
        let ranks = if self.case.is_local { rank..rank + 1 } else { 0..self.case.ranks };
        let manifests = ranks.flat_map(|of| {
            let versions = self.disks.versions(layer, of);
            versions.into_iter().filter_map(move |version| self.disks.manifest(layer, of, version))
        });
        let listed: BTreeSet<String> = manifests
            .flat_map(|manifest| manifest.packs)
            .filter(|pack| pack.id.rank == rank)
            .map(|pack| outcrop_format::pack_name(pack.id.number))
            .collect();
        let is_needed = |name: &String| outcrop_format::parse_pack_name(name).is_none() || listed.contains(name);
        let names = self.disks.damaged_files(&self.model, layer, rank).into_iter().filter(is_needed);
        names.map(|name| format!("{SESSION}/{}/{name}", rank_name(rank))).collect()
    }
}

/// The stamp of a version.
fn read_stamp(reader: &Reader) -> Result<u64, String> {
    let bytes = reader.read_region(STAMP).map_err(|error| error.to_string())?;
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| "a stamp has 8 bytes".to_owned())
}
