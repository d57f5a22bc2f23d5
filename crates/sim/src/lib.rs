//! Machines as models: runs the very same plan as the engine under a virtual clock.
//!
//! A [`Machine`] says what a node has and what its processes share; an [`Experiment`] says which
//! layers are in use, how memory is prepared, and what the programs do; [`simulate`] gives the
//! [`Outcome`]. Everything that the engine would ask the planner, the simulation asks it too; only
//! the layers and the clock are numbers.

#![forbid(unsafe_code)]

mod baseline;
pub mod chart;
mod commit_fuzz;
mod error;
mod experiment;
mod figures;
mod fluid;
mod fuzz;
mod machine;
mod memory;
mod path;
mod planned;
mod plot;
mod simulation;
mod store;
mod world;

pub use commit_fuzz::fuzz_commit;
pub use error::{Error, Result};
pub use experiment::{
    Activity, Approach, Experiment, Group, Layer, Medium, Outcome, ProcessOutcome, Span, Turns, Workload,
};
pub use figures::{Entry, Figure, Headline, Ratios, Row, figure, figures, here};
pub use fuzz::{Coverage, Failure, fuzz};
pub use machine::{Device, Host, Machine, PlainRates, Storage};
pub use plot::draw;
pub use simulation::simulate;
