//! Predicts how long a pool takes to persist, and decides whether it is worth it.
//!
//! [`Features`] say what a call would persist. A [`Model`] predicts the time from them: a tree of
//! thresholds with linear models in its leaves (M5P, [`ModelTree`]), trained by `outcrop model
//! train` and kept in a small file. [`Worth`] corrects it by what calls really took, and compares
//! it with the work that a failure would cost. Nothing here has files, clocks or threads.

#![forbid(unsafe_code)]

mod features;
mod linear;
mod model;
mod samples;
mod tree;
mod worth;

pub use features::{Features, Kind};
pub use model::{Error, Measured, Model};
pub use samples::Samples;
pub use tree::{Growth, ModelTree};
pub use worth::{Verdict, Worth};

/// The most attributes of a row.
const ATTRIBUTES_MAX: usize = 64;
