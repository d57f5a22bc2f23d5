//! Small stories, told event by event.

use std::collections::VecDeque;

use outcrop_format::{GRANT_BYTES_MAX, NodeFailure, NodeFill, NodePart, PIECE_BYTES_MAX, node_pieces};

use crate::{Action, Answer, ClientId, Event, Grants, HoldSettings, PAGE_BYTES, Request, Settings, Timestamp};

const MIB: u64 = 1 << 20;
const FULL: u32 = 28;

/// The state machine with a clock, and without a file system.
struct Story {
    grants: Grants,
    now: u64,
}

impl Story {
    fn new(reserve_bytes: u64) -> Self {
        Self::held(reserve_bytes, HoldSettings::NONE)
    }

    /// Draining waits.
    fn held(reserve_bytes: u64, hold: HoldSettings) -> Self {
        let grants = Grants::new(Settings { drains_max: 1, hold, ..Settings::new(reserve_bytes) });
        let mut story = Self { grants, now: 0 };
        story.tell(Event::Touched { to: reserve_bytes });
        story.tell(Event::Opened { file: 1, device: 1, inode: 1, path: Vec::new() });
        for client in 1..=8 {
            story.tell(Event::Joined { client, process: client as u32 });
        }
        story
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.now += 1;
        self.grants.handle(Timestamp(self.now), event);
        self.grants.check().unwrap();
        std::iter::from_fn(|| self.grants.poll()).filter(|action| !matches!(action, Action::Journal(_))).collect()
    }

    fn request(&mut self, client: ClientId, request: Request) -> Vec<Action> {
        self.tell(Event::Requested { client, request })
    }

    fn ask(&mut self, client: ClientId, bytes: u64) -> Option<std::ops::Range<u64>> {
        let actions = self.request(client, Request::Ask { file: 1, bytes });
        actions.into_iter().find_map(|action| match action {
            Action::Reply { client: to, answer: Answer::Granted(range), .. } if to == client => Some(range),
            _ => None,
        })
    }

    fn fill(&mut self, client: ClientId, offset: u64, at: u64, bytes: u64) -> Vec<Action> {
        let sums = vec![0; node_pieces(offset, bytes) as usize];
        let part = NodePart { offset, at, bytes };
        self.request(client, Request::Fill(NodeFill { file: 1, part, modified_ns: 0, ask_bytes: 0, sums }))
    }

    /// Asks and fills.
    fn write(&mut self, client: ClientId, offset: u64, bytes: u64) -> Vec<Action> {
        let range = self.ask(client, offset % PAGE_BYTES + bytes).expect("there is memory");
        self.fill(client, offset, range.start + offset % PAGE_BYTES, bytes)
    }
}

fn drains(actions: &[Action]) -> Vec<(u64, u64, u64)> {
    let drain = |action: &Action| match action {
        Action::Drain { job, parts, .. } => {
            Some((*job, parts[0].offset, parts.iter().map(|part| part.bytes).sum::<u64>()))
        }
        _ => None,
    };
    actions.iter().filter_map(drain).collect()
}

fn answers(actions: &[Action]) -> Vec<(ClientId, Answer)> {
    let answer = |action: &Action| match action {
        Action::Reply { client, answer, .. } => Some((*client, answer.clone())),
        _ => None,
    };
    actions.iter().filter_map(answer).collect()
}

#[test]
fn what_follows_each_other_drains_at_once() {
    let mut story = Story::new(64 * MIB);
    let first = story.write(1, 0, 100);
    assert_eq!(drains(&first), [(1, 0, 100)]);
    for nth in 1..10 {
        assert_eq!(drains(&story.write(1, nth * 100, 100)), [], "one at a time");
    }
    let next = story.tell(Event::Drained { job: 1, outcome: Ok(()) });
    assert_eq!(drains(&next), [(2, 100, 900)]);
}

