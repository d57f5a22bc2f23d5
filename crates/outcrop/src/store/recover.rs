//! What a session finds when it is opened: which versions are whole on all ranks, and what a crash has left behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use outcrop_format::{
    LOCK_NAME, MANIFEST_BYTES_MAX, Manifest, RunId, check_session_name, parse_draft_name, parse_pack_name,
    parse_version_name, rank_name,
};
use outcrop_layers::files::{FileLock, Files, read_whole};

use super::{
    Shared, Skipped,
    commit::{LayerLedger, Ledger, failure, rank_dir},
    ranks::rand_bytes,
    state::SessionCore,
};
use crate::{Error, Result};

/// A session that is ready, with the locks on its directories.
pub(crate) struct Opened {
    pub(crate) session: Arc<SessionCore>,
    /// Versions whose manifests cannot be read.
    pub(crate) unreadable: Vec<Skipped>,
    pub(crate) ledger: Ledger,
    pub(crate) locks: Vec<FileLock>,
}

/// A version as one run saved it.
type Attempt = (u64, RunId);

/// Stands for the run of a version whose manifest cannot be read.
const UNREADABLE: RunId = RunId(0);

/// The layers on which a rank has each version, one bit per layer, and when it was saved.
type Holdings = BTreeMap<Attempt, (u64, u64)>;

/// Opens a session together with all ranks.
pub(crate) fn open(shared: &Shared, name: &str) -> Result<Opened> {
    check_session_name(name)?;
    let (rank, count) = (shared.ranks.rank(), shared.ranks.count());
    let entered = enter_all(shared, name, rank, count);
    // Nobody waits for a rank that cannot come in.
    let message = entered.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let answers = shared.ranks.gather(&format!("enter {name}"), message.as_bytes())?;
    let (mut layers, locks) = entered?;
    if let Some((answer, other)) = answers.iter().zip(0..).find(|(answer, _)| !answer.is_empty()) {
        let detail = format!("rank {other} cannot open session {name}: {}", String::from_utf8_lossy(answer));
        return Err(Error::Ranks { detail });
    }
    for (shelf, layer) in shared.shelves.iter().zip(&layers) {
        shelf.change_used(layer.packs.values().sum::<u64>() as i64);
    }
    let (run, everybody) = agree(shared, name, &holdings(&layers))?;
    let names = shared.shelves.iter().map(|shelf| shelf.files().location()).collect();
    let session = Arc::new(SessionCore::new(name, (rank, count), run, names));
    let whole = whole(&everybody);
    for (index, layer) in layers.iter_mut().enumerate() {
        let files = &**shared.shelves[index].files();
        // What one rank cannot read may be mended by somebody: then the others must still have theirs.
        let is_unreadable = |version| everybody.iter().any(|holdings| holdings.contains_key(&(version, UNREADABLE)));
        let is_lost = |manifest: &&Manifest| {
            whole.get(&manifest.version) != Some(&manifest.run) && !is_unreadable(manifest.version)
        };
        let lost: Vec<u64> = layer.manifests.values().filter(is_lost).map(|manifest| manifest.version).collect();
        remove_versions(files, &session, &lost)?;
        layer.manifests.retain(|version, _| !lost.contains(version));
        let is_everywhere = |manifest: &Manifest| {
            let attempt = (manifest.version, manifest.run);
            everybody.iter().all(|holdings| holdings.get(&attempt).is_some_and(|(mask, _)| mask & (1 << index) != 0))
        };
        let (complete, scattered): (Vec<_>, Vec<_>) = layer.manifests.values().partition(|it| is_everywhere(it));
        layer.complete = complete.into_iter().map(|it| (it.version, it.saved_at_unix_ns)).collect();
        layer.scattered = scattered.into_iter().map(|it| it.version).filter(|it| whole.contains_key(it)).collect();
    }
    for version in whole.keys() {
        session.found(*version, layers.iter().map(|layer| layer.complete.contains_key(version)).collect());
    }
    number_packs(&session, &layers);
    let unreadable = layers.iter().flat_map(|layer| &layer.unreadable);
    let unreadable = unreadable.map(|(&version, reason)| Skipped { version, reason: reason.clone() }).collect();
    let mut ledger = Ledger::new(Arc::clone(&session), layers);
    (0..shared.shelves.len()).try_for_each(|layer| ledger.collect(shared, layer))?;
    Ok(Opened { session, unreadable, ledger, locks })
}

