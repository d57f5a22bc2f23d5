//! Two programs: one rewrites nearly all of its memory and changes little of it, the other changes
//! all of it.

use std::{path::Path, time::Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    Options,
    keepers::{ByPages, InStore, Keeper, Nothing, WARM_UP},
};
use crate::clock::Calls;

/// A value does not change if a step would change it by less than this.
const THRESHOLD: f32 = 1e-6;

/// The number of values in a row of the field.
const COLUMNS: usize = 4096;

/// One row in this many has not converged. The paper found this share in its first program.
const ROWS_PER_ACTIVE: usize = 16;

/// Steps between two measured checkpoints.
const STEPS_PER_CHECKPOINT: usize = 2;

/// The results.
pub(super) struct Programs {
    pub(super) rows: Vec<Value>,
    pub(super) hash_bytes_over_page_bytes: f64,
}

/// A program that changes its memory in steps.
trait Program {
    fn step(&mut self);

    fn state(&self) -> &[f32];
}

/// A field with a relaxation. Each step writes all rows, but most have converged and get equal
/// values.
struct Relaxation {
    field: Vec<f32>,
    /// The row above and this row, before the step.
    above: Vec<f32>,
    this: Vec<f32>,
}

impl Relaxation {
    fn new(bytes: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(2);
        let mut field = vec![0.5; bytes as usize / size_of::<f32>()];
        let active = field.len() / ROWS_PER_ACTIVE;
        field[..active].fill_with(|| random.f32());
        Self { field, above: vec![0.0; COLUMNS], this: vec![0.0; COLUMNS] }
    }
}

impl Program for Relaxation {
    fn step(&mut self) {
        let rows = self.field.len() / COLUMNS;
        self.above.copy_from_slice(&self.field[..COLUMNS]);
        for row in 1..rows - 1 {
            let (these, below) = self.field[row * COLUMNS..][..2 * COLUMNS].split_at_mut(COLUMNS);
            self.this.copy_from_slice(these);
            let (above, below) = (&self.above[1..COLUMNS - 1], &below[1..COLUMNS - 1]);
            let (left, middle, right) = (&self.this[..COLUMNS - 2], &self.this[1..COLUMNS - 1], &self.this[2..]);
            for (column, value) in these[1..COLUMNS - 1].iter_mut().enumerate() {
                let old = middle[column];
                let new = 0.25 * (above[column] + below[column] + left[column] + right[column]);
                *value = if (new - old).abs() > THRESHOLD { new } else { old };
            }
            std::mem::swap(&mut self.above, &mut self.this);
        }
    }

    fn state(&self) -> &[f32] {
        &self.field
    }
}

/// A chain of atoms with slightly non-linear springs: positions, then velocities. Every number
/// changes in every step.
struct Atoms {
    places_and_speeds: Vec<f32>,
}

impl Atoms {
    fn new(bytes: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(3);
        let values = (0..bytes as usize / size_of::<f32>()).map(|_| random.f32() - 0.5);
        Self { places_and_speeds: values.collect() }
    }
}

impl Program for Atoms {
    fn step(&mut self) {
        const STEP: f32 = 0.05;
        let half = self.places_and_speeds.len() / 2;
        let (places, speeds) = self.places_and_speeds.split_at_mut(half);
        let neighbours = places[..half - 2].iter().zip(&places[1..half - 1]).zip(&places[2..]);
        for (speed, ((left, place), right)) in speeds[1..half - 1].iter_mut().zip(neighbours) {
            let (before, after) = (place - left, right - place);
            *speed += STEP * (after - before + 0.25 * (after * after - before * before));
        }
        for (place, speed) in places.iter_mut().zip(speeds) {
            *place += STEP * *speed;
        }
    }

    fn state(&self) -> &[f32] {
        &self.places_and_speeds
    }
}

/// The cost of a program's checkpoints.
struct Run {
    wall_seconds: f64,
    saves: Calls,
    checkpoint_bytes: f64,
    /// Per checkpoint, with its share of the merges.
    written_bytes: f64,
}

type Make = fn(&Path, &Options) -> Result<Box<dyn Keeper>>;

