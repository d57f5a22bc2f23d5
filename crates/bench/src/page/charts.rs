//! The plots of the page: where the time of each way goes, and what it depends on.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use outcrop_sim::chart::{Chart, Content, Panel, Series};
use serde_json::Value;

use super::{Results, tables::way};

/// A plot of one benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// The benchmark, which is also the name of the file.
    pub bench: String,
    /// What it shows.
    pub title: String,
    /// What to draw.
    pub chart: Chart,
}

/// Makes panels from the runs of a benchmark.
type Panels = fn(&[Value]) -> Vec<Panel>;

/// The plots of all benchmarks that have one.
pub fn plots(results: &Results) -> Vec<Plot> {
    let plot = |(bench, title, panels): (&str, &str, Panels)| {
        let panels = panels(results.report(bench)?["runs"].as_array()?);
        let chart = Chart { panels };
        (!chart.panels.is_empty()).then(|| Plot { bench: bench.to_owned(), title: title.to_owned(), chart })
    };
    let known: [(&str, &str, Panels); 11] = [
        ("tape", "Forward and backward pass: where the time goes", walls),
        ("loop", "A loop that is bound by memory: where the time goes", walls),
        ("rtm", "Reverse time migration: where the time goes", walls),
        ("alloc", "Time blocked of a short program", gaps),
        ("sim", "Really run and simulated: where the time goes", walls),
        ("store", "Checkpoints: medians", medians),
        ("interval", "When to persist: where the time goes", walls),
        ("increment", "The cost of finding what has changed", tracking),
        ("pool", "Until a changed array is durable", persisting),
        ("node", "Bandwidth of writes as each rank perceives it", perceived),
        ("apps", "Scientific programs: time by the way of keeping the state", scaling),
    ];
    known.into_iter().filter_map(plot).collect()
}

fn panel(title: &str, x_label: &str, y_label: &str, content: Content) -> Panel {
    Panel { title: title.to_owned(), x_label: x_label.to_owned(), y_label: y_label.to_owned(), is_log: false, content }
}

/// One bar per way: computing and everything else, then blocked.
fn walls(runs: &[Value]) -> Vec<Panel> {
    let (mut rows, mut spans) = (Vec::new(), Vec::new());
    for run in runs {
        let (Some(wall), Some(blocked)) = (run["wall_seconds"].as_f64(), run["blocked_seconds"].as_f64()) else {
            continue;
        };
        let row = rows.len();
        rows.push(way(run).to_owned());
        spans.push((row, 0, 0.0, (wall - blocked).max(0.0)));
        spans.push((row, 2, (wall - blocked).max(0.0), wall));
    }
    let kinds = ["computing", "", "blocked"].map(str::to_owned).into();
    bars(rows, kinds, spans, "", "seconds")
}

/// One bar per way of each part.
fn medians(runs: &[Value]) -> Vec<Panel> {
    let part = |part: &[Value]| {
        let timed = part.iter().filter_map(|run| Some((way(run), run["ms_median"].as_f64()?)));
        let (rows, times): (Vec<_>, Vec<_>) = timed.map(|(way, ms)| (way.to_owned(), ms)).unzip();
        let kind = |row: &String| if row.starts_with("store") { 2 } else { 0 };
        let spans = rows.iter().zip(times).enumerate().map(|(at, (row, ms))| (at, kind(row), 0.0, ms)).collect();
        let kinds = ["alternative", "", "store"].map(str::to_owned).into();
        bars(rows, kinds, spans, part[0]["part"].as_str().unwrap_or_default(), "milliseconds")
    };
    let compared = runs.chunk_by(|one, other| one["part"] == other["part"]);
    compared.filter(|part| part.iter().any(|run| way(run).starts_with("store"))).flat_map(part).collect()
}

fn bars(
    rows: Vec<String>,
    kinds: Vec<String>,
    spans: Vec<(usize, usize, f64, f64)>,
    title: &str,
    unit: &str,
) -> Vec<Panel> {
    if rows.is_empty() {
        return Vec::new();
    }
    vec![panel(title, unit, "", Content::Timeline { rows, kinds, spans })]
}

/// The time blocked by the gap between saves, with one panel per number of processes.
fn gaps(runs: &[Value]) -> Vec<Panel> {
    let of_processes = |runs: &[Value]| {
        let mut series: Vec<Series> = Vec::new();
        let mut ticks: Vec<String> = Vec::new();
        for run in runs {
            let tick = run["gap_ms"].as_f64().map(|gap| format!("{gap}"))?;
            if ticks.last() != Some(&tick) && !ticks.contains(&tick) {
                ticks.push(tick);
            }
            let (name, blocked) = (way(run), run["blocked_seconds"].as_f64()?);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.values.push(blocked),
                None if name == "outcrop" => series.push(Series::ours(name, vec![blocked])),
                None => series.push(Series::new(name, vec![blocked])),
            }
        }
        let title = format!("{} at a time", runs[0]["processes"]);
        Some(panel(&title, "milliseconds between saves", "seconds blocked", Content::Lines { ticks, series }))
    };
    let cases = runs.chunk_by(|one, other| one["processes"] == other["processes"]);
    cases.filter_map(of_processes).collect()
}