#[test]
fn a_newer_write_waits_for_the_older_one_that_it_overlaps() {
    let mut story = Story::new(64 * MIB);
    let grants = &mut story.grants;
    grants.settings.drains_max = 4;
    assert_eq!(drains(&story.write(1, 0, 100)), [(1, 0, 100)]);
    assert_eq!(drains(&story.write(2, 50, 100)), [], "it would be written in any order");
    assert_eq!(drains(&story.write(3, 1000, 100)), [(2, 1000, 100)], "this one overlaps nothing");
    let next = story.tell(Event::Drained { job: 1, outcome: Ok(()) });
    assert_eq!(drains(&next), [(3, 50, 100)]);
}

/// Whether a settling that begins removes a mark.
fn settles(actions: &[Action]) -> Option<bool> {
    actions.iter().find_map(|action| match action {
        Action::Settle { is_marked, .. } => Some(*is_marked),
        _ => None,
    })
}

#[test]
fn a_mark_that_comes_while_a_file_settles_is_removed_in_the_end() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 100);
    assert_eq!(settles(&story.tell(Event::Drained { job: 1, outcome: Ok(()) })), Some(false));
    story.write(1, 0, 100);
    story.now += story.grants.settings.mark_after_ns;
    assert_eq!(story.tell(Event::Tick), [Action::Mark { file: 1 }], "setting the times takes long");
    assert_eq!(drains(&story.tell(Event::Settled { file: 1 })), [(2, 0, 100)]);
    assert_eq!(settles(&story.tell(Event::Drained { job: 2, outcome: Ok(()) })), Some(true));
}

#[test]
fn the_mark_of_a_dead_daemon_is_removed_by_the_next() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 100);
    story.grants = Grants::recover(Settings::new(MIB), story.grants.records());
    let begun = drains(&story.tell(Event::Opened { file: 1, device: 1, inode: 1, path: Vec::new() }));
    let [(job, 0, 100)] = begun[..] else { panic!("{begun:?}") };
    assert_eq!(settles(&story.tell(Event::Drained { job, outcome: Ok(()) })), Some(true));
}

#[test]
fn a_reader_keeps_what_it_reads_even_when_it_is_drained_and_replaced() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 100);
    let read = story.request(2, Request::Read { file: 1, offset: 10, bytes: 1000 });
    let [(2, Answer::Cached { end: 100, known_to: 1010, parts })] = &answers(&read)[..] else { panic!("{read:?}") };
    assert_eq!((parts[0].offset, parts[0].bytes), (10, 90));
    story.tell(Event::Drained { job: 1, outcome: Ok(()) });
    story.tell(Event::Left { client: 1 });
    assert_eq!(story.grants.used_bytes(), PAGE_BYTES, "it is kept for the reader");
    story.tell(Event::Released { client: 2 });
    assert_eq!(story.grants.used_bytes(), 0);
}

#[test]
fn a_file_is_cut_off_after_what_is_being_written_and_nothing_overtakes_it() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 200);
    assert_eq!(story.request(2, Request::SetBytes { file: 1, bytes: 50 }), [], "a drain is under way");
    let range = story.ask(3, 100).unwrap();
    assert_eq!(story.fill(3, 0, range.start, 100), [], "it waits");
    assert_eq!(story.request(4, Request::Read { file: 1, offset: 0, bytes: 9 }), []);
    let next = story.tell(Event::Drained { job: 1, outcome: Ok(()) });
    assert_eq!(next, [Action::Truncate { file: 1, bytes: 50 }]);
    let next = story.tell(Event::Truncated { file: 1, outcome: Ok(()) });
    let told: Vec<ClientId> = answers(&next).iter().map(|(client, _)| *client).collect();
    assert_eq!(told, [2, 3, 4], "in the order in which they asked");
    assert_eq!(drains(&next), [(2, 0, 100)]);
}

