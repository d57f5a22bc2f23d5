//! Reverse time migration: one shot forwards and backwards, and the stack of all shots.

use crate::acquisition::{Survey, ricker};
use crate::config::{Config, STEPS_MAX};
use crate::error::{Error, HistoryError, Result};
use crate::history::History;
use crate::imaging::{ShotImage, Stack};
use crate::model::{Grid, Model};
use crate::wave::{Propagator, Scheme, Wavefield};
use std::time::{Duration, Instant};

/// The shortest wave that matters has about this many times the peak frequency of a Ricker wavelet.
const BANDWIDTH: f32 = 2.5;
/// Fewer points per wave than this, and the wave falls apart into ripples whatever the order.
const POINTS_PER_WAVE_MIN: f32 = 2.5;

/// What a shot is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Modelling what the receivers would have recorded in the true earth; stands for the field
    /// data.
    Modelling,
    /// Sending the source through the migration model, recording snapshots.
    Forward,
    /// Sending the recordings back in time, replaying snapshots.
    Backward,
}

/// How far a migration is; told after every time step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The shot, counted from 0.
    pub shot: usize,
    /// Shots in all.
    pub shots: usize,
    /// What the shot is doing.
    pub phase: Phase,
    /// Steps done in this phase.
    pub step: usize,
    /// Steps of each phase.
    pub steps: usize,
}

/// Hears the progress.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

/// Where the time of a migration went, in seconds, and what it moved. No second is counted twice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Time steps that modelled the recordings.
    pub modelling_seconds: f64,
    /// Time steps of the forward pass.
    pub forward_seconds: f64,
    /// Time steps of the backward pass.
    pub backward_seconds: f64,
    /// Correlating snapshots with the receiver field.
    pub imaging_seconds: f64,
    /// Copying the field into the memory that the history lent for a snapshot.
    pub gather_seconds: f64,
    /// Inside `History::record`, without the gathering.
    pub record_seconds: f64,
    /// Inside `History::replay`, without the imaging.
    pub replay_seconds: f64,
    /// Snapshots recorded and replayed.
    pub snapshots: usize,
    /// Bytes of these snapshots.
    pub snapshot_bytes: u64,
    /// Grid points computed by time steps, absorbing ones included.
    pub points: u64,
}

impl Report {
    /// Seconds of computing: all time steps, gathering and imaging.
    pub fn compute_seconds(&self) -> f64 {
        self.step_seconds() + self.imaging_seconds + self.gather_seconds
    }

    /// Seconds of waiting for the history.
    pub fn history_seconds(&self) -> f64 {
        self.record_seconds + self.replay_seconds
    }

    /// Grid points per second of the time steps alone.
    pub fn points_per_second(&self) -> f64 {
        self.points as f64 / self.step_seconds().max(f64::MIN_POSITIVE)
    }

    /// Adds what another shot has taken.
    pub fn add(&mut self, other: &Report) {
        self.modelling_seconds += other.modelling_seconds;
        self.forward_seconds += other.forward_seconds;
        self.backward_seconds += other.backward_seconds;
        self.imaging_seconds += other.imaging_seconds;
        self.gather_seconds += other.gather_seconds;
        self.record_seconds += other.record_seconds;
        self.replay_seconds += other.replay_seconds;
        self.snapshots += other.snapshots;
        self.snapshot_bytes += other.snapshot_bytes;
        self.points += other.points;
    }

    fn step_seconds(&self) -> f64 {
        self.modelling_seconds + self.forward_seconds + self.backward_seconds
    }
}

/// The image of all shots, and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Migrated {
    /// One value per point of the grid, x slowest and depth fastest.
    pub image: Vec<f32>,
    /// The sum over all shots.
    pub report: Report,
}

/// A migration that is ready to run: models, survey and compute threads.
#[derive(Debug)]
pub struct Migration {
    model: Model,
    earth: Propagator,
    smooth: Propagator,
    survey: Survey,
    wavelet: Vec<f32>,
    snapshot_every: usize,
    laplacian_filter: bool,
    pool: rayon::ThreadPool,
}

