//! Whether to touch memory while it is being written to, and the estimate behind that choice.
//!
//! Touching takes memory bandwidth from writes, and makes later writes faster. *Sequential*
//! touching pauses during a write; *concurrent* touching does not. Which is better depends on the
//! time between two writes and on how much writing and touching slow each other down. All of this
//! is measured while the program runs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    MemoryRates,
    rates::{Average, Meter},
};

/// Once both strategies are measured, the other one is tried again after this many writes.
const WRITES_PER_TRIAL: u32 = 64;

/// The same number if one strategy is more than twice as fast as the other. A trial of the slower
/// one costs time, because the writes after it find less touched memory.
const WRITES_PER_VAIN_TRIAL: u32 = 256;

/// While the sequential strategy has not been measured, it is tried after this many writes.
const WRITES_BEFORE_FIRST_TRIAL: u32 = 16;

/// A trial lasts this many writes, because the first one still uses memory that was touched before.
const TRIAL_WRITES: u32 = 2;

/// If nothing waits for the writes, sequential touching is enough when at least this fraction of
/// the next write can be touched between two writes.
const KEEPS_UP: f64 = 0.125;

/// Concurrent touching is chosen only if it reduces the time of a write to less than this fraction.
/// It costs time now, and pays later, if the program runs that long.
const WORTH_IT: f64 = 0.9;

/// One measurement counts as at most this many times slower than the known rate. A single page can
/// take a hundred times as long as others, because of the system or the hypervisor, and that does
/// not predict the next ones. A lasting slowdown still shows after a few measurements.
const SPIKE: f64 = 2.0;

/// When to touch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// Also during writes.
    Concurrent,
    /// Only between writes.
    Sequential,
}

/// Why a strategy is in use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Reason {
    /// It is fixed in the settings.
    Told,
    /// Not enough is measured to choose. If the program waits for writes and the next write would
    /// find no touched memory, the strategy is concurrent, because writing to untouched memory
    /// costs more. Otherwise it is sequential, which slows no write down.
    Unmeasured,
    /// There is time between two writes to touch all that the next one needs.
    TimeEnough {
        /// Bytes that can be touched between two writes.
        touchable_bytes: u64,
        /// Bytes of a write.
        write_bytes: u64,
    },
    /// Nothing waits for the writes, and the time between them is enough to touch a part of the
    /// next: no need to slow them down.
    KeepsUp {
        /// Nanoseconds between two writes.
        gap_ns: u64,
    },
    /// All memory that will be needed soon is touched: the strategy makes no difference.
    AllTouched,
    /// A trial, to measure how long writes take this way.
    Trial,
    /// A write is expected to take less time this way.
    Faster {
        /// Nanoseconds per write, touching concurrently.
        concurrent_ns: u64,
        /// Nanoseconds per write, touching sequentially.
        sequential_ns: u64,
    },
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Concurrent => "concurrent",
            Self::Sequential => "sequential",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told => write!(f, "as set"),
            Self::Unmeasured => write!(f, "not enough has been measured yet"),
            Self::TimeEnough { touchable_bytes, write_bytes } => {
                let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
                let (touchable, write) = (mib(*touchable_bytes), mib(*write_bytes));
                write!(f, "there is time to touch {touchable:.1} MiB between two writes of {write:.1} MiB")
            }
            Self::KeepsUp { gap_ns } => {
                write!(f, "writes that nobody waits for leave {:.2} ms between them", *gap_ns as f64 / 1e6)
            }
            Self::AllTouched => write!(f, "all that will be needed soon has been touched"),
            Self::Trial => write!(f, "a trial, to see how long writes take this way"),
            Self::Faster { concurrent_ns, sequential_ns } => {
                let ms = |ns: u64| ns as f64 / 1e6;
                let (concurrent, sequential) = (ms(*concurrent_ns), ms(*sequential_ns));
                write!(
                    f,
                    "a write should take {concurrent:.2} ms with concurrent and {sequential:.2} ms with sequential touching"
                )
            }
        }
    }
}

/// The rates of writing or touching, alone and while the other of the two is under way.
#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    alone: Meter,
    contended: Meter,
}

/// The measurements of one write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) bytes: u64,
    /// How many of these were in untouched memory.
    pub(crate) untouched_bytes: u64,
    pub(crate) ns: u64,
    /// For how much of this time memory was touched as well.
    pub(crate) touching_ns: u64,
    /// Whether the memory was pinned.
    pub(crate) is_pinned: bool,
}

