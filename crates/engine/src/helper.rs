//! The helper threads, which move bytes while the program computes.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use outcrop_layers::{ALIGN, Feed, Host, Layer, Memory, Transfer};
use outcrop_plan::{Event, Extents, Fault, LayerIndex, Purpose, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;

use crate::{
    Arrival, Checksums, Span, SpanKind,
    checksum::{self, Checksum, Running},
    core::{Chore, Core, Job, JobKind, Lane, Pieces, Queue, Shared},
    pin,
};

/// The size of the buffer for moves between two layers that are not the host layer.
const RELAY_BYTES: u64 = 4 << 20;

/// After this many moves, a helper switches to another lane if one waits.
const TURN_MOVES: u32 = 8;

/// The failure of a move whose source does not have the bytes that were saved.
const CHANGED: &str = "the bytes have changed";

/// What a helper does next.
enum Work {
    Report(Arrival),
    Move(Lane),
    Chore(Chore),
}

/// Tells the program when a helper panics. Without it the program would wait forever.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut core = self.0.lock();
            core.has_stopped = true;
            core.is_answered = true;
        }
    }
}

/// Serves moves and chores until the engine closes.
pub(crate) fn run(shared: &Arc<Shared>) {
    let _alarm = Alarm(shared);
    while let Some(work) = next_work(shared) {
        match work {
            Work::Report(arrival) => report(shared, arrival),
            Work::Move(lane) => serve(shared, lane),
            Work::Chore(Chore::Touch(layer, range)) => touch(shared, layer, range),
            Work::Chore(Chore::Pin(layer)) => pin::begin(shared, layer),
        }
        count_processor_time(shared);
    }
}

thread_local! {
    /// The processor time of this helper that has been counted.
    static COUNTED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Adds the processor time that this helper has taken since the last call to the statistics.
fn count_processor_time(shared: &Shared) {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let now_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    shared.calls.helper_ns.fetch_add(now_ns - COUNTED_NS.replace(now_ns), Relaxed);
}

/// Sleeps until there is work. Returns `None` when the engine closes.
fn next_work(shared: &Shared) -> Option<Work> {
    let mut core = shared.lock();
    loop {
        if core.is_closing {
            return None;
        }
        if let Some(arrival) = core.reports.pop_front() {
            return Some(Work::Report(arrival));
        }
        if let Some(lane) = waiting_lane(&core) {
            core.lanes.entry(lane).or_default().is_served = true;
            core.lane_served_last = Some(lane);
            core.lane_that_gave_way = None;
            return Some(Work::Move(lane));
        }
        if core.undisturbed == 0
            && let Some(chore) = core.chores.pop_front()
        {
            return Some(Work::Chore(chore));
        }
        core.idle_helpers += 1;
        core = core.sleep(&shared.work, None);
        core.idle_helpers -= 1;
    }
}

/// A lane with queued moves that no helper serves. Lanes with a fetch come first, the oldest fetch
/// before all others, then round robin. A lane that gave way comes last.
fn waiting_lane(core: &Core) -> Option<Lane> {
    choose(&core.lanes, core.lane_served_last, core.lane_that_gave_way)
}

fn choose(lanes: &BTreeMap<Lane, Queue>, served_last: Option<Lane>, gave_way: Option<Lane>) -> Option<Lane> {
    let is_waiting = |queue: &Queue| !queue.is_served && !queue.jobs.is_empty();
    let waiting = || lanes.iter().filter(|(_, queue)| is_waiting(queue)).map(|(&lane, queue)| (lane, queue));
    let others = || waiting().filter(|&(lane, _)| Some(lane) != gave_way);
    let fetch = |(lane, queue): (Lane, &Queue)| {
        let job = queue.jobs.front().filter(|job| job.purpose == Purpose::Fetch)?;
        Some((job.number, lane))
    };
    let urgent = others().filter_map(fetch).min().map(|(_, lane)| lane);
    let next = || others().map(|(lane, _)| lane).find(|&lane| Some(lane) > served_last);
    urgent
        .or_else(next)
        .or_else(|| others().next().map(|(lane, _)| lane))
        .or_else(|| waiting().next().map(|(lane, _)| lane))
}

fn serve(shared: &Arc<Shared>, lane: Lane) {
    let (from, to) = lane;
    let mut feed =
        LaneFeed { shared, lane, under_way: HashMap::new(), pieces: VecDeque::new(), next_move: 0, moves: 0 };
    if shared.host_at(from).is_some() {
        shared.layers[to].run(&mut feed);
    } else if shared.host_at(to).is_some() {
        shared.layers[from].run(&mut feed);
    } else {
        feed.relay(from, to);
    }
    let mut core = shared.lock();
    core.lanes.entry(lane).or_default().is_served = false;
}

fn report(shared: &Shared, arrival: Arrival) {
    if let Some(arrivals) = &shared.arrivals {
        (arrivals.0)(arrival);
    }
}

fn touch(shared: &Shared, layer: LayerIndex, range: std::ops::Range<u64>) {
    let start_ns = shared.now_ns();
    // Part of the memory that the program is filling is not provided yet: do not use it up.
    let promised_bytes = shared.lock().planner.filling_bytes();
    let result = shared.layers[layer].front().map_or(Ok(()), |memory| memory.touch(range, promised_bytes));
    if shared.trace.is_on() {
        let (track, end_ns) = ("touch".to_owned(), shared.now_ns());
        shared.trace.add(Span { kind: SpanKind::Touch, key: None, track, start_ns, end_ns, note: None });
    }
    let mut core = shared.lock();
    if let Err(error) = &result {
        shared.note_exhausted(&mut core, layer, error);
    }
    shared.tell(&mut core, Event::Touched { layer, is_done: result.is_ok() });
}

/// Passes the moves of one lane to a layer, and their results to the planner.
struct LaneFeed<'a> {
    shared: &'a Arc<Shared>,
    lane: Lane,
    /// Moves that the layer has begun.
    under_way: HashMap<u64, Moving>,
    /// Pieces of the latest move that the layer has not fetched yet.
    pieces: VecDeque<Transfer>,
    next_move: u64,
    moves: u32,
}

