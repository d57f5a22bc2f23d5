//! `outcrop bench ranks`: the cost of many ranks. Each section is a function that returns what it
//! has measured.

mod here;
mod simulated;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use serde_json::{Value, json};

pub use self::here::process;
use crate::{Report, Scratch, object, parity, ping};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The numbers of ranks that are processes of this machine.
    pub counts: Vec<u32>,
    /// The numbers of ranks that are simulated.
    pub simulated: Vec<u32>,
    /// The number of versions that are saved.
    pub saves: u64,
    /// Seconds in which all ranks idle, and in which all but one wait.
    pub seconds: f64,
    /// Turns of messages of MPI.
    pub turns: u32,
    /// What is measured of lost nodes.
    pub parity: parity::Options,
    /// The directory for files. No file is left there.
    pub directory: PathBuf,
}

/// What a section has measured.
#[derive(Debug, Default)]
pub(crate) struct Section {
    pub(crate) runs: Vec<Value>,
    /// What is missing here has no ratio.
    pub(crate) ratios: BTreeMap<&'static str, f64>,
}

/// Runs the benchmark. `progress` is told what is measured next, and what cannot be.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    let _scratch = Scratch::new(&options.directory)?;
    let sections = [here::run, simulated::run, messages, nodes, objects];
    let (mut runs, mut ratios) = (Vec::new(), BTreeMap::new());
    for section in sections {
        let measured = section(options, progress)?;
        runs.extend(measured.runs);
        ratios.extend(measured.ratios);
    }
    let settings = json!({
        "counts": options.counts, "simulated": options.simulated, "turns": options.turns, "saves": options.saves,
        "seconds": options.seconds, "state_bytes": here::STATE * 8,
    });
    Ok(Report::new("ranks", settings, runs, ratios))
}

/// What the layer that sees messages of MPI costs them.
fn messages(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Section> {
    progress("messages of MPI, past and through the layer that reports what is received");
    let mut section = Section::default();
    let Some(pings) = ping::run(&options.directory, options.turns)? else {
        progress("no mpicc and mpirun here, so messages of MPI are not measured");
        return Ok(section);
    };
    for ping in &pings {
        section.ratios.insert(ping.key, ping.through_seconds / ping.past_seconds);
        for (way, seconds) in [("past the layer", ping.past_seconds), ("through it", ping.through_seconds)] {
            section.runs.push(json!({ "part": ping.about, "ranks": 2, "way": way, "takes_seconds": seconds }));
        }
    }
    Ok(section)
}

/// Versions that other nodes keep, and a node that is lost.
fn nodes(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Section> {
    progress("versions that other nodes keep, and a node that is lost");
    let (runs, ratios) = parity::run(&options.directory, options.parity)?;
    Ok(Section { runs, ratios })
}

/// A store in an object store beside uploads and ranged reads of the same bytes.
fn objects(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Section> {
    // Few turns mean little time.
    let (bytes, rounds) = if options.turns < 1000 { (64 << 20, 3) } else { (256 << 20, 5) };
    let mut section = Section::default();
    if let Some(measured) = object::run(bytes, rounds, progress)? {
        section.runs = measured.runs;
        section.ratios.insert("object_durable_over_plain", measured.durable_over_plain);
        section.ratios.insert("object_restore_over_plain", measured.restore_over_plain);
    }
    Ok(section)
}