/// All measurements, and the strategy chosen from them.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    strategy: Strategy,
    reason: Reason,
    pinned: Meter,
    touched: Pair,
    untouched: Pair,
    /// Of writes to both kinds of memory, while the rate of neither is known.
    mixed: Pair,
    touch: Pair,
    gap_ns: Average,
    write_bytes: Average,
    /// Whether the program waits for the writes.
    is_awaited: bool,
    /// Whether the program waits for the writes, and too little is touched for the next one.
    is_pressed: bool,
    writes_since_trial: u32,
    trial_writes: u32,
}

impl Estimate {
    pub(crate) fn new(strategy: Strategy, reason: Reason, rates: MemoryRates) -> Self {
        Self {
            strategy,
            reason,
            pinned: Meter::known(rates.pinned),
            touched: Pair::known(rates.touched),
            untouched: Pair::known(rates.untouched),
            mixed: Pair::default(),
            touch: Pair::known(rates.touch),
            gap_ns: Average::default(),
            write_bytes: Average::default(),
            is_awaited: false,
            is_pressed: false,
            writes_since_trial: 0,
            trial_writes: 0,
        }
    }

    pub(crate) fn strategy(&self) -> Strategy {
        self.strategy
    }

    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// Bytes per nanosecond of writing to pinned memory, if known.
    pub(crate) fn pinned_rate(&self) -> Option<f64> {
        self.pinned.rate()
    }

    /// Bytes per nanosecond of writing to touched memory, if known.
    pub(crate) fn touched_rate(&self) -> Option<f64> {
        self.touched.alone.rate().or(self.touched.contended.rate())
    }

    /// Bytes per nanosecond of writing to untouched memory, if known.
    pub(crate) fn untouched_rate(&self) -> Option<f64> {
        self.untouched.alone.rate().or(self.untouched.contended.rate())
    }

    /// Bytes per nanosecond of touching, if known.
    pub(crate) fn touch_rate(&self) -> Option<f64> {
        self.touch.alone.rate().or(self.touch.contended.rate())
    }

    /// Records a time without writes.
    pub(crate) fn paused(&mut self, ns: u64) {
        self.gap_ns.add(ns as f64);
    }

    /// A write begins. `is_awaited`: the program waits for it. `is_next_ready`: enough memory is
    /// touched for the write after it.
    pub(crate) fn begin(&mut self, is_awaited: bool, is_next_ready: bool) {
        self.is_awaited = is_awaited;
        self.is_pressed = is_awaited && !is_next_ready;
        if self.reason == Reason::Unmeasured {
            self.set_unmeasured();
        }
    }

    pub(crate) fn touched(&mut self, bytes: u64, ns: u64, writing_ns: u64) {
        self.touch.add(bytes, ns, ns, writing_ns);
    }

    pub(crate) fn wrote(&mut self, write: Write) {
        self.write_bytes.add(write.bytes as f64);
        self.writes_since_trial += 1;
        if write.is_pinned {
            return self.pinned.add(write.bytes, write.ns);
        }
        let touched_bytes = write.bytes - write.untouched_bytes;
        let is_mostly_touched = write.untouched_bytes * 4 < write.bytes;
        // Measure the larger part, and subtract the expected time of the smaller part, if its rate
        // is known.
        let (bytes, other_bytes, other_rate) = match is_mostly_touched {
            true => (touched_bytes, write.untouched_bytes, self.untouched_rate()),
            false => (write.untouched_bytes, touched_bytes, self.touched_rate()),
        };
        if other_rate.is_none() && other_bytes * 4 > write.bytes {
            // The two parts cannot be measured separately.
            return self.mixed.add(write.bytes, write.ns, write.ns, write.touching_ns);
        }
        let other_ns = other_rate.map_or(0.0, |rate| other_bytes as f64 / rate);
        let ns = (write.ns as f64 - other_ns).max(write.ns as f64 / 4.0) as u64;
        let pair = if is_mostly_touched { &mut self.touched } else { &mut self.untouched };
        pair.add(bytes, ns, write.ns, write.touching_ns);
    }

