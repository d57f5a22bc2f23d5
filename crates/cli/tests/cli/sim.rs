//! `outcrop sim` from a user's view.

use std::{path::Path, process::Output};

use crate::common::{outcrop, text};

fn sim(directory: &Path, arguments: &[&str]) -> Output {
    outcrop(directory, &[&["sim"], arguments].concat())
}

#[test]
fn a_figure_is_a_table_with_the_papers_headline_and_a_plot() {
    let directory = tempfile::tempdir().unwrap();
    let output = sim(directory.path(), &["4b", "--quick", "--output", "plots"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    for word in ["gap_ms", "direct allocation", "less_than_direct_max", "paper", "0.76", "4b.png"] {
        assert!(printed.contains(word), "{word} is not in {printed}");
    }
    assert!(directory.path().join("plots/4b.png").metadata().unwrap().len() > 1000);
}

#[test]
fn json_is_one_object_and_leaves_no_plot() {
    let directory = tempfile::tempdir().unwrap();
    let output = sim(directory.path(), &["6a", "--quick", "--json"]);
    let figure: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figure["figure"], "6a");
    assert!(figure["headline"]["ours"]["direct_pin_over_ours_8_processes"].as_f64().unwrap() > 20.0, "{figure}");
    assert_eq!(figure["headline"]["paper"]["direct_pin_over_ours_8_processes"], 27.8);
    assert_eq!(figure["rows"].as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_list_names_every_figure() {
    let directory = tempfile::tempdir().unwrap();
    let output = sim(directory.path(), &["list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|entry| entry["figure"].as_str().unwrap()).collect();
    let caches = ["3b", "3c", "4a", "4b", "4c", "5a", "5b", "5c", "6a", "6b", "6c"];
    let buffers = ["mlbs-2", "mlbs-3", "mlbs-4", "mlbs-5"];
    assert_eq!(names, [&caches[..], &buffers[..]].concat());
    assert!(text(&sim(directory.path(), &["list"]).stdout).contains("mlbs-5"));
}

#[test]
fn seeds_are_tried_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let output = sim(directory.path(), &["fuzz", "--seeds", "50", "--start", "7", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&outcome["start"], &outcome["commit"]["tried"]["seeds"]), (&7.into(), &50.into()));
    assert!(
        outcome["plan"]["failure"].is_null() && outcome["plan"]["tried"]["events"].as_u64().unwrap() > 1000,
        "{outcome}"
    );
    assert!(text(&sim(directory.path(), &["fuzz", "--seeds", "5"]).stdout).contains("no violation"));
}

#[test]
fn a_machine_of_ones_own_is_used_and_nonsense_in_it_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let model = include_str!("../../../sim/machines/dgx-a100.toml");
    let faster = model.replace("map_bytes_per_second = 1250e9", "map_bytes_per_second = 2500e9");
    std::fs::write(directory.path().join("faster.toml"), faster).unwrap();
    let output = sim(directory.path(), &["4a", "--quick", "--json", "--machine", "faster.toml"]);
    let figure: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figure["rows"][0]["gb_per_second"], 2500.0);
    let broken = model.replace("map_bytes_per_second = 1250e9", "map_bytes_per_second = -1.0");
    std::fs::write(directory.path().join("broken.toml"), broken).unwrap();
    let output = sim(directory.path(), &["4a", "--machine", "broken.toml"]);
    assert_eq!(output.status.code(), Some(10));
    assert!(text(&output.stderr).contains("device.map_bytes_per_second = -1"), "{}", text(&output.stderr));
    let output = sim(directory.path(), &["4a", "--machine", "absent.toml"]);
    assert!(text(&output.stderr).contains("absent.toml"), "{}", text(&output.stderr));
}

#[test]
fn wrong_names_and_places_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = sim(directory.path(), &["7z"]);
    assert_eq!(output.status.code(), Some(10));
    assert!(text(&output.stderr).contains("mlbs-4"), "{}", text(&output.stderr));
    assert_eq!(sim(directory.path(), &[]).status.code(), Some(2));
    std::fs::write(directory.path().join("file"), "").unwrap();
    let output = sim(directory.path(), &["4a", "--quick", "--output", "file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("choose another --output"), "{}", text(&output.stderr));
}

#[test]
fn this_machine_is_simulated_from_its_survey() {
    let directory = tempfile::tempdir().unwrap();
    let missing = sim(directory.path(), &["here"]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("outcrop survey"), "{}", text(&missing.stderr));
    let surveyed = outcrop(directory.path(), &["survey", "."]);
    assert!(surveyed.status.success(), "{}", text(&surveyed.stderr));
    let output = sim(directory.path(), &["here", "--json", "--quick"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figure: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figure["figure"], "here");
    assert!(figure["rows"].as_array().unwrap().len() >= 4);
    let gain = figure["headline"]["ours"]["no_buffering_over_ours_all_gaps"].as_f64().unwrap();
    assert!(gain > 1.0, "buffers must pay on any machine: {figure}");
}
