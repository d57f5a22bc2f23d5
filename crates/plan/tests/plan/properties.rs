//! Random workloads on random stacks: no layer exceeds its limit, nothing is lost, nothing
//! deadlocks, and prefetches are as early as possible.

use outcrop_plan::{Event, Fault, Order, Refusal};
use proptest::prelude::*;

use crate::world::{Answer, World};

/// Random capacities: 4 to 40 for the front, 4 to 120 for deeper layers.
fn stacks() -> impl Strategy<Value = Vec<u64>> {
    (4u64..40, prop::collection::vec(4u64..120, 0..4)).prop_map(|(front, mut deeper)| {
        deeper.insert(0, front);
        deeper
    })
}

/// Chooses which pending move ends next, from a list of random numbers.
fn picker(numbers: Vec<usize>) -> impl FnMut(usize) -> usize {
    let mut next = 0;
    move |count| {
        next += 1;
        numbers[next % numbers.len()] % count
    }
}

/// How many random workloads each test runs. Default: 500; `PROPTEST_CASES` overrides it.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or_else(|| outcrop_testing::amount(500, 20_000))
}

/// Lets all pending moves end.
fn settle(world: &mut World, pick: &mut dyn FnMut(usize) -> usize) {
    while !world.pending.is_empty() {
        let index = pick(world.pending.len());
        world.end_move(index, None);
    }
}

