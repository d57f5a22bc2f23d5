//! Real power cuts: ext4 on a loop device is shut down in the middle of a protocol, and what is
//! left must be what a recording says that can be left.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use outcrop_crash::{Errno, Failing, Fault, Options, Recording, Tree};
use outcrop_layers::files::{DiskFiles, Files};
use outcrop_testing::{alone, skip, with_own_mounts};
use rustix::{
    ioctl::{Setter, ioctl, opcode},
    mount::{UnmountFlags, unmount},
};

use crate::common::{Bug, open, recover, save};

const VERSIONS: u8 = 4;

/// How a file system ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The journal reaches the medium, and of the bytes of files only what had been written.
    WithJournal = 1,
    /// Nothing does.
    Sudden = 2,
}

/// A small ext4.
struct Ext4 {
    image: PathBuf,
    path: PathBuf,
}

impl Ext4 {
    fn make(given: &Path) -> Result<Self, String> {
        let (image, path) = (given.join("image"), given.join("medium"));
        fs::create_dir(&path).unwrap();
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let ext4 = Self { image, path };
        run(Command::new("mkfs.ext4").arg("-q").arg(&ext4.image))?;
        ext4.mount()?;
        Ok(ext4)
    }

    fn mount(&self) -> Result<(), String> {
        run(Command::new("mount").args(["-o", "loop"]).args([&self.image, &self.path]))
    }

    fn cut(&self, cut: Cut) {
        const SHUTDOWN: rustix::ioctl::Opcode = opcode::read::<u32>(b'X', 125);
        let root = fs::File::open(&self.path).unwrap();
        // SAFETY: this call takes a pointer to one number, and ends a file system that is this
        // test's own.
        unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(cut as u32)) }.unwrap();
    }

    /// What the machine finds when it is on again.
    fn power_up(&self) {
        unmount(&self.path, UnmountFlags::empty()).unwrap();
        self.mount().unwrap();
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // It is gone with the namespace of its mount at the latest.
        let _ = unmount(&self.path, UnmountFlags::empty());
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        outcome => Err(format!("{command:?} gave {outcome:?}")),
    }
}

/// Calls `test` with a small ext4. The test must run alone: a process that another test starts
/// would have this one's files open for a moment, and the file system could not be unmounted.
fn with_ext4(test: impl Fn(&Arc<Ext4>) + Sync) {
    with_own_mounts(|given| match Ext4::make(given).map(Arc::new) {
        Ok(ext4) => test(&ext4),
        Err(reason) => skip(format_args!("no ext4 that could be shut down: {reason}")),
    });
}

/// Saves until something fails, and returns the newest version that was reported durable.
fn save_all(files: &dyn Files, bug: Option<Bug>) -> u8 {
    if open(files, bug).is_err() {
        return 0;
    }
    (1..=VERSIONS).take_while(|version| save(files, *version, bug).is_ok()).last().unwrap_or(0)
}

/// What is left of a run that is cut before one of its operations, or after the last: what was
/// reported, and the files.
fn cut_before(ext4: &Arc<Ext4>, operation: u64, cut: Cut, bug: Option<Bug>) -> (u8, DiskFiles) {
    let root = ext4.path.join(format!("{operation}-{cut:?}-{bug:?}"));
    fs::create_dir(&root).unwrap();
    fs::File::open(&ext4.path).unwrap().sync_all().unwrap();
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

/// How many operations a run has.
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
