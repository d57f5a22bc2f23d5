//! Measures rates from bytes and times.

use crate::Timestamp;

/// The weight of earlier measurements is multiplied by this with every new one.
const DECAY: f64 = 0.7;

/// A rate that is known in advance counts as a measurement of this duration.
const KNOWN_NS: f64 = 1.0;

/// Sustained bandwidth: bytes divided by time, with recent measurements counting most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Meter {
    bytes: f64,
    ns: f64,
    rate_max: f64,
}

impl Meter {
    /// A meter that starts with a rate known in advance. The first measurement outweighs it.
    pub(crate) fn known(bytes_per_second: Option<u64>) -> Self {
        let rate = bytes_per_second.map_or(0.0, |rate| rate as f64 / 1e9);
        let ns = if rate > 0.0 { KNOWN_NS } else { 0.0 };
        Self { bytes: rate * ns, ns, rate_max: rate }
    }

    pub(crate) fn add(&mut self, bytes: u64, ns: u64) {
        self.bytes = self.bytes * DECAY + bytes as f64;
        self.ns = self.ns * DECAY + ns.max(1) as f64;
        self.rate_max = self.rate_max.max(self.bytes / self.ns);
    }

    /// Bytes per nanosecond, if known.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.ns > 0.0).then(|| self.bytes / self.ns)
    }

    /// Bytes per nanosecond, once something has been measured.
    pub(crate) fn measured_rate(&self) -> Option<f64> {
        self.rate().filter(|_| self.ns > KNOWN_NS)
    }

    /// The highest rate so far.
    pub(crate) fn rate_max(&self) -> Option<f64> {
        (self.ns > 0.0).then_some(self.rate_max)
    }
}

/// An average in which recent values count most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Average(Option<f64>);

impl Average {
    pub(crate) fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |known| known * DECAY + value * (1.0 - DECAY)));
    }

    pub(crate) fn get(self) -> Option<f64> {
        self.0
    }
}

/// Measures for how long at least one of several overlapping activities has been under way.
#[derive(Debug, Clone, Copy, Default)]
pub struct Busy {
    under_way: u32,
    changed: Timestamp,
    total_ns: u64,
}

impl Busy {
    /// One activity begins.
    pub fn begin(&mut self, now: Timestamp) {
        self.total_ns = self.total_ns(now);
        self.changed = now;
        self.under_way += 1;
    }

    /// One activity ends.
    pub fn end(&mut self, now: Timestamp) {
        self.total_ns = self.total_ns(now);
        self.changed = now;
        self.under_way -= 1;
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// When an activity last began or ended.
    pub(crate) fn changed(&self) -> Timestamp {
        self.changed
    }

    /// The total time during which at least one was under way.
    pub fn total_ns(&self, now: Timestamp) -> u64 {
        let current = if self.under_way > 0 { now.0.saturating_sub(self.changed.0) } else { 0 };
        self.total_ns + current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_measurements_count_most() {
        let mut meter = Meter::default();
        assert_eq!(meter.rate(), None);
        meter.add(1000, 10);
        assert_eq!(meter.rate(), Some(100.0));
        for _ in 0..4 {
            meter.add(1000, 1000);
        }
        assert!(meter.rate().is_some_and(|rate| rate < 1.4), "{meter:?}");
        assert_eq!(meter.rate_max(), Some(100.0));
    }

    #[test]
    fn what_was_known_before_gives_way_to_the_first_measurement() {
        let mut meter = Meter::known(Some(5_000_000_000));
        assert_eq!(meter.rate(), Some(5.0));
        meter.add(1 << 20, 1 << 20);
        assert!(meter.rate().is_some_and(|rate| rate < 1.1));
        assert_eq!(Meter::known(None).rate(), None);
    }

    #[test]
    fn overlapping_work_counts_once() {
        let mut busy = Busy::default();
        busy.begin(Timestamp(10));
        busy.begin(Timestamp(12));
        busy.end(Timestamp(15));
        assert!(!busy.is_idle());
        busy.end(Timestamp(20));
        assert_eq!(busy.total_ns(Timestamp(99)), 10);
    }
}
