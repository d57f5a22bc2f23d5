//! What each benchmark measures, what its ratios mean, and their target values.

use serde_json::Value;

use super::tables::{self, Table, number};

/// The target of a ratio.
#[derive(Debug, Clone, Copy)]
enum Aim {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::None => true,
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::None => String::new(),
            Self::AtMost(most) => format!("at most {most}{unit}"),
            Self::AtLeast(least) => format!("at least {least}{unit}"),
        }
    }
}

use Aim::{AtLeast, AtMost, None as NoAim};

/// Benchmark, name in the report, meaning, unit, target.
type Ratio = (&'static str, &'static str, &'static str, &'static str, Aim);

#[rustfmt::skip]
const RATIOS: &[Ratio] = &[
    ("tape", "wall_over_no_storing", "wall, save and take, over storing nothing", "", AtMost(1.15)),
    ("tape", "lend_wall_over_no_storing", "wall, lend and take, over storing nothing", "", AtMost(1.15)),
    ("tape", "ring_wall_over_no_storing", "wall, asynchronous ring, over storing nothing", "", NoAim),
    ("tape", "save_over_memcpy", "a save over a copy into touched memory", "", AtMost(1.3)),
    ("tape", "lend_over_memcpy", "a lend over a copy into touched memory", "", NoAim),
    ("tape", "ring_save_over_memcpy", "a save to the ring over a copy into touched memory", "", NoAim),
    ("tape", "ring_blocked_over_tape", "time blocked, ring over tape with save", "", NoAim),
    ("tape", "ring_blocked_over_lend", "time blocked, ring over tape with lend", "", NoAim),
    ("tape", "take_us_prefetched", "take of a prefetched state, median", "µs", AtMost(50.0)),
    ("tape", "take_us_prefetched_p99", "take of a prefetched state, 99th percentile", "µs", NoAim),
    ("tape", "drain_over_direct", "drain rate over sequential O_DIRECT writing", "", AtLeast(0.85)),
    ("tape", "prefetch_over_direct", "prefetch rate over sequential O_DIRECT reading", "", AtLeast(0.85)),
    ("tape", "small_save_us", "a save of 4 KiB, beyond its copy", "µs", AtMost(5.0)),
    ("tape", "small_save_draining_us", "the same while earlier saves drain, without waits", "µs", NoAim),
    ("tape", "rss_over_budget_mib", "memory beyond the program's arrays and the budget", "MiB", AtMost(64.0)),
    ("tape", "disk_bound_wall_over_disk", "nothing computed: wall over the time of the disk", "", AtMost(1.1)),
    ("tape", "disk_bound_ring_over_tape", "nothing computed: wall, ring over tape", "", AtLeast(1.0)),
    ("tape", "disk_bound_direct_over_tape", "nothing computed: wall, O_DIRECT over tape", "", NoAim),
    ("loop", "wall_over_no_storing_1", "one core computes: wall of the whole program, save and take, over storing nothing", "", AtMost(1.12)),
    ("loop", "wall_over_no_storing_all", "all cores compute: the same", "", AtMost(1.2)),
    ("loop", "lend_wall_over_no_storing_1", "one core computes: lend and take, over storing nothing", "", NoAim),
    ("loop", "lend_wall_over_no_storing_all", "all cores compute: the same", "", NoAim),
    ("loop", "copies_wall_over_no_storing_1", "one core computes: copies alone, over storing nothing", "", NoAim),
    ("loop", "copies_wall_over_no_storing_all", "all cores compute: the same", "", NoAim),
    ("loop", "ring_wall_over_tape_1", "one core computes: wall, ring over save and take", "", AtLeast(1.15)),
    ("loop", "ring_wall_over_tape_all", "all cores compute: the same", "", AtLeast(1.15)),
    ("loop", "saves_over_ring_1", "one core computes: time in saves, over the ring's", "", AtMost(0.6)),
    ("loop", "saves_over_ring_all", "all cores compute: the same", "", AtMost(0.6)),
    ("loop", "lends_over_ring_1", "one core computes: time in lends, over the ring's saves", "", AtMost(0.1)),
    ("loop", "lends_over_ring_all", "all cores compute: the same", "", AtMost(0.1)),
    ("loop", "take_us", "a take without copying out, median", "µs", AtMost(50.0)),
    ("loop", "cpu_seconds_per_gb", "processor seconds per GB saved and read back, beyond storing nothing", "s", AtMost(0.3)),
    ("rtm", "wall_over_memory", "wall, tape over fresh memory", "", NoAim),
    ("rtm", "wall_over_compute", "wall over computing, tape", "", NoAim),
    ("rtm", "files_wall_over_tape", "wall, plain files over tape", "", NoAim),
    ("rtm", "synced_files_wall_over_tape", "wall, plain files with fsync over tape", "", NoAim),
    ("rtm", "files_blocked_over_tape", "time blocked, plain files over tape", "", NoAim),
    ("rtm", "points_per_second", "grid points per second, tape", "", NoAim),
    ("alloc", "direct_pin_over_ours_20ms", "direct pin over tape at 20 ms, one process", "", AtLeast(5.0)),
    ("alloc", "direct_pin_over_ours_20ms_most_processes", "the same, most processes", "", NoAim),
    ("alloc", "direct_pin_huge_over_ours_20ms", "direct pin with huge pages over tape at 20 ms", "", NoAim),
    ("alloc", "on_demand_over_ours_20ms", "memory on demand over tape at 20 ms", "", NoAim),
    ("alloc", "incremental_memset_over_ours_20ms", "incremental memset over tape at 20 ms", "", NoAim),
    ("alloc", "ours_over_best_static_max", "tape over the best fixed way, worst case", "", AtMost(1.1)),
    ("alloc", "ours_over_best_static_max_with_huge_pin", "the same with huge pages among the ways", "", NoAim),
    ("alloc", "steady_over_memcpy", "a save when all memory is touched, over the copy alone", "", AtMost(1.05)),
    ("sim", "calm_wall_sim_over_real", "calm: wall, simulated over real", "", NoAim),
    ("sim", "calm_blocked_sim_over_real", "calm: time blocked, simulated over real", "", NoAim),
    ("sim", "busy_wall_sim_over_real", "busy: wall, simulated over real", "", NoAim),
    ("sim", "busy_blocked_sim_over_real", "busy: time blocked, simulated over real", "", NoAim),
    ("sim", "disk_bound_wall_sim_over_real", "disk-bound: wall, simulated over real", "", NoAim),
    ("sim", "disk_bound_blocked_sim_over_real", "disk-bound: time blocked, simulated over real", "", NoAim),
    ("sim", "difference_max", "largest distance of these ratios from 1", "", AtMost(0.3)),
    ("store", "blocked_over_memcpy", "time blocked over a copy into touched memory", "", AtMost(1.3)),
    ("store", "durable_over_direct_write", "rate until durable over O_DIRECT writing and fdatasync", "", AtLeast(0.85)),
    ("store", "restore_over_direct_read", "rate of a restore over O_DIRECT reading", "", AtLeast(0.8)),
    ("increment", "hash_bytes_over_page_bytes", "first program: bytes of a checkpoint, by hashes over by pages", "", AtMost(0.1)),
    ("increment", "slowdown_1pct", "a step that writes 1 % of the pages and saves, over the same without saving", "", AtMost(1.05)),
    ("increment", "tracking_over_rehash_max", "tracking over hashing everything, worst case", "", AtMost(1.1)),
    ("increment", "hash_over_read_bandwidth", "hashing over reading, one core", "", AtLeast(0.7)),
    ("ranks", "idle_ms_per_rank_and_second", "processor time of a rank in a second in which nobody does anything", "ms", NoAim),
    ("ranks", "call_ms_per_rank_and_second", "the same while it waits in a call", "ms", NoAim),
    ("ranks", "version_ms_per_rank_and_second", "the same while it waits for a version of another rank", "ms", NoAim),
    ("ranks", "metadata_ops_per_rank_256_over_4", "metadata operations of a rank for a version, on average: 256 simulated ranks over 4", "", AtMost(4.0)),
    ("ranks", "pmpi_latency", "a message of 8 bytes, through the layer that reports what is received over past it", "", AtMost(1.03)),
    ("ranks", "pmpi_latency_later", "the same with MPI_Irecv and MPI_Wait", "", AtMost(1.03)),
    ("ranks", "pmpi_bandwidth", "a message of 1 MiB, the same", "", AtMost(1.01)),
    ("pool", "compute_over_dram_max", "computing in a pool over plain memory, worst case", "", AtMost(1.1)),
    ("pool", "array_over_dram", "the same: arrays, worst case", "", AtMost(1.1)),
    ("pool", "tree_over_dram", "the same: an octree over a tree of boxes", "", AtMost(1.1)),
    ("pool", "graph_over_dram", "the same: a graph over CSR in vectors", "", AtMost(1.1)),
    ("pool", "bytes_over_changed_1pct", "bytes written over bytes changed, 1 % changed", "", AtMost(2.0)),
    ("pool", "file_over_persist_1pct", "writing a whole file and fsync over persisting, 1 % changed", "", NoAim),
    ("pool", "redb_over_persist_1pct", "redb, changed blocks and a commit, over persisting, 1 % changed", "", NoAim),
    ("pool", "pmemobj_full_over_ours", "pmemobj's transaction over persisting, all changed, tmpfs", "", AtLeast(2.0)),
    ("pool", "pmemobj_1pct_over_ours", "the same, 1 % changed", "", AtLeast(1.0)),
    ("pool", "per_element_longest_over_shortest", "persisting a changed element in the longest array over the shortest", "", AtMost(1.1)),
    ("pool", "restore_speedup", "reading and rebuilding from a file over opening a pool", "", AtLeast(10.0)),
    ("pool", "over_hand_written_lu", "LU in a pool over LU with versions written by hand", "", AtMost(1.05)),
    ("apps", "over_hand_written_lu", "LU in a pool over LU with versions written by hand", "", AtMost(1.05)),
    ("apps", "pool_over_memory_mean", "time in a pool over plain memory, mean of the programs", "", NoAim),
    ("apps", "lu_pool_over_memory", "LU: time in a pool over plain memory", "", NoAim),
    ("apps", "crack_pool_over_memory", "crack: the same", "", NoAim),
    ("apps", "pagerank_pool_over_memory", "PageRank: the same", "", NoAim),
    ("apps", "droplet_pool_over_memory", "droplet: the same", "", NoAim),
    ("apps", "lu_file_over_pool", "LU: time with checkpoint files over a pool", "", NoAim),
    ("apps", "crack_file_over_pool", "crack: the same", "", NoAim),
    ("apps", "pagerank_file_over_pool", "PageRank: the same", "", NoAim),
    ("apps", "droplet_file_over_pool", "droplet: the same", "", NoAim),
    ("apps", "lu_restore_speedup", "LU: until a restored state is ready, file over pool", "", NoAim),
    ("apps", "crack_restore_speedup", "crack: the same", "", NoAim),
    ("apps", "pagerank_restore_speedup", "PageRank: the same; with files, the links are made again", "", NoAim),
    ("apps", "droplet_restore_speedup", "droplet: the same", "", NoAim),
    ("node", "client_over_memcpy", "bandwidth of client writes of 4 MiB and more over copies to touched memory", "", AtLeast(0.8)),
    ("node", "burst_over_plain_write", "bandwidth of a burst that fits over plain writes", "", AtLeast(2.0)),
    ("node", "overflow_over_plain_write", "bandwidth of a burst of four times the memory over plain writes", "", AtLeast(0.9)),
    ("node", "small_file_over_native", "time to make, write and close a small file below a mount over the same without", "", AtMost(2.0)),
    ("node", "drain_over_direct", "rate of writing and draining a burst over O_DIRECT", "", AtLeast(0.85)),
    ("interval", "no_model_over_ours", "wall, persisting each iteration over our rule", "", AtLeast(1.0)),
    ("interval", "paper_rule_over_ours", "wall, the paper's rule over ours", "", AtLeast(1.0)),
    ("interval", "no_model_over_paper_rule", "wall, persisting each iteration over the paper's rule (there: 1.18)", "", NoAim),
    ("interval", "ours_over_no_failures", "wall, our rule over a run without failures and versions", "", NoAim),
    ("python", "call_overhead_us", "a save or take of 4 KiB, beyond a NumPy copy", "µs", AtMost(10.0)),
    ("python", "dcp_default_over_ours", "blocked by dcp.async_save with its default stager, over Store.save", "", AtLeast(5.0)),
    ("python", "rtm_blocked_over_copy", "forward and backward pass: blocked over copying, save", "", AtMost(1.3)),
    ("python", "rtm_lend_blocked_over_copy", "the same, lend", "", NoAim),
    ("python", "rtm_numpy_save_over_ours", "forward and backward pass: blocked, numpy.save over tape", "", NoAim),
    ("python", "state_blocked_over_copy", "blocked by Store.save over a NumPy copy of the state", "", NoAim),
];

