//! Layers that are memory: which part is ready, when to touch more, and when to pin all of it.
//!
//! A memory layer is ready from its start up to some byte; the bytes beyond were never used. Host
//! memory can be written before it is ready, slowly. Device memory cannot.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    Action, Extents, LayerIndex, Timestamp,
    estimate::{Estimate, Reason, Strategy, Write},
    planner::Planner,
    rates::Busy,
};

/// How long to wait before trying again to touch shared memory that ran out.
const RETRY_NS: u64 = 20_000_000;

/// The settings of a layer that is memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySettings {
    /// Memory is touched in pieces of this size.
    pub piece_bytes: u64,
    /// How many bytes to touch beyond those in use. At least as many as are in use.
    pub ahead_bytes: u64,
    /// When it is touched.
    pub touching: Touching,
    /// Whether it must be touched before it can be written.
    pub needs_touch: bool,
    /// Whether it is shared with other processes: unused pieces are given back to them, and memory
    /// that ran out may become available again.
    pub is_shared: bool,
    /// Whether to pin it, in one piece, once all of it is touched.
    pub pins: bool,
    /// Its rates, as far as they are known in advance.
    pub rates: MemoryRates,
}

/// Rates in bytes per second, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryRates {
    /// Of writing to pinned memory.
    pub pinned: Option<u64>,
    /// Of writing to touched memory.
    pub touched: Option<u64>,
    /// Of writing to untouched memory.
    pub untouched: Option<u64>,
    /// Of touching.
    pub touch: Option<u64>,
}

impl MemorySettings {
    /// Ordinary memory: usable at once, touched ahead as measurements advise, not pinned.
    pub fn new() -> Self {
        Self {
            piece_bytes: 2 << 20,
            ahead_bytes: 128 << 20,
            touching: Touching::Chosen,
            needs_touch: false,
            is_shared: false,
            pins: false,
            rates: MemoryRates::default(),
        }
    }
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self::new()
    }
}

/// When to touch memory ahead of its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Touching {
    /// Never: the first write to a page touches it.
    Never,
    /// Always, also during writes.
    Concurrent,
    /// Only while nothing writes to it.
    Sequential,
    /// As measurements advise.
    #[default]
    Chosen,
}

/// The state of pinning of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Pinning {
    /// Not begun: not wanted, or some memory is still untouched.
    #[default]
    Not,
    /// Under way, or waiting for its turn.
    UnderWay,
    /// Done.
    Done,
    /// The system has refused it.
    Refused,
}

/// The state of a layer that is memory, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryState {
    /// How many bytes, from the start, have been touched or lent.
    pub touched_bytes: u64,
    /// Whether it is pinned.
    pub pinning: Pinning,
    /// When it is touched.
    pub strategy: Strategy,
    /// Why this strategy.
    pub reason: Reason,
    /// Bytes per second of writing to pinned memory, once measured.
    pub pinned_rate: Option<f64>,
    /// Bytes per second of writing to touched memory, once measured.
    pub touched_rate: Option<f64>,
    /// Bytes per second of writing to untouched memory, once measured.
    pub untouched_rate: Option<f64>,
    /// Bytes per second of touching, once measured.
    pub touch_rate: Option<f64>,
}

/// The state of a layer that is memory.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    settings: MemorySettings,
    /// From the start. Includes what was lent: whoever fills it touches it.
    touched_bytes: u64,
    /// Touch up to here.
    target_bytes: u64,
    touch: Option<Touch>,
    /// Touching failed; try again at this time.
    exhausted_until: Option<Timestamp>,
    /// The most recent attempt to touch found no more memory.
    was_exhausted: bool,
    pinning: Pinning,
    touching: Busy,
    writing: Busy,
    pub(crate) estimate: Estimate,
}

/// A `Touch` action that has not been answered.
#[derive(Debug, Clone)]
struct Touch {
    range: Range<u64>,
    since: Timestamp,
    writing_ns: u64,
}