/// The ways, in the order of the table.
const WAYS: [(&str, Make); 4] = [
    ("no checkpoints", |_, _| Ok(Box::new(Nothing))),
    ("full", |path, options| Ok(Box::new(InStore::new(path, options, false)?))),
    ("page-based", |path, options| Ok(Box::new(ByPages::new(path, options)?))),
    ("hash-based", |path, options| Ok(Box::new(InStore::new(path, options, true)?))),
];

/// Table 1 of the paper: the application that behaves like this program, and the megabytes of a
/// page-based and of a hash-based checkpoint.
const PAPER: [(&str, f64, f64); 2] = [("CTH", 513.0, 35.0), ("LAMMPS", 2735.0, 2670.0)];

pub(super) fn measure(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Programs> {
    let relaxation: fn(u64) -> Box<dyn Program> = |bytes| Box::new(Relaxation::new(bytes));
    let atoms: fn(u64) -> Box<dyn Program> = |bytes| Box::new(Atoms::new(bytes));
    let mut rows = Vec::new();
    let mut shares = Vec::new();
    for ((name, program), paper) in [("relaxation (CTH)", relaxation), ("atoms (LAMMPS)", atoms)].into_iter().zip(PAPER)
    {
        let mut runs = Vec::new();
        for (way, make) in WAYS {
            progress(&format!("{name}, {way}"));
            runs.push(measure_one(options, &mut *program(options.state_bytes), make)?);
        }
        for ((way, _), run) in WAYS.iter().zip(&runs) {
            rows.push(row(name, way, run, &runs, paper));
        }
        shares.push(runs[3].checkpoint_bytes / runs[2].checkpoint_bytes);
    }
    Ok(Programs { rows, hash_bytes_over_page_bytes: shares[0] })
}

fn measure_one(options: &Options, program: &mut dyn Program, make: Make) -> Result<Run> {
    let scratch = tempfile::tempdir_in(&options.directory)?;
    let mut keeper = make(scratch.path(), options)?;
    let mut versions = 0..;
    let mut checkpoint = |steps: usize, keeper: &mut dyn Keeper, saves: &mut Calls| -> Result<()> {
        (0..steps).for_each(|_| program.step());
        let version = versions.next().unwrap_or_default();
        saves.time(|| keeper.save(version, program.state()))
    };
    for _ in 0..WARM_UP {
        checkpoint(1, &mut *keeper, &mut Calls::default())?;
    }
    keeper.flush()?;
    let (mut saves, written_before) = (Calls::default(), keeper.written_bytes());
    let start = Instant::now();
    for _ in 0..options.checkpoints {
        checkpoint(STEPS_PER_CHECKPOINT, &mut *keeper, &mut saves)?;
    }
    keeper.flush()?;
    let wall_seconds = start.elapsed().as_secs_f64();
    let written_bytes = (keeper.written_bytes() - written_before) as f64 / options.checkpoints as f64;
    let checkpoint_bytes = keeper.checkpoint_bytes()? as f64;
    Ok(Run { wall_seconds, saves, checkpoint_bytes, written_bytes })
}

/// One row of the table, with the paper's figures next to ours.
fn row(program: &str, way: &str, run: &Run, runs: &[Run], (application, page_mb, hash_mb): (&str, f64, f64)) -> Value {
    let mut row = json!({
        "part": "programs",
        "way": format!("{program}, {way}"),
        "paper_application": application,
        "wall_seconds": run.wall_seconds,
        "slowdown": run.wall_seconds / runs[0].wall_seconds,
    });
    if run.checkpoint_bytes > 0.0 {
        row["save_ms_mean"] = (run.saves.mean() * 1e3).into();
        row["checkpoint_mib"] = (run.checkpoint_bytes / (1 << 20) as f64).into();
        row["written_mib"] = (run.written_bytes / (1 << 20) as f64).into();
    }
    match way {
        "page-based" => row["paper_mb"] = page_mb.into(),
        "hash-based" => {
            row["less_percent"] = ((1.0 - run.checkpoint_bytes / runs[2].checkpoint_bytes) * 100.0).into();
            row["paper_mb"] = hash_mb.into();
            row["paper_less_percent"] = ((1.0 - hash_mb / page_mb) * 100.0).into();
        }
        _ => {}
    }
    row
}
