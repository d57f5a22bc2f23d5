//! A forward and a backward pass with one way of keeping the states, and what it cost.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;

use crate::{
    clock::{Calls, processor_seconds},
    memory,
    ways::Way,
    workload::{Arithmetic, Workload},
};

/// Opens a way that keeps its files in a directory.
pub(crate) type Make<'a> = Box<dyn Fn(&Path) -> Result<Box<dyn Way>> + 'a>;

/// The result of one way.
pub(crate) struct Run {
    pub(crate) name: String,
    /// From opening to the last state, without closing.
    pub(crate) wall_seconds: f64,
    /// Closing, and removing the files.
    pub(crate) close_seconds: f64,
    /// Processor time of all threads, with closing.
    pub(crate) cpu_seconds: f64,
    /// The wall time of every round. This run was the best of them.
    pub(crate) rounds_seconds: Vec<f64>,
    pub(crate) saves: Calls,
    pub(crate) takes: Calls,
    /// The takes that found their state in memory, if known.
    pub(crate) hits: Calls,
    pub(crate) sum: f64,
    /// The peak of memory in use, beyond what was in use before.
    pub(crate) memory_bytes: u64,
    pub(crate) details: serde_json::Value,
}

impl Run {
    pub(crate) fn blocked_seconds(&self) -> f64 {
        self.saves.seconds() + self.takes.seconds()
    }

    /// From the first line of a program to its last.
    pub(crate) fn whole_seconds(&self) -> f64 {
        self.wall_seconds + self.close_seconds
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({
            "way": self.name,
            "wall_seconds": self.wall_seconds,
            "wall_seconds_rounds": self.rounds_seconds,
            "close_seconds": self.close_seconds,
            "cpu_seconds": self.cpu_seconds,
            "blocked_seconds": self.blocked_seconds(),
            "save_ms_mean": self.saves.mean() * 1e3,
            "save_ms_p50": self.saves.quantile(0.5) * 1e3,
            "save_ms_p99": self.saves.quantile(0.99) * 1e3,
            "take_ms_mean": self.takes.mean() * 1e3,
            "take_ms_p50": self.takes.quantile(0.5) * 1e3,
            "take_ms_p99": self.takes.quantile(0.99) * 1e3,
            "hits": self.hits.count(),
            "memory_mib": self.memory_bytes as f64 / (1 << 20) as f64,
            "details": self.details,
        })
    }
}

/// One forward and backward pass. `warm_bytes` of memory have been used shortly before, so that
/// every way finds memory in the same state.
pub(crate) fn measure(
    directory: &Path,
    workload: &Workload,
    arithmetic: &mut dyn Arithmetic,
    warm_bytes: u64,
    make: impl FnOnce(&Path) -> Result<Box<dyn Way>>,
) -> Result<Run> {
    let scratch = tempfile::tempdir_in(directory)?;
    memory::warm(warm_bytes);
    memory::reset_peak();
    let memory_before = memory::now_bytes();
    let processor_before = processor_seconds();
    let start = Instant::now();
    let mut way = make(scratch.path())?;
    let (mut saves, mut takes, mut hits) = (Calls::default(), Calls::default(), Calls::default());
    way.forward(workload, arithmetic, &mut saves)?;
    let mut adjoint = vec![1.0f32; workload.len];
    let mut next = vec![0.0f32; workload.len];
    let mut sum = 0.0;
    let mut aside = 0.0;
    for step in (0..workload.count).rev() {
        arithmetic.advance(&adjoint, &mut next);
        std::mem::swap(&mut adjoint, &mut next);
        let looking = Instant::now();
        let hits_before = way.hits();
        aside += looking.elapsed().as_secs_f64();
        let mut reading = Duration::ZERO;
        let begin = Instant::now();
        way.take(step, &mut |past| {
            let start = Instant::now();
            sum += arithmetic.correlate(past, &adjoint);
            reading = start.elapsed();
        })?;
        let blocked = begin.elapsed() - reading;
        takes.add(blocked);
        if hits_before.is_some() && way.hits() > hits_before {
            hits.add(blocked);
        }
    }
    let wall_seconds = start.elapsed().as_secs_f64() - aside;
    let memory_bytes = memory::peak_bytes().saturating_sub(memory_before);
    let (name, details) = (way.name().to_owned(), way.details());
    let closing = Instant::now();
    drop(way);
    scratch.close()?;
    let close_seconds = closing.elapsed().as_secs_f64();
    let cpu_seconds = processor_seconds() - processor_before;
    let rounds_seconds = vec![wall_seconds];
    Ok(Run {
        name,
        wall_seconds,
        close_seconds,
        cpu_seconds,
        rounds_seconds,
        saves,
        takes,
        hits,
        sum,
        memory_bytes,
        details,
    })
}
