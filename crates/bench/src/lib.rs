//! Compares Outcrop with the obvious alternatives, in one run and on the same data.
//!
//! Timings are noisy, so the ratios count. Every benchmark returns one [`Report`], and leaves no
//! files. [`page`] turns reports into Markdown and plots.

pub mod alloc;
pub mod apps;
mod clock;
mod disk;
mod hand_written;
pub mod increment;
pub mod interval;
mod memory;
pub mod model;
pub mod node;
pub mod object;
pub mod page;
pub mod parity;
mod passes;
mod ping;
pub mod pool;
mod quiet;
pub mod ranks;
mod report;
pub mod rtm;
mod scratch;
mod stencil;
pub mod store;
pub mod tape;
pub mod train;
mod ways;
pub mod whole;
mod workload;

pub use disk::file_system;
pub use quiet::{Quiet, Watch};
pub use report::{Machine, Report};
pub use scratch::Needs;
use scratch::Scratch;
