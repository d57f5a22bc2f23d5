//! The threads that move bytes while the program computes.

use std::{collections::HashMap, hash::Hasher, sync::Arc};

use outcrop_layers::{ALIGN, Feed, Host, Layer, Memory, Transfer};
use outcrop_plan::{Event, Extents, Fault, Purpose};
use twox_hash::XxHash3_64;

use crate::{
    Span, SpanKind,
    core::{Core, Job, JobKind, Lane, Queue, Saved, Shared},
};

/// Between two deeper layers bytes go through a buffer of this size.
const RELAY_BYTES: u64 = 4 << 20;

/// After so many moves a helper looks whether another lane has waited longer.
const TURN_MOVES: u32 = 8;

/// What a helper does next.
enum Work {
    Move(Lane),
    Touch(std::ops::Range<u64>),
}

/// Tells the program when a helper panics, which would otherwise wait for ever.
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

/// Moves and touches until the engine closes.
pub(crate) fn run(shared: &Arc<Shared>) {
    let _alarm = Alarm(shared);
    while let Some(work) = next_work(shared) {
        match work {
            Work::Move(lane) => serve(shared, lane),
            Work::Touch(range) => touch(shared, range),
        }
    }
}

/// Sleeps until there is something to do. Gives nothing when the engine closes.
fn next_work(shared: &Shared) -> Option<Work> {
    let mut core = shared.lock();
    loop {
        if core.is_closing {
            return None;
        }
        if let Some(lane) = waiting_lane(&core) {
            core.lanes.entry(lane).or_default().is_served = true;
            core.lane_served_last = Some(lane);
            return Some(Work::Move(lane));
        }
        if let Some(range) = core.touch.take() {
            return Some(Work::Touch(range));
        }
        core.idle_helpers += 1;
        core = core.sleep(&shared.work, None);
        core.idle_helpers -= 1;
    }
}

/// A lane with moves that no helper is at: one for which the program waits before all others, else each in its turn.
fn waiting_lane(core: &Core) -> Option<Lane> {
    let is_waiting = |queue: &Queue| !queue.is_served && !queue.jobs.is_empty();
    let is_urgent = |queue: &Queue| queue.jobs.front().is_some_and(|job| job.purpose == Purpose::Fetch);
    let waiting = || core.lanes.iter().filter(|(_, queue)| is_waiting(queue));
    let urgent = waiting().find(|(_, queue)| is_urgent(queue));
    let next = || waiting().find(|&(&lane, _)| Some(lane) > core.lane_served_last).or_else(|| waiting().next());
    urgent.or_else(next).map(|(&lane, _)| lane)
}

fn serve(shared: &Arc<Shared>, lane: Lane) {
    let mut feed = LaneFeed { shared, lane, under_way: HashMap::new(), next_tag: 0, moves: 0 };
    match lane {
        (0, to) => shared.layers[to].run(&mut feed),
        (from, 0) => shared.layers[from].run(&mut feed),
        (from, to) => feed.relay(from, to),
    }
    let mut core = shared.lock();
    core.lanes.entry(lane).or_default().is_served = false;
}

fn touch(shared: &Shared, range: std::ops::Range<u64>) {
    let start_ns = shared.now_ns();
    if let Err(error) = shared.front.touch(range) {
        tracing::debug!(%error, "memory is touched by who fills it instead");
    }
    if shared.trace.is_on() {
        let (track, end_ns) = ("touch".to_owned(), shared.now_ns());
        shared.trace.add(Span { kind: SpanKind::Touch, key: None, track, start_ns, end_ns });
    }
    shared.tell(&mut shared.lock(), Event::Touched);
}

/// Gives a layer the moves of one lane, and the planner their outcome.
struct LaneFeed<'a> {
    shared: &'a Arc<Shared>,
    lane: Lane,
    /// Moves that the layer has in its hands, without their memory.
    under_way: HashMap<u64, Moving>,
    next_tag: u64,
    moves: u32,
}

/// A move without its memory.
struct Moving {
    id: outcrop_plan::SnapshotId,
    saved: Arc<Saved>,
    purpose: Purpose,
    bytes: u64,
    start_ns: u64,
}

impl Feed for LaneFeed<'_> {
    fn next(&mut self) -> Option<Transfer> {
        let (moving, kind) = self.next_job()?;
        let (extents, memory) = match kind {
            JobKind::Down(sealed, extents) => {
                moving.saved.checksum.get_or_init(|| XxHash3_64::oneshot(&sealed));
                (extents, Memory::Write(sealed))
            }
            JobKind::Up(extents, slot) => (extents, Memory::Read(slot)),
            JobKind::Across(..) => unreachable!("what goes across is relayed"),
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.under_way.insert(tag, moving);
        Some(Transfer { tag, extents, memory })
    }

    fn done(&mut self, transfer: Transfer, result: outcrop_layers::Result<()>) {
        let moving = self.under_way.remove(&transfer.tag).expect("a layer gives back what it was given");
        let result = match (result, &transfer.memory) {
            (Ok(()), Memory::Read(slot)) if !is_intact(&moving, XxHash3_64::oneshot(slot)) => Err(Fault::SourceDamaged),
            (Ok(()), _) => Ok(()),
            (Err(error), memory) => Err(self.note(&error, matches!(memory, Memory::Read(_)))),
        };
        match transfer.memory {
            Memory::Read(slot) if result.is_ok() => self.end(&moving, result, Some(slot.seal())),
            memory => {
                drop(memory);
                self.end(&moving, result, None);
            }
        }
    }
}

