//! The state that the program and the helpers share: the planner, what is in memory, and what is waiting to be moved.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::{Deref, DerefMut, Range},
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use outcrop_layers::{Copier, Host, Layer, Sealed, Slot};
use outcrop_plan::{Action, Event, Extents, LayerIndex, Place, Planner, Purpose, Refusal, SnapshotId, Timestamp};

use crate::{
    Error, Layout, Result, Trace,
    log::Recorder,
    stats::{Busy, LayerStats},
};

/// What both sides have in their hands.
pub(crate) struct Shared {
    pub(crate) core: Mutex<Core>,
    /// Slots that the program has given back and that the planner has not heard of.
    pub(crate) returns: Mutex<Vec<SnapshotId>>,
    /// Wakes helpers: there is something to move.
    pub(crate) work: Condvar,
    /// Wakes the program: an answer has come.
    pub(crate) answered: Condvar,
    pub(crate) front: Host,
    /// The layers in the order of the plan; the first is the front.
    pub(crate) layers: Vec<Arc<dyn Layer>>,
    pub(crate) copier: Copier,
    pub(crate) trace: Trace,
    pub(crate) calls: CallCount,
    pub(crate) start: Instant,
}

/// What is guarded by the lock.
pub(crate) struct Core {
    pub(crate) planner: Planner,
    pub(crate) recorder: Option<Recorder>,
    /// Everything that the program can ask for.
    pub(crate) snapshots: HashMap<SnapshotId, Snapshot>,
    /// What the program waited for and has not fetched yet: at most one for each of its handles.
    pub(crate) answers: Vec<(SnapshotId, Answer)>,
    pub(crate) lanes: BTreeMap<Lane, Queue>,
    pub(crate) lane_served_last: Option<Lane>,
    pub(crate) touch: Option<Range<u64>>,
    pub(crate) next_id: u64,
    pub(crate) handles: u32,
    /// Calls of the program that wait for an answer, and whether one has come for any of them.
    pub(crate) waiting: u32,
    pub(crate) is_answered: bool,
    /// Helpers that there is new work for.
    pub(crate) wakes: u32,
    pub(crate) idle_helpers: u32,
    pub(crate) is_closing: bool,
    /// A helper has panicked: what it had in its hands will never end.
    pub(crate) has_stopped: bool,
    pub(crate) layers: Vec<LayerCount>,
    pub(crate) moving: Busy,
}

/// A snapshot, and its bytes while they are in the front.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) saved: Arc<Saved>,
    pub(crate) sealed: Option<Sealed>,
}

/// What is known of a snapshot besides its bytes.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) key: u64,
    pub(crate) layout: Layout,
    /// Of the whole slot, once it has left memory.
    pub(crate) checksum: OnceLock<u64>,
}

/// From which layer to which.
pub(crate) type Lane = (LayerIndex, LayerIndex);

/// What waits to be moved on a lane.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    /// A helper is at it.
    pub(crate) is_served: bool,
}

/// One move.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: SnapshotId,
    pub(crate) saved: Arc<Saved>,
    pub(crate) purpose: Purpose,
    pub(crate) kind: JobKind,
    pub(crate) bytes: u64,
}

/// Between which kinds of places a move goes.
#[derive(Debug)]
pub(crate) enum JobKind {
    /// From the front to a deeper layer.
    Down(Sealed, Extents),
    /// From a deeper layer to the front.
    Up(Extents, Slot),
    /// From one deeper layer to another.
    Across(Extents, Extents),
}

/// What the program waited for.
#[derive(Debug)]
pub(crate) enum Answer {
    Lent(Slot),
    Handed(Sealed),
    Refused(Refusal),
}

/// What a layer has done.
#[derive(Debug, Default, Clone)]
pub(crate) struct LayerCount {
    pub(crate) stats: LayerStats,
    pub(crate) writing: Busy,
    pub(crate) reading: Busy,
}

/// What the program's calls have cost.
#[derive(Debug, Default)]
pub(crate) struct CallCount {
    pub(crate) saves: AtomicU64,
    pub(crate) saved_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) save_ns: AtomicU64,
    pub(crate) wait_ns: AtomicU64,
    pub(crate) read_ns: AtomicU64,
}