/// A move that a layer has begun.
struct Moving {
    id: outcrop_plan::SnapshotId,
    key: u64,
    /// That of the saved bytes, if it is known.
    checksum: Option<Checksum>,
    purpose: Purpose,
    bytes: u64,
    start_ns: u64,
    /// How many pieces are still being transferred.
    left: usize,
    /// Memory of the transferred pieces, by their index.
    ended: SmallVec<[Option<Memory>; 1]>,
    fault: Option<Fault>,
    /// The layer's error.
    failure: Option<String>,
}

/// The largest number of pieces of a move.
const PIECES_MAX: u64 = 1 << 24;

impl Feed for LaneFeed<'_> {
    fn next(&mut self) -> Option<Transfer> {
        if let Some(piece) = self.pieces.pop_front() {
            return Some(piece);
        }
        let (mut moving, pieces) = self.next_begun()?;
        moving.left = pieces.len();
        moving.ended.resize_with(pieces.len(), || None);
        let first_tag = self.next_move * PIECES_MAX;
        self.under_way.insert(self.next_move, moving);
        self.next_move += 1;
        let transfers = (first_tag..).zip(pieces);
        self.pieces.extend(transfers.map(|(tag, (extents, memory))| Transfer { tag, extents, memory }));
        self.pieces.pop_front()
    }

    fn done(&mut self, transfer: Transfer, result: outcrop_layers::Result<()>) {
        let (number, piece) = (transfer.tag / PIECES_MAX, (transfer.tag % PIECES_MAX) as usize);
        let is_read = matches!(transfer.memory, Memory::Read(_));
        let failure = result.err().map(|error| (self.note(&error, is_read), error.to_string()));
        let moving = self.under_way.get_mut(&number).expect("a layer gives back what it was given");
        moving.ended[piece] = Some(transfer.memory);
        if let Some((fault, failure)) = failure {
            moving.fail(fault, failure);
        }
        moving.left -= 1;
        if moving.left == 0 {
            let moving = self.under_way.remove(&number).expect("it was there just now");
            self.finish(moving);
        }
    }
}

