//! A node is lost at every point of saves, merges and rebuilds: from one operation on its files on,
//! nothing works there any more, and then it has nothing.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use outcrop::{Reached, StoreBuilder, layers::files::Files};
use outcrop_crash::{Errno, Failing, Fault};
use outcrop_testing::{amount, covered};

use super::{Machine, has_version, restore, save, save_all};

/// Runs something on all ranks, where files of these ranks fail from their `after`th operation on.
/// Returns how many operations there were at most.
fn failing(machine: &mut Machine, ranks: &[u32], after: u64, program: impl Fn(u32, StoreBuilder) + Sync) -> u64 {
    let wrapped = Mutex::new(Vec::new());
    let over = |rank: u32, files: Arc<dyn Files>| -> Arc<dyn Files> {
        if !ranks.contains(&rank) {
            return files;
        }
        let files = Failing::new(files);
        files.inject(Fault { after, is_lasting: true, ..Fault::new(Errno::IO) });
        wrapped.lock().unwrap().push(files.clone());
        Arc::new(files)
    };
    machine.run_over(over, program);
    wrapped.lock().unwrap().iter().map(|files| files.calls(None)).max().unwrap_or(0)
}

/// Saves until something fails. Remembers which version was reported as kept by others.
fn save_some(rank: u32, builder: StoreBuilder, reported: &AtomicU64) {
    let Ok(mut session) = builder.open().and_then(|store| store.session("heat")) else { return };
    if restore(&mut session, rank).is_err() {
        return;
    }
    for version in 1..=6 {
        if save(&mut session, rank, version).is_err() {
            return;
        }
        // Sometimes two are in flight.
        if version % 3 > 0 && session.wait(version, Reached::Parity).is_ok() {
            reported.fetch_max(version, SeqCst);
        }
    }
    drop(session.finish());
}

fn newest(machine: &mut Machine) -> Vec<Option<u64>> {
    machine.run(|rank, builder| {
        let mut session = builder.open().unwrap().session("heat").unwrap();
        restore(&mut session, rank).unwrap().map(|restored| restored.version)
    })
}

fn lost_while_saving(ranks: u32, code: (u16, u16), lost: &[u32]) {
    let dir = tempfile::tempdir().unwrap();
    let case = |after: u64| {
        let mut machine = Machine::new(&dir.path().join(after.to_string()), ranks, code);
        let reported = AtomicU64::new(0);
        let calls = failing(&mut machine, lost, after, |rank, builder| save_some(rank, builder, &reported));
        machine.lose(lost);
        let (found, reported) = (newest(&mut machine), reported.into_inner());
        assert!(found.iter().all(|it| *it == found[0]), "all ranks go on alike: {found:?}");
        assert!(
            found[0].unwrap_or(0) >= reported,
            "{reported} was reported, {found:?} is there; node lost after {after}"
        );
        std::fs::remove_dir_all(dir.path().join(after.to_string())).unwrap();
        (calls, reported)
    };
    let (all, reported) = case(1 << 40);
    assert_eq!(reported, 5);
    let points = amount(10, 150).min(all);
    let steps: u64 = (0..points).map(|point| case(point * all / points).1).sum();
    assert!(steps > 0, "some of it was reported before nodes were lost");
    covered("nodes lost while versions are saved and merged", format_args!("{points} points, lost: 0"));
}

#[test]
fn a_node_may_be_lost_at_every_point_of_saves_and_merges() {
    lost_while_saving(3, (2, 1), &[1]);
}

#[test]
fn two_nodes_may_be_lost_at_every_point_of_saves_and_merges() {
    lost_while_saving(4, (2, 2), &[0, 2]);
}

/// The spare node, or one of the others, fails while versions are made again. Nothing half is
/// visible, and the next attempt has everything.
fn fails_while_rebuilding(failing_ranks: &[u32]) {
    let dir = tempfile::tempdir().unwrap();
    let mut whole = Machine::new(&dir.path().join("whole"), 3, (2, 1));
    whole.run(|rank, builder| save_all(builder, rank, 1..=4));
    let case = |after: u64| {
        let mut machine = whole.copy(&dir.path().join(after.to_string()));
        machine.lose(&[0]);
        let calls = failing(&mut machine, failing_ranks, after, |rank, builder| {
            let opened = builder.open().and_then(|store| store.session("heat"));
            // What is restored is right; `restore` compares it.
            drop(opened.and_then(|mut session| restore(&mut session, rank)));
        });
        if failing_ranks == [0] && after.is_multiple_of(2) {
            // The spare node is lost, too.
            machine.lose(&[0]);
        }
        assert_eq!(newest(&mut machine), [Some(4); 3], "interrupted after {after}");
        assert!([3, 4].iter().all(|version| has_version(&machine, 0, *version)));
        // And it is protected again.
        machine.lose(&[1]);
        assert_eq!(newest(&mut machine), [Some(4); 3], "interrupted after {after}, then another one");
        std::fs::remove_dir_all(dir.path().join(after.to_string())).unwrap();
        calls
    };
    let all = case(1 << 40);
    let points = amount(8, 120).min(all);
    for point in 0..points {
        case(point * all / points);
    }
    covered("nodes lost while versions are made again", format_args!("{points} points, lost: 0"));
}

#[test]
fn a_rebuild_may_be_interrupted_at_every_point() {
    fails_while_rebuilding(&[0]);
}

#[test]
fn those_who_keep_shards_may_fail_at_every_point_of_a_rebuild() {
    fails_while_rebuilding(&[1]);
}
