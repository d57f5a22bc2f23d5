//! Which layer to write to or read from, by the recent bandwidth of each lane.

use smallvec::SmallVec;

use crate::{
    LayerIndex, Preference, Timestamp,
    planner::{Layer, Planner},
    rates::Meter,
    snapshot::{Copy, Snapshot},
};

/// To be preferred, a deeper layer must be faster by this factor: measurements are noisy, and upper
/// layers are closer to the front.
const HANDICAP: f64 = 1.25;

/// If no move on a lane has ended for this many times the expected time, the elapsed time counts as
/// a measurement.
const OVERDUE: f64 = 3.0;

/// A lane without measurements counts as this fraction of the best rate above it.
const UNMEASURED: f64 = 0.5;

/// A layer that was passed over as too slow is tried again after this many choices; then after
/// twice as many, up to the maximum.
const TRIAL_AFTER_MIN: u32 = 32;
const TRIAL_AFTER_MAX: u32 = 1024;

/// Untouched memory that is slower than this, in bytes per nanosecond, is likely to be slower than
/// a disk.
const SLOW_MEMORY: f64 = 1.0;

/// The layers below the front, best first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preferred {
    /// For writing, from the front.
    pub writing: Vec<LayerIndex>,
    /// For reading, to the front.
    pub reading: Vec<LayerIndex>,
}

/// The moves from one layer to another, and their rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) moves: u64,
    pub(crate) bytes: u64,
    meter: Meter,
    /// When the last move ended, or when the first one began on an empty lane.
    since: Timestamp,
    passed_over: u32,
    trial_after: u32,
    /// The next measurement replaces all earlier ones.
    is_stale: bool,
}

impl Lane {
    fn new(known_rate: Option<u64>) -> Self {
        Self {
            moves: 0,
            bytes: 0,
            meter: Meter::known(known_rate),
            since: Timestamp(0),
            passed_over: 0,
            trial_after: TRIAL_AFTER_MIN,
            is_stale: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.moves == 0
    }

    pub(crate) fn begin(&mut self, now: Timestamp, bytes: u64) {
        if self.moves == 0 {
            self.since = now;
        }
        self.moves += 1;
        self.bytes += bytes;
    }

    /// Ends a move that began at `begun`. Returns since when it had the lane for itself.
    pub(crate) fn end(&mut self, now: Timestamp, begun: Timestamp, bytes: u64, is_done: bool) -> Timestamp {
        let since = begun.max(self.since);
        if is_done {
            if std::mem::take(&mut self.is_stale) {
                self.meter = Meter::default();
            }
            self.meter.add(bytes, now.0.saturating_sub(since.0));
        }
        self.moves -= 1;
        self.bytes -= bytes;
        self.since = now;
        since
    }

    /// Bytes per nanosecond at `now`, if known. A move that is overdue lowers the rate before it
    /// has ended.
    fn rate(&self, now: Timestamp) -> Option<f64> {
        let rate = self.meter.rate()?;
        let elapsed = now.0.saturating_sub(self.since.0) as f64;
        let is_overdue = self.moves > 0 && elapsed * rate > OVERDUE * self.bytes as f64;
        Some(if is_overdue { rate.min(self.bytes as f64 / elapsed) } else { rate })
    }
}

impl Planner {
    /// The lane between two layers.
    pub(crate) fn lane(&mut self, from: LayerIndex, to: LayerIndex) -> &mut Lane {
        let known_rate =
            if from < to { self.settings.layers[to].write_rate } else { self.settings.layers[from].read_rate };
        self.lanes.entry((from, to)).or_insert_with(|| Lane::new(known_rate))
    }

    /// The layers below the front, in the present order of preference.
    pub fn preferred(&self) -> Preferred {
        let below = 1..self.layers.len();
        let writes = below.clone().map(|to| (to, self.write_ns(0, to, 1, false)));
        let reads = below.map(|from| (from, self.read_ns(from, 0, 1, false)));
        Preferred { writing: by_preference(writes).into_vec(), reading: by_preference(reads).into_vec() }
    }

    /// Bytes per second of writing to a layer from the front, and of reading from it, if known.
    pub fn rates(&self, layer: LayerIndex) -> (Option<f64>, Option<f64>) {
        let rate = |lane| self.lane_rate(lane).map(|rate| rate * 1e9);
        (rate((0, layer)), rate((layer, 0)))
    }

