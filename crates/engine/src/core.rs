//! The state that the program and the helpers share: the planner, the snapshots in memory, and the
//! queued moves.

use std::{
    collections::{BTreeMap, VecDeque},
    mem::{self, Discriminant},
    ops::{Deref, DerefMut, Range},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use outcrop_error::patience::{self, ASK_EVERY, Awaited};
use outcrop_layers::{Front, Host, Kept, Layer, Room, Sealed, Slot};
use outcrop_memory::Copier;
use outcrop_plan::{
    Action, Busy, Event, Extents, LayerIndex, Packed, Planner, Purpose, Reason, Refusal, Site, SnapshotId, Strategy,
    Timestamp,
};
use smallvec::SmallVec;

use crate::{
    Arrival, Arrivals, Checksums, Error, Layout, Result, Span, SpanKind, Trace, checksum::Checksum, layout::Layouts,
    link::Exits, log::Recorder, stats::LayerStats,
};

/// The state that the program's handles and the helpers share.
pub(crate) struct Shared {
    pub(crate) core: Mutex<Core>,
    /// Slots that the program has given back, and that the planner has not been told about yet.
    pub(crate) returns: Mutex<Vec<SnapshotId>>,
    /// Wakes helpers: there is work.
    pub(crate) work: Condvar,
    /// Wakes the program's calls: an answer is there.
    pub(crate) answered: Condvar,
    /// The layers in the order of the plan. The first is the front.
    pub(crate) layers: Vec<Arc<dyn Layer>>,
    /// The first addressable layer: other layers transfer from and to its memory directly.
    pub(crate) host: Option<(LayerIndex, Host)>,
    pub(crate) copier: Copier,
    pub(crate) trace: Trace,
    /// Lets closing wait for users of the state that do not keep the engine open.
    pub(crate) exits: Arc<Exits>,
    pub(crate) checksums: Checksums,
    /// Called when a snapshot has reached a layer.
    pub(crate) arrivals: Option<Arrivals>,
    pub(crate) calls: CallCount,
    pub(crate) start: Instant,
}

/// The state behind the lock.
pub(crate) struct Core {
    pub(crate) planner: Planner,
    pub(crate) recorder: Option<Recorder>,
    /// All snapshots that the program can read.
    pub(crate) snapshots: Packed<SnapshotId, Snapshot>,
    /// The layouts of these snapshots.
    pub(crate) layouts: Layouts,
    /// The further pieces of those that lie on the host layer in several.
    pub(crate) further: BTreeMap<SnapshotId, Pieces>,
    /// Answers that the waiting calls have not picked up yet: at most one per handle.
    pub(crate) answers: Answers,
    pub(crate) lanes: BTreeMap<Lane, Queue>,
    pub(crate) lane_served_last: Option<Lane>,
    /// The lane that a helper has just left although it has more moves, because another one waits.
    pub(crate) lane_that_gave_way: Option<Lane>,
    pub(crate) next_job: u64,
    /// Arrivals that are not reported yet.
    pub(crate) reports: VecDeque<Arrival>,
    /// Memory to touch or pin.
    pub(crate) chores: VecDeque<Chore>,
    /// How many callers currently forbid new chores.
    pub(crate) undisturbed: u32,
    /// The strategy for touching the host layer, and the kind of its reason, when last recorded.
    pub(crate) strategy: Option<(Strategy, Discriminant<Reason>)>,
    pub(crate) next_id: u64,
    pub(crate) handles: u32,
    /// Calls of the program that wait for an answer, and whether one of them has it.
    pub(crate) waiting: u32,
    pub(crate) is_answered: bool,
    /// How many helpers to wake for new work.
    pub(crate) wakes: u32,
    pub(crate) idle_helpers: u32,
    pub(crate) is_closing: bool,
    /// A helper has panicked: its moves will never end.
    pub(crate) has_stopped: bool,
    /// Why snapshots in the front are not where the plan expects them.
    pub(crate) displaced: Option<String>,
    pub(crate) layers: Vec<LayerCount>,
    pub(crate) moving: Busy,
}

/// A snapshot, and its bytes if they are on the host layer. There may be millions of them.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) key: u64,
    pub(crate) layout: Arc<Layout>,
    /// The checksum of the whole slot: from a save that copied it, or once the snapshot has left
    /// memory.
    pub(crate) checksum: Option<Checksum>,
    /// The first piece of the bytes.
    sealed: Option<Sealed>,
}

