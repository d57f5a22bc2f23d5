//! Simulates machines: runs the same plan as the engine, with a virtual clock.
//!
//! A [`Machine`] describes what a node has and what its processes share. An [`Experiment`]
//! describes which layers are in use, how memory is prepared, and what the programs do.
//! [`simulate`] returns the [`Outcome`]. The simulation calls the planner exactly as the engine
//! does; only the layers and the clock are simulated.

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
mod node_fuzz;
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
pub use node_fuzz::fuzz_node;
pub use plot::draw;
pub use simulation::simulate;
