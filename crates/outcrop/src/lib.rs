//! Keeps the states that a simulation passes through.
//!
//! A [`Tape`] takes snapshots on the way out and gives them back on the way home. Saving one costs a memory copy or less;
//! the bytes sink through slower and larger layers in the background, and come back up before they are asked for.
//!
//! ```
//! use outcrop::{Order, Tape};
//! # fn forward(field: &mut [f32]) { field.iter_mut().for_each(|value| *value += 1.0); }
//! # fn correlate(past: &[f32]) { assert!(past.len() == 1000); }
//! # fn main() -> outcrop::Result<()> {
//! # let (n, mut field) = (100, vec![0f32; 1000]);
//! # let directory = tempfile::tempdir().unwrap();
//! # let scratch = directory.path().join("scratch");
//! let mut tape = Tape::builder().host("2 GiB").dir(scratch, "200 GiB").order(Order::Reverse).open()?;
//! for step in 0..n {
//!     forward(&mut field);
//!     tape.save(step, &field)?;
//! }
//! for step in (0..n).rev() {
//!     let past = tape.take(step)?; // derefs to the slice, no copy
//!     correlate(&past);
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod builder;
pub mod config;
mod element;
mod error;
mod process;
mod regions;
pub mod store;
mod tape;

pub use builder::{Size, TapeBuilder};
pub use element::Element;
pub use error::{Error, ErrorKind, Result};
pub use outcrop_catalog as catalog;
pub use outcrop_engine::{LayerStats, Span, SpanKind, Stats, Trace};
pub use outcrop_format::HashKind;
pub use outcrop_layers as layers;
pub use outcrop_plan::{MemoryState, Order, Pinning, Ranking, Reason, Retention, Rule, Strategy, Touching};
pub use outcrop_survey as survey;
pub use outcrop_track::{TrackStats, Way};
pub use process::OfProcess;
pub use regions::{LentRegions, Part, PartMut, PastRegions, Shape};
pub use store::{Reached, Session, Store, StoreBuilder};
pub use tape::{Anchor, Lent, Past, Tape};
