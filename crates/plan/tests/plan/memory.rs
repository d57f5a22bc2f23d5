//! Memory that is slow at first: when it is touched, when it is pinned, and when it is not used.

use outcrop_plan::{
    Action, Event, LayerSettings, MemorySettings, Order, Pinning, Planner, Settings, SnapshotId, Strategy, Timestamp,
    Touching,
};

const MIB: u64 = 1 << 20;

/// A program that saves, on a simulated machine with fixed rates in bytes per nanosecond.
struct Machine {
    planner: Planner,
    now: u64,
    touched: f64,
    untouched: f64,
    below: f64,
    /// The ends of moves and touches.
    under_way: Vec<(u64, Event)>,
    touched_bytes: u64,
    next: u64,
    lent_at: Option<u64>,
    moves: u64,
    /// The snapshots that have sunk, in this order.
    sunk: Vec<SnapshotId>,
    waited_ns: u64,
    pins: u32,
    /// Touches that began while the program was copying.
    touches_in_copy: u32,
    is_copying: bool,
}

impl Machine {
    fn new(memory: MemorySettings, capacities: &[u64], untouched: f64) -> Self {
        let mut layers: Vec<_> = capacities.iter().map(|&bytes| LayerSettings::new(bytes)).collect();
        layers[0] = layers[0].with_memory(memory);
        Self {
            planner: Planner::new(Settings::new(layers, Order::Reverse)),
            now: 1,
            touched: 8.0,
            untouched,
            below: 2.0,
            under_way: Vec::new(),
            touched_bytes: 0,
            next: 0,
            lent_at: None,
            moves: 0,
            sunk: Vec::new(),
            waited_ns: 0,
            pins: 0,
            touches_in_copy: 0,
            is_copying: false,
        }
    }

    fn tell(&mut self, event: Event) {
        self.planner.handle(Timestamp(self.now), event);
        while let Some(action) = self.planner.poll() {
            match action {
                Action::Lend { at, .. } => self.lent_at = Some(at),
                Action::Move { id, from, to, .. } => {
                    self.moves += 1;
                    self.sunk.push(id);
                    let last = self.under_way.iter().map(|&(at, _)| at).max().unwrap_or(self.now);
                    let bytes = self.planner.bytes(id) as f64;
                    let end = last.max(self.now) + (bytes / self.below) as u64;
                    self.under_way.push((end, Event::Moved { id, from: from.layer, to: to.layer }));
                }
                Action::Touch { layer, range } => {
                    self.touches_in_copy += u32::from(self.is_copying);
                    let end = self.now + ((range.end - range.start) as f64 / self.untouched) as u64;
                    self.touched_bytes = self.touched_bytes.max(range.end);
                    self.under_way.push((end, Event::Touched { layer, is_done: true }));
                }
                Action::Pin { layer } => {
                    self.pins += 1;
                    self.under_way.push((self.now + 1000, Event::Pinned { layer, is_done: true }));
                }
                Action::Evict { .. } | Action::Slide { .. } | Action::Release { .. } => {}
                action => panic!("{action:?}"),
            }
        }
    }

    /// Lets time pass up to `until`; without it, up to the next event.
    fn pass(&mut self, until: Option<u64>) {
        while let Some(index) = (0..self.under_way.len()).min_by_key(|&index| self.under_way[index].0) {
            if until.is_some_and(|until| self.under_way[index].0 > until) {
                break;
            }
            let (at, event) = self.under_way.remove(index);
            self.now = self.now.max(at);
            self.tell(event);
            if until.is_none() {
                return;
            }
        }
        self.now = self.now.max(until.unwrap_or(0));
    }

    fn saves(&mut self, count: usize, bytes: u64, gap_ns: u64) {
        for _ in 0..count {
            self.save(bytes, gap_ns);
        }
    }

    /// Saves `bytes`, then computes for `gap_ns`. Returns how long the save took.
    fn save(&mut self, bytes: u64, gap_ns: u64) -> u64 {
        let id = SnapshotId(self.next);
        let start = self.now;
        self.tell(Event::RoomWanted { id, key: self.next, bytes, is_copy: true, yields: false });
        self.next += 1;
        while self.lent_at.is_none() {
            assert!(!self.under_way.is_empty(), "the save waits for nothing");
            self.pass(None);
        }
        self.waited_ns += self.now - start;
        let at = self.lent_at.take().unwrap();
        let new = (at + bytes).saturating_sub(self.touched_bytes.max(at));
        self.touched_bytes = self.touched_bytes.max(at + bytes);
        self.is_copying = true;
        let end = self.now + ((bytes - new) as f64 / self.touched + new as f64 / self.untouched) as u64;
        self.pass(Some(end));
        self.is_copying = false;
        self.tell(Event::Sealed { id, keep: false });
        let took = self.now - start;
        self.pass(Some(self.now + gap_ns));
        took
    }
}

