//! `outcrop survey`: how fast the places are that this machine has for snapshots.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::ContentArrangement;
use outcrop_survey::{Options, Profile, Survey};

use crate::{say::say, table};

/// Tables are no wider than this: long paths take several lines.
const COLUMNS: u16 = 80;

/// What to survey, and where to keep the outcome.
#[derive(Args)]
pub(crate) struct SurveyArgs {
    /// Directories to measure, next to memory and devices; the current and the temporary one where none is named.
    /// Nothing is left in them.
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Print the profile and the ranking as JSON.
    #[arg(long)]
    json: bool,
    /// Where to write the profile.
    #[arg(long, value_name = "FILE", default_value = outcrop_survey::FILE)]
    output: PathBuf,
}

pub(crate) fn run(args: &SurveyArgs) -> Result<()> {
    // Else some seconds of measuring would be for nothing.
    Profile::check_file(&args.output).context("nothing was measured; name another file with --output")?;
    let options = Options::default();
    let directories = match &args.directories[..] {
        [] => Survey::usual_directories(&options),
        named => named.to_vec(),
    };
    let profile = Survey::run(&directories, &options, &mut |what| eprintln!("measuring: {what}"))?;
    profile.store(&args.output)?;
    if args.json {
        let mut object = serde_json::to_value(&profile)?;
        object["ranking"] = serde_json::to_value(profile.ranking())?;
        say!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        print(&profile);
        say!("The profile is in {}.", args.output.display());
    }
    Ok(())
}

fn print(profile: &Profile) {
    let rate = |rate: Option<u64>| rate.map_or_else(|| "-".to_owned(), |rate| table::rate(rate as f64));
    let rank = |rank: Option<usize>| rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
    let mut ranking = table::new(&["place", "write", "rank", "read", "rank"]);
    for place in profile.ranking() {
        let cells = [rate(place.write), rank(place.write_rank), rate(place.read), rank(place.read_rank)];
        ranking.add_row(std::iter::once(place.place).chain(cells));
    }
    ranking.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    say!("{ranking}");
    let memory = &profile.memory;
    let pinned = memory.pinned.as_ref();
    let mut providing = table::new(&["memory is", "rate"]);
    let mut add = |what: &str, value: Option<u64>| {
        providing.add_row(vec![what.to_owned(), rate(value)]);
    };
    add("touched, 1 core", Some(memory.touch_one_core));
    if profile.cores > 1 {
        add(&format!("touched, {} cores", profile.cores), Some(memory.touch_all_cores));
    }
    add("pinned when touched", pinned.map(|pinned| pinned.pin_touched));
    add("pinned when untouched", pinned.map(|pinned| pinned.pin_untouched));
    for device in &profile.devices {
        add(&format!("mapped on {}", device.name), Some(device.map));
    }
    say!("{providing}");
    for device in &profile.devices {
        say!("{} is {}.", device.name, device.model);
    }
    if let Some(refusal) = &memory.pin_refusal {
        say!("Memory was not pinned: {refusal}.");
    }
}
