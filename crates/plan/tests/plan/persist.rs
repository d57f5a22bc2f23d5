//! Stacks whose snapshots have to reach every layer.

use outcrop_plan::{
    Action, Event, Fault, LayerSettings, Order, Planner, Preference, Refusal, Settings, Site, SnapshotId, Timestamp,
};

const LAYERS: usize = 3;

fn planner(front: u64) -> Planner {
    let layers = [front, 1 << 40, 1 << 40].map(LayerSettings::new).to_vec();
    let settings = Settings { persists: true, preference: Preference::Fixed, ..Settings::new(layers, Order::Unknown) };
    let mut planner = Planner::new(settings);
    tell(&mut planner, Event::Handles(2));
    planner
}

fn tell(planner: &mut Planner, event: Event) -> Vec<Action> {
    planner.handle(Timestamp(0), event);
    std::iter::from_fn(|| planner.poll()).collect()
}

fn save(planner: &mut Planner, id: u64, bytes: u64) -> Vec<Action> {
    let id = SnapshotId(id);
    let mut actions = tell(planner, Event::RoomWanted { id, key: id.0, bytes, is_copy: false, yields: false });
    if actions.iter().any(|action| matches!(action, Action::Lend { .. })) {
        actions.extend(tell(planner, Event::Sealed { id, keep: false }));
    }
    actions
}

fn moves(actions: &[Action]) -> Vec<(u64, usize, usize)> {
    let of_move = |action: &Action| match action {
        Action::Move { id, from: Site { layer: from, .. }, to: Site { layer: to, .. }, .. } => Some((id.0, *from, *to)),
        _ => None,
    };
    actions.iter().filter_map(of_move).collect()
}

fn moved(planner: &mut Planner, id: u64, from: usize, to: usize) -> Vec<Action> {
    tell(planner, Event::Moved { id: SnapshotId(id), from, to })
}

#[test]
fn everything_goes_everywhere_the_oldest_first() {
    let mut planner = planner(100);
    assert_eq!(moves(&save(&mut planner, 1, 10)), [(1, 0, 1), (1, 0, 2)], "although there is room");
    assert_eq!(moves(&save(&mut planner, 2, 10)), [(2, 0, 1), (2, 0, 2)]);
    for (id, layer) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        assert_eq!(moves(&moved(&mut planner, id, 0, layer)), [], "each goes once");
    }
    assert_eq!((1..LAYERS).map(|layer| planner.used_bytes(layer).0).collect::<Vec<_>>(), [20, 20]);
    assert!(planner.is_in_front(SnapshotId(1)), "what has arrived stays in the front until the room is needed");
}

#[test]
fn what_has_left_the_front_goes_on_from_where_it_is() {
    let mut planner = planner(30);
    save(&mut planner, 1, 20);
    moved(&mut planner, 1, 0, 1);
    let failed = Event::Failed { id: SnapshotId(1), from: 0, to: 2, fault: Fault::TargetBroken };
    assert_eq!(moves(&tell(&mut planner, failed)), [], "that layer is spared this one");
    let actions = save(&mut planner, 2, 20);
    assert!(actions.contains(&Action::Evict { id: SnapshotId(1), layer: 0 }), "one layer that has it is enough");
    assert_eq!(moves(&actions), [(2, 0, 1), (2, 0, 2)], "and the layer that failed gets the next one");
}

#[test]
fn a_snapshot_that_no_layer_takes_fills_the_front_until_it_is_discarded() {
    let mut planner = planner(30);
    save(&mut planner, 1, 20);
    for to in 1..LAYERS {
        let fault = if to == 1 { Fault::TargetFull } else { Fault::TargetBroken };
        assert_eq!(moves(&tell(&mut planner, Event::Failed { id: SnapshotId(1), from: 0, to, fault })), []);
    }
    assert_eq!(save(&mut planner, 2, 20), [], "it waits, and nothing is tried again");
    let actions = tell(&mut planner, Event::Discarded(SnapshotId(1)));
    assert!(actions.iter().any(|action| matches!(action, Action::Lend { id, .. } if *id == SnapshotId(2))));
    let refused =
        tell(&mut planner, Event::RoomWanted { id: SnapshotId(3), key: 3, bytes: 31, is_copy: false, yields: false });
    assert_eq!(refused, [Action::Refuse { id: SnapshotId(3), consume: false, why: Refusal::TooLarge }]);
}

#[test]
fn who_does_not_wait_any_more_is_forgotten() {
    let mut planner = planner(30);
    let room = |key, bytes| Event::RoomWanted { id: SnapshotId(key), key, bytes, is_copy: false, yields: false };
    save(&mut planner, 1, 20);
    assert_eq!(tell(&mut planner, room(2, 30)), []);
    assert_eq!(tell(&mut planner, room(3, 10)), [], "first come, first served");
    let withdrawn = |key| Event::Withdrawn { id: SnapshotId(key), consume: false };
    assert_eq!(tell(&mut planner, withdrawn(2)), [Action::Lend { id: SnapshotId(3), at: 20 }]);
    assert!(!planner.has_key(2) && planner.has_key(3));
    // A snapshot that was wanted for the last time can be asked for again.
    tell(&mut planner, Event::Sealed { id: SnapshotId(3), keep: false });
    for layer in 1..LAYERS {
        moved(&mut planner, 1, 0, layer);
        moved(&mut planner, 3, 0, layer);
    }
    tell(&mut planner, room(4, 30));
    tell(&mut planner, Event::Wanted { id: SnapshotId(1), consume: true });
    assert_eq!(planner.find(1), None);
    tell(&mut planner, Event::Withdrawn { id: SnapshotId(1), consume: true });
    assert_eq!(planner.find(1), Some(SnapshotId(1)));
}