/// The ratios of a report with their meanings and targets, in the order of the list above. Others
/// follow under their own names.
pub(super) fn table(bench: &str, report: &Value) -> Table {
    let heads = ["ratio", "measured", "aim", ""].map(str::to_owned).into();
    let known = RATIOS.iter().filter(|ratio| ratio.0 == bench);
    let mut rows = Vec::new();
    for &(_, key, meaning, unit, aim) in known.clone() {
        let Some(value) = report["ratios"][key].as_f64() else { continue };
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        let verdict = match (aim, aim.is_met(value)) {
            (NoAim, _) => "",
            (_, true) => "met",
            (_, false) => "missed",
        };
        rows.push(vec![meaning.to_owned(), format!("{}{unit}", amount(value)), aim.text(&unit), verdict.to_owned()]);
    }
    let is_known = |key: &str| known.clone().any(|ratio| ratio.1 == key);
    for (key, value) in report["ratios"].as_object().into_iter().flatten().filter(|(key, _)| !is_known(key)) {
        if let Some(value) = value.as_f64() {
            rows.push(vec![format!("`{key}`"), amount(value), String::new(), String::new()]);
        }
    }
    Table { heads, rows }
}

/// Formats large numbers in words.
fn amount(value: f64) -> String {
    if value >= 1e6 { format!("{} million", number(value / 1e6)) } else { number(value) }
}

