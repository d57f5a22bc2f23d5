//! File operations of a rank on one layer.

use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use outcrop_catalog::Catalog;
use outcrop_commit::{Merge, Outcome, Step};
use outcrop_format::{
    Manifest, ManifestPack, PackId, RunId, pack_name, parse_pack_name, parse_rank_name, parse_version_name, rank_name,
    version_name,
};
use outcrop_layers::{Shelf, files::Files};

use crate::{Error, error::Problem, state::SessionCore};

/// How often the manifests of other ranks are listed until two lists are equal.
const LISTS_MAX: usize = 20;

/// Carries out one step of the commit protocol.
pub(super) fn perform(shelf: &Shelf, session: &SessionCore, layer: usize, step: Step) -> Outcome {
    let files = &**shelf.files();
    let dir = rank_dir(session);
    let result = match step {
        Step::Sync => files.sync_dir(&dir).map_err(|source| failure(files, "make packs durable", source)),
        Step::Write { manifest, packs } => return write(files, session, &manifest, packs),
        Step::Rewrite { version, merges } => return rewrite(shelf, session, version, &merges),
        Step::Drop { version } => {
            if let Err(error) = drop_former(files, session, layer, version) {
                return failed(session, &error, false);
            }
            // If the removal cannot be made durable, the manifest has to be written again.
            let catalog = Catalog::new(Arc::clone(shelf.files()));
            let manifest = catalog.manifest(&session.name, session.rank, version).ok().flatten();
            match files.remove(&format!("{dir}/{}", version_name(version))) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(failure(files, "remove an old version", source))
                }
                _ => return manifest.map_or(Outcome::Done, Outcome::Dropped),
            }
        }
        Step::Look => match borrowed(&Catalog::new(Arc::clone(shelf.files())), session) {
            Ok(Some(numbers)) => return Outcome::Borrowed(numbers),
            Ok(None) => Err(Error::new(crate::ErrorKind::Busy, "manifests of other ranks cannot be read just now")),
            Err(source) => Err(failure(files, "list manifests of other ranks", source)),
        },
        Step::Clear { stale } => clear(&Catalog::new(Arc::clone(shelf.files())), session, layer, &stale),
        Step::Remove { number, bytes } => {
            let name = format!("{dir}/{}", pack_name(number));
            let removed = files.remove(&name);
            removed.map(|()| shelf.removed(&name, bytes)).map_err(|source| failure(files, "remove a pack", source))
        }
    };
    result.map_or_else(|error| failed(session, &error, false), |()| Outcome::Done)
}

fn failed(session: &SessionCore, error: &Error, may_be_visible: bool) -> Outcome {
    Outcome::Failed { reason: error.to_string(), may_be_visible, next_number: session.content().next_number }
}

/// Writes a manifest and makes it durable. If only the sync of the directory fails, the manifest is
/// visible now, and may be or not after a crash.
fn write(files: &dyn Files, session: &SessionCore, manifest: &Manifest, packs: Vec<ManifestPack>) -> Outcome {
    let attempt = |source| failure(files, "write a manifest", source);
    let dir = rank_dir(session);
    if let Err(source) = check_lengths(files, session, &packs) {
        return failed(session, &failure(files, "build upon packs", source), false);
    }
    let bytes = match (Manifest { packs, ..manifest.clone() }).encode() {
        Ok(bytes) => bytes,
        Err(error) => return failed(session, &error.into(), false),
    };
    if let Err(source) = files.replace(&dir, &version_name(manifest.version), &bytes) {
        return failed(session, &attempt(source), false);
    }
    match files.sync_dir(&dir) {
        Ok(()) => Outcome::Done,
        Err(source) => failed(session, &attempt(source), true),
    }
}

/// Checks that this rank's packs have the lengths that a manifest is about to state. Somebody else
/// may have removed or cut one since it was written. Packs of other ranks may still be on their
/// way.
fn check_lengths(files: &dyn Files, session: &SessionCore, packs: &[ManifestPack]) -> io::Result<()> {
    let dir = rank_dir(session);
    for pack in packs.iter().filter(|pack| pack.id.rank == session.rank) {
        let name = pack_name(pack.id.number);
        let about = |source: io::Error| io::Error::new(source.kind(), format!("{name}: {source}"));
        let bytes = files.bytes_of(&format!("{dir}/{name}")).map_err(about)?;
        if bytes != pack.file_bytes {
            let problem = format!("{name} has {bytes} bytes instead of {}: somebody has changed it", pack.file_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
    }
    Ok(())
}

/// Replaces a manifest by one that lists merged packs.
fn rewrite(shelf: &Shelf, session: &SessionCore, version: u64, merges: &[Merge]) -> Outcome {
    let files = &**shelf.files();
    let lost = |problem: &str| {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("version {version} {problem}"));
        failed(session, &failure(files, "rewrite a manifest", source), false)
    };
    let manifest = match Catalog::new(Arc::clone(shelf.files())).manifest(&session.name, session.rank, version) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => return lost("is not there"),
        Err(error) => return failed(session, &error.into(), false),
    };
    let mut packs = manifest.packs.clone();
    match merges.iter().all(|merge| merge.apply(session.rank, &mut packs)) {
        true => write(files, session, &manifest, packs),
        false => lost("does not list the packs that were merged"),
    }
}

