//! Real power cuts: ext4 on a loop device is shut down in the middle of a protocol. What is left
//! must be something that a recording allows.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_crash::{Errno, Failing, Fault, Options, Recording, Tree};
use outcrop_layers::files::{DiskFiles, Files};
use outcrop_testing::{Cut, Disk, FileSystem, alone, skip, with_own_mounts};

use crate::common::{Bug, open, recover, save};

const VERSIONS: u8 = 4;

/// Calls `test` with a small ext4.
fn with_ext4(test: impl Fn(&Arc<Disk>) + Sync) {
    with_own_mounts(|given| match Disk::make(given, FileSystem::Ext4).map(Arc::new) {
        Ok(ext4) => test(&ext4),
        Err(reason) => skip(format_args!("no ext4 that could be shut down: {reason}")),
    });
}

/// Saves until something fails. Returns the newest version that was reported as durable.
fn save_all(files: &dyn Files, bug: Option<Bug>) -> u8 {
    if open(files, bug).is_err() {
        return 0;
    }
    (1..=VERSIONS).take_while(|version| save(files, *version, bug).is_ok()).last().unwrap_or(0)
}

/// Cuts a run before one of its operations, or after the last. Returns the newest version that was
/// reported, and the files that are left.
fn cut_before(ext4: &Arc<Disk>, operation: u64, cut: Cut, bug: Option<Bug>) -> (u8, DiskFiles) {
    let root = ext4.path().join(format!("{operation}-{cut:?}-{bug:?}"));
    fs::create_dir(&root).unwrap();
    fs::File::open(ext4.path()).unwrap().sync_all().unwrap();
    let (seen, ends) = (AtomicU64::new(0), ext4.clone());
    let disk = DiskFiles::open(&root).unwrap();
    let failing = Failing::new(Arc::new(disk.clone())).watched(move |_, _| {
        if seen.fetch_add(1, Relaxed) == operation {
            ends.cut(cut);
        }
    });
    let reported = save_all(&failing, bug);
    if failing.calls(None) <= operation {
        ext4.cut(cut);
    }
    drop(failing);
    ext4.power_up();
    (reported, disk)
}

/// The number of operations of a run.
fn operations(bug: Option<Bug>) -> u64 {
    let failing = Failing::over(Recording::new());
    assert_eq!(save_all(&failing, bug), VERSIONS);
    failing.calls(None)
}

#[test]
fn a_power_cut_leaves_what_a_recording_says() {
    if alone("power_cut::a_power_cut_leaves_what_a_recording_says") {
        return;
    }
    with_ext4(|ext4| {
        let operations = operations(None);
        for (operation, cut) in (0..=operations).flat_map(|at| [(at, Cut::WithJournal), (at, Cut::Sudden)]) {
            let (reported, disk) = cut_before(ext4, operation, cut, None);
            let newest =
                recover(&disk).unwrap_or_else(|reason| panic!("{cut:?} before operation {operation}: {reason}"));
            assert!(newest >= reported, "{cut:?} before operation {operation}: {newest} instead of {reported}");

            let recording = Recording::new();
            let failing = Failing::over(recording.clone());
            failing.inject(Fault { after: operation, is_lasting: true, ..Fault::new(Errno::IO) });
            assert_eq!(save_all(&failing, None), reported);
            recording.mark("cut");
            let (log, found) = (recording.log(), Tree::copy_of(&disk).unwrap());
            let mut possible = log.images(&Options::default()).filter(|image| !image.marks().is_empty());
            assert!(possible.any(|image| *image.tree() == found), "{cut:?} before operation {operation}: {found:?}");
        }
    });
}

#[test]
fn bugs_show_on_a_real_file_system() {
    if alone("power_cut::bugs_show_on_a_real_file_system") {
        return;
    }
    with_ext4(|ext4| {
        for (bug, cut) in [(Bug::NoSyncOfDir, Cut::Sudden), (Bug::NoSyncOfManifest, Cut::WithJournal)] {
            let is_lost = (0..=operations(Some(bug))).any(|operation| {
                let (reported, disk) = cut_before(ext4, operation, cut, Some(bug));
                !recover(&disk).is_ok_and(|newest| newest >= reported)
            });
            assert!(is_lost, "{bug:?} with {cut:?} lost nothing: these cuts prove nothing");
        }
    });
}
