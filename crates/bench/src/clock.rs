//! Measures the time that a program is blocked.

use std::time::{Duration, Instant};

/// The processor time of this process until now, in seconds.
pub(crate) fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The same with that of child processes that have ended.
pub(crate) fn processor_seconds_with_children() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name comes first, in brackets. Fields 16 and 17 are the children's times.
    let fields = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    let ticks: f64 = fields.skip(13).take(2).map(|field| field.parse().unwrap_or(0.0)).sum();
    processor_seconds() + ticks / rustix::param::clock_ticks_per_second() as f64
}

/// The durations of many calls of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Vec<Duration>);

impl Calls {
    /// Times one call.
    pub(crate) fn time<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.0.push(start.elapsed());
        result
    }

    pub(crate) fn add(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.0.iter().sum::<Duration>().as_secs_f64()
    }

    /// The duration of each call, in seconds.
    pub(crate) fn all_seconds(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(Duration::as_secs_f64)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.seconds() / self.0.len().max(1) as f64
    }

    /// A quantile of the durations, in seconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
        sorted.get(index).map_or(0.0, Duration::as_secs_f64)
    }
}
