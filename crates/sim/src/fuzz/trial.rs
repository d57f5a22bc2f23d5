//! One world: a planner, simulated layers, and everything that is moving.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use outcrop_plan::{
    Action, Event, Extents, Fault, LayerIndex, Planner, Refusal, Settings, Site, SnapshotId, Timestamp,
};

use super::{Coverage, Sabotage, program::Program, stack};

/// The simulated size of a layer without a limit.
const UNLIMITED: u64 = u64::MAX / 2;

/// How many of the last events and actions are kept for a report.
const LAST: usize = 60;

impl RealLayer {
    /// Whether all the memory that it can get is touched.
    pub(super) fn is_whole(&self) -> bool {
        self.ready_bytes >= self.capacity_bytes || self.is_exhausted || self.is_shrunk
    }

    /// Whether it has its full capacity, and can be used.
    pub(super) fn is_sound(&self) -> bool {
        let is_there = !self.needs_touch || self.ready_bytes >= self.capacity_bytes;
        is_there && !self.is_shared && !self.is_exhausted && !self.is_shrunk && !self.is_broken
    }

    /// The largest unused piece of its memory.
    pub(super) fn largest_hole_bytes(&self) -> u64 {
        let mut end = 0;
        let mut largest = 0;
        for (&start, &(extent_end, _)) in &self.extents {
            largest = largest.max(start.saturating_sub(end));
            end = end.max(extent_end);
        }
        largest.max(self.ready_bytes.saturating_sub(end))
    }
}

/// The error describes the problem.
pub(super) type Checked<T = ()> = Result<T, String>;

/// An action of the planner that has not been answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    Move { id: SnapshotId, from: Site, to: Site },
    Touch { layer: LayerIndex, end: u64 },
    Pin { layer: LayerIndex },
}

/// The actual state of a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Saved {
    pub(super) key: u64,
    pub(super) bytes: u64,
    /// Complete copies.
    pub(super) complete: BTreeMap<LayerIndex, Extents>,
    /// Layers whose copy could not be read once: the planner may give it up.
    pub(super) doubtful: u32,
    /// Layers whose copy can never be read again.
    pub(super) damaged: u32,
    /// Layers whose copy is missing although a test told the planner that it is complete.
    pub(super) missing: u32,
    /// Layers that it does not have to reach any more: they were full or failed, or it was there
    /// before.
    pub(super) spared: u32,
    pub(super) holders: u32,
    /// It yields while it waits for room.
    pub(super) yields: bool,
    pub(super) is_lent: bool,
    /// Saved, and neither consumed nor discarded.
    pub(super) is_live: bool,
}

/// The actual state of a layer.
#[derive(Debug, Clone)]
pub(super) struct RealLayer {
    pub(super) capacity_bytes: u64,
    /// What it can hold. Less than its capacity once its medium was full.
    pub(super) room_bytes: u64,
    pub(super) needs_touch: bool,
    /// Whether memory that ran out may become available again.
    pub(super) is_shared: bool,
    /// How much is touched, or was lent and so touched by the program.
    pub(super) ready_bytes: u64,
    pub(super) is_exhausted: bool,
    /// Its medium was full before its limit was reached, and that is the limit now.
    pub(super) is_shrunk: bool,
    pub(super) is_broken: bool,
    pub(super) is_touching: bool,
    pub(super) has_pinned: bool,
    /// If bytes stay on it: those that belong to no snapshot that the planner knows.
    pub(super) kept_bytes: Option<u64>,
    /// Occupied extents: start, end and owner. Some owners may be gone.
    pub(super) extents: BTreeMap<u64, (u64, SnapshotId)>,
}

#[derive(Debug, Clone)]
enum Said {
    Told(u64, Event),
    Answered(Action),
}

/// See the module's documentation.
pub(super) struct Trial {
    pub(super) random: Rng,
    pub(super) planner: Planner,
    pub(super) layers: Vec<RealLayer>,
    pub(super) saved: BTreeMap<SnapshotId, Saved>,
    pub(super) jobs: Vec<Job>,
    pub(super) program: Program,
    pub(super) now_ns: u64,
    pub(super) may_fault: bool,
    /// Whether every snapshot has to reach every layer.
    pub(super) persists: bool,
    /// Whether something was evicted from the front since the last event.
    pub(super) has_evicted: bool,
    pub(super) coverage: Coverage,
    sabotage: Sabotage,
    last: VecDeque<Said>,
    actions: Option<Vec<Action>>,
}

impl Trial {
    pub(super) fn new(seed: u64, sabotage: Sabotage, keeps_actions: bool) -> Self {
        let mut random = Rng::with_seed(seed);
        let settings = stack::settings(&mut random);
        let program = Program::new(&mut random);
        // Without faults, nothing may be refused for lack of room that was promised.
        let may_fault = random.u32(0..4) > 0;
        Self {
            layers: real_layers(&settings),
            persists: settings.persists,
            planner: Planner::new(settings),
            random,
            saved: BTreeMap::new(),
            jobs: Vec::new(),
            program,
            now_ns: 0,
            may_fault,
            has_evicted: false,
            coverage: Coverage { seeds: 1, ..Coverage::default() },
            sabotage,
            last: VecDeque::with_capacity(LAST),
            actions: keeps_actions.then(Vec::new),
        }
    }