/// The bytes of a snapshot on the host layer. One piece if that is the front.
pub(crate) type Pieces = SmallVec<[Sealed; 1]>;

/// Source and target layer of a move.
pub(crate) type Lane = (LayerIndex, LayerIndex);

/// The queued moves of a lane.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    /// A helper is serving this lane.
    pub(crate) is_served: bool,
}

/// One move.
#[derive(Debug)]
pub(crate) struct Job {
    /// Jobs are numbered in the order in which they were queued, on whichever lane.
    pub(crate) number: u64,
    pub(crate) id: SnapshotId,
    pub(crate) key: u64,
    /// That of the saved bytes, if it is known.
    pub(crate) checksum: Option<Checksum>,
    pub(crate) purpose: Purpose,
    pub(crate) kind: JobKind,
    pub(crate) bytes: u64,
}

/// The kinds of source and target of a move.
#[derive(Debug)]
pub(crate) enum JobKind {
    /// From the host layer to another one, in pieces.
    Out(SmallVec<[(Sealed, Extents); 1]>),
    /// From another layer to the host layer, in pieces.
    In(SmallVec<[(Slot, Extents); 1]>),
    /// Between two other layers.
    Across(Extents, Extents),
}

/// Work on a layer's memory.
#[derive(Debug)]
pub(crate) enum Chore {
    Touch(LayerIndex, Range<u64>),
    Pin(LayerIndex),
}

/// What a call waits for: room for a snapshot, or the snapshot itself, for the last time or not. A
/// get and a take may wait for the same snapshot, and their answers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) id: SnapshotId,
    /// False for room.
    pub(crate) consume: bool,
}

/// The answer to a call that waited.
#[derive(Debug)]
pub(crate) enum Answer {
    Lent(Room),
    Handed(Kept),
    Refused(Refusal),
}

/// The answers that are there.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<(Question, Answer)>);

impl Answers {
    fn has(&self, question: Question) -> bool {
        self.0.iter().any(|(answered, _)| *answered == question)
    }

    fn take(&mut self, question: Question) -> Option<Answer> {
        let position = self.0.iter().position(|(answered, _)| *answered == question)?;
        Some(self.0.remove(position).1)
    }
}

/// Counts of one layer.
#[derive(Debug, Default, Clone)]
pub(crate) struct LayerCount {
    pub(crate) stats: LayerStats,
    pub(crate) writing: Busy,
    pub(crate) reading: Busy,
}

/// Counts of the program's calls.
#[derive(Debug, Default)]
pub(crate) struct CallCount {
    pub(crate) saves: AtomicU64,
    pub(crate) saved_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) save_ns: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) read_ns: AtomicU64,
    /// Processor time of the helpers.
    pub(crate) helper_ns: AtomicU64,
}

