//! Random writes to random regions, compared with a shadow copy: every byte that differs is
//! reported, with every way.

use std::ops::Range;

use outcrop_testing::amount;
use outcrop_track::{TrackOptions, Tracker, Way};
use proptest::prelude::*;

use crate::common::{self, Mapping, PAGE, tracker};

const BYTES: usize = 96 * PAGE;

#[derive(Debug, Clone)]
enum Step {
    /// Writes a value to this many bytes.
    Write {
        at: usize,
        bytes: usize,
        value: u8,
    },
    /// The same by a system call.
    Read {
        at: usize,
        bytes: usize,
    },
    GiveBack {
        page: usize,
        pages: usize,
    },
    Replace,
    Mark {
        region: usize,
        at: usize,
        bytes: usize,
    },
    Stop {
        region: usize,
    },
    Fork,
    Look {
        region: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || 0..BYTES;
    let page = || 0..BYTES / PAGE;
    let step = prop_oneof![
        8 => (at(), 1..3 * PAGE, any::<u8>()).prop_map(|(at, bytes, value)| Step::Write { at, bytes, value }),
        2 => (at(), 1..3 * PAGE).prop_map(|(at, bytes)| Step::Read { at, bytes }),
        1 => (page(), 1..20usize).prop_map(|(page, pages)| Step::GiveBack { page, pages }),
        1 => Just(Step::Replace),
        1 => (0..5usize, at(), 1..PAGE).prop_map(|(region, at, bytes)| Step::Mark { region, at, bytes }),
        1 => (0..5usize).prop_map(|region| Step::Stop { region }),
        1 => Just(Step::Fork),
        8 => (0..5usize).prop_map(|region| Step::Look { region }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Regions may overlap and need not fill pages.
fn regions() -> impl Strategy<Value = Vec<Range<usize>>> {
    let region = (0..BYTES, 0..BYTES).prop_map(|(a, b)| a.min(b)..a.max(b));
    prop::collection::vec(region, 5)
}

struct Run {
    tracker: Tracker,
    memory: Mapping,
    way: Way,
    regions: Vec<Range<usize>>,
    /// The contents of each region at the last call.
    shadows: Vec<Option<Vec<u8>>>,
}

impl Run {
    fn new(way: Way, regions: Vec<Range<usize>>) -> Self {
        let shadows = vec![None; regions.len()];
        Self { tracker: tracker(way), memory: Mapping::new(BYTES), way, regions, shadows }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let until = |at: usize, bytes: usize| at..(at + bytes).min(BYTES);
        match *step {
            Step::Write { at, bytes, value } => self.memory[until(at, bytes)].fill(value),
            Step::Read { at, bytes } => {
                let mut random = std::fs::File::open("/dev/urandom").unwrap();
                let outcome = std::io::Read::read_exact(&mut random, &mut self.memory[until(at, bytes)]);
                prop_assert!(outcome.is_ok() || self.way == Way::Protection);
            }
            // Documented as not detected by protection.
            Step::GiveBack { page, pages } if self.way != Way::Protection => {
                let range = until(page * PAGE, pages * PAGE);
                self.memory.advise(range.start, range.len(), libc::MADV_DONTNEED);
            }
            Step::GiveBack { .. } => {}
            Step::Replace => self.memory.replace(),
            Step::Mark { region, at, bytes } => {
                let len = self.regions[region].len();
                let range = at.min(len)..(at + bytes).min(len);
                self.tracker.mark_dirty(&region.to_string(), range.clone());
                // As if it had changed.
                if let Some(shadow) = &mut self.shadows[region] {
                    shadow[range.clone()].iter_mut().for_each(|byte| *byte = !*byte);
                }
            }
            Step::Stop { region } => {
                self.tracker.stop(&region.to_string());
                self.shadows[region] = None;
            }
            Step::Fork => {
                // SAFETY: the child exits at once.
                unsafe {
                    let pid = libc::fork();
                    if pid == 0 {
                        libc::_exit(0);
                    }
                    libc::waitpid(pid, std::ptr::null_mut(), 0);
                }
            }
            Step::Look { region } => self.look(region)?,
        }
        Ok(())
    }

    fn look(&mut self, region: usize) -> Result<(), TestCaseError> {
        let now = &self.memory[self.regions[region].clone()];
        let changes = self.tracker.changed(&region.to_string(), now);
        let ends_inside = changes.ranges.iter().all(|range| !range.is_empty() && range.end <= now.len());
        prop_assert!(ends_inside && changes.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        match &mut self.shadows[region] {
            None => prop_assert!(changes.is_everything),
            Some(shadow) => {
                for range in changes.ranges {
                    shadow[range.clone()].copy_from_slice(&now[range]);
                }
                prop_assert!(shadow == now, "something changed in region {region} that was not reported");
            }
        }
        self.shadows[region] = Some(now.to_vec());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(100, 3_000)))]

    #[test]
    fn nothing_that_changed_is_missed(
        way in prop::sample::select(vec![Way::Pages, Way::Protection, Way::Chosen, Way::Everything]),
        regions in regions(),
        steps in steps(),
    ) {
        let mut run = Run::new(way, regions);
        for step in &steps {
            run.step(step)?;
        }
        for region in 0..run.regions.len() {
            run.look(region)?;
        }
    }
}

/// Memory that is large enough for `Way::Chosen` to watch, so that samples, watching and pauses all
/// occur.
#[test]
fn nothing_is_missed_while_the_way_changes() {
    let bytes = 8 << 20;
    let mut memory = Mapping::new(bytes);
    let mut tracker = Tracker::new(TrackOptions { block_bytes: PAGE, ..TrackOptions::default() });
    let mut random = fastrand::Rng::with_seed(7);
    let mut shadow = memory.to_vec();
    let mut ways = Vec::new();
    for call in 0..120 {
        let changes = tracker.changed("memory", &memory);
        for range in &changes.ranges {
            shadow[range.clone()].copy_from_slice(&memory[range.clone()]);
        }
        assert!(shadow == *memory, "call {call} missed a change");
        ways.push(changes.way);
        // Watching pays if hashing is slow, and does not if hashing is fast.
        let (writes, hash_ms) = if call % 40 < 20 { (5, 10_000) } else { (5_000, 0) };
        tracker.hashed("memory", bytes, std::time::Duration::from_millis(hash_ms) + std::time::Duration::from_nanos(1));
        (0..writes).for_each(|_| memory[random.usize(..bytes)] = random.u8(..));
    }
    assert!(ways.contains(&Way::Everything));
    if common::has(Way::Pages) {
        assert!(ways.contains(&Way::Pages));
    }
}