    pub(super) fn coverage(&self) -> Coverage {
        self.coverage
    }

    pub(super) fn actions(&self) -> Option<&[Action]> {
        self.actions.as_deref()
    }

    pub(super) fn last(&self) -> Vec<String> {
        let line = |said: &Said| match said {
            Said::Told(at, event) => format!("at {at}: {event:?}"),
            Said::Answered(action) => format!("    -> {action:?}"),
        };
        self.last.iter().map(line).collect()
    }

    /// Sends an event to the planner, and carries out its actions.
    pub(super) fn tell(&mut self, event: Event) -> Checked {
        self.coverage.events += 1;
        // Sometimes an operation takes a thousand times as long as usual.
        let most_ns = if self.random.u32(0..50) == 0 { 1_000_000 } else { 1000 };
        self.now_ns += self.random.u64(1..most_ns);
        self.remember(Said::Told(self.now_ns, event.clone()));
        self.has_evicted = false;
        self.planner.handle(Timestamp(self.now_ns), event);
        while let Some(action) = self.planner.poll() {
            self.remember(Said::Answered(action.clone()));
            if let Some(actions) = &mut self.actions {
                actions.push(action.clone());
            }
            self.carry_out(action)?;
        }
        self.check_limits()?;
        self.check_gave_way()
    }

    fn remember(&mut self, said: Said) {
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(said);
    }

    fn carry_out(&mut self, action: Action) -> Checked {
        match action {
            Action::Lend { id, at } => {
                let saved = self.saved.get_mut(&id).ok_or("a slot is lent to nobody")?;
                let extents = Extents::from_elem(at..at + saved.bytes, 1);
                saved.is_lent = true;
                saved.complete.insert(0, extents.clone());
                self.occupy(0, &extents, id)?;
                self.answered(id, None)
            }
            Action::Hand { id, .. } => {
                self.check_hand(id)?;
                self.answered(id, None)
            }
            Action::Refuse { id, why, .. } => {
                self.coverage.refusals += 1;
                self.check_refusal(id, why)?;
                self.answered(id, Some(why))
            }
            Action::Move { id, from, to, purpose } => {
                self.check_move(id, &from, &to, purpose)?;
                // If a copy that could not be read is written again, the planner has given it up.
                let given_up = self.saved.get_mut(&id).and_then(|saved| {
                    saved.damaged &= !(1 << to.layer);
                    saved.complete.remove(&to.layer)
                });
                self.vacate(to.layer, &given_up.unwrap_or_default());
                self.occupy(to.layer, &to.extents, id)?;
                self.jobs.push(Job::Move { id, from, to });
                Ok(())
            }
            Action::Evict { id, layer } => self.evict(id, layer),
            Action::LeaveOut { id, layer } => {
                self.check_left_out(id, layer)?;
                self.saved.entry(id).and_modify(|saved| saved.spared |= 1 << layer);
                Ok(())
            }
            Action::Slide { id, from, to } => self.slide(id, from, to),
            Action::Touch { layer, range } => {
                self.check_touch(layer, &range)?;
                self.layers[layer].is_touching = true;
                self.layers[layer].is_exhausted = false;
                self.jobs.push(Job::Touch { layer, end: range.end });
                Ok(())
            }
            Action::Release { layer, range } => {
                self.check_release(layer, &range)?;
                self.layers[layer].ready_bytes = range.start;
                Ok(())
            }
            Action::Pin { layer } => {
                self.check_pin(layer)?;
                self.layers[layer].has_pinned = true;
                self.jobs.push(Job::Pin { layer });
                Ok(())
            }
        }
    }

    fn evict(&mut self, id: SnapshotId, layer: LayerIndex) -> Checked {
        self.check_evict(id, layer)?;
        self.has_evicted |= layer == 0;
        let saved = self.saved.get_mut(&id).ok_or("what is evicted was never there")?;
        let extents = saved.complete.remove(&layer).unwrap_or_default();
        if let Some(kept) = &mut self.layers[layer].kept_bytes {
            *kept += saved.bytes;
            saved.spared |= 1 << layer;
        }
        saved.doubtful &= !(1 << layer);
        saved.damaged &= !(1 << layer);
        saved.missing &= !(1 << layer);
        self.vacate(layer, &extents);
        Ok(())
    }

    fn slide(&mut self, id: SnapshotId, from: u64, to: u64) -> Checked {
        self.check_slide(id, from, to)?;
        let saved = self.saved.get_mut(&id).ok_or("what slides was never there")?;
        let extents = Extents::from_elem(to..to + saved.bytes, 1);
        saved.complete.insert(0, extents.clone());
        self.vacate(0, &Extents::from_elem(from..from + 1, 1));
        self.occupy(0, &extents, id)
    }

