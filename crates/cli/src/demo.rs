//! `outcrop demo`: what Outcrop is for, in a minute.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use outcrop_bench::rtm::Keep;
use outcrop_rtm::{Config, Migration, Shots, plot};

use crate::{
    RoomArgs,
    rtm::{layers_table, migrate_with_progress, times_table},
    say::say,
    table,
};

/// Image a salt body with reverse time migration.
///
/// The forward pass of each shot makes more snapshots than the host memory holds; they sink to the directory and come
/// back before the backward pass asks for them. The same migration is then run once more with plain files.
#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    room: RoomArgs,
    /// How many shots to fire; the more, the clearer the image.
    #[arg(long, value_name = "COUNT")]
    shots: Option<usize>,
    /// Where the picture of model and image goes.
    #[arg(long, value_name = "FILE", default_value = "rtm.png")]
    image: PathBuf,
    /// Where the timeline goes, for chrome://tracing or Perfetto.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let mut config = Config::demo();
    if let Some(count) = args.shots {
        config.shots = Shots::Count(count);
    }
    let migration = Migration::new(&config)?;
    let [width, _, depth] = migration.model().grid().points;
    let per_shot = 4 * (migration.snapshots() * migration.snapshot_len()) as u64;
    say!(
        "Salt body, {width} x {depth} points, {} of {} steps each. A shot makes {} of snapshots;\n\
         {} of host memory are for them, and the rest goes to {}.",
        match migration.survey().shots.len() {
            1 => "1 shot".to_owned(),
            count => format!("{count} shots"),
        },
        migration.steps(),
        table::bytes(per_shot),
        table::bytes(args.room.host.as_u64()),
        args.room.dir.display(),
    );
    let tape = migrate_with_progress(&migration, Keep::Tape, &args.room, args.trace.as_deref())?;
    plot::write(&args.image, &migration, &tape.image)?;
    say!("The picture is in {}. Now the same with plain files.", args.image.display());
    let files = migrate_with_progress(&migration, Keep::Files, &args.room, None)?;
    say!("{}", times_table(&[&tape, &files]));
    say!("{}", layers_table(&tape));
    ensure!(tape.is_same_image(&files), "the two images differ, which must not be: please report it");
    say!(
        "Both images are the same to the last bit. The tape kept the program waiting {:.1} times less, and the whole\n\
         migration took {} instead of {}.",
        files.times.history_seconds() / tape.times.history_seconds().max(1e-9),
        table::seconds(tape.wall_seconds),
        table::seconds(files.wall_seconds),
    );
    Ok(())
}
