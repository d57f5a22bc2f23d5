//! The catalog: sessions and versions of a directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::Arc,
};

use outcrop_format::{Manifest, Mark, RunId, check_session_name, parse_rank_name, parse_version_name, rank_name};
use outcrop_layers::files::{DiskFiles, Files};

use crate::{
    Error, Reader, Result,
    listing::{Listed, Listing, Now, is_no_directory, list, read_again, read_mark, read_one},
    open::OpenFiles,
    pack::{KnownPacks, file_name, is_damage, unreadable},
};

/// The sessions and versions in a directory of a store.
///
/// It has few files open at a time, whatever their number.
#[derive(Clone)]
pub struct Catalog {
    files: Arc<dyn Files>,
}

/// The sessions of a directory.
#[derive(Debug, Default)]
pub struct Sessions {
    /// Their names, in ascending order.
    pub names: Vec<String>,
    /// Why some directories, which might be sessions, could not be read.
    pub unread: Vec<Error>,
}

/// What one rank has of a session in one directory.
#[derive(Debug, Default)]
pub struct Holding {
    /// Its manifests, by version, or why one cannot be read.
    pub manifests: BTreeMap<u64, std::result::Result<Arc<Manifest>, Arc<Error>>>,
    /// The lengths of its packs, by number.
    pub packs: BTreeMap<u64, u64>,
    /// The names of files that were not finished.
    pub drafts: Vec<String>,
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").field("location", &self.files().location()).finish_non_exhaustive()
    }
}

impl Catalog {
    /// The catalog of an existing directory.
    pub fn open(path: &Path) -> Result<Self> {
        let files = DiskFiles::open(path).map_err(|source| Error::Open { path: path.display().to_string(), source })?;
        Ok(Self::new(Arc::new(files)))
    }

    /// The catalog of these files.
    pub fn new(files: Arc<dyn Files>) -> Self {
        Self { files }
    }

    /// The files that it reads.
    pub fn files(&self) -> &dyn Files {
        &*self.files
    }

    /// The names of the sessions. Fails if a directory that might be a session cannot be read.
    pub fn sessions(&self) -> Result<Vec<String>> {
        let Sessions { names, unread } = self.look()?;
        unread.into_iter().next().map_or(Ok(names), Err)
    }

    /// The sessions, and the errors of directories that could not be read. Other files in the
    /// directory are ignored.
    pub fn look(&self) -> Result<Sessions> {
        let mut sessions = Sessions::default();
        for name in list(self.files(), "")? {
            match self.is_session(&name) {
                Ok(true) => sessions.names.push(name),
                Ok(false) => {}
                Err(error) => sessions.unread.push(error),
            }
        }
        sessions.names.sort_unstable();
        Ok(sessions)
    }

    fn is_session(&self, name: &str) -> Result<bool> {
        if check_session_name(name).is_err() {
            return Ok(false);
        }
        match self.files().list(name) {
            Ok(names) => Ok(names.iter().any(|name| parse_rank_name(name).is_some())),
            Err(error) if is_no_directory(&error) => Ok(false),
            Err(error) => Err(Error::listing(self.files(), name, error)),
        }
    }

    /// What somebody who relies on a session should know of the place where it is.
    pub fn remarks(&self, session: &str) -> Vec<String> {
        self.files().remarks(&format!("{session}/{}", rank_name(0)))
    }

    /// The versions of which at least one manifest exists, in ascending order. Manifests of
    /// different runs form different versions, even if they have the same number.
    pub fn versions(&self, session: &str) -> Result<Vec<Version>> {
        Ok(grouped(self.listing(session)?.manifests))
    }

    /// The versions of a session that are complete, ascending. Fails if a manifest could not be
    /// read whose version may be complete.
    pub fn complete_versions(&self, session: &str) -> Result<Vec<Version>> {
        let (complete, others): (Vec<_>, Vec<_>) = self.versions(session)?.into_iter().partition(Version::is_complete);
        let unread = others.iter().find_map(|other| other.unread().next());
        unread.map_or(Ok(complete), |error| Err(error.again()))
    }