    /// Ends a random pending operation.
    pub(super) fn end_job(&mut self) -> Checked {
        let job = self.jobs.swap_remove(self.random.usize(..self.jobs.len()));
        match job {
            Job::Touch { layer, end } => {
                let real = &mut self.layers[layer];
                real.is_touching = false;
                let is_done = !self.may_fault || self.random.u32(0..40) > 0;
                if is_done {
                    real.ready_bytes = real.ready_bytes.max(end);
                } else {
                    self.coverage.faults += 1;
                    real.is_exhausted = true;
                }
                self.tell(Event::Touched { layer, is_done: is_done || self.sabotage.lies_about_memory })
            }
            Job::Pin { layer } => {
                let is_done = self.random.u32(0..4) > 0;
                self.coverage.faults += u64::from(!is_done);
                self.tell(Event::Pinned { layer, is_done })
            }
            Job::Move { id, from, to } => self.end_move(id, &from, to),
        }
    }

    fn end_move(&mut self, id: SnapshotId, from: &Site, to: Site) -> Checked {
        let is_damaged = self.saved.get(&id).is_some_and(|saved| saved.damaged & (1 << from.layer) != 0);
        let fault = if is_damaged { Some(Fault::SourceDamaged) } else { self.fault(from.layer, to.layer) };
        let stays_damaged = self.random.bool();
        let (from, to, extents) = (from.layer, to.layer, to.extents);
        let saved = self.saved.get_mut(&id).ok_or("what moves was never there")?;
        let Some(fault) = fault else {
            saved.complete.insert(to, extents);
            saved.doubtful &= !(1 << to | 1 << from);
            return self.tell(Event::Moved { id, from, to });
        };
        self.coverage.faults += 1;
        match fault {
            Fault::SourceUnreadable => saved.doubtful |= 1 << from,
            Fault::SourceDamaged => {
                saved.doubtful |= 1 << from;
                saved.damaged |= u32::from(stays_damaged) << from;
            }
            // If everything has to reach a layer, a snapshot that it could not take is left out
            // there, and later ones are still sent.
            Fault::TargetFull | Fault::TargetBroken if self.persists => saved.spared |= 1 << to,
            Fault::TargetBroken => self.layers[to].is_broken = true,
            Fault::TargetFull if self.sabotage.lies_about_writes => {
                let saved = self.saved.get_mut(&id).ok_or("what moves was never there")?;
                saved.complete.insert(to, extents);
                saved.missing |= 1 << to;
                return self.tell(Event::Moved { id, from, to });
            }
            Fault::TargetFull => {
                let used_bytes = self.planner.used_bytes(to).0 - saved.bytes;
                let real = &mut self.layers[to];
                real.is_shrunk = true;
                real.room_bytes = real.room_bytes.min(used_bytes);
            }
        }
        self.vacate(to, &extents);
        self.tell(Event::Failed { id, from, to, fault })
    }

    /// A move down may fail to arrive, and a move up may be unreadable. The front fails rarely,
    /// like a lost device.
    fn fault(&mut self, from: LayerIndex, to: LayerIndex) -> Option<Fault> {
        if !self.may_fault || self.random.u32(0..6) > 0 {
            return None;
        }
        match self.random.u32(0..5) {
            0 | 1 if to > 0 => Some(Fault::TargetFull),
            2 if to > 0 || (!self.persists && self.random.u32(0..8) == 0) => Some(Fault::TargetBroken),
            3 if from > 0 => Some(Fault::SourceUnreadable),
            4 if from > 0 => Some(Fault::SourceDamaged),
            _ => None,
        }
    }

    fn answered(&mut self, id: SnapshotId, why: Option<Refusal>) -> Checked {
        let is_consumed = self.program.answer(id, why)?;
        let Some(saved) = self.saved.get_mut(&id) else { return Ok(()) };
        match why {
            None if saved.is_live => {
                saved.holders += 1;
                saved.is_live = !is_consumed;
            }
            None => {}
            Some(_) if !saved.is_live && !saved.is_lent && saved.complete.is_empty() => drop(self.saved.remove(&id)),
            Some(_) => {}
        }
        Ok(())
    }
}

fn real_layers(settings: &Settings) -> Vec<RealLayer> {
    let real = |layer: &outcrop_plan::LayerSettings| RealLayer {
        capacity_bytes: layer.capacity_bytes.unwrap_or(UNLIMITED),
        room_bytes: layer.capacity_bytes.unwrap_or(UNLIMITED),
        needs_touch: layer.memory.is_some_and(|memory| memory.needs_touch),
        is_shared: layer.memory.is_some_and(|memory| memory.is_shared),
        ready_bytes: 0,
        is_exhausted: false,
        is_shrunk: false,
        is_broken: false,
        is_touching: false,
        has_pinned: false,
        kept_bytes: layer.keeps.then_some(0),
        extents: BTreeMap::new(),
    };
    settings.layers.iter().map(real).collect()
}
