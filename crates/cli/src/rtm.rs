//! `outcrop rtm`: a migration of the user's model, and the tables of its result.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use outcrop_bench::rtm::{Keep, Outcome, migrate};
use outcrop_rtm::{Config, Migration, plot, write_npy};

use crate::{RoomArgs, progress::MigrationProgress, say::say, table};

/// What to migrate, and where to write the results.
#[derive(Args)]
pub(crate) struct RtmArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    room: RoomArgs,
    /// Write a picture of the model and the image to this file.
    #[arg(long, value_name = "FILE", default_value = "rtm.png")]
    image: PathBuf,
    /// Write the image to this file as a NumPy array.
    #[arg(long, value_name = "FILE")]
    npy: Option<PathBuf>,
    /// Write a timeline to this file, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RtmArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.config)
        .with_context(|| format!("cannot read the configuration {}", args.config.display()))?;
    let migration = Migration::new(&Config::from_toml(&text)?)?;
    let outcome = migrate_with_progress(&migration, Keep::Tape, &args.room, args.trace.as_deref())?;
    if let Some(path) = &args.npy {
        write_npy(path, migration.model().grid(), &outcome.image)?;
    }
    plot::write(&args.image, &migration, &outcome.image)?;
    if args.json {
        say!("{}", serde_json::to_string_pretty(&outcome.to_json())?);
        return Ok(());
    }
    say!("{}", times_table(&[&outcome]));
    say!("{}", layers_table(&outcome));
    say!("Wrote the picture to {}.", args.image.display());
    Ok(())
}

/// Runs a migration and shows its progress.
pub(crate) fn migrate_with_progress(
    migration: &Migration,
    keep: Keep,
    room: &RoomArgs,
    trace: Option<&Path>,
) -> Result<Outcome> {
    let mut bar = MigrationProgress::new(keep.name());
    migrate(migration, keep, &room.room(), trace, &mut |progress| bar.show(progress))
}

/// Where the time went, with one column per way.
pub(crate) fn times_table(outcomes: &[&Outcome]) -> comfy_table::Table {
    let mut heads = vec![""];
    heads.extend(outcomes.iter().map(|outcome| outcome.keep.name()));
    let mut table = table::new(&heads);
    let mut row = |name: &str, value: &dyn Fn(&Outcome) -> String| {
        let mut cells = vec![name.to_owned()];
        cells.extend(outcomes.iter().map(|outcome| value(outcome)));
        table.add_row(cells);
    };
    row("wall", &|outcome| table::seconds(outcome.wall_seconds));
    row("computing", &|outcome| table::seconds(outcome.times.compute_seconds()));
    row("blocked: saving", &|outcome| table::seconds(outcome.times.record_seconds));
    row("blocked: reading back", &|outcome| table::seconds(outcome.times.replay_seconds));
    row("I/O hidden behind computing", &|outcome| {
        let hidden =
            outcome.stats.as_ref().map(|stats| (stats.move_seconds - outcome.times.history_seconds()).max(0.0));
        hidden.map_or_else(|| "none".to_owned(), table::seconds)
    });
    row("snapshots", &|outcome| {
        format!("{} ({})", outcome.times.snapshots, table::bytes(outcome.times.snapshot_bytes))
    });
    row("million grid points per second", &|outcome| format!("{:.0}", outcome.times.points_per_second() / 1e6));
    table
}

/// What each layer of the tape has done.
pub(crate) fn layers_table(outcome: &Outcome) -> comfy_table::Table {
    let mut table = table::new(&["layer", "limit", "most in use", "written", "at", "read", "at", "waited for"]);
    for layer in outcome.stats.iter().flat_map(|stats| &stats.layers) {
        table.add_row(vec![
            layer.name.clone(),
            layer.capacity_bytes.map_or_else(|| "no limit".to_owned(), table::bytes),
            table::bytes(layer.used_bytes_max),
            table::bytes(layer.written_bytes),
            table::rate(layer.write_rate()),
            table::bytes(layer.read_bytes),
            table::rate(layer.read_rate()),
            layer.fetches.to_string(),
        ]);
    }
    table
}
