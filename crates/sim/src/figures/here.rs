//! This machine, as measured by a survey: a tape in memory and a directory, for several gaps. Not
//! from a paper.

use std::collections::BTreeMap;

use outcrop_plan::Touching;

use super::{Figure, Headline, caches, thinned};
use crate::{Approach, Experiment, Layer, Machine, Turns, Workload, error::Result, simulate};

const SNAPSHOTS: usize = 128;
const SNAPSHOT_BYTES: u64 = 32 << 20;
const HOST_BYTES: u64 = 1 << 30;
const GAPS_MS: &[u64] = &[0, 2, 5, 10, 20, 50, 100];

const WAYS: &[(&str, Approach)] = &[
    ("no buffering", Approach::NoBuffering),
    ("ours, concurrent", Approach::Adaptive { touching: Touching::Concurrent, pinning: Turns::Serial }),
    ("ours, sequential", Approach::Adaptive { touching: Touching::Sequential, pinning: Turns::Serial }),
    ("ours", Approach::OURS),
];

/// Simulates a forward and a backward pass of 4 GiB in snapshots of 32 MiB, with 1 GiB of memory
/// and the storage called `directory` of a machine from [`Machine::plain`].
///
/// # Errors
/// If the machine has no such storage.
pub fn here(machine: &Machine, is_quick: bool) -> Result<Figure> {
    let gaps = thinned(GAPS_MS, is_quick);
    let layers = [Layer::host(HOST_BYTES), Layer::storage("directory", u64::MAX / 4)];
    let (rows, series) = caches::compare("gap_ms", WAYS, &gaps, |approach, gap_ms| {
        let workload = Workload::uniform(SNAPSHOTS, SNAPSHOT_BYTES, gap_ms * 1_000_000);
        let experiment = Experiment::one_node(machine.clone(), approach, layers.to_vec(), vec![workload]);
        Ok(simulate(&experiment)?.blocked_seconds())
    })?;
    let total = |name: &str| caches::named(&series, name).iter().sum::<f64>();
    let ours = BTreeMap::from([("no_buffering_over_ours_all_gaps", total("no buffering") / total("ours"))]);
    let headline = Headline { paper: BTreeMap::new(), ours };
    let chart = caches::lines(&gaps, series, caches::GAP, true);
    Ok(Figure { name: "here", title: "This machine: waiting in saves and takes", rows, headline, chart })
}
