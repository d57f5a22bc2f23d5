//! `outcrop bench rtm`: the same migration with its snapshots on a tape, in memory and in files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, ensure};
use outcrop::{Order, Stats, Tape};
use outcrop_rtm::{Config, Files, History, InMemory, Migration, OnProgress, Report as Times};
use serde_json::json;

use crate::{Needs, Report, Scratch};

/// Where a migration keeps its snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// On a tape.
    Tape,
    /// All of them in memory, newly allocated for each.
    Memory,
    /// In plain files.
    Files,
    /// In plain files, with fsync.
    FilesSynced,
}

impl Keep {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Memory => "fresh memory",
            Self::Files => "plain files",
            Self::FilesSynced => "plain files, fsync",
        }
    }
}

/// The limits of a migration's tape.
#[derive(Debug, Clone)]
pub struct Room {
    /// Host memory.
    pub host_bytes: u64,
    /// The directory for files.
    pub directory: PathBuf,
    /// The limit of bytes in files.
    pub dir_bytes: u64,
}

/// The result of a migration.
#[derive(Debug)]
pub struct Outcome {
    /// Where its snapshots were kept.
    pub keep: Keep,
    /// The image.
    pub image: Vec<f32>,
    /// Where the time went.
    pub times: Times,
    /// From start to end, including opening and closing.
    pub wall_seconds: f64,
    /// The statistics of the tape, if there was one.
    pub stats: Option<Stats>,
}

impl Outcome {
    /// Whether two images are equal to the last bit.
    pub fn is_same_image(&self, other: &Self) -> bool {
        let bits = |image: &[f32]| image.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        bits(&self.image) == bits(&other.image)
    }

    /// As JSON.
    pub fn to_json(&self) -> serde_json::Value {
        json!({
            "way": self.keep.name(),
            "wall_seconds": self.wall_seconds,
            "compute_seconds": self.times.compute_seconds(),
            "blocked_seconds": self.times.history_seconds(),
            "points_per_second": self.times.points_per_second(),
            "snapshot_bytes": self.times.snapshot_bytes,
            "stats": self.stats,
        })
    }
}

/// Runs a migration. With a tape, writes its timeline to `trace`, if given.
pub fn migrate(
    migration: &Migration,
    keep: Keep,
    room: &Room,
    trace: Option<&Path>,
    progress: OnProgress<'_>,
) -> Result<Outcome> {
    let start = Instant::now();
    let mut stats = None;
    let migrated = match keep {
        Keep::Tape => {
            let builder = Tape::builder().host(room.host_bytes).dir(&room.directory, room.dir_bytes);
            let mut tape = builder.order(Order::Reverse).trace(trace.is_some()).open()?;
            let migrated = migration.run(&mut tape, progress)?;
            stats = Some(tape.stats());
            if let Some(path) = trace {
                tape.write_trace(path)?;
            }
            migrated
        }
        Keep::Memory => migration.run(&mut InMemory::new(), progress)?,
        Keep::Files => in_files(migration, room, false, progress)?,
        Keep::FilesSynced => in_files(migration, room, true, progress)?,
    };
    let wall_seconds = start.elapsed().as_secs_f64();
    Ok(Outcome { keep, image: migrated.image, times: migrated.report, wall_seconds, stats })
}

fn in_files(
    migration: &Migration,
    room: &Room,
    is_synced: bool,
    progress: OnProgress<'_>,
) -> Result<outcrop_rtm::Migrated> {
    let _scratch = Scratch::new(&room.directory)?;
    let scratch = tempfile::tempdir_in(&room.directory)?;
    let mut files = Files::new(scratch.path(), is_synced)?;
    Ok(migration.run(&mut files as &mut dyn History, progress)?)
}

/// The most that it needs: the snapshots of one shot, in files that grow in large steps, or in
/// memory.
pub fn needs(migration: &Migration) -> Needs {
    let bytes = (migration.snapshots() * migration.snapshot_len() * size_of::<f32>()) as u64;
    Needs { file_bytes: bytes + (1 << 30), memory_bytes: bytes + (256 << 20) }
}

/// Runs the benchmark. `progress` is told what is measured next.
pub fn run(config: &Config, room: &Room, progress: &mut (dyn FnMut(&str) + Send)) -> Result<Report> {
    let migration = Migration::new(config)?;
    let _scratch = Scratch::with_room(&room.directory, needs(&migration))?;
    let mut outcomes = Vec::new();
    for keep in [Keep::Memory, Keep::Tape, Keep::Files, Keep::FilesSynced] {
        progress(keep.name());
        outcomes.push(migrate(&migration, keep, room, None, &mut |_| {})?);
    }
    for outcome in &outcomes[1..] {
        ensure!(outcome.is_same_image(&outcomes[0]), "{} gave another image", outcome.keep.name());
    }
    let [memory, tape, files, synced] = &outcomes[..] else { unreachable!("there are four ways") };
    let ratios = BTreeMap::from([
        ("wall_over_memory", tape.wall_seconds / memory.wall_seconds),
        ("wall_over_compute", tape.wall_seconds / tape.times.compute_seconds()),
        ("files_wall_over_tape", files.wall_seconds / tape.wall_seconds),
        ("synced_files_wall_over_tape", synced.wall_seconds / tape.wall_seconds),
        ("files_blocked_over_tape", files.times.history_seconds() / tape.times.history_seconds()),
        ("points_per_second", tape.times.points_per_second()),
    ]);
    let settings = json!({
        "shots": migration.survey().shots.len(),
        "steps": migration.steps(),
        "points": migration.snapshot_len(),
        "snapshots_per_shot": migration.snapshots(),
        "threads": migration.threads(),
        "host_bytes": room.host_bytes,
    });
    let runs = outcomes.iter().map(Outcome::to_json).collect();
    Ok(Report::new("rtm", settings, runs, ratios))
}