impl Shared {
    /// Locks the state, and first tells the planner about all slots given back so far. Works after
    /// a panic elsewhere: a panic in a helper must not prevent the program from closing its tape.
    pub(crate) fn lock(&self) -> Guard<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = Guard { shared: self, core: Some(core) };
        self.take_returns(&mut guard);
        guard
    }

    /// The program gives a slot back. Usually it does not wait for the planner: whoever takes the
    /// lock next tells it. If the room is good for something, a helper is woken for that. If
    /// another call waits for it, or no helper is idle, this call tells the planner itself.
    pub(crate) fn give_back(&self, id: SnapshotId) {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        // A helper that is about to sleep holds the lock until it sleeps. After this lock, no
        // helper can miss the notification.
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_wanted, is_good) = (core.waiting > 0, core.planner.can_use_room());
        let has_idle = core.idle_helpers > 0;
        drop(core);
        match (is_wanted, is_good) {
            (false, false) => {}
            (false, true) if has_idle => self.work.notify_one(),
            _ => drop(self.lock()),
        }
    }

    fn take_returns(&self, core: &mut Core) {
        let returns = std::mem::take(&mut *self.returns.lock().unwrap_or_else(PoisonError::into_inner));
        for id in returns {
            self.tell(core, Event::Released(id));
        }
    }

    fn wake(&self, (helpers, is_answered): (u32, bool)) {
        (0..helpers).for_each(|_| self.work.notify_one());
        if is_answered {
            self.answered.notify_all();
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Tells the planner what happened, and begins the actions that follow.
    pub(crate) fn tell(&self, core: &mut Core, event: Event) {
        // While the engine closes, moves still end, but nothing follows from them.
        if core.is_closing {
            return;
        }
        self.check_growth(core, &event);
        if !matches!(event, Event::Kept { .. }) {
            self.note_kept(core);
        }
        let now = Timestamp(self.now_ns());
        let recorded = core.recorder.is_some().then(|| event.clone());
        core.planner.handle(now, event);
        let mut actions = Vec::new();
        while let Some(action) = core.planner.poll() {
            if recorded.is_some() {
                actions.push(action.clone());
            }
            self.begin(core, action);
        }
        if let (Some(recorder), Some(event)) = (&mut core.recorder, recorded) {
            recorder.add(now, event, &actions);
        }
        self.note_strategy(core, now);
        // A call that waits without a timeout must learn that there is one now.
        core.is_answered |= core.planner.poll_timeout().is_some() && core.waiting > 0;
    }

    /// Tells the planner how many bytes layers that keep bytes hold beside the known snapshots, if
    /// that has changed. The owner of such a layer adds and removes files without the engine.
    fn note_kept(&self, core: &mut Core) {
        for (layer, kept) in self.layers.iter().map(|layer| layer.kept_bytes()).enumerate() {
            if let Some(bytes) = kept.filter(|_| kept != core.planner.kept_bytes(layer)) {
                self.tell(core, Event::Kept { layer, bytes });
            }
        }
    }

    /// Called before an event that may use untouched host memory. If the system has too little and
    /// could kill the program for it, ends the layer where it has been touched. If host memory is
    /// the front, saves and reads use it; below a device, moves do.
    fn check_growth(&self, core: &mut Core, event: &Event) {
        let Some((layer, host)) = &self.host else { return };
        let bytes = match event {
            Event::RoomWanted { bytes, .. } if *layer == 0 => *bytes,
            event if *layer == 0 && core.planner.wants_growth(event) => 0,
            Event::Sealed { .. } | Event::Moved { .. } | Event::Wanted { .. } if *layer > 0 => 0,
            _ => return,
        };
        let bytes = core.planner.growth_bytes(*layer, bytes);
        if bytes == 0 {
            return;
        }
        if let Err(error) = host.may_grow(bytes) {
            self.note_exhausted(core, *layer, &error);
            self.tell(core, Event::Exhausted { layer: *layer });
        }
    }

    /// Logs why a layer got no more memory, and keeps the reason for calls that are refused because
    /// of it. Shared memory may become available again, so that is no warning.
    pub(crate) fn note_exhausted(&self, core: &mut Core, layer: LayerIndex, error: &outcrop_layers::Error) {
        if self.layers[layer].front().is_some_and(|memory| memory.abilities().is_shared) {
            tracing::debug!(%error, "no more memory for this layer at the moment");
        } else {
            tracing::warn!(%error, "no more memory is taken for this layer");
            core.layers[layer].stats.fault = Some(error.to_string());
        }
    }

    /// Whether the engine verifies what comes back from layers, and there are some to come back
    /// from.
    pub(crate) fn needs_checksums(&self) -> bool {
        self.checksums == Checksums::Engine && self.layers.len() > 1
    }

    /// The memory of layer 0.
    pub(crate) fn front(&self) -> &dyn Front {
        self.layers[0].front().expect("the first layer was chosen for being memory")
    }

    /// The host layer's memory, if `layer` is the host layer.
    pub(crate) fn host_at(&self, layer: LayerIndex) -> Option<&Host> {
        self.host.as_ref().filter(|(index, _)| *index == layer).map(|(_, host)| host)
    }

    fn begin(&self, core: &mut Core, action: Action) {
        match action {
            Action::Lend { id, at } => {
                let bytes = core.planner.bytes(id);
                let room = self.front().lend(at..at + bytes).expect("the plan lends what is free");
                core.answer(Question { id, consume: false }, Answer::Lent(room));
            }
            Action::Hand { id, consume } => {
                let at = core.planner.start_in_front(id).expect("the plan hands over what is in the front");
                let sealed = self.host_at(0).and_then(|_| core.snapshots[&id].sealed.clone());
                let kept = Kept::new(at..at + core.planner.bytes(id), sealed);
                core.answer(Question { id, consume }, Answer::Handed(kept));
            }
            Action::Refuse { id, consume, why } => core.answer(Question { id, consume }, Answer::Refused(why)),
            Action::Evict { id, layer } if self.host_at(layer).is_some() => {
                core.further.remove(&id);
                drop(core.take_sealed(id));
            }
            Action::Evict { id, layer } => {
                if let Some(snapshot) = core.snapshots.get(&id) {
                    self.layers[layer].forget(snapshot.key);
                }
            }
            Action::LeaveOut { id, layer } => self.leave_out(core, id, layer),
            Action::Slide { id, from, to } => self.slide(core, id, from, to),
            Action::Move { id, from, to, purpose } => self.queue(core, id, (from, to), purpose),
            Action::Touch { layer, range } => core.add_chore(Chore::Touch(layer, range)),
            Action::Pin { layer } => core.add_chore(Chore::Pin(layer)),
            Action::Release { layer, range } => {
                if let Some(Err(error)) = self.layers[layer].front().map(|memory| memory.release(range)) {
                    tracing::warn!(%error, "unused memory could not be given back to other processes");
                }
            }
        }
    }

    /// Reports that a snapshot does not fit within the limit of a layer that it had to reach.
    fn leave_out(&self, core: &mut Core, id: SnapshotId, layer: LayerIndex) {
        let (name, bytes) = (self.layers[layer].name(), core.planner.bytes(id));
        let (used, limit) = (core.planner.used_bytes(layer).0, self.layers[layer].capacity().unwrap_or(u64::MAX));
        let failure = format!(
            "{name}: {used} of {limit} bytes of the limit are used, and {bytes} more are needed; \
             raise the limit, or keep fewer versions"
        );
        tracing::error!(failure, "a snapshot does not fit on a layer and is not saved there");
        core.layers[layer].stats.fault = Some(failure.clone());
        let key = core.snapshots[&id].key;
        core.reports.push_back(Arrival { key, layer, failure: Some(failure) });
        core.wakes += 1;
    }

    fn slide(&self, core: &mut Core, id: SnapshotId, from: u64, to: u64) {
        let sealed = self.host_at(0).and_then(|_| core.take_sealed(id));
        let kept = Kept::new(from..from + core.planner.bytes(id), sealed);
        match self.front().slide(kept, to) {
            Ok(slid) => {
                if let Some(sealed) = slid.into_sealed() {
                    core.set_sealed(id, Pieces::from_elem(sealed, 1));
                }
            }
            Err(error) => {
                // The plan now has wrong addresses for these bytes.
                tracing::error!(%error, "snapshots in the front cannot be moved together");
                core.layers[0].stats.fault = Some(error.to_string());
                core.displaced = Some(error.to_string());
                core.is_answered = true;
            }
        }
    }

    fn queue(&self, core: &mut Core, id: SnapshotId, (from, to): (Site, Site), purpose: Purpose) {
        let lane = (from.layer, to.layer);
        let bytes = core.planner.bytes(id);
        let kind = if self.host_at(from.layer).is_some() {
            let sealed = core.sealed(id);
            let extents = cut(&to.extents, sealed.iter().map(|piece| piece.len() as u64));
            JobKind::Out(sealed.into_iter().zip(extents).collect())
        } else if let Some(host) = self.host_at(to.layer) {
            let lengths = to.extents.iter().map(|piece| piece.end - piece.start);
            let extents = cut(&from.extents, lengths.clone());
            let places = to.extents.iter().zip(lengths);
            let slots =
                places.map(|(piece, bytes)| host.slot(piece.start, bytes).expect("the plan moves to what is free"));
            JobKind::In(slots.zip(extents).collect())
        } else {
            JobKind::Across(from.extents, to.extents)
        };
        let Snapshot { key, checksum, .. } = core.snapshots[&id];
        let number = core.next_job;
        core.next_job += 1;
        let job = Job { number, id, key, checksum, purpose, kind, bytes };
        let queue = core.lanes.entry(lane).or_default();
        // The program waits for fetches: they go before all other moves, first come first served.
        let position = match purpose {
            Purpose::Fetch => queue.jobs.iter().take_while(|job| job.purpose == Purpose::Fetch).count(),
            Purpose::Drain | Purpose::Prefetch => queue.jobs.len(),
        };
        queue.jobs.insert(position, job);
        core.wakes += u32::from(!queue.is_served);
    }

    /// Records a change of the touching strategy, or of its reason, in the timeline.
    fn note_strategy(&self, core: &mut Core, now: Timestamp) {
        let Some((layer, _)) = self.host.as_ref().filter(|_| self.trace.is_on()) else { return };
        let Some(memory) = core.planner.memory(*layer) else { return };
        let choice = (memory.strategy, mem::discriminant(&memory.reason));
        if core.strategy.replace(choice) != Some(choice) {
            let note = Some(format!("{}: {}", memory.strategy, memory.reason));
            let (track, start_ns, end_ns) = ("touch".to_owned(), now.0, now.0);
            self.trace.add(Span { kind: SpanKind::Strategy, key: None, track, start_ns, end_ns, note });
        }
    }

    /// Waits for the answer to a question. Returns the lock, the answer, and how long it took if
    /// the call had to wait.
    pub(crate) fn wait<'a>(
        &'a self,
        mut core: Guard<'a>,
        question: Question,
    ) -> Result<(Guard<'a>, Answer, Option<Range<u64>>)> {
        let mut since = None;
        let mut asks = Asks::default();
        loop {
            let answer = core.answers.take(question);
            // Even an answer that is already there could have wrong bytes.
            if let Some(detail) = core.displaced.clone() {
                return Err(Error::Displaced { detail });
            }
            if let Some(answer) = answer {
                let waited = since.map(|since| since..self.now_ns());
                return Ok((core, answer, waited));
            }
            if core.has_stopped {
                return Err(Error::Stopped);
            }
            let since = *since.get_or_insert_with(|| self.now_ns());
            let is_programs = core.held() > 0 && core.planner.poll_timeout().is_some();
            let awaited = if is_programs { Awaited::Program } else { Awaited::Others };
            if asks.is_due(self.now_ns(), awaited) {
                drop(core);
                let asked = patience::ask(awaited);
                core = self.lock();
                if let (Err(error), false) = (asked, core.answers.has(question)) {
                    let Question { id, consume } = question;
                    self.tell(&mut core, Event::Withdrawn { id, consume });
                    return match awaited {
                        Awaited::Program => {
                            let waited = since..self.now_ns();
                            Ok((core, Answer::Refused(Refusal::Held), Some(waited)))
                        }
                        Awaited::Others => Err(Error::Interrupted(error)),
                    };
                }
                continue;
            }
            core.waiting += 1;
            let timeout = core.planner.poll_timeout();
            let timeout = timeout.map(|at| Duration::from_nanos(at.0.saturating_sub(self.now_ns()).max(1)));
            let timeout = timeout.into_iter().chain(patience::is_asked().then_some(ASK_EVERY)).min();
            core = core.sleep(&self.answered, timeout);
            core.waiting -= 1;
            if core.planner.poll_timeout().is_some_and(|at| at.0 <= self.now_ns()) {
                self.tell(&mut core, Event::Tick);
            }
        }
    }
}