/// The cost of a search by the share of written pages.
fn tracking(runs: &[Value]) -> Vec<Panel> {
    let rows: Vec<&Value> = runs.iter().filter(|run| run["part"] == "tracking").collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let ticks = rows.iter().map(|run| way(run).split(' ').next().unwrap_or_default().to_owned()).collect();
    let values = |key: &str| rows.iter().map(|run| run[key].as_f64().unwrap_or(f64::NAN)).collect::<Vec<_>>();
    let series = vec![
        Series::new("hashing all", values("rehash_ms")),
        Series::new("tracking pages", values("pages_ms")),
        Series::ours("as chosen", values("chosen_ms")),
    ];
    vec![panel("", "share of the pages that were written", "milliseconds", Content::Lines { ticks, series })]
}

/// The plot of `outcrop bench increment --hash`: the rate of hashing by the size of blocks, with
/// one panel per hash.
pub fn hash_plot(runs: &[Value]) -> Plot {
    let sized: Vec<&Value> = runs.iter().filter(|run| run["block_bytes"].is_number()).collect();
    let parts: Vec<&[&Value]> = sized.chunk_by(|one, other| one["part"] == other["part"]).collect();
    let ticks: Vec<String> = parts.first().map_or_else(Vec::new, |part| {
        part.iter().map(|run| way(run).trim_start_matches("blocks of ").to_owned()).collect()
    });
    let of_hash = |hash: &str| {
        let mut series = Vec::new();
        for part in &parts {
            let device = part[0]["part"].as_str().unwrap_or_default().split(" (").next().unwrap_or_default();
            let names = [
                ("one", "one core".to_owned()),
                ("all", "all cores".to_owned()),
                ("device", format!("{device}, with copies")),
                ("in_place", format!("{device}, already there")),
            ];
            for (key, name) in names {
                let rate = |run: &&Value| run[format!("{hash}_{key}_gb_per_second")].as_f64();
                let rates: Option<Vec<f64>> = part.iter().map(rate).collect();
                series.extend(rates.map(|rates| Series::new(&name, rates)));
            }
        }
        Panel {
            is_log: true,
            ..panel(hash, "size of a block", "GB/s", Content::Lines { ticks: ticks.clone(), series })
        }
    };
    let panels = ["xxh3", "md5", "blake3"].map(of_hash).into();
    let title = "The rate of hashing, against the size of blocks".to_owned();
    Plot { bench: "increment-hash".to_owned(), title, chart: Chart { panels } }
}

/// Bandwidth by the length of writes, with one panel per number of ranks.
fn perceived(runs: &[Value]) -> Vec<Panel> {
    let mut by_ranks: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for run in runs {
        by_ranks.entry(run["ranks"].as_u64().unwrap_or_default()).or_default().push(run);
    }
    let of_ranks = |(ranks, runs): (u64, Vec<&Value>)| {
        let (mut ticks, mut series): (Vec<String>, Vec<Series>) = (Vec::new(), Vec::new());
        for run in runs {
            let tick = ByteSize(run["write_bytes"].as_u64()?).display().iec().to_string();
            if !ticks.contains(&tick) {
                ticks.push(tick);
            }
            let (name, rate) = (way(run), run["gb_per_second"].as_f64()?);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.values.push(rate),
                None if name.starts_with("client, 2") => series.push(Series::ours(name, vec![rate])),
                None => series.push(Series::new(name, vec![rate])),
            }
        }
        let title = if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") };
        Some(panel(&title, "length of a write", "GB/s per rank", Content::Lines { ticks, series }))
    };
    by_ranks.into_iter().filter_map(of_ranks).collect()
}

/// The time until a change is durable by how much has changed, with one panel per file system.
fn persisting(runs: &[Value]) -> Vec<Panel> {
    let runs: Vec<&Value> = runs.iter().filter(|run| run["changed_percent"].is_number()).collect();
    let of_file_system = |runs: &[&Value]| {
        let mut series: Vec<Series> = Vec::new();
        let mut ticks: Vec<String> = Vec::new();
        for run in runs {
            let tick = format!("{} %", run["changed_percent"].as_f64()?);
            if !ticks.contains(&tick) {
                ticks.push(tick);
            }
            let (name, ms) = (way(run), run["ms_median"].as_f64()?);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.values.push(ms),
                None if name.starts_with("pool") => series.push(Series::ours(name, vec![ms])),
                None => series.push(Series::new(name, vec![ms])),
            }
        }
        let content = Content::Lines { ticks, series };
        let title = runs[0]["file_system"].as_str().unwrap_or_default();
        Some(Panel { is_log: true, ..panel(title, "part that has changed", "milliseconds", content) })
    };
    let cases = runs.chunk_by(|one, other| one["file_system"] == other["file_system"]);
    cases.filter_map(of_file_system).collect()
}

/// The time of each program by the number of threads, with one line per way.
fn scaling(runs: &[Value]) -> Vec<Panel> {
    let is_strong =
        |run: &&Value| run["threads"].is_number() && run["part"].as_str().is_some_and(|it| it.contains("same"));
    let runs: Vec<&Value> = runs.iter().filter(is_strong).collect();
    let of_program = |runs: &[&Value]| {
        let (mut ticks, mut series) = (Vec::<String>::new(), Vec::<Series>::new());
        for run in runs {
            let tick = format!("{}", run["threads"]);
            if !ticks.contains(&tick) {
                ticks.push(tick);
            }
            let (name, seconds) = (run["kept"].as_str()?, run["ms_median"].as_f64()? / 1e3);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.values.push(seconds),
                None if name == "pool" => series.push(Series::ours(name, vec![seconds])),
                None => series.push(Series::new(name, vec![seconds])),
            }
        }
        Some(panel(runs[0]["program"].as_str()?, "threads", "seconds", Content::Lines { ticks, series }))
    };
    runs.chunk_by(|one, other| one["program"] == other["program"]).filter_map(of_program).collect()
}
