//! Opening a session: what this rank finds in its directories, and what the ranks tell each other
//! about it.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use outcrop_catalog::{Catalog, Holding};
use outcrop_commit::{Found, LayerSettings, Ledger, Settings, returning};
use outcrop_format::{
    Answer, Held, HeldLayer, Holdings, LOCK_NAME, MARK_NAME, Manifest, Mark, RunId, check_session_name, rank_name,
};
use outcrop_layers::files::{FileLock, Files, write_whole};
use outcrop_ranks::rand_bytes;

use super::{
    Dedup, Shared, Skipped,
    commit::{failure, rank_dir},
    exchange::{all_well, decode_all},
    state::SessionCore,
};
use crate::{
    Error, ErrorKind, Result,
    error::{Problem, apart},
};

/// An open session, with the locks on its directories.
pub(crate) struct Opened {
    pub(crate) session: Arc<SessionCore>,
    /// Versions whose manifests cannot be read, on some rank, the newest first.
    pub(crate) unreadable: Vec<Skipped>,
    pub(crate) ledger: Ledger,
    pub(crate) locks: Vec<FileLock>,
}

/// What this rank has found in its directories.
#[derive(Default)]
struct Entered {
    layers: Vec<Found>,
    marks: Vec<BTreeSet<RunId>>,
    unreadable: Vec<Skipped>,
    locks: Vec<FileLock>,
}

/// Opens a session together with all ranks.
pub(crate) fn open(shared: &Shared, name: &str) -> Result<Opened> {
    check_session_name(name)?;
    let (rank, count) = (shared.ranks.rank(), shared.ranks.count());
    let entered = enter_all(shared, name, rank, count);
    // The other ranks must not wait for a rank that failed.
    let answer = Answer(entered.as_ref().map(|_| ()).map_err(ToString::to_string));
    let answers = shared.ranks.gather(&format!("enter {name}"), &answer.encode())?;
    let entered = entered?;
    all_well(&answers, |rank| format!("rank {rank} cannot open session {name}"))?;
    let gathered = shared.ranks.gather(&format!("open {name}"), &holdings(&entered)?.encode())?;
    let everybody = decode_all(&gathered, Holdings::decode)?;
    let run = everybody.first().map(|first| first.proposal).ok_or_else(|| apart("there is no rank 0"))?;
    let layers = shared.shelves.iter().enumerate().map(|(layer, shelf)| LayerSettings {
        keep: shared.settings.keep(layer),
        is_limited: shelf.limit_bytes().is_some(),
    });
    let is_shared = shared.settings.dedup == Dedup::Ranks && count > 1;
    let settings = Settings { rank, ranks: count, run, is_shared, layers: layers.collect() };
    for (shelf, found) in shared.shelves.iter().zip(&entered.layers) {
        let bytes = found.packs.values().copied().fold(0, u64::saturating_add);
        shelf.set_used(&format!("{name}/{}", rank_name(rank)), bytes);
    }
    let ledger = Ledger::open(settings, entered.layers, &everybody);
    let names = shared.shelves.iter().map(|shelf| shelf.files().location()).collect();
    let session = Arc::new(SessionCore::new(name, (rank, count), run, names));
    if count > 1 {
        // The mark must be there before any rank saves a version in this run.
        let marked = mark(shared, &session, &ledger, &everybody);
        let answer = Answer(marked.as_ref().copied().map_err(ToString::to_string));
        let answers = shared.ranks.gather(&format!("mark {name}"), &answer.encode())?;
        marked?;
        all_well(&answers, |rank| format!("rank {rank} cannot open session {name}"))?;
    }
    for (version, (run, layers)) in ledger.versions() {
        session.found(version, run, layers);
    }
    session.expect(returning(&everybody));
    // New packs get numbers that no pack has or had.
    session.content().next_number = ledger.next_number();
    let mut unreadable = entered.unreadable;
    unreadable.extend(unreadable_elsewhere(&everybody, &session));
    unreadable.sort_by_key(|skipped| Reverse(skipped.version));
    Ok(Opened { session, unreadable, ledger, locks: entered.locks })
}

/// What other ranks cannot read: all of them must conclude the same from it.
fn unreadable_elsewhere(everybody: &[Holdings], session: &SessionCore) -> Vec<Skipped> {
    let mut found = Vec::new();
    for (rank, holdings) in (0..).zip(everybody).filter(|(rank, _)| *rank != session.rank) {
        for (layer, name) in holdings.layers.iter().zip(&session.layers) {
            let skipped = |version: &u64| {
                let reason = format!("rank {rank} cannot read its manifest in {name}, and says why");
                Skipped { version: *version, reason }
            };
            found.extend(layer.unreadable.iter().map(skipped));
        }
    }
    found
}