    /// The layers below `from`, best first for a snapshot of `bytes`: by the time to write it
    /// there, plus the time to read it back if that is known. If `is_urgent`, the moves in the
    /// queue count as well.
    pub(crate) fn targets(&self, from: LayerIndex, bytes: u64, is_urgent: bool) -> SmallVec<[LayerIndex; 4]> {
        let below = from + 1..self.layers.len();
        if self.settings.preference == Preference::Fixed {
            return below.collect();
        }
        let back_ns = |to: LayerIndex| self.lane_rate((to, from)).map_or(0.0, |rate| bytes as f64 / rate);
        let expected_ns = |to: LayerIndex| Some(self.write_ns(from, to, bytes, is_urgent)? + back_ns(to));
        let mut targets = by_preference(below.map(|to| (to, expected_ns(to))));
        let trial = (from + 1..targets.first().copied().unwrap_or(0)).find(|&to| {
            let lane = self.lanes.get(&(from, to));
            lane.is_some_and(|lane| lane.is_idle() && lane.passed_over >= lane.trial_after)
        });
        if let Some(trial) = trial {
            targets.retain(|to| *to != trial);
            targets.insert(0, trial);
        }
        targets
    }

    /// Records where a snapshot was sent, and which layers above were passed over.
    pub(crate) fn chose(&mut self, from: LayerIndex, to: LayerIndex) {
        for above in from + 1..to {
            let lane = self.lane(from, above);
            lane.passed_over = lane.passed_over.saturating_add(1);
        }
        let lane = self.lane(from, to);
        let is_trial = lane.passed_over >= lane.trial_after;
        lane.trial_after = if is_trial { (lane.trial_after * 2).min(TRIAL_AFTER_MAX) } else { TRIAL_AFTER_MIN };
        lane.passed_over = 0;
        // Earlier measurements are old: let the trial replace them.
        lane.is_stale |= is_trial;
    }

    /// The complete copy from which the snapshot arrives at `to` first.
    pub(crate) fn source<'a>(&self, snapshot: &'a Snapshot, to: LayerIndex) -> Option<&'a Copy> {
        let complete = || snapshot.copies.iter().filter(|copy| !copy.is_arriving && copy.layer() > to);
        if self.settings.preference == Preference::Fixed || complete().nth(1).is_none() {
            return complete().min_by_key(|copy| copy.layer());
        }
        let mut sources: SmallVec<[LayerIndex; 4]> = complete().map(Copy::layer).collect();
        sources.sort_unstable();
        let best = by_preference(sources.into_iter().map(|from| (from, self.read_ns(from, to, snapshot.bytes, true))));
        best.first().and_then(|&layer| snapshot.copy(layer))
    }

    /// Whether a later read is faster if the snapshot moves from `from` to `to` before.
    pub(crate) fn is_worth_staging(&self, from: LayerIndex, to: LayerIndex) -> bool {
        let rate = |layer| self.lane_rate((layer, 0));
        match (rate(from), rate(to)) {
            _ if to == 0 || self.settings.preference == Preference::Fixed => true,
            (Some(from), Some(to)) => to > from * HANDICAP,
            _ => true,
        }
    }

    /// Whether untouched memory in the front is so slow that it is better to drain, and reuse
    /// touched memory.
    pub(crate) fn is_growth_slow(&self) -> bool {
        let Some(memory) = self.layers[0].memory.as_ref().filter(|memory| !memory.settings().needs_touch) else {
            return false;
        };
        let Some(untouched) = memory.estimate.untouched_rate() else { return false };
        match self.best_write_rate() {
            Some(below) => untouched * 2.0 < below,
            // The layers below are not measured yet: compare with a typical disk.
            None => untouched < SLOW_MEMORY && self.layers.len() > 1,
        }
    }

    /// How long a write of `bytes` to the front takes if `untouched` of them are in untouched
    /// memory.
    pub(crate) fn fill_ns(&self, bytes: u64, untouched: u64) -> Option<f64> {
        let memory = self.layers[0].memory.as_ref()?;
        let ready_ns = memory.ready_rate().map_or(0.0, |rate| (bytes - untouched) as f64 / rate);
        Some(ready_ns + untouched as f64 / memory.estimate.untouched_rate()?)
    }

    /// How long it takes to drain `bytes` more from the front.
    pub(crate) fn sink_ns(&self, bytes: u64) -> Option<f64> {
        let of_lane = |to: LayerIndex| {
            let queued = self.lanes.get(&(0, to)).map_or(0, |lane| lane.bytes);
            self.lane_rate((0, to)).map(|rate| (queued + bytes) as f64 / rate)
        };
        self.writable_below().filter_map(of_lane).min_by(f64::total_cmp)
    }

    fn best_write_rate(&self) -> Option<f64> {
        self.writable_below().filter_map(|to| self.lane_rate((0, to))).max_by(f64::total_cmp)
    }

    fn writable_below(&self) -> impl Iterator<Item = LayerIndex> + '_ {
        let has_room = |layer: &Layer| layer.is_writable && layer.free_at_most() > 0;
        self.layers.iter().enumerate().skip(1).filter(move |(_, layer)| has_room(layer)).map(|(index, _)| index)
    }

    fn lane_rate(&self, (from, to): (LayerIndex, LayerIndex)) -> Option<f64> {
        if let Some(lane) = self.lanes.get(&(from, to)) {
            return lane.rate(self.now);
        }
        let layers = &self.settings.layers;
        Meter::known(if from < to { layers[to].write_rate } else { layers[from].read_rate }).rate()
    }

    fn write_ns(&self, from: LayerIndex, to: LayerIndex, bytes: u64, with_queue: bool) -> Option<f64> {
        let above = (from + 1..to).map(|above| (from, above));
        self.expected_ns((from, to), above, bytes, with_queue)
    }

    fn read_ns(&self, from: LayerIndex, to: LayerIndex, bytes: u64, with_queue: bool) -> Option<f64> {
        let above = (to + 1..from).map(|above| (above, to));
        self.expected_ns((from, to), above, bytes, with_queue)
    }

    /// How long a move of `bytes` on a lane should take. A lane without measurements is estimated
    /// from the best lane in `above`. `None` if those have no measurements either.
    fn expected_ns(
        &self,
        lane: (LayerIndex, LayerIndex),
        above: impl Iterator<Item = (LayerIndex, LayerIndex)>,
        bytes: u64,
        with_queue: bool,
    ) -> Option<f64> {
        let best_above = || {
            let best = above.filter_map(|lane| self.lanes.get(&lane)?.meter.rate_max()).max_by(f64::total_cmp);
            best.map(|rate| rate * UNMEASURED)
        };
        let rate = self.lane_rate(lane).or_else(best_above)?;
        let queued = self.lanes.get(&lane).filter(|_| with_queue).map_or(0, |lane| lane.bytes);
        Some((queued + bytes) as f64 / rate)
    }
}

