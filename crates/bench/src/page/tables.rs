//! The runs of a report as tables, for a terminal and for Markdown.

use std::fmt::Write as _;

use bytesize::ByteSize;
use serde_json::Value;

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The head of each column.
    pub heads: Vec<String>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// As Markdown.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cell = |cell: &String| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") };
            format!("|{}\n", cells.iter().map(cell).collect::<String>())
        };
        let mut text = line(&self.heads);
        text += &"|---".repeat(self.heads.len());
        text += "|\n";
        for row in &self.rows {
            let _ = write!(text, "{}", line(row));
        }
        text
    }
}

/// What can be in a table of runs: the head, the name in the report, and the unit.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("without saves", "without_seconds", "s"),
    ("wall", "wall_seconds", "s"),
    ("of that, closing", "close_seconds", "s"),
    ("processor", "cpu_seconds", "s"),
    ("computing", "compute_seconds", "s"),
    ("blocked", "blocked_seconds", "s"),
    ("first round", "first_blocked_seconds", "s"),
    ("starting", "init_seconds", "s"),
    ("in saves", "save_seconds", "s"),
    ("in takes", "take_seconds", "s"),
    ("per save", "save_ms_mean", "ms"),
    ("per take", "take_ms_mean", "ms"),
    ("per take", "take_us", "µs"),
    ("per call", "call_us", "µs"),
    ("memory", "memory_mib", "MiB"),
    ("median", "ms_median", "ms"),
    ("best", "ms_best", "ms"),
    ("rate", "gb_per_second", "GB/s"),
    ("slowdown", "slowdown", "x"),
    ("checkpoint", "checkpoint_mib", "MiB"),
    ("written", "written_mib", "MiB"),
    ("a changed element", "ns_per_changed_element", "ns"),
    ("a computed element", "ns_per_computed_element", "ns"),
    ("less than by pages", "less_percent", "%"),
    ("the paper's", "paper_mb", "MB"),
    ("less in the paper", "paper_less_percent", "%"),
    ("hashing all", "rehash_ms", "ms"),
    ("as chosen", "chosen_ms", "ms"),
    ("over hashing all", "chosen_over_rehash", "x"),
    ("tracking pages", "pages_ms", "ms"),
    ("over hashing all", "pages_over_rehash", "x"),
    ("xxh3, one core", "xxh3_one_gb_per_second", "GB/s"),
    ("all cores", "xxh3_all_gb_per_second", "GB/s"),
    ("blake3, one core", "blake3_one_gb_per_second", "GB/s"),
    ("all cores", "blake3_all_gb_per_second", "GB/s"),
    ("md5, one core", "md5_one_gb_per_second", "GB/s"),
    ("all cores", "md5_all_gb_per_second", "GB/s"),
    ("xxh3, with copies", "xxh3_device_gb_per_second", "GB/s"),
    ("on the device already", "xxh3_in_place_gb_per_second", "GB/s"),
    ("md5, with copies", "md5_device_gb_per_second", "GB/s"),
    ("on the device already", "md5_in_place_gb_per_second", "GB/s"),
    ("only reading", "read_one_gb_per_second", "GB/s"),
    ("takes", "takes_seconds", "s"),
    ("cores, all ranks", "cores", ""),
    ("processor time of a rank", "cpu_ms_per_second", "ms/s"),
    ("sleeps of a rank", "sleeps_per_second", "/s"),
    ("metadata operations", "metadata_ops", ""),
    ("reads and writes", "messages", ""),
    ("bytes read", "read_bytes", ""),
    ("versions", "versions", ""),
    ("failures", "failures", ""),
    ("iterations again", "iterations_again", ""),
];

/// The runs of a report: a table for each part, with the columns that any of its runs has. Runs
/// that differ in the number of processes and in the gap between saves become a table of gaps for
/// each number of processes, and those that differ in the length of writes one for each number of
/// ranks.
pub fn tables(report: &Value) -> Vec<Table> {
    let runs = report["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if runs.iter().any(|run| run["gap_ms"].is_number()) {
        return runs.chunk_by(|one, other| one["processes"] == other["processes"]).map(of_gaps).collect();
    }
    if runs.iter().any(|run| run["write_bytes"].is_number()) {
        return runs.chunk_by(|one, other| one["ranks"] == other["ranks"]).map(of_writes).collect();
    }
    runs.chunk_by(|one, other| one["part"] == other["part"]).map(of_part).collect()
}

