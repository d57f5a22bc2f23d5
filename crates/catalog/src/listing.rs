//! Lists all files in the directory of a session.

use std::{io, sync::Arc};

use outcrop_format::{
    Error as FormatError, LOCK_NAME, MANIFEST_BYTES_MAX, MARK_BYTES_MAX, MARK_NAME, Manifest, Mark, PackId,
    parse_draft_name, parse_pack_name, parse_rank_name, parse_version_name, rank_name, version_name,
};
use outcrop_layers::files::{Files, read_whole};

use crate::{Error, Result, pack::unreadable};

/// The files of a session, by kind.
#[derive(Default)]
pub(crate) struct Listing {
    /// The ranks that have a directory, ascending.
    pub(crate) ranks: Vec<u32>,
    pub(crate) manifests: Vec<Listed>,
    pub(crate) packs: Vec<PackId>,
    /// The names of files that are being written, or were when their program ended.
    pub(crate) drafts: Vec<String>,
    /// The names of files that do not belong to a store.
    pub(crate) foreign: Vec<String>,
}

/// A file with the name of a manifest.
pub(crate) struct Listed {
    pub(crate) version: u64,
    pub(crate) rank: u32,
    pub(crate) name: String,
    /// The manifest, if its content matches its name.
    pub(crate) manifest: std::result::Result<Arc<Manifest>, Arc<Error>>,
}

impl Listing {
    /// Lists all files, and reads all manifests.
    pub(crate) fn read(files: &dyn Files, session: &str) -> Result<Self> {
        let mut listing = Self::default();
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

    /// Lists the files of one rank, and reads its manifests.
    pub(crate) fn of_rank(files: &dyn Files, session: &str, rank: u32) -> Result<Self> {
        let mut listing = Self::default();
        listing.add_rank(files, session, rank)?;
        Ok(listing)
    }

    fn add_rank(&mut self, files: &dyn Files, session: &str, rank: u32) -> Result<()> {
        let dir = format!("{session}/{}", rank_name(rank));
        let names = match files.list(&dir) {
            Ok(names) => names,
            Err(error) if is_no_directory(&error) => {
                self.foreign.push(dir);
                return Ok(());
            }
            Err(source) => return Err(Error::listing(files, &dir, source)),
        };
        self.ranks.push(rank);
        for name in names {
            let path = format!("{dir}/{name}");
            if let Some(version) = parse_version_name(&name) {
                let manifest = read_one(files, session, rank, version).map_err(Arc::new).transpose();
                self.manifests.extend(manifest.map(|manifest| Listed { version, rank, name: path, manifest }));
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
    files.list(dir).map_err(|source| Error::listing(files, dir, source))
}

/// Whether this name is a file or a link, or does not exist any more, and so is not part of a
/// store.
pub(crate) fn is_no_directory(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotADirectory, NotFound};
    matches!(error.kind(), InvalidData | NotADirectory | NotFound)
}

/// The manifest of one rank; `None` if it does not exist, or does not exist any more.
pub(crate) fn read_one(files: &dyn Files, session: &str, rank: u32, version: u64) -> Result<Option<Arc<Manifest>>> {
    let name = format!("{session}/{}/{}", rank_name(rank), version_name(version));
    let path = format!("{}/{name}", files.location());
    let manifest = match read_whole(files, &name, MANIFEST_BYTES_MAX) {
        Ok(bytes) => {
            let damaged = |error: FormatError| Error::Damaged { path: path.clone(), reason: error.to_string() };
            Manifest::decode(&bytes).map_err(damaged)?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, error)),
    };
    if (manifest.session.as_str(), manifest.version, manifest.rank) == (session, version, rank) {
        return Ok(Some(Arc::new(manifest)));
    }
    Err(Error::Damaged { path, reason: format!("it is the manifest of {manifest}, and lies in the wrong place") })
}

/// What happened to a manifest since it was read: a running program may have replaced or removed
/// it.
pub(crate) enum Now {
    Same,
    /// It lists other packs.
    Replaced(Arc<Manifest>),
    /// It was removed, or belongs to another run.
    Gone,
}

/// Reads a manifest again.
pub(crate) fn read_again(files: &dyn Files, manifest: &Manifest) -> Result<Now> {
    let Manifest { session, version, rank, .. } = manifest;
    Ok(match read_one(files, session, *rank, *version)? {
        Some(now) if now.run != manifest.run => Now::Gone,
        Some(now) if *now != *manifest => Now::Replaced(now),
        Some(_) => Now::Same,
        None => Now::Gone,
    })
}

/// The mark of a rank, which lists the runs that have used its directory. `None` if it has no mark.
pub(crate) fn read_mark(files: &dyn Files, session: &str, rank: u32) -> Result<Option<Mark>> {
    let name = format!("{session}/{}/{MARK_NAME}", rank_name(rank));
    let path = format!("{}/{name}", files.location());
    match read_whole(files, &name, MARK_BYTES_MAX as u64) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, error)),
        Ok(bytes) => match Mark::decode(&bytes) {
            Ok(mark) => Ok(Some(mark)),
            Err(error @ FormatError::Format { .. }) => Err(Error::Newer { path, reason: error.to_string() }),
            Err(error) => Err(Error::Damaged { path, reason: error.to_string() }),
        },
    }
}