/// Takes the directories of a rank on all layers, and looks what they have.
fn enter_all(shared: &Shared, name: &str, rank: u32, count: u32) -> Result<(Vec<LayerLedger>, Vec<FileLock>)> {
    let dir = format!("{name}/{}", rank_name(rank));
    let (mut layers, mut locks) = (Vec::new(), Vec::new());
    for shelf in &shared.shelves {
        let files = &**shelf.files();
        locks.push(enter(files, name, &dir)?);
        layers.push(scan(files, &dir)?);
    }
    let other = layers.iter().flat_map(|layer| layer.manifests.values()).find(|manifest| manifest.ranks != count);
    match other.map(|manifest| manifest.ranks) {
        None => Ok((layers, locks)),
        Some(saved) => {
            let problem = format!(
                "it was saved by {saved} ranks and is opened by {count}; start {saved} again, or use another directory"
            );
            Err(Error::Session { session: name.to_owned(), problem })
        }
    }
}

/// Makes the directories of a rank and takes their lock.
fn enter(files: &dyn Files, name: &str, dir: &str) -> Result<FileLock> {
    let made = files
        .make_dir(name)
        .and_then(|()| files.sync_dir(""))
        .and_then(|()| files.make_dir(dir))
        .and_then(|()| files.sync_dir(name));
    made.map_err(|source| failure(files, "make a session", source))?;
    let lock = files.lock(&format!("{dir}/{LOCK_NAME}")).map_err(|source| failure(files, "lock a session", source))?;
    lock.ok_or_else(|| Error::InUse { what: format!("{dir} in {}", files.location()) })
}

/// What is in the directory of this rank. Drafts are removed: nobody will finish them.
fn scan(files: &dyn Files, dir: &str) -> Result<LayerLedger> {
    let failed = |source| failure(files, "look into a session", source);
    let mut layer = LayerLedger::default();
    for name in files.list(dir).map_err(failed)? {
        let path = format!("{dir}/{name}");
        if let Some(version) = parse_version_name(&name) {
            match read_whole(files, &path, MANIFEST_BYTES_MAX).map(|bytes| Manifest::decode(&bytes)) {
                Ok(Ok(manifest)) if manifest.version == version && belongs(&manifest, dir) => {
                    layer.manifests.insert(version, manifest);
                }
                Ok(Ok(_)) => unreadable(&mut layer, version, &path, "it belongs elsewhere"),
                Ok(Err(error)) => unreadable(&mut layer, version, &path, &error.to_string()),
                Err(error) => unreadable(&mut layer, version, &path, &error.to_string()),
            }
        } else if let Some(number) = parse_pack_name(&name) {
            let bytes = files.open(&path).and_then(|file| file.bytes()).map_err(failed)?;
            layer.packs.insert(number, bytes);
        } else if parse_draft_name(&name).is_some() {
            files.remove(&path).map_err(failed)?;
        }
    }
    // Who was killed may have left a version that is visible and would not survive yet.
    files.sync_dir(dir).map_err(failed)?;
    Ok(layer)
}

fn belongs(manifest: &Manifest, dir: &str) -> bool {
    format!("{}/{}", manifest.session, rank_name(manifest.rank)) == dir
}

fn unreadable(layer: &mut LayerLedger, version: u64, path: &str, reason: &str) {
    tracing::warn!(path, reason, "a version cannot be read; what it may need is left alone");
    layer.unreadable.insert(version, format!("{path}: {reason}"));
}

fn holdings(layers: &[LayerLedger]) -> Holdings {
    let mut holdings = Holdings::new();
    for (index, layer) in layers.iter().enumerate() {
        for manifest in layer.manifests.values() {
            let attempt = (manifest.version, manifest.run);
            let (mask, saved_at) = holdings.entry(attempt).or_insert((0, manifest.saved_at_unix_ns));
            *mask |= 1 << index;
            *saved_at = manifest.saved_at_unix_ns;
        }
        holdings.extend(layer.unreadable.keys().map(|version| ((*version, UNREADABLE), (0, 0))));
    }
    holdings
}

