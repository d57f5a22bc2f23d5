//! A protocol that saves versions survives every crash. With a planted bug it does not, and each
//! bug is found.

use outcrop_crash::{Errno, Failing, Failure, Fault, Image, Log, Operation, Options, Recording, check};
use outcrop_layers::files::Files;

use crate::common::{Bug, clean, open, recover, save};

const VERSIONS: u8 = 5;

/// Saves some versions, with a mark after each that was reported as durable.
fn run(recording: &Recording, files: &dyn Files, bug: Option<Bug>) {
    let saved = open(files, bug).and_then(|()| {
        (1..=VERSIONS).try_for_each(|version| {
            save(files, version, bug)?;
            recording.mark(version.to_string());
            Ok(())
        })
    });
    if let Err(error) = saved {
        recording.mark(format!("failed: {error}"));
    }
}

fn recorded(bug: Option<Bug>) -> Log {
    let recording = Recording::new();
    run(&recording, &recording, bug);
    recording.log()
}

/// The newest version that was reported as durable.
fn reported(marks: &[String]) -> u8 {
    marks.iter().filter_map(|mark| mark.parse().ok()).max().unwrap_or(0)
}

fn is_recovered(image: &Image<'_>, marks: &[String]) -> Result<(), String> {
    expect_version(&Recording::from_tree(image.tree().clone()), reported(marks))
}

fn expect_version(files: &dyn Files, reported: u8) -> Result<(), String> {
    match recover(files)? {
        newest if newest >= reported => Ok(()),
        newest => Err(format!("version {reported} was durable, but the newest is {newest}")),
    }
}

fn first_failure(log: &Log) -> Option<Failure> {
    check(log, &Options::default(), is_recovered).failure
}

#[test]
fn the_protocol_survives_every_crash() {
    let report = check(&recorded(None), &Options::default(), is_recovered);
    report.expect_none_lost();
    println!("{report}");
    assert!(report.images > 200 && report.opened == report.images, "{report:?}");
    let images = report.images;
    assert_eq!(report.to_string(), format!("crash images: {images}, observable: {images}, opened: {images}, lost: 0"));
}

#[test]
fn every_bug_is_found() {
    let bugs = [
        Bug::NoSyncOfPack,
        Bug::SyncsWrongFile,
        Bug::ManifestBeforePack,
        Bug::NoSyncOfManifest,
        Bug::InPlace,
        Bug::NoSyncOfDir,
        Bug::NoSyncOfParent,
        Bug::RemovesTooEarly,
        Bug::RemovesPackFirst,
    ];
    for bug in bugs {
        let log = recorded(Some(bug));
        let last = log.images(&Options::default()).last().unwrap();
        assert_eq!(reported(last.marks()), VERSIONS, "{bug:?}: without a crash nothing is wrong");
        let failure = first_failure(&log).unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: {failure}");
        // The name of the image is enough to build it again, in another process too.
        let id = failure.id.to_string().parse().unwrap();
        let again = recorded(Some(bug));
        let image = again.image(id).unwrap();
        assert_eq!(is_recovered(&image, image.marks()), Err(failure.reason), "{bug:?}");
        assert_eq!(again.story(id).unwrap(), failure.story);
    }
}

#[test]
fn a_bug_is_found_in_windows_too_long_for_every_subset() {
    let few = Options { subset_operations_max: 0, samples: 0, seed: 0 };
    check(&recorded(None), &few, is_recovered).expect_none_lost();
    for bug in [Bug::NoSyncOfPack, Bug::NoSyncOfManifest, Bug::NoSyncOfDir, Bug::RemovesTooEarly, Bug::RemovesPackFirst]
    {
        let report = check(&recorded(Some(bug)), &few, is_recovered);
        assert!(report.failure.is_some(), "{bug:?} was not found");
    }
    let chance = Options { samples: 200, ..few };
    assert!(check(&recorded(Some(Bug::InPlace)), &chance, is_recovered).failure.is_some());
}

#[test]
fn recovery_itself_can_crash() {
    let few = Options { subset_operations_max: 3, samples: 4, seed: 7 };
    let mut inner_images = 0;
    let outer = check(&recorded(None), &few, |image, marks| {
        let recording = Recording::from_tree(image.tree().clone());
        let newest = recover(&recording)?;
        clean(&recording).map_err(|error| error.to_string())?;
        let report = check(&recording.log(), &few, |image, _| {
            expect_version(&Recording::from_tree(image.tree().clone()), newest.max(reported(marks)))
        });
        inner_images += report.images;
        report.failure.map_or(Ok(()), |failure| Err(failure.to_string()))
    });
    outer.expect_none_lost();
    assert!(inner_images > outer.images, "recovery has changed something");
}

#[test]
fn a_panic_is_a_failure_with_a_name() {
    let log = recorded(None);
    let report = check(&log, &Options::default(), |_, marks| {
        assert!(reported(marks) < 3, "on purpose");
        Ok(())
    });
    let failure = report.failure.as_ref().unwrap();
    assert!(failure.reason.contains("panicked: on purpose"), "{failure}");
    assert_eq!(reported(log.image(failure.id).unwrap().marks()), 3);
    assert!(report.to_string().ends_with("lost: 1"), "{report}");
}

/// Every operation of the protocol fails, once or permanently. What was reported before is safe,
/// even after a crash.
#[test]
fn every_operation_can_fail() {
    let count = {
        let recording = Recording::new();
        let failing = Failing::over(recording.clone());
        run(&recording, &failing, None);
        failing.calls(None)
    };
    assert!(count > 50);
    let few = Options { subset_operations_max: 6, samples: 4, seed: 1 };
    for (after, errno) in (0..count).flat_map(|after| [(after, Errno::IO), (after, Errno::NOSPC)]) {
        for is_lasting in [false, true] {
            let recording = Recording::new();
            let failing = Failing::over(recording.clone());
            let leaves_half = errno == Errno::NOSPC;
            failing.inject(Fault { after, is_lasting, leaves_half, ..Fault::new(errno) });
            run(&recording, &failing, None);
            assert_eq!(failing.failed(), 1, "the first error ends the run");
            let log = recording.log();
            assert!(log.images(&few).last().unwrap().marks().last().unwrap().starts_with("failed"), "{log:?}");
            check(&log, &few, is_recovered).expect_none_lost();
        }
    }
}

#[test]
fn a_sync_that_failed_is_not_made_good_by_another() {
    let failures = |bug| {
        let recording = Recording::new();
        let failing = Failing::over(recording.clone());
        failing.inject(Fault { of: Some(Operation::Sync), after: 2, ..Fault::new(Errno::IO) });
        run(&recording, &failing, bug);
        assert_eq!(failing.failed(), 1);
        first_failure(&recording.log())
    };
    assert_eq!(failures(None), None, "who gives up loses nothing");
    let failure = failures(Some(Bug::SyncsAgain)).expect("the pack may be lost though its second sync succeeded");
    assert!(failure.reason.contains("pack"), "{failure}");
    assert_eq!(first_failure(&recorded(Some(Bug::SyncsAgain))), None, "without a fault nothing is wrong");
}