impl Migration {
    /// Checks the configuration, builds or reads the model and starts the compute threads.
    pub fn new(config: &Config) -> Result<Self> {
        config.validate()?;
        let model = config.true_model()?;
        let survey = Survey::new(config, model.grid())?;
        check_frequency(config, &model)?;
        let earth = Propagator::new(&model, &config.scheme())?;
        // The same time step in both models, so that recordings fit sample by sample. Smoothing
        // averages and so never makes a model faster: the step stays stable.
        let scheme = Scheme { dt: Some(earth.dt()), ..config.scheme() };
        let smooth = Propagator::new(&model.smoothed(config.smoothing), &scheme)?;
        let steps = (config.duration / earth.dt()).ceil();
        if steps > STEPS_MAX {
            return Err(Error::Setting {
                field: "duration",
                value: config.duration.to_string(),
                advice: format!("takes {steps} steps of {} s; {STEPS_MAX} are possible", earth.dt()),
            });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|i| format!("rtm-{i}"))
            .build()
            .map_err(|error| Error::Threads { threads: config.threads, reason: error.to_string() })?;
        Ok(Migration {
            wavelet: ricker(config.frequency, earth.dt(), steps as usize),
            snapshot_every: config.snapshot_every,
            laplacian_filter: config.laplacian_filter,
            model,
            earth,
            smooth,
            survey,
            pool,
        })
    }

    /// The true velocity model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where shots and receivers are.
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// The time step in seconds.
    pub fn dt(&self) -> f64 {
        self.earth.dt()
    }

    /// Time steps of each pass.
    pub fn steps(&self) -> usize {
        self.wavelet.len()
    }

    /// Snapshots that a shot records.
    pub fn snapshots(&self) -> usize {
        self.steps().div_ceil(self.snapshot_every)
    }

    /// Values in a snapshot: one per point of the grid, without the absorbing boundary.
    pub fn snapshot_len(&self) -> usize {
        self.grid().len()
    }

    /// Compute threads.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    fn grid(&self) -> &Grid {
        self.model.grid()
    }

    /// Migrates all shots, one after the other through the same history, and stacks them.
    pub fn run(&self, history: &mut dyn History, progress: OnProgress) -> Result<Migrated> {
        let mut stack = Stack::new(self.grid());
        let mut report = Report::default();
        for shot in 0..self.survey.shots.len() {
            let (image, taken) = self.shot(shot, history, progress)?;
            stack.add(&image);
            report.add(&taken);
        }
        Ok(Migrated { image: self.finish(&stack), report })
    }

    /// Migrates one shot. Shots do not depend on each other: a caller may run several at once, each
    /// with a history of its own, and add them to a [`Stack`] in order.
    pub fn shot(&self, shot: usize, history: &mut dyn History, progress: OnProgress) -> Result<(ShotImage, Report)> {
        self.pool.install(|| {
            let mut pass = ShotPass { migration: self, shot, history, progress, report: Report::default() };
            let recorded = pass.model();
            let predicted = pass.forward()?;
            let echoes = echoes(&recorded, &predicted, self.survey.receivers.len());
            let image = pass.backward(&echoes)?;
            Ok((image, pass.report))
        })
    }

    /// The image of a stack: normalised by illumination, and filtered if the configuration says so.
    pub fn finish(&self, stack: &Stack) -> Vec<f32> {
        self.pool.install(|| stack.image(self.laplacian_filter))
    }

    fn is_snapshot(&self, step: usize) -> bool {
        step.is_multiple_of(self.snapshot_every)
    }
}

/// One shot on its way through the phases. A recording has one row of receivers per time step.
struct ShotPass<'a> {
    migration: &'a Migration,
    shot: usize,
    history: &'a mut dyn History,
    progress: OnProgress<'a>,
    report: Report,
}

