//! Reverse time migration: a picture of the underground from its echoes.
//!
//! A ship fires a source and listens to what comes back. To find where the echoes were born, the
//! source is sent once more through a smooth model of the earth, forwards in time, and the echoes
//! are sent through it backwards. Where both meet at the same moment there is a reflector. The
//! forward field is needed in the reverse of the order in which it is computed, so its snapshots
//! must be kept in between: often far more than fits into memory. That is what Outcrop's tape is
//! for, and this crate is the program around it. It only knows the [`History`] that it records to
//! and replays from.
//!
//! - [`Config`] says what to do, and [`Migration`] does it.
//! - [`Model`] is the earth, [`Propagator`] steps waves through it, [`Survey`] says who shoots and
//!   who listens.
//! - [`ShotImage`] and [`Stack`] collect the image; [`plot`] draws it.
//!
//! ```
//! use outcrop_rtm::{Config, InMemory, Migration, Progress};
//!
//! let config = Config::from_toml(
//!     "model = 'layers'
//!      points = [80, 50]
//!      duration = 0.8
//!      shots = 1
//!      boundary = 15",
//! )?;
//! let migration = Migration::new(&config)?;
//! let mut steps = 0;
//! let migrated = migration.run(&mut InMemory::new(), &mut |_: Progress| steps += 1)?;
//!
//! assert_eq!(migrated.image.len(), 80 * 50);
//! assert_eq!(migrated.report.snapshots, migration.snapshots());
//! assert_eq!(steps, 3 * migration.steps());
//! # Ok::<(), outcrop_rtm::Error>(())
//! ```
//!
//! The image is the same to the last bit whatever the number of threads, the instruction set and
//! the history.

mod acquisition;
mod canvas;
mod config;
mod error;
mod history;
mod imaging;
mod migrate;
mod model;
mod model_file;
pub mod plot;
mod stencil;
mod wave;

pub use acquisition::{Survey, ricker};
pub use config::{Config, Shots, Spacing};
pub use error::{Error, HistoryError, Result};
pub use history::{Files, History, InMemory};
pub use imaging::{ShotImage, Stack};
pub use migrate::{Migrated, Migration, OnProgress, Phase, Progress, Report};
pub use model::{BuiltIn, Grid, Model};
pub use model_file::write_npy;
pub use stencil::{Real, second_derivative};
pub use wave::{Propagator, Scheme, Wavefield};
