//! What the program holds: a handle to save and read through, slots that it fills, and slots that it reads.

use std::{
    ops::{Deref, DerefMut, Range},
    sync::{Arc, OnceLock, Weak, atomic::Ordering::Relaxed},
};

use outcrop_layers::{Sealed, Slot, aligned};
use outcrop_plan::{Event, Refusal, SnapshotId};

use crate::{
    Error, Layout, Result, Span, SpanKind, Stats,
    core::{Answer, Core, Pieces, Saved, Shared, Snapshot},
    engine::Engine,
};

/// One part of the program that saves and reads. Cloning gives a handle for another thread.
///
/// A handle waits for one thing at a time, which is how the engine knows when nobody is left that could make room.
pub struct Handle {
    engine: Arc<Engine>,
    /// Which of the program's handles this is, for the timeline.
    number: u32,
    /// When the last call ended: what lies between two calls is the program's own work.
    idle_since_ns: u64,
}

impl Handle {
    pub(crate) fn first(engine: Engine) -> Self {
        let idle_since_ns = engine.shared.now_ns();
        Self { engine: Arc::new(engine), number: 0, idle_since_ns }
    }

    /// Gives a slot to fill for a new snapshot. Waits for room if there is none.
    pub fn lend(&mut self, key: u64, layout: Layout) -> Result<Lent> {
        let start_ns = self.begin_call();
        let result = self.lend_slot(key, layout, false);
        self.end_call(SpanKind::Save, key, start_ns);
        result
    }

    /// Saves `parts`, the regions of `layout`, by copying them.
    pub fn save(&mut self, key: u64, layout: Layout, parts: &[&[u8]]) -> Result<()> {
        let start_ns = self.begin_call();
        let result = self.lend_slot(key, layout, true).map(|mut lent| {
            let ranges: Vec<Range<usize>> = lent.layout().regions().iter().map(|region| region.range.clone()).collect();
            for (range, part) in ranges.into_iter().zip(parts) {
                self.engine.shared.copier.copy(&mut lent[range], part);
            }
            lent.seal();
        });
        self.end_call(SpanKind::Save, key, start_ns);
        result
    }

    /// Hands over a snapshot, for the last time if `consume`. Waits until it is in the front. If `check` does not like
    /// its layout, nothing happens.
    pub fn read<E: From<Error>>(
        &mut self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
    ) -> std::result::Result<Held, E> {
        let start_ns = self.begin_call();
        let result = self.read_slot(key, consume, check);
        self.end_call(SpanKind::Take, key, start_ns);
        result
    }

    /// Forgets a snapshot.
    pub fn discard(&mut self, key: u64) -> Result<()> {
        let mut core = self.shared().lock();
        let id = core.planner.find(key).ok_or(Error::Missing { key })?;
        core.snapshots.remove(&id);
        self.shared().tell(&mut core, Event::Discarded(id));
        Ok(())
    }

    /// The keys of everything that can be read, in ascending order.
    pub fn keys(&self) -> Vec<u64> {
        self.shared().lock().planner.keys().collect()
    }

    /// What has been done until now.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The timeline until now.
    pub fn trace(&self) -> &crate::Trace {
        &self.shared().trace
    }

    fn shared(&self) -> &Shared {
        &self.engine.shared
    }

    fn lend_slot(&self, key: u64, layout: Layout, is_copy: bool) -> Result<Lent> {
        let shared = self.shared();
        let bytes = aligned(layout.bytes() as u64);
        let mut core = shared.lock();
        if core.planner.has_key(key) {
            return Err(Error::Exists { key });
        }
        let id = SnapshotId(core.next_id);
        core.next_id += 1;
        shared.tell(&mut core, Event::RoomWanted { id, key, bytes, is_copy });
        let (core, answer, waited) = shared.wait(core, id)?;
        if let Some(waited) = waited {
            shared.calls.wait_ns.fetch_add(waited.end - waited.start, Relaxed);
            self.add_span(SpanKind::Wait, key, waited);
        }
        match answer {
            Answer::Lent(slot) => {
                let saved = Arc::new(Saved { key, layout, checksum: OnceLock::new() });
                Ok(Lent { shared: Arc::downgrade(&self.engine.shared), id, saved, slot: Some(slot) })
            }
            Answer::Refused(why) => Err(self.refusal(&core, key, bytes, why)),
            Answer::Handed(_) => unreachable!("who asks for room is lent a slot or refused"),
        }
    }

    fn read_slot<E: From<Error>>(
        &self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
    ) -> std::result::Result<Held, E> {
        let shared = self.shared();
        let mut core = shared.lock();
        let id = core.planner.find(key).ok_or(Error::Missing { key })?;
        let saved = Arc::clone(&core.snapshots[&id].saved);
        check(&saved.layout)?;
        shared.tell(&mut core, Event::Wanted { id, consume });
        let (mut core, answer, _) = shared.wait(core, id)?;
        match answer {
            Answer::Handed(sealed) => {
                shared.calls.reads.fetch_add(1, Relaxed);
                if consume {
                    core.snapshots.remove(&id);
                }
                Ok(Held { shared: Arc::downgrade(&self.engine.shared), id, saved, sealed: Some(sealed) })
            }
            Answer::Refused(why) => Err(self.refusal(&core, key, aligned(saved.layout.bytes() as u64), why).into()),
            Answer::Lent(_) => unreachable!("who reads is handed a slot or refused"),
        }
    }