#[test]
fn a_failed_drain_keeps_the_bytes_is_reported_and_is_tried_again() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 100);
    assert_eq!(story.request(2, Request::Drain { file: 1 }), []);
    let next = story.tell(Event::Drained { job: 1, outcome: Err(FULL) });
    let failure = NodeFailure { serial: 1, errno: FULL };
    assert_eq!(next, [Action::Reply { client: 2, failure, answer: Answer::Failed(FULL) }]);
    assert_eq!(story.grants.figures().files[&1].errno, Some(FULL));
    story.now = story.grants.poll_timeout().unwrap().0;
    assert_eq!(story.tell(Event::Tick), [Action::Mark { file: 1 }], "that comes first");
    story.now = story.grants.poll_timeout().unwrap().0;
    assert_eq!(drains(&story.tell(Event::Tick)), [(2, 0, 100)]);
    story.tell(Event::Drained { job: 2, outcome: Err(FULL) });
    // Who asks does not wait for the time.
    assert_eq!(drains(&story.request(2, Request::Drain { file: 1 })), [(3, 0, 100)]);
    story.tell(Event::Drained { job: 3, outcome: Ok(()) });
    let last = story.tell(Event::Settled { file: 1 });
    assert_eq!(answers(&last), [(2, Answer::Done)]);
    assert_eq!(story.grants.failure_of(1), NodeFailure { serial: 2, errno: 0 });
    assert!(story.grants.figures().files.is_empty());
}

#[test]
fn a_drain_waits_for_what_has_replaced_what_was_written_before_it() {
    let mut story = Story::new(MIB);
    story.write(1, 100_000, 10);
    story.write(1, 0, 10);
    assert_eq!(story.request(2, Request::Drain { file: 1 }), []);
    story.write(3, 0, 20);
    assert_eq!(drains(&story.tell(Event::Drained { job: 1, outcome: Ok(()) })), [(2, 0, 20)]);
    let next = story.tell(Event::Drained { job: 2, outcome: Ok(()) });
    assert_eq!(answers(&next), [], "its times are not set yet");
    assert_eq!(answers(&story.tell(Event::Settled { file: 1 })), [(2, Answer::Done)]);
}

#[test]
fn a_drain_waits_for_what_has_replaced_what_failed() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 100);
    story.request(2, Request::DrainAll);
    story.write(3, 0, 100);
    let next = story.tell(Event::Drained { job: 1, outcome: Err(FULL) });
    assert_eq!(answers(&next), [(2, Answer::Failed(FULL))], "it is not in the file");
}

#[test]
fn a_failure_of_what_was_cut_off_is_over() {
    let mut story = Story::new(MIB);
    story.write(1, 100, 100);
    story.tell(Event::Drained { job: 1, outcome: Err(FULL) });
    assert_eq!(story.grants.failure_of(1).errno, FULL);
    story.request(1, Request::SetBytes { file: 1, bytes: 50 });
    story.tell(Event::Truncated { file: 1, outcome: Ok(()) });
    assert_eq!(story.grants.failure_of(1), NodeFailure { serial: 1, errno: 0 });
    assert!(story.grants.figures().files.is_empty());
}

#[test]
fn a_dead_client_loses_only_what_it_has_not_filled() {
    let mut story = Story::new(MIB);
    let range = story.ask(1, 8 * PAGE_BYTES).unwrap();
    story.fill(1, 0, range.start, 100);
    story.tell(Event::Left { client: 1 });
    assert_eq!(story.grants.used_bytes(), PAGE_BYTES);
    assert_eq!(story.grants.figures().filled_bytes, 100);
}

#[test]
fn too_many_pieces_make_writers_wait() {
    let mut story = Story::new(MIB);
    story.grants.settings.pieces_max = 3;
    let range = story.ask(1, 10 * PAGE_BYTES).unwrap();
    for nth in 0..3 {
        assert_eq!(answers(&story.fill(1, nth * 10, range.start + nth * 10, 10)).len(), 1);
    }
    assert_eq!(answers(&story.fill(1, 30, range.start + 30, 10)), []);
    let next = story.tell(Event::Drained { job: 1, outcome: Ok(()) });
    assert_eq!(answers(&next).len(), 1);
}