#[test]
fn a_slot_can_become_shorter_while_it_is_filled() {
    let mut planner = planner(100);
    let id = SnapshotId(1);
    let lent = tell(&mut planner, Event::RoomWanted { id, key: 1, bytes: 90, is_copy: false, yields: false });
    assert_eq!(lent, [Action::Lend { id, at: 0 }]);
    assert_eq!(
        tell(&mut planner, Event::RoomWanted { id: SnapshotId(2), key: 2, bytes: 60, is_copy: false, yields: false }),
        []
    );
    let actions = tell(&mut planner, Event::Shortened { id, bytes: 30 });
    assert_eq!(actions, [Action::Lend { id: SnapshotId(2), at: 30 }], "the rest is for others at once");
    assert_eq!((planner.bytes(id), planner.used_bytes(0).0), (30, 90));
    let sealed = tell(&mut planner, Event::Sealed { id, keep: false });
    assert!(matches!(&sealed[0], Action::Move { to, .. } if to.extents[0].end - to.extents[0].start == 30));
    tell(&mut planner, Event::Abandoned(SnapshotId(2)));
    (1..LAYERS).for_each(|layer| drop(moved(&mut planner, 1, 0, layer)));
    tell(&mut planner, Event::Discarded(id));
    assert_eq!((0..LAYERS).map(|layer| planner.used_bytes(layer).0).sum::<u64>(), 0);
}

/// A front of 100 bytes above one layer that keeps bytes, with a limit.
fn keeping(limit: u64) -> Planner {
    let keeping = LayerSettings { keeps: true, ..LayerSettings::new(limit) };
    let layers = vec![LayerSettings::new(100), keeping];
    let settings = Settings { persists: true, ..Settings::new(layers, Order::Unknown) };
    let mut planner = Planner::new(settings);
    tell(&mut planner, Event::Handles(2));
    planner
}

#[test]
fn what_a_layer_keeps_counts_until_somebody_removes_it() {
    let mut planner = keeping(25);
    tell(&mut planner, Event::Kept { layer: 1, bytes: 5 });
    assert_eq!(moves(&save(&mut planner, 1, 20)), [(1, 0, 1)]);
    moved(&mut planner, 1, 0, 1);
    tell(&mut planner, Event::Discarded(SnapshotId(1)));
    assert_eq!(
        (planner.used_bytes(1), planner.kept_bytes(1)),
        ((25, 25), Some(25)),
        "it is forgotten, and still there"
    );
    let left_out = Action::LeaveOut { id: SnapshotId(2), layer: 1 };
    assert_eq!(save(&mut planner, 2, 20).last(), Some(&left_out));
    assert_eq!(tell(&mut planner, Event::Kept { layer: 1, bytes: 0 }), [], "what was left out is not tried again");
    assert_eq!(moves(&save(&mut planner, 3, 20)), [(3, 0, 1)]);
}

#[test]
fn what_did_not_arrive_is_not_kept() {
    let mut planner = keeping(25);
    save(&mut planner, 1, 20);
    tell(&mut planner, Event::Failed { id: SnapshotId(1), from: 0, to: 1, fault: Fault::TargetBroken });
    assert_eq!(planner.used_bytes(1).0, 0);
    assert_eq!(moves(&save(&mut planner, 2, 20)), [(2, 0, 1)]);
}

#[test]
fn moves_under_way_count_against_a_limit_and_eviction_makes_no_room() {
    let mut planner = keeping(30);
    assert_eq!(moves(&save(&mut planner, 1, 20)), [(1, 0, 1)]);
    assert!(save(&mut planner, 2, 20).contains(&Action::LeaveOut { id: SnapshotId(2), layer: 1 }));
    moved(&mut planner, 1, 0, 1);
    let actions = save(&mut planner, 3, 20);
    assert!(!actions.iter().any(|action| matches!(action, Action::Evict { layer: 1, .. })), "{actions:?}");
    assert!(actions.contains(&Action::LeaveOut { id: SnapshotId(3), layer: 1 }));
    assert_eq!(planner.used_bytes(1), (20, 20));
}

#[test]
fn a_layer_without_a_limit_takes_everything() {
    for capacity_bytes in [None, Some(u64::MAX)] {
        for keeps in [false, true] {
            let below = LayerSettings { capacity_bytes, keeps, ..LayerSettings::unlimited() };
            let settings = Settings::new(vec![LayerSettings::new(20), below], Order::Reverse);
            let mut planner = Planner::new(Settings { persists: keeps, ..settings });
            tell(&mut planner, Event::Handles(1));
            tell(&mut planner, Event::Kept { layer: 1, bytes: u64::MAX / 4 });
            for id in 0..100 {
                let actions = save(&mut planner, id, 10);
                let lent = actions.iter().any(|action| matches!(action, Action::Lend { .. }));
                assert!(lent && !actions.iter().any(|action| matches!(action, Action::LeaveOut { .. })), "{actions:?}");
                for (id, from, to) in moves(&actions) {
                    moved(&mut planner, id, from, to);
                }
            }
        }
    }
}