fn of_part(part: &[Value]) -> Table {
    let columns: Vec<_> = COLUMNS.iter().filter(|(_, name, _)| part.iter().any(|run| run[name].is_number())).collect();
    let mut heads = vec![part[0]["part"].as_str().unwrap_or("way").to_owned()];
    heads.extend(columns.iter().map(|(head, _, _)| (*head).to_owned()));
    let row = |run: &Value| {
        let mut cells = vec![run["way"].as_str().unwrap_or("?").to_owned()];
        cells.extend(columns.iter().map(|(_, name, unit)| cell(run, name, unit)));
        cells
    };
    Table { heads, rows: part.iter().map(row).collect() }
}

/// Seconds blocked, by the gap between saves.
fn of_gaps(runs: &[Value]) -> Table {
    let head = format!("{} at a time: blocked, milliseconds between saves", number_or(&runs[0]["processes"]));
    by(runs, head, "gap_ms", number_or, ("blocked_seconds", "s"))
}

/// Bandwidth, by the length of writes.
fn of_writes(runs: &[Value]) -> Table {
    let ranks = if runs[0]["ranks"] == 1 { "rank" } else { "ranks" };
    let head = format!("{} {ranks}: GB/s of each, by the length of a write", number_or(&runs[0]["ranks"]));
    let length = |bytes: &Value| ByteSize(bytes.as_u64().unwrap_or_default()).display().iec().to_string();
    by(runs, head, "write_bytes", length, ("gb_per_second", ""))
}

/// One quantity: a row for each way, a column for each value of `key`.
fn by(runs: &[Value], head: String, key: &str, shown: impl Fn(&Value) -> String, quantity: (&str, &str)) -> Table {
    let (mut columns, mut ways) = (Vec::new(), Vec::new());
    for run in runs {
        let (column, way) = (&run[key], way(run));
        if !columns.contains(column) {
            columns.push(column.clone());
        }
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    let mut heads = vec![head];
    heads.extend(columns.iter().map(shown));
    let row = |name: &&str| {
        let of = |column: &Value| runs.iter().find(|run| way(run) == *name && run[key] == *column);
        let mut cells = vec![(*name).to_owned()];
        let value = |run: &Value| cell(run, quantity.0, quantity.1).trim_end().to_owned();
        cells.extend(columns.iter().map(|column| of(column).map_or_else(String::new, value)));
        cells
    };
    Table { heads, rows: ways.iter().map(row).collect() }
}

/// The way of a run without its case.
pub(super) fn way(run: &Value) -> &str {
    run["name"].as_str().or(run["way"].as_str()).unwrap_or("?")
}

/// A value with its unit, and the range of the rounds if there were several.
fn cell(run: &Value, name: &str, unit: &str) -> String {
    let Some(value) = run[name].as_f64() else { return String::new() };
    let mut text = format!("{} {unit}", number(value));
    if let Some((least, most)) = range(&run[format!("{name}_rounds")]) {
        let _ = write!(text, " ({} to {})", number(least), number(most));
    }
    text
}

fn range(rounds: &Value) -> Option<(f64, f64)> {
    let values: Vec<f64> = rounds.as_array()?.iter().filter_map(Value::as_f64).collect();
    (values.len() > 1).then(|| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        (least, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    })
}

/// With about three digits that mean something.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.0995 || size == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// As in `1.5 GiB`.
pub(super) fn bytes(count: u64) -> String {
    ByteSize(count).display().iec().to_string()
}

/// A whole number as such.
fn number_or(value: &Value) -> String {
    value.as_f64().map_or_else(|| "?".to_owned(), |value| format!("{value}"))
}

/// A value of one way.
pub(super) fn value(report: &Value, way: &str, key: &str) -> Option<f64> {
    report["runs"].as_array()?.iter().find(|run| run["way"] == way)?[key].as_f64()
}

/// The least value of the ways whose name begins so.
pub(super) fn least(report: &Value, ways: &str, key: &str) -> Option<f64> {
    let is_one = |run: &&Value| run["way"].as_str().is_some_and(|way| way.starts_with(ways));
    let values = report["runs"].as_array()?.iter().filter(is_one).filter_map(|run| run[key].as_f64());
    values.min_by(f64::total_cmp)
}