impl Shared {
    /// The state, with everything that was given back until now taken note of. Also after a panic elsewhere: a panic in a
    /// helper must not keep the program from closing its tape.
    pub(crate) fn lock(&self) -> Guard<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = Guard { shared: self, core: Some(core) };
        self.take_returns(&mut guard);
        guard
    }

    /// The program gives a slot back. It does not wait while the plan makes use of it: whoever has the state next does that,
    /// and a helper is woken up in case nobody does.
    pub(crate) fn give_back(&self, id: SnapshotId) {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        // A helper that is about to sleep has the state, and does so before it is let go here: it cannot miss the call.
        drop(self.core.lock());
        self.work.notify_one();
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

    /// Tells the planner what happened and begins what it answers.
    pub(crate) fn tell(&self, core: &mut Core, event: Event) {
        // While the engine closes, moves still come to their end, but nothing follows from them.
        if core.is_closing {
            return;
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
        // Somebody who waits without end has to learn that there is one now.
        core.is_answered |= core.planner.poll_timeout().is_some() && core.waiting > 0;
    }

    fn begin(&self, core: &mut Core, action: Action) {
        match action {
            Action::Lend { id, at } => {
                let bytes = core.planner.bytes(id);
                let slot = self.front.slot(at, bytes).expect("the plan lends what is free");
                core.answer(id, Answer::Lent(slot));
            }
            Action::Hand(id) => {
                let sealed = core.sealed(id).clone();
                core.answer(id, Answer::Handed(sealed));
            }
            Action::Refuse { id, why } => core.answer(id, Answer::Refused(why)),
            Action::Evict { id, layer: 0 } => drop(core.take_sealed(id)),
            Action::Evict { .. } => {}
            Action::Slide { id, to } => {
                let sealed = core.take_sealed(id).expect("the plan slides what is there");
                let sealed = self.front.slide(sealed, to).expect("the plan slides what nobody uses");
                core.set_sealed(id, sealed);
            }
            Action::Move { id, from, to, purpose } => self.queue(core, id, (from, to), purpose),
            Action::Touch(range) => {
                core.touch = Some(range);
                core.wakes += 1;
            }
        }
    }

    fn queue(&self, core: &mut Core, id: SnapshotId, (from, to): (Place, Place), purpose: Purpose) {
        let lane = (from.layer, to.layer);
        let bytes = core.planner.bytes(id);
        let kind = match lane {
            (0, _) => JobKind::Down(core.sealed(id).clone(), to.extents),
            (_, 0) => {
                let slot = self.front.slot(to.extents[0].start, bytes).expect("the plan moves to what is free");
                JobKind::Up(from.extents, slot)
            }
            _ => JobKind::Across(from.extents, to.extents),
        };
        let job = Job { id, saved: Arc::clone(&core.snapshots[&id].saved), purpose, kind, bytes };
        let queue = core.lanes.entry(lane).or_default();
        match purpose {
            Purpose::Fetch => queue.jobs.push_front(job),
            Purpose::Drain | Purpose::Prefetch => queue.jobs.push_back(job),
        }
        core.wakes += u32::from(!queue.is_served);
    }

    /// Waits for the answer to a request for `id`. Gives it with the state, and with how long it took if it was not there.
    pub(crate) fn wait<'a>(
        &self,
        mut core: Guard<'a>,
        id: SnapshotId,
    ) -> Result<(Guard<'a>, Answer, Option<Range<u64>>)> {
        let mut since = None;
        loop {
            if let Some(answer) = core.take_answer(id) {
                let waited = since.map(|since| since..self.now_ns());
                return Ok((core, answer, waited));
            }
            if core.has_stopped {
                return Err(Error::Stopped);
            }
            since.get_or_insert_with(|| self.now_ns());
            core.waiting += 1;
            let timeout = core.planner.poll_timeout();
            let timeout = timeout.map(|at| Duration::from_nanos(at.0.saturating_sub(self.now_ns()).max(1)));
            core = core.sleep(&self.answered, timeout);
            core.waiting -= 1;
            if core.planner.poll_timeout().is_some_and(|at| at.0 <= self.now_ns()) {
                self.tell(&mut core, Event::Tick);
            }
        }
    }
}

/// The lock on the state. Who has to wake up is woken when it is let go, or they would only wake up to wait for it.
pub(crate) struct Guard<'a> {
    shared: &'a Shared,
    core: Option<MutexGuard<'a, Core>>,
}

impl<'a> Guard<'a> {
    /// Lets go of the state until `condvar` is notified, or `timeout` has passed.
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
    /// How many helpers have to wake up, and whether the program has.
    fn wakers(&mut self) -> (u32, bool) {
        let helpers = std::mem::take(&mut self.wakes).min(self.idle_helpers);
        (helpers, std::mem::take(&mut self.is_answered))
    }

    fn answer(&mut self, id: SnapshotId, answer: Answer) {
        self.answers.push((id, answer));
        self.is_answered |= self.waiting > 0;
    }

    fn take_answer(&mut self, id: SnapshotId) -> Option<Answer> {
        let position = self.answers.iter().position(|(answered, _)| *answered == id)?;
        Some(self.answers.remove(position).1)
    }

    /// The bytes of a snapshot that the plan says is in the front.
    fn sealed(&self, id: SnapshotId) -> &Sealed {
        self.snapshots[&id].sealed.as_ref().expect("the plan knows what is in the front")
    }

    fn take_sealed(&mut self, id: SnapshotId) -> Option<Sealed> {
        self.snapshots.get_mut(&id)?.sealed.take()
    }

    /// Keeps the bytes of a snapshot that has come to the front; what was consumed meanwhile has nobody to keep it for.
    pub(crate) fn set_sealed(&mut self, id: SnapshotId, sealed: Sealed) {
        if let Some(snapshot) = self.snapshots.get_mut(&id) {
            snapshot.sealed = Some(sealed);
        }
    }

    /// Slots in the program's hands.
    pub(crate) fn held(&self) -> usize {
        self.planner.held() as usize
    }
}
