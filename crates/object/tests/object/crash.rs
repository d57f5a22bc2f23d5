//! A whole store in an object store whose process dies before each of its changes in turn.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use outcrop_plan::Retention;
use outcrop_region::{Part, PartMut};
use outcrop_store::{Reached, Result, Session, Store};
use outcrop_testing::{amount, covered};

use crate::server::{Fate, Server};

const VERSIONS: u64 = 5;

/// The state at a version: a field in which some elements change.
fn state(version: u64) -> Vec<u64> {
    let mut field: Vec<u64> = (0..20_000).collect();
    (0..=version).for_each(|step| field[(step * 3001) as usize % 20_000] = u64::MAX - step);
    field
}

fn open(server: &Server) -> Result<Session> {
    let files = server.files_with(|options| options.patience = Duration::from_millis(20));
    let keep = Retention { keep_last: Some(2), ..Retention::default() };
    let store = Store::builder().host("4 MiB").keep(keep).chain_max(2).threads(1).pin(false);
    store.files(Arc::new(files), None).open()?.session("heat")
}

fn save(session: &mut Session, version: u64) -> Result<()> {
    session.save(version, &[Part::new("field", &state(version))])?;
    session.wait(version, Reached::Layer(1))
}

fn restore(session: &mut Session) -> Option<u64> {
    let mut field = vec![0; 20_000];
    let found = session.restore_latest(&mut [PartMut::new("field", &mut field)]).unwrap()?;
    assert!(field == state(found.version), "version {} has other bytes", found.version);
    Some(found.version)
}

/// Dies before the `nth` change, or after it if its answer is lost. Returns how many changes there
/// were.
fn die_at(nth: u64, fate: Fate, server: &Server) -> u64 {
    let durable = Mutex::new(None);
    let changes = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&changes);
    server.rule(move |kind, _| {
        if !["put", "delete", "begin", "part", "complete", "abort"].contains(&kind) {
            return if count.load(Relaxed) > nth { Fate::Busy } else { Fate::Pass };
        }
        match count.fetch_add(1, Relaxed) {
            now if now < nth => Fate::Pass,
            now if now == nth => fate,
            _ => Fate::Busy,
        }
    });
    let run = || -> Result<()> {
        let mut session = open(server)?;
        for version in 1..=VERSIONS {
            save(&mut session, version)?;
            *durable.lock().unwrap() = Some(version);
        }
        session.finish()
    };
    let outcome = run();
    let happened = changes.load(Relaxed);
    server.heal();
    server.end_owners();
    let durable = *durable.lock().unwrap();
    let mut next = open(server).unwrap_or_else(|error| panic!("change {nth}: {error}"));
    assert_eq!(server.uploads(), 0, "change {nth}");
    let found = restore(&mut next);
    assert!(found >= durable, "change {nth}: version {durable:?} was durable, and {found:?} is there; {outcome:?}");
    // It goes on from there.
    let version = found.unwrap_or(0) + 1;
    save(&mut next, version).unwrap_or_else(|error| panic!("change {nth}: {error}"));
    next.finish().unwrap();
    // Nothing is left beside the versions that count, and every byte of them is right.
    let catalog = outcrop_catalog::Catalog::new(Arc::new(server.files()));
    let verified = outcrop_catalog::verify(&catalog, None, None, &|_, _| {}).unwrap();
    assert!(verified.findings.is_empty(), "change {nth}: {:?}", verified.findings);
    let files: BTreeSet<_> = server.names().iter().map(|name| name.rsplit_once('/').unwrap().0.to_owned()).collect();
    let of_files = |name: &&String| name.contains("/pack-") || name.contains("/version-");
    assert_eq!(
        server.names().iter().filter(of_files).count(),
        files.iter().filter(of_files).count(),
        "one object each"
    );
    happened
}

#[test]
fn a_store_survives_the_death_of_its_process_before_and_after_each_change() {
    let mut tried = 0;
    for fate in [Fate::Busy, Fate::Lost] {
        for nth in (0..).step_by(amount(3, 1) as usize) {
            tried += 1;
            if die_at(nth, fate, &Server::default()) <= nth {
                break;
            }
        }
    }
    assert!(tried > 10, "{tried}");
    covered("deaths of a store on objects", tried);
}

#[test]
fn a_server_that_ignores_conditions_has_a_store_that_survives() {
    for nth in [0, 4, 9, 14, 19] {
        die_at(nth, Fate::Busy, &Server::ignoring_conditions());
    }
}

#[test]
fn a_write_that_fails_is_reported_and_the_next_one_is_tried() {
    let server = Server::default();
    let mut session = open(&server).unwrap();
    save(&mut session, 1).unwrap();
    server.rule(|kind, name| if kind == "put" && !name.contains("alive") { Fate::Busy } else { Fate::Pass });
    let error = save(&mut session, 2).unwrap_err().to_string();
    assert!(error.contains("version 2 of heat has not reached") && error.contains("503"), "{error}");
    server.heal();
    save(&mut session, 3).unwrap();
    session.finish().unwrap();
    assert_eq!(restore(&mut open(&server).unwrap()), Some(3));
}

#[test]
fn a_second_store_is_told_who_has_the_session() {
    let server = Server::default();
    let session = open(&server).unwrap();
    let error = open(&server).unwrap_err().to_string();
    assert!(error.contains("in use by this process"), "{error}");
    server.move_owners();
    let error = open(&server).unwrap_err().to_string();
    assert!(error.contains("counts as dead 63 s after"), "{error}");
    drop(session);
}
