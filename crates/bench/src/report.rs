//! The report of a benchmark.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// The ratios of the runs.
    pub ratios: BTreeMap<&'static str, f64>,
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
