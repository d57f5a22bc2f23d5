//! Carries the plan out.
//!
//! An [`Engine`] drives the planner against a stack of layers: the front is host or device memory,
//! what lies below it is reached by a few helper threads that sleep when there is nothing to move.
//! A program works through [`Handle`]s: it is lent a slot to fill, and handed a slot to read; in
//! host memory neither is ever a copy. Every snapshot that leaves memory has a checksum, and what
//! comes back is compared with it.

#![forbid(unsafe_code)]

mod core;
mod desk;
mod engine;
mod error;
mod handle;
mod helper;
mod layout;
mod link;
mod log;
mod pin;
mod stats;
mod trace;

pub use engine::{Arrival, Arrivals, Checksums, Engine, Options, Rates};
pub use error::{Error, Result};
pub use handle::{Anchor, Handle, Held, Lent};
pub use layout::{Layout, Region};
pub use log::{Divergence, replay};
pub use stats::{LayerStats, Stats};
pub use trace::{Span, SpanKind, Trace};
