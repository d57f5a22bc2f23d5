//! The error type of this crate. A message names what failed, on what, and what to do.

use std::path::PathBuf;

/// Errors of machines, experiments and figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a machine: invalid TOML, an unknown key, or a value of the wrong type.
    #[error("machine {machine}: {problem}")]
    Syntax {
        /// The machine.
        machine: String,
        /// The parser's error.
        problem: String,
    },

    /// A value of a machine is impossible.
    #[error("machine {machine}: {key} = {value}: {advice}")]
    Value {
        /// The machine.
        machine: String,
        /// The key as it is written in the file.
        key: String,
        /// Its value.
        value: String,
        /// What would work.
        advice: &'static str,
    },

    /// An experiment needs something that its machine does not have.
    #[error("machine {machine} has no {what}: add it to the machine, or choose layers that it has")]
    Missing {
        /// The machine.
        machine: String,
        /// What is missing.
        what: String,
    },

    /// The experiment is inconsistent.
    #[error("experiment: {0}")]
    Experiment(String),

    /// The stack could not serve the program.
    #[error("the stack refused snapshot {key} at {seconds:.3} s of virtual time: {why}; give its layers more bytes")]
    Refused {
        /// The snapshot.
        key: u64,
        /// When, in virtual time.
        seconds: f64,
        /// The plan's reason.
        why: String,
    },

    /// A process waits, and nothing is moving.
    #[error("process {process} waits for ever at {seconds:.3} s of virtual time, after {steps} steps")]
    Stuck {
        /// The process.
        process: usize,
        /// When, in virtual time.
        seconds: f64,
        /// How many steps its program has done.
        steps: usize,
    },

    /// There is no figure or machine with this name.
    #[error("there is no {kind} called {name:?}; there are: {known}")]
    Unknown {
        /// The kind of thing.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The known names.
        known: String,
    },

    /// A plot cannot be drawn.
    #[error("plot {name}: {problem}")]
    Plot {
        /// The plot.
        name: String,
        /// The error of the drawing library.
        problem: String,
    },

    /// A file cannot be written.
    #[error("cannot {action} {path}; choose another --output")]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// The result of a simulation.
pub type Result<T> = std::result::Result<T, Error>;