/// Locks the directories of a rank on all layers, and reads what is in them.
fn enter_all(shared: &Shared, name: &str, rank: u32, count: u32) -> Result<Entered> {
    let dir = format!("{name}/{}", rank_name(rank));
    let mut entered = Entered::default();
    for shelf in &shared.shelves {
        let files = &**shelf.files();
        entered.locks.push(enter(files, name, &dir)?);
    }
    // Read everything before anything is changed.
    let catalogs: Vec<Catalog> = shared.shelves.iter().map(|shelf| Catalog::new(Arc::clone(shelf.files()))).collect();
    let holdings: Vec<Holding> =
        catalogs.iter().map(|catalog| entered.look(catalog, name, rank)).collect::<Result<_>>()?;
    for (catalog, holding) in catalogs.iter().zip(holdings) {
        entered.take(catalog.files(), &dir, holding)?;
    }
    let mut manifests = entered.layers.iter().flat_map(|layer| layer.manifests.values());
    match manifests.find(|manifest| manifest.ranks != count).map(|manifest| manifest.ranks) {
        None => Ok(entered),
        Some(saved) => {
            let problem = format!(
                "it was saved by {saved} ranks and is opened by {count}; start {saved} again, or use another directory"
            );
            Err(Problem::Session { session: name.to_owned(), problem }.into())
        }
    }
}

/// Creates the directories of a rank and locks them.
fn enter(files: &dyn Files, name: &str, dir: &str) -> Result<FileLock> {
    let made = files
        .make_dir(name)
        .and_then(|()| files.sync_dir(""))
        .and_then(|()| files.make_dir(dir))
        .and_then(|()| files.sync_dir(name));
    made.map_err(|source| failure(files, "create a session", source))?;
    let name = format!("{dir}/{LOCK_NAME}");
    let lock = files.lock(&name).map_err(|source| failure(files, "lock a session", source))?;
    let what = || format!("{dir} in {}", files.location());
    lock.ok_or_else(|| match files.is_locked_here(&name) {
        true => Problem::InUseHere { what: what() }.into(),
        false => Problem::InUse { what: what() }.into(),
    })
}

impl Entered {
    /// Reads the directory of this rank on one layer.
    fn look(&mut self, catalog: &Catalog, session: &str, rank: u32) -> Result<Holding> {
        let holding = catalog.holding(session, rank)?;
        for (version, manifest) in &holding.manifests {
            let Err(error) = manifest else { continue };
            if error.is_shortage() {
                // A shortage in this process proves nothing about the version.
                return Err(Error::new(ErrorKind::Storage, error.to_string()));
            }
            tracing::warn!(session, version, %error, "the manifest of a version cannot be read; no pack is removed");
            self.unreadable.push(Skipped { version: *version, reason: error.to_string() });
        }
        let mark = match catalog.mark(session, rank) {
            Err(error) if error.is_damage() => {
                // The rank counts as if it had not taken part in the listed runs, so versions of
                // these runs on other ranks are kept for longer.
                tracing::warn!(session, %error, "the list of runs that used a directory is damaged; it counts as empty");
                None
            }
            mark => mark?,
        };
        self.marks.push(mark.map_or_else(BTreeSet::new, |Mark(runs)| runs));
        Ok(holding)
    }

    /// Records what was found, and removes drafts, which nobody will finish.
    fn take(&mut self, files: &dyn Files, dir: &str, holding: Holding) -> Result<()> {
        let failed = |source| failure(files, "clean up a session", source);
        holding.drafts.iter().try_for_each(|name| files.remove(name)).map_err(failed)?;
        // A process that was killed may have left a manifest that is visible and not durable yet.
        files.sync_dir(dir).map_err(failed)?;
        let mut found = Found { packs: holding.packs, ..Found::default() };
        for (version, manifest) in holding.manifests {
            match manifest {
                Ok(manifest) => drop(found.manifests.insert(version, manifest)),
                Err(_) => {
                    found.unreadable.insert(version);
                }
            }
        }
        self.layers.push(found);
        Ok(())
    }
}

/// What this rank tells the other ranks.
fn holdings(entered: &Entered) -> Result<Holdings> {
    let random =
        rand_bytes().map_err(|source| outcrop_ranks::Error::Files { path: "random numbers".to_owned(), source })?;
    let held = |manifest: &Manifest| Held { run: manifest.run, saved_at_unix_ns: manifest.saved_at_unix_ns };
    let layer = |(found, runs): (&Found, &BTreeSet<RunId>)| HeldLayer {
        runs: runs.clone(),
        versions: found.manifests.iter().map(|(version, manifest)| (*version, held(manifest))).collect(),
        unreadable: found.unreadable.clone(),
    };
    let layers = entered.layers.iter().zip(&entered.marks).map(layer).collect();
    Ok(Holdings { proposal: RunId(u128::from_le_bytes(random)), layers })
}

/// Writes a mark to the directories of this rank: this run has used them.
fn mark(shared: &Shared, session: &SessionCore, ledger: &Ledger, everybody: &[Holdings]) -> Result<()> {
    for (layer, shelf) in shared.shelves.iter().enumerate() {
        let files = &**shelf.files();
        let mark = Mark(ledger.marks(layer, everybody)).encode()?;
        let written = write_whole(files, &rank_dir(session), MARK_NAME, &mark);
        written.map_err(|source| failure(files, "mark a session", source))?;
    }
    Ok(())
}
