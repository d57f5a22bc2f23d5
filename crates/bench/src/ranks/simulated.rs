//! Ranks that are simulated: what a version costs each of very many, on files in memory that count
//! what is done with them.

use std::time::Duration;

use anyhow::Result;
use outcrop_ranks::{Cost, Rehearsal};
use serde_json::json;

use super::{Options, Section};

/// What an operation on a file takes on a parallel file system that has much to do.
const OPERATION: Duration = Duration::from_micros(100);
/// All ranks have written their parts within this time.
const SPREAD: Duration = Duration::from_millis(20);
/// How often a store listens while it waits.
const LISTENS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(80));

/// The numbers of ranks that are compared.
const FEW: u32 = 4;
const MANY: u32 = 256;

pub(super) fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Section> {
    let mut section = Section::default();
    let (mut few, mut many) = (None, None);
    for &count in &options.simulated {
        progress(&format!("{count} simulated ranks"));
        let versions = u32::try_from(options.saves)?;
        let rehearsal = Rehearsal { count, versions, operation: OPERATION, spread: SPREAD, listens: LISTENS };
        let rehearsed = rehearsal.run().map_err(outcrop::Error::from)?;
        for (way, Cost { metadata, transfers, bytes }) in
            [("of a rank, on average", rehearsed.mean), ("of the rank with most", rehearsed.worst)]
        {
            section.runs.push(json!({
                "part": format!("{count} simulated ranks"), "ranks": count, "way": way,
                "takes_seconds": rehearsed.commit.as_secs_f64(), "metadata_ops": metadata, "messages": transfers,
                "read_bytes": bytes,
            }));
        }
        few = if count == FEW { Some(rehearsed.mean.metadata) } else { few };
        many = if count == MANY { Some(rehearsed.mean.metadata) } else { many };
    }
    match few.zip(many) {
        Some((few, many)) => drop(section.ratios.insert("metadata_ops_per_rank_256_over_4", many / few)),
        None => progress(&format!("{FEW} and {MANY} simulated ranks are not both asked for, so they are not compared")),
    }
    Ok(section)
}
