//! Carries the plan out.
//!
//! An [`Engine`] drives the planner with a stack of layers. The front is host or device memory. A
//! few helper threads move snapshots to and from the layers below, and sleep when there is nothing
//! to move. A program uses [`Handle`]s: it is lent a slot to fill, and handed a slot to read; in
//! host memory neither is a copy. Every snapshot that leaves memory has a checksum, which is
//! verified when the snapshot comes back.

#![forbid(unsafe_code)]

mod checksum;
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

pub use engine::{Arrival, Arrivals, Checksums, Engine, Options, Rates};
pub use error::{Error, Result};
pub use handle::{Anchor, Handle, Held, Lent};
pub use layout::{ELEMENT_ALIGN_MAX, Layout, Region};
pub use log::{Divergence, replay};
pub use outcrop_trace::{Span, SpanKind, Trace};
pub use stats::{LayerStats, Stats};
