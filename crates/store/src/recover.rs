//! Opening a session: what this rank finds in its directories, and what the ranks tell each other
//! about it.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use outcrop_catalog::{Catalog, Holding};
use outcrop_commit::{Everybody, Found, LayerSettings, Ledger, Settings};
use outcrop_format::{
    Answer, Former, Held, HeldLayer, Holdings, LOCK_NAME, MARK_NAME, Mark, RunId, check_session_name, parse_rank_name,
    rank_name,
};
use outcrop_layers::files::{FileLock, Files, Holder, write_whole};
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
    /// Versions of this rank that were made again, because its node was lost.
    pub(crate) rebuilt: Vec<u64>,
    pub(crate) locks: Vec<FileLock>,
}

/// What this rank has found in its directories.
#[derive(Default)]
struct Entered {
    layers: Vec<Found>,
    marks: Vec<BTreeSet<RunId>>,
    unreadable: Vec<Skipped>,
    /// Directories of former ranks.
    former: Vec<Former>,
    locks: Vec<FileLock>,
}

/// Opens a session together with all ranks.
pub(crate) fn open(shared: &Shared, name: &str) -> Result<Opened> {
    check_session_name(name)?;
    let (rank, count) = (shared.ranks.rank(), shared.ranks.count());
    let mut entered = enter_all(shared, name, rank);
    let mut rebuilt = Vec::new();
    if let Some(parity) = &shared.parity {
        match parity.open(&*shared.ranks, name, entered.is_ok()) {
            Ok(found) => rebuilt = found.versions,
            Err(error) => entered = entered.and(Err(error)),
        }
    }
    let entered = entered.and_then(|locks| look_all(shared, name, (rank, count), locks));
    // The other ranks must not wait for a rank that failed.
    let answer = Answer(entered.as_ref().map(|_| ()).map_err(ToString::to_string));
    let answers = shared.ranks.gather(&format!("enter {name}"), &answer.encode())?;
    let entered = entered?;
    all_well(&answers, |rank| format!("rank {rank} cannot open session {name}"))?;
    let gathered = shared.ranks.gather(&format!("open {name}"), &holdings(&entered)?.encode())?;
    let told = decode_all(&gathered, Holdings::decode)?;
    let run = told.first().map(|first| first.proposal).ok_or_else(|| apart("there is no rank 0"))?;
    let elsewhere = unreadable_elsewhere(&told, rank, shared);
    let everybody = Everybody::new(told);
    if let Some((layer, former)) = everybody.occupied().next() {
        let what = format!("{name}/{} in {}", rank_name(former), shared.shelves[layer].files().location());
        return Err(Problem::InUse { what }.into());
    }
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
    let adopted = |layer| {
        let mine = entered.former.iter().filter(move |it| it.layer as usize == layer && it.held.is_some());
        mine.map(|it| it.rank).collect()
    };
    let former = (0..shared.shelves.len()).map(adopted).collect();
    let session = Arc::new(SessionCore::new(name, (rank, count), run, (names, shared.parity.is_some()), former));
    if count > 1 {
        // The mark must be there before any rank saves a version in this run.
        let marked = mark(shared, &session, &ledger, &everybody);
        let answer = Answer(marked.as_ref().copied().map_err(ToString::to_string));
        let answers = shared.ranks.gather(&format!("mark {name}"), &answer.encode())?;
        marked?;
        all_well(&answers, |rank| format!("rank {rank} cannot open session {name}"))?;
    }
    for (version, (held, layers)) in everybody.versions() {
        session.found(version, (held.run, held.ranks), layers);
    }
    session.expect(everybody.returning());
    // New packs get numbers that no pack has or had.
    session.content().next_number = ledger.next_number();
    let mut unreadable = entered.unreadable;
    unreadable.extend(elsewhere);
    unreadable.sort_by_key(|skipped| Reverse(skipped.version));
    Ok(Opened { session, unreadable, ledger, rebuilt, locks: entered.locks })
}

/// What other ranks cannot read: all of them must conclude the same from it.
fn unreadable_elsewhere(told: &[Holdings], me: u32, shared: &Shared) -> Vec<Skipped> {
    let mut found = Vec::new();
    for (rank, holdings) in (0..).zip(told).filter(|(rank, _)| *rank != me) {
        let own = holdings.layers.iter().enumerate().map(|(layer, held)| (rank, layer, held));
        let former = holdings.former.iter().filter_map(|it| Some((it.rank, it.layer as usize, it.held.as_ref()?)));
        for (of, layer, held) in own.chain(former) {
            let Some(shelf) = shared.shelves.get(layer) else { continue };
            let location = shelf.files().location();
            let skipped = |version: &u64| {
                let reason = format!("rank {rank} cannot read the manifest of rank {of} in {location}, and says why");
                Skipped { version: *version, reason }
            };
            found.extend(held.unreadable.iter().map(skipped));
        }
    }
    found
}

