//! Measures Outcrop against the obvious alternatives, in one run and on the same data.
//!
//! Timings are noisy, so what counts are the ratios. Every benchmark gives one [`Report`]; none leaves a file behind.

pub mod alloc;
mod clock;
mod disk;
pub mod increment;
mod memory;
pub mod model;
mod report;
pub mod rtm;
mod scratch;
pub mod store;
pub mod tape;
mod ways;
mod workload;

pub use report::{Machine, Report};
use scratch::Scratch;
