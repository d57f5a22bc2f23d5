//! An asynchronous ring: buffers and one thread, as a careful programmer would write it in an
//! afternoon.
//!
//! Write-behind in the forward pass, prefetch in the backward pass, O_DIRECT. It supports one
//! order, one size and one file, and does not handle faults.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

use anyhow::{Context, Result};
use outcrop::layers::{Host, Slot, aligned};

use super::Way;
use crate::{
    disk,
    workload::{Workload, bytes, state},
};

/// The program's side of the ring.
pub(crate) struct Ring {
    bytes: usize,
    count: usize,
    slots: usize,
    /// The states that were still in buffers when the backward pass began, newest last.
    kept: Option<Vec<(usize, Slot)>>,
    /// Buffers that the thread has written in the forward pass, or filled in the backward pass.
    from_thread: Receiver<(usize, Slot)>,
    to_thread: Option<Sender<(usize, Slot)>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Ring {
    pub(crate) fn new(directory: &Path, workload: &Workload, host_bytes: u64) -> Result<Self> {
        let slot_bytes = aligned(workload.snapshot_bytes() as u64);
        let count = workload.count;
        let slots = (host_bytes / slot_bytes).clamp(2, count as u64);
        let host = Host::new(slots * slot_bytes)?;
        host.touch(0..host.capacity())?;
        let file = disk::open_direct(&directory.join("states"))?;
        let (to_thread, jobs) = channel();
        let (results, from_thread) = channel();
        for slot in 0..slots {
            results.send((0, host.slot(slot * slot_bytes, slot_bytes)?))?;
        }
        let slots = slots as usize;
        let thread = Some(std::thread::spawn(move || serve(&file, (count, slots), slot_bytes, &jobs, &results)));
        let (bytes, to_thread) = (workload.snapshot_bytes(), Some(to_thread));
        Ok(Self { bytes, count, slots, kept: None, from_thread, to_thread, thread })
    }
}

/// Writes until all states have arrived. Then reads backwards, starting with the newest state that
/// is not in a buffer, into every buffer that is given back.
fn serve(
    file: &File,
    (count, slots): (usize, usize),
    slot_bytes: u64,
    jobs: &Receiver<(usize, Slot)>,
    results: &Sender<(usize, Slot)>,
) -> std::io::Result<()> {
    for (step, slot) in jobs.iter().take(count) {
        file.write_all_at(&slot, step as u64 * slot_bytes)?;
        let _ = results.send((step, slot));
    }
    for (step, (_, mut slot)) in (0..count - slots).rev().zip(jobs) {
        file.read_exact_at(&mut slot, step as u64 * slot_bytes)?;
        let _ = results.send((step, slot));
    }
    Ok(())
}

impl Way for Ring {
    fn name(&self) -> &'static str {
        "asynchronous ring"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        let (_, mut slot) = self.from_thread.recv().context("the ring's thread has failed")?;
        slot[..self.bytes].copy_from_slice(bytes(now));
        Ok(self.to_thread.as_ref().context("the ring is closed")?.send((step, slot))?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        if self.kept.is_none() {
            self.kept = Some(self.from_thread.iter().take(self.slots).collect());
        }
        let kept = self.kept.as_mut().and_then(Vec::pop);
        let (found, slot) = kept.map_or_else(|| self.from_thread.recv(), Ok).context("the ring's thread has failed")?;
        anyhow::ensure!(found == step, "the ring gave state {found} instead of {step} of {}", self.count);
        read(state(&slot[..self.bytes]));
        // The last buffers are not filled again.
        let _ = self.to_thread.as_ref().context("the ring is closed")?.send((step, slot));
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.to_thread = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
