//! Outcrop's tape, with copies and without.

use std::{path::Path, time::Instant};

use anyhow::Result;
use outcrop::{Order, Tape};

use super::{Way, save_all};
use crate::{
    clock::Calls,
    workload::{Arithmetic, Workload},
};

/// States on a tape, copied there or computed directly into their slots.
pub(crate) struct OnTape {
    tape: Tape,
    is_lent: bool,
}

impl OnTape {
    pub(crate) fn new(directory: &Path, workload: &Workload, host_bytes: u64, is_lent: bool) -> Result<Self> {
        let disk_bytes = workload.total_bytes() + (64 << 20);
        let builder = Tape::builder().host(host_bytes).dir(directory, disk_bytes);
        Ok(Self { tape: builder.order(Order::Reverse).open()?, is_lent })
    }
}

impl Way for OnTape {
    fn name(&self) -> &'static str {
        if self.is_lent { "tape, lend" } else { "tape, save" }
    }

    fn forward(&mut self, workload: &Workload, arithmetic: &mut dyn Arithmetic, saves: &mut Calls) -> Result<()> {
        if !self.is_lent {
            return save_all(self, workload, arithmetic, saves);
        }
        let mut now = None;
        let zero = vec![0.0f32; workload.len];
        for step in 0..workload.count {
            let start = Instant::now();
            let mut next = self.tape.lend::<f32>(step, workload.len)?;
            let lent = start.elapsed();
            arithmetic.advance(now.as_deref().unwrap_or(&zero), &mut next);
            let start = Instant::now();
            now = Some(next.seal_and_keep());
            saves.add(lent + start.elapsed());
        }
        Ok(())
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        Ok(self.tape.save(step, now)?)
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(&self.tape.take::<f32>(step)?);
        Ok(())
    }

    fn hits(&self) -> Option<u64> {
        Some(self.tape.stats().hits)
    }

    fn details(&self) -> serde_json::Value {
        serde_json::to_value(self.tape.stats()).unwrap_or_default()
    }
}