#[test]
fn a_grant_is_at_most_sixteen_mebibytes_and_less_when_memory_is_short() {
    let mut story = Story::new(64 * MIB);
    assert_eq!(story.ask(1, 100 * MIB).map(|range| range.end - range.start), Some(GRANT_BYTES_MAX));
    story.tell(Event::Limit { bytes: 17 * MIB });
    story.tell(Event::Touched { to: 17 * MIB });
    assert_eq!(story.ask(2, 100 * MIB).map(|range| range.end - range.start), Some(MIB));
    assert_eq!(story.ask(3, 1), None, "nothing is left");
    let returned = story.tell(Event::Returned { client: 2, range: 16 * MIB..17 * MIB });
    assert_eq!(answers(&returned), [(3, Answer::Granted(16 * MIB..16 * MIB + PAGE_BYTES))]);
}

#[test]
fn one_greedy_client_and_seven_modest_ones_get_the_same_share() {
    let mut story = Story::new(32 * MIB);
    let ask = |client: ClientId| Request::Ask { file: 1, bytes: if client == 1 { GRANT_BYTES_MAX } else { MIB } };
    let (mut got, mut offset) = ([0; 9], 0);
    // Everybody always wants more, and fills at once what is granted. The file system is slow: a
    // drain ends only when all others wait for memory.
    let mut todo: VecDeque<Action> = (1..=8).flat_map(|client| story.request(client, ask(client))).collect();
    let mut slow = VecDeque::new();
    while got.iter().sum::<u64>() < 2 << 30 {
        let Some(action) = todo.pop_front().or_else(|| slow.pop_front()) else { panic!("nothing goes on: {got:?}") };
        match action {
            Action::Reply { client, answer: Answer::Granted(range), .. } if !range.is_empty() => {
                let bytes = range.end - range.start;
                got[client as usize] += bytes;
                todo.extend(story.fill(client, offset, range.start, bytes));
                offset += bytes;
            }
            Action::Reply { client, .. } => todo.extend(story.request(client, ask(client))),
            Action::Settle { file, .. } => todo.extend(story.tell(Event::Settled { file })),
            Action::Drain { job, .. } if todo.is_empty() => {
                todo.extend(story.tell(Event::Drained { job, outcome: Ok(()) }));
            }
            other => slow.push_back(other),
        }
    }
    let (least, most) = (got[1..].iter().min().unwrap(), got[1..].iter().max().unwrap());
    assert!(most - least <= 2 * GRANT_BYTES_MAX, "{got:?}");
}

