//! The ways in which a program can keep its states.

mod direct;
mod files;
mod mapped;
mod memory;
mod ring;
mod tape;

use anyhow::Result;

pub(crate) use direct::Direct;
pub(crate) use files::Files;
pub(crate) use mapped::Mapped;
pub(crate) use memory::{Copies, Fresh, Nothing, Touched};
pub(crate) use ring::Ring;
pub(crate) use tape::OnTape;

use crate::{
    clock::Calls,
    workload::{Arithmetic, Workload},
};

/// Keeps states in the forward pass and returns them, newest first, in the backward pass.
pub(crate) trait Way {
    fn name(&self) -> &'static str;

    /// Keeps a state.
    fn save(&mut self, step: usize, now: &[f32]) -> Result<()>;

    /// Lets `read` see a state, for the last time.
    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()>;

    /// Runs the forward pass. A way with slots to compute into overrides it.
    fn forward(&mut self, workload: &Workload, arithmetic: &mut dyn Arithmetic, saves: &mut Calls) -> Result<()> {
        save_all(self, workload, arithmetic, saves)
    }

    /// How many reads found their state in memory, if known.
    fn hits(&self) -> Option<u64> {
        None
    }

    /// Details of the run.
    fn details(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// A forward pass that computes in its own memory and saves each state.
fn save_all<W: Way + ?Sized>(
    way: &mut W,
    workload: &Workload,
    arithmetic: &mut dyn Arithmetic,
    saves: &mut Calls,
) -> Result<()> {
    let mut now = vec![0.0f32; workload.len];
    let mut next = vec![0.0f32; workload.len];
    for step in 0..workload.count {
        arithmetic.advance(&now, &mut next);
        saves.time(|| way.save(step, &next))?;
        std::mem::swap(&mut now, &mut next);
    }
    Ok(())
}