/// The state at the beginning of a write, to measure the write when it ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Begun {
    since: Timestamp,
    untouched_bytes: u64,
    touching_ns: u64,
    is_pinned: bool,
}

impl Begun {
    pub(crate) fn untouched_bytes(&self) -> u64 {
        self.untouched_bytes
    }
}

impl Memory {
    pub(crate) fn new(settings: MemorySettings) -> Self {
        let (strategy, reason) = match settings.touching {
            Touching::Chosen => (Strategy::Sequential, Reason::Unmeasured),
            Touching::Concurrent => (Strategy::Concurrent, Reason::Told),
            Touching::Sequential | Touching::Never => (Strategy::Sequential, Reason::Told),
        };
        let estimate = Estimate::new(strategy, reason, settings.rates);
        Self {
            settings,
            touched_bytes: 0,
            target_bytes: 0,
            touch: None,
            exhausted_until: None,
            was_exhausted: false,
            pinning: Pinning::Not,
            touching: Busy::default(),
            writing: Busy::default(),
            estimate,
        }
    }

    pub(crate) fn settings(&self) -> &MemorySettings {
        &self.settings
    }

    pub(crate) fn is_touching(&self) -> bool {
        self.touch.is_some()
    }

    /// Whether touching will still enlarge the usable part.
    pub(crate) fn is_growing(&self, limit_bytes: u64) -> bool {
        self.settings.needs_touch && self.exhausted_until.is_none() && self.touched_bytes < limit_bytes
    }

    /// When to try again to touch shared memory that ran out.
    pub(crate) fn exhausted_until(&self) -> Option<Timestamp> {
        self.exhausted_until.filter(|_| self.settings.is_shared)
    }

    /// Whether shared memory ran out: other processes have the rest.
    pub(crate) fn is_wanting(&self) -> bool {
        self.settings.is_shared && self.was_exhausted
    }

    pub(crate) fn state(&self) -> MemoryState {
        let per_second = |rate: Option<f64>| rate.map(|rate| rate * 1e9);
        MemoryState {
            touched_bytes: self.touched_bytes,
            pinning: self.pinning,
            strategy: self.estimate.strategy(),
            reason: self.estimate.reason(),
            pinned_rate: per_second(self.estimate.pinned_rate()),
            touched_rate: per_second(self.estimate.touched_rate()),
            untouched_rate: per_second(self.estimate.untouched_rate()),
            touch_rate: per_second(self.estimate.touch_rate()),
        }
    }

    /// Bytes per nanosecond of writing to touched or pinned memory, if known.
    pub(crate) fn ready_rate(&self) -> Option<f64> {
        let pinned = self.estimate.pinned_rate().filter(|_| self.pinning == Pinning::Done);
        pinned.or(self.estimate.touched_rate())
    }

    /// How far to touch beyond the bytes in use. Memory that cannot be used untouched needs room
    /// for two snapshots: one to save, and one that may have to come up.
    fn ahead_bytes(&self, snapshot_bytes_max: u64) -> u64 {
        let needed = snapshot_bytes_max * if self.settings.needs_touch { 2 } else { 1 };
        self.settings.ahead_bytes.max(needed)
    }

    /// How many of these bytes were never touched.
    pub(crate) fn untouched_bytes(&self, extents: &Extents) -> u64 {
        extents.iter().map(|piece| piece.end.saturating_sub(piece.start.max(self.touched_bytes))).sum()
    }

    /// The program is lent room that it fills at its own pace, so the write is not timed.
    pub(crate) fn begin_lend(&self, extents: &Extents) -> Begun {
        Begun { untouched_bytes: self.untouched_bytes(extents), ..Begun::default() }
    }

