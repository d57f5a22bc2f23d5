//! Simulations whose result can be computed by hand, and groups of nodes.

use outcrop_plan::Touching;
use outcrop_sim::{Approach, Error, Experiment, Group, Layer, Machine, Outcome, PlainRates, Turns, Workload, simulate};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// A machine with round numbers: one byte per nanosecond into the directory, two out of it, ten
/// into memory.
fn plain() -> Machine {
    let rates = PlainRates {
        copy_untouched: 10e9,
        copy_touched: 10e9,
        touch: 10e9,
        pin: 100e9,
        directory_write: 1e9,
        directory_read: 2e9,
    };
    Machine::plain("plain", rates, 1 << 30, 1 << 40).unwrap()
}

fn run(host_bytes: u64, workload: Workload) -> Outcome {
    let layers = vec![Layer::host(host_bytes), Layer::storage("directory", 1 << 34)];
    simulate(&Experiment::one_node(plain(), Approach::OURS, layers, vec![workload])).unwrap()
}

#[test]
fn what_fits_into_memory_costs_a_copy() {
    let outcome = run(1 << 30, Workload::uniform(8, 10_000_000, 20 * MS));
    let process = &outcome.processes[0];
    assert_eq!(process.save_blocked_ns, 8 * MS, "10 MB at 10 bytes per nanosecond, eight times");
    assert_eq!(process.take_blocked_ns, 8 * MS);
    assert_eq!(outcome.wall_ns, 16 * 20 * MS + 16 * MS);
    assert!(process.lane_bytes.is_empty());
}