/// When a call that waits asks whether to go on: now and then, and at once if only the program can
/// help.
#[derive(Default)]
struct Asks {
    next_ns: Option<u64>,
    has_asked_for_program: bool,
}

impl Asks {
    fn is_due(&mut self, now_ns: u64, awaited: Awaited) -> bool {
        let next_ns = now_ns + ASK_EVERY.as_nanos() as u64;
        let is_first = awaited == Awaited::Program && !self.has_asked_for_program;
        let is_due = patience::is_asked() && (is_first || *self.next_ns.get_or_insert(next_ns) <= now_ns);
        if is_due {
            self.next_ns = Some(next_ns);
            self.has_asked_for_program |= is_first;
        }
        is_due
    }
}

/// The lock on the state. Threads are woken when it is released; earlier they would only wait for
/// the lock.
pub(crate) struct Guard<'a> {
    shared: &'a Shared,
    core: Option<MutexGuard<'a, Core>>,
}

impl<'a> Guard<'a> {
    /// Releases the lock until `condvar` is notified, or `timeout` has passed.
    pub(crate) fn sleep(mut self, condvar: &Condvar, timeout: Option<Duration>) -> Guard<'a> {
        let (shared, mut core) = (self.shared, self.core.take().expect("it is there until the end"));
        shared.wake(core.wakers());
        let core = match timeout {
            None => condvar.wait(core).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => condvar.wait_timeout(core, timeout).unwrap_or_else(PoisonError::into_inner).0,
        };
        let mut guard = Guard { shared, core: Some(core) };
        shared.take_returns(&mut guard);
        guard
    }
}