#[test]
fn memory_that_is_free_is_given_back() {
    let mut story = Story::new(64 * PAGE_BYTES);
    story.write(1, 0, PIECE_BYTES_MAX);
    let actions = story.tell(Event::Short);
    let given: u64 = actions
        .iter()
        .map(|action| match action {
            Action::GiveBack { range } => range.end - range.start,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(given, 64 * PAGE_BYTES - PIECE_BYTES_MAX);
    assert_eq!(story.grants.touched_bytes(), PIECE_BYTES_MAX);
}

#[test]
fn a_state_that_is_written_and_read_again_is_the_same() {
    let mut story = Story::new(MIB);
    story.write(1, 0, 70_000);
    story.write(2, 1000, 50);
    story.request(3, Request::SetTimes { file: 1, accessed_ns: Some(4), modified_ns: None });
    story.ask(4, 5000);
    let records = story.grants.records();
    let again = Grants::recover(Settings::new(MIB), records.clone());
    again.check().unwrap();
    assert_eq!(again.damaged_records(), 0);
    assert_eq!(again.records(), records);
    assert_eq!(again.granted_to(4), story.grants.granted_to(4));
    assert_eq!(again.used_bytes(), story.grants.used_bytes());
    let nonsense = records.iter().cloned().chain(records.iter().cloned());
    let damaged = Grants::recover(Settings::new(2 * PAGE_BYTES), nonsense);
    assert!(damaged.damaged_records() > 0, "records about memory that is not there are ignored");
}

#[test]
fn what_was_being_touched_when_the_limit_was_lowered_is_given_back() {
    let mut grants = Grants::new(Settings::new(1 << 30));
    grants.handle(Timestamp(0), Event::Limit { bytes: 4 << 20 });
    grants.handle(Timestamp(0), Event::Touched { to: 40 << 20 });
    let actions: Vec<_> = std::iter::from_fn(|| grants.poll()).collect();
    assert_eq!(actions, [Action::GiveBack { range: 0..40 << 20 }]);
    grants.handle(Timestamp(0), Event::Touched { to: 4 << 20 });
    assert_eq!((grants.poll(), grants.touched_bytes()), (None, 4 << 20));
}

const HOLD: HoldSettings = HoldSettings { quiet_ns: 1000, most_ns: 10_000, bytes: MIB };

#[test]
fn draining_waits_while_programs_write_and_not_for_long() {
    let mut story = Story::held(16 * MIB, HOLD);
    let mut drained_at = None;
    for nth in 0..40 {
        story.write(1, nth * PAGE_BYTES, PAGE_BYTES);
        if story.grants.held_until().is_none() {
            drained_at = Some(story.now);
            break;
        }
        let due = story.grants.poll_timeout().expect("it is told when it is time").0;
        assert!(due <= story.now + HOLD.quiet_ns, "{due}");
        story.now += HOLD.quiet_ns / 2;
    }
    let drained_at = drained_at.expect("draining begins although somebody writes");
    assert!((HOLD.most_ns..HOLD.most_ns + 2000).contains(&drained_at), "{drained_at}");
    // It goes on until everything is drained; then the next burst is held again.
    let mut job = 1;
    while !drains(&story.tell(Event::Drained { job, outcome: Ok(()) })).is_empty() {
        job += 1;
    }
    assert_eq!(drains(&story.write(1, MIB, PAGE_BYTES)), []);
    // The times of the file are still being set.
    assert_eq!(drains(&story.tell(Event::Settled { file: 1 })), []);
    let due = story.grants.poll_timeout().unwrap();
    assert!(due.0 < story.now + HOLD.quiet_ns + 5, "{due:?}");
    story.now = due.0;
    assert_eq!(drains(&story.tell(Event::Tick)).len(), 1, "nobody has written for a while");
}

#[test]
fn draining_waits_no_longer_when_something_presses() {
    type Pressing = fn(&mut Story) -> Vec<Action>;
    let pressing: [(&str, Pressing); 7] = [
        ("a drain", |story| story.request(2, Request::Drain { file: 1 })),
        ("a sync", |story| story.request(2, Request::Sync { file: 1 })),
        ("a drain of all", |story| story.request(2, Request::DrainAll)),
        ("much that waits", |story| story.write(2, 8 * MIB, MIB)),
        ("nothing left", |story| story.request(2, Request::Ask { file: 1, bytes: 16 * MIB })),
        ("a machine that runs short", |story| story.tell(Event::Short)),
        ("a lower limit", |story| story.tell(Event::Limit { bytes: 2 * MIB })),
    ];
    for (name, press) in pressing {
        let mut story = Story::held(4 * MIB, HOLD);
        if name == "nothing left" {
            // Nearly all is granted, and not filled.
            story.ask(3, 4 * MIB - 8 * PAGE_BYTES);
        }
        assert_eq!(drains(&story.write(1, 0, PAGE_BYTES)), [], "{name}");
        assert_eq!(drains(&press(&mut story)).len(), 1, "{name}");
    }
}