impl LaneFeed<'_> {
    /// The lane's next move, unless the engine closes or another lane has waited long enough.
    fn next_job(&mut self) -> Option<(Moving, JobKind)> {
        let mut core = self.shared.lock();
        let must_share = self.moves >= TURN_MOVES && core.idle_helpers == 0 && waiting_lane(&core).is_some();
        if core.is_closing || must_share {
            return None;
        }
        let job = core.lanes.get_mut(&self.lane)?.jobs.pop_front()?;
        self.moves += 1;
        let now_ns = self.shared.now_ns();
        let (from, to) = self.lane;
        core.layers[from].reading.begin(now_ns);
        core.layers[to].writing.begin(now_ns);
        core.moving.begin(now_ns);
        let Job { id, saved, purpose, kind, bytes } = job;
        Some((Moving { id, saved, purpose, bytes, start_ns: now_ns }, kind))
    }

    /// Tells everybody how a move has ended. What has come up is in `sealed`.
    fn end(&self, moving: &Moving, result: Result<(), Fault>, sealed: Option<outcrop_layers::Sealed>) {
        let (from, to) = self.lane;
        let id = moving.id;
        let now_ns = self.shared.now_ns();
        let mut core = self.shared.lock();
        core.layers[from].reading.end(now_ns);
        core.layers[to].writing.end(now_ns);
        core.moving.end(now_ns);
        let event = match result {
            Ok(()) => {
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
            Err(fault) => Event::Failed { id, from, to, fault },
        };
        self.shared.tell(&mut core, event);
        drop(core);
        if self.shared.trace.is_on() {
            let kind = match moving.purpose {
                Purpose::Drain => SpanKind::Drain,
                Purpose::Prefetch => SpanKind::Prefetch,
                Purpose::Fetch => SpanKind::Fetch,
            };
            let track = format!("{} to {}", self.shared.layers[from].name(), self.shared.layers[to].name());
            let (key, start_ns) = (Some(moving.saved.key), moving.start_ns);
            self.shared.trace.add(Span { kind, key, track, start_ns, end_ns: now_ns });
        }
    }

    /// Takes note of a layer's error, and says what it means for the plan.
    fn note(&self, error: &outcrop_layers::Error, is_read: bool) -> Fault {
        let layer = if is_read { self.lane.0 } else { self.lane.1 };
        tracing::error!(%error, "a move failed");
        self.shared.lock().layers[layer].stats.fault = Some(error.to_string());
        match error {
            _ if is_read => Fault::SourceUnreadable,
            outcrop_layers::Error::Full { .. } => Fault::TargetFull,
            _ => Fault::TargetBroken,
        }
    }

    /// Carries moves between two deeper layers through a buffer.
    fn relay(&mut self, from: usize, to: usize) {
        let buffer = Host::new(RELAY_BYTES);
        while let Some((moving, kind)) = self.next_job() {
            let JobKind::Across(source, target) = kind else { unreachable!("the lane is between deeper layers") };
            let layers = (&*self.shared.layers[from], &*self.shared.layers[to]);
            let result = match &buffer {
                Ok(buffer) => self.relay_one(buffer, &moving, layers, (&source, &target)),
                Err(error) => Err(self.note(error, false)),
            };
            self.end(&moving, result, None);
        }
    }

    fn relay_one(
        &self,
        buffer: &Host,
        moving: &Moving,
        (from, to): (&dyn Layer, &dyn Layer),
        (source, target): (&Extents, &Extents),
    ) -> Result<(), Fault> {
        let mut slot = buffer.slot(0, buffer.capacity()).map_err(|error| self.note(&error, false))?;
        let mut checksum = XxHash3_64::new();
        for (read_at, write_at, bytes) in pieces(source, target) {
            let piece = &mut slot[..bytes as usize];
            from.read(read_at, piece).map_err(|error| self.note(&error, true))?;
            checksum.write(piece);
            to.write(write_at, piece).map_err(|error| self.note(&error, false))?;
        }
        if is_intact(moving, checksum.finish()) { Ok(()) } else { Err(Fault::SourceDamaged) }
    }
}

fn is_intact(moving: &Moving, checksum: u64) -> bool {
    moving.saved.checksum.get() == Some(&checksum)
}

/// Cuts two lists of extents of equal length into pieces that are whole in both and fit the relay buffer.
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
}
