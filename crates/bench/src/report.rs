//! The report of a benchmark.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{pool::median, quiet::Quiet};

/// The result of a benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The name of the benchmark.
    pub bench: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Its settings.
    pub settings: serde_json::Value,
    /// One entry per measurement.
    pub runs: Vec<serde_json::Value>,
    /// The ratios of the runs. If the benchmark was repeated, the medians.
    pub ratios: BTreeMap<&'static str, f64>,
    /// If the benchmark was repeated: the least and the largest of each ratio.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<&'static str, [f64; 2]>,
    /// What else has happened on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiet: Option<Quiet>,
}

impl Report {
    /// The result of one benchmark on this machine.
    pub(crate) fn new(
        bench: &'static str,
        settings: serde_json::Value,
        runs: Vec<serde_json::Value>,
        ratios: BTreeMap<&'static str, f64>,
    ) -> Self {
        Self { bench, machine: Machine::here(), settings, runs, ratios, ranges: BTreeMap::new(), quiet: None }
    }

    /// The result of a benchmark that was repeated: the runs of the last repetition, the median and
    /// the range of each ratio, and the least quiet of all.
    ///
    /// # Panics
    /// If there is none.
    pub fn of_repetitions(reports: Vec<Self>) -> Self {
        let worst = |of: fn(&Quiet) -> f64| {
            reports.iter().filter_map(|report| report.quiet.as_ref()).map(of).fold(0.0, f64::max)
        };
        let quiet = reports.iter().any(|report| report.quiet.is_some()).then(|| Quiet {
            others: worst(|quiet| quiet.others),
            stolen: worst(|quiet| quiet.stolen),
            memcpy_changed: worst(|quiet| quiet.memcpy_changed),
        });
        let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for (name, ratio) in reports.iter().flat_map(|report| &report.ratios) {
            all.entry(name).or_default().push(*ratio);
        }
        let is_repeated = reports.len() > 1;
        let last = reports.into_iter().next_back().expect("there is at least one");
        let range =
            |of: &[f64]| of.iter().fold([f64::INFINITY, 0.0], |[least, most], &it| [it.min(least), it.max(most)]);
        let ranges = all.iter().filter(|_| is_repeated).map(|(name, of)| (*name, range(of))).collect();
        let ratios = all.iter().map(|(name, of)| (*name, median(of))).collect();
        Self { ratios, ranges, quiet, ..last }
    }
}

/// The machine, as far as it matters for the figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The number of cores that this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's name.
    pub processor: String,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
        let system = rustix::system::sysinfo();
        Self {
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_bytes: system.totalram * u64::from(system.mem_unit),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processor: name.trim_start_matches(['\t', ' ', ':']).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_repetitions_the_medians_and_ranges_are_reported() {
        let report = |ratio, others| Report {
            quiet: Some(Quiet { others, stolen: 0.0, memcpy_changed: 1.0 }),
            ..Report::new("x", serde_json::Value::Null, Vec::new(), BTreeMap::from([("a", ratio)]))
        };
        let one = Report::of_repetitions(vec![report(2.0, 0.1)]);
        assert!(one.ranges.is_empty() && one.ratios["a"] == 2.0);
        let three = Report::of_repetitions(vec![report(3.0, 0.1), report(1.0, 0.3), report(2.0, 0.2)]);
        assert_eq!((three.ratios["a"], three.ranges["a"]), (2.0, [1.0, 3.0]));
        assert_eq!(three.quiet.unwrap().others, 0.3);
    }
}