/// A setting, for people.
fn count(settings: &Value, key: &str) -> String {
    settings[key].as_f64().map_or_else(|| "?".to_owned(), |value| format!("{value}"))
}

fn bytes(settings: &Value, key: &str) -> String {
    settings[key].as_u64().map_or_else(|| "?".to_owned(), tables::bytes)
}

/// Describes a benchmark, with the sizes that were used.
pub(super) fn describe(bench: &str, settings: &Value) -> String {
    let count = |key: &str| count(settings, key);
    let bytes = |key: &str| bytes(settings, key);
    let snapshot = bytes("snapshot_bytes");
    let (host, state) = (bytes("host_bytes"), bytes("state_bytes"));
    match bench {
        "tape" => format!(
            "A forward and a backward pass with every way of keeping the states: {} in states of {snapshot}, {host} of \
             host memory, {} ms of arithmetic between two states. Ways that come close to each other have several \
             rounds: the best counts, and the range is in brackets. *Disk-bound* ways compute nothing.",
            bytes("total_bytes"),
            settings["compute_ms"].as_f64().map_or_else(|| "?".to_owned(), number),
        ),
        "loop" => format!(
            "A stencil in three dimensions, bound by memory, forward and backward: {} states of {state}, {host} of host \
             memory, {} sweeps over the field between two states. From the first line of the program to the last, with \
             opening, closing and removing files. Medians of {} rounds, in each of which the ways run in another order; \
             the range is in brackets. O_DIRECT and files have one round.",
            count("states"),
            count("sweeps"),
            count("rounds"),
        ),
        "rtm" => format!(
            "The migration of `outcrop demo` with every way of keeping its snapshots: {} shots, {} snapshots each, {host} \
             of host memory for the tape, {} compute threads. One round.",
            count("shots"),
            count("snapshots_per_shot"),
            count("threads"),
        ),
        "alloc" => format!(
            "What a short program pays to start: it makes a buffer of {host} and fills it with snapshots of {snapshot}, \
             with arithmetic in between. The time blocked includes starting. The best of {} rounds counts; the range is \
             in brackets.",
            count("rounds"),
        ),
        "sim" => format!(
            "The simulator against reality: {} states of {snapshot} on a tape with {host} of host memory, really run and \
             simulated with the rates of a survey. *Calm* leaves the disk enough time, *busy* half of that, *disk-bound* \
             none. The best of {} rounds counts.",
            count("snapshots"),
            count("rounds"),
        ),
        "store" => format!(
            "Checkpoints of {state}: medians of {} rounds, with the range in brackets. All memory is touched before. \
             O_DIRECT has rows for several sizes of a request; the ratios use the fastest.",
            count("rounds"),
        ),
        "increment" => format!(
            "Two programs with {state} of memory. The first rewrites all of it with mostly equal values, the second \
             changes all of it. Then the slowdown of a program that saves, the cost of finding what has changed, and the \
             rate of hashing.",
        ),
        "ranks" => format!(
            "Processes of this machine, each a rank of one store with {state} of its own: the time to come together and to \
             save, and the processor time of ranks that wait for {} s, altogether and each. Then simulated ranks.",
            count("seconds"),
        ),
        "python" => {
            "`python -m outcrop bench`: calls with 4 KiB, a state that has changed everywhere, and a forward and \
                     backward pass. The best of several rounds counts."
                .to_owned()
        }
        "node" => format!(
            "The bandwidth that each rank perceives when it writes {} in a burst: plainly, with fsync, through the client \
             of the node daemon, and below a mount of it. All memory is touched before, and each burst fits. Medians of {} \
             rounds.",
            bytes("burst_bytes"),
            count("rounds"),
        ),
        _ => describe_pools(bench, settings),
    }
}

/// The same for the benchmarks of pools.
fn describe_pools(bench: &str, settings: &Value) -> String {
    let count = |key: &str| count(settings, key);
    let state = bytes(settings, "state_bytes");
    match bench {
        "pool" => format!(
            "An array of {state} in a pool, in plain memory, in files, in redb and in a pool of pmemobj: medians of {} rounds, \
             interleaved. All memory is touched before. pmemobj is made to believe that files are persistent memory, which \
             is emulation.",
            count("rounds"),
        ),
        "apps" => format!(
            "Four scientific programs (LU decomposition, a crack, PageRank, a droplet on an octree) whose state is in plain \
             memory, in emulated non-volatile memory, in checkpoint files, in a pool, and in a pool on emulated \
             non-volatile memory: medians of {} rounds, in which the ways take turns.",
            count("rounds"),
        ),
        "interval" => format!(
            "A program with {state} in a pool that fails every {} s on average and goes on with its newest version: {} \
             iterations of {} ms, with up to five times as much added, each of which changes a tenth of the state. The \
             sum of {} rounds. All ways have the same sequence of times between failures, another one in each round.",
            count("mtbf_seconds"),
            count("steps"),
            count("compute_ms"),
            count("rounds"),
        ),
        _ => String::new(),
    }
}
