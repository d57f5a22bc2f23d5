//! States in ordinary memory: no states, only copies, new memory for each, or memory that was
//! touched before.

use anyhow::Result;

use super::Way;
use crate::workload::Workload;

/// Keeps nothing, to time the arithmetic alone.
pub(crate) struct Nothing(Vec<f32>);

impl Nothing {
    pub(crate) fn new(workload: &Workload) -> Self {
        Self(vec![1.0; workload.len])
    }
}

impl Way for Nothing {
    fn name(&self) -> &'static str {
        "no storing"
    }

    fn save(&mut self, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn take(&mut self, _: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(&self.0);
        Ok(())
    }
}

/// Copies each state into one of eight touched buffers, and keeps the newest eight: what copying
/// alone costs.
pub(crate) struct Copies(Vec<Vec<f32>>);

impl Copies {
    pub(crate) fn new(workload: &Workload) -> Self {
        Self(vec![vec![1.0; workload.len]; 8])
    }
}

impl Way for Copies {
    fn name(&self) -> &'static str {
        "copies alone"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        self.0[step % 8].copy_from_slice(now);
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(&self.0[step % 8]);
        Ok(())
    }
}

/// New memory for each state, like a program that pushes arrays to a list.
#[derive(Default)]
pub(crate) struct Fresh(Vec<Vec<f32>>);

impl Way for Fresh {
    fn name(&self) -> &'static str {
        "fresh memory"
    }

    fn save(&mut self, _: usize, now: &[f32]) -> Result<()> {
        self.0.push(now.to_vec());
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(&self.0[step]);
        self.0.truncate(step);
        Ok(())
    }
}

/// Memory for all states, touched before the first is saved.
pub(crate) struct Touched {
    memory: Vec<f32>,
    len: usize,
}

impl Touched {
    pub(crate) fn new(workload: &Workload) -> Self {
        let mut memory = vec![0.0; workload.len * workload.count];
        memory.iter_mut().step_by(1024).for_each(|value| *value = 1.0);
        Self { memory, len: workload.len }
    }
}

impl Way for Touched {
    fn name(&self) -> &'static str {
        "touched memory"
    }

    fn save(&mut self, step: usize, now: &[f32]) -> Result<()> {
        self.memory[step * self.len..][..self.len].copy_from_slice(now);
        Ok(())
    }

    fn take(&mut self, step: usize, read: &mut dyn FnMut(&[f32])) -> Result<()> {
        read(&self.memory[step * self.len..][..self.len]);
        Ok(())
    }
}
