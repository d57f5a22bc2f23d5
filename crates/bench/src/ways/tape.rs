//! Outcrop's tape, with copies and without.

use std::path::Path;

use anyhow::Result;
use outcrop::{Order, Tape};

use super::Way;
use crate::{
    clock::Calls,
    workload::{Workload, advance},
};

fn open(directory: &Path, workload: &Workload, host_bytes: u64) -> Result<Tape> {
    let disk_bytes = workload.total_bytes() + (64 << 20);
    Ok(Tape::builder().host(host_bytes).dir(directory, disk_bytes).order(Order::Reverse).open()?)
}

fn take(tape: &mut Tape, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
    let past = tape.take::<f32>(step)?;
    read(&past);
    Ok(())
}

fn details(tape: &Tape) -> serde_json::Value {
    serde_json::to_value(tape.stats()).unwrap_or_default()
}

/// Saves by copying.
pub(crate) struct TapeSave(Tape);

impl TapeSave {
    pub(crate) fn new(directory: &Path, workload: &Workload, host_bytes: u64) -> Result<Self> {
        Ok(Self(open(directory, workload, host_bytes)?))
    }
}

impl Way for TapeSave {
    fn name(&self) -> &'static str {
        "tape, save"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        Ok(self.0.save(step, now)?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        take(&mut self.0, step, read)
    }

    fn hits(&self) -> Option<u64> {
        Some(self.0.stats().hits)
    }

    fn details(&self) -> serde_json::Value {
        details(&self.0)
    }
}

/// Computes straight into the slots.
pub(crate) struct TapeLend(Tape);

impl TapeLend {
    pub(crate) fn new(directory: &Path, workload: &Workload, host_bytes: u64) -> Result<Self> {
        Ok(Self(open(directory, workload, host_bytes)?))
    }
}

impl Way for TapeLend {
    fn name(&self) -> &'static str {
        "tape, lend"
    }

    fn forward(&mut self, workload: &Workload, saves: &mut Calls) -> Result<()> {
        let mut now = None;
        let zero = vec![0.0f32; workload.len];
        for step in 0..workload.count {
            let start = std::time::Instant::now();
            let mut next = self.0.lend::<f32>(step, workload.len)?;
            let lent = start.elapsed();
            advance(now.as_deref().unwrap_or(&zero), &mut next, workload.depth);
            let start = std::time::Instant::now();
            now = Some(next.seal_and_keep());
            saves.add(lent + start.elapsed());
        }
        Ok(())
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        Ok(self.0.save(step, now)?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        take(&mut self.0, step, read)
    }

    fn hits(&self) -> Option<u64> {
        Some(self.0.stats().hits)
    }

    fn details(&self) -> serde_json::Value {
        details(&self.0)
    }
}
