//! Sample results, and the page generated from them.

use serde_json::json;

use super::*;

fn canned() -> Results {
    let machine =
        Machine { cores: 2, memory_bytes: 8 << 30, kernel: "6.1".to_owned(), processor: "A processor".to_owned() };
    let run =
        |way: &str, wall: f64, blocked: f64| json!({"way": way, "wall_seconds": wall, "blocked_seconds": blocked});
    let mut save = run("tape, save", 10.5, 0.43);
    save["wall_seconds_rounds"] = json!([10.5, 11.25]);
    let tape = json!({
        "settings": {"total_bytes": 6u64 << 30, "snapshot_bytes": 32 << 20, "host_bytes": 1 << 30, "compute_ms": 26.04},
        "runs": [run("no storing", 10.2, 0.0), save, run("tape, lend", 10.0, 0.04),
                 run("asynchronous ring", 9.4, 0.91), run("files", 27.3, 18.0)],
        "ratios": {"wall_over_no_storing": 1.03, "take_us_prefetched": 64.0, "new_ratio": 7.0, "not_a_number": null},
    });
    let start = |way: &str, processes: usize, gap: f64, blocked: f64| {
        json!({"way": format!("{way}, {processes} at a time, {gap} ms"), "name": way, "processes": processes,
               "gap_ms": gap, "blocked_seconds": blocked, "blocked_seconds_rounds": [blocked]})
    };
    let alloc = json!({
        "settings": {"host_bytes": 4u64 << 30, "snapshot_bytes": 32 << 20, "rounds": 3},
        "runs": [start("direct pin", 1, 0.0, 1.46), start("outcrop", 1, 0.0, 0.59), start("direct pin", 1, 20.0, 1.58),
                 start("outcrop", 1, 20.0, 0.27), start("direct pin", 2, 0.0, 1.76), start("outcrop", 2, 0.0, 1.58)],
        "ratios": {"direct_pin_over_ours_20ms": 5.9},
    });
    let line = |part: &str, way: &str, ms: f64| json!({"part": part, "way": way, "ms_median": ms});
    let store = json!({
        "settings": {"state_bytes": 1 << 30, "rounds": 5},
        "runs": [line("blocked", "store: save returns", 131.0), line("blocked", "memcpy", 122.0),
                 line("durable", "store: save and wait", 548.0),
                 line("durable", "O_DIRECT write and fdatasync, 1 MiB at a time", 600.0),
                 line("durable", "O_DIRECT write and fdatasync, 16 MiB at a time", 482.0)],
        "ratios": {"blocked_over_memcpy": 1.07, "durable_over_direct_write": 0.88},
    });
    let entry = |bench: &str, report: Value| Entry {
        bench: bench.to_owned(),
        seconds: 30.0,
        report: Some(report),
        error: None,
    };
    let failed = Entry {
        bench: "rtm".to_owned(),
        seconds: 30.0,
        report: None,
        error: Some("exit status: 17; outcrop: scratch: No space left on device".to_owned()),
    };
    Results {
        date: "2026-11-17T19:00:00Z".to_owned(),
        version: "0.1.0, commit abc1234".to_owned(),
        machine,
        file_system: Some("ext4".to_owned()),
        sizes: "full".to_owned(),
        benches: vec![entry("tape", tape), failed, entry("alloc", alloc), entry("store", store)],
    }
}

