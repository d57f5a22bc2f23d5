//! The one error type of this crate; a message says what failed, on what, and what to do.

use std::path::PathBuf;

/// What can go wrong between a machine's description and a figure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a machine: bad TOML, an unknown key, a value of the wrong kind.
    #[error("machine {machine}: {problem}")]
    Syntax {
        /// Which machine.
        machine: String,
        /// What the parser says.
        problem: String,
    },

    /// A value of a machine cannot be.
    #[error("machine {machine}: {key} = {value}: {advice}")]
    Value {
        /// Which machine.
        machine: String,
        /// The key as it is written in the file.
        key: String,
        /// Its value.
        value: String,
        /// What would work.
        advice: &'static str,
    },

    /// An experiment asks for something that its machine does not have.
    #[error("machine {machine} has no {what}: add it to the machine, or choose layers that it has")]
    Missing {
        /// Which machine.
        machine: String,
        /// What is missing.
        what: String,
    },

    /// An inconsistent experiment.
    #[error("experiment: {0}")]
    Experiment(String),

    /// The stack could not serve the program.
    #[error("the stack refused snapshot {key} at {seconds:.3} s of virtual time: {why}; give its layers more bytes")]
    Refused {
        /// Which snapshot.
        key: u64,
        /// When, in virtual time.
        seconds: f64,
        /// What the plan said.
        why: String,
    },

    /// Nothing is under way and somebody waits.
    #[error("process {process} waits for ever at {seconds:.3} s of virtual time, after {steps} steps")]
    Stuck {
        /// Which process.
        process: usize,
        /// When, in virtual time.
        seconds: f64,
        /// How far its program had come.
        steps: usize,
    },

    /// There is no such figure or machine.
    #[error("there is no {kind} called {name:?}; there are: {known}")]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What there is.
        known: String,
    },

    /// A plot cannot be drawn.
    #[error("plot {name}: {problem}")]
    Plot {
        /// Which plot.
        name: String,
        /// What the drawing library says.
        problem: String,
    },

    /// A file cannot be written.
    #[error("cannot {action} {path}; choose another --output")]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

/// The result of a simulation.
pub type Result<T> = std::result::Result<T, Error>;