    /// A complete version of a session: the given one, or the newest. Fails if a manifest that
    /// might decide this cannot be read.
    pub fn version(&self, session: &str, version: Option<u64>) -> Result<Version> {
        let (mut complete, others): (Vec<_>, Vec<_>) =
            self.versions(session)?.into_iter().partition(Version::is_complete);
        let known: Vec<_> = complete.iter().map(|complete| complete.version.to_string()).collect();
        complete.retain(|complete| version.is_none_or(|version| version == complete.version));
        let found = complete.pop();
        let is_asked_for = |other: &Version| match (version, &found) {
            (Some(version), None) => other.version == version,
            (None, found) => found.as_ref().is_none_or(|found| found.version < other.version),
            (Some(_), Some(_)) => false,
        };
        if let Some(error) = others.iter().filter(|other| is_asked_for(other)).find_map(|other| other.unread().next()) {
            return Err(error.again());
        }
        found.ok_or_else(|| Error::NoVersion {
            location: self.files().location(),
            session: session.to_owned(),
            version: version.map_or_else(|| "at all".to_owned(), |version| version.to_string()),
            known,
        })
    }

    /// The number and size of the files of a session.
    pub fn usage(&self, session: &str) -> Result<Usage> {
        let listing = self.listing(session)?;
        // A manifest that cannot be read may need any pack.
        let mut errors = listing.manifests.iter().filter_map(|listed| listed.manifest.as_ref().err());
        if let Some(error) = errors.find(|error| !error.is_damage()) {
            return Err(error.again());
        }
        let manifests = listing.manifests.iter().filter_map(|listed| listed.manifest.as_ref().ok());
        let needed: BTreeSet<_> = manifests.flat_map(|manifest| &manifest.packs).map(|pack| pack.id).collect();
        let mut usage = Usage::default();
        for id in listing.packs {
            let (count, total) = match needed.contains(&id) {
                true => (&mut usage.packs, &mut usage.pack_bytes),
                false => (&mut usage.garbage, &mut usage.garbage_bytes),
            };
            *count += 1;
            *total += file_bytes(self.files(), &file_name(session, id))?;
        }
        for name in listing.drafts {
            usage.garbage += 1;
            usage.garbage_bytes += file_bytes(self.files(), &name)?;
        }
        for listed in listing.manifests {
            usage.manifests += 1;
            usage.manifest_bytes += file_bytes(self.files(), &listed.name)?;
        }
        Ok(usage)
    }

    /// The manifest of a rank for a version; `None` if there is none.
    pub fn manifest(&self, session: &str, rank: u32, version: u64) -> Result<Option<Arc<Manifest>>> {
        read_one(self.files(), session, rank, version)
    }

    /// The runs that have used the directory of a rank; `None` if it has no mark.
    pub fn mark(&self, session: &str, rank: u32) -> Result<Option<Mark>> {
        read_mark(self.files(), session, rank)
    }

    /// The files of one rank.
    pub fn holding(&self, session: &str, rank: u32) -> Result<Holding> {
        let Listing { manifests, packs, drafts, .. } = Listing::of_rank(self.files(), session, rank)?;
        let mut holding = Holding { drafts, ..Holding::default() };
        for id in packs {
            holding.packs.insert(id.number, file_bytes(self.files(), &file_name(session, id))?);
        }
        holding.manifests = manifests.into_iter().map(|listed| (listed.version, listed.manifest)).collect();
        Ok(holding)
    }