    /// The program or a move begins to write.
    pub(crate) fn begin_write(&mut self, now: Timestamp, extents: &Extents, is_awaited: bool) -> Begun {
        let (bytes, end) =
            extents.iter().fold((0, 0), |(bytes, end), piece| (bytes + piece.end - piece.start, piece.end.max(end)));
        self.estimate.begin(is_awaited, self.touched_bytes >= end.saturating_add(bytes));
        if !self.writing.is_idle() {
            self.estimate.paused(0);
        } else if self.writing.total_ns(now) > 0 {
            self.estimate.paused(now.0.saturating_sub(self.writing.changed().0));
        }
        let begun = Begun {
            since: now,
            untouched_bytes: self.untouched_bytes(extents),
            touching_ns: self.touching.total_ns(now),
            is_pinned: self.pinning == Pinning::Done,
        };
        self.writing.begin(now);
        begun
    }

    /// A write of `bytes` has ended. If it had to wait for an earlier write, that one ended at
    /// `since`.
    pub(crate) fn end_write(&mut self, now: Timestamp, bytes: u64, begun: Begun, since: Timestamp) {
        let touching_ns = self.touching.total_ns(now) - begun.touching_ns;
        let ns = now.0.saturating_sub(begun.since.max(since).0);
        let untouched_bytes = begun.untouched_bytes.min(bytes);
        self.abandon_write(now);
        if ns > 0 {
            let is_pinned = begun.is_pinned;
            self.estimate.wrote(Write { bytes, untouched_bytes, ns, touching_ns: touching_ns.min(ns), is_pinned });
        }
        if self.settings.touching == Touching::Chosen && self.touched_bytes > 0 {
            self.estimate.choose(self.target_bytes.saturating_sub(self.touched_bytes));
        }
    }

    /// A write has ended early, and is not measured.
    pub(crate) fn abandon_write(&mut self, now: Timestamp) {
        self.writing.end(now);
    }
}

impl Planner {
    /// Handles `Event::Touched`.
    pub(crate) fn touched(&mut self, layer: LayerIndex, is_done: bool) {
        let now = self.now;
        let place = &mut self.layers[layer];
        let Some(memory) = &mut place.memory else { return };
        let Some(touch) = memory.touch.take() else { return };
        memory.touching.end(now);
        memory.was_exhausted = !is_done;
        if is_done {
            memory.touched_bytes = memory.touched_bytes.max(touch.range.end);
            let writing_ns = memory.writing.total_ns(now) - touch.writing_ns;
            let ns = now.0.saturating_sub(touch.since.0);
            if ns > 0 {
                memory.estimate.touched(touch.range.end - touch.range.start, ns, writing_ns.min(ns));
            }
            if memory.settings.needs_touch {
                place.space.grow(touch.range.end);
            }
        } else if memory.settings.is_shared {
            memory.exhausted_until = Some(Timestamp(now.0.saturating_add(RETRY_NS)));
        } else {
            self.exhausted(layer);
        }
    }

    /// Handles `Event::Exhausted`: the layer ends where it has been touched.
    pub(crate) fn exhausted(&mut self, layer: LayerIndex) {
        let place = &mut self.layers[layer];
        let Some(memory) = place.memory.as_mut().filter(|memory| !memory.settings.is_shared) else { return };
        memory.exhausted_until = Some(Timestamp(u64::MAX));
        place.space.cut(memory.touched_bytes);
    }

    /// How many untouched bytes the next `bytes` of a layer (at least those of the largest snapshot
    /// so far) would take, plus the untouched bytes that are being filled, which the system has not
    /// provided yet. Zero if that needs no new memory, or if the layer must be touched before use.
    pub fn growth_bytes(&self, layer: LayerIndex, bytes: u64) -> u64 {
        let place = &self.layers[layer];
        let Some(memory) = place.memory.as_ref().filter(|memory| !memory.settings.needs_touch) else { return 0 };
        let end = place.space.frontier().saturating_add(bytes.max(self.bytes_max)).min(place.space.limit());
        match end.saturating_sub(memory.touched_bytes) {
            0 => 0,
            bytes => bytes + self.filling_bytes,
        }
    }