/// Locks the directories of a rank on all layers.
fn enter_all(shared: &Shared, name: &str, rank: u32) -> Result<Vec<FileLock>> {
    let dir = format!("{name}/{}", rank_name(rank));
    shared.shelves.iter().map(|shelf| enter(&**shelf.files(), name, &dir)).collect()
}

/// Reads what is in the directories of a rank on all layers.
fn look_all(shared: &Shared, name: &str, (rank, count): (u32, u32), locks: Vec<FileLock>) -> Result<Entered> {
    let dir = format!("{name}/{}", rank_name(rank));
    let mut entered = Entered { locks, ..Entered::default() };
    // Read everything before anything is changed.
    let catalogs: Vec<Catalog> = shared.shelves.iter().map(|shelf| Catalog::new(Arc::clone(shelf.files()))).collect();
    let looked: Vec<_> = catalogs.iter().map(|catalog| entered.look(catalog, name, rank)).collect::<Result<_>>()?;
    for (catalog, (holding, runs)) in catalogs.iter().zip(looked) {
        let found = take(catalog.files(), &dir, holding)?;
        entered.layers.push(found);
        entered.marks.push(runs);
    }
    for (layer, catalog) in (0..).zip(&catalogs) {
        entered.adopt(catalog, name, layer, count)?;
    }
    Ok(entered)
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
    let what = format!("{dir} in {}", files.location());
    lock.ok_or_else(|| match files.holder(&name) {
        Some(Holder::Here) => Problem::InUseHere { what }.into(),
        Some(Holder::Other(who)) => Problem::InUse { what: format!("{what} ({who})") }.into(),
        None => Problem::InUse { what }.into(),
    })
}

impl Entered {
    /// Reads the directory of a rank on one layer: its files, and the runs that have used it.
    fn look(&mut self, catalog: &Catalog, session: &str, rank: u32) -> Result<(Holding, BTreeSet<RunId>)> {
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
        Ok((holding, mark.map_or_else(BTreeSet::new, |Mark(runs)| runs)))
    }

    /// Adopts the directories of former ranks on one layer: those of an earlier run of more ranks.
    /// Each is adopted by the first rank that locks it.
    fn adopt(&mut self, catalog: &Catalog, session: &str, layer: u32, count: u32) -> Result<()> {
        let files = catalog.files();
        let names = files.list(session).map_err(|source| failure(files, "list the ranks of a session", source))?;
        let mut former: Vec<u32> = names.iter().filter_map(|name| parse_rank_name(name)).collect();
        former.retain(|rank| *rank >= count);
        former.sort_unstable();
        for rank in former {
            let dir = format!("{session}/{}", rank_name(rank));
            let lock = files.lock(&format!("{dir}/{LOCK_NAME}"));
            let lock = lock.map_err(|source| failure(files, "lock the directory of a former rank", source))?;
            let is_mine = lock.is_some();
            self.locks.extend(lock);
            let held = match is_mine {
                false => None,
                true => {
                    let (holding, runs) = self.look(catalog, session, rank)?;
                    Some(held(&take(files, &dir, holding)?, &runs))
                }
            };
            self.former.push(Former { layer, rank, held });
        }
        Ok(())
    }
}

/// Says what was found, and removes drafts, which nobody will finish.
fn take(files: &dyn Files, dir: &str, holding: Holding) -> Result<Found> {
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
    Ok(found)
}

/// What this rank tells the other ranks.
fn holdings(entered: &Entered) -> Result<Holdings> {
    let random =
        rand_bytes().map_err(|source| outcrop_ranks::Error::Files { path: "random numbers".to_owned(), source })?;
    let layers = entered.layers.iter().zip(&entered.marks).map(|(found, runs)| held(found, runs)).collect();
    Ok(Holdings { proposal: RunId(u128::from_le_bytes(random)), layers, former: entered.former.clone() })
}

fn held(found: &Found, runs: &BTreeSet<RunId>) -> HeldLayer {
    HeldLayer {
        runs: runs.clone(),
        versions: found.manifests.iter().map(|(version, manifest)| (*version, Held::of(manifest))).collect(),
        unreadable: found.unreadable.clone(),
    }
}

/// Writes a mark to the directories of this rank: this run has used them.
fn mark(shared: &Shared, session: &SessionCore, ledger: &Ledger, everybody: &Everybody) -> Result<()> {
    for (layer, shelf) in shared.shelves.iter().enumerate() {
        let files = &**shelf.files();
        let mark = Mark(ledger.marks(layer, everybody)).encode()?;
        let written = write_whole(files, &rank_dir(session), MARK_NAME, &mark);
        written.map_err(|source| failure(files, "mark a session", source))?;
    }
    Ok(())
}
