//! Where a shot keeps its snapshots between the forward and the backward pass.

use crate::error::HistoryError;
use outcrop::Tape;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use zerocopy::IntoBytes;

/// Where a shot keeps its snapshots between the forward and the backward pass.
///
/// It is `Send` because a shot runs inside the pool of its compute threads.
pub trait History: Send {
    /// Has `fill` write the `len` values of the snapshot of `step`, and keeps them.
    fn record(&mut self, step: usize, len: usize, fill: &mut dyn FnMut(&mut [f32])) -> Result<(), HistoryError>;

    /// Shows the snapshot of `step` to `read`, then drops it. Called in reverse order.
    fn replay(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<(), HistoryError>;
}

/// On a tape the field is gathered straight into the slot that is lent for it, and correlated in
/// place.
impl History for Tape {
    fn record(&mut self, step: usize, len: usize, fill: &mut dyn FnMut(&mut [f32])) -> Result<(), HistoryError> {
        let mut slot = self.lend(step, len)?;
        fill(&mut slot);
        slot.seal();
        Ok(())
    }

    fn replay(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<(), HistoryError> {
        read(&self.take::<f32>(step)?);
        Ok(())
    }
}

/// Keeps every snapshot in memory of its own.
#[derive(Debug, Default)]
pub struct InMemory {
    snapshots: BTreeMap<usize, Vec<f32>>,
}

impl InMemory {
    /// An empty history.
    pub fn new() -> Self {
        Self::default()
    }
}

impl History for InMemory {
    fn record(&mut self, step: usize, len: usize, fill: &mut dyn FnMut(&mut [f32])) -> Result<(), HistoryError> {
        let mut snapshot = vec![0.0; len];
        fill(&mut snapshot);
        self.snapshots.insert(step, snapshot);
        Ok(())
    }

    fn replay(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<(), HistoryError> {
        let snapshot = self.snapshots.remove(&step).ok_or_else(|| never_recorded(step))?;
        read(&snapshot);
        Ok(())
    }
}

/// Writes every snapshot to a plain file of its own and waits for it: what programs do that have no
/// Outcrop.
///
/// Files are removed when their snapshot is replayed, and all others when the history is dropped.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    prefix: String,
    sync: bool,
    buffer: Vec<f32>,
    /// The steps that have a file, with the values in each.
    kept: BTreeMap<usize, usize>,
}

/// Tells the histories of one process apart, so that several may share a directory.
static HISTORIES: AtomicUsize = AtomicUsize::new(0);

impl Files {
    /// A history in a directory, which is made if it is not there. With `sync` every file is on the
    /// device before [`record`](History::record) returns; without, the system writes it some time
    /// later.
    pub fn new(directory: &Path, sync: bool) -> std::io::Result<Self> {
        fs::create_dir_all(directory)?;
        let number = HISTORIES.fetch_add(1, Ordering::Relaxed);
        Ok(Files {
            directory: directory.to_owned(),
            prefix: format!("history-{}-{number}", std::process::id()),
            sync,
            buffer: Vec::new(),
            kept: BTreeMap::new(),
        })
    }

    fn path(&self, step: usize) -> PathBuf {
        self.directory.join(format!("{}-{step:07}.f32", self.prefix))
    }
}

impl History for Files {
    fn record(&mut self, step: usize, len: usize, fill: &mut dyn FnMut(&mut [f32])) -> Result<(), HistoryError> {
        self.buffer.resize(len, 0.0);
        fill(&mut self.buffer);
        let path = self.path(step);
        // Noted before it is written, so that a half-written file is removed too.
        self.kept.insert(step, len);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(self.buffer.as_bytes())?;
            if self.sync { file.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| format!("cannot write {}: {error}", path.display()).into())
    }

    fn replay(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<(), HistoryError> {
        let len = *self.kept.get(&step).ok_or_else(|| never_recorded(step))?;
        let path = self.path(step);
        self.buffer.resize(len, 0.0);
        File::open(&path)
            .and_then(|mut file| file.read_exact(self.buffer.as_mut_bytes()))
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        read(&self.buffer);
        self.kept.remove(&step);
        fs::remove_file(&path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for &step in self.kept.keys() {
            // There is no caller left to tell; a file that stays is found by its name.
            let _ = fs::remove_file(self.path(step));
        }
    }
}

fn never_recorded(step: usize) -> HistoryError {
    format!("step {step} was never recorded, or was already replayed").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_in(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn snapshots_come_back_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut histories: [Box<dyn History>; 3] = [
            Box::new(InMemory::new()),
            Box::new(Files::new(directory.path(), false).unwrap()),
            Box::new(Files::new(&directory.path().join("made/on/demand"), true).unwrap()),
        ];
        for history in &mut histories {
            for step in [0, 3, 6] {
                history.record(step, 5, &mut |values| values.fill(step as f32 + 0.5)).unwrap();
            }
            for step in [6, 3, 0] {
                let mut seen = Vec::new();
                history.replay(step, &mut |values| seen.extend_from_slice(values)).unwrap();
                assert_eq!(seen, [step as f32 + 0.5; 5]);
            }
            let error = history.replay(3, &mut |_| panic!("nothing to show")).unwrap_err();
            assert!(error.to_string().contains("step 3"), "{error}");
        }
    }

    #[test]
    fn no_file_is_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = Files::new(directory.path(), false).unwrap();
        for step in 0..4 {
            history.record(step, 8, &mut |values| values.fill(1.0)).unwrap();
        }
        history.replay(3, &mut |_| {}).unwrap();
        assert_eq!(files_in(directory.path()), 3);
        drop(history);
        assert_eq!(files_in(directory.path()), 0);
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = Files::new(directory.path(), false).unwrap();
        history.record(7, 100, &mut |values| values.fill(1.0)).unwrap();
        File::options().write(true).open(history.path(7)).unwrap().set_len(10).unwrap();
        let error = history.replay(7, &mut |_| panic!("nothing to show")).unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
}