/// Checks that a save was refused as full only if the stack really was full, apart from room
/// reserved for reading back and gaps that are too small.
fn assert_full(world: &World, stack: &[u64], bytes: u64) {
    let slack = 8 * stack.len() as u64 + 8;
    let total: u64 = stack.iter().sum();
    assert!(world.live_bytes() + bytes + slack > total, "{} of {total} in use", world.live_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn announced_passes_are_served_and_prefetched(
        stack in stacks(),
        sizes in prop::collection::vec(1u64..8, 1..60),
        kind in 0..3,
        shuffle in prop::collection::vec(0usize..1000, 60).no_shrink(),
        numbers in prop::collection::vec(0usize..1000, 1..50),
    ) {
        let mut keys: Vec<u64> = (0..sizes.len() as u64).collect();
        let order = match kind {
            0 => { keys.reverse(); Order::Reverse }
            1 => Order::Forward,
            _ => {
                keys.sort_by_key(|&key| shuffle[key as usize]);
                Order::Schedule(keys.clone())
            }
        };
        let mut world = World::new(&stack, order);
        let mut pick = picker(numbers);
        for (key, &bytes) in (0..).zip(&sizes) {
            match world.save(key, bytes.min(stack[0]), &mut pick) {
                Answer::Lent => {}
                Answer::Refused(Refusal::Full) => assert_full(&world, &stack, bytes),
                answer => panic!("{answer:?}"),
            }
        }
        let live = world.live_keys();
        keys.retain(|key| live.contains(key));
        for (position, &key) in keys.iter().enumerate() {
            let (id, answer) = world.read(key, true, &mut pick);
            prop_assert_eq!(answer, Answer::Handed);
            world.release(id);
            settle(&mut world, &mut pick);
            // No move is pending. If the next snapshot is not in the front, then it cannot have
            // fitted there.
            if let Some(next) = keys[position + 1..].iter().find(|&&next| !world.is_in_front(next)) {
                prop_assert!(world.largest_hole() < world.size(*next), "{} was not prefetched", next);
            }
        }
        prop_assert_eq!(world.live_bytes(), 0);
        prop_assert_eq!(world.planner.used_bytes(0).0, 0);
    }

    #[test]
    fn any_mix_of_calls_is_answered(
        stack in stacks(),
        kind in 0..4,
        calls in prop::collection::vec((0u8..10, 1u64..8, 0usize..1000), 1..150),
        numbers in prop::collection::vec(0usize..1000, 1..50),
    ) {
        let order = match kind {
            0 => Order::Reverse,
            1 => Order::Forward,
            2 => Order::Schedule((0..calls.len() as u64).flat_map(|key| [key, key / 2, key]).collect()),
            _ => Order::Unknown,
        };
        let mut world = World::new(&stack, order);
        let mut pick = picker(numbers);
        let mut held = Vec::new();
        for (key, (call, bytes, which)) in (0..).zip(calls) {
            let live = world.live_keys();
            match call {
                0..4 => match world.save_and_keep(key, bytes.min(stack[0]), call == 3, &mut pick) {
                    (id, Answer::Lent) => held.extend((call == 3).then_some(id)),
                    (_, Answer::Refused(Refusal::Full)) => assert_full(&world, &stack, bytes),
                    (_, Answer::Refused(Refusal::Held)) => prop_assert!(!held.is_empty()),
                    answer => panic!("{answer:?}"),
                },
                4..8 if !live.is_empty() => {
                    let (id, answer) = world.read(live[which % live.len()], call < 6, &mut pick);
                    match answer {
                        Answer::Handed => held.push(id),
                        Answer::Refused(Refusal::Held) => prop_assert!(!held.is_empty()),
                        answer => panic!("{answer:?}"),
                    }
                }
                8 if !live.is_empty() => world.discard(live[which % live.len()]),
                _ => {}
            }
            // The program holds only a few snapshots at a time.
            while held.len() > which % 3 {
                world.release(held.remove(0));
            }
        }
        held.into_iter().for_each(|id| world.release(id));
        for key in world.live_keys() {
            let (id, answer) = world.read(key, true, &mut pick);
            prop_assert_eq!(answer, Answer::Handed);
            world.release(id);
        }
        settle(&mut world, &mut pick);
        for layer in 0..stack.len() {
            prop_assert_eq!(world.planner.used_bytes(layer).0, 0);
        }
    }

    #[test]
    fn faults_lose_nothing_silently(
        stack in stacks(),
        sizes in prop::collection::vec(1u64..8, 1..60),
        faults in prop::collection::vec((0u8..12, 0usize..1000), 1..200),
    ) {
        let mut world = World::new(&stack, Order::Reverse);
        let mut numbers = faults.iter().cycle();
        let mut fail = |world: &mut World| {
            for _ in 0..3 {
                if world.pending.is_empty() { break; }
                let &(kind, which) = numbers.next().unwrap();
                let index = which % world.pending.len();
                let is_from_front = world.pending[index].from.layer == 0;
                let fault = match kind {
                    0 if is_from_front => Some(Fault::TargetFull),
                    1 if is_from_front => Some(Fault::TargetBroken),
                    2 if !is_from_front => Some(Fault::SourceUnreadable),
                    3 if !is_from_front => Some(Fault::SourceDamaged),
                    _ => None,
                };
                world.end_move(index, fault);
            }
        };
        let mut pick = picker(vec![0]);
        for (key, &bytes) in (0..).zip(&sizes) {
            let answer = world.save(key, bytes.min(stack[0]), &mut pick);
            prop_assert!(matches!(answer, Answer::Lent | Answer::Refused(Refusal::Full)));
            fail(&mut world);
        }
        for key in world.live_keys().into_iter().rev() {
            let (id, answer) = world.read(key, true, &mut pick);
            match answer {
                Answer::Handed => world.release(id),
                Answer::Refused(Refusal::Unreadable(_) | Refusal::Damaged(_) | Refusal::Full) => {
                    prop_assert!(world.planner.find(key).is_some(), "a refused snapshot is still there");
                }
                answer => panic!("{answer:?}"),
            }
            fail(&mut world);
        }
    }
}

#[test]
fn a_snapshot_larger_than_the_front_is_refused_at_once() {
    let mut world = World::new(&[10, 100], Order::Reverse);
    assert_eq!(world.save(1, 11, &mut picker(vec![0])), Answer::Refused(Refusal::TooLarge));
    assert!(!world.planner.has_key(1));
    assert_eq!(world.save(1, 10, &mut picker(vec![0])), Answer::Lent);
}

#[test]
fn scattered_room_is_pushed_together() {
    let mut world = World::new(&[12], Order::Unknown);
    let mut pick = picker(vec![0]);
    for key in 0..6 {
        assert_eq!(world.save(key, 2, &mut pick), Answer::Lent);
    }
    for key in [0, 2, 4] {
        world.discard(key);
    }
    assert_eq!(world.largest_hole(), 2);
    assert_eq!(world.save(9, 6, &mut pick), Answer::Lent);
}

#[test]
fn a_program_that_holds_everything_is_told_so_after_a_while() {
    let mut world = World::new(&[4], Order::Unknown);
    let mut pick = picker(vec![0]);
    assert_eq!(world.save(0, 4, &mut pick), Answer::Lent);
    let (id, answer) = world.read(0, true, &mut pick);
    assert_eq!(answer, Answer::Handed);
    assert_eq!(world.save(1, 4, &mut pick), Answer::Refused(Refusal::Held));
    world.release(id);
    assert_eq!(world.save(1, 4, &mut pick), Answer::Lent);
}

#[test]
fn with_another_handle_a_save_waits_for_what_it_may_take() {
    let mut world = World::new(&[4], Order::Unknown);
    let mut pick = picker(vec![0]);
    world.tell(Event::Handles(2));
    assert_eq!(world.save(0, 4, &mut pick), Answer::Lent);
    let id = outcrop_plan::SnapshotId(100);
    world
        .planner
        .handle(outcrop_plan::Timestamp(50), Event::RoomWanted { id, key: 1, bytes: 4, is_copy: true, yields: false });
    assert_eq!(world.planner.poll(), None, "neither lent nor refused");
    assert_eq!(world.planner.poll_timeout(), None);
}

#[test]
fn what_fits_in_the_front_is_not_written_down() {
    let mut world = World::new(&[40, 100], Order::Reverse);
    let mut pick = picker(vec![0]);
    for key in 0..10 {
        world.save(key, 2, &mut pick);
    }
    assert_eq!(world.moves, 0, "half of the front is no reason to drain");
}

#[test]
fn a_refused_reader_does_not_free_what_another_has_claimed() {
    let mut world = World::new(&[4, 40], Order::Unknown);
    let mut pick = picker(vec![0]);
    world.tell(Event::Handles(2));
    for key in 0..4 {
        assert_eq!(world.save(key, 2, &mut pick), Answer::Lent);
    }
    let id = world.planner.find(0).unwrap();
    world.tell(Event::Wanted { id, consume: false });
    world.tell(Event::Wanted { id, consume: true });
    assert_eq!(world.planner.find(0), None, "somebody is about to take it");
    let mut failures = 0;
    while failures < 2 {
        let fetch = world.pending.iter().position(|pending| pending.id == id && pending.to.layer == 0);
        failures += usize::from(fetch.is_some());
        world.end_move(fetch.unwrap_or(0), fetch.map(|_| Fault::SourceDamaged));
    }
    assert_eq!(world.planner.find(0), Some(id), "both were refused, and it is still there");
}

/// What is read last is too large for the layer below; a smaller one sinks instead.
#[test]
fn a_snapshot_that_fits_nowhere_below_does_not_keep_smaller_ones_from_sinking() {
    let mut world = World::new(&[10, 4], Order::Reverse);
    let answers: Vec<_> = (0..).zip([6, 2, 2, 2]).map(|(key, bytes)| world.save(key, bytes, &mut |_| 0)).collect();
    assert_eq!(answers, [Answer::Lent; 4]);
    for key in (0..4).rev() {
        let (id, answer) = world.read(key, true, &mut |_| 0);
        assert_eq!(answer, Answer::Handed);
        world.release(id);
    }
}