impl Deref for Guard<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_ref().expect("it is there until the end")
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("it is there until the end")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(mut core) = self.core.take() {
            let wakers = core.wakers();
            drop(core);
            self.shared.wake(wakers);
        }
    }
}

impl Core {
    /// How many helpers to wake, and whether to wake the program's calls.
    fn wakers(&mut self) -> (u32, bool) {
        let helpers = std::mem::take(&mut self.wakes).min(self.idle_helpers);
        (helpers, std::mem::take(&mut self.is_answered))
    }

    fn add_chore(&mut self, chore: Chore) {
        self.chores.push_back(chore);
        self.wakes += 1;
    }

    fn answer(&mut self, question: Question, answer: Answer) {
        self.answers.0.push((question, answer));
        self.is_answered |= self.waiting > 0;
    }

    /// The bytes of a snapshot that is on the host layer according to the plan.
    fn sealed(&self, id: SnapshotId) -> Pieces {
        let first = self.snapshots[&id].sealed.iter();
        first.chain(self.further.get(&id).into_iter().flatten()).cloned().collect()
    }

    /// Removes the first piece of these bytes, which is all of them in the front.
    fn take_sealed(&mut self, id: SnapshotId) -> Option<Sealed> {
        self.snapshots.get_mut(&id)?.sealed.take()
    }