/// The memory of a move: each piece with its extents on the layer.
type Transfers = SmallVec<[(Extents, Memory); 1]>;

impl LaneFeed<'_> {
    /// The lane's next move that the layer can begin. Moves that it cannot begin have failed.
    fn next_begun(&mut self) -> Option<(Moving, Transfers)> {
        loop {
            let (mut moving, kind) = self.next_job()?;
            let pieces = match kind {
                JobKind::Out(pieces) => pieces,
                JobKind::In(pieces) => {
                    let transfers = pieces.into_iter().map(|(slot, extents)| (extents, Memory::Read(slot)));
                    return Some((moving, transfers.collect()));
                }
                JobKind::Across(..) => unreachable!("what goes across is relayed"),
            };
            let target = pieces.iter().flat_map(|(_, extents)| extents.iter().cloned()).collect();
            let Err(error) = self.shared.layers[self.lane.1].begin(moving.key, &target) else {
                if self.shared.checksums == Checksums::Engine {
                    moving.checksum.get_or_insert_with(|| checksum::of(pieces.iter().map(|(sealed, _)| &**sealed)));
                }
                let transfers = pieces.into_iter().map(|(sealed, extents)| (extents, Memory::Write(sealed)));
                return Some((moving, transfers.collect()));
            };
            moving.fail(self.note(&error, false), error.to_string());
            drop(pieces);
            self.end(moving, None);
        }
    }

    /// Ends a move whose pieces have all been transferred. Verifies the checksum of a move up.
    fn finish(&self, mut moving: Moving) {
        let mut slots = SmallVec::<[outcrop_layers::Slot; 1]>::new();
        for memory in moving.ended.drain(..).flatten() {
            match memory {
                Memory::Read(slot) => slots.push(slot),
                Memory::Write(sealed) => drop(sealed),
            }
        }
        match moving.fault {
            Some(_) => {}
            None if slots.is_empty() => self.complete(&mut moving),
            None if self.shared.checksums == Checksums::Program => {}
            None => moving.check(checksum::of(slots.iter().map(|slot| &**slot))),
        }
        let sealed = moving.fault.is_none().then(|| slots.into_iter().map(outcrop_layers::Slot::seal).collect());
        self.end(moving, sealed.filter(|sealed: &Pieces| !sealed.is_empty()));
    }

    /// Lets the layer complete a move whose bytes are all written, for example with a sync.
    fn complete(&self, moving: &mut Moving) {
        if let Err(error) = self.shared.layers[self.lane.1].complete(moving.key) {
            moving.fail(self.note(&error, false), error.to_string());
        }
    }

    /// The lane's next move. `None` if the engine closes, or if another lane has waited long
    /// enough.
    fn next_job(&mut self) -> Option<(Moving, JobKind)> {
        let mut core = self.shared.lock();
        let must_share = self.moves >= TURN_MOVES && core.idle_helpers == 0 && waiting_lane(&core).is_some();
        if core.is_closing || must_share {
            core.lane_that_gave_way = Some(self.lane).filter(|_| must_share);
            return None;
        }
        let job = core.lanes.get_mut(&self.lane)?.jobs.pop_front()?;
        self.moves += 1;
        let now_ns = self.shared.now_ns();
        let (from, to) = self.lane;
        core.layers[from].reading.begin(Timestamp(now_ns));
        core.layers[to].writing.begin(Timestamp(now_ns));
        core.moving.begin(Timestamp(now_ns));
        let Job { id, key, checksum, purpose, kind, bytes, .. } = job;
        let (left, ended, fault, failure) = (0, SmallVec::new(), None, None);
        Some((Moving { id, key, checksum, purpose, bytes, start_ns: now_ns, left, ended, fault, failure }, kind))
    }

    /// Reports the result of a move. `sealed` has the bytes that have come up.
    fn end(&self, mut moving: Moving, sealed: Option<Pieces>) {
        let (from, to) = self.lane;
        let id = moving.id;
        let now_ns = self.shared.now_ns();
        count_processor_time(self.shared);
        let mut core = self.shared.lock();
        core.layers[from].reading.end(Timestamp(now_ns));
        core.layers[to].writing.end(Timestamp(now_ns));
        core.moving.end(Timestamp(now_ns));
        if let Some(checksum) = moving.checksum.filter(|_| moving.fault.is_none())
            && !core.note_checksum(id, checksum)
        {
            moving.fail(Fault::SourceDamaged, CHANGED.to_owned());
        }
        let event = match moving.fault {
            None => {
                let source = &mut core.layers[from].stats;
                source.reads += 1;
                source.read_bytes += moving.bytes;
                source.fetches += u64::from(moving.purpose == Purpose::Fetch);
                let target = &mut core.layers[to].stats;
                target.writes += 1;
                target.written_bytes += moving.bytes;
                if let Some(sealed) = sealed {
                    core.set_sealed(id, sealed);
                }
                Event::Moved { id, from, to }
            }
            Some(fault) => Event::Failed { id, from, to, fault },
        };
        if moving.fault.is_some() {
            self.shared.layers[to].forget(moving.key);
        }
        self.shared.tell(&mut core, event);
        if !core.snapshots.contains_key(&id) {
            // It was discarded meanwhile, and the plan has released it only now. Before the lock is
            // released too: what stays on a layer must count before the plan gives its room away.
            for layer in [from, to] {
                self.shared.layers[layer].forget(moving.key);
            }
        }
        // An unreadable source is tried again until the snapshot is lost.
        let is_over = match moving.fault {
            Some(Fault::SourceUnreadable | Fault::SourceDamaged) => core.planner.is_lost(id),
            _ => true,
        };
        drop(core);
        if to > 0 && is_over {
            report(self.shared, Arrival { key: moving.key, layer: to, failure: moving.failure });
        }
        if self.shared.trace.is_on() {
            let kind = match moving.purpose {
                Purpose::Drain => SpanKind::Drain,
                Purpose::Prefetch => SpanKind::Prefetch,
                Purpose::Fetch => SpanKind::Fetch,
            };
            let track = format!("{} to {}", self.shared.layers[from].name(), self.shared.layers[to].name());
            let (key, start_ns) = (Some(moving.key), moving.start_ns);
            self.shared.trace.add(Span { kind, key, track, start_ns, end_ns: now_ns, note: None });
        }
    }

    /// Records a layer's error, and returns the fault for the plan.
    fn note(&self, error: &outcrop_layers::Error, is_read: bool) -> Fault {
        let layer = if is_read { self.lane.0 } else { self.lane.1 };
        tracing::error!(%error, "a move failed");
        self.shared.lock().layers[layer].stats.fault = Some(error.to_string());
        match error {
            _ if is_read => Fault::SourceUnreadable,
            outcrop_layers::Error::Full { .. } | outcrop_layers::Error::Exhausted { .. } => Fault::TargetFull,
            _ => Fault::TargetBroken,
        }
    }

    /// Moves snapshots between two layers that are not the host layer, through a buffer.
    fn relay(&mut self, from: usize, to: usize) {
        let buffer = Host::new(RELAY_BYTES);
        while let Some((mut moving, kind)) = self.next_job() {
            let JobKind::Across(source, target) = kind else { unreachable!("the lane is between deeper layers") };
            let layers = (&*self.shared.layers[from], &*self.shared.layers[to]);
            let copied = match &buffer {
                Ok(buffer) => self.relay_one(buffer, layers, &moving, (&source, &target)),
                Err(error) => Err((self.note(error, false), error.to_string())),
            };
            match copied {
                Ok(Some(checksum)) => moving.check(checksum),
                Ok(None) => {}
                Err((fault, failure)) => moving.fail(fault, failure),
            }
            if moving.fault.is_none() {
                self.complete(&mut moving);
            }
            self.end(moving, None);
        }
    }

    /// Copies the bytes of one move. Returns their checksum, if the engine computes it.
    fn relay_one(
        &self,
        buffer: &Host,
        (from, to): (&dyn Layer, &dyn Layer),
        moving: &Moving,
        (source, target): (&Extents, &Extents),
    ) -> Result<Option<Checksum>, (Fault, String)> {
        let failure =
            |is_read: bool| move |error: outcrop_layers::Error| (self.note(&error, is_read), error.to_string());
        let mut slot = buffer.slot(0, buffer.capacity()).map_err(failure(false))?;
        to.begin(moving.key, target).map_err(failure(false))?;
        let mut checksum = (self.shared.checksums == Checksums::Engine).then(Running::default);
        for (read_at, write_at, bytes) in pieces(source, target) {
            let piece = &mut slot[..bytes as usize];
            from.read(read_at, piece).map_err(failure(true))?;
            if let Some(checksum) = &mut checksum {
                checksum.write(piece);
            }
            to.write(write_at, piece).map_err(failure(false))?;
        }
        Ok(checksum.map(Running::finish))
    }
}