    fn refusal(&self, core: &Core, key: u64, bytes: u64, why: Refusal) -> Error {
        let layers = &self.shared().layers;
        let fault = |layer: usize| core.layers[layer].stats.fault.clone();
        match why {
            Refusal::TooLarge => Error::TooLarge { key, bytes, capacity: layers[0].capacity() },
            Refusal::Held => Error::Held { key, held: core.held() },
            Refusal::Gone => Error::Missing { key },
            Refusal::Damaged(layer) => Error::Damaged { key, layer: layers[layer].name().to_owned() },
            Refusal::Unreadable(layer) => {
                let detail = fault(layer).unwrap_or_else(|| layers[layer].name().to_owned());
                Error::Unreadable { key, detail }
            }
            Refusal::Full => {
                let of_layer = |(index, layer): (usize, &Arc<dyn outcrop_layers::Layer>)| {
                    let (used, _) = core.planner.used_bytes(index);
                    let fault = fault(index).map_or_else(String::new, |fault| format!(" and has failed ({fault})"));
                    format!("{} holds {used} of {} bytes{fault}", layer.name(), layer.capacity())
                };
                let detail: Vec<_> = layers.iter().enumerate().map(of_layer).collect();
                Error::Full { key, detail: detail.join(", ") }
            }
        }
    }

    fn begin_call(&mut self) -> u64 {
        let now_ns = self.shared().now_ns();
        if self.shared().trace.is_on() {
            let track = format!("program {}", self.number);
            let (start_ns, end_ns) = (self.idle_since_ns, now_ns);
            let span = Span { kind: SpanKind::Compute, key: None, track, start_ns, end_ns, note: None };
            self.shared().trace.add(span);
        }
        now_ns
    }

    fn end_call(&mut self, kind: SpanKind, key: u64, start_ns: u64) {
        let now_ns = self.shared().now_ns();
        let calls = &self.shared().calls;
        let total_ns = if kind == SpanKind::Take { &calls.read_ns } else { &calls.save_ns };
        total_ns.fetch_add(now_ns - start_ns, Relaxed);
        self.add_span(kind, key, start_ns..now_ns);
        self.idle_since_ns = now_ns;
    }

    fn add_span(&self, kind: SpanKind, key: u64, time_ns: Range<u64>) {
        if self.shared().trace.is_on() {
            let track = format!("program {}", self.number);
            let (start_ns, end_ns) = (time_ns.start, time_ns.end);
            self.shared().trace.add(Span { kind, key: Some(key), track, start_ns, end_ns, note: None });
        }
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        let number = self.engine.change_handles(1);
        let idle_since_ns = self.shared().now_ns();
        Self { engine: Arc::clone(&self.engine), number, idle_since_ns }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.change_handles(-1);
    }
}

/// A slot that the program fills. Sealing it makes the snapshot; dropping it gives the slot back and makes none.
pub struct Lent {
    shared: Weak<Shared>,
    id: SnapshotId,
    saved: Arc<Saved>,
    slot: Option<Slot>,
}

impl Lent {
    /// Ends filling: from here on it is a snapshot like any other.
    pub fn seal(mut self) {
        self.make_snapshot(false);
    }

    /// As [`seal`](Self::seal), but keeps the slot in hand, to read what was computed.
    pub fn seal_and_keep(mut self) -> Held {
        let sealed = self.make_snapshot(true);
        Held { shared: self.shared.clone(), id: self.id, saved: Arc::clone(&self.saved), sealed }
    }

    fn make_snapshot(&mut self, keep: bool) -> Option<Sealed> {
        let sealed = self.slot.take()?.seal();
        // No other share in the slot may outlast the call: the plan takes the place for free when it has evicted it.
        let kept = keep.then(|| sealed.clone());
        if let Some(shared) = self.shared.upgrade() {
            shared.calls.saves.fetch_add(1, Relaxed);
            shared.calls.saved_bytes.fetch_add(self.saved.layout.bytes() as u64, Relaxed);
            let sealed = Some(Pieces::from_elem(sealed, 1));
            let snapshot = Snapshot { saved: Arc::clone(&self.saved), sealed };
            let mut core = shared.lock();
            core.snapshots.insert(self.id, snapshot);
            shared.tell(&mut core, Event::Sealed { id: self.id, keep });
        }
        kept
    }

    /// How the regions lie in the slot.
    pub fn layout(&self) -> &Layout {
        &self.saved.layout
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.saved.layout.bytes();
        self.slot.as_deref().map_or(&[], |slot| &slot[..bytes])
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.saved.layout.bytes();
        self.slot.as_deref_mut().map_or(&mut [], |slot| &mut slot[..bytes])
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // A slot is given back before the planner hears of it, or it might be lent again too early.
        let was_lent = self.slot.take().is_some();
        if let Some(shared) = self.shared.upgrade().filter(|_| was_lent) {
            shared.tell(&mut shared.lock(), Event::Abandoned(self.id));
        }
    }
}

/// A snapshot in the program's hands, to be read in place. Dropping it gives the slot back.
pub struct Held {
    shared: Weak<Shared>,
    id: SnapshotId,
    saved: Arc<Saved>,
    sealed: Option<Sealed>,
}

impl Held {
    /// How the regions lie in the slot.
    pub fn layout(&self) -> &Layout {
        &self.saved.layout
    }

    /// The program's name for it.
    pub fn key(&self) -> u64 {
        self.saved.key
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.saved.layout.bytes();
        self.sealed.as_deref().map_or(&[], |sealed| &sealed[..bytes])
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.sealed.take());
        if let Some(shared) = self.shared.upgrade() {
            shared.give_back(self.id);
        }
    }
}