/// Removes a version from the directories of former ranks that this rank has adopted, durably.
fn drop_former(files: &dyn Files, session: &SessionCore, layer: usize, version: u64) -> crate::Result<()> {
    let attempt = |source| failure(files, "remove an old version of a former rank", source);
    for rank in &session.former[layer] {
        let dir = format!("{}/{}", session.name, rank_name(*rank));
        match files.remove(&format!("{dir}/{}", version_name(version))) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => {}
            removed => removed.and_then(|()| files.sync_dir(&dir)).map_err(attempt)?,
        }
    }
    Ok(())
}

/// Removes these manifests of adopted former ranks, and packs of theirs that no manifest of any
/// rank lists.
fn clear(catalog: &Catalog, session: &SessionCore, layer: usize, stale: &BTreeSet<(u64, RunId)>) -> crate::Result<()> {
    let files = catalog.files();
    let attempt = |source| failure(files, "remove what former ranks have left", source);
    for &rank in &session.former[layer] {
        let dir = format!("{}/{}", session.name, rank_name(rank));
        for (version, run) in stale {
            if catalog.manifest(&session.name, rank, *version)?.is_some_and(|manifest| manifest.run == *run) {
                let removed = files.remove(&format!("{dir}/{}", version_name(*version)));
                removed.and_then(|()| files.sync_dir(&dir)).map_err(attempt)?;
            }
        }
    }
    let Some(listed) = listed(catalog, session, |_| true).map_err(attempt)? else {
        return Err(Error::new(crate::ErrorKind::Busy, "manifests of other ranks cannot be read just now"));
    };
    for &rank in &session.former[layer] {
        let dir = format!("{}/{}", session.name, rank_name(rank));
        let names = files.list(&dir).map_err(attempt)?;
        for number in names.iter().filter_map(|name| parse_pack_name(name)) {
            if !listed.contains(&PackId { rank, number }) {
                files.remove(&format!("{dir}/{}", pack_name(number))).map_err(attempt)?;
            }
        }
    }
    Ok(())
}

/// The packs of this rank that manifests of other ranks list; `None` if that cannot be determined.
fn borrowed(catalog: &Catalog, session: &SessionCore) -> io::Result<Option<BTreeSet<u64>>> {
    let listed = listed(catalog, session, |rank| rank != session.rank)?;
    let own = |pack: PackId| (pack.rank == session.rank).then_some(pack.number);
    Ok(listed.map(|listed| listed.into_iter().filter_map(own).collect()))
}

/// The packs that manifests of these ranks list; `None` if that cannot be determined.
fn listed(
    catalog: &Catalog,
    session: &SessionCore,
    is_asked: impl Fn(u32) -> bool,
) -> io::Result<Option<BTreeSet<PackId>>> {
    for _ in 0..LISTS_MAX {
        let before = manifests_of(catalog.files(), session, &is_asked)?;
        let mut packs = BTreeSet::new();
        let mut is_readable = true;
        for &(rank, version) in &before {
            match catalog.manifest(&session.name, rank, version) {
                Ok(Some(manifest)) => packs.extend(manifest.packs.iter().map(|pack| pack.id)),
                Ok(None) => {}
                Err(_) => is_readable = false,
            }
        }
        // A rank that replaces a version by the next one writes the new manifest before it removes
        // the old one. But a list that was made meanwhile may have neither.
        if before == manifests_of(catalog.files(), session, &is_asked)? {
            return Ok(is_readable.then_some(packs));
        }
    }
    Ok(None)
}

/// The manifests of these ranks: rank and version.
fn manifests_of(
    files: &dyn Files,
    session: &SessionCore,
    is_asked: impl Fn(u32) -> bool,
) -> io::Result<BTreeSet<(u32, u64)>> {
    let mut found = BTreeSet::new();
    for dir in files.list(&session.name)? {
        let Some(rank) = parse_rank_name(&dir).filter(|rank| is_asked(*rank)) else { continue };
        let listed = files.list(&format!("{}/{dir}", session.name))?;
        found.extend(listed.iter().filter_map(|name| Some((rank, parse_version_name(name)?))));
    }
    Ok(found)
}

/// The directory of this rank.
pub(crate) fn rank_dir(session: &SessionCore) -> String {
    format!("{}/{}", session.name, rank_name(session.rank))
}

pub(crate) fn failure(files: &dyn Files, attempt: &str, source: io::Error) -> Error {
    Problem::StoreFiles { attempt: attempt.to_owned(), location: files.location(), source }.into()
}

pub(crate) fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