    /// Untouched bytes that the program or a fetch is filling.
    pub fn filling_bytes(&self) -> u64 {
        self.filling_bytes
    }

    /// Handles `Event::Pinned`.
    pub(crate) fn pinned(&mut self, layer: LayerIndex, is_done: bool) {
        if let Some(memory) = &mut self.layers[layer].memory {
            memory.pinning = if is_done { Pinning::Done } else { Pinning::Refused };
        }
    }

    /// Touches memory ahead of its use, so that the next write finds it ready, and pins a layer
    /// that is touched completely.
    pub(crate) fn touch(&mut self) {
        for layer in 0..self.layers.len() {
            let frontier = self.layers[layer].space.frontier();
            let Some(memory) = &mut self.layers[layer].memory else { continue };
            // Whoever fills lent memory touches it.
            memory.touched_bytes = memory.touched_bytes.max(frontier);
            memory.exhausted_until = memory.exhausted_until.filter(|&until| until > self.now);
            if !memory.is_touching() {
                self.release(layer);
                self.pin(layer);
                self.touch_next(layer);
            }
        }
    }

    /// Gives shared memory back if more than twice the needed amount is touched.
    fn release(&mut self, layer: LayerIndex) {
        let place = &mut self.layers[layer];
        let Some(memory) = place.memory.as_mut().filter(|memory| memory.settings.is_shared) else { return };
        let piece_bytes = memory.settings.piece_bytes.max(1);
        let kept = place.space.end_of_used().saturating_add(memory.ahead_bytes(self.bytes_max));
        let kept = kept.div_ceil(piece_bytes).saturating_mul(piece_bytes);
        if memory.touched_bytes > kept.saturating_mul(2) {
            let range = kept..memory.touched_bytes;
            memory.touched_bytes = kept;
            place.space.shrink(kept);
            self.actions.push_back(Action::Release { layer, range });
        }
    }

    fn pin(&mut self, layer: LayerIndex) {
        let limit = self.layers[layer].space.limit();
        let Some(memory) = self.layers[layer].memory.as_mut().filter(|memory| memory.settings.pins) else { return };
        // Do not pin a layer whose memory ran out: the machine has too little already.
        let is_whole = memory.exhausted_until.is_none() && memory.touched_bytes >= limit && limit > 0;
        if is_whole && memory.pinning == Pinning::Not {
            memory.pinning = Pinning::UnderWay;
            self.actions.push_back(Action::Pin { layer });
        }
    }

    fn touch_next(&mut self, layer: LayerIndex) {
        let now = self.now;
        let space = &self.layers[layer].space;
        let (limit, frontier) = (space.limit(), space.frontier());
        let Some(memory) = &mut self.layers[layer].memory else { return };
        // Beyond the first stretch, touch at most twice what was used, so that a large limit does
        // not take all memory. Take shared memory only as it is needed.
        let ahead = memory.ahead_bytes(self.bytes_max).max(if memory.settings.is_shared { 0 } else { frontier });
        let target = frontier.saturating_add(ahead).min(limit);
        memory.target_bytes = target;
        let MemorySettings { touching, needs_touch, piece_bytes, .. } = memory.settings;
        let is_sequential = memory.estimate.strategy() == Strategy::Sequential;
        let is_bad_moment = !needs_touch && is_sequential && !memory.writing.is_idle();
        let is_left_alone = touching == Touching::Never && !needs_touch;
        if is_bad_moment || is_left_alone || memory.exhausted_until.is_some() || memory.touched_bytes >= target {
            return;
        }
        let range = memory.touched_bytes..limit.min(memory.touched_bytes + piece_bytes.max(1));
        memory.touching.begin(now);
        memory.touch = Some(Touch { range: range.clone(), since: now, writing_ns: memory.writing.total_ns(now) });
        self.actions.push_back(Action::Touch { layer, range });
    }
}
