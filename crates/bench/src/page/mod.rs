//! The page of measurements that `outcrop bench all` writes: turns results into Markdown and
//! charts.

mod charts;
mod ratios;
mod tables;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use charts::{Plot, hash_plot, plots};
pub use tables::{Table, tables};

use crate::Machine;

/// The results of all benchmarks of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// When the run started (UTC).
    pub date: String,
    /// The version of Outcrop, with the commit if it is known.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// The file system of the directory for files.
    pub file_system: Option<String>,
    /// The size of the workloads.
    pub sizes: String,
    /// Each benchmark, in the order of the run.
    pub benches: Vec<Entry>,
}

/// The result of one benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub bench: String,
    /// How long it took.
    pub seconds: f64,
    /// Its report, as `--json` prints it.
    pub report: Option<Value>,
    /// Why there is no report.
    pub error: Option<String>,
}

impl Results {
    /// The report of a benchmark, if it succeeded.
    fn report(&self, bench: &str) -> Option<&Value> {
        self.benches.iter().find(|entry| entry.bench == bench)?.report.as_ref()
    }

    /// The names of the benchmarks that failed.
    pub fn failed(&self) -> Vec<&str> {
        self.benches.iter().filter(|entry| entry.report.is_none()).map(|entry| entry.bench.as_str()).collect()
    }
}

/// The page. Its plots are in the directory `plots_in`, relative to the page.
pub fn markdown(results: &Results, plots_in: &str) -> String {
    let mut page = String::from("# Measured\n\n");
    page += &wrapped(
        "`outcrop bench all --output DIR` has made this page, its plots and `results.json`: do not edit it. It has the \
         newest run only; earlier ones are in git. Timings are noisy, above all on virtual machines: look at the ratios, \
         and measure on your own machine.",
    );
    let _ = write!(page, "\n{}", about(results).markdown());
    let summary = summary(results);
    if !summary.rows.is_empty() {
        let _ = write!(page, "\n## Summary\n\n{}", summary.markdown());
    }
    let plots = plots(results);
    for entry in &results.benches {
        let _ = write!(page, "\n## {}\n\n", entry.bench);
        match &entry.report {
            Some(report) => section(&mut page, &entry.bench, report),
            None => {
                let reason = entry.error.as_deref().unwrap_or("no report");
                page.push_str(&wrapped(&format!("**This benchmark failed:** {reason}")));
            }
        }
        for plot in plots.iter().filter(|plot| plot.bench == entry.bench) {
            let _ = writeln!(page, "\n![{}]({plots_in}/{}.png)", plot.title, plot.bench);
        }
    }
    page
}

/// One benchmark: what it measures, the runs, and the ratios.
fn section(page: &mut String, bench: &str, report: &Value) {
    page.push_str(&wrapped(&ratios::describe(bench, &report["settings"])));
    for table in tables(report) {
        let _ = write!(page, "\n{}", table.markdown());
    }
    let ratios = ratios::table(bench, report);
    if !ratios.rows.is_empty() {
        let _ = write!(page, "\n{}", ratios.markdown());
    }
}

/// Wraps a paragraph at 100 characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > 100 {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines + "\n"
}

/// The date, the machine, and the version.
fn about(results: &Results) -> Table {
    let machine = &results.machine;
    let seconds: f64 = results.benches.iter().map(|entry| entry.seconds).sum();
    let rows = [
        ("date", results.date.clone()),
        ("Outcrop", results.version.clone()),
        ("processor", format!("{}, {} cores", machine.processor, machine.cores)),
        ("memory", tables::bytes(machine.memory_bytes)),
        ("kernel", format!("Linux {}", machine.kernel)),
        ("file system", results.file_system.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("sizes", results.sizes.clone()),
        ("duration", format!("{} minutes", tables::number(seconds / 60.0))),
    ];
    Table {
        heads: vec!["run".to_owned(), String::new()],
        rows: rows.map(|(name, value)| vec![name.to_owned(), value]).into(),
    }
}

/// The most important comparisons: the table of the README.
fn summary(results: &Results) -> Table {
    let heads = ["", "Outcrop", "alternative", "Outcrop / alternative"].map(str::to_owned).into();
    let mut rows = Vec::new();
    let mut add = |what: &str, ours: Option<f64>, other: &str, theirs: Option<f64>, unit: &str| {
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let ratio = tables::number(ours / theirs);
            let (ours, theirs) = (tables::number(ours), tables::number(theirs));
            rows.push(vec![what.to_owned(), format!("{ours} {unit}"), format!("{other}: {theirs} {unit}"), ratio]);
        }
    };
    if let Some(report) = results.report("tape") {
        let of = |way: &str, key: &str| tables::value(report, way, key);
        for (other, way) in [
            ("nothing stored", "no storing"),
            ("asynchronous ring, hand-written", "asynchronous ring"),
            ("O_DIRECT, no overlap", "O_DIRECT, no overlap"),
            ("plain files", "files"),
        ] {
            add("tape, wall: save and take", of("tape, save", "wall_seconds"), other, of(way, "wall_seconds"), "s");
        }
        let ring = of("asynchronous ring", "blocked_seconds");
        for (what, way) in [("save and take", "tape, save"), ("lend and take", "tape, lend")] {
            add(&format!("tape, blocked: {what}"), of(way, "blocked_seconds"), "asynchronous ring", ring, "s");
        }
    }
    if let Some(report) = results.report("store") {
        let of = |way: &str| tables::value(report, way, "ms_median");
        let best = |ways: &str| tables::least(report, ways, "ms_median");
        add("store: save returns", of("store: save returns"), "memory copy", of("memcpy"), "ms");
        let direct = best("O_DIRECT write and fdatasync");
        add("store: save is durable", of("store: save and wait"), "O_DIRECT and fdatasync", direct, "ms");
        add("store: restore, verified", of("store: restore_latest"), "O_DIRECT", best("O_DIRECT read"), "ms");
    }
    Table { heads, rows }
}

#[cfg(test)]
mod tests;
