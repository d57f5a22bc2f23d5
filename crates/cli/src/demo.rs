//! `outcrop demo`: shows what Outcrop is for, in a minute.

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

/// Settings of the demonstration.
#[derive(Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    room: RoomArgs,
    /// Number of shots; more shots give a clearer image [default: 5].
    #[arg(long, value_name = "COUNT")]
    shots: Option<usize>,
    /// Write a picture of the model and the image to this file.
    #[arg(long, value_name = "FILE", default_value = "rtm.png")]
    image: PathBuf,
    /// Write a timeline to this file, for Perfetto or chrome://tracing.
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
        "Salt body, {width} x {depth} points, {} of {} steps each. Each shot makes {} of snapshots;\n\
         {} of host memory hold the first of them, and the rest goes to {}.",
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
    say!("Wrote the picture to {}. Now the same with plain files.", args.image.display());
    let files = migrate_with_progress(&migration, Keep::Files, &args.room, None)?;
    say!("{}", times_table(&[&tape, &files]));
    say!("{}", layers_table(&tape));
    ensure!(tape.is_same_image(&files), "the two images differ; this is a bug, please report it");
    say!(
        "Both images are the same to the last bit. With plain files the program waited {:.1} times as long as with the\n\
         tape; the whole migration took {} with the tape and {} with files.",
        files.times.history_seconds() / tape.times.history_seconds().max(1e-9),
        table::seconds(tape.wall_seconds),
        table::seconds(files.wall_seconds),
    );
    Ok(())
}