impl ShotPass<'_> {
    /// What the receivers record in the true model.
    fn model(&mut self) -> Vec<f32> {
        let migration = self.migration;
        let mut wave = migration.earth.quiet();
        let mut recording = Vec::with_capacity(migration.steps() * migration.survey.receivers.len());
        let started = Instant::now();
        for step in 0..migration.steps() {
            self.step_source(&migration.earth, &mut wave, step, &mut recording);
            self.tell(Phase::Modelling, step + 1);
        }
        self.report.modelling_seconds += started.elapsed().as_secs_f64();
        self.count_points();
        recording
    }

    /// Sends the source through the smooth model and records snapshots; returns what the receivers
    /// would hear there.
    fn forward(&mut self) -> Result<Vec<f32>> {
        let migration = self.migration;
        let mut wave = migration.smooth.quiet();
        let mut recording = Vec::with_capacity(migration.steps() * migration.survey.receivers.len());
        for step in 0..migration.steps() {
            if migration.is_snapshot(step) {
                let started = Instant::now();
                let mut gathering = Duration::ZERO;
                let mut fill = |values: &mut [f32]| {
                    let started = Instant::now();
                    migration.smooth.gather(&wave, values);
                    gathering += started.elapsed();
                };
                let recorded = self.history.record(step, migration.snapshot_len(), &mut fill);
                recorded.map_err(|source| failed("record", step, source))?;
                self.report.gather_seconds += gathering.as_secs_f64();
                self.report.record_seconds += (started.elapsed() - gathering).as_secs_f64();
                self.report.snapshots += 1;
                self.report.snapshot_bytes += 4 * migration.snapshot_len() as u64;
            }
            let started = Instant::now();
            self.step_source(&migration.smooth, &mut wave, step, &mut recording);
            self.report.forward_seconds += started.elapsed().as_secs_f64();
            self.tell(Phase::Forward, step + 1);
        }
        self.count_points();
        Ok(recording)
    }

    /// Sends a recording back in time and correlates it with the snapshots.
    fn backward(&mut self, recording: &[f32]) -> Result<ShotImage> {
        let migration = self.migration;
        let receivers = &migration.survey.receivers;
        let mut wave = migration.smooth.quiet();
        let mut image = ShotImage::new(migration.grid());
        for step in (0..migration.steps()).rev() {
            let started = Instant::now();
            migration.smooth.step(&mut wave);
            for (&point, &value) in receivers.iter().zip(&recording[step * receivers.len()..]) {
                migration.smooth.inject(&mut wave, point, value);
            }
            self.report.backward_seconds += started.elapsed().as_secs_f64();
            if migration.is_snapshot(step) {
                let started = Instant::now();
                let mut imaging = Duration::ZERO;
                let mut read = |source: &[f32]| {
                    let started = Instant::now();
                    image.correlate(migration.grid(), source, &migration.smooth, &wave);
                    imaging += started.elapsed();
                };
                let replayed = self.history.replay(step, &mut read);
                replayed.map_err(|source| failed("replay", step, source))?;
                self.report.imaging_seconds += imaging.as_secs_f64();
                self.report.replay_seconds += (started.elapsed() - imaging).as_secs_f64();
            }
            self.tell(Phase::Backward, migration.steps() - step);
        }
        self.count_points();
        Ok(image)
    }

    /// One step of the source field; appends what the receivers hear.
    fn step_source(&self, propagator: &Propagator, wave: &mut Wavefield, step: usize, recording: &mut Vec<f32>) {
        let survey = &self.migration.survey;
        propagator.step(wave);
        propagator.inject(wave, survey.shots[self.shot], self.migration.wavelet[step]);
        recording.extend(survey.receivers.iter().map(|&point| propagator.sample(wave, point)));
    }

    fn tell(&mut self, phase: Phase, step: usize) {
        let (shots, steps) = (self.migration.survey.shots.len(), self.migration.steps());
        (self.progress)(Progress { shot: self.shot, shots, phase, step, steps });
    }

    fn count_points(&mut self) {
        self.report.points += (self.migration.steps() * self.migration.smooth.points_per_step()) as u64;
    }
}

/// What is sent back in time: the part of a recording that the smooth model does not predict,
/// differentiated in time.
///
/// The prediction holds the direct wave and everything else that is no reflection. The derivative
/// is there because a surface of sources emits the integral of what it is fed with; without it a
/// reflector would show as a pair of black and white instead of as one line at its depth.
fn echoes(recorded: &[f32], predicted: &[f32], receivers: usize) -> Vec<f32> {
    let missing: Vec<f32> = recorded.iter().zip(predicted).map(|(r, p)| r - p).collect();
    (0..missing.len())
        .map(|i| {
            let before = i.checked_sub(receivers).map_or(0.0, |i| missing[i]);
            let after = missing.get(i + receivers).copied().unwrap_or(0.0);
            // Minus the derivative: seen in reversed time, that is the derivative.
            0.5 * (before - after)
        })
        .collect()
}

fn failed(action: &'static str, step: usize, source: HistoryError) -> Error {
    Error::History { action, step, source }
}

/// Refuses a source whose waves the grid cannot carry.
fn check_frequency(config: &Config, model: &Model) -> Result<()> {
    let grid = model.grid();
    let widest = grid.spacing.into_iter().fold(0.0, f32::max);
    let highest = model.velocity_min() / (BANDWIDTH * POINTS_PER_WAVE_MIN * widest);
    if config.frequency <= highest {
        return Ok(());
    }
    Err(Error::Setting {
        field: "frequency",
        value: config.frequency.to_string(),
        advice: format!(
            "its waves are too short for points {widest} metres apart where sound travels {} metres per second; use at \
             most {highest:.1} hertz or a finer grid",
            model.velocity_min()
        ),
    })
}