impl Moving {
    /// Compares the checksum with that of the saved bytes. The first one computed counts as theirs.
    fn check(&mut self, checksum: Checksum) {
        if *self.checksum.get_or_insert(checksum) != checksum {
            self.fail(Fault::SourceDamaged, CHANGED.to_owned());
        }
    }

    /// Records an error, if it is the first.
    fn fail(&mut self, fault: Fault, failure: String) {
        if self.fault.is_none() {
            (self.fault, self.failure) = (Some(fault), Some(failure));
        }
    }
}

/// Cuts two lists of extents of equal total length into pieces that are contiguous in both and fit
/// the relay buffer.
fn pieces(source: &Extents, target: &Extents) -> Vec<(u64, u64, u64)> {
    let mut pieces = Vec::new();
    let (mut sources, mut targets) = (source.iter().cloned(), target.iter().cloned());
    let (mut read, mut write) = (0..0, 0..0);
    loop {
        if read.start == read.end {
            let Some(next) = sources.next() else { break };
            read = next;
        }
        if write.start == write.end {
            let Some(next) = targets.next() else { break };
            write = next;
        }
        let bytes = (read.end - read.start).min(write.end - write.start).min(RELAY_BYTES);
        debug_assert!(bytes.is_multiple_of(ALIGN));
        pieces.push((read.start, write.start, bytes));
        read.start += bytes;
        write.start += bytes;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_both_sides() {
        let source: Extents = [0..8192, 16384..20480].into_iter().collect();
        let target: Extents = [4096..8192, 40960..49152].into_iter().collect();
        assert_eq!(pieces(&source, &target), [(0, 4096, 4096), (4096, 40960, 4096), (16384, 45056, 4096)]);
        let long = Extents::from_elem(0..RELAY_BYTES * 2 + 4096, 1);
        assert_eq!(pieces(&long, &long).len(), 3);
    }

    #[test]
    fn the_oldest_fetch_comes_first_and_a_lane_that_gave_way_last() {
        let job = |number, purpose| {
            let (extents, checksum) = (Extents::from_elem(0..4096, 1), None);
            let kind = JobKind::Across(extents.clone(), extents);
            Job { number, id: outcrop_plan::SnapshotId(number), key: number, checksum, purpose, kind, bytes: 4096 }
        };
        let queue = |jobs: &[(u64, Purpose)]| {
            let jobs = jobs.iter().map(|&(number, purpose)| job(number, purpose)).collect();
            Queue { jobs, is_served: false }
        };
        let mut lanes = BTreeMap::from([
            ((0, 1), queue(&[(1, Purpose::Drain)])),
            ((1, 0), queue(&[(3, Purpose::Fetch), (2, Purpose::Prefetch)])),
            ((2, 0), queue(&[(0, Purpose::Fetch)])),
            ((3, 0), queue(&[])),
        ]);
        assert_eq!(choose(&lanes, None, None), Some((2, 0)), "its fetch is older");
        lanes.insert((2, 0), queue(&[]));
        assert_eq!(choose(&lanes, None, None), Some((1, 0)));
        assert_eq!(choose(&lanes, None, Some((1, 0))), Some((0, 1)), "also before a fetch");
        lanes.insert((0, 1), queue(&[]));
        assert_eq!(choose(&lanes, None, Some((1, 0))), Some((1, 0)), "there is no other");
        lanes.insert((1, 0), queue(&[]));
        assert_eq!(choose(&lanes, None, None), None);
    }
}