    /// Chooses the strategy again after a write, with `left_bytes` still to be touched.
    pub(crate) fn choose(&mut self, left_bytes: u64) {
        if self.trial_writes > 0 {
            self.trial_writes -= 1;
            return;
        }
        if left_bytes == 0 {
            return self.set(self.strategy, Reason::AllTouched);
        }
        let (Some(bytes), Some(gap_ns), Some(touch)) = (self.write_bytes.get(), self.gap_ns.get(), self.touch_rate())
        else {
            return self.set_unmeasured();
        };
        let touchable = touch * gap_ns;
        if touchable >= bytes {
            let (touchable_bytes, write_bytes) = (touchable as u64, bytes as u64);
            return self.set(Strategy::Sequential, Reason::TimeEnough { touchable_bytes, write_bytes });
        }
        if !self.is_awaited && touchable >= bytes * KEEPS_UP {
            return self.set(Strategy::Sequential, Reason::KeepsUp { gap_ns: gap_ns as u64 });
        }
        let sequential = self.sequential_ns(bytes, touchable);
        let concurrent = self.concurrent_ns(bytes, touchable).map(|steady| {
            let cycle_ns = gap_ns + sequential.unwrap_or(steady);
            self.until_touched_ns(bytes, cycle_ns, left_bytes as f64).map_or(steady, |ns| ns.min(steady))
        });
        match (concurrent, sequential) {
            (Some(concurrent), Some(sequential))
                if self.writes_since_trial < writes_per_trial(concurrent, sequential) =>
            {
                let reason = Reason::Faster { concurrent_ns: concurrent as u64, sequential_ns: sequential as u64 };
                let is_faster = concurrent < sequential * WORTH_IT;
                self.set(if is_faster { Strategy::Concurrent } else { Strategy::Sequential }, reason);
            }
            (_, None) if !self.is_pressed || self.writes_since_trial < WRITES_BEFORE_FIRST_TRIAL => {
                self.set_unmeasured()
            }
            (None, _) => self.try_out(Strategy::Concurrent),
            (_, None) => self.try_out(Strategy::Sequential),
            (Some(_), Some(_)) => self.try_out(match self.strategy {
                Strategy::Concurrent => Strategy::Sequential,
                Strategy::Sequential => Strategy::Concurrent,
            }),
        }
    }

    fn try_out(&mut self, strategy: Strategy) {
        self.writes_since_trial = 0;
        self.trial_writes = TRIAL_WRITES;
        self.set(strategy, Reason::Trial);
    }

    fn set_unmeasured(&mut self) {
        let strategy = if self.is_pressed { Strategy::Concurrent } else { Strategy::Sequential };
        self.set(strategy, Reason::Unmeasured);
    }

    fn set(&mut self, strategy: Strategy, reason: Reason) {
        self.strategy = strategy;
        self.reason = reason;
    }

    /// How long a write of `bytes` takes if `touchable` of them are touched before it begins.
    fn sequential_ns(&self, bytes: f64, touchable: f64) -> Option<f64> {
        let untouched = self.untouched.alone.rate()?;
        let touched = self.touched.alone.rate().unwrap_or(untouched);
        let ready = touchable.min(bytes);
        Some(ready / touched + (bytes - ready) / untouched)
    }

    /// How long the write takes if touching continues during it: more memory is ready, but both are
    /// slower.
    fn concurrent_ns(&self, bytes: f64, touchable: f64) -> Option<f64> {
        let untouched =
            self.untouched.contended.rate().or(self.touched.contended.rate()).or(self.mixed.contended.rate())?;
        let touched = self.touched.contended.rate().or(self.touched.alone.rate()).unwrap_or(untouched);
        let touch = self.touch.contended.rate().or(self.touch.alone.rate())?;
        // A longer write leaves more time to touch, which makes the next write shorter. A few
        // iterations find the balance.
        let mut ns = bytes / untouched;
        for _ in 0..8 {
            let ready = (touchable + touch * ns).min(bytes);
            ns = (ns + ready / touched + (bytes - ready) / untouched) / 2.0;
        }
        Some(ns)
    }

    /// The average time of a write, with concurrent touching, until all `left` bytes are written:
    /// slow while they are being touched, then as fast as touched memory allows. Writes come every
    /// `cycle_ns`, or back to back if they take longer.
    fn until_touched_ns(&self, bytes: f64, cycle_ns: f64, left: f64) -> Option<f64> {
        let contended = self.touched.contended.rate().or(self.untouched.contended.rate())?;
        let touch = self.touch.contended.rate().or(self.touch.alone.rate())?;
        let alone = self.touched.alone.rate().or_else(|| self.estimated_touched_rate())?;
        let writes_meanwhile = left / touch / cycle_ns.max(bytes / contended);
        let slow = (writes_meanwhile * bytes).min(left);
        (left > 0.0).then(|| (slow / contended + (left - slow) / alone) * bytes / left)
    }

