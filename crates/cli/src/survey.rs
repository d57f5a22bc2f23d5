//! `outcrop survey`: how fast the memory, devices and directories of this machine are.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::ContentArrangement;
use outcrop_survey::{Options, Profile, Survey};

use crate::{say::say, table};

/// The maximum width of tables: long paths are wrapped.
const COLUMNS: u16 = 80;

/// What to survey, and where to write the result.
#[derive(Args)]
pub(crate) struct SurveyArgs {
    /// Directories to measure besides memory and devices [default: the current and the temporary
    /// directory]. Nothing is left in them.
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Print the profile and the order of preference as JSON.
    #[arg(long)]
    json: bool,
    /// Write the profile to this file.
    #[arg(long, value_name = "FILE", default_value = outcrop_survey::FILE)]
    output: PathBuf,
}

pub(crate) fn run(args: &SurveyArgs) -> Result<()> {
    // Check this before measuring for some seconds.
    Profile::check_file(&args.output).context("nothing was measured; choose another file with --output")?;
    let options = Options::default();
    let directories = match &args.directories[..] {
        [] => Survey::usual_directories(&options),
        named => named.to_vec(),
    };
    let profile = Survey::run(&directories, &options, &mut |what| eprintln!("measuring: {what}"))?;
    profile.store(&args.output)?;
    if args.json {
        let mut object = serde_json::to_value(&profile)?;
        object["locations"] = serde_json::to_value(profile.locations())?;
        say!("{}", serde_json::to_string_pretty(&object)?);
    } else {
        print(&profile);
        say!("Wrote the profile to {}.", args.output.display());
    }
    Ok(())
}

fn print(profile: &Profile) {
    let rate = |rate: Option<u64>| rate.map_or_else(|| "-".to_owned(), |rate| table::rate(rate as f64));
    let nth = |nth: Option<usize>| nth.map_or_else(|| "-".to_owned(), |nth| nth.to_string());
    let mut locations = table::new(&["location", "write", "order", "read", "order"]);
    for location in profile.locations() {
        let write = [rate(location.write), nth(location.write_preference)];
        let read = [rate(location.read), nth(location.read_preference)];
        locations.add_row(std::iter::once(location.name).chain(write).chain(read));
    }
    locations.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    say!("{locations}");
    let memory = &profile.memory;
    let pinned = memory.pinned.as_ref();
    let mut providing = table::new(&["providing memory", "rate"]);
    let mut add = |what: &str, value: Option<u64>| {
        providing.add_row(vec![what.to_owned(), rate(value)]);
    };
    add("touch (pre-fault), 1 core", Some(memory.touch_one_core));
    if profile.cores > 1 {
        add(&format!("touch (pre-fault), {} cores", profile.cores), Some(memory.touch_all_cores));
    }
    add("pin touched memory", pinned.map(|pinned| pinned.pin_touched));
    add("pin untouched memory", pinned.map(|pinned| pinned.pin_untouched));
    for device in &profile.devices {
        add(&format!("map on {}", device.name), Some(device.map));
    }
    say!("{providing}");
    for device in &profile.devices {
        say!("{} is {}.", device.name, device.model);
    }
    if let Some(refusal) = &memory.pin_refusal {
        say!("Memory could not be pinned: {refusal}.");
    }
}
