//! The ways to keep a program's checkpoints: none, full, by written pages, and by hashes.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use anyhow::{Context, Result};
use outcrop::{
    Part, Retention, Session, Store,
    catalog::Catalog,
    layers::{Host, Slot, aligned},
};
use outcrop_track::{TrackOptions, Tracker, Way};

use super::Options;
use crate::{disk, workload::bytes};

/// Checkpoints before the first measured one. After them, a store has its memory, and has chosen
/// how to find changes.
pub(super) const WARM_UP: usize = 3;

/// Keeps checkpoints in the background.
pub(super) trait Keeper {
    /// Saves the state. Returns when the program may change it again.
    fn save(&mut self, version: u64, state: &[f32]) -> Result<()>;

    /// Waits until everything is durable.
    fn flush(&mut self) -> Result<()>;

    /// The bytes written so far, including merges.
    fn written_bytes(&self) -> u64;

    /// The size of the latest checkpoint.
    fn checkpoint_bytes(&self) -> Result<u64>;
}

/// No checkpoints.
pub(super) struct Nothing;

impl Keeper for Nothing {
    fn save(&mut self, _version: u64, _state: &[f32]) -> Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        0
    }

    fn checkpoint_bytes(&self) -> Result<u64> {
        Ok(0)
    }
}

/// A store that saves everything each time, or only changes.
pub(super) struct InStore {
    path: PathBuf,
    store: Store,
    session: Session,
}

impl InStore {
    pub(super) fn new(directory: &Path, options: &Options, is_incremental: bool) -> Result<Self> {
        let keep = Retention { keep_last: Some(2), ..Retention::default() };
        let path = directory.join("store");
        let builder = Store::builder().host(options.host_bytes()).dir(&path, None).keep(keep);
        let store = builder.incremental(is_incremental).open()?;
        Ok(Self { path, session: store.session("bench")?, store })
    }
}

impl Keeper for InStore {
    fn save(&mut self, version: u64, state: &[f32]) -> Result<()> {
        Ok(self.session.save(version, &[Part::new("state", state)])?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.session.flush()?)
    }

    fn written_bytes(&self) -> u64 {
        self.store.stats().layers[1].written_bytes
    }

    fn checkpoint_bytes(&self) -> Result<u64> {
        Ok(Catalog::open(&self.path)?.version("bench", None)?.stored_bytes())
    }
}

/// The number of versions in flight: the default of a store.
const IN_FLIGHT: u64 = 2;

/// Writes every changed page to a new file for each checkpoint: a page-based checkpoint without
/// hashes.
pub(super) struct ByPages {
    tracker: Tracker,
    written_bytes: u64,
    checkpoint_bytes: u64,
    spare: Vec<Slot>,
    /// Buffers whose contents have been written.
    given_back: Receiver<Result<Slot>>,
    filled: Sender<(Slot, usize)>,
}

impl ByPages {
    pub(super) fn new(directory: &Path, options: &Options) -> Result<Self> {
        let slot_bytes = aligned(options.state_bytes);
        let host = Host::new(IN_FLIGHT * slot_bytes)?;
        host.touch(0..host.capacity())?;
        let slot = |number| host.slot(number * slot_bytes, slot_bytes);
        let spare = (0..IN_FLIGHT).map(slot).collect::<Result<Vec<_>, _>>()?;
        let (filled, jobs) = channel::<(Slot, usize)>();
        let (results, given_back) = channel();
        let directory = directory.to_owned();
        // The thread ends when the channel is closed.
        thread::spawn(move || {
            for (number, (slot, bytes)) in jobs.iter().enumerate() {
                let result = write(&directory.join(format!("pages-{number}")), &slot[..aligned(bytes as u64) as usize]);
                let _ = results.send(result.map(|()| slot));
            }
        });
        let tracker = Tracker::new(TrackOptions { way: Way::Pages, ..TrackOptions::default() });
        Ok(Self { tracker, written_bytes: 0, checkpoint_bytes: 0, spare, given_back, filled })
    }

    fn next_slot(&self) -> Result<Slot> {
        self.given_back.recv().context("the thread that writes has ended")?
    }
}

fn write(path: &Path, pages: &[u8]) -> Result<()> {
    let file = disk::open_direct(path)?;
    file.write_all_at(pages, 0)?;
    Ok(file.sync_data()?)
}

impl Keeper for ByPages {
    fn save(&mut self, _version: u64, state: &[f32]) -> Result<()> {
        let memory = bytes(state);
        let mut slot = self.spare.pop().map_or_else(|| self.next_slot(), Ok)?;
        let mut at = 0;
        for range in self.tracker.changed("state", memory).ranges {
            slot[at..at + range.len()].copy_from_slice(&memory[range.clone()]);
            at += range.len();
        }
        self.checkpoint_bytes = at as u64;
        self.written_bytes += self.checkpoint_bytes;
        self.filled.send((slot, at)).context("the thread that writes has ended")
    }

    fn flush(&mut self) -> Result<()> {
        while self.spare.len() < IN_FLIGHT as usize {
            self.spare.push(self.next_slot()?);
        }
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    fn checkpoint_bytes(&self) -> Result<u64> {
        Ok(self.checkpoint_bytes)
    }
}