    /// The versions of which one rank has a manifest, in ascending order, whether it can be read or
    /// not.
    pub fn numbers(&self, session: &str, rank: u32) -> Result<Vec<u64>> {
        let names = list(self.files(), &format!("{session}/{}", rank_name(rank)))?;
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| parse_version_name(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Opens one rank's part of a version. If a pack is missing or damaged, the manifest is read
    /// again, because a running program may have merged packs since.
    pub fn reader(&self, manifest: &Arc<Manifest>) -> Result<Reader> {
        let mut manifest = Arc::clone(manifest);
        loop {
            match Reader::open(&self.packs(), Arc::clone(&manifest), &mut KnownPacks::default()) {
                Err(error) if error.is_damage() => match read_again(self.files(), &manifest) {
                    Ok(Now::Replaced(now)) => manifest = now,
                    _ => return Err(error),
                },
                result => return result,
            }
        }
    }

    /// Its files, for reading packs.
    pub(crate) fn packs(&self) -> Arc<OpenFiles> {
        OpenFiles::new(Arc::clone(&self.files))
    }

    pub(crate) fn listing(&self, session: &str) -> Result<Listing> {
        if self.is_session(session)? {
            return Listing::read(self.files(), session);
        }
        let known = self.look()?.names;
        Err(Error::NoSession { location: self.files().location(), session: session.to_owned(), known })
    }
}

/// The length of a file; 0 if it was removed in the meantime, or is not a file.
pub(crate) fn file_bytes(files: &dyn Files, name: &str) -> Result<u64> {
    match files.open(name).and_then(|file| file.bytes()) {
        Err(error) if is_damage(&error) => Ok(0),
        bytes => bytes.map_err(|error| unreadable(format!("{}/{name}", files.location()), error)),
    }
}

/// The number and size of the files of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Packs that versions need.
    pub packs: u64,
    /// Their bytes.
    pub pack_bytes: u64,
    /// Manifests.
    pub manifests: u64,
    /// Their bytes.
    pub manifest_bytes: u64,
    /// Packs that no version needs, and drafts.
    pub garbage: u64,
    /// Their bytes.
    pub garbage_bytes: u64,
}

/// A version in one directory.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// The run that saved it; unknown if no manifest can be read.
    pub run: Option<RunId>,
    /// The number of ranks of that run; 0 if unknown.
    pub ranks: u32,
    /// The manifests, by rank.
    pub manifests: BTreeMap<u32, Arc<Manifest>>,
    /// By rank: why a manifest cannot be used. It may belong to this run or to another one, and
    /// need not be damaged: see [`unread`](Self::unread).
    pub damaged: BTreeMap<u32, Arc<Error>>,
}

impl Version {
    /// Whether all ranks have it, so it can be restored.
    pub fn is_complete(&self) -> bool {
        self.run.is_some() && self.manifests.len() == self.ranks as usize
    }

    /// The errors of manifests that could not be read, and that need not be damaged.
    pub fn unread(&self) -> impl Iterator<Item = &Error> {
        self.damaged.values().map(|error| &**error).filter(|error| !error.is_damage())
    }

    /// The bytes of all regions of all ranks.
    pub fn full_bytes(&self) -> u64 {
        self.manifests.values().map(|manifest| manifest.full_bytes()).fold(0, u64::saturating_add)
    }

    /// The bytes that it has added to the directory.
    pub fn stored_bytes(&self) -> u64 {
        self.manifests.values().map(|manifest| manifest.stored_bytes).fold(0, u64::saturating_add)
    }

    /// When the last rank saved it, in nanoseconds since 1970.
    pub fn saved_at_unix_ns(&self) -> u64 {
        self.manifests.values().map(|manifest| manifest.saved_at_unix_ns).max().unwrap_or(0)
    }
}

/// Groups manifests of the same version and run.
pub(crate) fn grouped(listed: Vec<Listed>) -> Vec<Version> {
    let mut groups: BTreeMap<(u64, Option<(RunId, u32)>), Version> = BTreeMap::new();
    let new =
        |version, run, ranks| Version { version, run, ranks, manifests: BTreeMap::new(), damaged: BTreeMap::new() };
    let mut damaged = Vec::new();
    for listed in listed {
        match listed.manifest {
            Ok(manifest) => {
                let (run, ranks) = (manifest.run, manifest.ranks);
                let group = groups.entry((listed.version, Some((run, ranks))));
                let group = group.or_insert_with(|| new(listed.version, Some(run), ranks));
                group.manifests.insert(listed.rank, manifest);
            }
            Err(error) => damaged.push((listed.version, listed.rank, error)),
        }
    }
    for (version, rank, error) in damaged {
        let mut lacking = groups
            .range_mut((version, None)..=(version, Some((RunId(u128::MAX), u32::MAX))))
            .map(|(_, group)| group)
            .filter(|group| group.run.is_none() || rank < group.ranks)
            .peekable();
        if lacking.peek().is_none() {
            drop(lacking);
            let group = groups.entry((version, None)).or_insert_with(|| new(version, None, 0));
            group.damaged.insert(rank, error);
            continue;
        }
        for group in lacking {
            group.damaged.insert(rank, Arc::clone(&error));
        }
    }
    groups.into_values().collect()
}