fn memory(touching: Touching) -> MemorySettings {
    MemorySettings { touching, pins: true, ..MemorySettings::new() }
}

#[test]
fn a_pause_is_used_to_touch_what_the_next_save_needs() {
    let mut machine = Machine::new(memory(Touching::Sequential), &[1 << 30], 2.0);
    let first = machine.save(32 * MIB, 40_000_000);
    let later: Vec<_> = (0..4).map(|_| machine.save(32 * MIB, 40_000_000)).collect();
    assert!(later.iter().all(|&ns| ns * 3 < first), "{first} {later:?}");
    assert_eq!(machine.touches_in_copy, 0, "sequential means never during a copy");
    let never = Machine::new(memory(Touching::Never), &[1 << 30], 2.0).save(32 * MIB, 40_000_000);
    assert_eq!(first, never, "what was never touched is slow");
}

#[test]
fn concurrent_touching_goes_on_during_copies() {
    let mut machine = Machine::new(memory(Touching::Concurrent), &[1 << 30], 2.0);
    machine.saves(4, 32 * MIB, 1000);
    assert!(machine.touches_in_copy > 4);
    assert_eq!(machine.planner.memory(0).unwrap().strategy, Strategy::Concurrent);
}

#[test]
fn the_estimate_chooses_by_the_pause() {
    let mut machine = Machine::new(memory(Touching::Chosen), &[4 << 30], 2.0);
    machine.saves(20, 32 * MIB, 40_000_000);
    let state = machine.planner.memory(0).unwrap();
    assert_eq!(state.strategy, Strategy::Sequential, "{}", state.reason);
    let mut machine = Machine::new(memory(Touching::Chosen), &[4 << 30], 2.0);
    machine.saves(20, 32 * MIB, 100_000);
    let state = machine.planner.memory(0).unwrap();
    assert_eq!(state.strategy, Strategy::Concurrent, "touching disturbs nobody here: {}", state.reason);
}

#[test]
fn no_more_than_twice_what_was_used_is_touched() {
    let mut machine = Machine::new(memory(Touching::Chosen), &[64 << 30], 2.0);
    machine.save(MIB, u64::from(u32::MAX));
    let state = machine.planner.memory(0).unwrap();
    assert_eq!(state.touched_bytes, 129 * MIB);
    machine.saves(300, MIB, u64::from(u32::MAX));
    let state = machine.planner.memory(0).unwrap();
    assert!((602..604).contains(&(state.touched_bytes / MIB)), "{}", state.touched_bytes);
}

#[test]
fn memory_is_pinned_once_when_all_of_it_is_touched() {
    let mut machine = Machine::new(memory(Touching::Chosen), &[256 * MIB], 2.0);
    machine.save(32 * MIB, 1_000_000);
    assert_eq!(machine.planner.memory(0).unwrap().pinning, Pinning::Not);
    machine.save(32 * MIB, 1_000_000_000);
    machine.save(32 * MIB, 1_000_000_000);
    assert_eq!(machine.pins, 0, "something is left untouched: it is twice as large as what is used");
    machine.saves(5, 32 * MIB, 1_000_000_000);
    let state = machine.planner.memory(0).unwrap();
    assert_eq!((machine.pins, state.pinning), (1, Pinning::Done));
    assert_eq!(state.pinned_rate, Some(8e9), "what was saved since then has a speed of its own");
}

/// Untouched memory at 0.2 GB/s and a disk at 2 GB/s, similar to measured virtual machines.
#[test]
fn memory_that_is_slower_than_the_disk_is_not_grown_into() {
    let run = |capacities: &[u64]| {
        let mut machine = Machine::new(memory(Touching::Never), capacities, 0.2);
        let total: u64 = (0..100).map(|_| machine.save(32 * MIB, 1_000_000)).sum();
        (total, machine.planner.memory(0).unwrap().touched_bytes, machine.moves)
    };
    let (alone_ns, alone_touched, _) = run(&[4 << 30]);
    let (with_disk_ns, touched, moves) = run(&[4 << 30, 64 << 30]);
    assert_eq!(alone_touched, 3200 * MIB);
    assert!(touched < 320 * MIB, "{touched} bytes of slow memory were taken");
    assert!(moves > 80, "most went to the disk: {moves}");
    assert!(with_disk_ns * 4 < alone_ns, "{with_disk_ns} against {alone_ns}");
}

