//! `outcrop bench apps`.

use crate::common::{entries, outcrop, text};

#[test]
fn bench_apps_compares_all_ways_of_keeping_a_state() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = ["--scale", "0.004", "--rounds", "1", "--dir", "scratch"];
    let output = outcrop(directory.path(), &[&["bench", "apps", "--json"], &sizes[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["bench"], "apps");
    let programs = ["lu", "crack", "pagerank", "droplet"];
    let of_programs = ["pool_over_memory", "file_over_pool", "restore_speedup"];
    let of_programs = of_programs.iter().flat_map(|key| programs.map(|program| format!("{program}_{key}")));
    let others = ["over_hand_written_lu", "pool_over_memory_mean"].map(str::to_owned);
    for key in of_programs.chain(others) {
        assert!(report["ratios"][&key].as_f64().is_some_and(|ratio| ratio > 0.0), "{key}: {report}");
    }
    let runs = report["runs"].as_array().unwrap();
    for (figure, least) in [("figure 7", 20), ("figure 8", 20), ("figure 11", 16), ("figure 12", 2)] {
        let count = runs.iter().filter(|run| run["part"].as_str().is_some_and(|part| part.contains(figure))).count();
        assert!(count >= least, "{figure}: {count}");
    }
    // Nothing is written where nothing is kept, and something where it is.
    for run in runs.iter().filter(|run| run["kept"].is_string()) {
        let is_kept = !["memory", "nvm"].contains(&run["kept"].as_str().unwrap());
        assert_eq!(run["written_mib"].as_f64().unwrap() > 0.0, is_kept, "{run}");
    }
    assert!(entries(directory.path()).is_empty());
}
