//! A forward and a backward pass, with the same arithmetic for every way to keep the states.

use std::{hint::black_box, time::Instant};

use anyhow::{Result, ensure};

/// The size and number of states, and the amount of arithmetic between them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    /// The number of values in a state.
    pub(crate) len: usize,
    /// The number of states.
    pub(crate) count: usize,
    /// Operations per value and step. Without them, states are not read.
    pub(crate) depth: Option<u32>,
}

impl Workload {
    pub(crate) fn snapshot_bytes(&self) -> usize {
        self.len * size_of::<f32>()
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        (self.snapshot_bytes() * self.count) as u64
    }

    /// The program's own arrays: two states of the forward pass and one of the backward pass.
    pub(crate) fn own_bytes(&self) -> u64 {
        3 * self.snapshot_bytes() as u64
    }

    /// The same workload, with arithmetic that takes `seconds` per step on this machine, on one
    /// thread.
    pub(crate) fn calibrated(mut self, seconds: f64) -> Self {
        let now = vec![1.0f32; self.len];
        let mut next = vec![0.0f32; self.len];
        let mut time = |depth| {
            let start = Instant::now();
            (0..3).for_each(|_| Some(depth).advance(&now, black_box(&mut next)));
            start.elapsed().as_secs_f64() / 3.0
        };
        time(1);
        let (shallow, deep) = (time(4), time(36));
        let per_operation = (deep - shallow).max(1e-9) / 32.0;
        self.depth = Some(((seconds - shallow) / per_operation + 4.0).clamp(0.0, 1e6) as u32);
        self
    }
}

/// What a program computes between the states.
pub(crate) trait Arithmetic {
    /// Computes the next state from this one.
    fn advance(&mut self, now: &[f32], next: &mut [f32]);

    /// What the backward pass computes from a state and from its own: a number that is the same for
    /// every way.
    fn correlate(&mut self, past: &[f32], adjoint: &[f32]) -> f64;
}

/// Operations per value, as [`Workload::depth`] says: bound by the processor, not by memory.
impl Arithmetic for Option<u32> {
    fn advance(&mut self, now: &[f32], next: &mut [f32]) {
        let Some(depth) = *self else { return };
        // In blocks that fit into the first-level cache, so that depth costs arithmetic and not
        // memory bandwidth.
        for (now, next) in now.chunks(1024).zip(next.chunks_mut(1024)) {
            next.copy_from_slice(now);
            for _ in 0..depth {
                next.iter_mut().for_each(|value| *value = *value * 0.999 + 0.5);
            }
            next.iter_mut().for_each(|value| *value += 1.0);
        }
    }

    fn correlate(&mut self, past: &[f32], _: &[f32]) -> f64 {
        if self.is_none() {
            return past.first().copied().map_or(0.0, f64::from);
        }
        // Many independent sums, so that reading the state takes the time.
        let mut sums = [0.0f32; 64];
        for lanes in past.chunks_exact(sums.len()) {
            sums.iter_mut().zip(lanes).for_each(|(sum, value)| *sum += value);
        }
        sums.iter().map(|&sum| f64::from(sum)).sum()
    }
}

/// Checks the size of a state.
pub(crate) fn check_state_bytes(bytes: u64) -> Result<()> {
    let is_possible = (1 << 20..1 << 50).contains(&bytes) && bytes.is_multiple_of(1 << 20);
    ensure!(is_possible, "a state cannot have {bytes} bytes: give whole MiB, and less than a PiB");
    Ok(())
}

/// Writes one value to each of `percent` of the pages of a state, spread evenly, and to other pages
/// in each step.
pub(crate) fn write_pages(state: &mut [f32], percent: f64, step: usize) {
    let page_len = rustix::param::page_size() / size_of::<f32>();
    let pages = (state.len() / page_len).max(1);
    let count = ((pages as f64 * percent / 100.0).round() as usize).clamp(1, pages);
    for written in 0..count {
        let page = (written * pages / count + step) % pages;
        state[page * page_len + step % page_len] = step as f32 + 0.5;
    }
}

/// A state as bytes.
pub(crate) fn bytes(state: &[f32]) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(state)
}

/// Bytes as a state. They come from an aligned buffer or a mapping.
pub(crate) fn state(bytes: &[u8]) -> &[f32] {
    zerocopy::FromBytes::ref_from_bytes(bytes).unwrap_or_else(|_| unreachable!("buffers are aligned"))
}
