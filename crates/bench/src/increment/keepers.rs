//! The ways of keeping a program's checkpoints: none, full, by written pages, and by hashes.

use std::{
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

use anyhow::{Context, Result};
use outcrop::{
    Part, Retention, Session, Store,
    layers::{Host, Layer, Slot, aligned},
};
use outcrop_track::{TrackOptions, Tracker, Way};

use super::Options;
use crate::{disk, workload::bytes};

/// Checkpoints before the first one that counts: afterwards a store has the memory that it needs and knows how to find changes.
pub(super) const WARM_UP: usize = 3;

/// Keeps checkpoints in the background.
pub(super) trait Keeper {
    /// Keeps the state; returns when the program may go on.
    fn save(&mut self, version: u64, state: &[f32]) -> Result<()>;

    /// Waits until everything is durable.
    fn flush(&mut self) -> Result<()>;

    /// What has been written until now.
    fn written_bytes(&self) -> u64;
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
}

/// A store, that saves everything each time or finds out what has changed.
pub(super) struct InStore {
    store: Store,
    session: Session,
}

impl InStore {
    pub(super) fn new(directory: &Path, options: &Options, is_incremental: bool) -> Result<Self> {
        let keep = Retention { keep_last: Some(2), ..Retention::default() };
        let builder = Store::builder().host(options.host_bytes()).dir(directory.join("store"), None).keep(keep);
        let store = builder.incremental(is_incremental).open()?;
        Ok(Self { session: store.session("bench")?, store })
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
}

/// Every page that was written to, into a new file for each checkpoint: what is done where nothing is hashed.
pub(super) struct ByPages {
    tracker: Tracker,
    written_bytes: u64,
    /// As many buffers as a store has versions on their way.
    free: Receiver<Slot>,
    filled: Option<Sender<(Slot, usize)>>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// As many versions as a store has on their way, where nothing else is said.
const IN_FLIGHT: u64 = 2;

impl ByPages {
    pub(super) fn new(directory: &Path, options: &Options) -> Result<Self> {
        let slot_bytes = aligned(options.state_bytes);
        let host = Host::new(IN_FLIGHT * slot_bytes)?;
        host.touch(0..host.capacity())?;
        let (filled, jobs) = channel();
        let (given_back, free) = channel();
        for slot in 0..IN_FLIGHT {
            given_back.send(host.slot(slot * slot_bytes, slot_bytes)?)?;
        }
        let directory = directory.to_owned();
        let thread = Some(std::thread::spawn(move || write(&directory, &jobs, &given_back)));
        let tracker = Tracker::new(TrackOptions { way: Way::Pages, ..TrackOptions::default() });
        Ok(Self { tracker, written_bytes: 0, free, filled: Some(filled), thread })
    }
}

fn write(directory: &Path, jobs: &Receiver<(Slot, usize)>, given_back: &Sender<Slot>) -> Result<()> {
    for (number, (slot, bytes)) in jobs.iter().enumerate() {
        let path: PathBuf = directory.join(format!("pages-{number}"));
        let file = disk::open_direct(&path)?;
        file.write_all_at(&slot[..aligned(bytes as u64) as usize], 0)?;
        file.sync_data()?;
        // Nobody takes it back in the end.
        let _ = given_back.send(slot);
    }
    Ok(())
}

impl Keeper for ByPages {
    fn save(&mut self, _version: u64, state: &[f32]) -> Result<()> {
        let memory = bytes(state);
        let mut slot = self.free.recv().context("the thread that writes has failed")?;
        let mut at = 0;
        for range in self.tracker.changed("state", memory).ranges {
            slot[at..at + range.len()].copy_from_slice(&memory[range.clone()]);
            at += range.len();
        }
        self.written_bytes += at as u64;
        Ok(self.filled.as_ref().context("it is closed")?.send((slot, at))?)
    }

    fn flush(&mut self) -> Result<()> {
        self.filled = None;
        let thread = self.thread.take().context("it is flushed once")?;
        thread.join().map_err(|_| anyhow::anyhow!("the thread that writes has panicked"))?
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes
    }
}