    /// The rate of writing to touched memory, while it is not measured: a write to untouched memory
    /// touches the memory and writes to it.
    fn estimated_touched_rate(&self) -> Option<f64> {
        let (untouched, touch) = (self.untouched.alone.rate()?, self.touch.alone.rate()?);
        let ns_per_byte = 1.0 / untouched - 1.0 / touch;
        Some(if ns_per_byte > 0.0 { 1.0 / ns_per_byte } else { untouched })
    }
}

fn writes_per_trial(concurrent_ns: f64, sequential_ns: f64) -> u32 {
    let is_clear = concurrent_ns.max(sequential_ns) > 2.0 * concurrent_ns.min(sequential_ns);
    if is_clear { WRITES_PER_VAIN_TRIAL } else { WRITES_PER_TRIAL }
}

impl Pair {
    /// Known rates are those without contention.
    fn known(rate: Option<u64>) -> Self {
        Self { alone: Meter::known(rate), contended: Meter::default() }
    }

    /// Records that `bytes` took `bytes_ns`, as part of a write or touch of `ns`. During `other_ns`
    /// of that the other of the two was under way. Ignored if the overlap was between a quarter and
    /// a half.
    fn add(&mut self, bytes: u64, bytes_ns: u64, ns: u64, other_ns: u64) {
        let meter = match () {
            () if other_ns * 4 <= ns => &mut self.alone,
            () if other_ns * 2 >= ns => &mut self.contended,
            () => return,
        };
        let spike_ns = meter.measured_rate().map_or(f64::INFINITY, |rate| bytes as f64 / rate * SPIKE);
        meter.add(bytes, bytes_ns.min(spike_ns as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The estimate after 40 writes of 32 MiB with `gap_ms` between them. `disturbance` is the
    /// factor by which concurrent touching slows writes down.
    fn settled(gap_ms: f64, disturbance: f64) -> Estimate {
        let mut estimate = Estimate::new(Strategy::Sequential, Reason::Unmeasured, MemoryRates::default());
        let bytes = 32 * MIB;
        let (touched, untouched, touch) = (6.0, 3.0, 3.0);
        let mut ready: f64 = 0.0;
        for _ in 0..40 {
            estimate.begin(true, false);
            estimate.paused((gap_ms * 1e6) as u64);
            ready += touch * gap_ms * 1e6;
            let is_concurrent = estimate.strategy() == Strategy::Concurrent;
            let slowdown = if is_concurrent { disturbance } else { 1.0 };
            let from_ready = ready.min(bytes as f64);
            let ns = (from_ready / touched + (bytes as f64 - from_ready) / untouched) * slowdown;
            ready -= from_ready;
            if is_concurrent {
                ready += touch / slowdown * ns;
            }
            estimate.touched((touch * 1e6) as u64, 1_000_000, 0);
            if is_concurrent {
                estimate.touched((touch / slowdown * ns) as u64, ns as u64, ns as u64);
            }
            let touching_ns = if is_concurrent { ns as u64 } else { 0 };
            let untouched_bytes = bytes - from_ready as u64;
            estimate.wrote(Write { bytes, untouched_bytes, ns: ns as u64, touching_ns, is_pinned: false });
            estimate.choose(bytes);
        }
        estimate
    }

    #[test]
    fn long_gaps_need_no_touching_during_writes() {
        let estimate = settled(50.0, 1.5);
        assert_eq!(estimate.strategy(), Strategy::Sequential);
        assert!(matches!(estimate.reason(), Reason::TimeEnough { .. }), "{}", estimate.reason());
    }

    #[test]
    fn short_gaps_and_little_disturbance_call_for_touching_all_the_time() {
        let estimate = settled(1.0, 1.1);
        assert_eq!(estimate.strategy(), Strategy::Concurrent, "{}", estimate.reason());
        assert!(matches!(estimate.reason(), Reason::Faster { .. }));
    }

    #[test]
    fn short_gaps_and_much_disturbance_do_not() {
        let estimate = settled(1.0, 3.0);
        assert_eq!(estimate.strategy(), Strategy::Sequential, "{}", estimate.reason());
        assert!(matches!(estimate.reason(), Reason::Faster { .. }));
    }

    #[test]
    fn much_disturbance_is_worth_it_if_it_ends_soon() {
        // Writes follow each other without a pause, and concurrent touching makes them slower than
        // untouched memory does. If touching is fast, most of the buffer is still to be written
        // when all is touched. If it is slow, nothing is gained.
        let chosen = |touch_rate: u64| {
            let mut estimate = Estimate::new(Strategy::Sequential, Reason::Unmeasured, MemoryRates::default());
            estimate.touched(100 * MIB, 10 * MIB, 0);
            for _ in 0..24 {
                estimate.begin(true, false);
                let is_concurrent = estimate.strategy() == Strategy::Concurrent;
                let ns = if is_concurrent { 64 * MIB } else { 43 * MIB };
                let touching_ns = if is_concurrent { ns } else { 0 };
                estimate.paused(0);
                estimate.wrote(Write {
                    bytes: 128 * MIB,
                    untouched_bytes: 128 * MIB,
                    ns,
                    touching_ns,
                    is_pinned: false,
                });
                if is_concurrent {
                    estimate.touched(touch_rate * ns, ns, ns);
                }
                estimate.choose(32 << 30);
            }
            estimate
        };
        let fast = chosen(12);
        assert_eq!(fast.strategy(), Strategy::Concurrent, "{}", fast.reason());
        let slow = chosen(1);
        assert_eq!(slow.strategy(), Strategy::Sequential, "{}", slow.reason());
    }

    #[test]
    fn nothing_is_chosen_before_anything_is_measured() {
        let mut estimate = Estimate::new(Strategy::Sequential, Reason::Unmeasured, MemoryRates::default());
        for (is_awaited, strategy) in [(true, Strategy::Concurrent), (false, Strategy::Sequential)] {
            estimate.begin(is_awaited, false);
            assert_eq!(estimate.strategy(), strategy);
            estimate.wrote(Write { bytes: MIB, untouched_bytes: MIB, ns: 1000, touching_ns: 0, is_pinned: false });
            estimate.choose(MIB);
            assert_eq!((estimate.strategy(), estimate.reason()), (strategy, Reason::Unmeasured));
        }
    }

    #[test]
    fn writes_that_nobody_waits_for_are_not_disturbed_while_they_keep_up() {
        let mut estimate = settled(8.0, 1.0);
        assert_eq!(estimate.strategy(), Strategy::Concurrent, "the program waits: {}", estimate.reason());
        estimate.begin(false, false);
        estimate.paused(8_000_000);
        estimate.choose(32 * MIB);
        assert!(matches!(estimate.reason(), Reason::KeepsUp { .. }), "{}", estimate.reason());
        assert_eq!(estimate.strategy(), Strategy::Sequential);
    }

    #[test]
    fn what_is_clearly_worse_is_tried_more_rarely() {
        assert_eq!(writes_per_trial(3.0, 5.0), WRITES_PER_TRIAL);
        for (concurrent, sequential) in [(3.0, 7.0), (7.0, 3.0)] {
            assert_eq!(writes_per_trial(concurrent, sequential), WRITES_PER_VAIN_TRIAL);
        }
    }

    #[test]
    fn once_very_slow_changes_nothing_but_often_does() {
        let mut estimate = settled(1.0, 1.1);
        let mut write = |ns: u64| {
            let bytes = 32 * MIB;
            estimate.begin(true, false);
            estimate.paused(1_000_000);
            estimate.touched(bytes, ns, ns);
            estimate.wrote(Write { bytes, untouched_bytes: 0, ns, touching_ns: ns, is_pinned: false });
            estimate.choose(bytes);
            estimate.strategy()
        };
        assert_eq!(write(200_000_000), Strategy::Concurrent);
        assert!((0..16).any(|_| write(200_000_000) == Strategy::Sequential));
    }

    #[test]
    fn pinned_memory_has_a_speed_of_its_own() {
        let mut estimate = Estimate::new(Strategy::Sequential, Reason::Unmeasured, MemoryRates::default());
        estimate.wrote(Write { bytes: MIB, untouched_bytes: 0, ns: MIB, touching_ns: 0, is_pinned: false });
        assert_eq!((estimate.touched_rate(), estimate.pinned_rate()), (Some(1.0), None));
        estimate.wrote(Write { bytes: MIB, untouched_bytes: 0, ns: MIB / 4, touching_ns: 0, is_pinned: true });
        assert_eq!((estimate.touched_rate(), estimate.pinned_rate()), (Some(1.0), Some(4.0)));
    }

    #[test]
    fn reasons_are_sentences() {
        let enough = Reason::TimeEnough { touchable_bytes: 64 * MIB, write_bytes: 32 * MIB };
        assert_eq!(enough.to_string(), "there is time to touch 64.0 MiB between two writes of 32.0 MiB");
    }
}
