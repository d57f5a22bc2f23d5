//! Removes versions, and files that nobody needs any more.

use std::{collections::BTreeSet, io};

use outcrop_format::{LOCK_NAME, PackId, rank_name};
use outcrop_layers::files::{FileLock, Files};

use crate::{
    Catalog, Error, Result,
    catalog::{file_bytes, grouped},
    listing::Listing,
    pack::file_name,
};

/// What is to be removed from a session.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Removal {
    /// The versions whose manifests are all removed.
    pub versions: Vec<u64>,
    /// The names of the manifests.
    pub manifests: Vec<String>,
    /// The packs that no remaining manifest lists.
    pub packs: Vec<String>,
    /// Files that were being written when their program ended.
    pub drafts: Vec<String>,
    /// The total length of these packs.
    pub bytes: u64,
}

impl Removal {
    /// Plans the removal of these versions, and of what crashed programs have left: drafts, packs
    /// that no manifest lists, and incomplete versions below the newest complete one. Fails if a
    /// manifest cannot be read or the directory of a rank is missing, because then the needed packs
    /// are not known.
    ///
    /// The plan is valid only while nothing writes to the session: see [`lock_session`].
    pub fn plan(catalog: &Catalog, session: &str, dropped: &[u64]) -> Result<Self> {
        let files = catalog.files();
        let Listing { manifests, packs, drafts, ranks, .. } = catalog.listing(session)?;
        let mut named = Vec::new();
        for listed in &manifests {
            match &listed.manifest {
                Ok(manifest) => named.push((listed.version, listed.name.clone(), manifest.clone())),
                Err(error) => {
                    let path = format!("{}/{}", files.location(), listed.name);
                    let Error::Damaged { reason, .. } = &**error else { return Err(error.again()) };
                    let reason = format!(
                        "{reason}; nothing was removed, as it is not known which packs it needs: restore the file from another \
                         layer, or remove it by hand to give this version up"
                    );
                    return Err(Error::Damaged { path, reason });
                }
            }
        }
        let count = named.iter().map(|(_, _, manifest)| manifest.ranks).max().unwrap_or(0);
        if let Some(missing) = (0..count).find(|rank| !ranks.contains(rank)) {
            let reason = "it is missing; nothing was removed, as its versions may need packs of other ranks: make \
                          the directory available";
            let path = format!("{}/{session}/{}", files.location(), rank_name(missing));
            let source = io::Error::new(io::ErrorKind::NotFound, reason);
            return Err(Error::Storage { attempt: "read", path, source });
        }
        let versions = grouped(manifests);
        let complete: BTreeSet<_> =
            versions.iter().filter(|group| group.is_complete()).map(|group| group.version).collect();
        let is_left_over = |version: &u64| !complete.contains(version) && complete.last() > Some(version);
        let is_gone = |version: &u64| dropped.contains(version) || is_left_over(version);
        let gone: BTreeSet<_> = versions.iter().map(|group| group.version).filter(is_gone).collect();
        let mut removal = Self { versions: gone.iter().copied().collect(), drafts, ..Self::default() };
        let mut needed: BTreeSet<PackId> = BTreeSet::new();
        for (version, name, manifest) in named {
            match gone.contains(&version) {
                true => removal.manifests.push(name),
                false => needed.extend(manifest.packs.iter().map(|pack| pack.id)),
            }
        }
        for id in packs.into_iter().filter(|id| !needed.contains(id)) {
            let name = file_name(session, id);
            removal.bytes = removal.bytes.saturating_add(file_bytes(files, &name)?);
            removal.packs.push(name);
        }
        Ok(removal)
    }

    /// Whether there is nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty() && self.packs.is_empty() && self.drafts.is_empty()
    }

    /// Removes the files. Manifests are removed durably before their packs, so after a crash in
    /// between all remaining versions have their packs.
    pub fn carry_out(&self, files: &dyn Files) -> Result<()> {
        remove_all(files, self.manifests.iter())?;
        remove_all(files, self.packs.iter().chain(&self.drafts))
    }
}

/// Removes files durably.
fn remove_all<'a>(files: &dyn Files, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let path = |name: &str| format!("{}/{name}", files.location());
    let mut dirs = BTreeSet::new();
    for name in names {
        files.remove(name).map_err(|source| Error::Storage { attempt: "remove", path: path(name), source })?;
        dirs.extend(name.rsplit_once('/').map(|(dir, _)| dir));
    }
    for dir in dirs {
        files.sync_dir(dir).map_err(|source| Error::Storage { attempt: "sync", path: path(dir), source })?;
    }
    Ok(())
}

/// Locks all ranks of a session, so that no program writes to it until the locks are dropped. Fails
/// if a program holds one of them.
pub fn lock_session(catalog: &Catalog, session: &str) -> Result<Vec<FileLock>> {
    let files = catalog.files();
    let mut locks = Vec::new();
    for rank in catalog.listing(session)?.ranks {
        let name = format!("{session}/{}/{LOCK_NAME}", rank_name(rank));
        let lock = files.lock(&name).map_err(|source| {
            let path = format!("{}/{name}", files.location());
            Error::Storage { attempt: "lock", path, source }
        })?;
        let held = || Error::Held { location: files.location(), session: session.to_owned(), rank };
        locks.push(lock.ok_or_else(held)?);
    }
    Ok(locks)
}
