//! A program at work on a state that is kept.

use std::{path::Path, time::Duration};

use outcrop_pool::Versioned;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{Error, Field, Keep, Keeper, Picture, Result, Way};

/// The usual time between two failures.
pub(crate) const MTBF: Duration = Duration::from_secs(24 * 3600);

/// Numerics on structures that a keeper provides.
pub trait Program: Sized + Send {
    /// The name of the program.
    const NAME: &'static str;
    /// What `--help` says of it.
    const ABOUT: &'static str;
    /// How many iterations usually lie between two persisted ones.
    const EVERY: u64;
    /// What the result depends on.
    type Settings: clap::Args + Clone + Send + Sync;

    /// Checks the settings, and describes all of them in less than 240 bytes.
    fn describe(settings: &Self::Settings) -> Result<String>;

    /// The number of iterations, or the most there can be.
    fn iterations(settings: &Self::Settings) -> u64;

    /// Opens the structures: as they were kept, or empty.
    fn open(settings: &Self::Settings, keeper: &mut Keeper) -> Result<Self>;

    /// Makes the state in which the first iteration starts.
    fn begin(&mut self);

    /// One iteration, after so many others.
    fn step(&mut self, done: u64) -> Stepped;

    /// All structures.
    fn kept(&mut self) -> Vec<&mut dyn Keep>;

    /// What became of it, for people.
    fn report(&self) -> String;

    /// A picture of the state.
    fn picture(&self) -> Option<Picture> {
        None
    }

    /// The result in bytes: little-endian numbers.
    fn output(&self) -> Vec<u8>;
}

/// What an iteration did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stepped {
    /// What it read and wrote.
    pub traffic: Traffic,
    /// Whether it was the last one.
    pub is_last: bool,
}

/// What an iteration reads from memory and writes to it, beyond the caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Reads that the processor cannot foresee, and waits for.
    pub reads: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Writes to places that the processor cannot foresee.
    pub writes: u64,
}

/// How far a job has come.
#[derive(Versioned, FromBytes, IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Progress {
    done: u64,
    is_finished: u64,
    /// The program and its settings; all zeros before the beginning.
    settings: [u8; 240],
}

/// A program and its state.
pub struct Job<P> {
    program: P,
    keeper: Keeper,
    progress: Field<Progress>,
    iterations: u64,
}

impl<P: Program> Job<P> {
    /// Goes on with the state that is there, or begins.
    pub fn open(settings: &P::Settings, way: Way, path: &Path) -> Result<Self> {
        Self::open_with(settings, way, path, MTBF)
    }

    /// The same where failures come so often, on average.
    pub fn open_with(settings: &P::Settings, way: Way, path: &Path, mtbf: Duration) -> Result<Self> {
        let expected = format!("{} {}", P::NAME, P::describe(settings)?);
        let mut keeper = Keeper::open(way, path, mtbf)?;
        let mut progress: Field<Progress> = keeper.array("progress", 1)?;
        let mut text = [0; 240];
        text[..expected.len()].copy_from_slice(expected.as_bytes());
        let is_new = progress[0].settings == [0; 240];
        if !is_new && progress[0].settings != text {
            let found = String::from_utf8_lossy(&progress[0].settings).trim_end_matches('\0').to_owned();
            return Err(Error::OtherSettings { path: path.to_owned(), found, expected });
        }
        let mut program = P::open(settings, &mut keeper)?;
        if is_new {
            progress.all()[0].settings = text;
            program.begin();
        }
        Ok(Self { program, keeper, progress, iterations: P::iterations(settings) })
    }

    /// The number of iterations that were done.
    pub fn done(&self) -> u64 {
        self.progress[0].done
    }

    /// The number of iterations in all, or the most there can be.
    pub fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Whether nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.progress[0].is_finished != 0 || self.done() >= self.iterations
    }

    /// One iteration.
    pub fn step(&mut self) {
        let stepped = self.program.step(self.progress[0].done);
        self.keeper.charge(&stepped.traffic);
        let progress = &mut self.progress.all()[0];
        progress.done += 1;
        progress.is_finished = u64::from(stepped.is_last);
    }

    /// Keeps the state; gives the number of bytes that were written.
    pub fn persist(&mut self) -> Result<u64> {
        let mut kept = self.program.kept();
        kept.push(&mut self.progress);
        self.keeper.persist(&mut kept)
    }

    /// Keeps the state if that is worth it.
    pub fn persist_if_worth_it(&mut self) -> Result<()> {
        let mut kept = self.program.kept();
        kept.push(&mut self.progress);
        self.keeper.persist_if_worth_it(&mut kept)
    }

    /// The program.
    pub fn program(&self) -> &P {
        &self.program
    }

    /// The file of the state.
    pub fn path(&self) -> &Path {
        self.keeper.path()
    }
}
