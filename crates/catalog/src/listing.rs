//! Everything that there is in the directory of a session.

use std::{io, sync::Arc};

use outcrop_format::{
    LOCK_NAME, MANIFEST_BYTES_MAX, MARK_NAME, Manifest, PackId, parse_draft_name, parse_pack_name, parse_rank_name,
    parse_version_name, rank_name, version_name,
};
use outcrop_layers::files::{Files, read_whole};

use crate::{Error, Result, pack::unreadable};

/// The files of a session, sorted by what they are.
pub(crate) struct Listing {
    /// The ranks that have a directory, ascending.
    pub(crate) ranks: Vec<u32>,
    pub(crate) manifests: Vec<Listed>,
    pub(crate) packs: Vec<PackId>,
    /// The names of files that were being written when their program ended, or are being written
    /// now.
    pub(crate) drafts: Vec<String>,
    /// The names of what is not from a store.
    pub(crate) foreign: Vec<String>,
}

/// A file with the name of a manifest.
pub(crate) struct Listed {
    pub(crate) version: u64,
    pub(crate) rank: u32,
    pub(crate) name: String,
    /// What is in it, if that is the manifest that its name promises.
    pub(crate) manifest: std::result::Result<Arc<Manifest>, Arc<Error>>,
}

impl Listing {
    /// Looks at everything, and reads all manifests.
    pub(crate) fn read(files: &dyn Files, session: &str) -> Result<Self> {
        let mut listing = Self {
            ranks: Vec::new(),
            manifests: Vec::new(),
            packs: Vec::new(),
            drafts: Vec::new(),
            foreign: Vec::new(),
        };
        for name in list(files, session)? {
            match parse_rank_name(&name) {
                Some(rank) => listing.add_rank(files, session, rank)?,
                None => listing.foreign.push(format!("{session}/{name}")),
            }
        }
        listing.ranks.sort_unstable();
        listing.manifests.sort_unstable_by_key(|listed| (listed.version, listed.rank));
        listing.packs.sort_unstable();
        listing.drafts.sort_unstable();
        listing.foreign.sort_unstable();
        Ok(listing)
    }

    fn add_rank(&mut self, files: &dyn Files, session: &str, rank: u32) -> Result<()> {
        let dir = format!("{session}/{}", rank_name(rank));
        let names = match files.list(&dir) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                self.foreign.push(dir);
                return Ok(());
            }
            Err(source) => {
                let path = format!("{}/{dir}", files.location());
                return Err(Error::Storage { attempt: "list", path, source });
            }
        };
        self.ranks.push(rank);
        for name in names {
            let path = format!("{dir}/{name}");
            if let Some(version) = parse_version_name(&name) {
                self.manifests.extend(read_manifest(files, session, rank, version, path));
            } else if let Some(number) = parse_pack_name(&name) {
                self.packs.push(PackId { rank, number });
            } else if parse_draft_name(&name).is_some() {
                self.drafts.push(path);
            } else if name != LOCK_NAME && name != MARK_NAME {
                self.foreign.push(path);
            }
        }
        Ok(())
    }
}

/// The names in a directory of a store.
pub(crate) fn list(files: &dyn Files, dir: &str) -> Result<Vec<String>> {
    files.list(dir).map_err(|source| {
        let path = format!("{}/{dir}", files.location());
        Error::Storage { attempt: "list", path, source }
    })
}

/// Reads a manifest; nothing if it is gone by now.
fn read_manifest(files: &dyn Files, session: &str, rank: u32, version: u64, name: String) -> Option<Listed> {
    let path = format!("{}/{name}", files.location());
    let decoded = match read_whole(files, &name, MANIFEST_BYTES_MAX) {
        Ok(bytes) => Manifest::decode(&bytes).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            return Some(Listed { version, rank, name, manifest: Err(Arc::new(unreadable(path, error))) });
        }
    };
    let manifest = decoded.and_then(|manifest| {
        match (manifest.session.as_str(), manifest.version, manifest.rank) == (session, version, rank) {
            true => Ok(Arc::new(manifest)),
            false => Err(format!("it is the manifest of {manifest}, and lies in the wrong place")),
        }
    });
    let manifest = manifest.map_err(|reason| Arc::new(Error::Damaged { path, reason }));
    Some(Listed { version, rank, name, manifest })
}

/// The manifest of one rank; nothing if there is none.
pub(crate) fn read_one(files: &dyn Files, session: &str, rank: u32, version: u64) -> Result<Option<Arc<Manifest>>> {
    let name = format!("{session}/{}/{}", rank_name(rank), version_name(version));
    match read_manifest(files, session, rank, version, name).map(|listed| listed.manifest) {
        None => Ok(None),
        Some(Ok(manifest)) => Ok(Some(manifest)),
        Some(Err(error)) => {
            let path = files.location();
            let reason = error.to_string();
            Err(Arc::into_inner(error).unwrap_or(Error::Damaged { path, reason }))
        }
    }
}

/// A manifest as it is now, if it can be read and belongs to the same run: whoever writes to the
/// session may have replaced or removed it.
pub(crate) fn read_again(files: &dyn Files, manifest: &Manifest) -> Option<Arc<Manifest>> {
    let Manifest { session, version, rank, .. } = manifest;
    let name = format!("{session}/{}/{}", rank_name(*rank), version_name(*version));
    let now = read_manifest(files, session, *rank, *version, name)?.manifest.ok()?;
    (now.run == manifest.run).then_some(now)
}
