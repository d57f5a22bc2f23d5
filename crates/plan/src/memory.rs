//! Layers that are memory: which part of them is ready, when more is made ready, and when all of it
//! is pinned.
//!
//! Memory is ready from its start up to some byte: what lies beyond has never been used. Host
//! memory can be written before it is ready, slowly; device memory cannot.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    Action, Extents, LayerIndex, Timestamp,
    estimate::{Estimate, Reason, Strategy, Write},
    planner::Planner,
    rates::Busy,
};

/// Memory that others have is asked for again after so long.
const RETRY_NS: u64 = 20_000_000;

/// What a layer needs to know of itself if it is memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySettings {
    /// It is touched in pieces of this size.
    pub piece_bytes: u64,
    /// It is touched so far ahead of what has been used, and at least as far as has been used.
    pub ahead_bytes: u64,
    /// When it is touched.
    pub touching: Touching,
    /// It cannot be written before it has been touched.
    pub needs_touch: bool,
    /// It is shared with others: what is not in use is given back to them, and what there is no
    /// more of may come back.
    pub is_shared: bool,
    /// It is to be pinned, in one piece, once all of it has been touched.
    pub pins: bool,
    /// How fast it is, as far as that is known before it is used.
    pub rates: MemoryRates,
}

/// Bytes per second, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryRates {
    /// Of writing to memory that is pinned.
    pub pinned: Option<u64>,
    /// Of writing to memory that has been touched.
    pub touched: Option<u64>,
    /// Of writing to memory that has not.
    pub untouched: Option<u64>,
    /// Of touching it.
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

/// When memory is touched ahead of its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Touching {
    /// Never: who writes to it touches it.
    Never,
    /// Always.
    Concurrent,
    /// While nothing is being written to it.
    Sequential,
    /// As measurements advise.
    #[default]
    Chosen,
}

/// How far the pinning of a layer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Pinning {
    /// Not begun: not wanted, or not everything has been touched.
    #[default]
    Not,
    /// Under way, or waiting for its turn.
    UnderWay,
    /// Done.
    Done,
    /// The system has refused it.
    Refused,
}

/// What is known of a layer that is memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MemoryState {
    /// So much of it, from its start, has been touched or handed out.
    pub touched_bytes: u64,
    /// Whether it is pinned.
    pub pinning: Pinning,
    /// When it is touched.
    pub strategy: Strategy,
    /// Why then.
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
    /// From the start; also what has been handed out, as who writes to it touches it.
    touched_bytes: u64,
    /// It is to be touched up to here.
    target_bytes: u64,
    touch: Option<Touch>,
    /// There is no more, until then.
    exhausted_until: Option<Timestamp>,
    /// The last time it was touched there was no more.
    was_exhausted: bool,
    pinning: Pinning,
    touching: Busy,
    writing: Busy,
    pub(crate) estimate: Estimate,
}

/// Touching under way.
#[derive(Debug, Clone)]
struct Touch {
    range: Range<u64>,
    since: Timestamp,
    writing_ns: u64,
}

/// The beginning of a write, to know at its end how it went.
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

    /// Whether it will become larger than it is, by itself.
    pub(crate) fn is_growing(&self, limit_bytes: u64) -> bool {
        self.settings.needs_touch && self.exhausted_until.is_none() && self.touched_bytes < limit_bytes
    }

    /// When there may be more of it again, if there is none now.
    pub(crate) fn exhausted_until(&self) -> Option<Timestamp> {
        self.exhausted_until.filter(|_| self.settings.is_shared)
    }

    /// Whether others have what is missing of it.
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

    /// Bytes per nanosecond of writing to memory that was used before, as far as is known.
    pub(crate) fn ready_rate(&self) -> Option<f64> {
        let pinned = self.estimate.pinned_rate().filter(|_| self.pinning == Pinning::Done);
        pinned.or(self.estimate.touched_rate())
    }

    /// How far ahead of what is in use it is to be touched. What cannot be used before needs room
    /// for two: one to be saved, and one that may have to come up.
    fn ahead_bytes(&self, snapshot_bytes_max: u64) -> u64 {
        let needed = snapshot_bytes_max * if self.settings.needs_touch { 2 } else { 1 };
        self.settings.ahead_bytes.max(needed)
    }

    /// Bytes of these that have never been touched.
    pub(crate) fn untouched_bytes(&self, extents: &Extents) -> u64 {
        extents.iter().map(|piece| piece.end.saturating_sub(piece.start.max(self.touched_bytes))).sum()
    }

    /// The program is lent room to do with as it likes, for as long as it likes.
    pub(crate) fn begin_lend(&self, extents: &Extents) -> Begun {
        Begun { untouched_bytes: self.untouched_bytes(extents), ..Begun::default() }
    }

    /// Somebody begins to write here, the program or a move.
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

    /// A write of `bytes` has ended; it may have had to wait for an earlier one until `since`.
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

    /// A write has ended without having written everything.
    pub(crate) fn abandon_write(&mut self, now: Timestamp) {
        self.writing.end(now);
    }
}

impl Planner {
    /// Memory of a layer has been touched, or there is no more of it.
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

    /// There is no more of a layer than has been touched.
    pub(crate) fn exhausted(&mut self, layer: LayerIndex) {
        let place = &mut self.layers[layer];
        let Some(memory) = place.memory.as_mut().filter(|memory| !memory.settings.is_shared) else { return };
        memory.exhausted_until = Some(Timestamp(u64::MAX));
        place.space.cut(memory.touched_bytes);
    }

    /// Of the next `bytes` of a layer that can be used before it is touched, or of the largest
    /// snapshot until now, as many as nobody has touched; and as many as are still being filled,
    /// for which the system has not provided memory yet.
    pub fn growth_bytes(&self, layer: LayerIndex, bytes: u64) -> u64 {
        let place = &self.layers[layer];
        let Some(memory) = place.memory.as_ref().filter(|memory| !memory.settings.needs_touch) else { return 0 };
        let end = place.space.frontier().saturating_add(bytes.max(self.bytes_max)).min(place.space.limit());
        match end.saturating_sub(memory.touched_bytes) {
            0 => 0,
            bytes => bytes + self.filling_bytes,
        }
    }

    /// Bytes never touched that the program, or a fetch, is filling.
    pub fn filling_bytes(&self) -> u64 {
        self.filling_bytes
    }

    /// A layer has been pinned, or could not be.
    pub(crate) fn pinned(&mut self, layer: LayerIndex, is_done: bool) {
        if let Some(memory) = &mut self.layers[layer].memory {
            memory.pinning = if is_done { Pinning::Done } else { Pinning::Refused };
        }
    }

    /// Touches memory ahead of where it was used, so that whoever writes next finds it ready, and
    /// pins what is all touched.
    pub(crate) fn touch(&mut self) {
        for layer in 0..self.layers.len() {
            let frontier = self.layers[layer].space.frontier();
            let Some(memory) = &mut self.layers[layer].memory else { continue };
            // What has been handed out is touched by who fills it.
            memory.touched_bytes = memory.touched_bytes.max(frontier);
            memory.exhausted_until = memory.exhausted_until.filter(|&until| until > self.now);
            if !memory.is_touching() {
                self.release(layer);
                self.pin(layer);
                self.touch_next(layer);
            }
        }
    }

    /// Gives back what is shared and more than twice what is in use.
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
        // What has run out is not pinned: there is too little of it already.
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
        // Never more than twice what was used, beyond the first stretch: a large limit is no reason
        // to take it all. What others want as well is taken only as it is needed.
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
