//! The one error type of this crate; a message says what failed, on what, and what to do.

use std::path::PathBuf;

/// What a [`History`](crate::History) fails with: whatever its storage fails with.
pub type HistoryError = Box<dyn std::error::Error + Send + Sync>;

/// Everything that can go wrong between a configuration and an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a configuration: bad TOML, an unknown key, a value of the wrong kind.
    #[error("configuration: {0}")]
    Syntax(String),

    /// A setting has a value that cannot work.
    #[error("configuration: {field} = {value}: {advice}")]
    Setting {
        /// The key as it is written in the file.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would work.
        advice: String,
    },

    /// The time step is beyond the stability limit (Courant, Friedrichs and Lewy) of the scheme.
    #[error(
        "a time step of {dt} s is unstable: with {velocity_max} m/s on this grid the largest stable one is {largest} s; \
         set dt to at most that, or leave it out to have it chosen"
    )]
    Unstable {
        /// The step that was asked for, in seconds.
        dt: f64,
        /// The largest stable step, in seconds.
        largest: f64,
        /// The fastest velocity of the model, in metres per second.
        velocity_max: f32,
    },

    /// A velocity model has the wrong size or impossible velocities.
    #[error("velocity model: {0}")]
    Model(String),

    /// A model file cannot be understood.
    #[error("model file {path}: {problem}")]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        problem: String,
    },

    /// A file cannot be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// What was tried: "open", "read", "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },

    /// The history could not keep or return a snapshot.
    #[error("cannot {action} the snapshot of step {step}")]
    History {
        /// "record" or "replay".
        action: &'static str,
        /// The step of the snapshot.
        step: usize,
        /// What the history said.
        #[source]
        source: HistoryError,
    },

    /// The threads for the computation could not be started.
    #[error("cannot start {threads} compute threads: {reason}")]
    Threads {
        /// How many were asked for (0: one per core).
        threads: usize,
        /// What the system said.
        reason: String,
    },

    /// The picture could not be encoded.
    #[error("cannot encode the picture as PNG: {0}")]
    Picture(#[from] png::EncodingError),
}

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;