    /// Keeps the bytes of a snapshot that has arrived on the host layer, unless it was consumed
    /// meanwhile.
    pub(crate) fn set_sealed(&mut self, id: SnapshotId, sealed: Pieces) {
        let Some(snapshot) = self.snapshots.get_mut(&id) else { return };
        let mut pieces = sealed.into_iter();
        snapshot.sealed = pieces.next();
        let further: Pieces = pieces.collect();
        if !further.is_empty() {
            self.further.insert(id, further);
        }
    }

    /// Adds a snapshot that the program can read.
    pub(crate) fn add(
        &mut self,
        id: SnapshotId,
        key: u64,
        layout: Arc<Layout>,
        sealed: Option<Sealed>,
        checksum: Option<Checksum>,
    ) {
        let layout = self.layouts.add(layout);
        self.snapshots.insert(id, Snapshot { key, layout, checksum, sealed });
    }

    /// Removes a snapshot that the program can read no more. Returns whether it was there.
    pub(crate) fn forget(&mut self, id: SnapshotId) -> bool {
        self.further.remove(&id);
        let snapshot = self.snapshots.remove(&id);
        snapshot.map(|snapshot| self.layouts.remove(&snapshot.layout)).is_some()
    }

    /// Notes the checksum of a snapshot's bytes. Returns whether it is that of those noted before.
    pub(crate) fn note_checksum(&mut self, id: SnapshotId, checksum: Checksum) -> bool {
        let Some(snapshot) = self.snapshots.get_mut(&id) else { return true };
        *snapshot.checksum.get_or_insert(checksum) == checksum
    }

