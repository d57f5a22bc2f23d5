//! A log of all events and the actions that followed, to replay a run and compare.

use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use outcrop_plan::{Action, Event, Planner, Settings, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// One event, and the planner's actions.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    at: Timestamp,
    event: Event,
    actions: Vec<Action>,
}

/// Writes the log of a run: the settings, then one line per event.
#[derive(Debug)]
pub(crate) struct Recorder {
    path: PathBuf,
    out: BufWriter<File>,
    has_failed: bool,
}

impl Recorder {
    pub(crate) fn create(path: &Path, settings: &Settings) -> Result<Self> {
        let file = File::create(path).map_err(|source| file_error("create", path, source))?;
        let mut out = BufWriter::new(file);
        write_line(&mut out, settings).map_err(|source| file_error("write", path, source))?;
        Ok(Self { path: path.to_owned(), out, has_failed: false })
    }

    /// If the log cannot be written, it ends with a warning: the run is more important.
    pub(crate) fn add(&mut self, at: Timestamp, event: Event, actions: &[Action]) {
        if self.has_failed {
            return;
        }
        if let Err(error) = write_line(&mut self.out, &Entry { at, event, actions: actions.to_vec() }) {
            self.has_failed = true;
            tracing::warn!(path = %self.path.display(), %error, "cannot write the log of this run, which ends here");
        }
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Where the replay of a log differs from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The line of the log, from 1.
    pub line: usize,
    /// The event.
    pub event: Event,
    /// The actions in the log.
    pub recorded: Vec<Action>,
    /// The actions of the replay.
    pub replayed: Vec<Action>,
}

/// Replays the events of a log with a new planner. Returns the number of events, and the first one
/// whose actions differ from those in the log.
pub fn replay(path: &Path) -> Result<(usize, Option<Divergence>)> {
    let file = File::open(path).map_err(|source| file_error("open", path, source))?;
    let mut lines = BufReader::new(file).lines();
    let unreadable = |source| file_error("read", path, source);
    let first = lines.next().unwrap_or_else(|| Ok(String::new())).map_err(unreadable)?;
    let settings: Settings = serde_json::from_str(&first).map_err(|error| unreadable(error.into()))?;
    let mut planner = Planner::new(settings);
    let mut count = 0;
    for (line, text) in (2..).zip(lines) {
        let Entry { at, event, actions } =
            serde_json::from_str(&text.map_err(unreadable)?).map_err(|error| unreadable(error.into()))?;
        planner.handle(at, event.clone());
        let replayed: Vec<_> = std::iter::from_fn(|| planner.poll()).collect();
        if replayed != actions {
            return Ok((count, Some(Divergence { line, event, recorded: actions, replayed })));
        }
        count += 1;
    }
    Ok((count, None))
}

fn file_error(attempt: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { attempt, path: path.display().to_string(), source }
}
