//! The program from a user's view: its output, its files, and its exit codes.

use crate::common::{entries, outcrop, text};

const SMALL: &str = "model = 'layers'\npoints = [90, 60]\nduration = 0.8\nshots = 2\nboundary = 15\n";

#[test]
fn help_tells_the_whole_story() {
    let directory = tempfile::tempdir().unwrap();
    let help = text(&outcrop(directory.path(), &["--help"]).stdout);
    for word in ["demo", "rtm", "bench", "survey", "sim", "Exit codes", "OUTCROP_LOG"] {
        assert!(help.contains(word), "{word} is not in {help}");
    }
    assert_eq!(outcrop(directory.path(), &["nonsense"]).status.code(), Some(2));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let directory = tempfile::tempdir().unwrap();
    let output = outcrop(directory.path(), &["man", "man1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let help = text(&outcrop(directory.path(), &["--help"]).stdout);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<_> = commands.filter_map(|line| line.trim().split(' ').next()).collect();
    assert!(commands.contains(&"ls") && !commands.contains(&"man"), "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let page = std::fs::read_to_string(directory.path().join(format!("man1/outcrop-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
    }
    let page = std::fs::read_to_string(directory.path().join("man1/outcrop.1")).unwrap();
    assert!(page.contains("Exit codes") && page.contains("outcrop\\-ls(1)"), "{page}");
}

#[test]
fn what_is_installed_works_and_has_its_manual() {
    let prefix = tempfile::tempdir().unwrap();
    crate::install::put_program(env!("CARGO_BIN_EXE_outcrop").as_ref(), prefix.path()).unwrap();
    let output = std::process::Command::new(prefix.path().join("bin/outcrop")).arg("--version").output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains(env!("CARGO_PKG_VERSION")));
    let pages = entries(&prefix.path().join("share/man/man1"));
    assert!(pages.contains(&"outcrop.1".to_owned()) && pages.contains(&"outcrop-verify.1".to_owned()), "{pages:?}");
    // A program that writes none is an error, and not an installation without a manual.
    assert!(crate::install::put_program("/bin/false".as_ref(), prefix.path()).is_err());
}

#[test]
fn nobody_who_stops_reading_is_told_of_a_panic() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_outcrop"));
    let mut child = child.args(["sim", "list"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

#[test]
fn a_migration_leaves_what_was_asked_for_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("small.toml"), SMALL).unwrap();
    let arguments =
        ["rtm", "--config", "small.toml", "--host", "100 KiB", "--npy", "image.npy", "--trace", "trace.json", "--json"];
    let output = outcrop(directory.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(entries(directory.path()), ["image.npy", "rtm.png", "small.toml", "trace.json"]);
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(outcome["stats"]["layers"][1]["read_bytes"].as_u64().unwrap() > 0, "the disk layer worked: {outcome}");
    let trace = std::fs::read_to_string(directory.path().join("trace.json")).unwrap();
    assert!(trace.contains("\"drain\"") && trace.contains("\"prefetch\""));
    let npy = std::fs::read(directory.path().join("image.npy")).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY") && npy.len() == 128 + 90 * 60 * 4, "{}", npy.len());
}

#[test]
fn the_demonstration_compares_with_plain_files() {
    let directory = tempfile::tempdir().unwrap();
    let output = outcrop(directory.path(), &["demo", "--shots", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for words in ["plain files", "blocked: saving", "I/O hidden behind computing", "same to the last bit"] {
        assert!(printed.contains(words), "{words} is not in {printed}");
    }
    assert_eq!(entries(directory.path()), ["rtm.png"]);
}

#[test]
fn bad_input_is_explained_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("typo.toml"), "shot = 3").unwrap();
    std::fs::write(path.join("small.toml"), SMALL).unwrap();
    std::fs::write(path.join("file"), "").unwrap();
    let before = entries(path);
    let cases: [(&[&str], i32, &str); 5] = [
        (&["rtm", "--config", "none.toml"], 1, "none.toml"),
        (&["rtm", "--config", "typo.toml"], 10, "shots"),
        (&["rtm", "--config", "small.toml", "--dir", "file/x"], 17, "file/x"),
        (&["rtm", "--config", "small.toml", "--host", "4 KiB"], 13, "more host memory"),
        (&["rtm", "--config", "small.toml", "--host", "64 KiB", "--dir-size", "64 KiB"], 14, "raise a limit"),
    ];
    for (arguments, code, words) in cases {
        let output = outcrop(path, arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert_eq!(entries(path), before, "{arguments:?}");
    }
}

#[test]
fn the_benchmark_of_beginnings_runs_every_way_in_processes_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let arguments =
        ["bench", "alloc", "--json", "--host", "64 MiB", "--snapshot", "4 MiB", "--gaps", "0,2", "--rounds", "1"];
    let output = outcrop(directory.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["direct_pin_over_ours_20ms", "ours_over_best_static_max", "steady_over_memcpy"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 7 * 2 * 2, "seven ways, two gaps, one and two processes");
    let ours = runs.iter().find(|run| run["way"].as_str().is_some_and(|way| way.starts_with("outcrop, 1")));
    assert!(
        ours.is_some_and(|run| run["details"]["reason"].is_string()),
        "the choice and its reason are there: {runs:?}"
    );
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn the_simulator_is_compared_with_reality() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--host", "16 MiB", "--snapshot", "2 MiB", "--snapshots", "16"];
    let output = outcrop(directory.path(), &[&["bench", "sim", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"].as_array().unwrap().len(), 6);
    for key in ["calm_wall_sim_over_real", "disk_bound_blocked_sim_over_real", "difference_max"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn benchmarks_report_every_ratio() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--total", "48 MiB", "--snapshot", "1 MiB", "--host", "8 MiB", "--compute-ms", "1"];
    let output = outcrop(directory.path(), &[&["bench", "tape", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "tape");
    assert!(report["machine"]["cores"].as_u64().unwrap() > 0);
    for key in [
        "wall_over_no_storing",
        "save_over_memcpy",
        "take_us_prefetched",
        "drain_over_direct",
        "prefetch_over_direct",
        "small_save_us",
        "rss_over_budget_mib",
        "disk_bound_wall_over_disk",
    ] {
        assert!(report["ratios"][key].is_number(), "{key} is missing");
    }
    assert!(report["runs"].as_array().unwrap().len() >= 13);
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn the_benchmark_of_a_loop_compares_whole_programs() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--side", "24", "--states", "12", "--host", "256 KiB", "--sweeps", "2", "--rounds", "2"];
    let output = outcrop(directory.path(), &[&["bench", "loop", "--json"], &sizes[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    for run in runs {
        // Closing is a part of the program, and computing takes a processor.
        assert!(run["wall_seconds"].as_f64() > run["close_seconds"].as_f64(), "{run}");
        assert!(run["cpu_seconds"].as_f64() > Some(0.0), "{run}");
    }
    for key in ["wall_over_no_storing_1", "ring_wall_over_tape_1", "cpu_seconds_per_gb", "take_us"] {
        assert!(report["ratios"][key].is_number(), "{key}: {report}");
    }
    assert!(entries(directory.path()).is_empty(), "nothing is left");
    let output = outcrop(directory.path(), &["bench", "loop", "--side", "4"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("from 8 to 2048 points"), "{output:?}");
}

#[test]
fn the_benchmark_of_stores_compares_checkpoints_with_copies_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let output = outcrop(directory.path(), &["bench", "store", "--json", "--size", "8 MiB", "--rounds", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "store");
    for key in ["blocked_over_memcpy", "durable_over_direct_write", "restore_over_direct_read"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    let runs = report["runs"].as_array().unwrap();
    for (part, count) in [("blocked", 5), ("durable", 4), ("restore", 5), ("other saves", 10)] {
        assert_eq!(runs.iter().filter(|run| run["part"] == part).count(), count, "{part}");
    }
    let written = |name: &str| {
        let run = runs.iter().find(|run| run["way"].as_str().is_some_and(|way| way.starts_with(name)));
        run.and_then(|run| run["written_mib"].as_f64()).unwrap()
    };
    assert!(written("incremental, 1%") < 0.1 * written("live"), "only what has changed is written: {runs:?}");
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn the_benchmark_of_ranks_measures_what_waiting_costs() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--counts", "2,3", "--simulated", "4,256", "--saves", "2", "--seconds", "0.2", "--turns", "2"];
    let small = ["--size", "4 MiB"];
    let output = outcrop(directory.path(), &[&["bench", "ranks", "--json"], &sizes[..], &small].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "ranks");
    let runs = report["runs"].as_array().unwrap();
    // Three kinds of messages, past and through the layer, where there is an MPI.
    let messages = if report["ratios"]["pmpi_latency"].is_number() { 6 } else { 0 };
    // Four of ranks whose versions other nodes keep.
    assert_eq!(runs.len(), 12 + 4 + messages + 4, "{runs:?}");
    assert!(
        ["parity_wall_over_none", "rebuild_over_copy"].iter().all(|key| report["ratios"][key].is_number()),
        "{report}"
    );
    assert!(report["ratios"]["metadata_ops_per_rank_256_over_4"].as_f64().unwrap() >= 1.0, "{report}");
    let has = |run: &serde_json::Value| run["takes_seconds"].is_number() || run["cpu_ms_per_second"].is_number();
    assert!(runs.iter().all(has), "{runs:?}");
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn bench_pool_compares_with_memory_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--size", "1 MiB", "--rounds", "3", "--dir", "scratch", "--lengths", "10000,100000"];
    let output = outcrop(directory.path(), &[&["bench", "pool", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "pool");
    let ratios = report["ratios"].as_object().unwrap();
    let skipped = report["settings"]["skipped"].to_string();
    let expected = [
        "bytes_over_changed_1pct",
        "compute_over_dram_max",
        "file_over_persist_1pct",
        "graph_over_dram",
        "over_hand_written_lu",
        "per_element_longest_over_shortest",
        "pmemobj_1pct_over_ours",
        "pmemobj_full_over_ours",
        "redb_over_persist_1pct",
        "restore_speedup",
        "tree_over_dram",
    ];
    for key in expected.into_iter().filter(|key| !key.starts_with("pmemobj") || !skipped.contains("pmemobj")) {
        assert!(ratios.contains_key(key), "{key}: {ratios:?}, skipped {skipped}");
    }
    // Bytes are counted, not timed.
    assert!(ratios["bytes_over_changed_1pct"].as_f64().unwrap() < 8.0, "a block of 32 KiB, for 10 KiB: {ratios:?}");
    for file_system in ["ext4", "xfs"].into_iter().filter(|name| !skipped.contains(name)) {
        let of_it = |run: &&serde_json::Value| run["file_system"] == file_system && run["changed_percent"] == 10.0;
        assert!(report["runs"].as_array().unwrap().iter().filter(of_it).count() >= 3, "{file_system}: {report}");
    }
    assert!(ratios.values().all(|ratio| ratio.as_f64().is_some_and(|ratio| ratio > 0.0)), "{ratios:?}");
    assert!(entries(directory.path()).is_empty(), "nothing is left");
}

#[test]
fn bench_interval_runs_a_program_that_fails_with_every_rule() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--size", "1 MiB", "--steps", "60", "--mtbf", "0.1", "--rounds", "1", "--dir", "scratch"];
    let output = outcrop(directory.path(), &[&["bench", "interval", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "interval");
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4, "{runs:?}");
    assert!(runs[1]["versions"].as_u64().unwrap() >= 60 - runs[1]["failures"].as_u64().unwrap(), "{runs:?}");
    assert_eq!(runs[0]["versions"], 0);
    for key in ["no_model_over_ours", "paper_rule_over_ours"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{}", report["ratios"]);
    }
    for wrong in [["--mtbf", "0"], ["--mtbf", "-1"], ["--mtbf", "NaN"], ["--compute-ms", "NaN"], ["--steps", "0"]] {
        let output = outcrop(directory.path(), &["bench", "interval", wrong[0], wrong[1], "--dir", "scratch"]);
        assert!(!output.status.success(), "{wrong:?}");
        assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    }
    assert!(entries(directory.path()).is_empty(), "nothing is left");
}

#[test]
fn a_model_is_trained_and_a_pool_can_use_it() {
    let directory = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let usual = ["model", "train", "--quick", "--calls", "100", "--dir", "scratch", "--output", "here.model"];
        outcrop(directory.path(), &[&usual, more].concat())
    };
    let output = train(&["--json", "--samples", "calls.csv"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["learned_calls"].as_u64().unwrap() + report["held_out_calls"].as_u64().unwrap(), 100);
    assert!(report["relative_absolute_error_percent"].as_f64().unwrap() > 0.0);
    let samples = std::fs::read_to_string(directory.path().join("calls.csv")).unwrap();
    assert_eq!(samples.lines().count(), 101);
    // Arrays, trees and graphs, of which each has what only that kind has.
    let column = |name: &str| samples.lines().next().unwrap().split(',').position(|it| it == name).unwrap();
    let rows: Vec<Vec<f64>> =
        samples.lines().skip(1).map(|row| row.split(',').map(|it| it.parse().unwrap()).collect()).collect();
    for (kind, only) in [(0.0, "dimensions"), (1.0, "depth"), (1.0, "fanout"), (2.0, "degree")] {
        let of_kind = rows.iter().filter(|row| row[column("kind")] == kind);
        // A call counts as that of the structure of which most has changed.
        assert!(of_kind.clone().count() >= 5, "{kind}");
        assert!(of_kind.clone().all(|row| row[column(only)] > 0.0), "{only}");
    }
    let options = outcrop::pool::Options::versions(2).model(directory.path().join("here.model"));
    outcrop::pool::Pool::open(directory.path().join("a.pool"), options).unwrap();
    let refused = train(&[]);
    assert_eq!(refused.status.code(), Some(11), "{}", text(&refused.stderr));
    let shown = train(&["--force"]);
    assert!(text(&shown.stdout).contains("relative absolute error"), "{}", text(&shown.stdout));
    let few = outcrop(directory.path(), &["model", "train", "--calls", "3", "--output", "b.model", "--dir", "scratch"]);
    assert!(text(&few.stderr).contains("at least"), "{}", text(&few.stderr));
    assert!(!directory.path().join("scratch").exists() && !directory.path().join("b.model").exists());
}

#[test]
fn the_benchmark_of_increments_repeats_the_experiment() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--size", "8 MiB", "--checkpoints", "2", "--compute-ms", "5", "--looks", "2", "--rounds", "1"];
    let output = outcrop(directory.path(), &[&["bench", "increment", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "increment");
    for key in ["slowdown_1pct", "tracking_over_rehash_max", "hash_over_read_bandwidth"] {
        assert!(report["ratios"][key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    // This one is counted, not timed.
    let share = report["ratios"]["hash_bytes_over_page_bytes"].as_f64().unwrap();
    assert!(share > 0.05 && share <= 0.10, "one of 16 rows changes, and all are written: {share}");
    let runs = report["runs"].as_array().unwrap();
    for (part, count) in [("programs", 8), ("slowdown", 4), ("tracking", 7), ("hashing", 10)] {
        assert_eq!(runs.iter().filter(|run| run["part"] == part).count(), count, "{part}");
    }
    let atoms = runs.iter().find(|run| run["way"] == "atoms (LAMMPS), hash-based").unwrap();
    assert!(atoms["less_percent"].as_f64().unwrap() < 5.0, "all of it changes: {atoms}");
    assert!(entries(directory.path()).is_empty());
}

/// Figure 2 of the paper on hashes. `device` skips the test where there is no OpenCL.
#[test]
fn the_benchmark_of_hashes_measures_the_processor_and_devices_and_draws_them() {
    if outcrop_testing::device::device().is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["bench", "increment", "--hash", "--json", "--size", "4 MiB", "--output", "plots"];
    let output = outcrop(directory.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let has_all = |keys: &[&str]| {
        let has =
            |run: &&serde_json::Value| keys.iter().all(|key| run[format!("{key}_gb_per_second")].as_f64() > Some(0.0));
        runs.iter().filter(has).count()
    };
    assert_eq!(has_all(&["xxh3_one", "xxh3_all", "blake3_one", "blake3_all", "md5_one", "md5_all"]), 9, "block sizes");
    let on_devices = has_all(&["xxh3_device", "xxh3_in_place", "md5_device", "md5_in_place"]);
    assert!(on_devices >= 9 && on_devices.is_multiple_of(9), "{on_devices}");
    assert!(runs.iter().any(|run| run["part"].as_str().is_some_and(|part| part.starts_with("opencl 0"))));
    assert!(std::fs::metadata(directory.path().join("plots/increment-hash.png")).unwrap().len() > 10_000);
    assert_eq!(entries(directory.path()), ["plots"]);
    let output = outcrop(directory.path(), &["bench", "increment", "--output", "plots"]);
    assert!(!output.status.success() && text(&output.stderr).contains("--hash"), "{}", text(&output.stderr));
}

#[test]
fn benchmarks_are_refused_where_there_is_no_room() {
    let directory = tempfile::tempdir().unwrap();
    for bench in ["store", "increment"] {
        for (size, words) in [("512 TiB", "smaller --size"), ("2 EiB", "less than a PiB"), ("1000 KiB", "whole MiB")] {
            let output = outcrop(directory.path(), &["bench", bench, "--size", size]);
            assert!(!output.status.success(), "{bench} of {size}");
            assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
        }
    }
    assert!(entries(directory.path()).is_empty());
}

#[test]
fn all_benchmarks_give_one_page_and_a_failed_one_loses_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let all = ["bench", "all", "--tiny", "--output", "docs", "--only", "alloc,tape,store"];
    let output = outcrop(path, &[&all[..], &["--python", "/bin/false"]].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("1 of 4 benchmarks failed: python"), "{said}");
    assert!(said.contains("benchmark 3 of 4: store"), "{said}");
    assert_eq!(entries(path), ["docs"], "scratch is removed");
    assert_eq!(entries(&path.join("docs")), ["measured", "measured.md"]);
    let files = ["alloc.png", "results.json", "store.png", "tape.png"];
    assert_eq!(entries(&path.join("docs/measured")), files);
    let page = std::fs::read_to_string(path.join("docs/measured.md")).unwrap();
    for words in
        ["\n## alloc\n", "\n## store\n", "failed:** exit status: 1", "| store: save returns |", "| kernel | Linux "]
    {
        assert!(page.contains(words), "{words} is not in {page}");
    }
    let results = std::fs::read_to_string(path.join("docs/measured/results.json")).unwrap();
    assert!(!results.contains(path.to_str().unwrap()), "nobody else has this directory: {results}");
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    assert_eq!(results["benches"][2]["report"]["bench"], "store");
    assert!(results["benches"][3]["error"].is_string() && results["benches"][3]["report"].is_null());
}

#[test]
fn all_benchmarks_are_refused_before_the_first_where_they_cannot_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("file"), "").unwrap();
    let cases = [("file/x", "scratch", "file/x"), ("docs", "file/y", "file/y")];
    for (docs, scratch, words) in cases {
        let output = outcrop(path, &["bench", "all", "--tiny", "--output", docs, "--dir", scratch]);
        assert!(!output.status.success() && text(&output.stderr).contains(words), "{}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("benchmark 1"), "{}", text(&output.stderr));
    }
}

#[test]
fn peers_are_measured_by_the_python_package_or_it_is_said_how_to_get_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let python = directory.path().join("python");
    let peers = |script: &str, arguments: &[&str]| {
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outcrop"));
        command.args(["bench", "peers"]).args(arguments).env("OUTCROP_PYTHON", &python);
        command.current_dir(directory.path()).output().unwrap()
    };
    let started = peers("#!/bin/sh\nprintf '<%s>' \"$@\"\n", &["--quick", "--dir", "a b", "--venv", "v"]);
    let expected = "<-m><outcrop><bench><--peers><--quick><--dir><a b><--plot><outcrop-peers.png><--venv><v>";
    assert_eq!((started.status.code(), text(&started.stdout)), (Some(0), expected.to_owned()));
    let refused = peers("#!/bin/sh\nexit 1\n", &[]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("pip install bindings/python"));
    std::fs::remove_file(&python).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outcrop"));
    let missing = command.args(["bench", "peers"]).env("OUTCROP_PYTHON", &python).output().unwrap();
    assert!(!missing.status.success() && text(&missing.stderr).contains("OUTCROP_PYTHON"));
}
