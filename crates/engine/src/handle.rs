//! What the program uses: a handle to save and read, slots to fill, and slots to read.

use std::{
    ops::{Deref, DerefMut, Range},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use outcrop_layers::{Abilities, Buffer, Host, Kept, Layer, Room, aligned};
use outcrop_plan::{Event, Refusal, SnapshotId};
use outcrop_region::Element;

use crate::{
    Error, Layout, Result, Span, SpanKind, Stats,
    checksum::{self, Checksum},
    core::{Answer, Core, Question, Shared},
    desk::Desk,
    engine::Engine,
    link::Link,
};

/// The program's access to an engine. Clone it for another thread.
///
/// A handle waits for one thing at a time. That is how the engine knows when all of the program
/// waits, and nothing is left that could make room.
pub struct Handle {
    engine: Arc<Engine>,
    /// The number of this handle in the timeline.
    number: u32,
    /// When the last call ended. The time between two calls is the program's own work.
    idle_since_ns: u64,
    /// Where a snapshot in device memory is copied for the program to read.
    desk: Desk,
}

impl Handle {
    pub(crate) fn first(engine: Engine) -> Self {
        let idle_since_ns = engine.shared.now_ns();
        Self { engine: Arc::new(engine), number: 0, idle_since_ns, desk: Desk::default() }
    }

    /// A reference that keeps the engine open without being a handle.
    pub fn anchor(&self) -> Anchor {
        Anchor(Arc::clone(&self.engine))
    }

    /// Lends a slot to fill for a new snapshot. Waits for room if there is none. Only if the front
    /// is addressable.
    pub fn lend(&mut self, key: u64, layout: Layout) -> Result<Lent> {
        if !self.abilities().is_addressable {
            let what = "this tape's first memory layer is a device, and its memory cannot be lent; save instead";
            return Err(Error::Stack(what.to_owned()));
        }
        let start_ns = self.begin_call();
        let result = self.lend_slot(key, layout, false, false);
        self.end_call(SpanKind::Save, key, start_ns);
        result
    }

    /// As [`lend`](Self::lend), for work that can be done later. Returns [`Error::GaveWay`] if
    /// another call waits for room, or if no move is making room.
    pub fn lend_yielding(&mut self, key: u64, layout: Layout) -> Result<Lent> {
        self.lend_slot(key, layout, false, true)
    }

    /// Saves a snapshot by copying `parts`, the regions of `layout`.
    pub fn save(&mut self, key: u64, layout: Layout, parts: &[&[u8]]) -> Result<()> {
        self.save_with(key, layout, |handle, lent| {
            let ranges: Vec<Range<usize>> = lent.layout().regions().iter().map(|region| region.range.clone()).collect();
            for (range, part) in ranges.into_iter().zip(parts) {
                lent.fill_in(handle.shared(), range.start, part)?;
            }
            Ok(())
        })
    }

    /// Saves a snapshot of one region from byte `offset` of a device buffer. The front must be on
    /// that device.
    pub fn save_buffer(&mut self, key: u64, layout: Layout, buffer: &Buffer, offset: u64) -> Result<()> {
        self.check_buffer(buffer)?;
        self.save_with(key, layout, |handle, lent| {
            let bytes = lent.layout().bytes() as u64;
            let Some(room) = &mut lent.room else { return Ok(()) };
            Ok(handle.shared().front().store(room, buffer, offset, bytes)?)
        })
    }

    fn save_with(&mut self, key: u64, layout: Layout, fill: impl FnOnce(&Self, &mut Lent) -> Result<()>) -> Result<()> {
        let start_ns = self.begin_call();
        let result = self.lend_slot(key, layout, true, false).and_then(|mut lent| {
            fill(self, &mut lent)?;
            lent.seal();
            Ok(())
        });
        self.end_call(SpanKind::Save, key, start_ns);
        result
    }

    /// Hands over a snapshot, for the last time if `consume`. Waits until it is in the front. If
    /// `check` rejects its layout, nothing changes. From device memory this is a copy; from host
    /// memory it is not.
    pub fn read<E: From<Error>>(
        &mut self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
    ) -> std::result::Result<Held, E> {
        self.read_with(key, consume, check, Self::put_on_desk)
    }

    /// As [`read`](Self::read), but copies the snapshot to `target`. `check` has to make sure that
    /// the lengths are equal.
    pub fn read_into<E: From<Error>>(
        &mut self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
        target: &mut [u8],
    ) -> std::result::Result<(), E> {
        self.read_with(key, consume, check, |handle, held| {
            let Some(kept) = &held.kept else { return Ok(()) };
            Ok(handle.shared().front().copy_out(kept, target, &handle.shared().copier)?)
        })
    }

    /// As [`read`](Self::read), but copies the snapshot to byte `offset` of a device buffer. The
    /// front must be on that device.
    pub fn read_buffer<E: From<Error>>(
        &mut self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
        buffer: &mut Buffer,
        offset: u64,
    ) -> std::result::Result<(), E> {
        self.check_buffer(buffer)?;
        self.read_with(key, consume, check, |handle, held| {
            let bytes = held.layout.bytes() as u64;
            let Some(kept) = &held.kept else { return Ok(()) };
            Ok(handle.shared().front().load(kept, buffer, offset, bytes)?)
        })
    }

    /// Reads a snapshot and passes it to `look`. If the front is not addressable, that is a copy,
    /// which can fail; the snapshot is consumed only if it succeeds.
    fn read_with<T, E: From<Error>>(
        &mut self,
        key: u64,
        consume: bool,
        check: impl FnOnce(&Layout) -> std::result::Result<(), E>,
        look: impl FnOnce(&mut Self, Held) -> Result<T>,
    ) -> std::result::Result<T, E> {
        let start_ns = self.begin_call();
        let is_copy = !self.abilities().is_addressable;
        let result = self.read_slot(key, consume && !is_copy, check).and_then(|held| {
            let id = held.id;
            let looked = look(self, held)?;
            if consume && is_copy {
                self.consume(key, id)?;
            }
            Ok(looked)
        });
        self.end_call(SpanKind::Take, key, start_ns);
        result
    }

    /// Consumes a snapshot that has been read, unless another handle has taken it meanwhile.
    fn consume(&self, key: u64, id: SnapshotId) -> Result<()> {
        let mut core = self.shared().lock();
        if !core.forget(id) {
            return Err(Error::Missing { key });
        }
        self.shared().tell(&mut core, Event::Discarded(id));
        Ok(())
    }

    /// The host layer, which the other layers read and write in place.
    pub fn host(&self) -> Option<&Host> {
        self.shared().host.as_ref().map(|(_, host)| host)
    }

    /// What the front can do.
    fn abilities(&self) -> Abilities {
        self.shared().front().abilities()
    }

    /// Returns an error if the front cannot copy from and to this buffer.
    fn check_buffer(&self, buffer: &Buffer) -> Result<()> {
        if !self.abilities().takes_buffers {
            let what = "this tape's first memory layer is not a device; to use device buffers, put a device first";
            return Err(Error::Stack(what.to_owned()));
        }
        Ok(self.shared().front().check_buffer(buffer)?)
    }

    /// If the program cannot read the front in place, copies the snapshot to host memory, and frees
    /// its room in the front.
    fn put_on_desk(&mut self, mut held: Held) -> Result<Held> {
        let Some(kept) = held.kept.take_if(|kept| !kept.is_addressable()) else { return Ok(held) };
        let bytes = held.layout.bytes();
        let mut slot = self.desk.slot(bytes)?;
        let shared = self.shared();
        shared.front().copy_out(&kept, &mut slot[..bytes], &shared.copier)?;
        held.give_back();
        held.kept = Some(Kept::new(slot.range(), Some(slot.seal())));
        Ok(held)
    }

    /// Runs `work`, and begins no touching or pinning meanwhile. Changing a process's page tables
    /// on one core interrupts the others (TLB shootdown), and takes several times as long if they
    /// change them too. `work` must not wait for this engine.
    pub fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Guard<'a>(&'a Shared);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.lock().undisturbed -= 1;
                self.0.work.notify_all();
            }
        }
        self.shared().lock().undisturbed += 1;
        let _guard = Guard(self.shared());
        work()
    }

    /// Forgets a snapshot.
    pub fn discard(&mut self, key: u64) -> Result<()> {
        let mut core = self.shared().lock();
        let id = core.planner.find(key).ok_or(Error::Missing { key })?;
        self.shared().tell(&mut core, Event::Discarded(id));
        core.forget(id);
        Ok(())
    }

    /// Whether a snapshot can be read without waiting.
    pub fn is_in_front(&self, key: u64) -> bool {
        let core = self.shared().lock();
        core.planner.find(key).is_some_and(|id| core.planner.is_in_front(id))
    }

    /// The keys of all snapshots that can be read, in ascending order.
    pub fn keys(&self) -> Vec<u64> {
        self.shared().lock().planner.keys().collect()
    }

    /// How many [keys](Self::keys) there are.
    pub fn count(&self) -> usize {
        self.shared().lock().planner.count()
    }

    /// Whether something can be read under this key.
    pub fn has(&self, key: u64) -> bool {
        self.shared().lock().planner.find(key).is_some()
    }

    /// The length of a snapshot, wherever it is.
    pub fn bytes(&self, key: u64) -> Result<usize> {
        let core = self.shared().lock();
        let id = core.planner.find(key).ok_or(Error::Missing { key })?;
        Ok(core.snapshots.get(&id).ok_or(Error::Missing { key })?.layout.bytes())
    }

    /// The statistics so far.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The timeline so far.
    pub fn trace(&self) -> &crate::Trace {
        &self.shared().trace
    }

    fn shared(&self) -> &Shared {
        &self.engine.shared
    }

    fn lend_slot(&self, key: u64, layout: Layout, is_copy: bool, yields: bool) -> Result<Lent> {
        let shared = self.shared();
        let mut core = shared.lock();
        if core.planner.has_key(key) {
            return Err(Error::Exists { key });
        }
        if isize::try_from(layout.bytes()).is_err() {
            return Err(self.refusal(&core, key, layout.bytes() as u64, Refusal::TooLarge));
        }
        let bytes = aligned(layout.bytes() as u64);
        let id = SnapshotId(core.next_id);
        core.next_id += 1;
        shared.tell(&mut core, Event::RoomWanted { id, key, bytes, is_copy, yields });
        let (core, answer, waited) = shared.wait(core, Question { id, consume: false })?;
        if let Some(waited) = waited {
            shared.calls.wait_ns.fetch_add(waited.end - waited.start, Relaxed);
            self.add_span(SpanKind::Wait, key, waited);
        }
        match answer {
            Answer::Lent(room) => {
                let (link, layout) = (Some(Link::new(&self.engine.shared)), Arc::new(layout));
                Ok(Lent { link, id, key, layout, room: Some(room), checksum: None })
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
        let layout = Arc::clone(&core.snapshots[&id].layout);
        check(&layout)?;
        shared.tell(&mut core, Event::Wanted { id, consume });
        let (mut core, answer, _) = shared.wait(core, Question { id, consume })?;
        match answer {
            Answer::Handed(kept) => {
                shared.calls.reads.fetch_add(1, Relaxed);
                if consume {
                    core.forget(id);
                }
                Ok(Held { link: Some(Link::new(&self.engine.shared)), id, key, layout, kept: Some(kept) })
            }
            Answer::Refused(why) => Err(self.refusal(&core, key, aligned(layout.bytes() as u64), why).into()),
            Answer::Lent(_) => unreachable!("who reads is handed a slot or refused"),
        }
    }

    fn refusal(&self, core: &Core, key: u64, bytes: u64, why: Refusal) -> Error {
        let layers = &self.shared().layers;
        let fault = |layer: usize| core.layers[layer].stats.fault.clone();
        match why {
            // It would fit, had the system provided all of the memory.
            Refusal::TooLarge if layers[0].capacity() >= Some(bytes) && fault(0).is_some() => {
                self.refusal(core, key, bytes, Refusal::Full)
            }
            Refusal::TooLarge => Error::TooLarge { key, bytes, capacity: core.planner.front_bytes() },
            Refusal::Held => Error::Held { key, held: core.held() },
            Refusal::GaveWay => Error::GaveWay { key },
            Refusal::Gone => Error::Missing { key },
            Refusal::Damaged(layer) => Error::Damaged { key, layer: layers[layer].name().to_owned() },
            Refusal::Unreadable(layer) => {
                let detail = fault(layer).unwrap_or_else(|| layers[layer].name().to_owned());
                Error::Unreadable { key, detail }
            }
            Refusal::Full => {
                let of_layer = |(index, layer): (usize, &Arc<dyn Layer>)| {
                    let (used, _) = core.planner.used_bytes(index);
                    let fault = fault(index).map_or_else(String::new, |fault| format!(" and has failed ({fault})"));
                    let limit = layer.capacity().map_or_else(String::new, |limit| format!(" of {limit}"));
                    format!("{} holds {used}{limit} bytes{fault}", layer.name())
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
        self.anchor().handle()
    }
}

/// Keeps an engine open and makes handles, without being a handle: no call waits in the hope that
/// it makes room. For a program whose threads come and go, each with a handle of its own.
#[derive(Clone)]
pub struct Anchor(Arc<Engine>);

impl Anchor {
    /// Makes one more handle.
    pub fn handle(&self) -> Handle {
        let number = self.0.change_handles(1);
        let idle_since_ns = self.0.shared.now_ns();
        Handle { engine: Arc::clone(&self.0), number, idle_since_ns, desk: Desk::default() }
    }

    /// As [`Handle::keys`].
    pub fn keys(&self) -> Vec<u64> {
        self.0.shared.lock().planner.keys().collect()
    }

    /// As [`Handle::count`].
    pub fn count(&self) -> usize {
        self.0.shared.lock().planner.count()
    }

    /// As [`Handle::stats`].
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// As [`Handle::trace`].
    pub fn trace(&self) -> &crate::Trace {
        &self.0.shared.trace
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.engine.change_handles(-1);
    }
}

/// A slot that the program fills. Sealing it creates the snapshot. Dropping it unsealed gives the
/// slot back.
pub struct Lent {
    /// `None` once the slot has been given back.
    link: Option<Link>,
    id: SnapshotId,
    key: u64,
    layout: Arc<Layout>,
    room: Option<Room>,
    /// That of the whole slot, if a copy has just filled it.
    checksum: Option<Checksum>,
}

impl Lent {
    /// Copies `bytes` to offset `at` of the slot, with several threads if that is faster.
    ///
    /// # Panics
    /// If the slot is too short.
    pub fn fill(&mut self, at: usize, bytes: &[u8]) {
        let visit = self.link.as_ref().and_then(Link::visit);
        let target = &mut self[at..at + bytes.len()];
        match visit {
            Some(shared) => shared.copier.copy(target, bytes),
            None => target.copy_from_slice(bytes),
        }
    }

    /// Copies `bytes` to offset `at`, whether the front is addressable or not. If they are all of
    /// the snapshot, the copy makes the checksum too. To be sealed without further changes.
    fn fill_in(&mut self, shared: &Shared, at: usize, bytes: &[u8]) -> Result<()> {
        let Some(room) = &mut self.room else { return Ok(()) };
        if shared.needs_checksums() && !room.is_empty() && bytes.len() == self.layout.bytes() {
            self.checksum = Some(checksum::of_copy(&shared.copier, room, bytes));
            return Ok(());
        }
        Ok(shared.front().fill(room, at, bytes, &shared.copier)?)
    }

    /// Gives back all but the first `bytes` of an addressable slot, which becomes one region of
    /// bytes.
    pub fn shorten(&mut self, bytes: usize) {
        let is_shorter = bytes < self.layout.bytes();
        if !is_shorter || !self.room.as_mut().is_some_and(|room| room.shorten(bytes as u64)) {
            return;
        }
        self.layout = Arc::new(Layout::single(Element::BYTE, bytes));
        if let Some(shared) = self.link.as_ref().and_then(Link::visit) {
            shared.tell(&mut shared.lock(), Event::Shortened { id: self.id, bytes: aligned(bytes as u64) });
        }
    }

    /// Ends filling: the slot becomes a snapshot.
    pub fn seal(mut self) {
        self.make_snapshot(false);
    }

    /// As [`seal`](Self::seal), but keeps the slot to read from.
    pub fn seal_and_keep(mut self) -> Held {
        let kept = self.make_snapshot(true);
        Held { link: self.link.take(), id: self.id, key: self.key, layout: Arc::clone(&self.layout), kept }
    }

    fn make_snapshot(&mut self, keep: bool) -> Option<Kept> {
        let kept = self.room.take()?.seal();
        // No other reference to the slot may outlive this call: once the plan has evicted the
        // snapshot, its range counts as free.
        let (sealed, kept) = match keep {
            true => (kept.clone().into_sealed(), Some(kept)),
            false => (kept.into_sealed(), None),
        };
        if let Some(shared) = self.link.as_ref().and_then(Link::visit) {
            shared.calls.saves.fetch_add(1, Relaxed);
            shared.calls.saved_bytes.fetch_add(self.layout.bytes() as u64, Relaxed);
            let mut core = shared.lock();
            core.add(self.id, self.key, Arc::clone(&self.layout), sealed, self.checksum);
            shared.tell(&mut core, Event::Sealed { id: self.id, keep });
        }
        kept
    }

    /// How the regions lie in the slot.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.layout.bytes();
        self.room.as_deref().and_then(|room| room.get(..bytes)).unwrap_or_default()
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.layout.bytes();
        self.room.as_deref_mut().and_then(|room| room.get_mut(..bytes)).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Give the slot back before telling the planner, or the planner might lend it again too
        // early.
        let was_lent = self.room.take().is_some();
        if let Some(shared) = self.link.as_ref().and_then(Link::visit).filter(|_| was_lent) {
            shared.tell(&mut shared.lock(), Event::Abandoned(self.id));
        }
    }
}

/// A snapshot that the program holds, to be read in place. Dropping it gives the slot back.
pub struct Held {
    /// `None` once the slot has been given back.
    link: Option<Link>,
    id: SnapshotId,
    key: u64,
    layout: Arc<Layout>,
    kept: Option<Kept>,
}

impl Held {
    /// How the regions lie in the slot.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The program's name for it.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Gives its place in the front back, once.
    fn give_back(&mut self) {
        drop(self.kept.take());
        if let Some(shared) = self.link.take().and_then(|link| link.visit()) {
            shared.give_back(self.id);
        }
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.layout.bytes();
        self.kept.as_deref().and_then(|kept| kept.get(..bytes)).unwrap_or_default()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use super::*;
    use crate::{Engine, Options};

    #[test]
    fn nothing_is_touched_while_somebody_wants_not_to_be_disturbed() {
        let touched = |handle: &Handle| handle.stats().layers[0].memory.unwrap().touched_bytes;
        for _ in 0..100 {
            let host = Host::new(64 << 20).unwrap();
            let piece_bytes = host.piece_bytes();
            let handle = Engine::open(vec![Arc::new(host)], &Options::default()).unwrap();
            let (first, last) = handle.undisturbed(|| {
                let first = touched(&handle);
                thread::sleep(Duration::from_millis(50));
                (first, touched(&handle))
            });
            assert!(last <= first + piece_bytes, "only what was under way has ended: {first} {last}");
            if last < 64 << 20 {
                while touched(&handle) < 64 << 20 {
                    thread::sleep(Duration::from_millis(1));
                }
                return;
            }
        }
        panic!("all of it was touched before anybody could ask not to be disturbed, a hundred times");
    }
}