#[test]
fn memory_that_is_faster_than_the_disk_is_used_first() {
    let mut machine = Machine::new(memory(Touching::Never), &[4 << 30, 64 << 30], 4.0);
    machine.saves(60, 32 * MIB, 1_000_000);
    assert_eq!(machine.moves, 0, "less than half of the memory is in use");
    assert_eq!(machine.waited_ns, 0);
}

#[test]
fn device_memory_is_waited_for_piece_by_piece_and_filled_before_anything_leaves_it() {
    let memory = MemorySettings {
        needs_touch: true,
        piece_bytes: 64 * MIB,
        ahead_bytes: u64::MAX,
        pins: false,
        ..MemorySettings::new()
    };
    let mut machine = Machine::new(memory, &[256 * MIB, 4 << 30], 1.0);
    let first = machine.save(32 * MIB, 0);
    assert!((64 * MIB..80 * MIB).contains(&first), "one piece, not four: {first} ns");
    let second = machine.save(32 * MIB, 0);
    assert!(second < 10 * MIB, "the piece was there: {second} ns");
    machine.saves(20, 32 * MIB, 0);
    assert_eq!(machine.planner.memory(0).unwrap().touched_bytes, 256 * MIB);
    assert!(machine.sunk.len() > 10 && machine.sunk.is_sorted(), "first in, first out: {:?}", machine.sunk);
}

#[test]
fn shared_memory_that_is_not_in_use_is_given_back() {
    let settings = LayerSettings::new(1 << 30).with_memory(MemorySettings {
        needs_touch: true,
        is_shared: true,
        piece_bytes: 16 * MIB,
        ahead_bytes: 32 * MIB,
        ..MemorySettings::new()
    });
    let mut planner = Planner::new(Settings::new(vec![settings], Order::Reverse));
    let mut now = 0;
    let mut released = Vec::new();
    let mut tell = |planner: &mut Planner, event| {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            now += 1;
            planner.handle(Timestamp(now), event);
            while let Some(action) = planner.poll() {
                match action {
                    Action::Touch { layer, .. } => events.push(Event::Touched { layer, is_done: true }),
                    Action::Release { range, .. } => released.push(range),
                    _ => {}
                }
            }
        }
    };
    for key in 0..20 {
        let id = SnapshotId(key);
        tell(&mut planner, Event::RoomWanted { id, key, bytes: 16 * MIB, is_copy: true, yields: false });
        tell(&mut planner, Event::Sealed { id, keep: false });
    }
    let taken = planner.memory(0).unwrap().touched_bytes;
    assert!(taken >= 320 * MIB);
    for key in (0..20).rev() {
        tell(&mut planner, Event::Wanted { id: SnapshotId(key), consume: true });
        tell(&mut planner, Event::Released(SnapshotId(key)));
    }
    let kept = planner.memory(0).unwrap().touched_bytes;
    assert!(kept <= 64 * MIB, "{kept}");
    assert_eq!(released.iter().map(|range| range.end - range.start).sum::<u64>(), taken - kept);
    assert!(released.iter().all(|range| range.start.is_multiple_of(16 * MIB) && range.end.is_multiple_of(16 * MIB)));
}

#[test]
fn who_finds_no_shared_memory_left_asks_again_and_is_refused_in_the_end() {
    let settings = LayerSettings::new(64 * MIB).with_memory(MemorySettings {
        needs_touch: true,
        is_shared: true,
        piece_bytes: 16 * MIB,
        ahead_bytes: 16 * MIB,
        ..MemorySettings::new()
    });
    let run = |free_after: Option<u32>| {
        let mut settings = Settings::new(vec![settings], Order::Reverse);
        settings.patience_ns = 1_000_000_000;
        let mut planner = Planner::new(settings);
        let (mut now, mut asked) = (1, 0);
        planner.handle(
            Timestamp(now),
            Event::RoomWanted { id: SnapshotId(0), key: 0, bytes: 16 * MIB, is_copy: true, yields: false },
        );
        loop {
            while let Some(action) = planner.poll() {
                match action {
                    Action::Touch { layer, .. } => {
                        asked += 1;
                        let is_done = free_after.is_some_and(|after| asked > after);
                        planner.handle(Timestamp(now), Event::Touched { layer, is_done });
                    }
                    Action::Lend { .. } => return (asked, true),
                    Action::Refuse { .. } => return (asked, false),
                    action => panic!("{action:?}"),
                }
            }
            let Timestamp(at) = planner.poll_timeout().expect("somebody waits");
            now = at.max(now + 1);
            planner.handle(Timestamp(now), Event::Tick);
        }
    };
    assert_eq!(run(Some(5)), (6, true));
    let (asked, is_lent) = run(None);
    assert!(!is_lent && asked > 10, "asked {asked} times");
}