    /// How many bytes the lists of snapshots take.
    pub(crate) fn bookkeeping_bytes(&self) -> u64 {
        let pieces = |pieces: &Pieces| (2 * size_of::<(SnapshotId, Pieces)>() + size_of_val(pieces.as_slice())) as u64;
        let further: u64 = self.further.values().map(pieces).sum();
        self.planner.bookkeeping_bytes() + self.snapshots.bytes() + self.layouts.bytes() + further
    }

    /// How many slots the program holds.
    pub(crate) fn held(&self) -> usize {
        self.planner.held() as usize
    }
}

/// Cuts a list of extents into lists of the given lengths.
pub(crate) fn cut(extents: &Extents, lengths: impl Iterator<Item = u64>) -> Vec<Extents> {
    let mut rest = extents.iter().cloned();
    let mut current = 0..0;
    let of_length = |mut missing: u64| {
        let mut part = Extents::new();
        while missing > 0 {
            if current.is_empty() {
                let Some(next) = rest.next() else { break };
                current = next;
            }
            let end = current.end.min(current.start + missing);
            part.push(current.start..end);
            missing -= end - current.start;
            current.start = end;
        }
        part
    };
    lengths.map(of_length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_cut_where_the_other_side_is() {
        let extents: Extents = [0..8, 20..24, 40..52].into_iter().collect();
        let parts = cut(&extents, [6, 10, 8].into_iter());
        let starts_and_ends: Vec<Vec<_>> =
            parts.iter().map(|part| part.iter().map(|piece| (piece.start, piece.end)).collect()).collect();
        assert_eq!(starts_and_ends, [vec![(0, 6)], vec![(6, 8), (20, 24), (40, 44)], vec![(44, 52)]]);
    }

    #[test]
    fn a_get_and_a_take_of_one_snapshot_each_find_their_own_answer() {
        let asked = |consume| Question { id: SnapshotId(7), consume };
        let mut answers = Answers(vec![(asked(false), Answer::Refused(Refusal::Held))]);
        assert!(answers.has(asked(false)) && !answers.has(asked(true)));
        assert!(answers.take(asked(true)).is_none());
        assert!(matches!(answers.take(asked(false)), Some(Answer::Refused(Refusal::Held))));
    }
}