/// Tells all ranks what this one has, and agrees on the number of this run.
fn agree(shared: &Shared, name: &str, mine: &Holdings) -> Result<(RunId, Vec<Holdings>)> {
    let random = rand_bytes().map_err(|source| Error::RankFiles { path: "random numbers".to_owned(), source })?;
    let mut message = random.to_vec();
    for ((version, run), (mask, saved_at)) in mine {
        message.extend_from_slice(&version.to_le_bytes());
        message.extend_from_slice(&run.0.to_le_bytes());
        message.extend_from_slice(&mask.to_le_bytes());
        message.extend_from_slice(&saved_at.to_le_bytes());
    }
    let gathered = shared.ranks.gather(&format!("open {name}"), &message)?;
    let wrong =
        || Error::Ranks { detail: "a rank of another version of Outcrop takes part; use the same everywhere".into() };
    let mut run = None;
    let mut everybody = Vec::new();
    for message in &gathered {
        let (random, entries) = message.split_first_chunk::<16>().ok_or_else(wrong)?;
        run.get_or_insert(RunId(u128::from_le_bytes(*random)));
        everybody.push(entries.chunks(40).map(|entry| parse(entry).ok_or_else(wrong)).collect::<Result<_>>()?);
    }
    Ok((run.ok_or_else(wrong)?, everybody))
}

fn parse(entry: &[u8]) -> Option<(Attempt, (u64, u64))> {
    let (version, rest) = entry.split_first_chunk()?;
    let (run, rest) = rest.split_first_chunk()?;
    let (mask, rest) = rest.split_first_chunk()?;
    let (saved_at, _) = rest.split_first_chunk()?;
    let attempt = (u64::from_le_bytes(*version), RunId(u128::from_le_bytes(*run)));
    Some((attempt, (u64::from_le_bytes(*mask), u64::from_le_bytes(*saved_at))))
}

/// The versions that every rank has, from the same run and on the same layer; the latest run if there are several.
fn whole(everybody: &[Holdings]) -> BTreeMap<u64, RunId> {
    let mut whole = BTreeMap::<u64, (u64, RunId)>::new();
    let Some(first) = everybody.first() else { return BTreeMap::new() };
    for (&(version, run), &(_, saved_at)) in first {
        let mask = |holdings: &Holdings| holdings.get(&(version, run)).map_or(0, |(mask, _)| *mask);
        if run != UNREADABLE && everybody.iter().map(mask).fold(u64::MAX, |all, mask| all & mask) != 0 {
            let best = whole.entry(version).or_insert((saved_at, run));
            *best = (*best).max((saved_at, run));
        }
    }
    whole.into_iter().map(|(version, (_, run))| (version, run)).collect()
}

/// Removes versions that can never become whole, durably.
fn remove_versions(files: &dyn Files, session: &SessionCore, versions: &[u64]) -> Result<()> {
    if versions.is_empty() {
        return Ok(());
    }
    let dir = rank_dir(session);
    for version in versions {
        tracing::info!(session = session.name, version, "a version that not all ranks have is removed");
        let removed = files.remove(&format!("{dir}/{}", outcrop_format::version_name(*version)));
        removed.map_err(|source| failure(files, "remove an incomplete version", source))?;
    }
    files.sync_dir(&dir).map_err(|source| failure(files, "remove incomplete versions", source))
}

/// New packs get numbers that none has, nor had.
fn number_packs(session: &SessionCore, layers: &[LayerLedger]) {
    let listed = layers.iter().flat_map(|layer| layer.manifests.values()).flat_map(|manifest| &manifest.packs);
    let listed = listed.filter(|pack| pack.id.rank == session.rank).map(|pack| pack.id.number);
    let there = layers.iter().flat_map(|layer| layer.packs.keys().copied());
    let used: BTreeSet<u64> = listed.chain(there).collect();
    let mut content = session.content();
    content.next_number = used.last().map_or(0, |last| last + 1);
}

/// The manifest of a version on one layer.
pub(crate) fn manifest(files: &dyn Files, session: &SessionCore, version: u64) -> io::Result<Option<Manifest>> {
    let name = format!("{}/{}", rank_dir(session), outcrop_format::version_name(version));
    match read_whole(files, &name, MANIFEST_BYTES_MAX) {
        Ok(bytes) => {
            Manifest::decode(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