#[test]
fn the_page_says_when_where_and_with_what() {
    let page = markdown(&canned(), "measured");
    for line in [
        "| date | 2026-11-17T19:00:00Z |",
        "| Outcrop | 0.1.0, commit abc1234 |",
        "| processor | A processor, 2 cores |",
        "| memory | 8.0 GiB |",
        "| file system | ext4 |",
        "| sizes | full |",
        "| duration | 2.00 minutes |",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let is_prose = |line: &&str| !line.starts_with(['|', '!']);
    assert!(page.lines().filter(is_prose).all(|line| line.chars().count() <= 100), "{page}");
}

#[test]
fn runs_ratios_and_aims_are_tables() {
    let page = markdown(&canned(), "measured");
    for line in [
        "| way | wall | blocked |",
        "| tape, save | 10.5 s (10.5 to 11.2) | 0.43 s |",
        "| wall, save and take, over storing nothing | 1.03 | at most 1.15 | met |",
        "| take of a prefetched state, median | 64.0 µs | at most 50 µs | missed |",
        "| `new_ratio` | 7.00 | | |",
        "| 1 at a time: blocked, milliseconds between saves | 0 | 20 |",
        "| outcrop | 0.59 s | 0.27 s |",
        "| 2 at a time: blocked, milliseconds between saves | 0 |",
        "| durable | median |",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("not_a_number"), "{page}");
}

#[test]
fn the_summary_compares_with_the_fastest_alternative() {
    let page = markdown(&canned(), "measured");
    for line in [
        "| tape, wall: save and take | 10.5 s | nothing stored: 10.2 s | 1.03 |",
        "| tape, wall: save and take | 10.5 s | plain files: 27.3 s | 0.38 |",
        "| tape, blocked: lend and take | 0.040 s | asynchronous ring: 0.91 s | 0.044 |",
        "| store: save is durable | 548 ms | O_DIRECT and fdatasync: 482 ms | 1.14 |",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("store: restore, verified"), "what was not measured is left out");
}

#[test]
fn a_failure_is_reported_and_loses_nothing() {
    let results = canned();
    assert_eq!(results.failed(), ["rtm"]);
    let page = markdown(&results, "measured");
    let (_, failed) = page.split_once("\n## rtm\n").unwrap();
    let failed = failed.split("\n## ").next().unwrap();
    assert!(failed.contains("No space left on device"), "{failed}");
    assert!(page.contains("\n## tape\n") && page.contains("\n## store\n"));
}

#[test]
fn plots_are_drawn_for_what_was_measured() {
    let results = canned();
    let names: Vec<_> = plots(&results).into_iter().map(|plot| plot.bench).collect();
    assert_eq!(names, ["tape", "alloc", "store"]);
    let page = markdown(&results, "measured");
    for name in names {
        assert_eq!(page.matches(&format!("](measured/{name}.png)")).count(), 1, "{page}");
    }
    let directory = tempfile::tempdir().unwrap();
    for plot in plots(&results) {
        outcrop_sim::draw(&plot.chart, &plot.bench, &plot.title, directory.path()).unwrap();
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
}

#[test]
fn results_survive_a_round_trip() {
    let text = serde_json::to_string(&canned()).unwrap();
    let read: Results = serde_json::from_str(&text).unwrap();
    assert_eq!(markdown(&read, "measured"), markdown(&canned(), "measured"));
}

#[test]
fn a_pool_has_one_panel_for_each_file_system() {
    let run = |file_system: &str, way: &str, percent: f64, ms: f64| json!({"part": file_system, "way": way, "file_system": file_system, "changed_percent": percent, "ms_median": ms});
    let report = json!({
        "settings": {"state_bytes": 1 << 20, "rounds": 3},
        "runs": [json!({"part": "compute", "way": "pool", "ms_median": 1.0}),
                 run("tmpfs", "pool: change and persist", 1.0, 0.4), run("tmpfs", "whole file", 1.0, 28.0),
                 run("tmpfs", "pool: change and persist", 100.0, 65.0), run("tmpfs", "whole file", 100.0, 42.0),
                 run("xfs", "pool: change and persist", 1.0, 10.0), run("xfs", "whole file", 1.0, 59.0)],
        "ratios": {},
    });
    let entry = Entry { bench: "pool".to_owned(), seconds: 1.0, report: Some(report), error: None };
    let plots = plots(&Results { benches: vec![entry], ..canned() });
    assert_eq!(plots.len(), 1);
    let titles: Vec<_> = plots[0].chart.panels.iter().map(|panel| panel.title.as_str()).collect();
    assert_eq!(titles, ["tmpfs", "xfs"]);
    assert!(plots[0].chart.panels.iter().all(|panel| panel.is_log));
}