/// Sorts layers by time, with a handicap for deeper ones. A layer without an estimate stays before
/// all layers below it.
fn by_preference(layers: impl Iterator<Item = (LayerIndex, Option<f64>)>) -> SmallVec<[LayerIndex; 4]> {
    let mut handicap = 1.0;
    let mut scored: SmallVec<[(f64, LayerIndex); 4]> = SmallVec::new();
    for (layer, ns) in layers {
        scored.push((ns.map_or(0.0, |ns| ns * handicap), layer));
        handicap *= HANDICAP;
    }
    scored.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    scored.into_iter().map(|(_, layer)| layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_hangs_looks_slow_before_anything_ends() {
        let mut lane = Lane::new(None);
        lane.begin(Timestamp(0), 1000);
        assert_eq!(lane.rate(Timestamp(500)), None, "nothing is known yet");
        lane.end(Timestamp(1000), Timestamp(0), 1000, true);
        assert_eq!(lane.rate(Timestamp(99_999)), Some(1.0), "an idle lane is as fast as it was");
        lane.begin(Timestamp(100_000), 1000);
        assert_eq!(lane.rate(Timestamp(102_000)), Some(1.0), "twice as long can happen");
        assert_eq!(lane.rate(Timestamp(110_000)), Some(0.1));
    }

    #[test]
    fn moves_that_wait_for_each_other_are_not_measured_twice() {
        let mut lane = Lane::new(None);
        lane.begin(Timestamp(0), 1000);
        lane.begin(Timestamp(0), 1000);
        lane.end(Timestamp(1000), Timestamp(0), 1000, true);
        lane.end(Timestamp(2000), Timestamp(0), 1000, true);
        assert_eq!(lane.rate(Timestamp(2000)), Some(1.0));
    }

    #[test]
    fn the_upper_layer_has_the_advantage() {
        let order = |times: &[Option<f64>]| by_preference((1..).zip(times.iter().copied())).to_vec();
        assert_eq!(order(&[Some(10.0), Some(9.0)]), [1, 2]);
        assert_eq!(order(&[Some(10.0), Some(7.0)]), [2, 1]);
        assert_eq!(order(&[None, Some(7.0)]), [1, 2]);
    }
}