#[test]
fn a_program_that_does_not_compute_is_as_fast_as_the_disk() {
    let (count, bytes) = (200, 10_000_000);
    let outcome = run(100_000_000, Workload { is_copied_back: false, ..Workload::uniform(count, bytes, 0) });
    let process = &outcome.processes[0];
    let down = process.lane_bytes[&(0, 1)] as f64;
    let up = process.lane_bytes[&(1, 0)] as f64;
    assert!(down >= 1.8e9 && up >= 1.8e9, "{process:?}");
    let expected_ns = down / 1.0 + up / 2.0;
    let ratio = outcome.wall_ns as f64 / expected_ns;
    assert!((0.95..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn time_to_compute_hides_the_disk() {
    let gaps =
        |gap_ns| run(100_000_000, Workload { is_copied_back: false, ..Workload::uniform(100, 10_000_000, gap_ns) });
    let (short, long) = (gaps(2 * MS), gaps(12 * MS));
    assert!(short.save_seconds() > 0.5, "{}", short.save_seconds());
    assert!(
        long.save_seconds() < 0.11 && long.take_seconds() < 0.02,
        "{} {}",
        long.save_seconds(),
        long.take_seconds()
    );
}

#[test]
fn no_buffering_waits_for_every_byte() {
    let workload = Workload::uniform(10, 10_000_000, 5 * MS);
    let layers = vec![Layer::storage("directory", 1 << 34)];
    let outcome = simulate(&Experiment::one_node(plain(), Approach::NoBuffering, layers, vec![workload])).unwrap();
    assert_eq!(outcome.processes[0].save_blocked_ns, 100 * MS);
    assert_eq!(outcome.processes[0].take_blocked_ns, 50 * MS);
}

fn dgx(approach: Approach, processes: usize) -> Outcome {
    let machine = Machine::named("dgx-a100").unwrap();
    let layers = vec![Layer::device(1 << 30), Layer::host(8 << 30)];
    let workload = Workload::uniform(64, 128 * MIB, 20 * MS);
    simulate(&Experiment::one_node(machine, approach, layers, vec![workload; processes])).unwrap()
}

#[test]
fn pinning_first_takes_as_long_as_the_paper_says() {
    let copies = 64.0 * (128 * MIB) as f64 / 500e9;
    let alone = dgx(Approach::DirectPin(Turns::Parallel), 1).save_seconds();
    let register = (8u64 << 30) as f64 / 3e9;
    assert!((alone - copies - register).abs() < 0.01, "{alone}");
    // In turn, each process waits for those before it; all at once, each waits for all.
    let parallel = dgx(Approach::DirectPin(Turns::Parallel), 8).save_seconds();
    let serial = dgx(Approach::DirectPin(Turns::Serial), 8).save_seconds();
    assert!((parallel / register - 8.0).abs() < 0.2, "{parallel}");
    assert!((serial / register - 4.5).abs() < 0.2, "{serial}");
}

#[test]
fn all_approaches_bring_everything_back() {
    let touching = [Touching::Never, Touching::Concurrent, Touching::Sequential, Touching::Chosen];
    let turns = [Turns::Serial, Turns::Parallel];
    let adaptive =
        touching.into_iter().flat_map(|touching| turns.map(|pinning| Approach::Adaptive { touching, pinning }));
    let others = [Approach::DirectPin(Turns::Serial), Approach::OnDemand, Approach::IncrementalMemset];
    for approach in adaptive.chain(others) {
        let outcome = dgx(approach, 4);
        assert!(outcome.processes.iter().all(|process| process.wall_ns >= 2 * 64 * 20 * MS), "{approach:?}");
        assert!(outcome.processes[0].lane_bytes[&(0, 1)] > 0, "{approach:?}");
    }
}

/// Nodes that share a file system, in groups.
fn nodes(groups: Vec<Group>) -> Outcome {
    let mut machine = Machine::named("summit").unwrap();
    // So slow that eight nodes compete for it.
    machine.storage[1].write_bytes_per_second = 20e9;
    machine.storage[1].read_bytes_per_second = 12e9;
    let layers = vec![Layer::device(1 << 30), Layer::host(2 << 30), Layer::storage("file-system", 1 << 40)];
    simulate(&Experiment { machine, approach: Approach::OURS, layers, groups, has_timeline: false }).unwrap()
}

fn workloads(start_ns: u64, bytes: u64) -> Vec<Workload> {
    vec![Workload { start_ns, ..Workload::uniform(60, bytes, 30 * MS) }; 6]
}

#[test]
fn nothing_is_read_twice_from_the_slowest_layer() {
    // Everything waits for the file system: a snapshot on its way to host memory must not be read
    // again for the device.
    let outcome = nodes(vec![Group { nodes: 8, workloads: workloads(0, 100 * MIB) }]);
    let process = &outcome.processes[0];
    let read: u64 = process.lane_bytes.iter().filter(|((from, _), _)| *from == 2).map(|(_, bytes)| bytes).sum();
    assert!(read > 0 && read < process.saved_bytes, "{process:?}");
}

#[test]
fn one_node_stands_exactly_for_others_that_do_the_same() {
    let full = nodes(vec![Group { nodes: 1, workloads: workloads(0, 100 * MIB) }; 8]);
    let grouped = nodes(vec![Group { nodes: 8, workloads: workloads(0, 100 * MIB) }]);
    let (full, grouped) = (&full.processes[0], &grouped.processes[0]);
    // Only rounding to nanoseconds may differ.
    let differs = |one: u64, other: u64| one.abs_diff(other) as f64 / one as f64;
    assert!(differs(full.wall_ns, grouped.wall_ns) < 1e-5, "{full:?} {grouped:?}");
    assert!(differs(full.save_blocked_ns, grouped.save_blocked_ns) < 1e-4, "{full:?} {grouped:?}");
    assert!(full.save_blocked_ns > 500 * MS, "they do compete: {full:?}");
}

#[test]
fn a_few_groups_stand_for_nodes_that_are_all_a_little_different() {
    let start = |index: u64| index * 30 * MS / 8;
    let full = nodes((0..8).map(|index| Group { nodes: 1, workloads: workloads(start(index), 100 * MIB) }).collect());
    let grouped =
        nodes((0..4).map(|index| Group { nodes: 2, workloads: workloads(start(2 * index), 100 * MIB) }).collect());
    for (one, other) in [
        (full.wall_seconds(), grouped.wall_seconds()),
        (full.save_seconds(), grouped.save_seconds()),
        (full.take_seconds(), grouped.take_seconds()),
    ] {
        assert!((one / other - 1.0).abs() < 0.03, "{one} in full, {other} in groups");
    }
}

#[test]
fn nonsense_is_refused_before_anything_runs() {
    let refused = |change: fn(&mut Experiment)| {
        let layers = vec![Layer::host(1 << 30), Layer::storage("directory", 1 << 30)];
        let workload = Workload::uniform(4, MIB, 0);
        let mut experiment = Experiment::one_node(plain(), Approach::OURS, layers, vec![workload]);
        change(&mut experiment);
        simulate(&experiment).unwrap_err().to_string()
    };
    assert!(refused(|experiment| experiment.layers.clear()).contains("no layer"));
    assert!(refused(|experiment| experiment.layers[1].capacity_bytes = 0).contains("layer 1 has a capacity of 0"));
    assert!(refused(|experiment| experiment.layers[0] = Layer::device(1)).contains("no device"));
    assert!(refused(|experiment| experiment.layers[1] = Layer::storage("tape robot", 1)).contains("tape robot"));
    assert!(refused(|experiment| drop(experiment.layers.remove(0))).contains("first layer is storage"));
    assert!(refused(|experiment| experiment.groups[0].nodes = 0).contains("at least one node"));
    assert!(refused(|experiment| experiment.groups[0].workloads[0].sizes[2] = 0).contains("size of 0"));
    let crowd = |experiment: &mut Experiment| experiment.groups[0].workloads = vec![Workload::uniform(1, 1, 0); 2];
    assert!(refused(crowd).contains("at most 1 processes"));
    let no_storage = |experiment: &mut Experiment| {
        experiment.layers.truncate(1);
        experiment.approach = Approach::NoBuffering;
    };
    assert!(refused(no_storage).contains("storage at the end"));
}

#[test]
fn a_stack_that_is_too_small_says_so() {
    let layers = vec![Layer::host(64 * MIB), Layer::storage("directory", 64 * MIB)];
    let workload = Workload::uniform(20, 32 * MIB, 0);
    let error = simulate(&Experiment::one_node(plain(), Approach::OURS, layers, vec![workload])).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("more bytes"), "{error}");
}
